//! One transaction (S20): everything about a change is written, or nothing is; a message that failed is applied when it
//! comes again.

use orbit::{
    domain::{
        ids::{AttemptRef, MessageId, TaskId},
        receipt::Disposition,
        report::{Finish, Report, Start},
        task::{State, StateName},
    },
    engine::{EngineOptions, Failure},
};

use crate::support::{on_every_database, rig::*};

const ALWAYS: &str = "1 = 1";

async fn try_finish(
    worker: &TestWorker,
    attempt: AttemptRef,
    message_id: MessageId,
    report: Report,
) -> Result<(), Failure> {
    let message = Finish { message_id, attempt, report };
    worker.engine.finish_attempt(message, &worker.session).await.map(|_| ())
}

async fn running(rig: &Rig, worker: &mut TestWorker) -> (TaskId, AttemptRef) {
    let id = rig.submit(slow_retry).await;
    let attempt = worker.next().await.attempt;
    worker.start(attempt).await;
    (id, attempt)
}

fn impossible(failure: &Result<(), Failure>) {
    assert!(matches!(failure, Err(Failure::Inconsistent { .. })), "{failure:?}");
}

on_every_database! {
    // A replica that took over without the last commits, or a restore under a running server: the node goes on.
    async fn a_lane_whose_row_is_lost_goes_on_with_another(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        for damage in ["UPDATE lane_commits SET seq = seq - 1", "DELETE FROM lane_commits"] {
            rig.submit(|_| {}).await;
            let attempt = worker.next().await.attempt;
            rig.database.sql(damage).await;
            worker.start(attempt).await;
            assert_eq!(worker.finish(attempt, succeeded()).await.disposition, Disposition::Applied);
            // It has a row again, or nobody could tell how a commit ended.
            assert!(rig.database.number("SELECT COUNT(*) FROM lane_commits WHERE seq > 0").await > 0);
        }
        rig.end().await;
    }

    // A row that somebody else changed is not guessed around: the write finds another number of rows than were read.
    async fn a_write_that_does_not_find_its_rows_changes_nothing(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let waiting = rig.submit(|_| {}).await;
        let cancel = async || rig.engine.cancel_task(waiting, String::new(), request()).await;
        rig.database.sql("UPDATE ready SET available_at = available_at + 1").await;
        let before = rig.database.picture().await;
        impossible(&cancel().await.map(|_| ()));
        assert_eq!(rig.database.picture().await, before);
        rig.database.sql("UPDATE ready SET available_at = available_at - 1").await;
        assert_eq!(cancel().await.expect("canceled").task_state, StateName::Canceled);

        // The same in the middle of a transaction.
        let mut worker = rig.worker(1).await;
        let (_, attempt) = running(&rig, &mut worker).await;
        let after = if rig.database.is_mysql() { "FOR EACH ROW" } else { "BEGIN" };
        let end = if rig.database.is_mysql() { "" } else { "; END" };
        rig.database
            .sql(&format!(
                "CREATE TRIGGER take_lease AFTER INSERT ON attempts {after} \
                 DELETE FROM leases WHERE task_id = NEW.task_id{end}"
            ))
            .await;
        let (finish_id, before) = (message_id(), rig.database.picture().await);
        impossible(&try_finish(&worker, attempt, finish_id, succeeded()).await);
        assert_eq!(rig.database.picture().await, before);
        rig.database.sql("DROP TRIGGER take_lease").await;
        let (receipt, replayed) = worker.finish_as(attempt, finish_id, succeeded()).await.expect("applied");
        assert_eq!((receipt.disposition, replayed), (Disposition::Applied, false));
        rig.end().await;
    }

    async fn a_finish_that_cannot_be_written_whole_changes_nothing_and_is_applied_later(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        for report in [failed(true), failed(false), unknown(), succeeded()] {
            for table in ["attempts", "receipts", "events"] {
                let (id, attempt) = running(&rig, &mut worker).await;
                let message_id = message_id();
                let before = rig.database.picture().await;
                rig.database.refuse_inserts(table, ALWAYS).await;
                impossible(&try_finish(&worker, attempt, message_id, report.clone()).await);
                assert_eq!(rig.database.picture().await, before, "{table} {report:?}");
                assert!(rig.engine.renew(&[attempt]).await.expect("told").iter().all(|l| l.valid));
                rig.database.allow_inserts(table).await;

                let taken = worker.finish_as(attempt, message_id, report.clone()).await;
                let (receipt, replayed) = taken.expect("applied");
                assert_eq!((receipt.disposition, replayed), (Disposition::Applied, false), "{table} {report:?}");
                let record = rig.task(id).await;
                assert_eq!(receipt.task_state, record.task.state.name());
                assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0, "the permit is free");
                if let State::Waiting { .. } = record.task.state {
                    assert!(record.result.is_none() && record.error.is_none(), "they stay with the attempt");
                    assert_eq!(rig.ended(id).await.len(), 1);
                }
            }
        }
        rig.end().await;
    }

    async fn a_review_that_cannot_be_listed_does_not_begin(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let (id, attempt) = running(&rig, &mut worker).await;
        let message_id = message_id();
        let before = rig.database.picture().await;
        rig.database.refuse_inserts("reviews", ALWAYS).await;
        impossible(&try_finish(&worker, attempt, message_id, unknown()).await);
        assert_eq!(rig.database.picture().await, before);
        rig.database.allow_inserts("reviews").await;
        worker.finish_as(attempt, message_id, unknown()).await.expect("applied");
        assert_eq!(rig.task(id).await.task.state, State::NeedsReview);
        rig.end().await;
    }

    async fn evidence_that_cannot_be_written_whole_is_not_kept_and_not_counted(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        for (kept, table) in ["evidence", "receipts", "events"].into_iter().enumerate() {
            let message_id = message_id();
            let before = rig.database.picture().await;
            rig.database.refuse_inserts(table, ALWAYS).await;
            impossible(&try_finish(&worker, attempt, message_id, succeeded()).await);
            assert_eq!(rig.database.picture().await, before, "{table}");
            rig.database.allow_inserts(table).await;
            let (receipt, replayed) =
                worker.finish_as(attempt, message_id, succeeded()).await.expect("kept");
            assert_eq!((receipt.disposition, replayed), (Disposition::Evidence, false));
            assert_eq!(rig.evidence(id).await.len(), kept + 1);
        }
        rig.end().await;
    }

    async fn a_start_that_cannot_be_written_whole_authorizes_nothing(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        for table in ["receipts", "events"] {
            rig.submit(|_| {}).await;
            let attempt = worker.next().await.attempt;
            let message = Start { message_id: message_id(), attempt };
            let before = rig.database.picture().await;
            rig.database.refuse_inserts(table, ALWAYS).await;
            impossible(&worker.engine.start_attempt(message, &worker.session).await.map(|_| ()));
            assert_eq!(rig.database.picture().await, before, "{table}");
            rig.database.allow_inserts(table).await;
            let (receipt, replayed) = worker.start_as(attempt, message.message_id).await.expect("granted");
            assert_eq!((receipt.task_state, replayed), (StateName::Running, false));
            worker.finish(attempt, succeeded()).await;
        }
        rig.end().await;
    }

    async fn a_submit_that_cannot_be_written_whole_leaves_its_key_free(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        rig.submit(|_| {}).await;
        for table in ["events", "payloads", "ready"] {
            let submission = submission();
            let before = rig.database.picture().await;
            rig.database.refuse_inserts(table, ALWAYS).await;
            impossible(&rig.engine.submit(submission.clone()).await.map(|_| ()));
            assert_eq!(rig.database.picture().await, before, "{table}");
            rig.database.allow_inserts(table).await;
            assert!(!rig.engine.submit(submission).await.expect("accepted").replayed());
        }
        rig.end().await;
    }

    async fn a_claim_that_cannot_be_written_whole_spends_no_budget(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let id = rig.submit(|s| s.policy.max_attempts = 1).await;
        for table in ["leases", "events"] {
            let condition = if table == "events" { "NEW.kind = 2" } else { ALWAYS };
            rig.database.refuse_inserts(table, condition).await;
            let mut worker = rig.worker(1).await;
            let before = rig.database.picture().await;
            worker.nothing_for(std::time::Duration::from_millis(300)).await;
            assert_eq!(rig.database.picture().await, before, "{table}");
            drop(worker);
            rig.database.allow_inserts(table).await;
        }
        let mut worker = rig.worker(1).await;
        let (attempt, receipt) = worker.run(succeeded()).await;
        assert_eq!((attempt.task_id, attempt.epoch, receipt.task_state), (id, 1, StateName::Succeeded));
        rig.end().await;
    }

    async fn a_reclaim_that_cannot_be_written_whole_reclaims_nothing(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(4).await;
        for started in [false, true] {
            for table in ["attempts", "events"] {
                let id = rig.submit(|s| {
                    idempotent(s);
                    slow_retry(s);
                }).await;
                let attempt = worker.next().await.attempt;
                if started {
                    worker.start(attempt).await;
                }
                rig.database.end_leases().await;
                let before = rig.database.picture().await;
                rig.database.refuse_inserts(table, ALWAYS).await;
                assert_eq!(rig.engine.sweep().await.expect("swept").changed, 0);
                assert_eq!(rig.database.picture().await, before, "{table}");
                rig.database.allow_inserts(table).await;
                assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
                let task = rig.task(id).await.task;
                assert_eq!((task.state.name(), task.doubt), (StateName::Waiting, started));
            }
        }
        rig.end().await;
    }

    async fn a_cancel_that_cannot_be_written_whole_is_not_recorded(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let (id, attempt) = running(&rig, &mut worker).await;
        for table in ["events", "requests", "cancels"] {
            let before = rig.database.picture().await;
            rig.database.refuse_inserts(table, ALWAYS).await;
            impossible(&rig.engine.cancel_task(id, String::new(), request()).await.map(|_| ()));
            assert_eq!(rig.database.picture().await, before, "{table}");
            assert!(rig.task(id).await.task.cancel.is_none());
            rig.database.allow_inserts(table).await;
        }
        rig.engine.cancel_task(id, String::new(), request()).await.expect("recorded");
        worker.finish(attempt, failed(true)).await;
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Canceled);
        rig.end().await;
    }

    async fn one_message_that_cannot_be_written_does_not_take_others_with_it(database: TestDatabase) {
        let rig = Rig::new(database, EngineOptions { lanes: 1, ..without_reaper() }).await;
        let mut worker = rig.worker(20).await;
        let mut messages = Vec::new();
        for _ in 0..20 {
            messages.push((running(&rig, &mut worker).await.1, message_id()));
        }
        let bad = messages[7].1;
        rig.database.refuse_inserts("receipts", &format!("NEW.message_id = X'{}'", bad.0.simple())).await;
        let results = futures_util::future::join_all(
            messages.iter().map(|(attempt, id)| try_finish(&worker, *attempt, *id, succeeded())),
        )
        .await;
        for ((_, id), result) in messages.iter().zip(results) {
            assert_eq!(result.is_err(), *id == bad, "{result:?}");
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks WHERE state = 4").await, 19);
        rig.database.allow_inserts("receipts").await;
        let (receipt, replayed) = worker.finish_as(messages[7].0, bad, succeeded()).await.expect("applied");
        assert_eq!((receipt.task_state, replayed), (StateName::Succeeded, false));
        rig.end().await;
    }
}

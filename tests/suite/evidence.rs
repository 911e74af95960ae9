//! Evidence (S16): a report without authority is kept, and changes nothing.

use std::time::Duration;

use orbit::domain::{
    event::EventKind,
    ids::{AttemptRef, TaskId},
    receipt::{Disposition, Receipt},
    rejection::Rejection,
    report::Report,
    task::StateName,
};

use crate::support::{look::Picture, on_every_database, rig::*};

/// The parts of the picture that a report may not touch when it has no authority.
fn untouched(picture: &Picture) -> Vec<(&'static str, i64)> {
    picture.without(&["events", "receipts", "evidence"])
}

/// Sends each report under a new id: each is evidence, is seen in the attempts, and changes nothing.
async fn all_evidence(rig: &Rig, worker: &TestWorker, attempt: AttemptRef, reports: &[Report]) {
    let id = attempt.task_id;
    for report in reports {
        let before = rig.database.picture().await;
        let task = rig.task(id).await.task;
        let kept = rig.evidence(id).await.len();
        let receipt: Receipt = worker.finish(attempt, report.clone()).await;
        assert_eq!((receipt.disposition, receipt.decision), (Disposition::Evidence, None), "{report:?}");
        assert_eq!((receipt.task_state, receipt.effect_uncertain), (task.state.name(), task.doubt));
        assert_eq!(receipt.next_available_at, None);
        let after = rig.database.picture().await;
        assert_eq!(untouched(&after), untouched(&before), "{report:?}");
        assert_eq!(rig.task(id).await.task, task);
        let evidence = rig.evidence(id).await;
        assert_eq!(evidence.len(), kept + 1);
        let seen = evidence.iter().filter(|e| e.message.message_id == receipt.message_id);
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen.len(), 1);
        assert_eq!((&seen[0].message.report, seen[0].session_id), (report, worker.session.session_id));
        assert_eq!(
            (seen[0].node_id.as_str(), seen[0].received_at),
            (&**rig.engine.node_id(), receipt.committed_at)
        );
        let events = rig.events(id).await;
        let told = events.iter().filter(|e| e.kind == EventKind::EvidenceRecorded).count();
        assert_eq!(told, evidence.len());
    }
}

fn every_report() -> [Report; 4] {
    [succeeded(), failed(true), failed(false), unknown()]
}

async fn claimed(rig: &Rig, worker: &mut TestWorker, idempotence: bool) -> (TaskId, AttemptRef) {
    let id = rig
        .submit(|s| {
            if idempotence {
                idempotent(s);
            }
            slow_retry(s);
        })
        .await;
    (id, worker.next().await.attempt)
}

on_every_database! {
    async fn a_finish_before_the_start_is_evidence(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let (_, attempt) = claimed(&rig, &mut worker, false).await;
        all_evidence(&rig, &worker, attempt, &every_report()).await;
        rig.end().await;
    }

    async fn early_evidence_is_applied_under_a_new_id_once_the_attempt_runs(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        for report in every_report() {
            let (id, attempt) = claimed(&rig, &mut worker, false).await;
            let early = worker.finish(attempt, report.clone()).await;
            worker.start(attempt).await;
            let applied = worker.finish(attempt, report.clone()).await;
            assert_eq!(applied.disposition, Disposition::Applied, "{report:?}");
            let third_id = message_id();
            let third = worker.finish_as(attempt, third_id, report.clone()).await;
            assert_eq!(third, Ok((Receipt { message_id: third_id, ..applied.clone() }, true)));
            let again = worker.finish_as(attempt, early.message_id, report).await;
            assert_eq!(again, Ok((early, true)));
            assert_eq!(rig.evidence(id).await.len(), 1);
        }
        rig.end().await;
    }

    async fn a_finish_after_the_lease_is_evidence_whether_or_not_it_was_reclaimed(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(8).await;
        for idempotence in [false, true] {
            let (id, attempt) = claimed(&rig, &mut worker, idempotence).await;
            worker.start(attempt).await;
            rig.database.end_leases().await;
            all_evidence(&rig, &worker, attempt, &[succeeded(), unknown()]).await;
            assert_eq!(rig.task(id).await.task.state.name(), StateName::Running);
            assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
            let task = rig.task(id).await.task;
            assert!(task.doubt, "the late success cleared no doubt");
            all_evidence(&rig, &worker, attempt, &every_report()).await;
            assert!(rig.task(id).await.task.doubt);
        }
        rig.end().await;
    }

    async fn a_finish_of_an_older_attempt_is_evidence_and_does_not_touch_the_newer_one(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(4).await;
        let id = rig.submit(idempotent).await;
        let first = worker.next().await.attempt;
        worker.start(first).await;
        rig.database.end_leases().await;
        assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
        let second = worker.next().await.attempt;
        assert_eq!((second.task_id, second.epoch), (id, 2));
        all_evidence(&rig, &worker, first, &every_report()).await;
        worker.start(second).await;
        all_evidence(&rig, &worker, first, &[Report::Unknown { error: Some(error("LATE")) }]).await;
        let applied = worker.finish(second, succeeded()).await;
        assert_eq!((applied.disposition, applied.task_state), (Disposition::Applied, StateName::Succeeded));
        all_evidence(&rig, &worker, first, &[Report::Unknown { error: Some(error("VERY_LATE")) }]).await;
        assert!(!rig.task(id).await.task.doubt);
        rig.end().await;
    }

    async fn the_old_id_under_the_new_epoch_names_no_attempt(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let (first, _) = worker.run(failed(true)).await;
        let second = worker.next().await.attempt;
        worker.start(second).await;
        let before = rig.database.picture().await;
        let strangers = [
            AttemptRef { epoch: 2, ..first },
            AttemptRef { epoch: 1, ..second },
            AttemptRef { epoch: 3, ..second },
            AttemptRef { epoch: 0, ..first },
        ];
        for stranger in strangers {
            let unknown_attempt =
                Rejection::AttemptNotFound { task_id: id, attempt_id: stranger.attempt_id };
            let finished = worker.finish_as(stranger, message_id(), succeeded()).await;
            assert_eq!(finished, Err(unknown_attempt.clone()));
            assert_eq!(worker.start_as(stranger, message_id()).await, Err(unknown_attempt));
            assert!(rig.engine.renew(&[stranger]).await.expect("told").iter().all(|l| !l.valid));
        }
        assert_eq!(rig.database.picture().await, before);
        worker.finish(second, succeeded()).await;
        rig.end().await;
    }

    async fn another_result_after_the_applied_one_is_evidence(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        for applied in [succeeded(), failed(true), failed(false)] {
            let (_, attempt) = claimed(&rig, &mut worker, true).await;
            worker.start(attempt).await;
            worker.finish(attempt, applied.clone()).await;
            let others: Vec<Report> = every_report().into_iter().filter(|r| *r != applied).collect();
            all_evidence(&rig, &worker, attempt, &others).await;
        }
        rig.end().await;
    }

    async fn sixteen_reports_of_an_attempt_are_kept_and_no_more(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        let (id, attempt) = claimed(&rig, &mut worker, false).await;
        let (_, other) = claimed(&rig, &mut worker, false).await;
        let mut receipts = Vec::new();
        for n in 0..16 {
            receipts.push((n, worker.finish(attempt, numbered(n)).await));
        }
        let full = Err(Rejection::EvidenceLimit(attempt.attempt_id));
        let before = rig.database.picture().await;
        let unlucky = message_id();
        assert_eq!(worker.finish_as(attempt, unlucky, numbered(16)).await, full);
        assert_eq!(worker.finish_as(attempt, message_id(), numbered(3)).await, full);
        assert_eq!(rig.database.picture().await, before);
        for (n, receipt) in receipts {
            let again = worker.finish_as(attempt, receipt.message_id, numbered(n)).await;
            assert_eq!(again, Ok((receipt, true)));
        }
        assert_eq!(rig.evidence(id).await.len(), 16);
        assert_eq!(worker.finish(other, numbered(0)).await.disposition, Disposition::Evidence);
        // A refusal uses no id up: with authority the very same message is applied.
        worker.start(attempt).await;
        let (applied, replayed) = worker.finish_as(attempt, unlucky, numbered(16)).await.expect("applied");
        assert_eq!((applied.disposition, replayed), (Disposition::Applied, false));
        rig.end().await;
    }

    async fn evidence_of_many_attempts_keeps_its_order_in_the_events(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let mut attempts = Vec::new();
        for _ in 0..3 {
            attempts.push(worker.run(failed(true)).await.0);
        }
        for n in 0..16 {
            for attempt in &attempts {
                worker.finish(*attempt, numbered(n)).await;
            }
        }
        let events = rig.events(id).await;
        let told: Vec<_> = events.iter().filter(|e| e.kind == EventKind::EvidenceRecorded).collect();
        assert_eq!(told.len(), 48);
        assert!(told.iter().all(|e| e.revision == 10 && e.state == StateName::Failed));
        rig.end().await;
    }

    async fn a_second_process_does_not_start_a_started_attempt(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        let (_, attempt) = claimed(&rig, &mut worker, false).await;
        worker.start(attempt).await;
        let second = TestWorker::sit(&rig.engine, 0).await;
        let before = rig.database.picture().await;
        let refused = second.start_as(attempt, message_id()).await;
        assert_eq!(refused, Err(Rejection::AlreadyStarted(attempt.attempt_id)));
        assert_eq!(rig.database.picture().await, before);
        worker.finish(attempt, succeeded()).await;
        let refused = second.start_as(attempt, message_id()).await;
        assert_eq!(refused, Err(Rejection::AlreadyStarted(attempt.attempt_id)));
        worker.nothing_for(Duration::from_millis(50)).await;
        rig.end().await;
    }
}

fn numbered(n: u32) -> Report {
    Report::Failed { retryable: false, error: error(&format!("CODE_{n}")) }
}

//! Retention removes what has ended long ago, with all that belongs to it, and nothing else.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use orbit::{
    domain::{
        decide::{Resolution, ResolvedTo},
        ids::{AttemptRef, TaskId},
        receipt::Disposition,
        rejection::Rejection,
        task::StateName,
    },
    engine::{Engine, EngineOptions},
    store::reads::AttemptRecord,
};
use tokio::time::sleep;

use crate::support::{database::TestDatabase, eventually, on_every_database, on_mysql, rig::*};

const HOUR: Duration = Duration::from_hours(1);
/// Every table with rows of tasks.
const TABLES: [&str; 11] = [
    "tasks", "payloads", "ready", "attempts", "leases", "reviews", "cancels", "receipts", "evidence",
    "events", "requests",
];

/// By now what has ended is due.
const AT_ONCE: Duration = Duration::from_millis(1);

async fn after_a_moment(rig: &Rig) -> u64 {
    sleep(Duration::from_millis(20)).await;
    rig.engine.remove_finished(AT_ONCE).await.expect("walked")
}

/// How many rows each table has about this task.
async fn rows_of(database: &TestDatabase, id: TaskId) -> Vec<(&'static str, i64)> {
    let mut rows = Vec::new();
    for table in TABLES {
        let sql = format!("SELECT COUNT(*) FROM {table} WHERE task_id = x'{}'", id.0.simple());
        rows.push((table, database.number(&sql).await));
    }
    rows.retain(|(_, n)| *n > 0);
    rows
}

/// A task that succeeded at its second attempt, with a late report as evidence and a cancel that came too late.
async fn with_everything(rig: &Rig, worker: &mut TestWorker) -> (TaskId, AttemptRef) {
    let id = rig.submit(|_| {}).await;
    let (first, _) = worker.run(failed(true)).await;
    let (second, _) = worker.run(succeeded()).await;
    assert_eq!((first.task_id, second.task_id), (id, id));
    let receipt = worker.finish(second, unknown()).await;
    assert_eq!(receipt.disposition, Disposition::Evidence);
    rig.engine.cancel_task(id, String::new(), request()).await.expect("an answer");
    let tables: Vec<_> = rows_of(&rig.database, id).await.into_iter().map(|(table, _)| table).collect();
    assert_eq!(tables, ["tasks", "payloads", "attempts", "receipts", "evidence", "events", "requests"]);
    (id, second)
}

/// Puts a task so many milliseconds back, as if accepted then. Its end stays where it is.
async fn accepted_earlier(database: &TestDatabase, id: TaskId, ms: u64) -> TaskId {
    let earlier = TaskId(uuid::Uuid::from_u128(id.0.as_u128() - (u128::from(ms) << 80)));
    for table in TABLES {
        let (new, old) = (earlier.0.simple(), id.0.simple());
        database.sql(&format!("UPDATE {table} SET task_id = x'{new}' WHERE task_id = x'{old}'")).await;
    }
    earlier
}

on_every_database! {
    async fn what_ended_is_removed_with_all_that_belongs_to_it_and_nothing_else_is(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(8).await;
        let (done, last) = with_everything(&rig, &mut worker).await;
        let failure = rig.submit(|_| {}).await;
        worker.run(failed(false)).await;
        let canceled = rig.submit(|s| s.handler = "nobody".to_owned()).await;
        rig.engine.cancel_task(canceled, String::new(), request()).await.expect("canceled");
        let mut kept = vec![rig.submit(|_| {}).await];
        worker.run(unknown()).await;
        rig.engine.cancel_task(kept[0], "not wanted".to_owned(), request()).await.expect("an answer");
        kept.push(rig.submit(slow_retry).await);
        worker.run(failed(true)).await;
        kept.push(rig.submit(|_| {}).await);
        let running = worker.next().await.attempt;
        worker.start(running).await;
        kept.push(rig.submit(|_| {}).await);
        worker.next().await;
        kept.push(rig.submit(|s| s.handler = "nobody".to_owned()).await);
        let mut before = Vec::new();
        for id in &kept {
            before.push(rows_of(&rig.database, *id).await);
        }

        assert_eq!(after_a_moment(&rig).await, 3);
        for id in [done, failure, canceled] {
            assert_eq!(rows_of(&rig.database, id).await, [], "{id}");
            let reads = rig.engine.database();
            assert!(reads.task(id, true).await.expect("read").is_none());
            assert!(reads.attempts(id, 0, 10, 1 << 20).await.expect("read").is_none());
            assert!(reads.events(id, (0, 0), 10).await.expect("read").is_none());
        }
        for (id, rows) in kept.iter().zip(before) {
            assert_eq!(rows_of(&rig.database, *id).await, rows);
        }
        assert_eq!(rig.task(kept[0]).await.task.state.name(), StateName::NeedsReview);
        // What is sent about a task that is gone.
        let gone = Rejection::TaskNotFound(done);
        assert_eq!(worker.start_as(last, message_id()).await, Err(gone.clone()));
        assert_eq!(worker.finish_as(last, message_id(), succeeded()).await, Err(gone.clone()));
        assert_eq!(rejection(rig.engine.cancel_task(done, String::new(), request()).await), gone);
        assert_eq!(after_a_moment(&rig).await, 0);
        rig.end().await;
    }

    async fn a_key_is_free_again_once_its_task_is_removed(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let again = submission();
        let first = rig.engine.submit(again.clone()).await.expect("accepted");
        rig.engine.cancel_task(first.task_id(), String::new(), request()).await.expect("canceled");
        let replay = rig.engine.submit(again.clone()).await.expect("accepted");
        assert!(replay.replayed() && replay.task_id() == first.task_id());
        assert_eq!(after_a_moment(&rig).await, 1);
        let second = rig.engine.submit(again).await.expect("accepted");
        assert!(!second.replayed() && second.task_id() != first.task_id());
        rig.end().await;
    }

    // A stored answer goes with its task: the same request finds that there is none any more.
    async fn a_repeated_request_about_a_removed_task_finds_none(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        worker.run(unknown()).await;
        let resolution = Resolution {
            expected_revision: rig.task(id).await.task.revision,
            effect_verified: true,
            reason: "seen".to_owned(),
            evidence: Vec::new(),
            outcome: ResolvedTo::Canceled,
        };
        let by = request();
        let receipt = rig.engine.resolve_task(id, resolution.clone(), by.clone()).await.expect("resolved");
        let again = rig.engine.resolve_task(id, resolution.clone(), by.clone()).await.expect("resolved");
        assert_eq!(again, receipt);
        assert_eq!(after_a_moment(&rig).await, 1);
        let answer = rig.engine.resolve_task(id, resolution, by).await;
        assert_eq!(rejection(answer), Rejection::TaskNotFound(id));
        rig.end().await;
    }

    async fn it_goes_by_the_time_of_the_end(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(rig.submit(|_| {}).await);
            worker.run(succeeded()).await;
        }
        assert_eq!(rig.engine.remove_finished(HOUR).await.expect("walked"), 0);
        // Both were accepted two hours ago. One ended just now, the other a little more than an hour ago.
        let new = accepted_earlier(&rig.database, ids[0], 7_200_000).await;
        let old = accepted_earlier(&rig.database, ids[1], 7_200_000).await;
        assert_eq!(rig.engine.remove_finished(HOUR).await.expect("walked"), 0);
        let end = format!("UPDATE tasks SET completed_at = completed_at - 3601000000 WHERE task_id = x'{}'", old.0.simple());
        assert_eq!(rig.database.sql(&end).await, 1);
        assert_eq!(rig.engine.remove_finished(HOUR).await.expect("walked"), 1);
        assert_eq!(rows_of(&rig.database, old).await, []);
        assert_eq!(rig.task(new).await.task.state.name(), StateName::Succeeded);
        rig.end().await;
    }

    async fn a_batch_that_cannot_be_removed_whole_stays_whole_and_is_removed_later(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let (id, _) = with_everything(&rig, &mut worker).await;
        let before = rig.database.picture().await;
        for table in ["payloads", "attempts", "receipts", "evidence", "events", "requests", "tasks"] {
            let body = if rig.database.is_mysql() {
                "FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by the test'"
            } else {
                "BEGIN SELECT RAISE(ABORT, 'refused by the test'); END"
            };
            rig.database.sql(&format!("CREATE TRIGGER keep_{table} BEFORE DELETE ON {table} {body}")).await;
            assert_eq!(after_a_moment(&rig).await, 0, "{table}");
            assert_eq!(rig.database.picture().await, before, "{table}");
            rig.database.sql(&format!("DROP TRIGGER keep_{table}")).await;
        }
        assert_eq!(after_a_moment(&rig).await, 1);
        assert_eq!(rows_of(&rig.database, id).await, []);
        rig.end().await;
    }

    // Three thousand tasks, some of which have not ended: many steps, many batches.
    async fn a_walk_passes_what_stays_and_removes_the_rest(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        rig.database.load(3_000, 2 * HOUR).await;
        let count = |which| format!("SELECT COUNT(*) FROM tasks WHERE state {which} (4, 5, 6)");
        let (ended, others) =
            (rig.database.number(&count("IN")).await, rig.database.number(&count("NOT IN")).await);
        assert!(ended > 2_900 && others >= 6, "{ended} {others}");
        let removed = rig.engine.remove_finished(HOUR).await.expect("walked");
        assert_eq!(i64::try_from(removed).expect("a number"), ended);
        let left = [rig.database.number(&count("IN")).await, rig.database.number(&count("NOT IN")).await];
        assert_eq!(left, [0, others]);
        rig.end().await;
    }

    async fn a_reader_meets_a_whole_task_or_none(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        rig.database.load(1_000, 2 * HOUR).await;
        let reads = rig.engine.database().clone();
        let filter = orbit::store::TaskFilter { states: vec![StateName::Succeeded, StateName::Failed], ..Default::default() };
        let tasks = reads.tasks(&filter, None, 1_000, 1 << 22).await.expect("a page").tasks;
        let over = AtomicBool::new(false);
        let read = async {
            let (mut whole, mut none) = (0, 0);
            let mut last_round = false;
            loop {
                // Oldest first, as they are removed.
                for task in tasks.iter().rev().step_by(if last_round { 1 } else { 37 }) {
                    let id = task.task.id;
                    let record = reads.task(id, true).await.expect("read");
                    if let Some(record) = &record {
                        let said = record.result.is_some() || record.error.as_ref().is_some_and(|e| &*e.code == "REFUSED");
                        assert!(said && record.payload.is_some(), "{record:?}");
                    }
                    let attempts = reads.attempts(id, 0, 10, 1 << 20).await.expect("read");
                    if let Some(page) = &attempts {
                        assert!(matches!(page.attempts[..], [AttemptRecord::Ended { .. }]), "{page:?}");
                    }
                    let events = reads.events(id, (0, 0), 10).await.expect("read");
                    assert!(events.as_ref().is_none_or(|page| page.events.len() == 4), "{events:?}");
                    whole += usize::from(record.is_some());
                    none += usize::from(events.is_none());
                }
                if last_round {
                    return (whole, none);
                }
                last_round = over.load(Ordering::Relaxed);
            }
        };
        let remove = async {
            let removed = rig.engine.remove_finished(HOUR).await.expect("walked");
            over.store(true, Ordering::Relaxed);
            removed
        };
        let ((whole, none), removed) = tokio::join!(read, remove);
        assert!(whole > 0 && none >= tasks.len() && removed > 900, "{whole} {none} {removed}");
        rig.end().await;
    }

    async fn a_node_removes_by_itself(database: TestDatabase) {
        let options = EngineOptions { keep_finished: Some(Duration::from_secs(1)), ..without_reaper() };
        let rig = Rig::new(database, options).await;
        let id = rig.submit(|_| {}).await;
        rig.engine.cancel_task(id, String::new(), request()).await.expect("canceled");
        eventually("it is removed", Duration::from_secs(10), async || {
            rig.engine.database().task(id, false).await.expect("read").is_none().then_some(())
        })
        .await;
        rig.end().await;
    }

    async fn without_a_limit_tasks_are_kept_for_ever(database: TestDatabase) {
        assert_eq!(EngineOptions::default().keep_finished, None);
        let rig = Rig::new(database, without_reaper()).await;
        rig.database.load(100, Duration::from_hours(24 * 3_650)).await;
        // A node that removes would have walked by then.
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks").await, 100);
        rig.end().await;
    }
}

on_mysql! {
    async fn nodes_that_remove_at_once_remove_each_task_once_and_disturb_nobody() {
        let rig = Rig::new(TestDatabase::mysql().await, without_reaper()).await;
        rig.database.load(4_000, 2 * HOUR).await;
        let ended = rig.database.number("SELECT COUNT(*) FROM tasks WHERE state IN (4, 5, 6)").await;
        let others = [
            Engine::start(rig.database.open().await, without_reaper()).await.expect("started"),
            Engine::start(rig.database.open().await, without_reaper()).await.expect("started"),
        ];
        let over = AtomicBool::new(false);
        let all = async {
            let (a, b, c) = tokio::join!(
                rig.engine.remove_finished(HOUR),
                others[0].remove_finished(HOUR),
                others[1].remove_finished(HOUR)
            );
            over.store(true, Ordering::Relaxed);
            a.expect("walked") + b.expect("walked") + c.expect("walked")
        };
        // Producers that send their old keys again meet the task or make a new one, never an error.
        let produce = async {
            let mut made = BTreeSet::new();
            let mut n = 17;
            while !over.load(Ordering::Relaxed) {
                let again = orbit::domain::submission::Submission {
                    idempotency_key: crate::load_sql::key(n),
                    ..submission()
                };
                match rig.engine.submit(again).await {
                    Ok(submitted) => assert!(!submitted.replayed() && made.insert(submitted.task_id())),
                    Err(failure) => {
                        let refused = rejection::<()>(Err(failure));
                        assert!(matches!(refused, Rejection::IdempotencyConflict { .. }), "{refused:?}");
                    }
                }
                n = (n + 1_009) % 4_000;
            }
            made
        };
        let (removed, made) = tokio::join!(all, produce);
        assert_eq!(i64::try_from(removed).expect("a number"), ended);
        for id in made {
            rig.task(id).await;
        }
        for other in others {
            other.shutdown().await;
        }
        rig.end().await;
    }
}

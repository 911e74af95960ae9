//! Receipts (S13, S14, S18): a message that comes again gets what it got before, whenever, wherever, whatever happened
//! since.

use std::time::Duration;

use futures_util::future::join_all;
use orbit::{
    domain::{
        decide::Decision,
        ids::{AttemptRef, MessageId, TaskId},
        receipt::{Disposition, Receipt},
        rejection::Rejection,
        report::Report,
        task::StateName,
    },
    engine::Engine,
};

use crate::support::{
    node::{self, Node},
    on_every_database,
    rig::*,
};

/// A message and the receipt it got.
type Said = (AttemptRef, MessageId, Report, Receipt);

/// A task that failed twice and then succeeded, with everything that was said about it.
struct Story {
    id: TaskId,
    started: (AttemptRef, MessageId, Receipt),
    said: Vec<Said>,
}

async fn tell(rig: &Rig, worker: &mut TestWorker) -> Story {
    let id = rig.submit(|_| {}).await;
    let first = worker.next().await.attempt;
    let start_id = message_id();
    let (granted, _) = worker.start_as(first, start_id).await.expect("granted");
    let mut said = Vec::new();
    let mut attempt = first;
    for report in [failed(true), failed(true), succeeded()] {
        let message_id = message_id();
        if attempt.epoch > 1 {
            worker.start(attempt).await;
        }
        let (receipt, replayed) =
            worker.finish_as(attempt, message_id, report.clone()).await.expect("applied");
        assert!(!replayed);
        said.push((attempt, message_id, report, receipt));
        check(worker, &said).await;
        if said.len() < 3 {
            attempt = worker.next().await.attempt;
            check(worker, &said).await;
        }
    }
    Story { id, started: (first, start_id, granted), said }
}

/// Says everything again: each gets its own old receipt, and nothing changes.
async fn check(worker: &TestWorker, said: &[Said]) {
    for (attempt, message_id, report, receipt) in said {
        let again = worker.finish_as(*attempt, *message_id, report.clone()).await;
        assert_eq!(again, Ok((receipt.clone(), true)));
    }
}

/// The same on any engine, at any later time, also under new ids.
async fn check_story(engine: &Engine, story: &Story) {
    let hands = TestWorker::sit(engine, 0).await;
    check(&hands, &story.said).await;
    let (attempt, message_id, granted) = &story.started;
    assert_eq!(hands.start_as(*attempt, *message_id).await, Ok((granted.clone(), true)));
    for (attempt, _, report, receipt) in &story.said {
        let new_id = self::message_id();
        let (alias, replayed) =
            hands.finish_as(*attempt, new_id, report.clone()).await.expect("the applied receipt");
        assert_eq!((alias, replayed), (Receipt { message_id: new_id, ..receipt.clone() }, true));
    }
    let states: Vec<StateName> = story.said.iter().map(|(.., r)| r.task_state).collect();
    assert_eq!(states, [StateName::Waiting, StateName::Waiting, StateName::Succeeded]);
    let task = engine.database().task(story.id, false).await.expect("read").expect("the task").task;
    assert_eq!((task.state.name(), task.attempt_count, task.revision), (StateName::Succeeded, 3, 10));
}

async fn restarted(rig: Rig) -> Rig {
    let Rig { engine, database } = rig;
    engine.shutdown().await;
    drop(engine);
    let engine = Engine::start(node::open(&database.url).await, options()).await.expect("started");
    Rig { engine, database }
}

on_every_database! {
    async fn a_repeated_message_gets_its_own_receipt_long_after_further_attempts(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let story = tell(&rig, &mut worker).await;
        check_story(&rig.engine, &story).await;
        let first = &story.said[0].3;
        assert_eq!((first.task_state, first.decision), (StateName::Waiting, Some(Decision::RetryableFailure)));
        assert!(first.next_available_at.is_some());
        rig.end().await;
    }

    async fn receipts_outlive_the_engine(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let story = tell(&rig, &mut worker).await;
        drop(worker);
        let rig = restarted(rig).await;
        check_story(&rig.engine, &story).await;

        // And one that ends without a farewell.
        let mut worker = rig.worker(1).await;
        rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        drop(worker);
        let Rig { engine, database } = rig;
        engine.shutdown().await;
        drop(engine);
        let node = Node::start(&database.url, options()).await;
        let hands = TestWorker::sit(&node.engine(), 0).await;
        let (start_id, finish_id) = (message_id(), message_id());
        let granted = hands.start_as(attempt, start_id).await.expect("granted").0;
        let applied = hands.finish_as(attempt, finish_id, failed(true)).await.expect("applied").0;
        drop(hands);
        node.kill().await;
        let node = Node::start(&database.url, options()).await;
        check_story(&node.engine(), &story).await;
        let hands = TestWorker::sit(&node.engine(), 0).await;
        assert_eq!(hands.start_as(attempt, start_id).await, Ok((granted, true)));
        assert_eq!(hands.finish_as(attempt, finish_id, failed(true)).await, Ok((applied, true)));
        drop(hands);
        node.kill().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn another_content_under_the_same_id_is_a_conflict_and_changes_nothing(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(slow_retry).await;
        let attempt = worker.next().await.attempt;
        let (start_id, finish_id) = (message_id(), message_id());
        worker.start_as(attempt, start_id).await.expect("granted");
        let receipt = worker.finish_as(attempt, finish_id, failed(true)).await.expect("applied").0;
        let before = rig.database.picture().await;
        let others = [
            failed(false),
            succeeded(),
            unknown(),
            Report::Failed { retryable: true, error: error("ANOTHER_CODE") },
            Report::Unknown { error: Some(error("TEMPORARY_REJECTION")) },
            Report::Canceled { error: None },
        ];
        for report in others {
            for used in [start_id, finish_id] {
                let conflict = worker.finish_as(attempt, used, report.clone()).await;
                let value = used.to_string();
                assert_eq!(conflict, Err(Rejection::IdempotencyConflict { field: "message_id", value }));
            }
        }
        // The finish's id under a start, and the start's id under the finish's own content.
        assert!(worker.start_as(attempt, finish_id).await.is_err());
        assert!(worker.finish_as(attempt, start_id, failed(true)).await.is_err());
        assert_eq!(rig.database.picture().await, before);
        assert_eq!(worker.finish_as(attempt, finish_id, failed(true)).await, Ok((receipt, true)));
        assert_eq!(rig.task(id).await.task.attempt_count, 1);
        rig.end().await;
    }

    async fn the_same_result_under_a_new_id_gets_the_applied_receipt_and_the_id_is_kept(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        rig.submit(|_| {}).await;
        let (attempt, applied) = worker.run(succeeded()).await;
        let alias_id = message_id();
        let (alias, replayed) = worker.finish_as(attempt, alias_id, succeeded()).await.expect("known");
        assert_eq!((&alias, replayed), (&Receipt { message_id: alias_id, ..applied }, true));
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM receipts WHERE kind = 2").await, 2);
        assert_eq!(worker.finish_as(attempt, alias_id, succeeded()).await, Ok((alias, true)));
        // The alias is an id like any other.
        let conflict = worker.finish_as(attempt, alias_id, unknown()).await;
        assert!(matches!(conflict, Err(Rejection::IdempotencyConflict { .. })));
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM evidence").await, 0);
        rig.end().await;
    }

    async fn inventing_ids_does_not_grow_the_receipts_without_end(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        rig.submit(|_| {}).await;
        let (attempt, applied) = worker.run(succeeded()).await;
        for _ in 0..100 {
            let (alias, _) = worker.finish_as(attempt, message_id(), succeeded()).await.expect("known");
            assert_eq!(alias.committed_at, applied.committed_at);
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM receipts").await, 64);
        rig.end().await;
    }

    async fn a_receipt_of_evidence_is_never_given_for_the_applied_result(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        let early_id = message_id();
        let (early, _) = worker.finish_as(attempt, early_id, succeeded()).await.expect("kept");
        assert_eq!((early.disposition, early.task_state, early.decision), (Disposition::Evidence, StateName::Leased, None));
        worker.start(attempt).await;
        // Its own id still says what it said: nothing is applied by repeating it.
        assert_eq!(worker.finish_as(attempt, early_id, succeeded()).await, Ok((early.clone(), true)));
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Running);
        let (applied, replayed) = worker.finish_as(attempt, message_id(), succeeded()).await.expect("applied");
        assert_eq!((applied.disposition, replayed), (Disposition::Applied, false));
        let third_id = message_id();
        let (third, replayed) = worker.finish_as(attempt, third_id, succeeded()).await.expect("known");
        assert_eq!((third, replayed), (Receipt { message_id: third_id, ..applied }, true));
        assert_eq!(worker.finish_as(attempt, early_id, succeeded()).await, Ok((early, true)));
        rig.end().await;
    }

    async fn one_message_sent_many_times_at_once_is_applied_once(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        for _ in 0..10 {
            let id = rig.submit(slow_retry).await;
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
            let finish_id = message_id();
            let answers =
                join_all((0..20).map(|_| worker.finish_as(attempt, finish_id, failed(true)))).await;
            let answers: Vec<(Receipt, bool)> = answers.into_iter().map(|a| a.expect("taken")).collect();
            assert_eq!(answers.iter().filter(|(_, replayed)| !replayed).count(), 1);
            assert!(answers.iter().all(|(receipt, _)| *receipt == answers[0].0));
            assert_eq!(rig.task(id).await.task.revision, 4);
        }
        rig.end().await;
    }
}

mod mysql_nodes {
    use super::*;
    use crate::support::database::TestDatabase;

    #[tokio::test(flavor = "multi_thread")]
    async fn another_node_gives_the_same_receipts() {
        let rig = Rig::new(TestDatabase::mysql().await, options()).await;
        let other = Engine::start(rig.database.open().await, options()).await.expect("started");
        let mut worker = rig.worker(1).await;
        let story = tell(&rig, &mut worker).await;
        check_story(&other, &story).await;
        // Half of the messages here, half there, all at once.
        let there = TestWorker::sit(&other, 0).await;
        for _ in 0..20 {
            rig.submit(slow_retry).await;
            let attempt = worker.next().await.attempt;
            let start_id = message_id();
            let starts = join_all(
                (0..10).map(|n| if n % 2 == 0 { &worker } else { &there }.start_as(attempt, start_id)),
            )
            .await;
            assert_eq!(starts.iter().filter(|s| matches!(s, Ok((_, false)))).count(), 1, "{starts:?}");
            assert!(starts.iter().all(Result::is_ok));
            let finish_id = message_id();
            let ends = join_all((0..10).map(|n| {
                if n % 2 == 0 { &worker } else { &there }.finish_as(attempt, finish_id, failed(true))
            }))
            .await;
            assert_eq!(ends.iter().filter(|s| matches!(s, Ok((_, false)))).count(), 1, "{ends:?}");
            let receipts: Vec<&Receipt> = ends.iter().map(|e| &e.as_ref().expect("taken").0).collect();
            assert!(receipts.iter().all(|r| *r == receipts[0]));
            worker.seat.released(attempt.attempt_id);
        }
        drop(there);
        other.shutdown().await;
        tokio::time::timeout(Duration::from_secs(10), rig.end()).await.expect("ended");
    }
}

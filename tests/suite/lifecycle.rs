//! The main job, without a network.

use std::time::Duration;

use orbit::{
    domain::{
        decide::Decision,
        receipt::Disposition,
        rejection::Rejection,
        task::{State, StateName},
    },
    engine::Failure,
    store::reads::AttemptRecord,
};

use crate::support::{eventually, on_every_database, rig::*};

on_every_database! {
    async fn a_node_that_drains_takes_no_submits_claims_nothing_and_ends_what_runs(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(2).await;
        rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        rig.engine.drain();
        let refused = rig.engine.submit(submission()).await;
        assert!(matches!(refused, Err(Failure::Draining { .. })), "{refused:?}");
        let receipt = worker.finish(attempt, failed(true)).await;
        assert_eq!(receipt.task_state, StateName::Waiting);
        // Neither who was here nor who comes gets its retry.
        let mut late = rig.worker(2).await;
        worker.nothing_for(Duration::from_millis(300)).await;
        late.nothing_for(Duration::from_millis(100)).await;
        rig.end().await;
    }

    async fn a_seat_that_drains_gets_nothing_more(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut draining = rig.worker(2).await;
        draining.seat.drain();
        rig.submit(|_| {}).await;
        draining.nothing_for(Duration::from_millis(300)).await;
        let mut other = rig.worker(2).await;
        other.run(succeeded()).await;
        rig.end().await;
    }

    async fn a_retryable_failure_waits_and_runs_again(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;

        let (first, receipt) = worker.run(failed(true)).await;
        assert_eq!(receipt.disposition, Disposition::Applied);
        assert_eq!((receipt.task_state, receipt.decision), (StateName::Waiting, Some(Decision::RetryableFailure)));
        assert_eq!((receipt.effect_uncertain, first.epoch), (false, 1));
        let next_at = receipt.next_available_at.expect("a next claim");
        assert!((25..=50).contains(&next_at.ms_since(receipt.committed_at)), "{receipt:?}");
        let waiting = rig.task(id).await;
        assert!(waiting.result.is_none() && waiting.error.is_none());

        let (second, receipt) = worker.run(succeeded()).await;
        assert_eq!((receipt.task_state, receipt.decision), (StateName::Succeeded, Some(Decision::Succeeded)));
        assert_eq!(second.epoch, 2);
        assert_ne!(second.attempt_id, first.attempt_id);

        let done = rig.task(id).await;
        assert!(matches!(done.task.state, State::Succeeded { .. }));
        assert_eq!(done.result.as_deref(), Some("{\"text\":\"SAFE RETRY\"}"));
        let page = rig.engine.database().attempts(id, 0, 50, 1 << 20).await.expect("read").expect("a task");
        let ended: Vec<_> = page
            .attempts
            .iter()
            .map(|a| match a {
                AttemptRecord::Ended { attempt, .. } => attempt,
                AttemptRecord::Live { .. } => panic!("still live"),
            })
            .collect();
        let [one, two] = ended.as_slice() else { panic!("two attempts: {ended:?}") };
        assert!(matches!(one.end, orbit::domain::attempt::AttemptEnd::Failed { retryable: true, .. }));
        assert!(two.lease.leased_at >= next_at, "not before its backoff has passed");
        rig.end().await;
    }

    async fn the_same_key_makes_one_task(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let one = submission();
        let first = rig.engine.submit(one.clone()).await.expect("accepted");
        let again = rig.engine.submit(one.clone()).await.expect("replayed");
        assert_eq!((again.task_id(), first.replayed(), again.replayed()), (first.task_id(), false, true));
        let mut other = one;
        other.payload_version = "v2".to_owned();
        assert!(matches!(
            rejection(rig.engine.submit(other).await),
            Rejection::IdempotencyConflict { field: "idempotency_key", .. }
        ));
        rig.end().await;
    }

    async fn an_unknown_queue_is_not_found_and_nothing_is_kept(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut lost = submission();
        lost.queue_id = "nowhere".to_owned();
        assert_eq!(rejection(rig.engine.submit(lost).await), Rejection::QueueNotFound("nowhere".to_owned()));
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks").await, 0);
        rig.end().await;
    }

    async fn an_unstarted_attempt_is_reclaimed_and_its_budget_stays_spent(database: TestDatabase) {
        let options = orbit::engine::EngineOptions { start_window: Duration::from_millis(300), ..options() };
        let rig = Rig::new(database, options).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let first = worker.next().await.attempt;
        let second = worker.next().await.attempt;
        assert_eq!((first.epoch, second.epoch), (1, 2));
        let late = worker.start_as(first, message_id()).await;
        assert_eq!(late, Err(Rejection::LeaseLost(first.attempt_id)));
        worker.start(second).await;
        assert_eq!(worker.finish(second, succeeded()).await.task_state, StateName::Succeeded);
        assert_eq!(rig.task(id).await.task.attempt_count, 2);
        rig.end().await;
    }

    async fn a_started_attempt_whose_lease_ends_needs_review_unless_idempotent(database: TestDatabase) {
        let options = orbit::engine::EngineOptions { lease: Duration::from_secs(1), ..options() };
        let rig = Rig::new(database, options).await;
        let mut worker = rig.worker(2).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        eventually("the task needs review", Duration::from_secs(5), || async {
            (rig.task(id).await.task.state == State::NeedsReview).then_some(())
        })
        .await;
        let late = worker.finish(attempt, succeeded()).await;
        assert_eq!((late.disposition, late.effect_uncertain), (Disposition::Evidence, true));
        assert!(rig.task(id).await.task.doubt);

        let id = rig.submit(idempotent).await;
        let first = worker.next().await;
        worker.start(first.attempt).await;
        let second = worker.next().await;
        assert!(second.effect_uncertain && !first.effect_uncertain);
        worker.start(second.attempt).await;
        worker.finish(second.attempt, succeeded()).await;
        assert!(!rig.task(id).await.task.doubt);
        rig.end().await;
    }
}

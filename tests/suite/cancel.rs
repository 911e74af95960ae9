//! Cancelling (S24): every cell of the table, at every state.

use std::time::Duration;

use orbit::{
    domain::{
        decide::Decision,
        event::EventKind,
        ids::TaskId,
        receipt::Disposition,
        rejection::Rejection,
        report::Report,
        task::{State, StateName},
    },
    engine::SeatEvent,
};
use tokio::time::timeout;

use crate::support::{on_every_database, rig::*};

async fn cancel(rig: &Rig, id: TaskId) -> (bool, StateName) {
    let receipt = rig.engine.cancel_task(id, "not wanted".to_owned(), request()).await.expect("an answer");
    (receipt.changed, receipt.task_state)
}

/// A task that waits with a doubt: an attempt of unknown effect came before.
async fn doubted(rig: &Rig, worker: &mut TestWorker) -> TaskId {
    let id = rig
        .submit(|s| {
            idempotent(s);
            s.policy.initial_delay_ms = 60_000;
            s.policy.max_delay_ms = 60_000;
        })
        .await;
    let (_, receipt) = worker.run(unknown()).await;
    assert_eq!((receipt.task_state, receipt.effect_uncertain), (StateName::Waiting, true));
    id
}

async fn kinds(rig: &Rig, id: TaskId) -> Vec<EventKind> {
    let page = rig.engine.database().events(id, (0, 0), 100).await.expect("read").expect("a task");
    page.events.iter().map(|e| e.kind).collect()
}

on_every_database! {
    async fn a_waiting_task_is_canceled_at_once_and_never_claimed(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let id = rig.submit(|_| {}).await;
        assert_eq!(cancel(&rig, id).await, (true, StateName::Canceled));
        assert_eq!(cancel(&rig, id).await, (false, StateName::Canceled));
        let mut worker = rig.worker(1).await;
        worker.nothing_for(Duration::from_millis(600)).await;
        let record = rig.task(id).await;
        assert!(matches!(record.task.state, State::Canceled { .. }));
        assert_eq!(record.task.last_decision, Some(Decision::CancelRequested));
        assert_eq!(record.task.cancel.map(|c| c.reason.to_string()).as_deref(), Some("not wanted"));
        assert_eq!(kinds(&rig, id).await, [EventKind::Accepted, EventKind::Canceled]);
        rig.end().await;
    }

    async fn a_waiting_task_in_doubt_goes_to_review(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = doubted(&rig, &mut worker).await;
        assert_eq!(cancel(&rig, id).await, (true, StateName::NeedsReview));
        let task = rig.task(id).await.task;
        assert!(task.doubt && task.cancel.is_some());
        rig.end().await;
    }

    async fn a_leased_task_is_canceled_and_its_start_refused(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        assert_eq!(cancel(&rig, id).await, (true, StateName::Canceled));
        assert_eq!(worker.start_as(attempt, message_id()).await, Err(Rejection::CancelRequested(id)));
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
        assert_eq!(rig.database.number("SELECT state FROM attempts").await, 7);
        rig.end().await;
    }

    async fn a_running_worker_is_told_at_once_and_its_success_still_counts(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        assert_eq!(cancel(&rig, id).await, (true, StateName::Running));
        match timeout(Duration::from_secs(1), worker.events.recv()).await {
            Ok(Some(SeatEvent::Canceled { attempt_id, reason })) => {
                assert_eq!((attempt_id, &*reason), (attempt.attempt_id, "not wanted"));
            }
            other => panic!("not told: {other:?}"),
        }
        let lease = rig.engine.renew(&[attempt]).await.expect("renewed");
        assert!(lease.iter().all(|l| l.valid && l.cancel_requested));
        let receipt = worker.finish(attempt, succeeded()).await;
        assert_eq!((receipt.task_state, receipt.decision), (StateName::Succeeded, Some(Decision::Succeeded)));
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM cancels").await, 0);
        assert_eq!(
            kinds(&rig, id).await,
            [
                EventKind::Accepted,
                EventKind::Leased,
                EventKind::Started,
                EventKind::CancelRequested,
                EventKind::Succeeded
            ]
        );
        rig.end().await;
    }

    async fn a_running_task_ends_as_its_report_says(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let canceled = || Report::Canceled { error: None };
        let confirmed = Some(Decision::CancelConfirmed);
        let requested = Some(Decision::CancelRequested);
        for (report, state, decision) in [
            (failed(true), StateName::Canceled, requested),
            (failed(false), StateName::Canceled, requested),
            (canceled(), StateName::Canceled, confirmed),
            (unknown(), StateName::NeedsReview, requested),
        ] {
            for idempotence in [false, true] {
                let id = rig.submit(|s| if idempotence { idempotent(s) }).await;
                let attempt = worker.next().await.attempt;
                worker.start(attempt).await;
                cancel(&rig, id).await;
                assert!(matches!(worker.events.recv().await, Some(SeatEvent::Canceled { .. })));
                let receipt = worker.finish(attempt, report.clone()).await;
                assert_eq!((receipt.task_state, receipt.decision), (state, decision), "{report:?}");
                assert_eq!(receipt.effect_uncertain, state == StateName::NeedsReview);
            }
        }
        rig.end().await;
    }

    async fn canceled_without_a_cancel_is_refused(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        let refused = worker.finish_as(attempt, message_id(), Report::Canceled { error: None }).await;
        assert_eq!(refused, Err(Rejection::CancelNotRequested(id)));
        assert_eq!(worker.finish(attempt, succeeded()).await.disposition, Disposition::Applied);
        rig.end().await;
    }

    async fn a_task_in_review_stays_and_keeps_the_wish(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        worker.run(unknown()).await;
        assert_eq!(cancel(&rig, id).await, (true, StateName::NeedsReview));
        assert!(rig.task(id).await.task.cancel.is_some());
        rig.end().await;
    }

    async fn a_repeated_cancel_request_gets_its_stored_answer(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        let request = request();
        let first = rig.engine.cancel_task(id, "a".to_owned(), request.clone()).await.expect("an answer");
        worker.finish(attempt, succeeded()).await;
        let again = rig.engine.cancel_task(id, "a".to_owned(), request.clone()).await.expect("an answer");
        assert_eq!(first, again);
        assert_eq!(again.task_state, StateName::Running);
        let other = rig.engine.cancel_task(id, "b".to_owned(), request).await;
        assert!(matches!(rejection(other), Rejection::IdempotencyConflict { field: "request_id", .. }));
        rig.end().await;
    }
}

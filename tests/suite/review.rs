//! Leaving review (S25): every cell, by a person.

use std::time::Duration;

use orbit::domain::{
    decide::{Decision, Resolution, ResolvedTo},
    event::EventKind,
    ids::TaskId,
    json::JsonText,
    rejection::Rejection,
    task::{State, StateName},
};

use crate::support::{on_every_database, rig::*};

async fn in_review(rig: &Rig, worker: &mut TestWorker, idempotence: bool) -> TaskId {
    let id = rig
        .submit(|s| {
            if idempotence {
                idempotent(s);
            }
            s.policy.max_attempts = 1;
        })
        .await;
    let (_, receipt) = worker.run(unknown()).await;
    assert_eq!(receipt.task_state, StateName::NeedsReview);
    id
}

async fn resolution(rig: &Rig, id: TaskId, effect_verified: bool, outcome: ResolvedTo) -> Resolution {
    Resolution {
        expected_revision: rig.task(id).await.task.revision,
        effect_verified,
        reason: "looked at the ledger".to_owned(),
        evidence: vec!["https://ledger.example/1".to_owned()],
        outcome,
    }
}

fn retry() -> ResolvedTo {
    ResolvedTo::Retry { granted_attempts: 1, task_timeout_ms: 60_000, start_before: None }
}

fn to_success() -> ResolvedTo {
    ResolvedTo::Succeeded { result: JsonText::stored("{\"by\":\"hand\"}".to_owned()) }
}

fn bad_fields(rejection: Rejection) -> Vec<&'static str> {
    match rejection {
        Rejection::Invalid(problems) => problems.iter().map(|p| p.field).collect(),
        other => panic!("{other:?}"),
    }
}

on_every_database! {
    async fn ends_need_a_verified_effect(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let to_failure = || ResolvedTo::Failed { error: error("NOT_BOOKED") };
        for outcome in [to_success(), to_failure(), ResolvedTo::Canceled] {
            let id = in_review(&rig, &mut worker, false).await;
            let unverified = resolution(&rig, id, false, outcome.clone()).await;
            let refused = rejection(rig.engine.resolve_task(id, unverified, request()).await);
            assert_eq!(bad_fields(refused), ["effect_verified"]);
            assert_eq!(rig.task(id).await.task.state, State::NeedsReview);

            let verified = resolution(&rig, id, true, outcome.clone()).await;
            let receipt = rig.engine.resolve_task(id, verified, request()).await.expect("resolved");
            assert_eq!(receipt.decision, Some(Decision::ResolvedByOperator));
            let record = rig.task(id).await;
            assert!(!record.task.doubt);
            match outcome {
                ResolvedTo::Succeeded { .. } => {
                    assert_eq!(record.result.as_deref(), Some("{\"by\":\"hand\"}"));
                }
                ResolvedTo::Failed { .. } => {
                    assert_eq!(record.error.map(|e| e.code.to_string()).as_deref(), Some("NOT_BOOKED"));
                }
                _ => assert_eq!(receipt.task_state, StateName::Canceled),
            }
            let page = rig.engine.database().events(id, (0, 0), 50).await.expect("read").expect("a task");
            let last = page.events.last().expect("events");
            assert_eq!((last.kind, last.note.as_deref()), (EventKind::Resolved, Some("looked at the ledger")));
            assert_eq!((&*last.actor.principal, last.references.len()), ("local", 1));
        }
        rig.end().await;
    }

    async fn a_retry_needs_a_verified_effect_unless_idempotent(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = in_review(&rig, &mut worker, false).await;
        let unverified = resolution(&rig, id, false, retry()).await;
        let refused = rejection(rig.engine.resolve_task(id, unverified, request()).await);
        assert_eq!(bad_fields(refused), ["effect_verified"]);
        worker.nothing_for(Duration::from_millis(400)).await;
        let verified = resolution(&rig, id, true, retry()).await;
        rig.engine.resolve_task(id, verified, request()).await.expect("resolved");
        let dispatch = worker.next().await;
        assert_eq!((dispatch.attempt.epoch, dispatch.effect_uncertain, dispatch.max_attempts), (2, false, 2));
        worker.start(dispatch.attempt).await;
        worker.finish(dispatch.attempt, succeeded()).await;

        let id = in_review(&rig, &mut worker, true).await;
        let kept = resolution(&rig, id, false, retry()).await;
        let receipt = rig.engine.resolve_task(id, kept, request()).await.expect("resolved");
        assert!(receipt.effect_uncertain);
        let dispatch = worker.next().await;
        assert!(dispatch.effect_uncertain);
        worker.start(dispatch.attempt).await;
        let receipt = worker.finish(dispatch.attempt, failed(false)).await;
        assert_eq!((receipt.task_state, receipt.effect_uncertain), (StateName::NeedsReview, true));
        rig.end().await;
    }

    async fn a_retry_after_a_cancel_is_refused_and_an_end_is_not(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = in_review(&rig, &mut worker, true).await;
        rig.engine.cancel_task(id, String::new(), request()).await.expect("recorded");
        let retried = resolution(&rig, id, true, retry()).await;
        let refused = rejection(rig.engine.resolve_task(id, retried, request()).await);
        assert_eq!(refused, Rejection::CancelRequested(id));
        let ended = resolution(&rig, id, true, to_success()).await;
        rig.engine.resolve_task(id, ended, request()).await.expect("resolved");
        rig.end().await;
    }

    async fn another_revision_or_state_is_refused_and_nothing_changes(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = in_review(&rig, &mut worker, false).await;
        let mut stale = resolution(&rig, id, true, to_success()).await;
        stale.expected_revision -= 1;
        let actual = stale.expected_revision + 1;
        let refused = rejection(rig.engine.resolve_task(id, stale, request()).await);
        assert_eq!(refused, Rejection::RevisionMismatch { expected: actual - 1, actual });
        let waiting = rig.submit(|s| s.handler = "other".to_owned()).await;
        let early = resolution(&rig, waiting, true, to_success()).await;
        let refused = rejection(rig.engine.resolve_task(waiting, early, request()).await);
        assert_eq!(refused, Rejection::IllegalState { task_id: waiting, state: StateName::Waiting });
        rig.end().await;
    }

    async fn a_repeated_request_gets_its_stored_answer(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = in_review(&rig, &mut worker, false).await;
        let retried = resolution(&rig, id, true, retry()).await;
        let request = request();
        let first = rig.engine.resolve_task(id, retried.clone(), request.clone()).await.expect("resolved");
        worker.run(unknown()).await;
        let again = rig.engine.resolve_task(id, retried.clone(), request.clone()).await.expect("replayed");
        assert_eq!((first, again.task_state), (again, StateName::Waiting));
        let other = Resolution { reason: "another".to_owned(), ..retried };
        let refused = rejection(rig.engine.resolve_task(id, other, request).await);
        assert!(matches!(refused, Rejection::IdempotencyConflict { field: "request_id", .. }));
        rig.end().await;
    }
}

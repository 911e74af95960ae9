//! Renewal, and what handlers are told.

use std::time::Duration;

use tonic::Code;

use super::{
    super::{
        context::{CancelReason, Context},
        failure::{Ending, Failure},
    },
    LOST, VALID, Worker, held, reason,
};
use crate::proto::{CancelAttempt, LeaseStatus, Outcome, worker_response::Message as Answer};

async fn unconfirmed(context: &Context) -> bool {
    tokio::time::timeout(Duration::from_millis(1), context.lease_unconfirmed()).await.is_ok()
}

#[test]
fn a_cancel_reaches_the_handler_by_message_and_by_renewal() {
    let mut worker = Worker::connected();
    let by_message = worker.running("a").context.clone();
    let by_renewal = worker.running("b").context.clone();
    assert!(!by_message.is_cancelled() && by_message.cancel_reason().is_none());
    let cancel = CancelAttempt { attempt_id: "a".to_owned(), reason: String::new() };
    worker.protocol.on_frame(Answer::Cancel(cancel), worker.now);
    worker.lease("b", LeaseStatus { cancel_requested: true, ..VALID });
    for context in [by_message, by_renewal] {
        assert!(context.is_cancelled());
        assert_eq!(context.cancel_reason(), Some(CancelReason::Requested));
    }
    worker.protocol.on_ended("a", Ending::of_failure(Failure::canceled("STOPPED")), worker.now);
    assert_eq!(worker.finish().outcome(), Outcome::Canceled);
}

#[tokio::test]
async fn a_lost_lease_stops_the_handler_but_not_its_report() {
    let mut worker = Worker::connected();
    let context = worker.running("a").context.clone();
    worker.lease("a", LOST);
    context.lease_lost().await;
    context.lease_unconfirmed().await;
    assert_eq!(context.cancel_reason(), Some(CancelReason::LeaseLost));
    worker.pass(1_000);
    assert!(worker.renewed().is_empty());
    assert_eq!(worker.reconnect().held, []);
    worker.end("a");
    assert_eq!(worker.finish().outcome(), Outcome::Succeeded);
}

#[tokio::test]
async fn a_term_that_passed_only_makes_the_lease_unconfirmed() {
    let mut worker = Worker::connected();
    let context = worker.running("a").context.clone();
    worker.protocol.on_disconnect(worker.now);
    worker.pass(2_600);
    assert!(!unconfirmed(&context).await);
    worker.pass(200);
    assert!(unconfirmed(&context).await);
    assert!(!context.is_cancelled());

    worker.connect(vec![held("a", VALID)]);
    assert!(!unconfirmed(&context).await);
}

#[test]
fn the_attempts_time_ends_by_the_workers_clock() {
    let mut worker = Worker::connected();
    let context = worker.running("a").context.clone();
    assert_eq!(context.deadline(), worker.now + Duration::from_mins(1));
    worker.pass(59_999);
    assert!(!context.is_cancelled());
    worker.pass(1);
    assert_eq!(context.cancel_reason(), Some(CancelReason::TimedOut));
}

#[test]
fn leases_are_renewed_until_the_receipt_and_at_once_after_a_reconnect() {
    let mut worker = Worker::connected();
    worker.running("a");
    worker.reporting("b");
    worker.pass(999);
    assert!(worker.renewed().is_empty());
    worker.pass(1);
    assert_eq!(worker.renewed(), [2]);
    worker.reconnect();
    worker.pass(0);
    assert_eq!(worker.renewed(), [2]);
}

#[tokio::test]
async fn a_question_of_the_stream_before_does_not_shorten_the_term() {
    let mut worker = Worker::connected();
    let context = worker.running("a").context.clone();
    worker.pass(1_000);
    assert_eq!(worker.renewed(), [1]);
    worker.protocol.on_disconnect(worker.now);
    worker.pass(10_000);
    worker.connect(vec![held("a", VALID)]);
    worker.pass(0);
    assert!(!unconfirmed(&context).await);
}

#[test]
fn a_renewal_that_was_not_decided_is_sent_again_soon() {
    let mut worker = Worker::connected();
    worker.renew_every_ms = 20_000;
    worker.running("a");
    worker.reconnect();
    worker.pass(0);
    assert_eq!(worker.renewed(), [1]);
    worker.refuse("", Code::Unavailable, reason("DATABASE_UNAVAILABLE"));
    worker.pass(1_000);
    assert_eq!(worker.renewed(), [1]);
    worker.pass(19_999);
    assert!(worker.renewed().is_empty());
    worker.pass(1);
    assert_eq!(worker.renewed(), [1]);
}

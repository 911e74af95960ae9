//! From dispatch to the handler's call.

use std::time::Duration;

use tonic::Code;

use super::{LOST, VALID, Worker, held, reason};
use crate::proto::{
    CommandResult, Dispatch, Disposition, LeaseStatus, Outcome, Receipt, worker_response::Message as Answer,
};

#[test]
fn the_handler_runs_only_after_its_start_was_accepted() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    let start = worker.start();
    assert_eq!((start.task_id.as_str(), start.attempt_id.as_str(), start.epoch), ("task-a", "a", 1));
    assert!(worker.ran.is_empty());
    worker.answer(&start.message_id, Disposition::Applied, VALID);
    assert_eq!(worker.sent(), []);
    assert_eq!((worker.ran["a"], worker.runs["a"].payload.as_str()), (1, "1"));
}

#[test]
fn a_refused_start_runs_nothing_and_reports_nothing() {
    let mut worker = Worker::connected();
    for (id, why) in [("a", "LEASE_LOST"), ("b", "ALREADY_STARTED"), ("c", "CANCEL_REQUESTED")] {
        worker.dispatch(id);
        let start = worker.start();
        worker.refuse(&start.message_id, Code::FailedPrecondition, reason(why));
        assert_eq!(worker.sent(), []);
    }
    assert!(worker.ran.is_empty());
    worker.protocol.drain();
    assert!(worker.protocol.is_drained());
    assert_eq!(worker.counts(), (0, 0, 0, 0));
}

#[test]
fn a_start_whose_answer_was_lost_is_sent_again_with_its_id_and_runs_once() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    let start = worker.start();
    let hello = worker.reconnect();
    assert_eq!(hello.held[0].attempt_id, "a");
    assert_eq!(worker.start(), start);
    worker.answer(&start.message_id, Disposition::Applied, VALID);
    worker.answer(&start.message_id, Disposition::Applied, VALID);
    assert_eq!(worker.sent(), []);
    assert_eq!(worker.ran["a"], 1);
}

#[test]
fn an_attempt_dispatched_again_is_not_run_again() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    worker.dispatch("a");
    let start = worker.start();
    worker.answer(&start.message_id, Disposition::Applied, VALID);
    worker.dispatch("a");
    assert_eq!(worker.sent(), []);
    worker.end("a");
    let finish = worker.finish();
    worker.dispatch("a");
    worker.answer(&finish.message_id, Disposition::Applied, LOST);
    worker.dispatch("a");
    assert_eq!(worker.sent(), []);
    assert_eq!((worker.ran["a"], worker.counts()), (1, (1, 1, 0, 0)));
}

#[test]
fn a_start_granted_under_a_lease_that_has_ended_runs_nothing_and_says_so() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    let start = worker.start();
    worker.answer(&start.message_id, Disposition::Applied, LOST);
    let finish = worker.finish();
    assert_eq!((finish.outcome(), finish.retryable), (Outcome::Failed, true));
    assert_eq!(finish.error.map(|error| error.code).as_deref(), Some("NEVER_RAN"));
    assert!(worker.ran.is_empty());
}

#[test]
fn a_cancel_recorded_before_the_handler_was_called_is_confirmed_without_calling_it() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    let start = worker.start();
    worker.answer(&start.message_id, Disposition::Applied, LeaseStatus { cancel_requested: true, ..VALID });
    assert_eq!(worker.finish().outcome(), Outcome::Canceled);
    assert!(worker.ran.is_empty());
}

#[test]
fn attempts_beyond_twice_the_slots_or_of_other_handlers_are_left() {
    let mut worker = Worker::connected();
    for id in ["a", "b", "c", "d", "e"] {
        worker.dispatch(id);
    }
    assert_eq!(worker.sent().len(), 4);
    let other = Dispatch { attempt_id: "x".to_owned(), handler: "other".to_owned(), ..Dispatch::default() };
    worker.protocol.on_frame(Answer::Dispatch(other), worker.now);
    assert_eq!(worker.sent(), []);
}

#[test]
fn the_attempts_time_counts_from_the_message_that_was_granted() {
    for (replayed, seconds) in [(true, 60), (false, 70)] {
        let mut worker = Worker::connected();
        let dispatched_at = worker.now;
        worker.dispatch("a");
        let start = worker.start();
        worker.pass(10_000);
        worker.reconnect();
        assert_eq!(worker.start(), start);
        worker.result(CommandResult {
            message_id: start.message_id,
            receipt: Some(Receipt::default()),
            replayed,
            lease: Some(VALID),
            ..CommandResult::default()
        });
        worker.sent();
        assert_eq!(worker.runs["a"].context.deadline(), dispatched_at + Duration::from_secs(seconds));
    }
}

#[test]
fn a_start_is_decided_by_its_own_answer_not_by_the_welcome() {
    let mut worker = Worker::connected();
    worker.dispatch("a");
    let start = worker.start();
    worker.protocol.on_disconnect(worker.now);
    worker.connect(vec![held("a", LOST)]);
    assert_eq!(worker.start(), start);
    worker.answer(&start.message_id, Disposition::Applied, VALID);
    worker.sent();
    assert!(!worker.runs["a"].context.is_cancelled());
}

#[test]
fn a_handler_that_has_ended_makes_room() {
    let mut worker = Worker::connected();
    for id in ["a", "b", "c", "d"] {
        worker.running(id);
    }
    worker.end("a");
    worker.finish();
    worker.running("e");
}

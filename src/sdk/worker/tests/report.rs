//! From the handler's end to the receipt.

use std::time::Duration;

use tonic::Code;
use tonic_types::ErrorDetails;

use super::{super::protocol::Unfinished, LOST, VALID, Worker, reason};
use crate::proto::{Disposition, Finish, Outcome, worker_request::Message};

#[test]
fn a_report_is_sent_again_with_its_id_until_a_receipt_arrives() {
    let mut worker = Worker::connected();
    let finish = worker.reporting("a");
    // On the same stream, when no answer comes; and on the next.
    worker.pass(5_000);
    assert_eq!(worker.finish(), finish);
    worker.reconnect();
    assert_eq!(worker.finish(), finish);
    // The server asks for it, at once or later.
    worker.refuse(&finish.message_id, Code::Unavailable, reason("DATABASE_UNAVAILABLE"));
    assert_eq!(worker.sent(), []);
    worker.pass(400);
    assert_eq!(worker.finish(), finish);
    let mut details = reason("OUTCOME_UNKNOWN");
    details.set_retry_info(Some(Duration::from_secs(2)));
    worker.refuse(&finish.message_id, Code::Aborted, details);
    worker.pass(1_900);
    assert_eq!(worker.sent(), []);
    worker.pass(200);
    assert_eq!(worker.finish(), finish);
    worker.answer(&finish.message_id, Disposition::Applied, LOST);
    worker.reconnect();
    assert_eq!(worker.sent(), []);
    assert_eq!(worker.counts(), (1, 1, 0, 0));
}

#[test]
fn a_handler_that_ends_while_there_is_no_stream_is_reported_on_the_next() {
    let mut worker = Worker::connected();
    worker.running("a");
    worker.protocol.on_disconnect(worker.now);
    worker.end("a");
    assert_eq!(worker.sent(), []);
    worker.pass(60_000);
    assert_eq!(worker.sent(), []);
    worker.connect(Vec::new());
    assert_eq!(worker.finish().outcome(), Outcome::Succeeded);
}

#[test]
fn evidence_under_a_valid_lease_is_sent_again_once_under_a_new_id() {
    let mut worker = Worker::connected();
    let first = worker.reporting("a");
    worker.answer(&first.message_id, Disposition::Evidence, VALID);
    let second = worker.finish();
    assert_ne!(first.message_id, second.message_id);
    assert_eq!(first, Finish { message_id: first.message_id.clone(), ..second.clone() });
    worker.answer(&second.message_id, Disposition::Evidence, VALID);
    assert_eq!(worker.sent(), []);
    assert_eq!(worker.counts(), (1, 1, 1, 0));

    let late = worker.reporting("b");
    worker.answer(&late.message_id, Disposition::Evidence, LOST);
    assert_eq!(worker.sent(), []);
    assert_eq!(worker.counts(), (2, 2, 2, 0));
}

#[test]
fn a_refused_report_is_replaced_by_unknown_once() {
    let mut worker = Worker::connected();
    let finish = worker.reporting("a");
    worker.refuse(&finish.message_id, Code::InvalidArgument, reason("PAYLOAD_TOO_LARGE"));
    let unknown = worker.finish();
    assert_ne!(unknown.message_id, finish.message_id);
    assert_eq!(
        (unknown.outcome(), unknown.retryable, unknown.result.as_str()),
        (Outcome::Unknown, false, "")
    );
    assert_eq!(unknown.error.map(|error| error.code).as_deref(), Some("PAYLOAD_TOO_LARGE"));
    worker.refuse(&unknown.message_id, Code::InvalidArgument, reason("PAYLOAD_TOO_LARGE"));
    assert_eq!(worker.sent(), []);
    assert_eq!(worker.counts(), (1, 0, 0, 1));
}

#[test]
fn a_report_about_a_task_that_is_gone_is_final() {
    let mut worker = Worker::connected();
    let finish = worker.reporting("a");
    worker.refuse(&finish.message_id, Code::NotFound, reason("TASK_NOT_FOUND"));
    assert_eq!(worker.sent(), []);
    worker.protocol.drain();
    assert!(worker.protocol.is_drained());
    assert_eq!(worker.counts(), (1, 0, 0, 1));
}

#[test]
fn a_fault_of_the_server_is_not_waited_out_for_ever() {
    let mut worker = Worker::connected();
    let finish = worker.reporting("a");
    for _ in 0..12 {
        worker.refuse(&finish.message_id, Code::Internal, ErrorDetails::new());
        worker.pass(10_000);
        assert_eq!(worker.finish(), finish);
    }
    worker.refuse(&finish.message_id, Code::Internal, ErrorDetails::new());
    assert_eq!(worker.counts(), (1, 0, 0, 1));
}

#[test]
fn a_drain_waits_for_the_last_receipt() {
    let mut worker = Worker::connected();
    worker.running("a");
    worker.protocol.drain();
    worker.protocol.drain();
    assert!(matches!(worker.sent()[..], [Message::Drain(_)]));
    assert_eq!(worker.protocol.unfinished(), Unfinished { running: 1, ..Unfinished::default() });
    worker.end("a");
    assert_eq!(worker.protocol.unfinished(), Unfinished { reporting: 1, ..Unfinished::default() });
    let hello = worker.reconnect();
    assert_eq!((hello.max_in_flight, hello.held.len()), (1, 1));
    let sent = worker.sent();
    let [Message::Finish(finish), Message::Drain(_)] = &sent[..] else { panic!("{sent:?}") };
    assert!(!worker.protocol.is_drained());
    worker.answer(&finish.message_id, Disposition::Applied, LOST);
    assert!(worker.protocol.is_drained());
}

#[test]
fn a_commit_that_cannot_be_settled_is_asked_about_for_ever() {
    let mut worker = Worker::connected();
    let finish = worker.reporting("a");
    for _ in 0..50 {
        worker.refuse(&finish.message_id, Code::Aborted, reason("OUTCOME_UNKNOWN"));
        worker.pass(10_000);
        assert_eq!(worker.finish(), finish);
    }
}

#[test]
fn what_has_not_been_written_yet_is_not_sent_again() {
    let mut worker = Worker::connected();
    worker.running("a");
    worker.end("a");
    worker.pass(60_000);
    worker.finish();
}

#[test]
fn a_draining_worker_needs_a_stream_for_living_leases_and_messages_only() {
    let mut worker = Worker::connected();
    worker.running("a");
    assert_eq!(worker.protocol.patience(), Duration::from_secs(1));
    worker.protocol.drain();
    assert!(worker.protocol.wants_stream());
    worker.lease("a", LOST);
    assert!(!worker.protocol.wants_stream());
    assert_eq!(worker.protocol.patience(), Duration::MAX);
    worker.end("a");
    assert!(worker.protocol.wants_stream());
}

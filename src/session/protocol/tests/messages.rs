//! What is said while a worker works.

use super::*;

#[test]
fn an_attempt_is_handed_over_as_it_was_submitted() {
    let frame = one(serving().step(dispatch()));
    assert_eq!(
        sent(&frame),
        &worker_response::Message::Dispatch(proto::Dispatch {
            attempt_id: attempt_id(3).to_string(),
            epoch: 3,
            attempt_number: 3,
            max_attempts: 5,
            lease_ms: 14_999,
            task_id: attempt_ref(3).task_id.to_string(),
            queue_id: "a".into(),
            handler: "h".into(),
            handler_version: "1".into(),
            payload_version: "2".into(),
            payload: "[ 1 ]".into(),
            recovery_safety: proto::RecoverySafety::Idempotent.into(),
            effect_uncertain: true,
            deadline_ms: u32::MAX,
            attempt_timeout_ms: 9,
        })
    );
}

#[test]
fn a_granted_start_is_noted_before_it_is_told() {
    let outputs = started(&mut serving(), Ok(reply(Ok(true), Some(VALID))));
    let [Output::Note(note), answer] = &outputs[..] else {
        panic!("two outputs");
    };
    assert_eq!(*note, SeatNote::Started(attempt_id(1), VALID));
    let answer = result(answer);
    assert_eq!(answer.message_id, message_id(5).to_string());
    assert_eq!(answer.status, Some(tonic_types::Status::default()));
    assert_eq!(answer.receipt.as_ref().map(proto::Receipt::task_state), Some(proto::TaskState::Running));
    assert!(answer.replayed);
    assert_eq!(answer.lease, Some(convert::lease_status(VALID)));
}

#[test]
fn a_refused_start_frees_the_slot_only_if_the_lease_is_lost() {
    let lost = started(&mut serving(), Ok(reply(Err(Rejection::LeaseLost(attempt_id(1))), Some(LOST))));
    let [Output::Note(note), answer] = &lost[..] else {
        panic!("two outputs");
    };
    assert_eq!(*note, SeatNote::Released(attempt_id(1)));
    let answer = result(answer);
    assert_eq!(answer.status.as_ref().map(|s| s.code), Some(9));
    assert_eq!((answer.receipt, answer.lease), (None, Some(convert::lease_status(LOST))));
    for (rejection, lease) in [
        (Rejection::AlreadyStarted(attempt_id(1)), Some(VALID)),
        (Rejection::TaskNotFound(attempt_ref(1).task_id), None),
    ] {
        let answer = one(started(&mut serving(), Ok(reply(Err(rejection), lease))));
        assert_eq!(result(&answer).lease, lease.map(convert::lease_status));
    }
}

#[test]
fn a_finish_frees_the_slot_when_it_is_committed() {
    let outputs = finished(&mut serving(), Ok(reply(Ok(false), Some(LOST))));
    let [Output::Note(note), answer] = &outputs[..] else {
        panic!("two outputs");
    };
    assert_eq!(*note, SeatNote::Released(attempt_id(1)));
    assert_eq!(result(answer).message_id, message_id(6).to_string());
    let evidence = finished(&mut serving(), Ok(reply(Ok(false), Some(VALID))));
    let [Output::Note(note), _] = &evidence[..] else {
        panic!("two outputs");
    };
    assert_eq!(*note, SeatNote::Renewed(attempt_id(1), VALID));
}

#[test]
fn a_failure_changes_nothing_and_asks_for_the_same_again() {
    let retry_after = Duration::from_secs(1);
    let failure = || Err(Failure::DatabaseUnavailable { retry_after });
    for outputs in [started(&mut serving(), failure()), finished(&mut serving(), failure())] {
        let answer = one(outputs);
        let answer = result(&answer);
        assert_eq!(answer.status.as_ref().map(|s| s.code), Some(14));
        assert_eq!((&answer.receipt, &answer.lease), (&None, &None));
    }
}

#[test]
fn bad_messages_are_answered_and_the_stream_goes_on() {
    let mut protocol = serving();
    let retryable = proto::Finish { retryable: true, ..finish_message(1, 7, String::new()) };
    let answer = one(protocol.step(frame(Message::Finish(retryable))));
    assert_eq!(result(&answer).message_id, message_id(7).to_string());
    assert_eq!(result(&answer).status.as_ref().map(|s| s.code), Some(3));
    let too_large = finish_message(1, 8, "1".repeat(40 * 1024 + 1));
    let answer = one(protocol.step(frame(Message::Finish(too_large))));
    assert_eq!(result(&answer).message_id, message_id(8).to_string());
    let nameless = proto::Start { message_id: "é".repeat(100_000), ..Default::default() };
    let answer = one(protocol.step(frame(Message::Start(nameless))));
    assert_eq!(result(&answer).message_id, "é".repeat(128));
    for unnamed in [
        Input::Frame(WorkerRequest::default()),
        renew_frame(vec![named(1); 1_001]),
        renew_frame(vec![named(0)]),
    ] {
        let answer = one(protocol.step(unnamed));
        assert_eq!(result(&answer).message_id, "");
        assert_eq!(result(&answer).status.as_ref().map(|s| s.code), Some(3));
    }
    assert!(protocol.wants_frames());
}

#[test]
fn a_renewal_is_told_and_noted_lease_by_lease() {
    let mut protocol = serving();
    let Command::Renew(ticket, attempts) = run(protocol.step(renew_frame(vec![named(1), named(2)]))) else {
        panic!("a renewal");
    };
    assert_eq!(attempts, [attempt_ref(1), attempt_ref(2)]);
    let outputs = protocol.step(Input::Answered(Answer::Renew(ticket, Ok(vec![VALID, LOST]))));
    let [Output::Note(first), Output::Note(second), answer] = &outputs[..] else {
        panic!("three outputs");
    };
    assert_eq!(*first, SeatNote::Renewed(attempt_id(1), VALID));
    assert_eq!(*second, SeatNote::Released(attempt_id(2)));
    let worker_response::Message::Renewed(renewed) = sent(answer) else {
        panic!("renewed");
    };
    let attempts: Vec<_> = renewed.leases.iter().map(|l| l.attempt.clone()).collect();
    assert_eq!(attempts, [Some(named(1)), Some(named(2))]);
}

#[test]
fn a_renewal_without_an_answer_asks_for_the_same_again() {
    let mut protocol = serving();
    let Command::Renew(ticket, _) = run(protocol.step(renew_frame(vec![named(1)]))) else {
        panic!("a renewal");
    };
    let answer = one(protocol.step(Input::Answered(Answer::Renew(ticket, Err(Failure::OutcomeUnknown)))));
    assert_eq!(result(&answer).message_id, "");
    assert_eq!(result(&answer).status.as_ref().map(|s| s.code), Some(14));
}

#[test]
fn pings_are_answered_at_once() {
    let answer = one(serving().step(ping(u64::MAX)));
    let pong = proto::Pong { sequence: u64::MAX };
    assert_eq!(sent(&answer), &worker_response::Message::Pong(pong));
}

#[test]
fn reading_stops_while_much_is_with_the_engine() {
    let mut protocol = serving();
    let mut tickets = Vec::new();
    for n in 0..256 {
        assert!(protocol.wants_frames(), "{n}");
        tickets.push(run(protocol.step(start_frame(1, n))));
    }
    assert!(!protocol.wants_frames());
    assert!(protocol.wants_work());
    let Some(Command::Start(ticket, _)) = tickets.pop() else {
        panic!("a start");
    };
    protocol.step(Input::Answered(Answer::Start(ticket, Ok(reply(Ok(false), Some(VALID))))));
    assert!(protocol.wants_frames());
}

#[test]
fn large_messages_weigh_more() {
    let mut protocol = serving();
    let mut count = 0;
    while protocol.wants_frames() {
        let large = finish_message(1, count, "1".repeat(40 * 1024));
        run(protocol.step(frame(Message::Finish(large))));
        count += 1;
    }
    assert_eq!(count, 86);
}

#[test]
fn renewals_of_many_leases_weigh_more_than_one() {
    let mut protocol = serving();
    let attempts: Vec<AttemptRef> = match run(protocol.step(renew_frame(vec![named(1); 1_000]))) {
        Command::Renew(_, attempts) => attempts,
        _ => panic!("a renewal"),
    };
    assert_eq!(attempts.len(), 1_000);
    let mut count = 1;
    while protocol.wants_frames() {
        run(protocol.step(renew_frame(vec![named(1); 1_000])));
        count += 1;
    }
    assert!(count < 64, "{count}");
}

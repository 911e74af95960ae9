//! Hello and welcome.

use super::*;

#[test]
fn a_hello_is_welcomed_once_the_engine_took_the_worker_in() {
    let mut protocol = protocol();
    assert!(protocol.awaits_hello() && protocol.wants_frames() && !protocol.wants_work());
    let Output::Join(hello) = one(protocol.step(hello())) else {
        panic!("a join");
    };
    assert_eq!(hello.held, [attempt_ref(1), attempt_ref(2)]);
    assert!(!protocol.awaits_hello() && !protocol.wants_frames() && !protocol.wants_work());
    let welcome = one(protocol.step(joined()));
    let lease = |attempt, status: LeaseStatus| proto::RenewedLease {
        attempt: Some(attempt),
        lease: Some(convert::lease_status(status)),
    };
    assert_eq!(
        sent(&welcome),
        &worker_response::Message::Welcome(proto::Welcome {
            session_id: uuid::Uuid::from_u128(9).to_string(),
            node_id: "node-1".into(),
            lease_ms: 60_000,
            renew_every_ms: 20_000,
            features: vec!["safe-retry/1".into()],
            held: vec![lease(named(1), VALID), lease(named(2), LOST)],
            unknown_queue_ids: vec!["b".into()],
        })
    );
    assert!(protocol.wants_frames() && protocol.wants_work() && !protocol.awaits_idle());
}

#[test]
fn whatever_comes_before_a_hello_ends_the_stream() {
    for first in [
        ping(1),
        start_frame(1, 1),
        drain(),
        Input::Frame(WorkerRequest::default()),
        Input::HelloOverdue,
        Input::FramesEnded,
    ] {
        let mut protocol = protocol();
        assert!(matches!(ended(protocol.step(first)), End::HelloRequired));
        assert!(protocol.step(hello()).is_empty());
        assert!(!protocol.wants_frames());
    }
}

#[test]
fn a_bad_hello_ends_the_stream_and_says_why() {
    let with = |change: fn(&mut proto::Hello)| {
        let mut message = hello_message();
        change(&mut message);
        ended(protocol().step(frame(Message::Hello(message))))
    };
    assert!(matches!(with(|m| m.max_in_flight = 0), End::BadHello(_)));
    assert!(matches!(with(|m| m.features.clear()), End::FeatureRequired("safe-retry/1")));
    let again = ended(serving().step(hello()));
    assert!(matches!(again, End::BadHello(Rejection::Invalid(p)) if p[0].field == "hello"));
}

#[test]
fn a_worker_that_is_not_taken_in_learns_why() {
    let mut protocol = protocol();
    protocol.step(hello());
    let end = ended(protocol.step(Input::Joined(Err(Failure::OutcomeUnknown))));
    assert!(matches!(end, End::NotTakenIn(Failure::OutcomeUnknown)));
}

#[test]
fn an_overdue_hello_is_forgotten_once_it_came() {
    let mut protocol = protocol();
    protocol.step(hello());
    assert!(protocol.step(Input::HelloOverdue).is_empty());
    assert!(serving().step(Input::HelloOverdue).is_empty());
}

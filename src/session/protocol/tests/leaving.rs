//! How streams end.

use super::*;

#[test]
fn a_drain_ends_the_stream_when_nothing_is_in_flight_and_all_is_answered() {
    let mut protocol = serving();
    let Command::Start(ticket, _) = run(protocol.step(start_frame(1, 1))) else {
        panic!("a start");
    };
    assert!(matches!(one(protocol.step(drain())), Output::Note(SeatNote::Drain)));
    assert!(protocol.step(drain()).is_empty());
    assert!(!protocol.awaits_idle());
    assert!(protocol.step(Input::Idle).is_empty());
    assert!(protocol.wants_frames() && protocol.wants_work());
    assert!(matches!(one(protocol.step(dispatch())), Output::Send(_)));
    let answered = Answer::Start(ticket, Ok(reply(Ok(false), Some(VALID))));
    assert_eq!(protocol.step(Input::Answered(answered)).len(), 2);
    assert!(protocol.awaits_idle());
    assert!(matches!(ended(protocol.step(Input::Idle)), End::Done));
    assert!(protocol.step(ping(1)).is_empty());
    assert!(!protocol.awaits_idle() && !protocol.wants_frames() && !protocol.wants_work());
}

#[test]
fn idleness_means_nothing_to_a_worker_that_stays() {
    let mut protocol = serving();
    assert!(protocol.step(Input::Idle).is_empty());
    assert!(protocol.wants_work());
}

#[test]
fn a_worker_that_says_no_more_still_gets_its_answers() {
    let mut protocol = serving();
    let Command::Finish(ticket, _) = run(protocol.step(finish_frame(1, 1))) else {
        panic!("a finish");
    };
    assert!(matches!(one(protocol.step(Input::FramesEnded)), Output::Note(SeatNote::Drain)));
    assert!(!protocol.wants_frames() && !protocol.wants_work() && !protocol.awaits_idle());
    let answered = Answer::Finish(ticket, Ok(reply(Ok(false), Some(LOST))));
    let outputs = protocol.step(Input::Answered(answered));
    assert!(matches!(outputs[..], [Output::Note(_), Output::Send(_), Output::End(End::Done)]));
    assert!(matches!(ended(serving().step(Input::FramesEnded)), End::Done));
}

#[test]
fn a_shutdown_sends_workers_away_and_lets_them_finish() {
    let mut protocol = serving();
    let outputs = protocol.step(Input::Stopping);
    let [go_away, Output::Note(SeatNote::Drain)] = &outputs[..] else {
        panic!("two outputs");
    };
    let worker_response::Message::GoAway(go_away) = sent(go_away) else {
        panic!("go away");
    };
    assert_eq!(go_away.reconnect_after_ms, 1_000);
    assert_eq!(finished(&mut protocol, Ok(reply(Ok(false), Some(LOST)))).len(), 2);
    assert!(protocol.awaits_idle());
    assert!(matches!(ended(protocol.step(Input::Idle)), End::Done));
}

#[test]
fn a_shutdown_finds_every_session_whatever_it_waits_for() {
    assert!(matches!(ended(protocol().step(Input::Stopping)), End::Draining));
    let mut joining = protocol();
    joining.step(hello());
    assert!(joining.step(Input::Stopping).is_empty());
    let outputs = joining.step(joined());
    assert!(matches!(outputs[..], [Output::Send(_), Output::Send(_), Output::Note(SeatNote::Drain)]));
    let mut draining = serving();
    draining.step(drain());
    assert!(matches!(sent(&one(draining.step(Input::Stopping))), worker_response::Message::GoAway(_)));
    for mut any in [protocol(), joining, draining, serving()] {
        assert!(matches!(ended(any.step(Input::Ending)), End::Draining));
        assert!(any.step(Input::Ending).is_empty());
    }
}

#[test]
fn a_reader_that_stalls_ends_its_stream() {
    assert!(matches!(ended(serving().step(Input::ReaderStalled)), End::ReaderStalled));
}

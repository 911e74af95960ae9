//! Streams that break, and what goes on over them.

use std::time::Duration;

use orbit::{
    proto::{Disposition, GoAway, worker_request::Message, worker_response::Message as Answer},
    sdk::{Client, ErrorKind, Worker},
};
use tokio::time::{Instant, timeout};

use super::{
    fake_worker::{FakeServer, Gate, LOST, VALID, dispatch, double, drained},
    proxy::{Direction, Proxy},
};

#[tokio::test]
async fn a_lost_acknowledgement_is_asked_for_again_with_the_same_id_and_runs_nothing_again() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "gate", "null").await;
    gate.open.notify_one();
    let finish = session.finish().await;
    drop(session);

    let mut session = server.session().await;
    assert_eq!(session.hello.held.iter().map(|held| held.attempt_id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(session.finish().await, finish);
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    let report = drained(worker, session).await;
    assert_eq!((report.drained, report.started, report.confirmed, gate.calls()), (true, 1, 1, 1));
}

#[tokio::test]
async fn a_start_whose_answer_was_lost_is_asked_again_with_the_same_id() {
    let mut server = FakeServer::start();
    let _worker = server.worker().handler("double", "v1", double).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.dispatch("a", "double", "2").await;
    let start = session.start().await;
    session.fail(tonic::Status::unknown("h2 protocol error")).await;

    let mut session = server.session().await;
    assert_eq!(session.start().await, start);
    session.accept(&start.message_id, Disposition::Applied, VALID).await;
    assert_eq!(session.finish().await.result, "4");
}

#[tokio::test]
async fn an_attempt_that_is_delivered_twice_runs_once() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.dispatch("a", "gate", "null").await;
    session.run("a", "gate", "null").await;
    session.dispatch("a", "gate", "null").await;
    gate.open.notify_one();
    let finish = session.finish().await;
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    session.dispatch("a", "gate", "null").await;
    // Another one is, so the duplicates were seen.
    session.run("b", "gate", "null").await;
    gate.open.notify_one();
    let finish = session.finish().await;
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    let report = drained(worker, session).await;
    assert_eq!((report.started, report.confirmed, gate.calls()), (2, 2, 2));
}

#[tokio::test]
async fn evidence_under_a_valid_lease_is_sent_again_under_a_new_id_once() {
    let mut server = FakeServer::start();
    let worker = server.worker().handler("double", "v1", double).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "double", "1").await;
    let first = session.finish().await;
    session.accept(&first.message_id, Disposition::Evidence, VALID).await;
    let second = session.finish().await;
    assert_ne!(first.message_id, second.message_id);
    assert_eq!((&first.result, first.outcome), (&second.result, second.outcome));
    session.accept(&second.message_id, Disposition::Evidence, VALID).await;
    let report = drained(worker, session).await;
    assert_eq!((report.confirmed, report.evidence), (1, 1));
}

#[tokio::test]
async fn a_deaf_stream_is_replaced_within_seconds() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let _worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut deaf = server.session().await;
    deaf.run("a", "gate", "null").await;
    deaf.attentive = false;
    let began = Instant::now();
    let session = server.session().await;
    assert_eq!(session.hello.held.len(), 1);
    let took = began.elapsed();
    // The fake server's leases last 3 s: it is asked every second.
    assert!((Duration::from_secs(1)..Duration::from_secs(6)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_connection_that_swallows_what_the_worker_says_is_replaced() {
    swallowed(Direction::ToServer).await;
}

#[tokio::test]
async fn a_connection_that_swallows_what_the_server_says_is_replaced() {
    swallowed(Direction::ToWorker).await;
}

async fn swallowed(direction: Direction) {
    let mut server = FakeServer::start();
    let proxy = Proxy::start(&server.url);
    let gate = Gate::default();
    let client = Client::connect(&proxy.url).unwrap();
    let worker = Worker::builder(&client).queue("q").handler("gate", "v1", gate.handler()).build().unwrap();
    let worker = worker.start().unwrap();
    let mut first = server.session().await;
    first.run("a", "gate", "null").await;
    gate.called().await;
    proxy.swallow(direction);
    gate.open.notify_one();
    let mut second = server.session().await;
    let finish = second.finish().await;
    second.accept(&finish.message_id, Disposition::Applied, LOST).await;
    let report = drained(worker, second).await;
    assert_eq!((report.drained, report.started, report.confirmed, gate.calls()), (true, 1, 1, 1));
}

#[tokio::test]
async fn a_worker_that_is_sent_away_goes_on_elsewhere_with_what_it_holds() {
    let (mut first, mut second) = (FakeServer::start(), FakeServer::start());
    let gate = Gate::default();
    let client = Client::connect(format!("{},{}", first.url, second.url)).unwrap();
    let worker = Worker::builder(&client).queue("q").handler("gate", "v1", gate.handler()).build().unwrap();
    let worker = worker.start().unwrap();
    let mut session = first.session().await;
    session.run("a", "gate", "null").await;
    session.send(Answer::GoAway(GoAway { reason: "drain".to_owned(), reconnect_after_ms: 60_000 })).await;

    let mut session = second.session().await;
    assert_eq!(session.hello.held.len(), 1);
    gate.open.notify_one();
    let finish = session.finish().await;
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    assert!(drained(worker, session).await.drained);
    assert_eq!(gate.calls(), 1);
}

#[tokio::test]
async fn a_worker_that_is_sent_away_from_the_only_address_finishes_there() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "gate", "null").await;
    session.send(Answer::GoAway(GoAway { reason: "drain".to_owned(), reconnect_after_ms: 60_000 })).await;
    gate.open.notify_one();
    let finish = session.finish().await;
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    assert!(drained(worker, session).await.drained);
}

#[tokio::test]
async fn a_server_without_the_needed_feature_is_not_worked_for() {
    let mut server = FakeServer::start();
    let mut worker = server.worker().handler("double", "v1", double).build().unwrap().start().unwrap();
    let session = server.hello().await;
    session.send(Answer::Welcome(orbit::proto::Welcome::default())).await;
    assert_eq!(worker.stopped().await.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_frozen_handler_does_not_keep_others_from_running() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).handler("double", "v1", double);
    let _worker = worker.slots(1).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("frozen", "gate", "null").await;
    // The server has given the frozen one's lease up, and so its slot.
    session.send(Answer::Dispatch(dispatch("a", "double", "2"))).await;
    let start = session.start().await;
    session.accept(&start.message_id, Disposition::Applied, VALID).await;
    assert_eq!(session.finish().await.result, "4");
}

#[tokio::test]
async fn a_draining_worker_comes_back_only_when_it_has_something_to_say() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "gate", "null").await;
    session.lose("a").await;
    let play = async {
        assert!(matches!(session.frame().await, Some(Message::Drain(_))));
        // With the lease nothing is in flight any more.
        drop(session);
        assert!(timeout(Duration::from_millis(500), server.hello()).await.is_err());
        gate.open.notify_one();
        let mut session = server.session().await;
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Evidence, LOST).await;
    };
    let (report, ()) = tokio::join!(worker.drain(Duration::from_secs(10)), play);
    let report = report.unwrap();
    assert_eq!((report.drained, report.confirmed, report.evidence), (true, 1, 1));
}

#[tokio::test]
async fn an_outage_does_not_last_longer_for_the_worker_than_its_leases_allow() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let _worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "gate", "null").await;
    drop(session);
    // Every try fails; left to itself the worker would wait 2 s and more by the end.
    for _ in 0..8 {
        let began = Instant::now();
        server.hello().await.fail(tonic::Status::unavailable("not yet")).await;
        assert!(began.elapsed() < Duration::from_millis(1_900), "{:?}", began.elapsed());
    }
}

//! A worker's life: work, drain, stop.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use orbit::{
    proto::{Disposition, Drain, Outcome, worker_request::Message},
    sdk::{CancelReason, Client, Context, ErrorKind, Failure, Worker},
};
use tokio::sync::{Notify, oneshot};
use tonic::Code;

use super::fake_worker::{FakeServer, Gate, LOST, double, drained};

#[tokio::test]
async fn the_hello_declares_what_the_worker_was_built_with() {
    let mut server = FakeServer::start();
    let worker =
        server.worker().queue("r").handler("double", "v1", double).slots(3).name("me").build().unwrap();
    let _worker = worker.start().unwrap();
    let hello = server.session().await.hello;
    assert_eq!((hello.worker_name.as_str(), hello.max_in_flight), ("me", 3));
    assert_eq!(
        (hello.queue_ids, hello.features),
        (vec!["q".to_owned(), "r".to_owned()], vec!["safe-retry/1".to_owned()])
    );
    assert_eq!(
        (hello.handlers[0].handler.as_str(), hello.handlers[0].handler_version.as_str()),
        ("double", "v1")
    );
    assert!(hello.held.is_empty());
}

#[tokio::test]
async fn a_drain_lets_handlers_end_and_has_every_report_confirmed() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).handler("double", "v1", double);
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = worker.build().unwrap().run_until(async move { drop(stopped.await) });
    let play = async {
        let mut session = server.session().await;
        session.run("a", "gate", "null").await;
        session.run("b", "double", "21").await;
        let finish = session.finish().await;
        assert_eq!((finish.outcome(), finish.result.as_str()), (Outcome::Succeeded, "42"));
        session.accept(&finish.message_id, Disposition::Applied, LOST).await;
        drop(stop);
        assert!(matches!(session.frame().await, Some(Message::Drain(_))));
        // Dispatched before the server saw the drain: it is still run.
        session.run("c", "double", "1").await;
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Applied, LOST).await;
        gate.open.notify_one();
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Evidence, LOST).await;
        // The server ends the stream when nothing is in flight.
    };
    let (report, ()) = tokio::join!(worker, play);
    let report = report.unwrap();
    assert!(report.drained);
    assert_eq!((report.started, report.confirmed, report.running, report.evidence), (3, 3, 0, 1));
    assert_eq!((report.refused, report.unconfirmed), (0, 0));
}

#[tokio::test]
async fn a_worker_with_nothing_to_do_leaves_when_the_server_has_ended_its_stream() {
    let mut server = FakeServer::start();
    let worker = server.worker().handler("double", "v1", double).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    let play = async {
        assert_eq!(session.frame().await, Some(Message::Drain(Drain {})));
        // Claimed before the server saw the drain, and still on its way: it would have to wait for its lease to end.
        session.run("a", "double", "1").await;
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Applied, LOST).await;
        drop(session);
    };
    let (report, ()) = tokio::join!(worker.drain(Duration::from_secs(20)), play);
    let report = report.unwrap();
    assert_eq!((report.drained, report.started, report.confirmed), (true, 1, 1));
}

#[tokio::test]
async fn a_drain_that_takes_too_long_says_what_is_left_and_tells_the_handler() {
    let mut server = FakeServer::start();
    let (told, reason) = mpsc::channel();
    let running = Arc::new(Notify::new());
    let runs = Arc::clone(&running);
    let stubborn = move |context: Context, (): ()| {
        let (told, runs) = (told.clone(), Arc::clone(&runs));
        async move {
            runs.notify_one();
            context.cancelled().await;
            told.send(context.cancel_reason()).unwrap();
            Ok::<_, Failure>(())
        }
    };
    let worker = server.worker().handler("stubborn", "v1", stubborn).build().unwrap().start().unwrap();
    let mut session = server.session().await;
    session.run("a", "stubborn", "null").await;
    running.notified().await;
    let report = worker.drain(Duration::from_millis(100)).await.unwrap();
    assert!(!report.drained);
    assert_eq!((report.started, report.confirmed, report.running), (1, 0, 1));
    let reason = tokio::task::spawn_blocking(move || reason.recv_timeout(Duration::from_secs(5)));
    assert_eq!(reason.await.unwrap(), Ok(Some(CancelReason::Released)));
}

#[tokio::test]
async fn an_idle_worker_without_a_server_drains_at_once() {
    let client = Client::connect("http://127.0.0.1:1").unwrap();
    let worker = Worker::builder(&client).queue("q").handler("double", "v1", double).build().unwrap();
    let report = worker.run_until(async {}).await.unwrap();
    assert!(report.drained);
}

#[tokio::test]
async fn a_refused_worker_ends_with_the_servers_error() {
    let mut server = FakeServer::start();
    let worker = server.worker().handler("double", "v1", double).build().unwrap();
    let mut worker = worker.start().unwrap();
    server.hello().await.fail(tonic::Status::permission_denied("not this queue")).await;
    let error = worker.stopped().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Server, Code::PermissionDenied));
}

#[tokio::test]
async fn a_worker_that_cannot_work_is_not_built() {
    let client = Client::connect("http://127.0.0.1:1").unwrap();
    let builder = || Worker::builder(&client);
    let wrong = [
        builder().queue("q").build(),
        builder().handler("double", "v1", double).build(),
        builder().queue("q").handler("double", "v1", double).handler("double", "v1", double).build(),
        builder().queue("q").handler("double", "v1", double).slots(0).build(),
    ];
    for worker in wrong {
        assert_eq!(worker.err().map(|error| error.kind()), Some(ErrorKind::Config));
    }
}

#[test]
fn handlers_that_block_all_threads_of_their_runtime_do_not_stop_renewals_or_pings() {
    let handlers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut server = FakeServer::start();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let blocking = move |_: Context, (): ()| {
        let released = Arc::clone(&released);
        async move {
            // Deliberately wrong: it blocks its thread.
            let _ = released.lock().unwrap().recv_timeout(Duration::from_secs(30));
            Ok::<_, Failure>(())
        }
    };
    let entered = handlers.enter();
    let worker = server.worker().handler("block", "v1", blocking).build().unwrap().start().unwrap();
    drop(entered);

    let tests = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tests.block_on(async {
        let mut session = server.session().await;
        session.run("a", "block", "null").await;
        session.run("b", "block", "null").await;
        let play = async {
            while session.renewals < 3 {
                let _ = tokio::time::timeout(Duration::from_millis(100), session.frame()).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), play).await.unwrap();
        release.send(()).unwrap();
        release.send(()).unwrap();
        for _ in 0..2 {
            let finish = session.finish().await;
            session.accept(&finish.message_id, Disposition::Applied, LOST).await;
        }
        assert!(drained(worker, session).await.drained);
    });
    thread::spawn(move || drop(handlers));
}

#[tokio::test]
async fn a_thousand_handlers_run_at_once() {
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let worker = server.worker().handler("gate", "v1", gate.handler()).slots(1_000).build().unwrap();
    let worker = worker.start().unwrap();
    let mut session = server.session().await;
    for id in 0..1_000 {
        session.run(&id.to_string(), "gate", "null").await;
    }
    let limit = tokio::time::Instant::now() + Duration::from_secs(10);
    while gate.calls() < 1_000 {
        assert!(tokio::time::Instant::now() < limit, "only {} run", gate.calls());
        let _ = tokio::time::timeout(Duration::from_millis(10), session.frame()).await;
    }
    gate.open.notify_waiters();
    for _ in 0..1_000 {
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    }
    let report = drained(worker, session).await;
    assert_eq!((report.drained, report.started, report.confirmed), (true, 1_000, 1_000));
}

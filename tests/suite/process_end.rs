//! How a server process ends with work in flight, and what it says of itself: health and reflection.

use std::time::Duration;

use orbit::proto::{GetTaskRequest, TaskState, TaskView};
use tokio::time::{Instant, sleep};
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::support::{
    database::TestDatabase,
    eventually, on_every_database, on_mysql,
    server::{Server, channel, health, submit_request},
    stream::{Stream, attempt_of, hello, hold_applied, succeeded},
    tcp_proxy::TcpProxy,
};

/// What a server has to end.
const END_LIMIT: Duration = Duration::from_secs(10);
const SERVICES: [&str; 4] = ["", "orbit.v1.TaskService", "orbit.v1.QueueService", "orbit.v1.WorkerService"];

async fn state(server: &Server, task_id: &str) -> (TaskState, u32) {
    let request = GetTaskRequest { task_id: task_id.to_owned(), view: TaskView::Basic.into() };
    let task = server.tasks().get_task(request).await.expect("found").into_inner().task.expect("a task");
    (task.state(), task.attempt_count)
}

on_every_database! {
    async fn a_finish_during_the_end_is_taken(database: TestDatabase) {
        let mut server = Server::start(&database).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        server.tasks().submit_task(submit_request("1")).await.expect("accepted");
        let attempt = attempt_of(&worker.dispatch().await);
        hold_applied(&worker.start(&attempt).await);

        let began = Instant::now();
        server.signal("-TERM");
        worker.go_away().await;
        hold_applied(&worker.finish(&succeeded(&attempt, "1")).await);
        // Nothing is in flight any more: the stream ends well, and so does the server, long before its limit.
        let end = worker.next().await;
        assert!(matches!(end, Ok(None)), "{end:?}");
        assert_eq!(server.ended().await.code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());

        server.restart().await;
        assert_eq!(state(&server, &attempt.task_id).await, (TaskState::Succeeded, 1));
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn an_attempt_that_outlives_the_server_goes_on_with_the_next(database: TestDatabase) {
        let mut server = Server::start(&database).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        server.tasks().submit_task(submit_request("1")).await.expect("accepted");
        let attempt = attempt_of(&worker.dispatch().await);
        hold_applied(&worker.start(&attempt).await);

        let began = Instant::now();
        server.signal("-TERM");
        worker.go_away().await;
        assert_eq!(server.ended().await.code(), Some(0));
        assert!(began.elapsed() < END_LIMIT, "{:?}", began.elapsed());
        let end = worker.next().await.expect_err("the stream is ended");
        assert_eq!(end.code(), Code::Unavailable, "{end:?}");

        server.restart().await;
        assert_eq!(state(&server, &attempt.task_id).await, (TaskState::Running, 1));
        let mut hello = hello(1);
        hello.held = vec![attempt.clone()];
        let mut worker = Stream::open_with(server.channel(), hello).await.expect("a stream");
        let held = worker.welcome.held[0].lease.expect("a lease");
        assert!(held.valid, "{held:?}");
        hold_applied(&worker.finish(&succeeded(&attempt, "1")).await);
        assert_eq!(state(&server, &attempt.task_id).await, (TaskState::Succeeded, 1));
        drop(worker);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

on_mysql! {
async fn health_tells_whether_the_database_is_there() {
    let database = TestDatabase::mysql().await;
    let proxy = TcpProxy::before(database.address()).await;
    let server = Server::start_on(&database.url_through(proxy.address()), &[]).await.with_queue().await;
    for service in SERVICES {
        assert_eq!(health(server.channel(), service).await, ServingStatus::Serving, "{service:?}");
    }
    let unknown = HealthCheckRequest { service: "orbit.v1.Nobody".to_owned() };
    let status = HealthClient::new(server.channel()).check(unknown).await.expect_err("unknown");
    assert_eq!(status.code(), Code::NotFound);

    proxy.go_away();
    let limit = Duration::from_secs(8);
    for service in SERVICES {
        eventually("NOT_SERVING", limit, async || {
            (health(server.channel(), service).await == ServingStatus::NotServing).then_some(())
        })
        .await;
    }
    let began = Instant::now();
    let refused = server.tasks().submit_task(submit_request("1")).await.expect_err("no database");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    println!("told UNAVAILABLE after {:?}", began.elapsed());
    sleep(Duration::from_secs(1)).await;

    proxy.come_back();
    let began = Instant::now();
    for service in SERVICES {
        eventually("SERVING again", Duration::from_secs(5), async || {
            (health(server.channel(), service).await == ServingStatus::Serving).then_some(())
        })
        .await;
    }
    println!("SERVING again after {:?}", began.elapsed());
    let mut worker = Stream::open(server.channel(), 1).await;
    server.tasks().submit_task(submit_request("1")).await.expect("accepted");
    let dispatch = worker.dispatch().await;
    worker.run(&dispatch).await;
    drop(worker);
    server.stop().await;
    database.check_invariants().await;
    database.drop().await;
}
}

macro_rules! reflection {
    ($name:ident, $version:ident) => {
        #[tokio::test]
        async fn $name() {
            use tonic_reflection::pb::$version::{
                ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
                server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
            };

            let server = Server::dev().await;
            let ask =
                |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
            let requests = [
                ask(MessageRequest::ListServices(String::new())),
                ask(MessageRequest::FileContainingSymbol("orbit.v1.TaskService".to_owned())),
                ask(MessageRequest::FileContainingSymbol("google.rpc.ErrorInfo".to_owned())),
                ask(MessageRequest::FileByFilename("google/protobuf/duration.proto".to_owned())),
            ];
            let mut client = ServerReflectionClient::new(channel(server.address()));
            let answers = client.server_reflection_info(tokio_stream::iter(requests)).await;
            let mut answers = answers.expect("answers").into_inner();
            let services = answers.message().await.expect("an answer").and_then(|a| a.message_response);
            let Some(MessageResponse::ListServicesResponse(services)) = services else {
                panic!("{services:?}")
            };
            let names: Vec<_> = services.service.iter().map(|service| service.name.as_str()).collect();
            for service in &SERVICES[1..] {
                assert!(names.contains(service), "{names:?}");
            }
            for _ in 0..3 {
                let file = answers.message().await.expect("an answer").and_then(|a| a.message_response);
                assert!(matches!(file, Some(MessageResponse::FileDescriptorResponse(_))), "{file:?}");
            }
            server.stop().await;
        }
    };
}

reflection!(reflection_v1_answers, v1);
reflection!(reflection_v1alpha_answers, v1alpha);

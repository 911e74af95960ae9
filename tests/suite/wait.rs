//! WaitTask: told by the commit, here and on other nodes.

use std::time::Duration;

use orbit::{
    proto::{Task, TaskState, TaskView, WaitTaskRequest},
    sdk::{Error, ErrorKind},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;
use tonic::Code;
use uuid::Uuid;

use crate::support::{
    on_every_database,
    server::{Server, orbit, submit_request},
    stream::{Stream, attempt_of, hold_applied, succeeded},
};

async fn submit(server: &Server) -> String {
    let accepted = server.tasks().submit_task(submit_request("{\"a\":1}")).await.expect("accepted");
    accepted.into_inner().task.expect("a task").task_id
}

/// Waits in the background; the answer comes with how long it took.
fn wait(server: &Server, task_id: &str, wait_ms: u32) -> JoinHandle<(Task, Duration)> {
    let request =
        WaitTaskRequest { task_id: task_id.to_owned(), wait_ms: Some(wait_ms), view: TaskView::Full.into() };
    let mut tasks = server.tasks();
    TaskTracker::new().spawn(async move {
        let began = Instant::now();
        let answer = tasks.wait_task(request).await.expect("an answer").into_inner();
        (answer.task.expect("a task"), began.elapsed())
    })
}

async fn refusal(server: &Server, request: WaitTaskRequest) -> Error {
    Error::from(server.tasks().wait_task(request).await.expect_err("refused"))
}

on_every_database! {
    async fn the_commit_that_settles_the_task_ends_all_waits(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let (id, other) = (submit(&server).await, submit(&server).await);
        let waits = [wait(&server, &id, 20_000), wait(&server, &id, 20_000)];
        let not_settled = wait(&server, &other, 1_500);
        let mut worker = Stream::open(server.channel(), 2).await;
        let dispatched = [worker.dispatch().await, worker.dispatch().await];
        let dispatch = dispatched.iter().find(|d| d.task_id == id).expect("dispatched");
        let attempt = attempt_of(dispatch);
        hold_applied(&worker.start(&attempt).await);
        sleep(Duration::from_millis(300)).await;
        assert!(waits.iter().all(|w| !w.is_finished()), "a start settles nothing");
        hold_applied(&worker.finish(&succeeded(&attempt, "[1]")).await);
        let finished = Instant::now();
        for wait in waits {
            let (task, _) = wait.await.expect("no panic");
            assert_eq!((task.state(), task.result.as_str()), (TaskState::Succeeded, "[1]"));
        }
        assert!(finished.elapsed() < Duration::from_millis(500), "{:?}", finished.elapsed());

        // The other one is answered as it is when the time is over.
        let (task, took) = not_settled.await.expect("no panic");
        assert_eq!(task.state(), TaskState::Leased);
        assert!((1_500..4_000).contains(&took.as_millis()), "{took:?}");

        // What is settled already is answered at once.
        let (_, took) = wait(&server, &id, 60_000).await.expect("no panic");
        assert!(took < Duration::from_secs(2), "{took:?}");
        drop(worker);
        server.stop().await;
        database.drop().await;
    }

    async fn a_cancel_ends_a_wait_of_the_client_and_its_limit_too(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let id = submit(&server).await;
        let late = server.client().wait(&id, Duration::from_millis(400)).await.expect_err("nobody works");
        assert_eq!(late.kind(), ErrorKind::Timeout);
        assert!(late.message().contains("TASK_STATE_WAITING"), "{late}");
        let (client, waited) = (server.client(), id.clone());
        let wait = TaskTracker::new().spawn(async move { client.wait(&waited, Duration::from_secs(20)).await });
        sleep(Duration::from_millis(200)).await;
        server.client().cancel(&id, "").await.expect("canceled");
        let task = timeout(Duration::from_secs(2), wait).await.expect("told").expect("no panic").expect("a task");
        assert_eq!((task.state(), task.payload.as_str()), (TaskState::Canceled, "{\"a\":1}"));
        server.stop().await;
        database.drop().await;
    }

    async fn a_wait_is_refused_for_no_task_and_for_bad_fields(database: TestDatabase) {
        let server = Server::start(&database).await;
        let request = WaitTaskRequest { task_id: Uuid::now_v7().to_string(), ..WaitTaskRequest::default() };
        let missing = refusal(&server, request).await;
        assert_eq!((missing.code(), missing.reason()), (Code::NotFound, Some("TASK_NOT_FOUND")));
        let request = WaitTaskRequest { task_id: "x".to_owned(), wait_ms: Some(60_001), view: 9 };
        let bad = refusal(&server, request).await;
        let fields: Vec<_> = bad.field_violations().iter().map(|v| v.field.clone()).collect();
        assert_eq!(fields, ["task_id", "wait_ms", "view"]);
        server.stop().await;
        database.drop().await;
    }

    async fn the_command_line_tells_the_end_by_its_exit_code(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let id = submit(&server).await;
        let run = |limit: &str| {
            let output = orbit()
                .args(["task", "wait", &id, "--json", "--timeout-ms", limit, "--url", &server.url()])
                .output()
                .expect("it runs");
            let task: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
            (output.status.code(), task["state"].as_str().expect("a state").to_owned())
        };
        assert_eq!(run("100"), (Some(6), "WAITING".to_owned()));
        server.client().cancel(&id, "").await.expect("canceled");
        assert_eq!(run("10000"), (Some(4), "CANCELED".to_owned()));
        server.stop().await;
        database.drop().await;
    }

    async fn a_shutdown_answers_with_the_task_as_it_is(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let id = submit(&server).await;
        let waits = wait(&server, &id, 60_000);
        sleep(Duration::from_millis(300)).await;
        let began = Instant::now();
        server.stop().await;
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        assert_eq!(waits.await.expect("no panic").0.state(), TaskState::Waiting);
        database.drop().await;
    }
}

/// Only MySQL takes two nodes.
mod mysql_only {
    use super::*;
    use crate::support::database::TestDatabase;

    #[tokio::test(flavor = "multi_thread")]
    async fn another_nodes_commit_is_told_within_300_ms() {
        let database = TestDatabase::mysql().await;
        let (here, there) =
            (Server::start(&database).await.with_queue().await, Server::start(&database).await);
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let id = submit(&here).await;
            let waits = wait(&here, &id, 20_000);
            sleep(Duration::from_millis(250)).await;
            there.client().cancel(&id, "").await.expect("canceled");
            let began = Instant::now();
            let (task, _) = waits.await.expect("no panic");
            best = best.min(began.elapsed());
            assert_eq!(task.state(), TaskState::Canceled);
            // The promise with room for a machine that is busy with other tests.
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        }
        assert!(best < Duration::from_millis(300), "{best:?}");
        here.stop().await;
        there.stop().await;
        database.drop().await;
    }
}

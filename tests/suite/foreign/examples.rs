//! The examples in other languages: each keeps its promise, in the same two lines as the Rust one.

use std::{
    process::{Child, Stdio},
    time::Duration,
};

use orbit::{
    proto::{RetryPolicy, SubmitTaskRequest, TaskState},
    sdk::Client,
};
use tokio::time::sleep;

use super::tool;
use crate::{
    example::{Run, backoff},
    support::{
        eventually, on_every_database,
        server::{Server, submit_request},
        tcp_proxy::TcpProxy,
    },
};

const LIMIT: Duration = Duration::from_secs(30);
/// A lease that a handler of a few seconds outlives.
const SHORT_LEASES: [&str; 4] = ["--lease-ms", "1000", "--sweep-interval-ms", "100"];

fn run(script: &str, url: &str) -> Run {
    Run::start(tool(script).env("ORBIT_URL", url))
}

async fn hold_the_scenario(server: Server, script: &str) {
    run(script, &server.url()).ends_as_promised().await;
    assert_eq!(server.complaints(), [""; 0]);
    server.stop().await;
}

/// The worker in Python for the queue `default`, until it is told to stop.
struct Work(Child);

impl Work {
    fn start(url: &str) -> Self {
        let mut command = tool("examples/python/run");
        command.args(["--work", "default"]).env("ORBIT_URL", url);
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs"))
    }

    /// Drains it, and returns what it says of its end.
    async fn drain(mut self) -> String {
        let pid = self.0.id().to_string();
        let told = std::process::Command::new("kill").args(["-TERM", &pid]).status();
        assert!(told.expect("kill").success());
        eventually("it ends", LIMIT, async || self.0.try_wait().expect("ours")).await;
        let mut text = String::new();
        let stdout = self.0.stdout.as_mut().expect("piped");
        std::io::Read::read_to_string(stdout, &mut text).expect("a text");
        text
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn sleeping(seconds: u32) -> SubmitTaskRequest {
    let payload = format!("{{\"seconds\":{seconds}}}");
    SubmitTaskRequest { handler: "demo.sleep".to_owned(), ..submit_request(payload) }
}

async fn submit(server: &Server, request: SubmitTaskRequest) -> String {
    let answer = server.tasks().submit_task(request).await.expect("accepted").into_inner();
    answer.task.expect("a task").task_id
}

/// Waits until the task runs.
async fn running(client: &Client, task_id: &str) {
    let look = async || {
        let task = client.get(task_id).await.expect("the task");
        (task.state() == TaskState::Running).then_some(())
    };
    eventually("it runs", LIMIT, look).await;
}

on_every_database! {
    async fn python(database: TestDatabase) {
        hold_the_scenario(Server::start(&database).await, "examples/python/run").await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn node(database: TestDatabase) {
        hold_the_scenario(Server::start(&database).await, "examples/node/run").await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn go(database: TestDatabase) {
        hold_the_scenario(Server::start(&database).await, "examples/go/run").await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn http(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let worker = Work::start(&server.url());
        let mut command = tool("examples/http/submit.sh");
        let output = command.arg("default").env("ORBIT_URL", server.url()).output().expect("it runs");
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let id = stderr.split_whitespace().nth(2).unwrap_or_else(|| panic!("{stderr}"));
        assert_eq!(
            stdout,
            format!(
                "task={id} state=SUCCEEDED attempts=2 first_retryable=true result={{\"text\":\"SAFE RETRY\"}}\n"
            ),
            "{stderr}"
        );
        assert_eq!(worker.drain().await, "worker_drained=true started=2 confirmed=2 running=0\n");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn all_survive_a_server_that_is_killed_during_the_backoff(database: TestDatabase) {
        let mut server = Server::start(&database).await;
        for script in ["examples/python/run", "examples/node/run", "examples/go/run"] {
            let run = run(script, &server.url());
            let task_id = run.task_id().await;
            backoff(&server.client(), &task_id).await;
            server.kill();
            sleep(Duration::from_millis(600)).await;
            server.restart().await;
            assert_eq!(run.ends_as_promised().await, task_id, "{script}");
        }
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn the_python_worker_renews_re_sends_and_drains(database: TestDatabase) {
        let server = Server::start_with(&database, &SHORT_LEASES).await.with_queue().await;
        let client = server.client();
        let proxy = TcpProxy::before(server.address()).await;
        let worker = Work::start(&format!("http://{}", proxy.address()));

        // Three leases long: without renewals it would be taken away.
        let renewed = submit(&server, sleeping(3)).await;
        let task = client.wait(&renewed, LIMIT).await.expect("an end");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
        assert_eq!(task.result, r#"{"slept":3,"may_act":true}"#);

        // A stream that breaks while the handler runs takes nothing away.
        let held = submit(&server, sleeping(2)).await;
        running(&client, &held).await;
        proxy.cut();
        let task = client.wait(&held, LIMIT).await.expect("an end");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));

        // The report is committed, its answer lost: it comes again on a new stream, and changes nothing.
        let lost = submit(&server, sleeping(1)).await;
        running(&client, &lost).await;
        proxy.swallow_answers();
        let task = client.wait(&lost, LIMIT).await.expect("an end");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
        proxy.cut();

        // A drain finishes what runs.
        let drained = submit(&server, sleeping(1)).await;
        running(&client, &drained).await;
        assert_eq!(worker.drain().await, "worker_drained=true started=4 confirmed=4 running=0\n");
        let task = client.get(&drained).await.expect("the task");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn the_python_worker_stops_when_a_cancel_is_asked_for(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let worker = Work::start(&server.url());
        let retry = RetryPolicy { max_attempts: Some(3), ..RetryPolicy::default() };
        let id = submit(&server, SubmitTaskRequest { retry: Some(retry), ..sleeping(60) }).await;
        let client = server.client();
        running(&client, &id).await;
        let cancel = orbit::proto::CancelTaskRequest {
            task_id: id.clone(),
            reason: String::new(),
            request_id: crate::support::stream::new_id(),
        };
        server.tasks().cancel_task(cancel).await.expect("recorded");
        let task = client.wait(&id, LIMIT).await.expect("an end");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Canceled, 1));
        assert_eq!(worker.drain().await, "worker_drained=true started=1 confirmed=1 running=0\n");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

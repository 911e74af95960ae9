//! The examples, as processes: each does by itself, and against a server process, what it says. The example `retry` has
//! more to hold, in `example`; the example `worker` plays its part in `sdk::process`.

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use orbit::{proto::TaskState, sdk::Client};
use serde_json::json;

use crate::support::{
    eventually, on_every_database,
    server::{Server, collect, example, lines},
};

const LIMIT: Duration = Duration::from_mins(1);

/// Runs an example with one argument to its end.
async fn run(name: &str, argument: &str) -> Output {
    let mut command = example(name);
    command.arg(argument);
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"));
    tokio::time::timeout(LIMIT, output).await.expect("it ends").expect("no panic")
}

/// What a good run wrote to standard output, with each task's id replaced.
fn stdout(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    let words = text.split_inclusive([' ', '\n']).map(|word| match word.split_once("task=") {
        Some(("", rest)) => format!("task=ID{}", &rest[36..]),
        _ => word.to_owned(),
    });
    words.collect()
}

const TASKS: &str = "\
submitted task=ID replayed=false
again task=ID replayed=true
conflict reason=IDEMPOTENCY_CONFLICT
lookup task=ID state=WAITING
wait timeout=true
canceled state=CANCELED
payload {\"number\":4711,\"cents\":12900}
";

const WORKER_PROTOCOL: &str = "task=ID state=SUCCEEDED attempts=1 result={\"text\":\"HELLO\"}\n";

const HISTORY: &str = "\
attempt 1 FAILED retryable=true error=BANK_BUSY decision=RETRYABLE_FAILURE
attempt 2 UNKNOWN retryable=false error=HANDLER_ERROR decision=RECONCILIATION_REQUIRED
event 1 task.accepted state=WAITING cause=UNSPECIFIED
event 2 task.leased state=LEASED cause=UNSPECIFIED
event 3 task.started state=RUNNING cause=UNSPECIFIED
event 4 task.requeued state=WAITING cause=REPORTED
event 5 task.leased state=LEASED cause=UNSPECIFIED
event 6 task.started state=RUNNING cause=UNSPECIFIED
event 7 task.review_required state=NEEDS_REVIEW cause=REPORTED
event 8 task.resolved state=SUCCEEDED cause=OPERATOR
task=ID state=SUCCEEDED attempts=2 effect_uncertain=false
";

/// What `health` says of a server with that many queues.
fn health(queues: u32) -> String {
    let names = ["orbit", "orbit.v1.TaskService", "orbit.v1.QueueService", "orbit.v1.WorkerService"];
    let mut lines = names.map(|name| format!("{name}=SERVING")).to_vec();
    lines.push(format!("queues={queues}\n"));
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_they_need_nothing() {
    assert_eq!(stdout(&run("health", "--embedded").await), health(1));
    assert_eq!(stdout(&run("tasks", "--embedded").await), TASKS);
    assert_eq!(stdout(&run("worker_protocol", "--embedded").await), WORKER_PROTOCOL);
    assert_eq!(stdout(&run("history", "--embedded").await), HISTORY);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_wrong_argument_or_no_server_they_fail_and_write_no_result() {
    for name in ["health", "history", "retry", "tasks", "worker", "worker_protocol"] {
        let output = run(name, "--wrong").await;
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{name}");
        assert_eq!(output.stderr, b"error: usage: [--embedded | URL]\n", "{name}");
    }
    let output = run("health", "http://127.0.0.1:1").await;
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_worker_serves_whoever_submits_and_drains_at_sigterm() {
    let mut worker = example("worker");
    worker.arg("--embedded").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut worker = worker.spawn().expect("it runs");
    let (said, log) = Default::default();
    collect(worker.stdout.take().expect("piped"), &said);
    collect(worker.stderr.take().expect("piped"), &log);
    let url = eventually("it works", LIMIT, async || {
        let lines = lines(&log);
        lines.iter().find(|line| line.starts_with("working"))?;
        lines.iter().find_map(|line| line.strip_prefix("started a server at ").map(str::to_owned))
    })
    .await;
    let client = Client::connect(url).expect("a client");
    for (text, state) in [("  hello  ", TaskState::Succeeded), ("  ", TaskState::Failed)] {
        let submit = client.submit("default", "text.normalize", "v1").payload(&json!({ "text": text }));
        let id = submit.send().await.expect("accepted").task.task_id;
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!(task.state(), state, "{task:?}");
    }
    let killed = Command::new("kill").args(["-TERM", &worker.id().to_string()]).status();
    assert!(killed.expect("kill").success());
    let status = eventually("it ends", LIMIT, async || worker.try_wait().expect("ours")).await;
    assert_eq!(status.code(), Some(0), "{:?}", lines(&log));
    let said = eventually("its last line", LIMIT, async || lines(&said).first().cloned()).await;
    assert_eq!(said, "worker_drained=true started=2 confirmed=2 running=0 evidence=0");
}

on_every_database! {
    async fn against_a_server_they_do_what_they_say(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let url = server.url();
        assert_eq!(stdout(&run("health", &url).await), health(1));
        // Each has a queue of its own, so it can be run again and beside others.
        let again = [
            ("tasks", TASKS),
            ("worker_protocol", WORKER_PROTOCOL),
            ("history", HISTORY),
            ("tasks", TASKS),
            ("worker_protocol", WORKER_PROTOCOL),
        ];
        for (name, expected) in again {
            assert_eq!(stdout(&run(name, &url).await), expected);
        }
        assert_eq!(stdout(&run("health", &url).await), health(1 + 5));
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

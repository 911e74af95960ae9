//! A worker as a process of its own: the example `worker`.

use std::{
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use orbit::{
    proto::{AttemptState, RecoverySafety, TaskState},
    sdk::{Client, Context},
};
use serde_json::json;

use super::{LIMIT, attempts, drained, end, start, until};
use crate::support::{
    eventually, on_every_database,
    rig::QUEUE,
    server::{Server, collect, example, lines},
};

/// The worker's process. It is killed when this is dropped.
struct Process {
    child: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
}

impl Process {
    async fn start(server: &Server) -> Self {
        let mut command = example("worker");
        command.arg(server.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let (stdout, stderr) = (Arc::default(), Arc::default());
        collect(child.stdout.take().expect("piped"), &stdout);
        collect(child.stderr.take().expect("piped"), &stderr);
        let process = Self { child, stdout, stderr };
        eventually("it works", LIMIT, async || {
            lines(&process.stderr).iter().any(|line| line.starts_with("working")).then_some(())
        })
        .await;
        process
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for its end; how it ended, and what it said of its drain.
    async fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = eventually("it ends", LIMIT, async || self.child.try_wait().expect("ours")).await;
        let said = eventually("its last line", LIMIT, async || {
            let lines = lines(&self.stdout);
            (!lines.is_empty()).then_some(lines)
        })
        .await;
        (status, said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("--- the worker said\n{}\n---", lines(&self.stderr).join("\n"));
        }
    }
}

/// Submits a sleep of so many milliseconds.
async fn sleep_for(client: &Client, ms: u64, safety: RecoverySafety) -> String {
    let submit = client.submit(QUEUE, "demo.sleep", "v1").payload(&json!({ "ms": ms }));
    let submit = submit.recovery_safety(safety).max_attempts(50).initial_delay(Duration::from_millis(20));
    let submit = submit.max_delay(Duration::from_millis(100));
    submit.send().await.expect("accepted").task.task_id
}

on_every_database! {
    async fn sigterm_drains_the_worker(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let process = Process::start(&server).await;
        let id = sleep_for(&client, 1_500, RecoverySafety::ReconcileOnly).await;
        until(&client, &id, "it runs", |task| task.state() == TaskState::Running).await;
        process.signal("-TERM");
        let (status, said) = process.ended().await;
        assert_eq!(said, ["worker_drained=true started=1 confirmed=1 running=0 evidence=0"]);
        assert_eq!(status.code(), Some(0));
        let task = client.get(&id).await.expect("the task");
        assert_eq!((task.state(), task.result.as_str()), (TaskState::Succeeded, r#""slept well""#));
        // Nobody takes what comes now.
        let late = sleep_for(&client, 1, RecoverySafety::ReconcileOnly).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(client.get(&late).await.expect("the task").attempt_count, 0);
        end(server, database).await;
    }

    // SIGSTOP for longer than the lease: to the server that worker is lost, and its work in doubt. Waking up it hears so,
    // stops, and says what it knows; that is evidence, and undoes nothing.
    async fn a_worker_that_was_frozen_beyond_its_lease_undoes_nothing(database: TestDatabase) {
        let short = ["--lease-ms", "2000", "--start-window-ms", "1000", "--sweep-interval-ms", "50"];
        let server = Server::start_with(&database, &short).await.with_queue().await;
        let client = server.client();
        let process = Process::start(&server).await;
        let reviewed = sleep_for(&client, 60_000, RecoverySafety::ReconcileOnly).await;
        let repeated = sleep_for(&client, 60_000, RecoverySafety::Idempotent).await;
        for id in [&reviewed, &repeated] {
            until(&client, id, "it runs", |task| task.state() == TaskState::Running).await;
        }
        process.signal("-STOP");
        let doubtful = client.wait(&reviewed, LIMIT).await.expect("settled");
        assert_eq!((doubtful.state(), doubtful.effect_uncertain), (TaskState::NeedsReview, true));
        // The server cannot know that it is frozen, and may give it the next attempt, which then starts in vain.
        let quick = |context: Context, _: serde_json::Value| async move { Ok(context.epoch()) };
        let other = orbit::sdk::Worker::builder(&client).queue(QUEUE).handler("demo.sleep", "v1", quick);
        let other = start(other);
        let done = client.wait(&repeated, LIMIT).await.expect("settled");
        assert_eq!(done.state(), TaskState::Succeeded);

        process.signal("-CONT");
        for id in [&reviewed, &repeated] {
            eventually("it says what it knows", LIMIT, async || {
                let history = attempts(&client, id).await;
                let frozen = history.iter().find(|attempt| attempt.state() == AttemptState::Unknown);
                let code = frozen.expect("the one that ran").evidence.first()?.error.as_ref().map(|error| error.code.clone());
                assert_eq!(code.as_deref(), Some("INTERRUPTED"));
                Some(())
            })
            .await;
        }
        for (id, before) in [(&reviewed, &doubtful), (&repeated, &done)] {
            let now = client.get(id).await.expect("the task");
            assert_eq!((now.state(), now.revision, &now.result), (before.state(), before.revision, &before.result));
        }
        process.signal("-TERM");
        let (status, said) = process.ended().await;
        assert_eq!(said, ["worker_drained=true started=2 confirmed=2 running=0 evidence=2"]);
        assert_eq!(status.code(), Some(0));
        drained(other).await;
        end(server, database).await;
    }

    // Each worker that gets it is killed (and the server too, in between): its budget ends that, and the doubt stays.
    async fn t29_a_task_that_kills_its_workers_ends_with_its_budget(database: TestDatabase) {
        let short = ["--lease-ms", "1000", "--start-window-ms", "1000", "--sweep-interval-ms", "50"];
        let mut server = Server::start_with(&database, &short).await.with_queue().await;
        let client = server.client();
        let submit = client.submit(QUEUE, "demo.sleep", "v1").payload(&json!({ "ms": 60_000 }));
        let submit = submit.recovery_safety(RecoverySafety::Idempotent).max_attempts(3);
        let id = submit.initial_delay(Duration::from_millis(1)).send().await.expect("accepted").task.task_id;
        for epoch in 1..=3 {
            let process = Process::start(&server).await;
            until(&client, &id, "it runs", |task| task.state() == TaskState::Running && task.attempt_count == epoch).await;
            process.signal("-KILL");
            if epoch == 2 {
                server.kill();
                server.restart().await;
            }
        }
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
        let _idle = Process::start(&server).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(client.get(&id).await.expect("the task").attempt_count, 3);
        end(server, database).await;
    }
}

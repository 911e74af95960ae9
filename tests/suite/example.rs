//! The example of the README, as a process against a server process.

use std::{
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use orbit::{
    proto::{TaskState, TaskView},
    sdk::Client,
};
use tokio::time::sleep;

use crate::support::{
    eventually, on_every_database,
    server::{Server, collect, example, lines},
};

/// Generous: the example in Go is compiled at each run.
const LIMIT: Duration = Duration::from_mins(1);

/// A run of the example.
pub(crate) struct Run {
    ends: JoinHandle<Output>,
    stderr: Arc<Mutex<Vec<String>>>,
}

impl Run {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the example runs");
        let stderr = Arc::default();
        collect(process.stderr.take().expect("piped"), &stderr);
        Self { ends: std::thread::spawn(move || process.wait_with_output().expect("its output")), stderr }
    }

    fn against(server: &Server) -> Self {
        Self::start(example("retry").env("ORBIT_URL", server.url()))
    }

    /// The task that it submitted.
    pub(crate) async fn task_id(&self) -> String {
        eventually("the example submits its task", LIMIT, async || {
            let stderr = lines(&self.stderr);
            let line = stderr.iter().find(|line| line.starts_with("submitted task "))?;
            line.split_whitespace().nth(2).map(str::to_owned)
        })
        .await
    }

    /// Waits for the end, and holds that it is exactly as the README says.
    pub(crate) async fn ends_as_promised(self) -> String {
        eventually("the example ends", 2 * LIMIT, async || self.ends.is_finished().then_some(())).await;
        let task_id = self.task_id().await;
        let output = self.ends.join().expect("no panic");
        let expected = format!(
            "task={task_id} state=SUCCEEDED attempts=2 first_retryable=true result={{\"text\":\"SAFE RETRY\"}}\n\
             worker_drained=true started=2 confirmed=2 running=0\n"
        );
        let stderr = lines(&self.stderr).join("\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{stderr}");
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        task_id
    }
}

/// Waits until the first attempt has failed and the second is not due yet.
pub(crate) async fn backoff(client: &Client, task_id: &str) {
    let look = async || {
        let task = client.get_view(task_id, TaskView::Basic).await.expect("the task");
        assert!(task.attempt_count < 2, "the backoff was missed");
        (task.state() == TaskState::Waiting && task.attempt_count == 1).then_some(())
    };
    eventually("the first attempt fails", LIMIT, look).await;
}

#[tokio::test]
async fn embedded_it_needs_nothing() {
    Run::start(example("retry").arg("--embedded")).ends_as_promised().await;
}

#[tokio::test]
async fn without_a_server_it_fails_and_writes_no_result() {
    let output = example("retry").arg("--wrong").output().expect("it runs");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
}

on_every_database! {
    async fn against_a_server_it_prints_two_lines(database: TestDatabase) {
        let server = Server::start(&database).await;
        Run::against(&server).ends_as_promised().await;
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn a_server_killed_during_the_backoff_changes_nothing(database: TestDatabase) {
        let mut server = Server::start(&database).await;
        let run = Run::against(&server);
        let task_id = run.task_id().await;
        let client = server.client();
        backoff(&client, &task_id).await;
        server.kill();
        // Longer than the whole backoff: the retry falls due while nobody is there.
        sleep(Duration::from_millis(600)).await;
        server.restart().await;
        assert_eq!(run.ends_as_promised().await, task_id);

        let attempts = client.attempts(&task_id).await.expect("its attempts");
        let [first, second] = &attempts[..] else { panic!("{attempts:?}") };
        assert_ne!(first.node_id, second.node_id, "the second attempt ran after the restart");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

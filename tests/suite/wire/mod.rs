//! Trials over the network: faults that other systems of this kind shipped, tried from outside, with a server process.
//! Each test is named after its trial.

mod cancel;
mod delivery;
mod end;
mod limits;
mod load;

use orbit::proto::{
    Attempt, GetTaskRequest, ListAttemptsRequest, RetryPolicy, SubmitTaskRequest, Task, TaskView,
};

use crate::support::server::{Server, submit_request};

/// Leases short enough to see them end.
const SHORT_LEASES: [&str; 6] =
    ["--lease-ms", "1000", "--start-window-ms", "1000", "--sweep-interval-ms", "100"];

/// Three attempts, short delays.
fn retried(payload: &str) -> SubmitTaskRequest {
    let retry = RetryPolicy {
        max_attempts: Some(3),
        initial_delay_ms: Some(20),
        max_delay_ms: Some(100),
        ..RetryPolicy::default()
    };
    SubmitTaskRequest { retry: Some(retry), ..submit_request(payload) }
}

async fn submit(server: &Server, request: SubmitTaskRequest) -> String {
    let answer = server.tasks().submit_task(request).await.expect("accepted").into_inner();
    answer.task.expect("a task").task_id
}

async fn task(server: &Server, task_id: &str) -> Task {
    let request = GetTaskRequest { task_id: task_id.to_owned(), view: TaskView::Full.into() };
    server.tasks().get_task(request).await.expect("found").into_inner().task.expect("a task")
}

async fn attempts(server: &Server, task_id: &str) -> Vec<Attempt> {
    let request = ListAttemptsRequest { task_id: task_id.to_owned(), ..ListAttemptsRequest::default() };
    server.tasks().list_attempts(request).await.expect("found").into_inner().attempts
}

/// Memory of a process, in bytes.
fn resident(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).expect("kB") * 1_024
}

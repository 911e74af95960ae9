//! The SDK's worker, as its users have it, against server processes: what the worker's side of the promises is worth.

mod handlers;
mod idempotent;
mod life;
mod network;
mod outcomes;
mod process;
mod restarts;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use orbit::{
    proto::{Attempt, Task, TaskState, TaskView},
    sdk::{Client, Context, Failure, Report, Worker, WorkerBuilder, WorkerHandle},
};
use tokio::sync::Semaphore;

use crate::support::{
    eventually,
    rig::{HANDLER, QUEUE},
    server::Server,
};

/// What a busy machine may take.
const LIMIT: Duration = Duration::from_secs(40);

/// A handler that a test holds back, and counts.
#[derive(Clone)]
struct Gate {
    calls: Arc<AtomicU64>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { calls: Arc::default(), open: Arc::new(Semaphore::new(0)) }
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Waits until it was called so often.
    async fn called(&self, times: u64) {
        eventually("handlers are called", LIMIT, async || (self.calls() >= times).then_some(())).await;
    }

    /// Lets so many of those that wait, or will, end.
    fn let_end(&self, handlers: usize) {
        self.open.add_permits(handlers);
    }

    /// As a handler that answers with its epoch.
    async fn handle(self, context: Context) -> Result<u32, Failure> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.open.acquire().await?.forget();
        Ok(context.epoch())
    }

    /// A worker of it.
    fn worker(&self, client: &Client) -> WorkerBuilder {
        let gate = self.clone();
        worker(client, move |context, (): ()| gate.clone().handle(context))
    }
}

/// A worker of the test's queue, for the test's handler.
fn worker<T, F, Fut>(client: &Client, handler: F) -> WorkerBuilder
where
    T: serde::de::DeserializeOwned + Send + 'static,
    F: Fn(Context, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<u32, Failure>> + Send + 'static,
{
    Worker::builder(client).queue(QUEUE).handler(HANDLER.0, HANDLER.1, handler)
}

fn start(builder: WorkerBuilder) -> WorkerHandle {
    builder.build().expect("a worker").start().expect("started")
}

/// Submits a task for the test's handler; its id.
async fn submit(client: &Client, payload: &impl serde::Serialize) -> String {
    client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(payload).send().await.expect("accepted").task.task_id
}

async fn submit_many(client: &Client, tasks: usize) -> Vec<String> {
    let submits = (0..tasks).map(|_| submit(client, &()));
    futures_util::StreamExt::collect(futures_util::StreamExt::buffered(
        futures_util::stream::iter(submits.collect::<Vec<_>>()),
        50,
    ))
    .await
}

/// Waits until the task is settled, and holds that it succeeded at its first attempt.
async fn succeeded_at_once(client: &Client, task_id: &str) {
    let task = client.wait(task_id, LIMIT).await.expect("settled");
    assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1), "{task:?}");
}

/// Waits until the task looks as asked.
async fn until(client: &Client, task_id: &str, what: &str, wanted: impl Fn(&Task) -> bool) -> Task {
    eventually(what, LIMIT, async || {
        let task = client.get_view(task_id, TaskView::Basic).await.expect("the task");
        wanted(&task).then_some(task)
    })
    .await
}

async fn attempts(client: &Client, task_id: &str) -> Vec<Attempt> {
    client.attempts(task_id).await.expect("its attempts")
}

/// Drains the worker and holds that nothing was left.
async fn drained(worker: WorkerHandle) -> Report {
    let report = worker.drain(LIMIT).await.expect("a report");
    assert!(report.drained, "{report:?}");
    assert_eq!((report.running, report.unconfirmed, report.refused), (0, 0, 0), "{report:?}");
    report
}

/// Started, confirmed, and of these evidence.
fn counts(report: Report) -> (u64, u64, u64) {
    (report.started, report.confirmed, report.evidence)
}

/// Ends the server and holds that no rows contradict each other.
async fn end(server: Server, database: crate::support::database::TestDatabase) {
    server.stop().await;
    database.check_invariants().await;
    database.drop().await;
}

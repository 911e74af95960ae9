//! The test kit for worker authors: each switch does what it says, to a real worker on a real server.

#![cfg(feature = "testing")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use orbit::{
    proto::{AttemptState, Decision, RecoverySafety, Task, TaskState},
    sdk::{Client, Context, ErrorKind, Failure, Report, Worker, WorkerHandle},
    testing::TestServer,
};
use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(20);

/// How often the handler was called.
type Calls = Arc<AtomicU64>;

/// A worker whose handler waits as long as the payload says, in milliseconds, or until it is told to stop.
fn start(client: &Client) -> (WorkerHandle, Calls) {
    let calls = Calls::default();
    let counted = Arc::clone(&calls);
    let handler = move |context: Context, wait_ms: u64| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::select! {
                () = sleep(Duration::from_millis(wait_ms)) => {}
                () = context.cancelled() => {}
            }
            Ok::<_, Failure>(context.epoch())
        }
    };
    let worker = Worker::builder(client).queue("default").handler("wait", "v1", handler);
    (worker.build().unwrap().start().unwrap(), calls)
}

async fn submit(client: &Client, wait_ms: u64, safety: RecoverySafety) -> String {
    let submit = client.submit("default", "wait", "v1").payload(&wait_ms).recovery_safety(safety);
    submit.max_attempts(2).initial_delay(Duration::from_millis(1)).send().await.unwrap().task.task_id
}

/// Waits until the task looks as asked.
async fn until(client: &Client, task_id: &str, wanted: impl Fn(&Task) -> bool) -> Task {
    let deadline = Instant::now() + LIMIT;
    loop {
        let task = client.get(task_id).await.unwrap();
        if wanted(&task) {
            return task;
        }
        assert!(Instant::now() < deadline, "{task:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Drains the worker; how many were started, confirmed, and evidence.
async fn ended(worker: WorkerHandle) -> (u64, u64, u64) {
    let report = worker.drain(LIMIT).await.unwrap();
    assert!(report.drained, "{report:?}");
    let Report { started, confirmed, evidence, .. } = report;
    (started, confirmed, evidence)
}

#[tokio::test]
async fn without_faults_it_is_a_server_as_any_other() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    let (worker, calls) = start(&client);
    let id = submit(&client, 0, RecoverySafety::ReconcileOnly).await;
    let task = client.wait(&id, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.result.as_str()), (TaskState::Succeeded, "1"));
    let error = client.get("0198d7a4-0000-7000-8000-000000000000").await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Server, Some("TASK_NOT_FOUND")));
    assert_eq!((ended(worker).await, calls.load(Ordering::SeqCst)), ((1, 1, 0), 1));
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_dropped_acknowledgement_is_asked_for_again_and_nothing_runs_again() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    orbit.drop_acknowledgements(true);
    let (worker, calls) = start(&client);
    let id = submit(&client, 0, RecoverySafety::ReconcileOnly).await;
    let task = client.wait(&id, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
    // The worker does not know: it cannot drain. With a new stream it asks again.
    let drained = tokio_util::task::TaskTracker::new().spawn(ended(worker));
    sleep(Duration::from_millis(300)).await;
    assert!(!drained.is_finished());
    orbit.drop_acknowledgements(false);
    orbit.cut_streams();
    assert_eq!((drained.await.unwrap(), calls.load(Ordering::SeqCst)), ((1, 1, 0), 1));
    assert_eq!(client.get(&id).await.unwrap().revision, task.revision);
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_dropped_answer_to_a_start_holds_the_handler_back() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    orbit.drop_start_acknowledgements(true);
    let (worker, calls) = start(&client);
    let id = submit(&client, 0, RecoverySafety::ReconcileOnly).await;
    until(&client, &id, |task| task.state() == TaskState::Running).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    orbit.drop_start_acknowledgements(false);
    orbit.cut_streams();
    let task = client.wait(&id, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
    assert_eq!((ended(worker).await, calls.load(Ordering::SeqCst)), ((1, 1, 0), 1));
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_is_delivered_twice_runs_once() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    orbit.deliver_twice(true);
    let (worker, calls) = start(&client);
    for _ in 0..3 {
        let id = submit(&client, 0, RecoverySafety::ReconcileOnly).await;
        let task = client.wait(&id, LIMIT).await.unwrap();
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
    }
    assert_eq!((ended(worker).await, calls.load(Ordering::SeqCst)), ((3, 3, 0), 3));
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_cut_stream_takes_no_running_attempt_away() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    let (worker, calls) = start(&client);
    let id = submit(&client, 500, RecoverySafety::ReconcileOnly).await;
    until(&client, &id, |task| task.state() == TaskState::Running).await;
    orbit.cut_streams();
    let task = client.wait(&id, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
    assert_eq!((ended(worker).await, calls.load(Ordering::SeqCst)), ((1, 1, 0), 1));
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn an_expired_lease_leaves_a_doubt_and_an_idempotent_task_runs_again() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    let (worker, calls) = start(&client);
    let reviewed = submit(&client, 60_000, RecoverySafety::ReconcileOnly).await;
    let repeated = submit(&client, 60_000, RecoverySafety::Idempotent).await;
    for id in [&reviewed, &repeated] {
        until(&client, id, |task| task.state() == TaskState::Running).await;
    }
    assert_eq!(orbit.expire_leases().await.unwrap(), 2);
    let task = client.wait(&reviewed, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
    until(&client, &repeated, |task| task.state() == TaskState::Running && task.attempt_count == 2).await;

    // The handlers of the first attempts are told at the next renewal; what they say then is evidence.
    let late = |attempts: &[orbit::proto::Attempt]| attempts[0].evidence.len() == 1;
    let deadline = Instant::now() + LIMIT;
    for id in [&reviewed, &repeated] {
        while !late(&client.attempts(id).await.unwrap()) {
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(20)).await;
        }
    }
    let attempts = client.attempts(&repeated).await.unwrap();
    assert_eq!(
        (attempts[0].state(), attempts[0].decision()),
        (AttemptState::Unknown, Decision::IdempotentUnknown)
    );
    assert_eq!(orbit.expire_leases().await.unwrap(), 1);
    let task = client.wait(&repeated, LIMIT).await.unwrap();
    assert_eq!((task.state(), task.attempt_count), (TaskState::NeedsReview, 2));
    assert_eq!((ended(worker).await, calls.load(Ordering::SeqCst)), ((3, 3, 3), 3));
    orbit.shutdown().await.unwrap();
}

#[tokio::test]
async fn its_end_waits_for_no_worker() {
    let orbit = TestServer::start().await.unwrap();
    let client = orbit.client().unwrap();
    let (_worker, _) = start(&client);
    let id = submit(&client, 60_000, RecoverySafety::ReconcileOnly).await;
    until(&client, &id, |task| task.state() == TaskState::Running).await;
    let began = Instant::now();
    orbit.shutdown().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

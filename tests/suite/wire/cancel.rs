//! T50: the holder of a cancelled run is told, and its results are still taken.

use std::time::Duration;

use orbit::proto::{
    AttemptRef, CancelTaskRequest, Finish, Outcome, RecoverySafety, SubmitTaskRequest, TaskState,
    worker_request::Message as Ask,
};
use tokio::time::{Instant, sleep};

use super::{retried, submit, task};
use crate::support::{
    database::TestDatabase,
    on_every_database, on_mysql,
    server::Server,
    stream::{Stream, attempt_of, failed, finish, hold_applied, new_id},
    tcp_proxy::TcpProxy,
};

const LEASES: [&str; 2] = ["--lease-ms", "3000"];
const RENEW_EVERY: Duration = Duration::from_secs(1);

async fn cancel(server: &Server, task_id: &str) {
    let request = CancelTaskRequest {
        task_id: task_id.to_owned(),
        reason: "no longer wanted".to_owned(),
        request_id: new_id(),
    };
    let answer = server.tasks().cancel_task(request).await.expect("recorded").into_inner();
    assert!(answer.receipt.expect("a receipt").changed);
}

/// Gets a task running.
async fn running(server: &Server, worker: &mut Stream, safety: RecoverySafety) -> AttemptRef {
    let request = SubmitTaskRequest { recovery_safety: safety.into(), ..retried("1") };
    submit(server, request).await;
    let attempt = attempt_of(&worker.dispatch().await);
    hold_applied(&worker.start(&attempt).await);
    attempt
}

on_every_database! {
    async fn t50_a_cancel_is_told_at_once_and_with_each_renewal(database: TestDatabase) {
        let server = Server::start_with(&database, &LEASES).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        assert_eq!(u128::from(worker.welcome.renew_every_ms), RENEW_EVERY.as_millis());
        // Whatever stays unsure is not tried again after a cancel, idempotent or not.
        for (report, end, doubt) in [
            (Outcome::Failed, TaskState::Canceled, false),
            (Outcome::Unknown, TaskState::NeedsReview, true),
            (Outcome::Canceled, TaskState::Canceled, false),
            (Outcome::Succeeded, TaskState::Succeeded, false),
        ] {
            let attempt = running(&server, &mut worker, RecoverySafety::Idempotent).await;
            let began = Instant::now();
            cancel(&server, &attempt.task_id).await;
            let told = worker.canceled().await;
            assert!(began.elapsed() < RENEW_EVERY, "{:?}", began.elapsed());
            assert_eq!(told, (attempt.attempt_id.clone(), "no longer wanted".to_owned()));
            let renewed = worker.renew(vec![attempt.clone()]).await;
            let lease = renewed.leases[0].lease.expect("a lease");
            assert!(lease.valid && lease.cancel_requested, "{lease:?}");

            let message = match report {
                Outcome::Failed => Finish { retryable: true, ..failed(&attempt, "BUSY") },
                other => finish(&attempt, other),
            };
            hold_applied(&worker.finish(&message).await);
            let task = task(&server, &attempt.task_id).await;
            assert_eq!((task.state(), task.effect_uncertain), (end, doubt), "{report:?}");
        }
        worker.nothing_for(Duration::from_millis(300)).await;
        drop(worker);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

on_mysql! {
async fn t50_a_cancel_at_another_node_is_told_within_a_second() {
    let database = TestDatabase::mysql().await;
    let (a, b) = (Server::start(&database).await.with_queue().await, Server::start(&database).await);
    let mut worker = Stream::open(a.channel(), 1).await;
    for _ in 0..3 {
        let attempt = running(&a, &mut worker, RecoverySafety::ReconcileOnly).await;
        cancel(&b, &attempt.task_id).await;
        let recorded = Instant::now();
        let (attempt_id, _) = worker.canceled().await;
        assert!(recorded.elapsed() < Duration::from_secs(1), "{:?}", recorded.elapsed());
        assert_eq!(attempt_id, attempt.attempt_id);
        hold_applied(&worker.finish(&finish(&attempt, Outcome::Canceled)).await);
        assert_eq!(task(&b, &attempt.task_id).await.state(), TaskState::Canceled);
    }
    drop(worker);
    a.stop().await;
    b.stop().await;
    database.check_invariants().await;
    database.drop().await;
}

async fn t50_an_outage_of_the_database_during_renewals_takes_no_lease() {
    let database = TestDatabase::mysql().await;
    let proxy = TcpProxy::before(database.address()).await;
    let server = Server::start_on(&database.url_through(proxy.address()), &LEASES).await.with_queue().await;
    let mut worker = Stream::open(server.channel(), 1).await;
    let attempt = running(&server, &mut worker, RecoverySafety::ReconcileOnly).await;

    proxy.go_away();
    for _ in 0..3 {
        worker.send(Ask::Renew(orbit::proto::Renew { leases: vec![attempt.clone()] })).await;
        sleep(RENEW_EVERY).await;
    }
    sleep(Duration::from_millis(500)).await;
    proxy.come_back();
    let deadline = Instant::now() + Duration::from_secs(5);
    // What was asked during the outage is answered too, as refused.
    let mut renewed = worker.renew(vec![attempt.clone()]).await;
    while !renewed.leases[0].lease.is_some_and(|lease| lease.valid) {
        assert!(Instant::now() < deadline, "{renewed:?}");
        renewed = worker.renew(vec![attempt.clone()]).await;
    }
    cancel(&server, &attempt.task_id).await;
    assert_eq!(worker.canceled().await.0, attempt.attempt_id);
    hold_applied(&worker.finish(&finish(&attempt, Outcome::Canceled)).await);
    let task = task(&server, &attempt.task_id).await;
    assert_eq!((task.state(), task.attempt_count), (TaskState::Canceled, 1));
    drop(worker);
    server.stop().await;
    database.check_invariants().await;
    database.drop().await;
}
}

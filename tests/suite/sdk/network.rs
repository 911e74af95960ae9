//! Connections that lose what they carry, with and without saying so.

use std::time::Duration;

use orbit::{
    proto::{AttemptState, Decision, TaskState},
    sdk::{Client, Context, Failure},
};
use tokio::time::Instant;

use super::{Gate, LIMIT, attempts, counts, drained, end, start, submit, succeeded_at_once, until, worker};
use crate::support::{
    database::TestDatabase,
    on_every_database,
    rig::{HANDLER, QUEUE},
    server::Server,
    tcp_proxy::TcpProxy,
};

/// Leases under which a dead stream shows within seconds, and long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(9);

/// Which way carries nothing any more.
#[derive(Clone, Copy)]
enum Hole {
    ToServer,
    ToWorker,
}

/// A stream that goes silent without an end: the worker notices while its lease lives and goes on over another address,
/// with the same attempt.
async fn black_hole(database: TestDatabase, hole: Hole) {
    let lease_ms = LEASE.as_millis().to_string();
    let server = Server::start_with(&database, &["--lease-ms", &lease_ms]).await.with_queue().await;
    let proxy = TcpProxy::before(server.address()).await;
    let addresses = format!("http://{},{}", proxy.address(), server.url());
    let workers_client = Client::connect(addresses).expect("a client");
    let client = server.client();
    let gate = Gate::new();
    let worker = start(gate.worker(&workers_client));
    let id = submit(&client, &()).await;
    gate.called(1).await;
    match hole {
        Hole::ToServer => proxy.swallow_requests(),
        Hole::ToWorker => proxy.swallow_answers(),
    }
    let swallowed = Instant::now();
    gate.let_end(1);
    succeeded_at_once(&client, &id).await;
    // Whatever way the report went: the worker knows of its receipt.
    assert_eq!(counts(drained(worker).await), (1, 1, 0));
    assert!(swallowed.elapsed() < LEASE, "{:?}", swallowed.elapsed());
    assert_eq!(gate.calls(), 1);
    drop(proxy);
    end(server, database).await;
}

on_every_database! {
    async fn a_stream_that_carries_nothing_to_the_server_is_left_in_time(database: TestDatabase) {
        black_hole(database, Hole::ToServer).await;
    }

    async fn a_stream_that_carries_nothing_to_the_worker_is_left_in_time(database: TestDatabase) {
        black_hole(database, Hole::ToWorker).await;
    }

    // The first report is committed and its answer lost; the worker comes back during the backoff and asks for it. It is
    // the same receipt: no second one, no further attempt, no further call, and the backoff runs on.
    async fn an_acknowledgement_lost_during_the_backoff_changes_nothing(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let proxy = TcpProxy::before(server.address()).await;
        let workers_client = Client::connect(format!("http://{}", proxy.address())).expect("a client");
        let client = server.client();
        let gate = Gate::new();
        let busy_first = {
            let gate = gate.clone();
            move |context: Context, (): ()| {
                let gate = gate.clone();
                async move {
                    match gate.handle(context).await? {
                        1 => Err(Failure::retryable("BUSY")),
                        epoch => Ok(epoch),
                    }
                }
            }
        };
        let severed = start(worker(&workers_client, busy_first.clone()));
        let backoff = Duration::from_secs(20);
        let submit = client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(&()).max_attempts(3);
        let submitted = submit.initial_delay(backoff).send().await.expect("accepted");
        let id = submitted.task.task_id;
        gate.called(1).await;
        proxy.swallow_answers();
        gate.let_end(2);
        let waiting = until(&client, &id, "the report is committed", |task| {
            task.state() == TaskState::Waiting && task.attempt_count == 1
        })
        .await;
        let receipts = database.number("SELECT COUNT(*) FROM receipts").await;
        // It can only end when it has the receipt, so it has come back for it.
        proxy.cut();
        assert_eq!(counts(drained(severed).await), (1, 1, 0));
        let now = until(&client, &id, "the task", |_| true).await;
        assert_eq!(now, waiting);
        assert_eq!(database.number("SELECT COUNT(*) FROM receipts").await, receipts);
        assert_eq!(gate.calls(), 1);

        let next = start(worker(&client, busy_first));
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.attempt_count, gate.calls()), (TaskState::Succeeded, 2, 2));
        let history = attempts(&client, &id).await;
        assert_eq!((history[0].state(), history[0].decision()), (AttemptState::Failed, Decision::RetryableFailure));
        assert!(history.iter().all(|attempt| attempt.evidence.is_empty()));
        // Two starts and two reports, each with one receipt.
        assert_eq!(database.number("SELECT COUNT(*) FROM receipts").await, 4);
        assert_eq!(counts(drained(next).await), (1, 1, 0));
        drop(proxy);
        end(server, database).await;
    }
}

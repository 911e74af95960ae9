//! Servers that die under running handlers, and come back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join, stream};
use orbit::{
    proto::{RecoverySafety, TaskState},
    sdk::{Client, Context},
};
use tokio::time::sleep;

use super::{Gate, LIMIT, attempts, counts, drained, end, start, submit_many, succeeded_at_once, worker};
use crate::support::{
    eventually, on_every_database,
    rig::{HANDLER, QUEUE},
    server::Server,
};

on_every_database! {
    // `kill -9` in the middle of 50 handlers. Half of them end while nobody is there to hear it. The leases are longer
    // than the outage.
    async fn fifty_running_handlers_survive_the_servers_death(database: TestDatabase) {
        const HANDLERS: usize = 50;
        let mut server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let gate = Gate::new();
        let worker = start(gate.worker(&client).slots(50));
        let ids = submit_many(&client, HANDLERS).await;
        gate.called(50).await;
        server.kill();
        gate.let_end(HANDLERS / 2);
        sleep(Duration::from_secs(1)).await;
        server.restart().await;
        gate.let_end(HANDLERS / 2);
        for id in &ids {
            succeeded_at_once(&client, id).await;
        }
        assert_eq!(counts(drained(worker).await), (50, 50, 0));
        assert_eq!(gate.calls(), 50);
        end(server, database).await;
    }

    // Semantics §6: nobody judged meanwhile, so the outage is not the worker's fault. Its leases are unconfirmed, never
    // lost; no handler is told to stop; all results count, for the same attempts.
    async fn a_server_gone_for_longer_than_the_lease_takes_no_attempt_away(database: TestDatabase) {
        const HANDLERS: usize = 10;
        const LEASE: Duration = Duration::from_secs(4);
        let lease_ms = LEASE.as_millis().to_string();
        let mut server = Server::start_with(&database, &["--lease-ms", &lease_ms]).await.with_queue().await;
        let client = server.client();
        let gate = Gate::new();
        let (unconfirmed, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let handler = {
            let (gate, unconfirmed, told) = (gate.clone(), Arc::clone(&unconfirmed), Arc::clone(&told));
            move |context: Context, (): ()| {
                let (gate, unconfirmed, told) = (gate.clone(), Arc::clone(&unconfirmed), Arc::clone(&told));
                async move {
                    let run = gate.handle(context.clone());
                    let watch = async {
                        context.lease_unconfirmed().await;
                        unconfirmed.fetch_add(1, Ordering::SeqCst);
                        context.cancelled().await;
                        told.fetch_add(1, Ordering::SeqCst);
                        std::future::pending::<()>().await;
                    };
                    tokio::select! { result = run => result, () = watch => unreachable!("it never ends") }
                }
            }
        };
        let worker = start(worker(&client, handler));
        let ids = submit_many(&client, HANDLERS).await;
        gate.called(10).await;
        server.kill();
        eventually("all leases are unconfirmed", LIMIT, async || {
            (unconfirmed.load(Ordering::SeqCst) == 10).then_some(())
        })
        .await;
        // That was a little before the end of the leases by the database's clock.
        sleep(LEASE / 2).await;
        server.restart().await;
        // Long enough to see them lost, had the server taken them for lost.
        sleep(LEASE).await;
        gate.let_end(HANDLERS);
        for id in &ids {
            succeeded_at_once(&client, id).await;
        }
        assert_eq!(told.load(Ordering::SeqCst), 0);
        assert_eq!(counts(drained(worker).await), (10, 10, 0));
        assert_eq!(gate.calls(), 10);
        for id in &ids {
            assert!(attempts(&client, id).await[0].evidence.is_empty());
        }
        end(server, database).await;
    }

    // Forty times killed in the middle of the load, at another moment each time: no row is left that contradicts another or
    // that nobody looks at, every change has its event, and every task ends.
    async fn t36_whatever_killed_servers_leave_behind_is_found(database: TestDatabase) {
        const ROUNDS: u32 = 40;
        let short = ["--lease-ms", "1000", "--start-window-ms", "1000", "--sweep-interval-ms", "50"];
        let mut server = Server::start_with(&database, &short).await.with_queue().await;
        let client = server.client();
        let done_at_once = |context: Context, (): ()| async move { Ok(context.epoch()) };
        let worker = start(worker(&client, done_at_once).slots(64));
        let mut accepted = Vec::new();
        for round in 0..ROUNDS {
            // Its answers may be lost with the server; what it asks again has the same keys.
            let load = stream::iter(0..200).map(|_| patient(&client)).buffered(50).collect::<Vec<_>>();
            let death = async {
                sleep(Duration::from_millis(u64::from(round * 67 % 400))).await;
                server.kill();
                database.check_invariants().await;
                server.restart().await;
            };
            accepted.extend(join(load, death).await.0);
        }
        for id in &accepted {
            let task = client.wait(id, LIMIT).await.expect("settled");
            assert_eq!(task.state(), TaskState::Succeeded, "{task:?}");
        }
        let (rows, tasks) = ("SELECT COUNT(*) FROM tasks", i64::from(ROUNDS) * 200);
        assert_eq!(database.number(rows).await, tasks);
        for hot in ["leases", "ready", "cancels", "reviews"] {
            assert_eq!(database.number(&format!("SELECT COUNT(*) FROM {hot}")).await, 0, "{hot}");
        }
        let changes = "SELECT COUNT(*) FROM tasks t WHERE t.revision <> \
                       (SELECT COUNT(*) FROM events e WHERE e.task_id = t.task_id AND e.ordinal = 0)";
        assert_eq!(database.number(changes).await, 0);
        drained(worker).await;
        end(server, database).await;
    }
}

/// Submits a task that may be tried as often as its servers die; its id.
async fn patient(client: &Client) -> String {
    let submit =
        client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(&()).recovery_safety(RecoverySafety::Idempotent);
    submit.max_attempts(100).send().await.expect("accepted").task.task_id
}

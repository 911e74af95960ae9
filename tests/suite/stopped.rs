//! Server processes that stand still for longer than a lease, as on a machine that is suspended (S12): nobody judged
//! meanwhile, so when they go on, what runs keeps its leases, and only what has no worker any more is reclaimed.

use std::time::Duration;

use orbit::proto::{AttemptRef, Renew, worker_request::Message as Ask};
use tokio::time::{Instant, interval};

use crate::support::{
    eventually, on_every_database,
    server::{Server, submit_request},
    stream::{Stream, attempt_of, hold_applied, start, succeeded},
};

const LEASES: [&str; 4] = ["--lease-ms", "1000", "--sweep-interval-ms", "50"];
const LEASE_US: i64 = 1_000_000;
/// Three leases.
const STOPPED: Duration = Duration::from_secs(3);
/// How many attempts run at each server.
const RUNNING: u32 = 20;
/// How many of their workers live on.
const ALIVE: u32 = 15;

/// A server with a worker that holds attempts.
struct Node {
    server: Server,
    worker: Stream,
    alive: Vec<AttemptRef>,
}

impl Node {
    async fn new(server: Server) -> Self {
        let worker = Stream::open(server.channel(), RUNNING).await;
        Self { server, worker, alive: Vec::new() }
    }

    /// Gets attempts running. Some are never renewed.
    async fn run_many(&mut self) {
        let mut attempts = Vec::new();
        for _ in 0..RUNNING {
            attempts.push(attempt_of(&self.worker.dispatch().await));
        }
        // All at once: the first lease must not end before the last begins.
        let starts: Vec<_> = attempts.iter().map(start).collect();
        for start in &starts {
            self.worker.send(Ask::Start(start.clone())).await;
        }
        for start in &starts {
            hold_applied(&self.worker.answer(&start.message_id).await);
        }
        self.alive = attempts.drain(..ALIVE as usize).collect();
    }

    /// Reports what is alive, all at once, and holds that each report is applied.
    async fn finish_all(&mut self) {
        let reports: Vec<_> = self.alive.drain(..).map(|attempt| succeeded(&attempt, "1")).collect();
        for report in &reports {
            self.worker.send(Ask::Finish(report.clone())).await;
        }
        for report in &reports {
            hold_applied(&self.worker.answer(&report.message_id).await);
        }
    }
}

/// The workers live: each sends a renewal every quarter of a lease, whether or not somebody answers.
async fn renew_for(nodes: &[Node], lasts: Duration) {
    let end = Instant::now() + lasts;
    let mut ticks = interval(Duration::from_millis(250));
    while Instant::now() < end {
        ticks.tick().await;
        for node in nodes {
            node.worker.send(Ask::Renew(Renew { leases: node.alive.clone() })).await;
        }
    }
}

on_every_database! {
    async fn servers_that_stand_still_cost_no_attempt(database: TestDatabase) {
        let mut nodes = vec![Node::new(Server::start_with(&database, &LEASES).await.with_queue().await).await];
        if database.is_mysql() {
            nodes.push(Node::new(Server::start_with(&database, &LEASES).await).await);
        }
        let reclaimed = "SELECT COUNT(*) FROM tasks WHERE state = 7";
        let dead = i64::try_from(nodes.len()).expect("few") * i64::from(RUNNING - ALIVE);
        for round in 1..=2_u32 {
            for _ in 0..nodes.len() * RUNNING as usize {
                nodes[0].server.tasks().submit_task(submit_request("1")).await.expect("accepted");
            }
            for node in &mut nodes {
                node.run_many().await;
            }
            // Stopped at another moment each time, and so in the middle of something else.
            renew_for(&nodes, Duration::from_millis(400 + 13 * u64::from(round))).await;
            for node in &nodes {
                node.server.signal("-STOP");
            }
            renew_for(&nodes, STOPPED).await;
            assert_eq!(database.number(reclaimed).await, i64::from(round - 1) * dead, "nobody judges");
            let goes_on_at = database.number(&format!("SELECT {}", database.now())).await;
            for node in &nodes {
                node.server.signal("-CONT");
            }
            // By then every lease would have ended twice without its renewals.
            renew_for(&nodes, Duration::from_millis(2_500)).await;
            for node in &mut nodes {
                node.finish_all().await;
            }
            eventually("the dead workers' attempts end", Duration::from_secs(10), async || {
                (database.number(reclaimed).await == i64::from(round) * dead).then_some(())
            })
            .await;
            let early = format!(
                "SELECT COUNT(*) FROM events WHERE kind = 8 AND at >= {goes_on_at} AND at < {goes_on_at} + {LEASE_US}"
            );
            assert_eq!(database.number(&early).await, 0, "a whole new lease first");
        }
        assert_eq!(database.number("SELECT COUNT(*) FROM attempts WHERE epoch > 1").await, 0);
        for Node { server, worker, .. } in nodes {
            drop(worker);
            server.stop().await;
        }
        database.check_invariants().await;
        database.drop().await;
    }
}

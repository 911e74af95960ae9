//! Server processes that stand still for longer than a lease, as on a machine that is suspended (S12): nobody judged
//! meanwhile, so when they go on, what runs keeps its leases, and only what has no worker any more is reclaimed. And one
//! that stands still alone, with locks.

use std::time::Duration;

use orbit::proto::{AttemptRef, Renew, worker_request::Message as Ask};
use tokio::time::{Instant, interval, sleep};

use crate::support::{
    blocker::Blocker,
    database::TestDatabase,
    eventually, on_every_database, on_mysql,
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

on_mysql! {
// The database soon closes a lane's connection that does nothing, so lanes with nothing to do keep theirs.
async fn an_idle_node_keeps_its_connections() {
    let database = TestDatabase::mysql().await;
    let server = Server::start(&database).await.with_queue().await;
    for _ in 0..20 {
        server.tasks().submit_task(submit_request("1")).await.expect("accepted");
    }
    // A lane's connection is one that waits no longer than this.
    let lanes = "SELECT CAST(COALESCE(SUM(t.processlist_id), 0) AS SIGNED) FROM performance_schema.threads t \
                 JOIN performance_schema.variables_by_thread v ON v.thread_id = t.thread_id \
                 WHERE t.processlist_db = DATABASE() AND v.variable_name = 'wait_timeout' AND v.variable_value = '10'";
    let before = database.number(lanes).await;
    assert!(before > 0);
    sleep(Duration::from_secs(12)).await;
    assert_eq!(database.number(lanes).await, before);
    server.tasks().submit_task(submit_request("1")).await.expect("accepted");
    assert_eq!(database.number(lanes).await, before);
    server.stop().await;
    database.check_invariants().await;
    database.drop().await;
}

// A node that is frozen in the middle of a transaction holds its locks; the database soon takes them away.
async fn a_node_frozen_with_locks_does_not_keep_its_attempts_from_the_others() {
    let database = TestDatabase::mysql().await;
    let frozen = Server::start(&database).await.with_queue().await;
    let other = Server::start(&database).await;
    let mut worker = Stream::open(frozen.channel(), 1).await;
    frozen.tasks().submit_task(submit_request("1")).await.expect("accepted");
    let attempt = attempt_of(&worker.dispatch().await);
    hold_applied(&worker.start(&attempt).await);
    let report = succeeded(&attempt, "1");

    // It has locked the task and waits for the events when it stops; they are free again when it no longer sees it.
    let blocker = Blocker::new(&database, "LOCK TABLES events WRITE", "UNLOCK TABLES").await;
    worker.send(Ask::Finish(report.clone())).await;
    let waiting = "SELECT COUNT(*) FROM performance_schema.threads WHERE processlist_db = DATABASE() \
                   AND processlist_state = 'Waiting for table metadata lock'";
    eventually("it waits", Duration::from_secs(5), async || {
        (database.number(waiting).await == 1).then_some(())
    })
    .await;
    frozen.signal("-STOP");
    blocker.release().await;

    // The worker reports to the other node.
    let began = Instant::now();
    let mut elsewhere = Stream::open(other.channel(), 1).await;
    let applied = eventually("the report is taken", Duration::from_secs(30), async || {
        Some(elsewhere.finish(&report).await).filter(|answer| answer.receipt.is_some())
    })
    .await;
    println!("taken after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert!(!applied.replayed);
    hold_applied(&applied);

    frozen.signal("-CONT");
    // Whatever it says of the message that it was stopped with, the next one it answers.
    let late = worker.answer(&report.message_id).await;
    assert!(late.receipt.is_none() || late.replayed, "{late:?}");
    let late = eventually("an answer", Duration::from_secs(10), async || {
        Some(worker.finish(&report).await).filter(|answer| answer.receipt.is_some())
    })
    .await;
    assert_eq!((late.receipt, late.replayed), (applied.receipt, true));
    drop((worker, elsewhere));
    for server in [frozen, other] {
        server.stop().await;
    }
    database.check_invariants().await;
    database.drop().await;
}
}

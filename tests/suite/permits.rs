//! A random run with nodes that die (S22): at every moment the permits are those of LEASED and RUNNING tasks, never more
//! than `max_running`, and the hot tables agree with the tasks. Looked at from outside, each time in one statement.

use std::time::Duration;

use orbit::{
    domain::{queue::QueueChange, report::Report},
    engine::{Engine, EngineOptions, SeatEvent},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::support::{database::TestDatabase, eventually, node::Node, on_every_database, rig::*};

const MAX_RUNNING: u32 = 5;
const SEED: u64 = 0x05AF_E7E5_7A11;

/// A small generator, so that a run can be told by its seed.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    /// 0 to `sides` - 1.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides.max(1)
    }

    fn another(&mut self) -> Self {
        Self(self.0.rotate_left(11) ^ (self.roll(1 << 30) + 1))
    }
}

fn hasty() -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(1),
        start_window: Duration::from_millis(500),
        sweep_interval: Duration::from_millis(50),
        poll_interval: Duration::from_millis(50),
        ..options()
    }
}

/// Takes attempts and does with them what the dice say: also forgets them, or sits on them.
async fn whimsical_worker(engine: Engine, mut dice: Dice) {
    let mut worker = TestWorker::sit(&engine, 3).await;
    while let Some(event) = worker.events.recv().await {
        let SeatEvent::Dispatch(dispatch) = event else { continue };
        let attempt = dispatch.attempt;
        if dice.roll(12) == 0 {
            continue;
        }
        if worker.start_as(attempt, message_id()).await.is_err() {
            continue;
        }
        sleep(Duration::from_millis(dice.roll(60))).await;
        let report: Report = match dice.roll(10) {
            0 => continue,
            1 => unknown(),
            2..=4 => failed(true),
            5 => failed(false),
            _ => succeeded(),
        };
        let id = message_id();
        let _ = worker.finish_as(attempt, id, report.clone()).await;
        if dice.roll(3) == 0 {
            let _ = worker.finish_as(attempt, id, report).await;
        }
    }
}

async fn honest_worker(mut worker: TestWorker) {
    while let Some(event) = worker.events.recv().await {
        if let SeatEvent::Dispatch(dispatch) = event
            && worker.start_as(dispatch.attempt, message_id()).await.is_ok()
        {
            let _ = worker.finish_as(dispatch.attempt, message_id(), succeeded()).await;
        }
    }
}

async fn whimsical_producer(engine: Engine, mut dice: Dice) {
    loop {
        let mut submission = submission();
        if dice.roll(2) == 0 {
            idempotent(&mut submission);
        }
        if let Ok(accepted) = engine.submit(submission).await
            && dice.roll(8) == 0
        {
            sleep(Duration::from_millis(dice.roll(40))).await;
            let _ = engine.cancel_task(accepted.task_id(), String::new(), request()).await;
        }
        sleep(Duration::from_millis(dice.roll(80))).await;
    }
}

async fn lively(url: &str, dice: &mut Dice) -> Node {
    let node = Node::start(url, hasty()).await;
    for _ in 0..3 {
        node.spawn(whimsical_worker(node.engine(), dice.another()));
    }
    node.spawn(whimsical_producer(node.engine(), dice.another()));
    node
}

/// Each is one statement, so one moment; each counts what must not be.
async fn look(database: &TestDatabase) {
    let broken = [
        ("too many permits", "SELECT COUNT(*) FROM queues q WHERE q.max_running > 0 AND \
          (SELECT COUNT(*) FROM leases l WHERE l.queue = q.id) > q.max_running".to_owned()),
        ("LEASED or RUNNING without lease, or the reverse", "SELECT COUNT(*) FROM tasks t LEFT JOIN leases l \
          ON l.task_id = t.task_id WHERE (t.state IN (2, 3)) <> (l.task_id IS NOT NULL)".to_owned()),
        ("a lease of another attempt, queue or state", "SELECT COUNT(*) FROM leases l \
          JOIN tasks t ON t.task_id = l.task_id JOIN routes r ON r.id = t.route WHERE l.epoch <> t.attempt_count \
          OR l.queue <> r.queue OR (l.started_at IS NOT NULL) <> (t.state = 3)".to_owned()),
        ("WAITING without ready, or the reverse", "SELECT COUNT(*) FROM tasks t LEFT JOIN ready w \
          ON w.task_id = t.task_id WHERE (t.state = 1) <> (w.task_id IS NOT NULL)".to_owned()),
        ("two ready rows, or another moment", "SELECT COUNT(*) FROM ready w JOIN tasks t ON t.task_id = w.task_id \
          WHERE w.available_at <> t.available_at OR w.route <> t.route".to_owned()),
        ("review without its row, or the reverse", "SELECT COUNT(*) FROM tasks t LEFT JOIN reviews v \
          ON v.task_id = t.task_id WHERE (t.state = 7) <> (v.task_id IS NOT NULL)".to_owned()),
        ("a cancel to tell that is none", "SELECT COUNT(*) FROM tasks t LEFT JOIN cancels c \
          ON c.task_id = t.task_id WHERE (t.state = 3 AND t.cancel_requested_at IS NOT NULL) \
          <> (c.task_id IS NOT NULL)".to_owned()),
        ("attempts that are not counted", "SELECT COUNT(*) FROM tasks t WHERE t.attempt_count <> \
          (SELECT COUNT(*) FROM attempts a WHERE a.task_id = t.task_id) + \
          (SELECT COUNT(*) FROM leases l WHERE l.task_id = t.task_id)".to_owned()),
        ("a change without event", "SELECT COUNT(*) FROM tasks t WHERE t.revision <> \
          (SELECT COUNT(*) FROM events e WHERE e.task_id = t.task_id AND e.ordinal = 0)".to_owned()),
        ("more attempts than the budget", "SELECT COUNT(*) FROM tasks WHERE attempt_count > max_attempts".to_owned()),
        ("two starts of one attempt", "SELECT COUNT(*) FROM (SELECT task_id, epoch FROM events WHERE kind = 3 \
          GROUP BY task_id, epoch HAVING COUNT(*) > 1) AS d".to_owned()),
    ];
    for (what, sql) in broken {
        assert_eq!(database.number(&sql).await, 0, "{what}");
    }
}

async fn random_run(database: TestDatabase, nodes: usize, lasts: Duration) {
    let mut dice = Dice(SEED);
    let first = Node::start(&database.url, hasty()).await;
    let engine = first.engine();
    engine.create_queue(QUEUE.to_owned(), MAX_RUNNING, request()).await.expect("a queue");
    drop(engine);
    first.kill().await;
    let mut alive = Vec::new();
    for _ in 0..nodes {
        alive.push(lively(&database.url, &mut dice).await);
    }
    let end = Instant::now() + lasts;
    let (mut looks, mut deaths) = (0, 0);
    let mut die_at = Instant::now() + Duration::from_millis(700);
    while Instant::now() < end {
        look(&database).await;
        looks += 1;
        if Instant::now() >= die_at {
            let victim = usize::try_from(dice.roll(nodes as u64)).expect("small");
            alive.swap_remove(victim).kill().await;
            alive.push(lively(&database.url, &mut dice).await);
            deaths += 1;
            die_at = Instant::now() + Duration::from_millis(300 + dice.roll(900));
        }
        sleep(Duration::from_millis(10)).await;
    }
    for node in alive {
        node.kill().await;
    }
    look(&database).await;

    // Afterwards an honest node brings everything to its end, and no permit is left.
    let engine = Engine::start(crate::support::node::open(&database.url).await, hasty()).await;
    let rig = Rig { engine: engine.expect("started"), database };
    let unlimited = QueueChange::SetMaxRunning { max_running: 0 };
    rig.engine.change_queue(QUEUE.to_owned(), unlimited, None, request()).await.expect("changed");
    let mut workers = JoinSet::new();
    for _ in 0..8 {
        workers.spawn(honest_worker(rig.worker(64).await));
    }
    eventually("all ends", Duration::from_mins(1), || async {
        (rig.database.number("SELECT COUNT(*) FROM tasks WHERE state < 4").await == 0).then_some(())
    })
    .await;
    workers.shutdown().await;
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
    look(&rig.database).await;
    let tasks = rig.database.number("SELECT COUNT(*) FROM tasks").await;
    let retried = rig.database.number("SELECT COUNT(*) FROM tasks WHERE attempt_count > 1").await;
    assert!(tasks > 50 && retried > 5 && deaths > 3 && looks > 20, "{tasks} {retried} {deaths} {looks}");
    rig.end().await;
}

on_every_database! {
    async fn permits_and_hot_tables_are_right_at_every_moment_of_a_random_run(database: TestDatabase) {
        let nodes = if database.is_mysql() { 3 } else { 1 };
        random_run(database, nodes, Duration::from_mins(1)).await;
    }
}

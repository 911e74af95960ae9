//! Leases and reclaiming: T20, T23, T36, T37.

use std::time::Duration;

use futures_util::future::join_all;
use orbit::{
    domain::{event::EventKind, queue::QueueChange, receipt::Disposition, task::StateName},
    engine::{Engine, EngineOptions, SeatEvent},
};
use tokio::{task::JoinSet, time::sleep};

use crate::support::{
    blocker::Blocker,
    eventually,
    node::{self, Node},
    on_every_database,
    rig::*,
};

const LIMIT: Duration = Duration::from_secs(15);

fn quick() -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(1),
        start_window: Duration::from_secs(1),
        sweep_interval: Duration::from_millis(50),
        ..EngineOptions::default()
    }
}

async fn work(mut worker: TestWorker) {
    while let Some(event) = worker.events.recv().await {
        if let SeatEvent::Dispatch(dispatch) = event
            && worker.start_as(dispatch.attempt, message_id()).await.is_ok()
        {
            let _ = worker.finish_as(dispatch.attempt, message_id(), succeeded()).await;
        }
    }
}

async fn all_done(rig: &Rig) {
    eventually("all tasks end", LIMIT, || async {
        (rig.database.number("SELECT COUNT(*) FROM tasks WHERE state < 4").await == 0).then_some(())
    })
    .await;
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
}

on_every_database! {
    // Start and finish sent back to back, without waiting: no finish is overwritten by its start.
    async fn t23_a_finish_right_behind_its_start_is_applied(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(32).await;
        for _ in 0..5 {
            join_all((0..30).map(|_| rig.submit(|_| {}))).await;
            let mut attempts = Vec::new();
            for _ in 0..30 {
                attempts.push(worker.next().await.attempt);
            }
            let pairs = attempts.iter().map(|attempt| async {
                tokio::join!(biased; worker.start(*attempt), worker.finish(*attempt, succeeded()))
            });
            for ((), receipt) in join_all(pairs).await {
                assert_eq!(receipt.disposition, Disposition::Applied);
            }
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks WHERE state = 4").await, 150);
        rig.end().await;
    }

    // The kind of T20: nobody holds the work and nobody knows. Here the session leaves while its claim is under way.
    async fn t20_a_claim_for_a_session_that_has_left_spends_no_budget(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let id = rig.submit(|s| s.policy.max_attempts = 1).await;
        for _ in 0..5 {
            let blocker = Blocker::of_queues(&rig.database).await;
            let gone = rig.worker(1).await;
            eventually("its claim is under way", LIMIT, || async { (gone.seat.in_flight() > 0).then_some(()) })
                .await;
            drop(gone);
            blocker.release().await;
            // Whatever was under way is done before a change of the queue.
            let limit = QueueChange::SetMaxRunning { max_running: 0 };
            rig.engine.change_queue(QUEUE.to_owned(), limit, None, request()).await.expect("changed");
            assert_eq!(rig.kinds(id).await, [EventKind::Accepted]);
        }
        let mut worker = rig.worker(1).await;
        let (attempt, receipt) = worker.run(succeeded()).await;
        assert_eq!((attempt.epoch, receipt.task_state), (1, StateName::Succeeded));
        rig.end().await;
    }

    async fn t36_whatever_a_crash_leaves_behind_is_found(database: TestDatabase) {
        let node = Node::start(&database.url, quick()).await;
        node.engine().create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        node.kill().await;
        for round in 0..6 {
            let node = Node::start(&database.url, quick()).await;
            let engine = node.engine();
            for _ in 0..2 {
                node.spawn(work(TestWorker::sit(&engine, 16).await));
            }
            node.spawn(async move {
                loop {
                    let mut submission = submission();
                    idempotent(&mut submission);
                    let _ = engine.submit(submission).await;
                }
            });
            // In the middle of the load, at another moment each time.
            sleep(Duration::from_millis(150 + 37 * round)).await;
            node.kill().await;
            let sql = "SELECT COUNT(*) FROM tasks t LEFT JOIN leases l ON l.task_id = t.task_id \
                       WHERE (t.state IN (2, 3)) <> (l.task_id IS NOT NULL)";
            assert_eq!(database.number(sql).await, 0);
        }
        let engine = Engine::start(node::open(&database.url).await, quick()).await.expect("started");
        let rig = Rig { engine, database };
        let mut workers = JoinSet::new();
        for _ in 0..4 {
            workers.spawn(work(rig.worker(64).await));
        }
        all_done(&rig).await;
        workers.shutdown().await;
        let done = rig.database.number("SELECT COUNT(*) FROM tasks WHERE state = 4").await;
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks").await, done);
        assert!(done > 5, "{done}");
        rig.end().await;
    }

    async fn t37_a_dead_workers_permit_comes_back_once(database: TestDatabase) {
        let rig = Rig::new(database, quick()).await;
        let limit = QueueChange::SetMaxRunning { max_running: 1 };
        rig.engine.change_queue(QUEUE.to_owned(), limit, None, request()).await.expect("changed");
        let other = if rig.database.is_mysql() {
            Some(Engine::start(rig.database.open().await, quick()).await.expect("started"))
        } else {
            None
        };
        let mut dead = rig.worker(1).await;
        let first = rig.submit(|_| {}).await;
        let lost = dead.next().await.attempt;
        dead.start(lost).await;
        let second = rig.submit(|_| {}).await;
        let third = rig.submit(|_| {}).await;
        let mut worker = rig.worker(4).await;
        worker.nothing_for(Duration::from_millis(500)).await;
        drop(dead);
        // Its lease ends: the first waits for a person and holds no permit; one more runs, not two.
        let attempt = worker.next().await.attempt;
        assert_eq!(attempt.task_id, second);
        assert_eq!(rig.task(first).await.task.state.name(), StateName::NeedsReview);
        worker.start(attempt).await;
        worker.nothing_for(Duration::from_millis(200)).await;
        // A finish whose answer was lost is sent again and again: one permit comes back.
        let finish_id = message_id();
        let repeats = join_all((0..6).map(|_| worker.finish_as(attempt, finish_id, failed(true)))).await;
        assert_eq!(repeats.iter().filter(|r| matches!(r, Ok((_, false)))).count(), 1);
        let sweeps = async {
            for _ in 0..20 {
                rig.engine.sweep().await.expect("swept");
                if let Some(other) = &other {
                    other.sweep().await.expect("swept");
                }
                assert!(rig.database.number("SELECT COUNT(*) FROM leases").await <= 1);
            }
        };
        let (next, ()) = tokio::join!(worker.next(), sweeps);
        assert!([second, third].contains(&next.attempt.task_id));
        worker.start(next.attempt).await;
        worker.finish(next.attempt, succeeded()).await;
        let third_one = worker.next().await.attempt;
        worker.start(third_one).await;
        worker.finish(third_one, succeeded()).await;
        for id in [second, third] {
            let kinds = rig.kinds(id).await;
            assert_eq!(kinds.iter().filter(|k| **k == EventKind::Succeeded).count(), 1);
        }
        if let Some(other) = other {
            other.shutdown().await;
        }
        rig.end().await;
    }
}

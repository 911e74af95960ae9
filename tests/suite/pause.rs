//! Queues (S22): what a pause stops and what it lets go on; permits are never more than `max_running`.

use std::{sync::Arc, time::Duration};

use orbit::{
    domain::{
        ids::{SessionId, TaskId},
        queue::{Queue, QueueChange},
        task::StateName,
    },
    engine::{Engine, EngineOptions, SeatEvent, SeatRequest, Session},
    store::{Database, DatabaseOptions},
};
use tokio::{sync::Barrier, task::JoinSet, time::timeout};

use crate::support::{database::TestDatabase, eventually, on_every_database, proxy::Proxy, rig::*};

const LIMIT: Duration = Duration::from_secs(10);

async fn change(engine: &Engine, change: QueueChange) -> Queue {
    engine.change_queue(QUEUE.to_owned(), change, None, request()).await.expect("changed")
}

fn limited(max_running: u32) -> QueueChange {
    QueueChange::SetMaxRunning { max_running }
}

async fn submit_many(engine: &Engine, count: usize) -> Vec<TaskId> {
    let answers = (0..count).map(|_| engine.submit(submission()));
    let answers = futures_util::future::join_all(answers).await;
    answers.into_iter().map(|a| a.expect("accepted").task_id()).collect()
}

/// Claims that were committed later than the queue's last change.
async fn claims_since_the_change(database: &TestDatabase) -> i64 {
    let sql = "SELECT COUNT(*) FROM events e JOIN queues q ON e.at > q.updated_at WHERE e.kind = 2";
    database.number(sql).await
}

/// Takes everything that arrives, starts it and finishes it, for ever.
async fn work(mut worker: TestWorker) {
    while let Some(event) = worker.events.recv().await {
        if let SeatEvent::Dispatch(dispatch) = event
            && worker.start_as(dispatch.attempt, message_id()).await.is_ok()
        {
            let _ = worker.finish_as(dispatch.attempt, message_id(), succeeded()).await;
        }
    }
}

/// Pauses in the middle of many claims, over and over; counts what came after each pause.
async fn pause_among_claims(rig: Rig, engines: Vec<Engine>, rounds: usize) {
    let mut workers = JoinSet::new();
    for engine in &engines {
        for _ in 0..4 {
            workers.spawn(work(TestWorker::sit(engine, 4).await));
        }
    }
    let mut claimed_before = 0;
    for round in 0..rounds {
        let ids = submit_many(&rig.engine, 40);
        let pause = async {
            let wanted = claimed_before + 5 + i64::try_from(round).expect("small");
            eventually("some claims", LIMIT, || async {
                let claimed = rig.database.number("SELECT COUNT(*) FROM events WHERE kind = 2").await;
                (claimed >= wanted).then_some(())
            })
            .await;
            change(&engines[round % engines.len()], QueueChange::Pause).await
        };
        let (_, queue) = tokio::join!(ids, pause);
        assert!(queue.paused);
        // What had been claimed goes on; nothing else is, though all wait to be.
        eventually("what was claimed ends", LIMIT, || async {
            (rig.database.number("SELECT COUNT(*) FROM leases").await == 0).then_some(())
        })
        .await;
        assert_eq!(claims_since_the_change(&rig.database).await, 0, "no claim after the pause");
        claimed_before = rig.database.number("SELECT COUNT(*) FROM events WHERE kind = 2").await;
        change(&engines[(round + 1) % engines.len()], QueueChange::Resume).await;
    }
    eventually("after the resume all go on", Duration::from_secs(40), || async {
        (rig.database.number("SELECT COUNT(*) FROM tasks WHERE state <> 4").await == 0).then_some(())
    })
    .await;
    workers.shutdown().await;
    for engine in engines.iter().skip(1) {
        engine.shutdown().await;
    }
    drop(engines);
    rig.end().await;
}

/// Looks from outside, in one statement each time, until told to stop.
async fn permits_stay_within(database: &TestDatabase, max_running: i64) -> i64 {
    let held = database.number("SELECT COUNT(*) FROM leases").await;
    assert!(held <= max_running, "{held} permits of {max_running}");
    held
}

on_every_database! {
    async fn no_claim_commits_after_the_pause(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let engines = vec![rig.engine.clone()];
        pause_among_claims(rig, engines, 5).await;
    }

    async fn due_retries_wait_while_paused_and_go_on_after_it(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        let id = rig.submit(|_| {}).await;
        worker.run(failed(true)).await;
        change(&rig.engine, QueueChange::Pause).await;
        let fresh = rig.submit(|_| {}).await;
        worker.nothing_for(Duration::from_millis(500)).await;
        let task = rig.task(id).await.task;
        assert_eq!((task.state.name(), task.attempt_count), (StateName::Waiting, 1));
        let resumed = change(&rig.engine, QueueChange::Resume).await;
        let mut taken = vec![worker.next().await, worker.next().await];
        taken.sort_by_key(|d| d.attempt.task_id);
        let epochs: Vec<_> = taken.iter().map(|d| (d.attempt.task_id, d.attempt.epoch)).collect();
        assert_eq!(epochs, [(id, 2), (fresh, 1)]);
        let sql = format!("SELECT COUNT(*) FROM leases WHERE leased_at >= {}", resumed.updated_at.micros());
        assert_eq!(rig.database.number(&sql).await, 2);
        for dispatch in taken {
            worker.start(dispatch.attempt).await;
            worker.finish(dispatch.attempt, succeeded()).await;
        }
        rig.end().await;
    }

    async fn a_paused_queue_still_ends_what_time_ends(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        change(&rig.engine, QueueChange::Pause).await;
        let id = rig.submit(|s| s.policy.task_timeout_ms = 300).await;
        eventually("it fails", LIMIT, || async {
            (rig.task(id).await.task.state.name() == StateName::Failed).then_some(())
        }).await;
        rig.end().await;
    }

    async fn permits_never_pass_the_limit_and_all_work_is_done(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        change(&rig.engine, limited(3)).await;
        let mut workers = JoinSet::new();
        for _ in 0..4 {
            workers.spawn(work(rig.worker(8).await));
        }
        submit_many(&rig.engine, 100).await;
        eventually("all are done", LIMIT, || {
            let database = &rig.database;
            async move {
                permits_stay_within(database, 3).await;
                (database.number("SELECT COUNT(*) FROM tasks WHERE state <> 4").await == 0).then_some(())
            }
        }).await;
        // The events tell of every moment in between as well.
        let sql = "SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM attempts a JOIN attempts b \
                   ON b.leased_at <= a.leased_at AND b.ended_at > a.leased_at GROUP BY a.attempt_id) AS overlaps";
        let most = rig.database.number(sql).await;
        assert!((1..=3).contains(&most), "{most} at once");
        workers.shutdown().await;
        rig.end().await;
    }

    async fn two_handlers_of_a_queue_share_its_one_permit(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        change(&rig.engine, QueueChange::SetMaxRunning { max_running: 1 }).await;
        change(&rig.engine, QueueChange::Pause).await;
        rig.submit(|_| {}).await;
        rig.submit(|s| s.handler = "another".to_owned()).await;
        // Both due at once, for one session that has room for both.
        let session_id = SessionId(uuid::Uuid::new_v4());
        let (_seat, mut events) = rig
            .engine
            .take_seat(SeatRequest {
                session: Session { session_id, ..rig.worker(1).await.session.clone() },
                queue_ids: vec![QUEUE.to_owned()],
                handlers: [HANDLER.0, "another"].map(|handler| (handler.to_owned(), HANDLER.1.to_owned())).into(),
                max_in_flight: 4,
                held: Vec::new(),
            })
            .await
            .expect("a seat");
        change(&rig.engine, QueueChange::Resume).await;
        assert!(events.recv().await.is_some());
        let second = timeout(Duration::from_millis(500), events.recv()).await;
        assert!(second.is_err(), "{second:?}");
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 1);
        rig.end().await;
    }

    async fn lowering_the_limit_takes_nothing_away_and_holds_from_then_on(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(8).await;
        submit_many(&rig.engine, 8).await;
        let mut running = Vec::new();
        for _ in 0..4 {
            running.push(worker.next().await.attempt);
        }
        for _ in 0..4 {
            running.push(worker.next().await.attempt);
        }
        for attempt in &running {
            worker.start(*attempt).await;
        }
        change(&rig.engine, limited(2)).await;
        submit_many(&rig.engine, 4).await;
        assert!(rig.engine.renew(&running).await.expect("renewed").iter().all(|l| l.valid));
        // Eight hold permits: six must end before one more is claimed.
        for attempt in running.drain(..6) {
            worker.finish(attempt, succeeded()).await;
            assert_eq!(rig.database.number("SELECT COUNT(*) FROM ready").await, 4);
        }
        worker.nothing_for(Duration::from_millis(300)).await;
        worker.finish(running.remove(0), succeeded()).await;
        let next = worker.next().await.attempt;
        assert_eq!(permits_stay_within(&rig.database, 2).await, 2);
        // 0 means unlimited.
        change(&rig.engine, limited(0)).await;
        for _ in 0..3 {
            running.push(worker.next().await.attempt);
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 5);
        worker.start(next).await;
        worker.finish(next, succeeded()).await;
        rig.end().await;
    }

    async fn neither_waiting_for_a_retry_nor_review_holds_a_permit(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        change(&rig.engine, limited(1)).await;
        let mut worker = rig.worker(4).await;
        rig.submit(slow_retry).await;
        worker.run(failed(true)).await;
        let review = rig.submit(slow_retry).await;
        worker.run(unknown()).await;
        assert_eq!(rig.task(review).await.task.state.name(), StateName::NeedsReview);
        rig.submit(|_| {}).await;
        worker.run(succeeded()).await;
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
        rig.end().await;
    }
}

mod mysql_nodes {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn no_claim_of_any_node_commits_after_the_pause() {
        let rig = Rig::new(TestDatabase::mysql().await, without_reaper()).await;
        let other = Engine::start(rig.database.open().await, without_reaper()).await.expect("started");
        let engines = vec![rig.engine.clone(), other];
        pause_among_claims(rig, engines, 6).await;
    }

    // Both have seen an unlimited queue and are about to look at it again, when it becomes limited.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_limit_set_in_the_middle_of_two_claims_holds() {
        let database = TestDatabase::mysql().await;
        let proxy = Proxy::before(&database.url).await;
        let url = proxy.url(&database.url);
        let rig = Rig::new(database, without_reaper()).await;
        submit_many(&rig.engine, 4).await;
        let (mut engines, mut workers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let opened = Database::open(&url, DatabaseOptions::default()).await.expect("opened");
            engines.push(Engine::start(opened, without_reaper()).await.expect("started"));
        }
        proxy.hold("FOR SHARE");
        for engine in &engines {
            workers.push(TestWorker::sit(engine, 1).await);
        }
        eventually("both are in the middle", LIMIT, || async { (proxy.held() == 2).then_some(()) }).await;
        change(&rig.engine, limited(1)).await;
        proxy.let_go();
        // One of them gets the permit, then or with its next look.
        eventually("a claim", LIMIT, || async {
            (permits_stay_within(&rig.database, 1).await == 1).then_some(())
        })
        .await;
        for engine in &engines {
            // Whatever was under way is done before a change of the queue.
            change(engine, limited(1)).await;
        }
        assert_eq!(permits_stay_within(&rig.database, 1).await, 1);
        drop(workers);
        for engine in &engines {
            engine.shutdown().await;
        }
        drop(engines);
        rig.end().await;
        proxy.end().await;
    }

    // The limit counts over all nodes: two of them want the last permit at a barrier.
    #[tokio::test(flavor = "multi_thread")]
    async fn two_nodes_share_one_permit() {
        let rig = Rig::new(TestDatabase::mysql().await, without_reaper()).await;
        let fast = EngineOptions { poll_interval: Duration::from_millis(20), ..without_reaper() };
        let other = Engine::start(rig.database.open().await, fast).await.expect("started");
        change(&rig.engine, limited(1)).await;
        for _ in 0..15 {
            let barrier = Arc::new(Barrier::new(2));
            submit_many(&rig.engine, 2).await;
            let mut seats = JoinSet::new();
            for engine in [rig.engine.clone(), other.clone()] {
                let barrier = barrier.clone();
                seats.spawn(async move {
                    barrier.wait().await;
                    let mut worker = TestWorker::sit(&engine, 4).await;
                    let first = timeout(Duration::from_millis(150), worker.events.recv()).await;
                    (worker, first.ok().flatten())
                });
            }
            let sat = seats.join_all().await;
            let dispatched = sat.iter().filter(|(_, first)| first.is_some()).count();
            assert_eq!(permits_stay_within(&rig.database, 1).await, 1);
            assert!(dispatched <= 1);
            // Both tasks end, one after the other, wherever they go.
            let mut workers = JoinSet::new();
            for (worker, first) in sat {
                workers.spawn(async move {
                    if let Some(SeatEvent::Dispatch(dispatch)) = first {
                        worker.start(dispatch.attempt).await;
                        worker.finish(dispatch.attempt, succeeded()).await;
                    }
                    work(worker).await;
                });
            }
            eventually("both are done", LIMIT, || async {
                permits_stay_within(&rig.database, 1).await;
                (rig.database.number("SELECT COUNT(*) FROM tasks WHERE state <> 4").await == 0).then_some(())
            })
            .await;
            workers.shutdown().await;
        }
        other.shutdown().await;
        drop(other);
        rig.end().await;
    }
}

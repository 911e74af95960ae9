//! Outages (S12): what is nobody's fault costs nobody an attempt. The lease is 1 s throughout; every outage is longer.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use orbit::{
    domain::{
        event::EventKind,
        ids::{AttemptRef, TaskId},
        receipt::{Disposition, Receipt},
        task::StateName,
        time::Moment,
    },
    engine::{Engine, EngineOptions, Failure},
    store::{Database, DatabaseOptions},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::support::{
    database::TestDatabase, eventually, node::Node, on_every_database, on_mysql, proxy::Proxy, rig::*,
};

const OUTAGE: Duration = Duration::from_millis(2_500);
const LIMIT: Duration = Duration::from_secs(15);

fn short_lease() -> EngineOptions {
    EngineOptions { lease: Duration::from_secs(1), ..options() }
}

/// Starts attempts, half of whose workers will live.
async fn run_many(engine: &Engine, worker: &mut TestWorker, count: usize) -> Vec<AttemptRef> {
    let submits = (0..count).map(|_| {
        let mut submission = submission();
        slow_retry(&mut submission);
        engine.submit(submission)
    });
    let accepted = join_all(submits).await;
    assert!(accepted.iter().all(Result::is_ok));
    let mut attempts = Vec::new();
    for _ in 0..count {
        attempts.push(worker.next().await.attempt);
    }
    // All at once: the first lease must not end before the last begins.
    join_all(attempts.iter().map(|a| worker.start(*a))).await;
    attempts
}

/// A worker that lives: renews every third of the lease, whatever the answers, until it is told to report.
async fn renew_for_ever(engine: Engine, attempts: Vec<AttemptRef>) {
    loop {
        let _ = engine.renew(&attempts).await;
        sleep(Duration::from_millis(250)).await;
    }
}

/// Reports until it gets an answer, each time with the same message.
async fn finish_at_last(worker: &TestWorker, attempt: AttemptRef) -> Receipt {
    let message = orbit::domain::report::Finish { message_id: message_id(), attempt, report: succeeded() };
    let deadline = Instant::now() + LIMIT;
    loop {
        match worker.engine.finish_attempt(message.clone(), &worker.session).await {
            Ok(reply) => break reply.result.expect("taken").0,
            Err(Failure::DatabaseUnavailable { .. } | Failure::OutcomeUnknown)
                if Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(50)).await;
            }
            Err(failure) => panic!("{failure:?}"),
        }
    }
}

async fn database_time(database: &TestDatabase) -> Moment {
    Moment::from_micros(database.number(&format!("SELECT {}", database.now())).await)
}

/// All of these ended with their own report on their first attempt.
async fn all_applied(worker: &TestWorker, attempts: &[AttemptRef]) {
    let receipts = join_all(attempts.iter().map(|a| finish_at_last(worker, *a))).await;
    for receipt in receipts {
        assert_eq!((receipt.disposition, receipt.task_state), (Disposition::Applied, StateName::Succeeded));
    }
}

/// All of these were reclaimed, no earlier than a whole lease after the outage had ended.
async fn all_reclaimed(engine: &Engine, attempts: &[AttemptRef], outage_ended: Moment) {
    for attempt in attempts {
        let lost = eventually("the dead worker's attempt ends", LIMIT, || async {
            let page = engine.database().events(attempt.task_id, (0, 0), 100).await.ok()??;
            page.events.into_iter().find(|e| e.kind == EventKind::ReviewRequired)
        })
        .await;
        assert!(lost.at >= outage_ended.plus_ms(1_000), "reclaimed early");
        assert!(lost.at < outage_ended.plus_ms(6_000), "reclaimed late");
        assert_eq!(lost.attempt_count, 1);
    }
}

/// A database behind a proxy goes away while 50 attempts run; 15 of their workers die meanwhile.
async fn outage(begin: impl Fn(&Proxy), lasts: Duration) {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let opened = Database::open(&proxy.url(&database.url), DatabaseOptions::default()).await.expect("opened");
    let engine = Engine::start(opened, short_lease()).await.expect("started");
    engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
    let rig = Rig { engine, database };
    let mut worker = rig.worker(64).await;
    let mut running = run_many(&rig.engine, &mut worker, 50).await;
    let mut alive = JoinSet::new();
    alive.spawn(renew_for_ever(rig.engine.clone(), running.clone()));
    sleep(Duration::from_millis(600)).await;
    let dead = running.split_off(35);
    begin(&proxy);
    alive.shutdown().await;
    alive.spawn(renew_for_ever(rig.engine.clone(), running.clone()));
    sleep(lasts).await;
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 50, "nothing is judged meanwhile");
    let outage_ended = database_time(&rig.database).await;
    proxy.restore();
    all_reclaimed(&rig.engine, &dead, outage_ended).await;
    // By now every lease would have ended twice without its renewals.
    all_applied(&worker, &running).await;
    alive.shutdown().await;
    drop(worker);
    rig.end().await;
    proxy.end().await;
}

on_mysql! {
async fn a_frozen_database_costs_no_attempt() {
    outage(Proxy::freeze, OUTAGE).await;
}

// Longer than a transaction may take: connections are given up meanwhile, and what they had begun arrives at last.
async fn a_database_frozen_beyond_every_patience_costs_no_attempt() {
    outage(Proxy::freeze, Duration::from_secs(8)).await;
}

async fn a_database_cut_off_costs_no_attempt() {
    outage(Proxy::cut, OUTAGE).await;
}

async fn a_finish_right_after_an_outage_is_applied() {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let opened = Database::open(&proxy.url(&database.url), DatabaseOptions::default()).await.expect("opened");
    let rig = Rig { engine: Engine::start(opened, short_lease()).await.expect("started"), database };
    rig.engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
    for round in 0..3 {
        let mut worker = rig.worker(16).await;
        let attempts = run_many(&rig.engine, &mut worker, 10).await;
        if round == 0 {
            proxy.freeze();
        } else {
            proxy.cut();
        }
        sleep(Duration::from_millis(1_500)).await;
        // Sent while nothing answers, judged when it does.
        let finishes = all_applied(&worker, &attempts);
        let restore = async {
            sleep(Duration::from_millis(300)).await;
            proxy.restore();
        };
        tokio::join!(finishes, restore);
    }
    rig.end().await;
    proxy.end().await;
}

async fn a_renewal_right_after_an_outage_is_good() {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let opened = Database::open(&proxy.url(&database.url), DatabaseOptions::default()).await.expect("opened");
    let rig = Rig { engine: Engine::start(opened, short_lease()).await.expect("started"), database };
    rig.engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
    let mut worker = rig.worker(16).await;
    let attempts = run_many(&rig.engine, &mut worker, 10).await;
    proxy.freeze();
    sleep(Duration::from_millis(1_500)).await;
    // Asked while nothing answers, judged before anything else is.
    let restore = async {
        sleep(Duration::from_millis(300)).await;
        proxy.restore();
    };
    let (statuses, ()) = tokio::join!(rig.engine.renew(&attempts), restore);
    assert!(statuses.expect("told").iter().all(|lease| lease.valid));
    all_applied(&worker, &attempts).await;
    rig.end().await;
    proxy.end().await;
}

/// One node cut off alone is no outage: the others see what happens to its workers.
async fn a_node_cut_off_alone_loses_its_leases_to_the_other() {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let opened = Database::open(&proxy.url(&database.url), DatabaseOptions::default()).await.expect("opened");
    let cut_off = Engine::start(opened, short_lease()).await.expect("started");
    let rig = Rig::new(database, short_lease()).await;
    let mut worker = TestWorker::sit(&cut_off, 8).await;
    let attempts = run_many(&cut_off, &mut worker, 4).await;
    proxy.cut();
    for attempt in &attempts {
        eventually("the other reclaims it", LIMIT, || async {
            (rig.task(attempt.task_id).await.task.state.name() == StateName::NeedsReview).then_some(())
        })
        .await;
    }
    proxy.restore();
    for attempt in attempts {
        assert_eq!(finish_at_last(&worker, attempt).await.disposition, Disposition::Evidence);
    }
    drop(worker);
    cut_off.shutdown().await;
    drop(cut_off);
    rig.end().await;
    proxy.end().await;
}

/// Two nodes, both without their database: one extension, whoever comes first.
async fn two_nodes_come_back_at_once_and_extend_once() {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let url = proxy.url(&database.url);
    let mut engines = Vec::new();
    for _ in 0..2 {
        let opened = Database::open(&url, DatabaseOptions::default()).await.expect("opened");
        engines.push(Engine::start(opened, short_lease()).await.expect("started"));
    }
    let other = engines.pop().expect("two");
    let rig = Rig { engine: engines.pop().expect("one"), database };
    rig.engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
    let mut worker = rig.worker(16).await;
    let attempts = run_many(&rig.engine, &mut worker, 10).await;
    proxy.cut();
    sleep(OUTAGE).await;
    proxy.restore();
    // Half report where they were, half at the other node.
    let there = TestWorker::sit(&other, 0).await;
    let (here, elsewhere) = attempts.split_at(5);
    tokio::join!(all_applied(&worker, here), all_applied(&there, elsewhere));
    drop((worker, there));
    other.shutdown().await;
    drop(other);
    rig.end().await;
    proxy.end().await;
}
}

on_every_database! {
    async fn the_death_of_all_nodes_costs_no_attempt(database: TestDatabase) {
        let node = Node::start(&database.url, short_lease()).await;
        let engine = node.engine();
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        let mut worker = TestWorker::sit(&engine, 64).await;
        let mut running = run_many(&engine, &mut worker, 50).await;
        drop(engine);
        let mut alive = JoinSet::new();
        alive.spawn(renew_for_ever(worker.engine.clone(), running.clone()));
        sleep(Duration::from_millis(400)).await;
        alive.shutdown().await;
        drop(worker);
        node.kill().await;
        sleep(OUTAGE).await;
        assert_eq!(database.number("SELECT COUNT(*) FROM leases").await, 50);

        let outage_ended = database_time(&database).await;
        let engine = Engine::start(crate::support::node::open(&database.url).await, short_lease()).await;
        let rig = Rig { engine: engine.expect("started"), database };
        // No living worker was late: they come back within the new term.
        let dead = running.split_off(35);
        let worker = TestWorker::sit(&rig.engine, 0).await;
        alive.spawn(renew_for_ever(rig.engine.clone(), running.clone()));
        all_reclaimed(&rig.engine, &dead, outage_ended).await;
        all_applied(&worker, &running).await;
        alive.shutdown().await;
        drop(worker);
        rig.end().await;
    }

    // A short absence is none: nothing gets longer by it.
    async fn a_quick_restart_extends_nothing(database: TestDatabase) {
        let patient = || EngineOptions { lease: Duration::from_mins(2), ..without_reaper() };
        let node = Node::start(&database.url, patient()).await;
        let engine = node.engine();
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        let mut worker = TestWorker::sit(&engine, 4).await;
        let attempts = run_many(&engine, &mut worker, 1).await;
        drop((engine, worker));
        let until = database.number("SELECT lease_until FROM leases").await;
        node.kill().await;
        let node = Node::start(&database.url, patient()).await;
        let hands = TestWorker::sit(&node.engine(), 0).await;
        assert_eq!(database.number("SELECT lease_until FROM leases").await, until);
        all_applied(&hands, &attempts).await;
        drop(hands);
        node.kill().await;
        database.check_invariants().await;
        database.drop().await;
    }

    // What had ended before the outage began stays ended: nothing had kept its worker from renewing.
    async fn an_outage_revives_no_lease_that_had_ended_before(database: TestDatabase) {
        let patient = EngineOptions { lease: Duration::from_mins(2), ..without_reaper() };
        let rig = Rig::new(database, patient).await;
        let mut worker = rig.worker(4).await;
        let now = rig.database.now();
        let dead = run_many(&rig.engine, &mut worker, 1).await[0];
        rig.database.sql(&format!("UPDATE leases SET lease_until = {now} - 20000000")).await;
        let alive = run_many(&rig.engine, &mut worker, 1).await[0];
        let last = "SELECT MAX(lease_until) FROM leases";
        let until = rig.database.number(last).await;
        rig.database.sql(&format!("UPDATE cluster SET last_seen = {now} - 10000000")).await;
        eventually("the outage is noticed", LIMIT, || async {
            (rig.database.number(last).await > until).then_some(())
        })
        .await;
        assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
        assert_eq!(rig.task(dead.task_id).await.task.state.name(), StateName::NeedsReview);
        assert_eq!(finish_at_last(&worker, dead).await.disposition, Disposition::Evidence);
        all_applied(&worker, &[alive]).await;
        rig.end().await;
    }

    // The extension gives no more than the attempt's own time and the deadline.
    async fn an_outage_does_not_lengthen_an_attempts_time(database: TestDatabase) {
        let node = Node::start(&database.url, short_lease()).await;
        let engine = Arc::new(node.engine());
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        let mut worker = TestWorker::sit(&engine, 4).await;
        let mut ids: Vec<TaskId> = Vec::new();
        for deadline in [false, true] {
            let mut submission = submission();
            submission.policy.attempt_timeout_ms = if deadline { 300_000 } else { 1_500 };
            submission.policy.task_timeout_ms = if deadline { 1_500 } else { 300_000 };
            ids.push(engine.submit(submission).await.expect("accepted").task_id());
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
        }
        drop((engine, worker));
        node.kill().await;
        sleep(OUTAGE).await;
        let engine = Engine::start(crate::support::node::open(&database.url).await, short_lease()).await;
        let rig = Rig { engine: engine.expect("started"), database };
        let back = database_time(&rig.database).await;
        for id in ids {
            let event = eventually("it ends", LIMIT, || async {
                rig.events(id).await.into_iter().find(|e| e.kind == EventKind::ReviewRequired)
            }).await;
            assert!(event.at < back.plus_ms(900), "at once, not a lease later");
        }
        rig.end().await;
    }
}

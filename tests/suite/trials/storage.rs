//! The database under strain: T54, T55, T56; and away: T51.

use std::{collections::HashSet, time::Duration};

use futures_util::future::join_all;
use orbit::proto::{AttemptRef, HandlerVersion, Hello, Renew, worker_request::Message as Ask};
use orbit::{
    domain::{ids::TaskId, receipt::Disposition, task::StateName},
    engine::{Engine, EngineOptions, Failure, SeatEvent},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    database::TestDatabase,
    eventually, node, on_every_database,
    rig::*,
    server::{Server, health, submit_request},
    stream::{Stream, attempt_of, hello, hold_applied, new_id, succeeded as success},
};

/// Numbers from 0 to 19,999, as both databases can make them.
const NUMBERS: &str = "WITH d AS (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL \
    SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9) \
    SELECT a.n + 10 * b.n + 100 * c.n + 1000 * e.n + 10000 * f.n AS n FROM d a, d b, d c, d e, d f WHERE f.n < 2";

/// Makes 20,000 tasks whose unstarted leases have ended, by copying one that is leased.
async fn copy_leased_task(rig: &Rig) {
    let id = if rig.database.is_mysql() {
        "UNHEX(LPAD(HEX(n + 1), 32, '0'))"
    } else {
        "unhex(printf('%032x', n + 1))"
    };
    for (table, columns, values) in [
        (
            "tasks",
            "route, principal, idempotency_key, digest, digest_version, payload_version, payload_bytes, max_attempts, \
             granted_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, recovery_safety, task_timeout_ms, \
             deadline_at, state, revision, attempt_count, effect_uncertain, created_at, updated_at",
            "route, principal, KEY_OF_N, digest, digest_version, payload_version, payload_bytes, max_attempts, \
             granted_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, recovery_safety, task_timeout_ms, \
             deadline_at, state, revision, attempt_count, effect_uncertain, created_at, updated_at",
        ),
        ("payloads", "payload", "payload"),
        (
            "leases",
            "queue, attempt_id, epoch, principal, session_id, node_id, worker_name, leased_at, lease_until, cap_at",
            "queue, attempt_id, epoch, principal, session_id, node_id, worker_name, leased_at, 1, cap_at",
        ),
        (
            "events",
            "revision, ordinal, kind, at, state, attempt_count, max_attempts, effect_uncertain, principal, node_id",
            "revision, ordinal, kind, at, state, attempt_count, max_attempts, effect_uncertain, principal, node_id",
        ),
    ] {
        let key = if rig.database.is_mysql() { "CONCAT('copy-', n)" } else { "'copy-' || n" };
        let values = values.replace("KEY_OF_N", key);
        rig.database
            .sql(&format!(
                "INSERT INTO {table} (task_id, {columns}) SELECT {id}, {values} FROM {table} s JOIN ({NUMBERS}) numbers"
            ))
            .await;
    }
}

on_every_database! {
    // Twenty thousand leases end in one sweep: no statement grows past what the database takes.
    async fn t55_a_sweep_of_twenty_thousand_ends_in_pieces(database: TestDatabase) {
        let options = EngineOptions { start_window: Duration::from_hours(1), ..without_reaper() };
        let rig = Rig::new(database, options).await;
        let mut worker = rig.worker(1).await;
        rig.submit(|s| {
            s.policy.initial_delay_ms = 60_000;
            s.policy.max_delay_ms = 60_000;
        })
        .await;
        worker.next().await;
        worker.seat.drain();
        copy_leased_task(&rig).await;
        let mut changed = 0;
        loop {
            let swept = rig.engine.sweep().await.expect("swept");
            changed += swept.changed;
            if swept.candidates == 0 {
                break;
            }
        }
        assert_eq!(changed, 20_000);
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM ready").await, 20_000);
        rig.end().await;
    }

    // What is too wide for a statement is refused; what is as wide as it may be is not.
    async fn t55_wide_requests_are_served_or_refused(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let handlers = |count: usize| {
            let named = |n| HandlerVersion { handler: format!("handler-{n}"), handler_version: "v1".to_owned() };
            Hello { handlers: (0..count).map(named).collect(), ..hello(1) }
        };
        let refused = Stream::open_with(server.channel(), handlers(70_000)).await.err().expect("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        Stream::open_with(server.channel(), handlers(1_000)).await.expect("a stream");
        let lost = |n: u32| AttemptRef { task_id: new_id(), attempt_id: new_id(), epoch: n };
        let held = Hello { held: (1..=70_000).map(lost).collect(), ..hello(1) };
        let refused = Stream::open_with(server.channel(), held).await.err().expect("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        let held = Hello { held: (1..=10_000).map(lost).collect(), ..hello(1) };
        let stream = Stream::open_with(server.channel(), held).await.expect("a stream");
        assert_eq!(stream.welcome.held.len(), 10_000);
        assert_eq!(server.complaints(), Vec::<String>::new());
        drop(stream);
        server.stop().await;
        database.drop().await;
    }

    // Claimers, producers and finishers at once: each task once, no lock error reaches anybody, no finish is lost.
    async fn t54_claimers_producers_and_finishers_do_not_disturb_each_other(database: TestDatabase) {
        const PRODUCERS: usize = 16;
        const EACH: usize = 60;
        let rig = Rig::new(database, options()).await;
        let mut workers = JoinSet::new();
        for _ in 0..32 {
            let mut worker = rig.worker(4).await;
            workers.spawn(async move {
                let mut done: Vec<TaskId> = Vec::new();
                while let Ok(Some(SeatEvent::Dispatch(dispatch))) =
                    timeout(Duration::from_secs(5), worker.events.recv()).await
                {
                    worker.start(dispatch.attempt).await;
                    let receipt = worker.finish(dispatch.attempt, succeeded()).await;
                    assert_eq!(receipt.disposition, Disposition::Applied);
                    done.push(dispatch.attempt.task_id);
                }
                done
            });
        }
        let producers = (0..PRODUCERS).map(|_| async {
            for _ in 0..EACH {
                rig.submit(|_| {}).await;
            }
        });
        join_all(producers).await;
        let done: Vec<TaskId> = workers.join_all().await.into_iter().flatten().collect();
        let distinct: HashSet<&TaskId> = done.iter().collect();
        assert_eq!((done.len(), distinct.len()), (PRODUCERS * EACH, PRODUCERS * EACH));
        rig.end().await;
    }

    // A worker that comes again and again under one name takes nothing of its history away.
    async fn t56_a_returning_worker_keeps_its_history(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let (mut worker, mut sent) = (rig.worker(1).await, Vec::new());
        for _ in 0..3 {
            rig.submit(|_| {}).await;
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
            let id = message_id();
            let (receipt, _) = worker.finish_as(attempt, id, succeeded()).await.expect("applied");
            sent.push((attempt, id, receipt));
        }
        for _ in 0..20 {
            worker = rig.worker(1).await;
        }
        let Rig { engine, database } = rig;
        engine.shutdown().await;
        drop((worker, engine));
        let engine = Engine::start(node::open(&database.url).await, options()).await.expect("started");
        let rig = Rig { engine, database };
        let worker = rig.worker(1).await;
        for (attempt, id, receipt) in sent {
            let again = worker.finish_as(attempt, id, succeeded()).await;
            assert_eq!(again, Ok((receipt, true)));
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM attempts").await, 3);
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM events").await, 12);
        rig.end().await;
    }
}

/// The kind of T51 on a disk of one's own: full for longer than a lease, and then not.
#[tokio::test(flavor = "multi_thread")]
async fn t51_a_full_disk_is_told_and_once_it_is_not_full_all_goes_on() {
    let database = TestDatabase::sqlite().await;
    let lease = ["--lease-ms", "2000"];
    let server = Server::start_on_small_disk(&database, &lease).await.with_queue().await;
    let mut worker = Stream::open(server.channel(), 2).await;
    server.tasks().submit_task(submit_request("1")).await.expect("accepted");
    let attempt = attempt_of(&worker.dispatch().await);
    hold_applied(&worker.start(&attempt).await);

    let log = format!("{}-wal", database.url.trim_start_matches("sqlite:"));
    server.fill_disk(Some(std::fs::metadata(log).expect("a log").len()));
    let (full_at, lines) = (Instant::now(), server.log().len());
    let request = submit_request("2");
    while full_at.elapsed() < Duration::from_secs(8) {
        let refused = server.tasks().submit_task(request.clone()).await.expect_err("no room");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        worker.send(Ask::Renew(Renew { leases: vec![attempt.clone()] })).await;
        if full_at.elapsed() > Duration::from_secs(5) {
            assert_eq!(health(server.channel(), "").await, ServingStatus::NotServing);
        }
        sleep(Duration::from_millis(300)).await;
    }
    let told = server.log().split_off(lines);
    let told: Vec<_> =
        told.iter().filter(|line| line.contains("the outcome of a commit is unknown")).collect();
    let commits = told.iter().filter_map(|line| line.split("commits=").nth(1)?.parse::<u64>().ok());
    let (commits, seconds) = (commits.sum::<u64>(), full_at.elapsed().as_secs());
    assert!(!told.is_empty() && told.len() as u64 <= seconds + 2, "{told:#?}");
    // Each is tried again for a few seconds, with pauses.
    assert!((5..4 * seconds).contains(&commits), "{commits} in {seconds} s: {told:#?}");
    server.fill_disk(None);
    eventually("a submit is accepted", Duration::from_secs(5), async || {
        server.tasks().submit_task(request.clone()).await.ok()
    })
    .await;
    assert_eq!(health(server.channel(), "").await, ServingStatus::Serving);
    // The running attempt kept its lease: it was nobody's fault.
    hold_applied(&worker.finish(&success(&attempt, "1")).await);
    let dispatch = worker.dispatch().await;
    worker.run(&dispatch).await;
    drop(worker);
    server.stop().await;
    database.check_invariants().await;
    database.drop().await;
}

mod mysql_only {
    use super::*;

    // The same on MySQL, where only what grows fails: the small writes of the node itself pass.
    #[tokio::test(flavor = "multi_thread")]
    async fn t51_a_full_table_is_told_and_once_it_is_not_full_all_goes_on() {
        let rig = Rig::new(TestDatabase::mysql().await, options()).await;
        let mut worker = rig.worker(1).await;
        rig.submit(|_| {}).await;
        worker.run(succeeded()).await;
        let full = "CREATE TRIGGER full BEFORE INSERT ON tasks FOR EACH ROW \
                    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'The table is full'";
        rig.database.sql(full).await;
        let (full_at, mut serves) = (Instant::now(), rig.engine.healthy());
        let one = submission();
        while full_at.elapsed() < Duration::from_secs(6) {
            let refused = rig.engine.submit(one.clone()).await;
            assert!(matches!(refused, Err(Failure::DatabaseUnavailable { .. })), "{refused:?}");
            sleep(Duration::from_millis(100)).await;
        }
        assert!(!*serves.borrow_and_update());
        rig.database.sql("DROP TRIGGER full").await;
        let accepted = eventually("a submit is accepted", Duration::from_secs(5), async || {
            rig.engine.submit(one.clone()).await.ok()
        })
        .await;
        assert!(!accepted.replayed() && *serves.borrow_and_update());
        worker.run(succeeded()).await;
        rig.end().await;
    }

    /// These start a MySQL server of their own, to mistreat it.
    mod alone {
        use orbit::domain::ids::AttemptRef;
        use tokio::time::sleep;
        use tokio_util::task::TaskTracker;

        use crate::support::{
            database::TestDatabase,
            own_server::OwnServer,
            server::{Server, submit_request},
        };

        use super::*;

        /// Whatever happened, all of it works again within 5 s: submit, dispatch, retry, lease expiry; and health knows.
        async fn all_works(rig: &Rig, worker: &mut TestWorker) {
            let limit = Duration::from_secs(5);
            eventually("health says so", limit, || async { (*rig.engine.healthy().borrow()).then_some(()) })
                .await;
            let id = eventually("a submit is accepted", limit, || async {
                rig.engine.submit(submission()).await.ok().map(|s| s.task_id())
            })
            .await;
            let attempt = loop {
                let next = timeout(limit, worker.next()).await.expect("a dispatch in time");
                if next.attempt.task_id == id {
                    break next.attempt;
                }
            };
            worker.start(attempt).await;
            let receipt = worker.finish(attempt, failed(true)).await;
            assert_eq!(receipt.task_state, StateName::Waiting);
            let second = timeout(limit, worker.next()).await.expect("the retry in time").attempt;
            worker.start(second).await;
            let third = timeout(Duration::from_secs(8), worker.next()).await;
            // RECONCILE_ONLY: an ended lease is not retried, it is reviewed.
            assert!(third.is_err(), "{third:?}");
            assert_eq!(rig.task(id).await.task.state.name(), StateName::NeedsReview);
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn t51_the_loops_go_on_after_every_kind_of_outage() {
            let server = OwnServer::start(&[]);
            let database = TestDatabase::mysql_at(&server.url).await;
            let options = EngineOptions { lease: Duration::from_secs(2), ..options() };
            let rig = Rig::new(database, options).await;
            let mut worker = rig.worker(10).await;
            all_works(&rig, &mut worker).await;

            let away = async |rig: &Rig| {
                let refused = timeout(Duration::from_secs(10), rig.engine.submit(submission())).await;
                assert!(matches!(refused, Ok(Err(_))), "{refused:?}");
                eventually("health says so", Duration::from_secs(5), || async {
                    (!*rig.engine.healthy().borrow()).then_some(())
                })
                .await;
            };
            server.signal("-STOP");
            away(&rig).await;
            server.signal("-CONT");
            all_works(&rig, &mut worker).await;

            server.crash();
            away(&rig).await;
            server.again();
            all_works(&rig, &mut worker).await;

            rig.database.sql("SET GLOBAL super_read_only = ON").await;
            away(&rig).await;
            rig.database.sql("SET GLOBAL read_only = OFF").await;
            all_works(&rig, &mut worker).await;
            rig.end().await;
        }

        /// A worker that lives: renews, whatever the answers.
        async fn renew_for_ever(engine: Engine, attempts: Vec<AttemptRef>) {
            loop {
                let _ = engine.renew(&attempts).await;
                sleep(Duration::from_millis(250)).await;
            }
        }

        // Restarted, or read-only, for longer than a lease, with fifty attempts running: each ends APPLIED, as itself.
        #[tokio::test(flavor = "multi_thread")]
        async fn a_restarted_or_read_only_database_costs_no_attempt() {
            let server = OwnServer::start(&[]);
            let database = TestDatabase::mysql_at(&server.url).await;
            let rig = Rig::new(database, EngineOptions { lease: Duration::from_secs(2), ..options() }).await;
            for read_only in [false, true] {
                let mut worker = rig.worker(50).await;
                join_all((0..50).map(|_| rig.submit(|_| {}))).await;
                let mut attempts = Vec::new();
                for _ in 0..50 {
                    attempts.push(worker.next().await.attempt);
                }
                join_all(attempts.iter().map(|a| worker.start(*a))).await;
                let renewals = TaskTracker::new().spawn(renew_for_ever(rig.engine.clone(), attempts.clone()));
                if read_only {
                    rig.database.sql("SET GLOBAL super_read_only = ON").await;
                    sleep(Duration::from_secs(5)).await;
                    rig.database.sql("SET GLOBAL read_only = OFF").await;
                } else {
                    server.crash();
                    sleep(Duration::from_secs(4)).await;
                    server.again();
                }
                eventually("the database is back", Duration::from_secs(10), || async {
                    (*rig.engine.healthy().borrow()).then_some(())
                })
                .await;
                for attempt in &attempts {
                    let receipt = worker.finish(*attempt, succeeded()).await;
                    assert_eq!(receipt.disposition, Disposition::Applied);
                }
                renewals.abort();
            }
            assert_eq!(
                rig.database.number("SELECT COUNT(*) FROM attempts WHERE state = 3 AND epoch = 1").await,
                100
            );
            assert_eq!(rig.database.number("SELECT COUNT(*) FROM attempts").await, 100);
            rig.end().await;
        }

        // T6: a server that cuts what does not fit; T13: one that takes only small statements.
        #[tokio::test(flavor = "multi_thread")]
        async fn t6_t13_names_and_texts_are_whole_or_refused_whatever_the_server_allows() {
            let mysql = OwnServer::start(&["--sql-mode=", "--max-allowed-packet=1M"]);
            let database = TestDatabase::mysql_at(&mysql.url).await;
            let server = Server::start(&database).await.with_queue().await;
            let mut tasks = server.tasks();
            for length in [64, 128, 129, 255, 256, 1_000, 70_000] {
                let handler = "h".repeat(length);
                let request =
                    orbit::proto::SubmitTaskRequest { handler: handler.clone(), ..submit_request("1") };
                let answer = tasks.submit_task(request).await;
                assert_eq!(answer.is_ok(), length <= 128, "{length}");
                match answer {
                    Ok(answer) => {
                        assert_eq!(answer.into_inner().task.map(|t| t.handler), Some(handler));
                    }
                    Err(status) => assert_eq!(status.code(), tonic::Code::InvalidArgument),
                }
            }
            let mut ids = HashSet::new();
            for (key, good) in
                [("k".repeat(255), true), ("k".repeat(254) + "l", true), ("k".repeat(256), false)]
            {
                let request = orbit::proto::SubmitTaskRequest { idempotency_key: key, ..submit_request("1") };
                let answer = tasks.submit_task(request).await;
                assert_eq!(answer.is_ok(), good);
                ids.extend(answer.ok().and_then(|a| a.into_inner().task).map(|t| t.task_id));
            }
            assert_eq!(ids.len(), 2, "keys that share all but their end are two");
            for (bytes, good) in [(500_000, true), (530_000, false), (1_048_576, false)] {
                let payload = format!("\"{}\"", "x".repeat(bytes - 2));
                let answer = tasks.submit_task(submit_request(payload)).await;
                assert_eq!(answer.is_ok(), good, "{bytes}");
                if let Err(status) = answer {
                    assert_eq!(status.code(), tonic::Code::InvalidArgument);
                }
            }
            server.stop().await;
            database.drop().await;
        }
    }
}

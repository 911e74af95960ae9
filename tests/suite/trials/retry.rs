//! Retry decisions: T18, T28, T29, T30, T31, T32.

use std::{collections::BTreeSet, time::Duration};

use futures_util::future::join_all;
use orbit::{
    domain::{
        backoff,
        decide::Decision,
        event::EventKind,
        policy::PolicyRequest,
        receipt::Disposition,
        task::{State, StateName},
    },
    engine::{Engine, EngineOptions, SeatEvent},
};

use crate::support::{eventually, node, on_every_database, rig::*};

const LIMIT: Duration = Duration::from_secs(20);

fn quick() -> EngineOptions {
    EngineOptions {
        lease: Duration::from_secs(1),
        start_window: Duration::from_secs(1),
        sweep_interval: Duration::from_millis(50),
        ..EngineOptions::default()
    }
}

/// A worker that calls every attempt a failure that may be retried, for ever.
async fn always_failing(mut worker: TestWorker) {
    while let Some(event) = worker.events.recv().await {
        if let SeatEvent::Dispatch(dispatch) = event {
            worker.start(dispatch.attempt).await;
            worker.finish(dispatch.attempt, failed(true)).await;
        }
    }
}

on_every_database! {
    async fn t18_there_are_never_more_claims_than_the_limit(database: TestDatabase) {
        for refused in [0, 1_001, u32::MAX >> 1] {
            let problems = PolicyRequest { max_attempts: Some(refused), ..PolicyRequest::default() }.freeze();
            assert_eq!(problems.expect_err("refused")[0].field, "retry.max_attempts");
        }
        let rig = Rig::new(database, options()).await;
        let mut ids = Vec::new();
        for max_attempts in [None, Some(1), Some(4)] {
            let request = PolicyRequest {
                max_attempts,
                initial_delay_ms: Some(1),
                max_delay_ms: Some(1),
                ..PolicyRequest::default()
            };
            let id = rig.submit(|s| s.policy = request.freeze().expect("valid")).await;
            ids.push((id, max_attempts.unwrap_or(1)));
        }
        let mut failing = tokio::task::JoinSet::new();
        failing.spawn(always_failing(rig.worker(4).await));
        for (id, max_attempts) in ids {
            eventually("it fails", LIMIT, || async {
                (rig.task(id).await.task.state.name() == StateName::Failed).then_some(())
            }).await;
            assert_eq!(rig.task(id).await.task.attempt_count, max_attempts);
            assert_eq!(rig.ended(id).await.len(), max_attempts as usize);
            assert_eq!(rig.last_decision(id).await.1, Some(Decision::AttemptLimit));
        }
        failing.shutdown().await;
        rig.end().await;
    }

    // T28 and the second half of T32: the delays of a long series, and a budget past a byte.
    async fn t28_t32_three_hundred_attempts_stop_at_three_hundred(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let id = rig.submit(|s| {
            s.policy.max_attempts = 300;
            s.policy.initial_delay_ms = 1;
            s.policy.max_delay_ms = 2;
        }).await;
        let policy = rig.task(id).await.task.policy;
        let mut failing = tokio::task::JoinSet::new();
        failing.spawn(always_failing(rig.worker(1).await));
        eventually("it fails", Duration::from_mins(1), || async {
            (rig.task(id).await.task.state.name() == StateName::Failed).then_some(())
        }).await;
        failing.shutdown().await;
        let ended = rig.ended(id).await;
        assert_eq!((ended.len(), rig.task(id).await.task.attempt_count), (300, 300));
        for attempt in &ended[..299] {
            let delay_ms = attempt.delay_ms.expect("a retry");
            let base = if attempt.epoch == 1 { 1 } else { 2 };
            assert!((u32::div_ceil(base, 2)..=base).contains(&delay_ms), "{attempt:?}");
            assert_eq!(backoff::delay_ms(&policy, attempt.epoch, attempt.lease.attempt_id), delay_ms);
        }
        for pair in ended.windows(2) {
            let [one, next] = pair else { continue };
            let available_at = one.ended_at.plus_ms(one.delay_ms.expect("a retry"));
            assert!(next.lease.leased_at >= available_at, "claimed early");
        }
        rig.end().await;
    }

    async fn t29_a_task_that_kills_its_workers_ends_with_its_budget(database: TestDatabase) {
        let rig = Rig::new(database, quick()).await;
        let mut worker = rig.worker(4).await;
        for started in [true, false] {
            let id = rig.submit(idempotent).await;
            for epoch in 1..=3 {
                let attempt = worker.next().await.attempt;
                assert_eq!((attempt.task_id, attempt.epoch), (id, epoch));
                if started {
                    worker.start(attempt).await;
                }
            }
            let wanted = if started { StateName::NeedsReview } else { StateName::Failed };
            eventually("it ends", LIMIT, || async {
                (rig.task(id).await.task.state.name() == wanted).then_some(())
            }).await;
            let task = rig.task(id).await.task;
            assert_eq!((task.doubt, task.attempt_count), (started, 3));
            worker.nothing_for(Duration::from_millis(400)).await;
        }
        rig.end().await;
    }

    async fn t30_what_must_not_be_repeated_is_not_repeated_whatever_comes_late(database: TestDatabase) {
        let rig = Rig::new(database, quick()).await;
        let mut worker = rig.worker(4).await;
        let id = rig.submit(|s| s.policy.max_attempts = 5).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        eventually("its lease ends", LIMIT, || async {
            (rig.task(id).await.task.state == State::NeedsReview).then_some(())
        }).await;
        drop(worker);
        let Rig { engine, database } = rig;
        engine.shutdown().await;
        drop(engine);
        let engine = Engine::start(node::open(&database.url).await, quick()).await.expect("started");
        let rig = Rig { engine, database };
        let mut worker = rig.worker(4).await;
        for late in [failed(true), succeeded()] {
            assert_eq!(worker.finish(attempt, late).await.disposition, Disposition::Evidence);
            let task = rig.task(id).await.task;
            assert_eq!((task.state, task.doubt, task.attempt_count), (State::NeedsReview, true, 1));
        }
        worker.nothing_for(Duration::from_millis(500)).await;
        assert_eq!(rig.evidence(id).await.len(), 2);
        rig.end().await;
    }

    // The delay lies in 500..=1,000 ms. Equality itself is a row of the table test.
    async fn t31_a_retry_that_would_come_too_late_keeps_the_workers_error(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        for (column, refusal) in [
            ("deadline_at", Decision::DeadlineExceeded),
            ("start_before", Decision::StartDeadlineExceeded),
        ] {
            for (limit_ms, retried) in [(450, false), (3_000, true)] {
                let id = rig.submit(|s| {
                    s.policy.initial_delay_ms = 1_000;
                    s.policy.max_delay_ms = 1_000;
                }).await;
                let attempt = worker.next().await.attempt;
                worker.start(attempt).await;
                let sql = format!(
                    "UPDATE tasks SET {column} = {} + {limit_ms}000 WHERE state = 3",
                    rig.database.now()
                );
                rig.database.sql(&sql).await;
                let receipt = worker.finish(attempt, failed(true)).await;
                if retried {
                    assert_eq!((receipt.task_state, receipt.decision), (StateName::Waiting, Some(Decision::RetryableFailure)));
                    let next = worker.next().await.attempt;
                    assert_eq!((next.task_id, next.epoch), (id, 2));
                    let cap = format!("SELECT l.lease_until - t.{column} FROM leases l JOIN tasks t ON t.task_id = l.task_id");
                    assert_eq!(rig.database.number(&cap).await, 0, "the unstarted lease ends there");
                    worker.start(next).await;
                    worker.finish(next, succeeded()).await;
                } else {
                    assert_eq!((receipt.task_state, receipt.decision), (StateName::Failed, Some(refusal)));
                    let code = rig.task(id).await.error.map(|e| e.code.to_string());
                    assert_eq!(code.as_deref(), Some("TEMPORARY_REJECTION"));
                }
            }
        }
        rig.end().await;
    }

    async fn t32_a_failed_batch_comes_back_spread_out_and_a_restart_forgets_nothing(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let submits = (0..500).map(|_| {
            rig.submit(slow_retry)
        });
        join_all(submits).await;
        let mut failing = tokio::task::JoinSet::new();
        for _ in 0..8 {
            failing.spawn(always_failing(rig.worker(32).await));
        }
        eventually("all fail", LIMIT, || async {
            let failed = "SELECT COUNT(*) FROM attempts";
            (rig.database.number(failed).await == 500).then_some(())
        }).await;
        failing.shutdown().await;
        let mut delays = BTreeSet::new();
        let sql = "SELECT available_at - updated_at FROM tasks ORDER BY task_id LIMIT 1 OFFSET ";
        for n in 0..500 {
            delays.insert(rig.database.number(&format!("{sql}{n}")).await);
        }
        assert!(delays.iter().all(|d| (30_000_000..=60_000_000).contains(d) && d % 1_000 == 0));
        assert!(delays.len() > 400, "{} distinct", delays.len());
        let before = rig.database.picture().await;
        let Rig { engine, database } = rig;
        engine.shutdown().await;
        drop(engine);
        let engine = Engine::start(node::open(&database.url).await, options()).await.expect("started");
        let rig = Rig { engine, database };
        assert_eq!(rig.database.picture().await, before);
        let requeued = rig.database.number("SELECT COUNT(*) FROM events WHERE kind = 4").await;
        assert_eq!((requeued, EventKind::Requeued), (500, EventKind::Requeued));
        rig.end().await;
    }
}

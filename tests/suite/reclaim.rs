//! Reclaiming (S5, S7, S10, S11, S21): each way in which time ends an attempt or a wait, and what many reclaimers make of
//! it at once.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use orbit::{
    domain::{
        attempt::AttemptEnd,
        decide::{Cause, Decision},
        event::EventKind,
        ids::{AttemptRef, NODE_PRINCIPAL, TaskId},
        receipt::Disposition,
        rejection::Rejection,
        submission::Submission,
        task::{State, StateName},
        time::Moment,
    },
    engine::{Engine, EngineOptions},
};
use tokio::{sync::Barrier, task::JoinSet, time::sleep};

use crate::support::{database::TestDatabase, eventually, on_every_database, rig::*};

/// How often a finish is raced against the reaper, in groups.
const FINISH_RACES: usize = 500;
const AT_ONCE: usize = 10;

fn short_lease() -> EngineOptions {
    EngineOptions { lease: Duration::from_secs(1), ..options() }
}

fn short_window() -> EngineOptions {
    EngineOptions { start_window: Duration::from_millis(300), ..options() }
}

async fn ended(rig: &Rig, id: TaskId) -> State {
    eventually("the attempt or the wait ends", Duration::from_secs(8), || async {
        let state = rig.task(id).await.task.state;
        (!matches!(state, State::Leased(_) | State::Running { .. })).then_some(state)
    })
    .await
}

async fn database_time(rig: &Rig) -> Moment {
    Moment::from_micros(rig.database.number(&format!("SELECT {}", rig.database.now())).await)
}

fn idempotent_and_slow(submission: &mut Submission) {
    idempotent(submission);
    slow_retry(submission);
}

on_every_database! {
    async fn an_unstarted_lease_ends_with_its_window_in_real_time(database: TestDatabase) {
        let rig = Rig::new(database, short_window()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(slow_retry).await;
        worker.next().await;
        let state = ended(&rig, id).await;
        assert!(matches!(state, State::Waiting { .. }), "{state:?}");
        let cause = (EventKind::Requeued, Some(Decision::UnstartedLeaseExpired), Some(Cause::LeaseExpired));
        assert_eq!(rig.last_decision(id).await, cause);
        let attempts = rig.ended(id).await;
        let [attempt] = attempts.as_slice() else { panic!("{attempts:?}") };
        assert_eq!((&attempt.end, attempt.started_at), (&AttemptEnd::Unstarted, None));
        assert!(attempt.ended_at >= attempt.lease.lease_until);
        assert_eq!(attempt.lease.lease_until.ms_since(attempt.lease.leased_at), 300);
        let task = rig.task(id).await.task;
        assert_eq!((task.attempt_count, task.doubt), (1, false));
        rig.end().await;
    }

    async fn the_last_unstarted_attempt_fails_the_task(database: TestDatabase) {
        let rig = Rig::new(database, short_window()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|s| s.policy.max_attempts = 1).await;
        worker.next().await;
        assert!(matches!(ended(&rig, id).await, State::Failed { .. }));
        let cause = (EventKind::Failed, Some(Decision::AttemptLimit), Some(Cause::LeaseExpired));
        assert_eq!(rig.last_decision(id).await, cause);
        assert_eq!(rig.task(id).await.error.map(|e| e.code.to_string()).as_deref(), Some("ATTEMPT_LIMIT"));
        rig.end().await;
    }

    async fn a_started_lease_ends_in_doubt_in_real_time(database: TestDatabase) {
        let rig = Rig::new(database, short_lease()).await;
        let mut worker = rig.worker(2).await;
        let id = rig.submit(slow_retry).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        assert_eq!(ended(&rig, id).await, State::NeedsReview);
        let cause =
            (EventKind::ReviewRequired, Some(Decision::ReconciliationRequired), Some(Cause::LeaseExpired));
        assert_eq!(rig.last_decision(id).await, cause);

        let id = rig.submit(idempotent_and_slow).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        assert!(matches!(ended(&rig, id).await, State::Waiting { .. }));
        let cause = (EventKind::Requeued, Some(Decision::IdempotentUnknown), Some(Cause::LeaseExpired));
        assert_eq!(rig.last_decision(id).await, cause);
        let attempts = rig.ended(id).await;
        assert_eq!(attempts[0].end, AttemptEnd::Unknown { error: None });
        assert!(rig.task(id).await.task.doubt);
        rig.end().await;
    }

    async fn renewals_keep_a_lease_and_do_not_extend_the_attempts_time(database: TestDatabase) {
        let rig = Rig::new(database, short_lease()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|s| {
            idempotent_and_slow(s);
            s.policy.attempt_timeout_ms = 2_500;
        }).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        let started = database_time(&rig).await;
        let lost = eventually("the attempt's time ends", Duration::from_secs(8), || async {
            let lease = rig.engine.renew(&[attempt]).await.expect("told");
            let now = database_time(&rig).await;
            (!lease[0].valid).then_some(now)
        })
        .await;
        assert!(lost.ms_since(started) >= 2_450, "the lease of 1 s was renewed until then");
        ended(&rig, id).await;
        let cause = (EventKind::Requeued, Some(Decision::IdempotentUnknown), Some(Cause::AttemptTimeout));
        assert_eq!(rig.last_decision(id).await, cause);
        let attempts = rig.ended(id).await;
        let (lease_until, started_at) = (attempts[0].lease.lease_until, attempts[0].started_at);
        assert_eq!(lease_until.ms_since(started_at.expect("started")), 2_500);
        rig.end().await;
    }

    async fn each_attempt_has_its_time_anew(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|s| {
            idempotent(s);
            s.policy.attempt_timeout_ms = 400;
        }).await;
        for epoch in 1..=3 {
            let attempt = worker.next().await.attempt;
            assert_eq!(attempt.epoch, epoch);
            worker.start(attempt).await;
            eventually("it ends", Duration::from_secs(5), || async {
                (rig.ended(id).await.len() == epoch as usize).then_some(())
            }).await;
        }
        for attempt in rig.ended(id).await {
            assert_eq!(attempt.cause, Cause::AttemptTimeout);
            let started_at = attempt.started_at.expect("started");
            assert_eq!(attempt.lease.lease_until.ms_since(started_at), 400);
        }
        // Exactly the budget, and the doubt stays.
        let cause = (EventKind::ReviewRequired, Some(Decision::AttemptLimit), Some(Cause::AttemptTimeout));
        assert_eq!(rig.last_decision(id).await, cause);
        worker.nothing_for(Duration::from_millis(300)).await;
        rig.end().await;
    }

    async fn an_expired_lease_cannot_be_renewed_reclaimed_or_not(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        rig.submit(slow_retry).await;
        let attempt = worker.next().await.attempt;
        // An unstarted one is told of, and not extended.
        let before = rig.database.picture().await;
        assert!(rig.engine.renew(&[attempt]).await.expect("told")[0].valid);
        assert_eq!(rig.database.picture().await, before);
        worker.start(attempt).await;
        rig.database.end_leases().await;
        let before = rig.database.picture().await;
        assert!(!rig.engine.renew(&[attempt]).await.expect("told")[0].valid);
        assert_eq!(rig.database.picture().await, before);
        assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
        assert!(!rig.engine.renew(&[attempt]).await.expect("told")[0].valid);
        rig.end().await;
    }

    async fn time_passes_for_a_waiting_task(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let by_deadline = rig.submit(|s| s.policy.task_timeout_ms = 400).await;
        let soon = database_time(&rig).await.plus_ms(400);
        let by_start = rig.submit(|s| s.start_before = Some(soon)).await;
        assert!(matches!(ended_wait(&rig, by_deadline).await, State::Failed { .. }));
        assert!(matches!(ended_wait(&rig, by_start).await, State::Failed { .. }));
        let cause = (EventKind::Failed, Some(Decision::DeadlineExceeded), Some(Cause::TaskDeadline));
        assert_eq!(rig.last_decision(by_deadline).await, cause);
        let cause = (EventKind::Failed, Some(Decision::StartDeadlineExceeded), Some(Cause::StartDeadline));
        assert_eq!(rig.last_decision(by_start).await, cause);
        let code = rig.task(by_start).await.error.map(|e| e.code.to_string());
        assert_eq!(code.as_deref(), Some("START_DEADLINE_EXCEEDED"));
        // Whoever comes late finds nothing.
        let mut worker = rig.worker(1).await;
        worker.nothing_for(Duration::from_millis(300)).await;
        rig.end().await;
    }

    async fn a_doubt_outlives_the_deadline_of_the_wait(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|s| {
            idempotent(s);
            s.policy.initial_delay_ms = 500;
            s.policy.max_delay_ms = 500;
            s.policy.task_timeout_ms = 1_500;
        }).await;
        let (_, receipt) = worker.run(unknown()).await;
        assert_eq!(receipt.task_state, StateName::Waiting);
        drop(worker);
        assert_eq!(ended_wait(&rig, id).await, State::NeedsReview);
        let cause = (EventKind::ReviewRequired, Some(Decision::DeadlineExceeded), Some(Cause::TaskDeadline));
        assert_eq!(rig.last_decision(id).await, cause);
        rig.end().await;
    }

    async fn time_passes_for_a_leased_task(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        let id = rig.submit(|s| s.policy.task_timeout_ms = 500).await;
        worker.next().await;
        assert!(matches!(ended(&rig, id).await, State::Failed { .. }));
        let cause = (EventKind::Failed, Some(Decision::DeadlineExceeded), Some(Cause::TaskDeadline));
        assert_eq!(rig.last_decision(id).await, cause);

        let soon = database_time(&rig).await.plus_ms(500);
        let id = rig.submit(|s| s.start_before = Some(soon)).await;
        worker.next().await;
        assert!(matches!(ended(&rig, id).await, State::Failed { .. }));
        let cause = (EventKind::Failed, Some(Decision::StartDeadlineExceeded), Some(Cause::StartDeadline));
        assert_eq!(rig.last_decision(id).await, cause);
        assert_eq!(rig.ended(id).await[0].lease.lease_until, soon);
        rig.end().await;
    }

    async fn the_deadline_ends_a_running_attempt_and_start_before_does_not(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        for idempotence in [false, true] {
            let id = rig.submit(|s| {
                if idempotence {
                    idempotent(s);
                }
                s.policy.task_timeout_ms = 600;
            }).await;
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
            assert_eq!(ended(&rig, id).await, State::NeedsReview);
            let decision =
                if idempotence { Decision::DeadlineExceeded } else { Decision::ReconciliationRequired };
            let cause = (EventKind::ReviewRequired, Some(decision), Some(Cause::TaskDeadline));
            assert_eq!(rig.last_decision(id).await, cause);
        }
        let soon = database_time(&rig).await.plus_ms(500);
        let id = rig.submit(|s| s.start_before = Some(soon)).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        eventually("start_before passes", Duration::from_secs(5), || async {
            (database_time(&rig).await > soon.plus_ms(200)).then_some(())
        }).await;
        let receipt = worker.finish(attempt, failed(true)).await;
        assert_eq!(receipt.disposition, Disposition::Applied);
        assert_eq!((receipt.task_state, receipt.decision), (StateName::Failed, Some(Decision::StartDeadlineExceeded)));
        assert_eq!(rig.task(id).await.error.map(|e| e.code.to_string()).as_deref(), Some("TEMPORARY_REJECTION"));
        rig.end().await;
    }

    async fn many_sweeps_at_once_reclaim_once(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(64).await;
        for round in 0..10 {
            let (id, _) = lapsed(&rig, &mut worker, round % 2 == 0).await;
            let swept = join_all((0..5).map(|_| rig.engine.sweep())).await;
            let changed: usize = swept.into_iter().map(|s| s.expect("swept").changed).sum();
            assert_eq!(changed, 1);
            reclaimed_once(&rig, id, rig.engine.node_id()).await;
        }
        rig.end().await;
    }

    // Whatever the sweep and the finish see, they see it one after the other.
    async fn a_finish_in_the_last_milliseconds_is_applied_or_the_attempt_reclaimed(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(64).await;
        let (mut applied, mut reclaimed) = (0, 0);
        for round in 0..FINISH_RACES / AT_ONCE {
            // What is requeued must not come due within the test.
            join_all((0..AT_ONCE).map(|_| rig.submit(|s| {
                idempotent(s);
                s.policy.initial_delay_ms = 3_600_000;
                s.policy.max_delay_ms = 3_600_000;
            })))
            .await;
            let mut attempts = Vec::new();
            for _ in 0..AT_ONCE {
                attempts.push(worker.next().await.attempt);
            }
            join_all(attempts.iter().map(|attempt| worker.start(*attempt))).await;
            let soon =
                format!("UPDATE leases SET lease_until = {} + {}", rig.database.now(), (round % 10) * 1_500);
            rig.database.sql(&soon).await;
            // One after the other, a millisecond apart, so that the leases end before some and after others.
            let finishes = join_all(attempts.iter().zip(0..).map(async |(attempt, n)| {
                sleep(Duration::from_millis(n)).await;
                worker.finish(*attempt, succeeded()).await
            }));
            let sweeps = async {
                let mut changed = 0;
                while rig.database.number("SELECT COUNT(*) FROM leases").await > 0 {
                    changed += rig.engine.sweep().await.expect("swept").changed;
                }
                changed
            };
            let (receipts, changed) = tokio::join!(finishes, sweeps);
            let evidence = receipts.iter().filter(|r| r.disposition == Disposition::Evidence).count();
            assert_eq!(changed, evidence, "applied or reclaimed, not both");
            reclaimed += evidence;
            applied += AT_ONCE - evidence;
            for (attempt, receipt) in attempts.iter().zip(receipts) {
                let task = rig.task(attempt.task_id).await.task;
                let requeued =
                    rig.kinds(attempt.task_id).await.iter().filter(|k| **k == EventKind::Requeued).count();
                match receipt.disposition {
                    Disposition::Applied => {
                        assert_eq!(receipt.task_state, StateName::Succeeded);
                        assert_eq!((task.state.name(), task.doubt, requeued), (StateName::Succeeded, false, 0));
                    }
                    Disposition::Evidence => {
                        assert_eq!((task.state.name(), task.doubt, requeued), (StateName::Waiting, true, 1));
                    }
                }
            }
        }
        assert!(applied > 0 && reclaimed > 0, "{applied} applied, {reclaimed} reclaimed");
        rig.end().await;
    }
}

async fn ended_wait(rig: &Rig, id: TaskId) -> State {
    eventually("the wait ends", Duration::from_secs(8), || async {
        let state = rig.task(id).await.task.state;
        (!matches!(state, State::Waiting { .. })).then_some(state)
    })
    .await
}

async fn lapsed(rig: &Rig, worker: &mut TestWorker, started: bool) -> (TaskId, AttemptRef) {
    let id = rig.submit(idempotent_and_slow).await;
    let attempt = worker.next().await.attempt;
    if started {
        worker.start(attempt).await;
    }
    rig.database.end_leases().await;
    (id, attempt)
}

/// One retry, no permit, one event that names the node which did it.
async fn reclaimed_once(rig: &Rig, id: TaskId, node_id: &str) {
    let record = rig.task(id).await;
    assert_eq!((record.task.state.name(), record.task.attempt_count), (StateName::Waiting, 1));
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
    let events = rig.events(id).await;
    let requeued: Vec<_> = events.iter().filter(|e| e.kind == EventKind::Requeued).collect();
    assert_eq!(requeued.len(), 1);
    let event = requeued[0];
    assert_eq!((&*event.actor.principal, event.actor.session_id), (NODE_PRINCIPAL, None));
    assert_eq!(&*event.actor.node_id, node_id);
    assert_eq!((event.attempt_count, event.max_attempts), (1, 3));
    let State::Waiting { available_at } = record.task.state else { panic!("{record:?}") };
    assert_eq!(event.next_available_at, Some(available_at));
    assert_eq!(event.delay_ms, Some(available_at.ms_since(event.at)));
    assert_eq!(rig.ended(id).await.len(), 1);
}

mod mysql_nodes {
    use super::*;

    async fn reclaim_at_a_barrier(nodes: usize, rounds: usize) {
        let rig = Rig::new(TestDatabase::mysql().await, without_reaper()).await;
        let mut engines = vec![rig.engine.clone()];
        for n in 1..nodes {
            let options = EngineOptions { node_id: format!("other-{n}"), ..without_reaper() };
            engines.push(Engine::start(rig.database.open().await, options).await.expect("started"));
        }
        let mut worker = rig.worker(64).await;
        for round in 0..rounds {
            let (id, attempt) = lapsed(&rig, &mut worker, round % 2 == 0).await;
            let barrier = Arc::new(Barrier::new(nodes));
            let mut sweeps = JoinSet::new();
            for engine in &engines {
                let (engine, barrier) = (engine.clone(), barrier.clone());
                sweeps.spawn(async move {
                    barrier.wait().await;
                    (engine.node_id().clone(), engine.sweep().await.expect("swept").changed)
                });
            }
            let swept = sweeps.join_all().await;
            let winners: Vec<_> = swept.iter().filter(|(_, changed)| *changed > 0).collect();
            let [(node_id, 1)] = winners.as_slice() else { panic!("{swept:?}") };
            reclaimed_once(&rig, id, node_id).await;
            let late = worker.start_as(attempt, message_id()).await;
            assert!(matches!(late, Err(Rejection::LeaseLost(_) | Rejection::AlreadyStarted(_))), "{late:?}");
        }
        drop(worker);
        for engine in engines.iter().skip(1) {
            engine.shutdown().await;
        }
        drop(engines);
        rig.end().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn two_nodes_at_a_barrier_reclaim_once() {
        reclaim_at_a_barrier(2, 30).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn five_nodes_at_a_barrier_reclaim_once() {
        reclaim_at_a_barrier(5, 20).await;
    }
}

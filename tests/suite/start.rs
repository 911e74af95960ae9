//! Authorizing a start (S10, S11, S13, S15): once, and only while it is right.

use std::time::Duration;

use futures_util::future::join_all;
use orbit::domain::{
    event::EventKind,
    ids::{AttemptRef, TaskId},
    rejection::{Rejection, TimeLimit},
    task::{State, StateName},
};

use crate::support::{on_every_database, rig::*};

async fn claimed(rig: &Rig, worker: &mut TestWorker) -> (TaskId, AttemptRef) {
    let id = rig.submit(slow_retry).await;
    (id, worker.next().await.attempt)
}

on_every_database! {
    async fn a_start_after_the_lease_is_refused_though_nobody_swept(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        let (id, attempt) = claimed(&rig, &mut worker).await;
        rig.database.end_leases().await;
        let before = rig.database.picture().await;
        let lost = Err(Rejection::LeaseLost(attempt.attempt_id));
        assert_eq!(worker.start_as(attempt, message_id()).await, lost);
        assert_eq!(rig.database.picture().await, before);
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Leased);
        rig.engine.sweep().await.expect("swept");
        assert_eq!(worker.start_as(attempt, message_id()).await, lost);
        rig.end().await;
    }

    async fn a_start_after_the_window_is_refused_in_real_time(database: TestDatabase) {
        let options = orbit::engine::EngineOptions {
            start_window: Duration::from_millis(200),
            ..without_reaper()
        };
        let rig = Rig::new(database, options).await;
        let mut worker = rig.worker(1).await;
        let (_, attempt) = claimed(&rig, &mut worker).await;
        let left = format!("SELECT COUNT(*) FROM leases WHERE lease_until > {}", rig.database.now());
        crate::support::eventually("the window passes", Duration::from_secs(5), || async {
            (rig.database.number(&left).await == 0).then_some(())
        }).await;
        let lost = worker.start_as(attempt, message_id()).await;
        assert_eq!(lost, Err(Rejection::LeaseLost(attempt.attempt_id)));
        rig.end().await;
    }

    async fn a_start_at_the_deadline_or_start_before_is_refused(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        for (column, limit) in [("deadline_at", TimeLimit::Deadline), ("start_before", TimeLimit::StartBefore)] {
            let (id, attempt) = claimed(&rig, &mut worker).await;
            // Even if the lease were still good.
            let sql = format!("UPDATE tasks SET {column} = {} WHERE state = 2", rig.database.now());
            rig.database.sql(&sql).await;
            let refused = worker.start_as(attempt, message_id()).await;
            assert_eq!(refused, Err(Rejection::DeadlineExceeded { task_id: id, limit }));
            assert_eq!(rig.task(id).await.task.state.name(), StateName::Leased);
            rig.database.end_leases().await;
            assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1);
            assert!(matches!(rig.task(id).await.task.state, State::Failed { .. }));
        }
        rig.end().await;
    }

    async fn a_start_after_a_cancel_is_refused(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let (id, attempt) = claimed(&rig, &mut worker).await;
        rig.engine.cancel_task(id, String::new(), request()).await.expect("canceled");
        let refused = worker.start_as(attempt, message_id()).await;
        assert_eq!(refused, Err(Rejection::CancelRequested(id)));
        assert!(!rig.kinds(id).await.contains(&EventKind::Started));
        rig.end().await;
    }

    async fn a_start_of_an_older_attempt_is_refused_and_the_newer_one_starts(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        let id = rig.submit(|_| {}).await;
        let first = worker.next().await.attempt;
        rig.database.end_leases().await;
        rig.engine.sweep().await.expect("swept");
        let second = worker.next().await.attempt;
        assert_eq!((first.epoch, second.epoch), (1, 2));
        let refused = worker.start_as(first, message_id()).await;
        assert_eq!(refused, Err(Rejection::LeaseLost(first.attempt_id)));
        worker.start(second).await;
        let refused = worker.start_as(first, message_id()).await;
        assert_eq!(refused, Err(Rejection::LeaseLost(first.attempt_id)));
        worker.finish(second, succeeded()).await;
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Succeeded);
        rig.end().await;
    }

    async fn a_repeated_start_gets_its_receipt_and_starts_nothing_anew(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let (id, attempt) = claimed(&rig, &mut worker).await;
        let start_id = message_id();
        let (granted, replayed) = worker.start_as(attempt, start_id).await.expect("granted");
        assert_eq!((granted.task_state, replayed), (StateName::Running, false));
        let running = rig.task(id).await.task;
        let before = rig.database.picture().await;
        for _ in 0..3 {
            assert_eq!(worker.start_as(attempt, start_id).await, Ok((granted.clone(), true)));
        }
        assert_eq!(rig.database.picture().await, before, "neither time nor lease began anew");
        assert_eq!(rig.task(id).await.task, running);
        // After the end too: the receipt is told, the lease beside it is not valid.
        worker.finish(attempt, succeeded()).await;
        assert_eq!(worker.start_as(attempt, start_id).await, Ok((granted, true)));
        let message = orbit::domain::report::Start { message_id: start_id, attempt };
        let reply = rig.engine.start_attempt(message, &worker.session).await.expect("an answer");
        assert!(reply.lease.is_some_and(|l| !l.valid));
        assert_eq!(rig.kinds(id).await.iter().filter(|k| **k == EventKind::Started).count(), 1);
        rig.end().await;
    }

    async fn of_many_starts_at_once_one_process_runs(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        for _ in 0..20 {
            let (id, attempt) = claimed(&rig, &mut worker).await;
            let ids: Vec<_> = (0..10).map(|_| message_id()).collect();
            // Each process sends its start twice.
            let starts = ids.iter().chain(&ids).map(|id| worker.start_as(attempt, *id));
            let answers = join_all(starts).await;
            let granted = answers.iter().filter(|a| matches!(a, Ok((_, false)))).count();
            assert_eq!(granted, 1, "{answers:?}");
            for (first, second) in answers.iter().zip(answers.iter().skip(10)) {
                assert_eq!(first.is_ok(), second.is_ok());
                if let Err(refused) = first {
                    assert_eq!(*refused, Rejection::AlreadyStarted(attempt.attempt_id));
                }
            }
            assert_eq!(rig.kinds(id).await.iter().filter(|k| **k == EventKind::Started).count(), 1);
            worker.finish(attempt, succeeded()).await;
        }
        rig.end().await;
    }

    async fn a_paused_queue_lets_claimed_work_start_and_end(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        let (id, attempt) = claimed(&rig, &mut worker).await;
        let pause = orbit::domain::queue::QueueChange::Pause;
        rig.engine.change_queue(QUEUE.to_owned(), pause, None, request()).await.expect("paused");
        worker.start(attempt).await;
        assert!(rig.engine.renew(&[attempt]).await.expect("renewed")[0].valid);
        worker.finish(attempt, succeeded()).await;
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Succeeded);
        rig.end().await;
    }

    // Sweep and start at the end of the window: a start that was granted is never called unstarted.
    async fn a_start_racing_the_sweep_is_granted_or_the_attempt_reclaimed_unstarted(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(64).await;
        let (mut won, mut lost) = (0, 0);
        for round in 0..100 {
            let (id, attempt) = claimed(&rig, &mut worker).await;
            let sql = format!("UPDATE leases SET lease_until = {} + {}", rig.database.now(), (round % 10) * 1_500);
            rig.database.sql(&sql).await;
            let sweeps = async {
                while matches!(rig.task(id).await.task.state, State::Leased(_)) {
                    rig.engine.sweep().await.expect("swept");
                }
            };
            let (answer, ()) = tokio::join!(worker.start_as(attempt, message_id()), sweeps);
            let kinds = rig.kinds(id).await;
            match answer {
                Ok(_) => {
                    won += 1;
                    assert_eq!(kinds, [EventKind::Accepted, EventKind::Leased, EventKind::Started]);
                    worker.finish(attempt, succeeded()).await;
                }
                Err(refused) => {
                    lost += 1;
                    assert_eq!(refused, Rejection::LeaseLost(attempt.attempt_id));
                    assert_eq!(kinds, [EventKind::Accepted, EventKind::Leased, EventKind::Requeued]);
                }
            }
        }
        assert!(won > 0 && lost > 0, "{won} won, {lost} lost");
        rig.end().await;
    }
}

//! Cancels: T49 (T48 stands with the other tests of cancelling).

use std::time::Duration;

use orbit::{
    domain::{
        event::EventKind,
        ids::TaskId,
        submission::Submission,
        task::{State, StateName},
    },
    engine::EngineOptions,
};

use crate::support::{eventually, on_every_database, rig::*};

fn waits_for(ms: u32) -> impl Fn(&mut Submission) {
    move |s| {
        s.policy.initial_delay_ms = ms;
        s.policy.max_delay_ms = ms;
    }
}

async fn cancel(rig: &Rig, id: TaskId) -> StateName {
    rig.engine.cancel_task(id, String::new(), request()).await.expect("an answer").task_state
}

on_every_database! {
    async fn t49_a_cancel_during_the_retry_wait_is_final(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        let certain = rig.submit(waits_for(600)).await;
        let (_, receipt) = worker.run(failed(true)).await;
        assert_eq!(receipt.task_state, StateName::Waiting);
        assert_eq!(cancel(&rig, certain).await, StateName::Canceled);
        let doubted = rig.submit(|s| {
            idempotent(s);
            waits_for(600)(s);
        }).await;
        let (_, receipt) = worker.run(unknown()).await;
        assert_eq!((receipt.task_state, receipt.effect_uncertain), (StateName::Waiting, true));
        assert_eq!(cancel(&rig, doubted).await, StateName::NeedsReview);
        worker.nothing_for(Duration::from_millis(900)).await;
        assert!(matches!(rig.task(certain).await.task.state, State::Canceled { .. }));
        let task = rig.task(doubted).await.task;
        assert_eq!((task.state, task.doubt, task.attempt_count), (State::NeedsReview, true, 1));
        rig.end().await;
    }

    // At the very moment when it becomes claimable, with many who want it.
    async fn t49_a_cancel_at_the_moment_of_the_claim_is_followed_by_none(database: TestDatabase) {
        let eager = EngineOptions { poll_interval: Duration::from_millis(5), ..options() };
        let rig = Rig::new(database, eager).await;
        let mut first = rig.worker(1).await;
        let (mut before, mut after) = (0, 0);
        for round in 0..25 {
            let in_doubt = round % 2 == 0;
            let id = rig.submit(|s| {
                idempotent(s);
                waits_for(400)(s);
            }).await;
            let report = if in_doubt { unknown() } else { failed(true) };
            let (_, receipt) = first.run(report).await;
            let due = receipt.next_available_at.expect("a retry").micros();
            drop(first);
            let mut claimers = Vec::new();
            for _ in 0..20 {
                claimers.push(rig.worker(1).await);
            }
            let close = due - 3_000 + i64::from(round % 6) * 1_500;
            eventually("it is about to be claimable", Duration::from_secs(5), || async {
                let now = rig.database.number(&format!("SELECT {}", rig.database.now())).await;
                // Polled from here, since the tests' helper sleeps between two looks.
                (now >= close - 25_000).then_some(())
            }).await;
            while rig.database.number(&format!("SELECT {}", rig.database.now())).await < close {}
            let state = cancel(&rig, id).await;
            let wanted = if in_doubt { StateName::NeedsReview } else { StateName::Canceled };
            assert_eq!(state, wanted);
            let kinds = rig.kinds(id).await;
            let claims = kinds.iter().filter(|k| **k == EventKind::Leased).count();
            if claims == 2 { after += 1 } else { before += 1 }
            let last = kinds.last().expect("events");
            assert!(matches!(last, EventKind::Canceled | EventKind::ReviewRequired), "{kinds:?}");
            drop(claimers);
            first = rig.worker(1).await;
            assert_eq!(rig.kinds(id).await, kinds, "nothing follows");
        }
        assert!(before > 0, "{before} before the claim, {after} after it");
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM leases").await, 0);
        rig.end().await;
    }
}

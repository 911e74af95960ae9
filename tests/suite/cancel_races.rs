//! A cancel against whatever else happens to the task at the same moment: reply, state and events agree, and there is one
//! end.

use std::time::Duration;

use futures_util::join;
use orbit::{
    domain::{
        event::EventKind,
        ids::TaskId,
        receipt::{Disposition, OperatorReceipt},
        rejection::Rejection,
        task::StateName,
    },
    engine::SeatEvent,
};
use tokio::time::timeout;

use crate::support::{on_every_database, rig::*};

const ROUNDS: usize = 300;

async fn cancel(rig: &Rig, id: TaskId) -> OperatorReceipt {
    rig.engine.cancel_task(id, String::new(), request()).await.expect("an answer")
}

/// Holds that the task ended once, and as its last event says.
async fn one_end(rig: &Rig, id: TaskId) -> StateName {
    let task = rig.task(id).await.task;
    let kinds = rig.kinds(id).await;
    let ends = [EventKind::Succeeded, EventKind::Failed, EventKind::Canceled, EventKind::ReviewRequired];
    let ended: Vec<_> = kinds.iter().filter(|k| ends.contains(k)).collect();
    let state = task.state.name();
    let expected = match state {
        StateName::Succeeded => EventKind::Succeeded,
        StateName::Failed => EventKind::Failed,
        StateName::Canceled => EventKind::Canceled,
        StateName::NeedsReview => EventKind::ReviewRequired,
        StateName::Waiting | StateName::Leased | StateName::Running => panic!("{state:?}: {kinds:?}"),
    };
    assert_eq!(ended, [&expected], "{kinds:?}");
    assert!(task.cancel.is_some() || state == StateName::Succeeded);
    state
}

async fn next_dispatch(worker: &mut TestWorker) -> orbit::engine::Dispatch {
    loop {
        let event = timeout(Duration::from_secs(10), worker.events.recv()).await.expect("a dispatch in time");
        if let Some(SeatEvent::Dispatch(dispatch)) = event {
            return *dispatch;
        }
    }
}

on_every_database! {
    // The claim comes first, and its attempt never starts; or the cancel, and nothing is claimed.
    async fn a_cancel_racing_the_claim_is_final(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let worker = rig.worker(1_000).await;
        for _ in 0..ROUNDS {
            let id = rig.submit(|_| {}).await;
            let receipt = cancel(&rig, id).await;
            assert_eq!((receipt.changed, receipt.task_state), (true, StateName::Canceled));
            assert_eq!(one_end(&rig, id).await, StateName::Canceled);
        }
        let claimed = rig.database.number("SELECT COUNT(*) FROM attempts").await;
        assert!(claimed > 0, "no claim ever came first");
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM attempts WHERE state <> 7").await, 0);
        drop(worker);
        rig.end().await;
    }

    async fn a_cancel_racing_the_start_is_seen_by_it_or_told_to_it(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(64).await;
        let (mut first, mut second) = (0, 0);
        for round in 0..ROUNDS {
            let id = rig.submit(|_| {}).await;
            let attempt = next_dispatch(&mut worker).await.attempt;
            let start = worker.start_as(attempt, message_id());
            let (started, canceled) = if round % 2 == 0 {
                join!(start, cancel(&rig, id))
            } else {
                let (canceled, started) = join!(cancel(&rig, id), start);
                (started, canceled)
            };
            assert!(canceled.changed);
            if started.is_ok() {
                second += 1;
                assert_eq!(canceled.task_state, StateName::Running);
                let receipt = worker.finish(attempt, failed(true)).await;
                assert_eq!(receipt.task_state, StateName::Canceled);
            } else {
                first += 1;
                assert_eq!(started, Err(Rejection::CancelRequested(id)));
                assert_eq!(canceled.task_state, StateName::Canceled);
            }
            assert_eq!(one_end(&rig, id).await, StateName::Canceled);
        }
        assert!(first > 0 && second > 0, "{first} cancels came first, {second} second");
        rig.end().await;
    }

    async fn a_cancel_racing_a_failure_is_never_followed_by_a_retry(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(64).await;
        for round in 0..ROUNDS {
            let id = rig.submit(|s| {
                s.policy.initial_delay_ms = 60_000;
                s.policy.max_delay_ms = 60_000;
            }).await;
            let attempt = next_dispatch(&mut worker).await.attempt;
            worker.start(attempt).await;
            let finish = worker.finish(attempt, failed(true));
            let (receipt, canceled) = if round % 2 == 0 {
                join!(finish, cancel(&rig, id))
            } else {
                let (canceled, receipt) = join!(cancel(&rig, id), finish);
                (receipt, canceled)
            };
            assert!(canceled.changed);
            assert_eq!(receipt.disposition, Disposition::Applied);
            let agree = matches!(
                (receipt.task_state, canceled.task_state),
                (StateName::Waiting, StateName::Canceled) | (StateName::Canceled, StateName::Running)
            );
            assert!(agree, "{receipt:?} {canceled:?}");
            assert_eq!(one_end(&rig, id).await, StateName::Canceled);
        }
        rig.end().await;
    }

    async fn a_cancel_racing_the_reclaim_keeps_the_doubt(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(64).await;
        for round in 0..ROUNDS {
            let id = rig.submit(|s| {
                idempotent(s);
                s.policy.initial_delay_ms = 60_000;
                s.policy.max_delay_ms = 60_000;
            }).await;
            let attempt = next_dispatch(&mut worker).await.attempt;
            worker.start(attempt).await;
            rig.database.sql("UPDATE leases SET lease_until = 1").await;
            let (swept, canceled) = if round % 2 == 0 {
                join!(rig.engine.sweep(), cancel(&rig, id))
            } else {
                let (canceled, swept) = join!(cancel(&rig, id), rig.engine.sweep());
                (swept, canceled)
            };
            assert!(canceled.changed);
            swept.expect("swept");
            rig.engine.sweep().await.expect("swept");
            assert_eq!(one_end(&rig, id).await, StateName::NeedsReview);
            assert!(rig.task(id).await.task.doubt);
        }
        rig.end().await;
    }
}

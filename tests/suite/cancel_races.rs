//! A cancel against whatever else happens to the task at the same moment: reply, state and events agree, and there is one
//! end.

use std::time::Duration;

use futures_util::{future::join_all, join};
use orbit::{
    domain::{
        event::EventKind,
        ids::{AttemptRef, TaskId},
        receipt::{Disposition, OperatorReceipt},
        rejection::Rejection,
        submission::Submission,
        task::StateName,
    },
    engine::SeatEvent,
};
use tokio::time::timeout;

use crate::support::{on_every_database, rig::*};

/// How often each race is run: in groups, so that they are run among others, too.
const ROUNDS: usize = 300;
const AT_ONCE: usize = 10;

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

async fn next_attempt(worker: &mut TestWorker) -> AttemptRef {
    loop {
        let event = timeout(Duration::from_secs(10), worker.events.recv()).await.expect("a dispatch in time");
        if let Some(SeatEvent::Dispatch(dispatch)) = event {
            return dispatch.attempt;
        }
    }
}

/// A group of attempts that may start.
async fn leased(rig: &Rig, worker: &mut TestWorker, change: fn(&mut Submission)) -> Vec<AttemptRef> {
    join_all((0..AT_ONCE).map(|_| rig.submit(change))).await;
    let mut attempts = Vec::new();
    for _ in 0..AT_ONCE {
        attempts.push(next_attempt(worker).await);
    }
    attempts
}

/// A group of attempts that run.
async fn running(rig: &Rig, worker: &mut TestWorker, change: fn(&mut Submission)) -> Vec<AttemptRef> {
    let attempts = leased(rig, worker, change).await;
    join_all(attempts.iter().map(|attempt| worker.start(*attempt))).await;
    attempts
}

/// Both at once; now the one is sent first, now the cancel.
async fn race<T>(
    rig: &Rig,
    n: usize,
    attempt: AttemptRef,
    other: impl Future<Output = T>,
) -> (T, OperatorReceipt) {
    let cancel = cancel(rig, attempt.task_id);
    if n.is_multiple_of(2) {
        join!(other, cancel)
    } else {
        let (canceled, other) = join!(cancel, other);
        (other, canceled)
    }
}

on_every_database! {
    // The claim comes first, and its attempt never starts; or the cancel, and nothing is claimed.
    async fn a_cancel_racing_the_claim_is_final(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let worker = rig.worker(1_000).await;
        for _ in 0..ROUNDS / AT_ONCE {
            join_all((0..AT_ONCE).map(async |_| {
                let id = rig.submit(|_| {}).await;
                let receipt = cancel(&rig, id).await;
                assert_eq!((receipt.changed, receipt.task_state), (true, StateName::Canceled));
                assert_eq!(one_end(&rig, id).await, StateName::Canceled);
            }))
            .await;
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
        let mut started_first = 0;
        for _ in 0..ROUNDS / AT_ONCE {
            let attempts = leased(&rig, &mut worker, |_| {}).await;
            let races = attempts.iter().enumerate().map(async |(n, attempt)| {
                let start = worker.start_as(*attempt, message_id());
                let (started, canceled) = race(&rig, n, *attempt, start).await;
                assert!(canceled.changed);
                let was_started = started.is_ok();
                if was_started {
                    assert_eq!(canceled.task_state, StateName::Running);
                    let receipt = worker.finish(*attempt, failed(true)).await;
                    assert_eq!(receipt.task_state, StateName::Canceled);
                } else {
                    assert_eq!(started, Err(Rejection::CancelRequested(attempt.task_id)));
                    assert_eq!(canceled.task_state, StateName::Canceled);
                }
                assert_eq!(one_end(&rig, attempt.task_id).await, StateName::Canceled);
                usize::from(was_started)
            });
            started_first += join_all(races).await.into_iter().sum::<usize>();
        }
        assert!((1..ROUNDS).contains(&started_first), "{started_first} of {ROUNDS} starts came first");
        rig.end().await;
    }

    // T48: reply, state and events agree whoever wins, and there is one end.
    async fn t48_a_cancel_racing_the_finish_has_one_outcome(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(64).await;
        let mut finished_first = 0;
        for _ in 0..ROUNDS / AT_ONCE {
            let attempts = running(&rig, &mut worker, |_| {}).await;
            let races = attempts.iter().enumerate().map(async |(n, attempt)| {
                let finish = worker.finish(*attempt, succeeded());
                let (receipt, canceled) = race(&rig, n, *attempt, finish).await;
                assert_eq!(receipt.task_state, StateName::Succeeded);
                let state = if canceled.changed { StateName::Running } else { StateName::Succeeded };
                assert_eq!(canceled.task_state, state);
                assert_eq!(one_end(&rig, attempt.task_id).await, StateName::Succeeded);
                usize::from(!canceled.changed)
            });
            finished_first += join_all(races).await.into_iter().sum::<usize>();
        }
        assert!((1..ROUNDS).contains(&finished_first), "{finished_first} of {ROUNDS} finishes came first");
        rig.end().await;
    }

    async fn a_cancel_racing_a_failure_is_never_followed_by_a_retry(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(64).await;
        for _ in 0..ROUNDS / AT_ONCE {
            let attempts = running(&rig, &mut worker, slow_retry).await;
            join_all(attempts.iter().enumerate().map(async |(n, attempt)| {
                let finish = worker.finish(*attempt, failed(true));
                let (receipt, canceled) = race(&rig, n, *attempt, finish).await;
                assert!(canceled.changed);
                assert_eq!(receipt.disposition, Disposition::Applied);
                let agree = matches!(
                    (receipt.task_state, canceled.task_state),
                    (StateName::Waiting, StateName::Canceled) | (StateName::Canceled, StateName::Running)
                );
                assert!(agree, "{receipt:?} {canceled:?}");
                assert_eq!(one_end(&rig, attempt.task_id).await, StateName::Canceled);
            }))
            .await;
        }
        rig.end().await;
    }

    async fn a_cancel_racing_the_reclaim_keeps_the_doubt(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(64).await;
        for _ in 0..ROUNDS / AT_ONCE {
            let attempts = running(&rig, &mut worker, |s| {
                idempotent(s);
                slow_retry(s);
            })
            .await;
            rig.database.sql("UPDATE leases SET lease_until = 1").await;
            join_all(attempts.iter().enumerate().map(async |(n, attempt)| {
                let (swept, canceled) = race(&rig, n, *attempt, rig.engine.sweep()).await;
                assert!(canceled.changed);
                swept.expect("swept");
                rig.engine.sweep().await.expect("swept");
                assert_eq!(one_end(&rig, attempt.task_id).await, StateName::NeedsReview);
                assert!(rig.task(attempt.task_id).await.task.doubt);
            }))
            .await;
        }
        rig.end().await;
    }
}

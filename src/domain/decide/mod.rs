//! Decisions: what a command, or time alone, does to a task.
//!
//! Each file is one verb. It looks at the task as locked in the database, judges by the database's time, and answers
//! with the whole change as a value, or with why there is none.

mod accept;
mod cancel;
mod claim;
mod finish;
mod lapse;
mod renew;
mod resolve;
mod start;
#[cfg(test)]
mod table_test;
mod verdict;
#[cfg(test)]
mod walk_test;

pub use accept::{Acceptance, accept};
pub use cancel::cancel;
pub use claim::{ClaimRefusal, claim};
pub use finish::{EvidenceRecord, FinishAnswer, Known, finish};
pub use lapse::lapse;
pub use renew::renew;
pub use resolve::{GRANTED_ATTEMPTS_MAX, Resolution, ResolvedTo, resolve};
pub use start::{StartAnswer, start};
pub use verdict::{Ending, Facts, Next, Verdict, verdict};

use super::{
    attempt::{AttemptEnd, EndedAttempt, Lease},
    backoff,
    event::{Event, EventKind},
    ids::Actor,
    task::{State, Task},
    time::Moment,
};

/// Why an ending led where it did (S7): the first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// An attempt with authority succeeded.
    Succeeded,
    /// A cancel was recorded, and the worker confirmed that it stopped.
    CancelConfirmed,
    /// A cancel was recorded.
    CancelRequested,
    /// The worker reported a failure that must not be retried.
    NonRetryableFailure,
    /// In doubt and RECONCILE_ONLY.
    ReconciliationRequired,
    /// The budget is spent.
    AttemptLimit,
    /// The next claim would not be strictly before the deadline.
    DeadlineExceeded,
    /// The next claim would not be strictly before `start_before`.
    StartDeadlineExceeded,
    /// Retried: a failure that is safe to retry.
    RetryableFailure,
    /// Retried: the effect is unknown, and the task is IDEMPOTENT.
    IdempotentUnknown,
    /// Retried: nothing was started.
    UnstartedLeaseExpired,
    /// A person resolved it.
    ResolvedByOperator,
}

impl Decision {
    /// Its name in the contract, which also stands as the error code of a task that failed without a worker's error.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "SUCCEEDED",
            Self::CancelConfirmed => "CANCEL_CONFIRMED",
            Self::CancelRequested => "CANCEL_REQUESTED",
            Self::NonRetryableFailure => "NON_RETRYABLE_FAILURE",
            Self::ReconciliationRequired => "RECONCILIATION_REQUIRED",
            Self::AttemptLimit => "ATTEMPT_LIMIT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::StartDeadlineExceeded => "START_DEADLINE_EXCEEDED",
            Self::RetryableFailure => "RETRYABLE_FAILURE",
            Self::IdempotentUnknown => "IDEMPOTENT_UNKNOWN",
            Self::UnstartedLeaseExpired => "UNSTARTED_LEASE_EXPIRED",
            Self::ResolvedByOperator => "RESOLVED_BY_OPERATOR",
        }
    }
}

/// What brought a decision about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A worker's report.
    Reported,
    /// The lease ended.
    LeaseExpired,
    /// The attempt's time ended.
    AttemptTimeout,
    /// The task's time ended.
    TaskDeadline,
    /// `start_before` passed.
    StartDeadline,
    /// A cancel.
    Cancel,
    /// A person.
    Operator,
}

/// A change of a task: what is written, all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The task after it.
    pub task: Task,
    /// The event that tells of it.
    pub event: Event,
    /// The attempt that it ended.
    pub ended: Option<EndedAttempt>,
}

/// Writes a change down: the next revision, its time, its event.
fn change(task: &Task, state: State, now: Moment, kind: EventKind, actor: &Actor) -> Transition {
    let task = Task { state, revision: task.revision + 1, updated_at: now, ..task.clone() };
    let event = Event {
        epoch: (task.attempt_count > 0).then_some(task.attempt_count),
        ..Event::of(&task, kind, now, actor)
    };
    Transition { task, event, ended: None }
}

/// Ends the current attempt and moves the task to where the decision table says.
fn end_attempt(
    task: &Task,
    lease: &Lease,
    started_at: Option<Moment>,
    end: AttemptEnd,
    cause: Cause,
    now: Moment,
    actor: &Actor,
) -> Transition {
    let epoch = task.attempt_count;
    let delay_ms = backoff::delay_ms(&task.policy, epoch, lease.attempt_id);
    let retry_at = now.plus_ms(delay_ms);
    let Verdict { next, decision, doubt } = verdict(&Facts {
        ending: Ending::of(&end, started_at),
        safety: task.policy.recovery_safety,
        doubt: task.doubt,
        attempts: task.attempt_count,
        attempt_limit: task.attempt_limit(),
        canceled: task.cancel.is_some(),
        retry_at,
        deadline_at: task.deadline_at,
        start_before: task.start_before,
    });
    let (state, kind) = match next {
        Next::Succeeded => (State::Succeeded { completed_at: now }, EventKind::Succeeded),
        Next::Retry => (State::Waiting { available_at: retry_at }, EventKind::Requeued),
        Next::Failed => (State::Failed { completed_at: now }, EventKind::Failed),
        Next::Canceled => (State::Canceled { completed_at: now }, EventKind::Canceled),
        Next::NeedsReview => (State::NeedsReview, EventKind::ReviewRequired),
    };
    let delay_ms = (next == Next::Retry).then_some(delay_ms);
    let after = Task { doubt, last_decision: Some(decision), ..task.clone() };
    let mut transition = change(&after, state, now, kind, actor);
    transition.event.decision = Some(decision);
    transition.event.cause = Some(cause);
    transition.event.delay_ms = delay_ms;
    transition.ended = Some(EndedAttempt {
        epoch,
        lease: lease.clone(),
        started_at,
        ended_at: now,
        end,
        decision,
        cause,
        delay_ms,
    });
    transition
}

#[cfg(test)]
mod tests {
    use super::Decision;

    #[test]
    fn decisions_are_named_as_in_the_contract() {
        let names = [
            (Decision::Succeeded, "SUCCEEDED"),
            (Decision::CancelConfirmed, "CANCEL_CONFIRMED"),
            (Decision::CancelRequested, "CANCEL_REQUESTED"),
            (Decision::NonRetryableFailure, "NON_RETRYABLE_FAILURE"),
            (Decision::ReconciliationRequired, "RECONCILIATION_REQUIRED"),
            (Decision::AttemptLimit, "ATTEMPT_LIMIT"),
            (Decision::DeadlineExceeded, "DEADLINE_EXCEEDED"),
            (Decision::StartDeadlineExceeded, "START_DEADLINE_EXCEEDED"),
            (Decision::RetryableFailure, "RETRYABLE_FAILURE"),
            (Decision::IdempotentUnknown, "IDEMPOTENT_UNKNOWN"),
            (Decision::UnstartedLeaseExpired, "UNSTARTED_LEASE_EXPIRED"),
            (Decision::ResolvedByOperator, "RESOLVED_BY_OPERATOR"),
        ];
        for (decision, name) in names {
            assert_eq!(decision.name(), name);
        }
    }
}

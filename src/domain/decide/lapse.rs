//! What time alone does to a task.

use crate::domain::{
    attempt::{AttemptEnd, Lease},
    event::EventKind,
    ids::Actor,
    task::{State, Task},
    time::Moment,
};

use super::{Cause, Decision, Transition, change, end_attempt};

/// Reclaims an attempt whose lease has ended, or ends the wait of a task that can no longer be claimed. Nothing if
/// neither is so: whatever the caller believed when it asked, only the locked task and `now` count.
pub fn lapse(task: &Task, now: Moment, actor: &Actor) -> Option<Transition> {
    match &task.state {
        State::Waiting { .. } if now >= task.expires_at() => Some(end_wait(task, now, actor)),
        State::Leased(lease) if now >= lease.lease_until => {
            let cause = lease_cause(task, lease, now, Cause::StartDeadline);
            Some(end_attempt(task, lease, None, AttemptEnd::Unstarted, cause, now, actor))
        }
        State::Running { lease, started_at } if now >= lease.lease_until => {
            let cause = lease_cause(task, lease, now, Cause::AttemptTimeout);
            let end = AttemptEnd::Unknown { error: None };
            Some(end_attempt(task, lease, Some(*started_at), end, cause, now, actor))
        }
        State::Waiting { .. }
        | State::Leased(_)
        | State::Running { .. }
        | State::Succeeded { .. }
        | State::Failed { .. }
        | State::Canceled { .. }
        | State::NeedsReview => None,
    }
}

/// Which limit ended the lease: `at_cap` if it ran to its cap and that was not the deadline.
fn lease_cause(task: &Task, lease: &Lease, now: Moment, at_cap: Cause) -> Cause {
    if now >= task.deadline_at {
        Cause::TaskDeadline
    } else if now >= lease.cap_at {
        at_cap
    } else {
        Cause::LeaseExpired
    }
}

fn end_wait(task: &Task, now: Moment, actor: &Actor) -> Transition {
    let (decision, cause) = if now >= task.deadline_at {
        (Decision::DeadlineExceeded, Cause::TaskDeadline)
    } else {
        (Decision::StartDeadlineExceeded, Cause::StartDeadline)
    };
    let (state, kind) = if task.doubt {
        (State::NeedsReview, EventKind::ReviewRequired)
    } else {
        (State::Failed { completed_at: now }, EventKind::Failed)
    };
    let task = Task { last_decision: Some(decision), ..task.clone() };
    let mut transition = change(&task, state, now, kind, actor);
    transition.event.decision = Some(decision);
    transition.event.cause = Some(cause);
    transition
}

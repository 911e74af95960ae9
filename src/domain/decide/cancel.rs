//! Cancelling (S24): it blocks every later attempt, and never wipes out a doubt.

use crate::domain::{
    attempt::AttemptEnd,
    event::EventKind,
    ids::Actor,
    task::{CancelRecord, State, Task},
    time::Moment,
};

use super::{Cause, Decision, Transition, change, end_attempt};

/// Records a cancel, and ends what has not started. None if the task has ended, or a cancel is recorded already.
///
/// A running attempt goes on until its worker reports or its lease ends; a task in review stays there.
pub fn cancel(task: &Task, reason: &str, now: Moment, actor: &Actor) -> Option<Transition> {
    if task.cancel.is_some() {
        return None;
    }
    let record =
        CancelRecord { requested_at: now, requested_by: actor.principal.clone(), reason: reason.into() };
    let task = Task { cancel: Some(record), ..task.clone() };
    let mut transition = match &task.state {
        State::Waiting { .. } => end_wait(&task, now, actor),
        State::Leased(lease) => {
            let end = AttemptEnd::Canceled { error: None };
            end_attempt(&task, lease, None, end, Cause::Cancel, now, actor)
        }
        State::Running { .. } | State::NeedsReview => {
            change(&task, task.state.clone(), now, EventKind::CancelRequested, actor)
        }
        State::Succeeded { .. } | State::Failed { .. } | State::Canceled { .. } => return None,
    };
    transition.event.cause = Some(Cause::Cancel);
    transition.event.note = (!reason.is_empty()).then(|| reason.to_owned());
    Some(transition)
}

fn end_wait(task: &Task, now: Moment, actor: &Actor) -> Transition {
    let decision = Decision::CancelRequested;
    let (state, kind) = if task.doubt {
        (State::NeedsReview, EventKind::ReviewRequired)
    } else {
        (State::Canceled { completed_at: now }, EventKind::Canceled)
    };
    let task = Task { last_decision: Some(decision), ..task.clone() };
    let mut transition = change(&task, state, now, kind, actor);
    transition.event.decision = Some(decision);
    transition
}

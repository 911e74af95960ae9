//! Authorizing a start: after it the effect may have happened.

use crate::domain::{
    attempt::Lease,
    event::EventKind,
    ids::Actor,
    receipt::{Receipt, ReceiptBook},
    rejection::{Rejection, TimeLimit},
    report::{MessageKind, Start},
    task::{State, Task},
    time::Moment,
};

use super::{Known, Transition, change};

/// What a start leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAnswer {
    /// It is authorized now.
    Granted(Box<Transition>, Receipt),
    /// It was authorized by this very message before.
    Replay(Receipt),
}

/// Authorizes a start under a valid lease, once. A granted lease lasts `lease_ms`, at most the attempt's time and the
/// deadline (S11). Pause is not looked at: a paused queue lets claimed work go on (S10).
pub fn start(
    task: &Task,
    known: Known,
    book: &ReceiptBook,
    message: &Start,
    lease_ms: u32,
    now: Moment,
    actor: &Actor,
) -> Result<StartAnswer, Rejection> {
    let attempt_id = message.attempt.attempt_id;
    known.or_not_found(message.attempt)?;
    let digest = message.digest();
    if let Some(receipt) = book.replay(message.message_id, digest)? {
        return Ok(StartAnswer::Replay(receipt.clone()));
    }
    if task.cancel.is_some() {
        return Err(Rejection::CancelRequested(task.id));
    }
    let lease = match (&task.state, task.lease_of(message.attempt)) {
        (State::Running { .. }, Some(_)) => return Err(Rejection::AlreadyStarted(attempt_id)),
        (State::Leased(_), Some(lease)) => lease,
        _ if book.applied(digest).is_some() => return Err(Rejection::AlreadyStarted(attempt_id)),
        _ => return Err(Rejection::LeaseLost(attempt_id)),
    };
    if now >= task.deadline_at {
        return Err(Rejection::DeadlineExceeded { task_id: task.id, limit: TimeLimit::Deadline });
    }
    if task.start_before.is_some_and(|s| now >= s) {
        return Err(Rejection::DeadlineExceeded { task_id: task.id, limit: TimeLimit::StartBefore });
    }
    if now >= lease.lease_until {
        return Err(Rejection::LeaseLost(attempt_id));
    }
    let cap_at = now.plus_ms(task.policy.attempt_timeout_ms).min(task.deadline_at);
    let lease = Lease { lease_until: now.plus_ms(lease_ms).min(cap_at), cap_at, ..lease.clone() };
    let state = State::Running { lease, started_at: now };
    let transition = change(task, state, now, EventKind::Started, actor);
    let receipt = Receipt::applied(message.message_id, MessageKind::Start, digest, &transition.task, None);
    Ok(StartAnswer::Granted(Box::new(transition), receipt))
}

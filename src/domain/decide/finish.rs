//! Taking a report: applied with authority, kept as evidence without.

use crate::domain::{
    attempt::AttemptEnd,
    event::{Event, EventKind},
    ids::{Actor, AttemptRef, Epoch},
    receipt::{EVIDENCE_MAX, Receipt, ReceiptBook},
    rejection::Rejection,
    report::{Finish, MessageKind, Report},
    task::{State, Task},
    time::Moment,
};

use super::{Cause, Transition, end_attempt};

/// Whether the task ever had the attempt that a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is the current attempt, or one that ended.
    Yes,
    /// Never heard of it.
    No,
}

impl Known {
    /// Refuses an attempt that the task never had.
    pub fn or_not_found(self, attempt: AttemptRef) -> Result<(), Rejection> {
        match self {
            Self::Yes => Ok(()),
            Self::No => {
                Err(Rejection::AttemptNotFound { task_id: attempt.task_id, attempt_id: attempt.attempt_id })
            }
        }
    }
}

/// A report without authority, to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceRecord {
    /// The attempt that it speaks of.
    pub attempt: AttemptRef,
    /// From 1, within the attempt.
    pub ordinal: u32,
    /// What it claims.
    pub message: Finish,
    /// When it arrived.
    pub received_at: Moment,
}

/// What a report leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishAnswer {
    /// It had authority.
    Applied(Box<Transition>, Receipt),
    /// This very message came before.
    Replay(Receipt),
    /// The same result was applied under another id; the new id is stored as its alias if `store` says so.
    Alias {
        /// The receipt of the applied result, under the new id.
        receipt: Receipt,
        /// Whether to store it.
        store: bool,
    },
    /// It had none.
    Evidence(Box<EvidenceRecord>, Box<Event>, Receipt),
}

/// Takes a report (S13–S16).
pub fn finish(
    task: &Task,
    known: Known,
    book: &ReceiptBook,
    message: &Finish,
    now: Moment,
    actor: &Actor,
) -> Result<FinishAnswer, Rejection> {
    known.or_not_found(message.attempt)?;
    let digest = message.digest();
    if let Some(receipt) = book.replay(message.message_id, digest)? {
        return Ok(FinishAnswer::Replay(receipt.clone()));
    }
    if let Some(applied) = book.applied(digest) {
        let receipt = Receipt { message_id: message.message_id, ..applied.clone() };
        return Ok(FinishAnswer::Alias { receipt, store: book.keeps_alias() });
    }
    if matches!(message.report, Report::Canceled { .. }) && task.cancel.is_none() {
        return Err(Rejection::CancelNotRequested(task.id));
    }
    let authority = match (&task.state, task.lease_of(message.attempt)) {
        (State::Running { started_at, .. }, Some(lease)) if now < lease.lease_until => {
            Some((lease, *started_at))
        }
        _ => None,
    };
    let Some((lease, started_at)) = authority else {
        return keep_evidence(task, book, message, now, actor);
    };
    let end = match message.report.clone() {
        Report::Succeeded { result } => AttemptEnd::Succeeded { result },
        Report::Failed { retryable, error } => AttemptEnd::Failed { retryable, error },
        Report::Unknown { error } => AttemptEnd::Unknown { error },
        Report::Canceled { error } => AttemptEnd::Canceled { error },
    };
    let transition = end_attempt(task, lease, Some(started_at), end, Cause::Reported, now, actor);
    let decision = transition.task.last_decision;
    let receipt =
        Receipt::applied(message.message_id, MessageKind::Finish, digest, &transition.task, decision);
    Ok(FinishAnswer::Applied(Box::new(transition), receipt))
}

fn keep_evidence(
    task: &Task,
    book: &ReceiptBook,
    message: &Finish,
    now: Moment,
    actor: &Actor,
) -> Result<FinishAnswer, Rejection> {
    let count = book.evidence_count();
    if count >= EVIDENCE_MAX {
        return Err(Rejection::EvidenceLimit(message.attempt.attempt_id));
    }
    let ordinal = count + 1;
    let mut event = Event::of(task, EventKind::EvidenceRecorded, now, actor);
    event.epoch = Some(message.attempt.epoch);
    event.ordinal = evidence_event_ordinal(message.attempt.epoch, ordinal);
    let receipt = Receipt::evidence(message.message_id, MessageKind::Finish, message.digest(), task, now);
    let record =
        EvidenceRecord { attempt: message.attempt, ordinal, message: message.clone(), received_at: now };
    Ok(FinishAnswer::Evidence(Box::new(record), Box::new(event), receipt))
}

/// Evidence leaves the revision alone, so its events share the revision of the last change. Counting over all attempts
/// of the task (16 places each) gives each its own ordinal, after the change's own 0.
fn evidence_event_ordinal(epoch: Epoch, ordinal: u32) -> u32 {
    epoch.saturating_sub(1).saturating_mul(EVIDENCE_MAX).saturating_add(ordinal)
}

#[cfg(test)]
mod tests;

//! The record of every change of a task.

use super::{
    decide::{Cause, Decision},
    ids::{Actor, Epoch},
    task::{StateName, Task},
    time::Moment,
};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `task.accepted`
    Accepted,
    /// `task.leased`
    Leased,
    /// `task.started`
    Started,
    /// `task.requeued`
    Requeued,
    /// `task.succeeded`
    Succeeded,
    /// `task.failed`
    Failed,
    /// `task.canceled`
    Canceled,
    /// `task.review_required`
    ReviewRequired,
    /// `task.evidence_recorded`: the only event that is no change of the task.
    EvidenceRecorded,
    /// `task.cancel_requested`: recorded while the task went on.
    CancelRequested,
    /// `task.resolved`
    Resolved,
}

/// One event, written in the transaction of what it tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// When, by the database's clock.
    pub at: Moment,
    /// The revision that it brought about; for evidence, the one that it left alone.
    pub revision: u32,
    /// Orders events of one revision. 0 for the change itself.
    pub ordinal: u32,
    /// The task's state after it.
    pub state: StateName,
    /// The attempt concerned.
    pub epoch: Option<Epoch>,
    /// What was decided.
    pub decision: Option<Decision>,
    /// What brought it about.
    pub cause: Option<Cause>,
    /// With a retry: the backoff, in milliseconds.
    pub delay_ms: Option<u32>,
    /// While waiting: the earliest claim.
    pub next_available_at: Option<Moment>,
    /// Attempts claimed so far.
    pub attempt_count: u32,
    /// How many may be claimed in all.
    pub max_attempts: u32,
    /// The task's doubt after it.
    pub effect_uncertain: bool,
    /// Who caused it.
    pub actor: Actor,
    /// A person's reason, if one was given.
    pub note: Option<String>,
    /// Where a person's evidence lies.
    pub references: Vec<String>,
}

impl Event {
    /// An event that tells of `task` as it stands.
    pub fn of(task: &Task, kind: EventKind, at: Moment, actor: &Actor) -> Self {
        let next_available_at = match task.state {
            super::task::State::Waiting { available_at } => Some(available_at),
            _ => None,
        };
        Self {
            kind,
            at,
            revision: task.revision,
            ordinal: 0,
            state: task.state.name(),
            epoch: None,
            decision: None,
            cause: None,
            delay_ms: None,
            next_available_at,
            attempt_count: task.attempt_count,
            max_attempts: task.attempt_limit(),
            effect_uncertain: task.doubt,
            actor: actor.clone(),
            note: None,
            references: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{NOW, actor, doubted, running, waiting};

    #[test]
    fn an_event_tells_of_the_task_as_it_stands() {
        let task = Task { granted_attempts: 2, ..doubted(&running()) };
        let event = Event::of(&task, EventKind::Started, NOW, &actor());
        let expected = Event {
            kind: EventKind::Started,
            at: NOW,
            revision: 3,
            ordinal: 0,
            state: StateName::Running,
            epoch: None,
            decision: None,
            cause: None,
            delay_ms: None,
            next_available_at: None,
            attempt_count: 1,
            max_attempts: 5,
            effect_uncertain: true,
            actor: actor(),
            note: None,
            references: vec![],
        };
        assert_eq!(event, expected);
    }

    #[test]
    fn an_event_of_a_waiting_task_says_when_it_may_be_claimed() {
        let event = Event::of(&waiting(), EventKind::Accepted, NOW, &actor());
        assert_eq!((event.next_available_at, event.effect_uncertain), (Some(NOW), false));
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        fixtures::{
            NOW, actor, attempt_ref, canceled, doubted, ended, idempotent, in_review, leased, running,
            waiting,
        },
        task::StateName,
    };

    fn cancel_now(task: &Task) -> Transition {
        cancel(task, "not wanted", NOW.plus_ms(1), &actor()).expect("a change")
    }

    #[test]
    fn what_has_not_started_ends_at_once_and_a_doubt_goes_to_review() {
        use StateName::{Canceled, NeedsReview};
        let table = [
            (waiting(), Canceled, EventKind::Canceled, false),
            (doubted(&waiting()), NeedsReview, EventKind::ReviewRequired, true),
            (doubted(&idempotent(&waiting())), NeedsReview, EventKind::ReviewRequired, true),
            (leased(), Canceled, EventKind::Canceled, false),
            (doubted(&idempotent(&leased())), NeedsReview, EventKind::ReviewRequired, true),
        ];
        for (task, state, kind, doubt) in table {
            let Transition { task: after, event, .. } = cancel_now(&task);
            assert_eq!((after.state.name(), after.doubt, event.kind), (state, doubt, kind), "{task:?}");
            assert_eq!(after.last_decision, Some(Decision::CancelRequested));
            assert_eq!(event.decision, Some(Decision::CancelRequested));
            if state == Canceled {
                assert_eq!(after.state, State::Canceled { completed_at: NOW.plus_ms(1) });
            }
        }
    }

    #[test]
    fn a_leased_attempt_is_history_afterwards_and_a_wait_has_none() {
        let ended = cancel_now(&leased()).ended.expect("its attempt");
        assert_eq!((ended.epoch, ended.started_at, ended.delay_ms), (1, None, None));
        assert_eq!((ended.end, ended.cause), (AttemptEnd::Canceled { error: None }, Cause::Cancel));
        assert_eq!(ended.decision, Decision::CancelRequested);
        assert_eq!(cancel_now(&waiting()).ended, None);
    }

    #[test]
    fn what_runs_or_waits_for_review_stays_with_the_wish_recorded() {
        for task in [running(), doubted(&running()), in_review()] {
            let Transition { task: after, event, ended } = cancel_now(&task);
            assert_eq!((&after.state, after.doubt, ended), (&task.state, task.doubt, None));
            assert_eq!((event.kind, event.decision), (EventKind::CancelRequested, None));
            assert_eq!(after.last_decision, task.last_decision);
            assert_eq!(after.lease_of(attempt_ref(1)), task.lease_of(attempt_ref(1)));
        }
    }

    #[test]
    fn every_cancel_is_recorded_with_its_reason_and_one_event() {
        let record = CancelRecord {
            requested_at: NOW.plus_ms(1),
            requested_by: actor().principal,
            reason: "not wanted".into(),
        };
        for task in [waiting(), leased(), running(), in_review()] {
            let Transition { task: after, event, .. } = cancel_now(&task);
            assert_eq!(after.cancel.as_ref(), Some(&record));
            assert_eq!((after.revision, event.revision), (task.revision + 1, task.revision + 1));
            assert_eq!((event.cause, event.note.as_deref()), (Some(Cause::Cancel), Some("not wanted")));
            let silent = cancel(&task, "", NOW, &actor()).expect("a change");
            assert_eq!(silent.event.note, None);
        }
    }

    #[test]
    fn a_second_cancel_and_one_after_the_end_change_nothing() {
        let again = [canceled(&running()), canceled(&in_review()), canceled(&doubted(&waiting()))];
        for task in ended().into_iter().chain(again) {
            assert_eq!(cancel(&task, "again", NOW, &actor()), None, "{:?}", task.state);
        }
    }
}

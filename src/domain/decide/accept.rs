//! Accepting a new task.

use crate::domain::{
    event::{Event, EventKind},
    ids::{Actor, Route, TaskId},
    rejection::{FieldProblem, Rejection},
    submission::Submission,
    task::{State, Task},
    time::Moment,
};

use super::Transition;

/// What a new task is made of, beside the submission.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// The new task's id.
    pub task_id: TaskId,
    /// Where it will wait.
    pub route: Route,
}

/// Accepts a submission whose key is new, unless its moments do not fit together:
/// `not_before` < `start_before` ≤ deadline.
pub fn accept(
    submission: &Submission,
    acceptance: &Acceptance,
    now: Moment,
    actor: &Actor,
) -> Result<Transition, Rejection> {
    let deadline_at = now.plus_ms(submission.policy.task_timeout_ms);
    let available_at = submission.not_before.map_or(now, |at| at.max(now));
    let mut problems = Vec::new();
    if available_at >= deadline_at {
        let what = "must be before the task's deadline, which is acceptance plus task_timeout_ms";
        problems.push(FieldProblem::new("not_before", what));
    }
    if let Some(start_before) = submission.start_before {
        if start_before <= available_at {
            let what = "must be later than now and than not_before";
            problems.push(FieldProblem::new("start_before", what));
        }
        if start_before > deadline_at {
            let what = "must not be later than the task's deadline, which is acceptance plus task_timeout_ms";
            problems.push(FieldProblem::new("start_before", what));
        }
    }
    if !problems.is_empty() {
        return Err(Rejection::Invalid(problems));
    }
    let task = Task {
        id: acceptance.task_id,
        route: acceptance.route,
        policy: submission.policy,
        granted_attempts: 0,
        created_at: now,
        updated_at: now,
        deadline_at,
        start_before: submission.start_before,
        payload_bytes: u32::try_from(submission.payload.as_str().len()).unwrap_or(u32::MAX),
        state: State::Waiting { available_at },
        revision: 1,
        attempt_count: 0,
        doubt: false,
        cancel: None,
        last_decision: None,
        verdict: None,
    };
    let event = Event::of(&task, EventKind::Accepted, now, actor);
    Ok(Transition { task, event, ended: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{acceptance, actor, around, submission};

    const NOW: Moment = Moment::from_micros(1_000_000_000);

    fn bad_fields(change: impl FnOnce(&mut Submission)) -> Vec<&'static str> {
        let mut submission = submission();
        submission.policy.task_timeout_ms = 1_000;
        change(&mut submission);
        match accept(&submission, &acceptance(), NOW, &actor()) {
            Ok(_) => vec![],
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_past_not_before_means_now() {
        let past = Submission { not_before: Some(Moment::from_micros(1)), ..submission() };
        let accepted = accept(&past, &acceptance(), NOW, &actor()).expect("accepted");
        assert_eq!(accepted.task.state, State::Waiting { available_at: NOW });
        assert_eq!((accepted.task.revision, accepted.event.kind), (1, EventKind::Accepted));
    }

    #[test]
    fn moments_must_fit_together_and_equal_is_too_late() {
        let deadline = NOW.plus_ms(1_000);
        assert!(bad_fields(|s| s.not_before = Some(NOW.plus_ms(999))).is_empty());
        assert_eq!(bad_fields(|s| s.not_before = Some(deadline)), ["not_before"]);
        assert!(bad_fields(|s| s.start_before = Some(deadline)).is_empty());
        assert_eq!(bad_fields(|s| s.start_before = Some(deadline.plus_ms(1))), ["start_before"]);
        assert_eq!(bad_fields(|s| s.start_before = Some(NOW)), ["start_before"]);
        let both = |s: &mut Submission| {
            s.not_before = Some(NOW.plus_ms(10));
            s.start_before = Some(NOW.plus_ms(10));
        };
        assert_eq!(bad_fields(both), ["start_before"]);
    }

    #[test]
    fn moments_are_judged_to_the_microsecond() {
        let deadline = NOW.plus_ms(1_000);
        let not_before = |at| bad_fields(|s| s.not_before = Some(at)).is_empty();
        assert_eq!(around(deadline).map(not_before), [true, false, false]);
        let start_before = |at| bad_fields(|s| s.start_before = Some(at)).is_empty();
        assert_eq!(around(deadline).map(start_before), [true, true, false]);
        assert_eq!(around(NOW).map(start_before), [false, false, true]);
    }

    #[test]
    fn a_new_task_has_everything_at_its_beginning() {
        let submission = Submission {
            not_before: Some(NOW.plus_ms(5)),
            start_before: Some(NOW.plus_ms(9)),
            ..submission()
        };
        let Transition { task, event, ended } =
            accept(&submission, &acceptance(), NOW, &actor()).expect("accepted");
        let expected = Task {
            id: acceptance().task_id,
            route: acceptance().route,
            policy: submission.policy,
            granted_attempts: 0,
            created_at: NOW,
            updated_at: NOW,
            deadline_at: NOW.plus_ms(submission.policy.task_timeout_ms),
            start_before: Some(NOW.plus_ms(9)),
            payload_bytes: 25,
            state: State::Waiting { available_at: NOW.plus_ms(5) },
            revision: 1,
            attempt_count: 0,
            doubt: false,
            cancel: None,
            last_decision: None,
            verdict: None,
        };
        assert_eq!(task, expected);
        assert_eq!((event.at, event.epoch, event.decision, ended), (NOW, None, None, None));
    }
}

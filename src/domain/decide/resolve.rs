//! Leaving review (S25): only a person does, and says what was verified.

use crate::domain::{
    event::EventKind,
    ids::Actor,
    json::JsonText,
    policy::RecoverySafety,
    rejection::{FieldProblem, Rejection},
    report::TaskError,
    task::{OperatorVerdict, State, StateName, Task},
    time::Moment,
};

use super::{Cause, Decision, Transition, change};

/// The most attempts that operators may add to one task in all.
pub const GRANTED_ATTEMPTS_MAX: u32 = 1_000;

/// What a person found out and wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The revision that the person looked at.
    pub expected_revision: u32,
    /// Whether the effect was verified at the resource.
    pub effect_verified: bool,
    /// Why, for the record.
    pub reason: String,
    /// Where the evidence lies, for the record.
    pub evidence: Vec<String>,
    /// Where the task goes.
    pub outcome: ResolvedTo,
}

/// Where a resolved task goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedTo {
    /// The effect happened.
    Succeeded {
        /// What it returned.
        result: JsonText,
    },
    /// It did not.
    Failed {
        /// Why.
        error: TaskError,
    },
    /// It did not, and is not wanted any more.
    Canceled,
    /// It may be tried again.
    Retry {
        /// Attempts added to the limit.
        granted_attempts: u32,
        /// The new deadline, in milliseconds from now.
        task_timeout_ms: u32,
        /// The new latest start; none drops it.
        start_before: Option<Moment>,
    },
}

/// Resolves a task in review.
pub fn resolve(
    task: &Task,
    resolution: &Resolution,
    now: Moment,
    actor: &Actor,
) -> Result<Transition, Rejection> {
    if task.state != State::NeedsReview {
        return Err(Rejection::IllegalState { task_id: task.id, state: task.state.name() });
    }
    if resolution.expected_revision != task.revision {
        let (expected, actual) = (resolution.expected_revision, task.revision);
        return Err(Rejection::RevisionMismatch { expected, actual });
    }
    let verified = resolution.effect_verified;
    let ended = |verdict| Task { doubt: false, verdict, ..task.clone() };
    let (after, state) = match &resolution.outcome {
        ResolvedTo::Retry { .. } => retried(task, resolution, now)?,
        _ if !verified => {
            let what = "must be true for this outcome: verify the effect at the resource first";
            return Err(Rejection::field("effect_verified", what));
        }
        ResolvedTo::Succeeded { result } => {
            let verdict = Some(OperatorVerdict::Result(result.clone()));
            (ended(verdict), State::Succeeded { completed_at: now })
        }
        ResolvedTo::Failed { error } => {
            (ended(Some(OperatorVerdict::Error(error.clone()))), State::Failed { completed_at: now })
        }
        ResolvedTo::Canceled => (ended(None), State::Canceled { completed_at: now }),
    };
    let decision = Decision::ResolvedByOperator;
    let after = Task { last_decision: Some(decision), ..after };
    let mut transition = change(&after, state, now, EventKind::Resolved, actor);
    transition.event.decision = Some(decision);
    transition.event.cause = Some(Cause::Operator);
    transition.event.note = Some(resolution.reason.clone());
    transition.event.references.clone_from(&resolution.evidence);
    Ok(transition)
}

fn retried(task: &Task, resolution: &Resolution, now: Moment) -> Result<(Task, State), Rejection> {
    let ResolvedTo::Retry { granted_attempts, task_timeout_ms, start_before } = resolution.outcome else {
        return Err(Rejection::IllegalState { task_id: task.id, state: StateName::NeedsReview });
    };
    if task.cancel.is_some() {
        return Err(Rejection::CancelRequested(task.id));
    }
    let deadline_at = now.plus_ms(task_timeout_ms);
    let granted_attempts = task.granted_attempts.saturating_add(granted_attempts);
    let mut problems = Vec::new();
    if task.policy.recovery_safety == RecoverySafety::ReconcileOnly && !resolution.effect_verified {
        let what =
            "must be true to retry a RECONCILE_ONLY task: verify at the resource that nothing happened";
        problems.push(FieldProblem::new("effect_verified", what));
    }
    if granted_attempts > GRANTED_ATTEMPTS_MAX {
        let what = format!("would make {granted_attempts} granted attempts; at most {GRANTED_ATTEMPTS_MAX}");
        problems.push(FieldProblem::new("retry.granted_attempts", what));
    } else if task.attempt_count >= task.policy.max_attempts.saturating_add(granted_attempts) {
        let what = "must leave an attempt: the budget is spent";
        problems.push(FieldProblem::new("retry.granted_attempts", what));
    }
    if start_before.is_some_and(|s| s <= now || s > deadline_at) {
        let what = "must be later than now and not later than the new deadline";
        problems.push(FieldProblem::new("retry.start_before", what));
    }
    if !problems.is_empty() {
        return Err(Rejection::Invalid(problems));
    }
    let doubt = task.doubt && !resolution.effect_verified;
    let after = Task { granted_attempts, deadline_at, start_before, doubt, ..task.clone() };
    Ok((after, State::Waiting { available_at: now }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{
        NOW, actor, around, canceled, doubted, ended, error, idempotent, in_review, leased, running, waiting,
    };

    const TIMEOUT_MS: u32 = 5_000;

    fn resolution(task: &Task, effect_verified: bool, outcome: ResolvedTo) -> Resolution {
        Resolution {
            expected_revision: task.revision,
            effect_verified,
            reason: "looked it up".into(),
            evidence: vec!["ticket-1".into()],
            outcome,
        }
    }

    fn resolve_to(task: &Task, effect_verified: bool, outcome: ResolvedTo) -> Result<Transition, Rejection> {
        resolve(task, &resolution(task, effect_verified, outcome), NOW, &actor())
    }

    fn retry(granted_attempts: u32, start_before: Option<Moment>) -> ResolvedTo {
        ResolvedTo::Retry { granted_attempts, task_timeout_ms: TIMEOUT_MS, start_before }
    }

    fn succeeded() -> ResolvedTo {
        ResolvedTo::Succeeded { result: JsonText::null() }
    }

    fn bad_fields(answer: Result<Transition, Rejection>) -> Vec<&'static str> {
        match answer {
            Ok(_) => vec![],
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_verified_end_clears_the_doubt_and_keeps_the_verdict() {
        let completed_at = NOW;
        let table = [
            (succeeded(), State::Succeeded { completed_at }, Some(OperatorVerdict::Result(JsonText::null()))),
            (
                ResolvedTo::Failed { error: error("X") },
                State::Failed { completed_at },
                Some(OperatorVerdict::Error(error("X"))),
            ),
            (ResolvedTo::Canceled, State::Canceled { completed_at }, None),
        ];
        for task in [in_review(), canceled(&in_review())] {
            for (outcome, state, verdict) in table.clone() {
                let Transition { task: after, event, ended } =
                    resolve_to(&task, true, outcome).expect("resolved");
                let decision = Some(Decision::ResolvedByOperator);
                let expected = Task {
                    state,
                    verdict,
                    doubt: false,
                    revision: task.revision + 1,
                    updated_at: NOW,
                    last_decision: decision,
                    ..task.clone()
                };
                assert_eq!(after, expected);
                assert_eq!(
                    (event.kind, event.decision, event.cause),
                    (EventKind::Resolved, decision, Some(Cause::Operator))
                );
                assert_eq!(
                    (event.note.as_deref(), &event.references),
                    (Some("looked it up"), &vec!["ticket-1".to_owned()])
                );
                assert_eq!((event.effect_uncertain, ended), (false, None));
            }
        }
    }

    #[test]
    fn an_end_needs_a_verified_effect() {
        for outcome in [succeeded(), ResolvedTo::Failed { error: error("X") }, ResolvedTo::Canceled] {
            for task in [in_review(), idempotent(&in_review())] {
                assert_eq!(bad_fields(resolve_to(&task, false, outcome.clone())), ["effect_verified"]);
            }
        }
    }

    #[test]
    fn only_what_waits_for_review_is_resolved_and_only_as_it_was_seen() {
        for task in [waiting(), leased(), running(), doubted(&waiting())].into_iter().chain(ended()) {
            let refused = Rejection::IllegalState { task_id: task.id, state: task.state.name() };
            assert_eq!(resolve_to(&task, true, succeeded()), Err(refused));
        }
        let task = in_review();
        for expected in [task.revision - 1, task.revision + 1] {
            let resolution =
                Resolution { expected_revision: expected, ..resolution(&task, true, succeeded()) };
            let refused = Rejection::RevisionMismatch { expected, actual: task.revision };
            assert_eq!(resolve(&task, &resolution, NOW, &actor()), Err(refused));
        }
    }

    #[test]
    fn a_retry_waits_from_now_with_new_limits_under_the_same_policy() {
        let task = Task { granted_attempts: 4, start_before: Some(NOW.plus_ms(1)), ..in_review() };
        let start_before = Some(NOW.plus_ms(100));
        for (asked, kept) in [(start_before, start_before), (None, None)] {
            let Transition { task: after, event, .. } =
                resolve_to(&task, true, retry(2, asked)).expect("resolved");
            let expected = Task {
                state: State::Waiting { available_at: NOW },
                granted_attempts: 6,
                deadline_at: NOW.plus_ms(TIMEOUT_MS),
                start_before: kept,
                doubt: false,
                revision: task.revision + 1,
                updated_at: NOW,
                last_decision: Some(Decision::ResolvedByOperator),
                ..task.clone()
            };
            assert_eq!(after, expected);
            assert_eq!((event.next_available_at, event.max_attempts), (Some(NOW), 9));
        }
    }

    #[test]
    fn an_unverified_retry_is_for_idempotent_tasks_and_keeps_their_doubt() {
        let reconcile = in_review();
        assert_eq!(bad_fields(resolve_to(&reconcile, false, retry(1, None))), ["effect_verified"]);
        let doubt_after =
            |task: &Task, verified| resolve_to(task, verified, retry(1, None)).expect("resolved").task.doubt;
        let idempotent = idempotent(&reconcile);
        assert!(!doubt_after(&reconcile, true));
        assert!(!doubt_after(&idempotent, true));
        assert!(doubt_after(&idempotent, false));
    }

    #[test]
    fn a_cancel_forbids_a_retry_verified_or_not() {
        for verified in [false, true] {
            let task = canceled(&in_review());
            assert_eq!(resolve_to(&task, verified, retry(1, None)), Err(Rejection::CancelRequested(task.id)));
        }
    }

    #[test]
    fn a_retry_must_leave_an_attempt_and_grants_have_a_limit() {
        let spent = Task { attempt_count: 5, granted_attempts: 1, ..in_review() };
        let grant = |task: &Task, n| bad_fields(resolve_to(task, true, retry(n, None)));
        assert_eq!(grant(&spent, 0), ["retry.granted_attempts"]);
        assert_eq!(grant(&spent, 1), ["retry.granted_attempts"]);
        assert!(grant(&spent, 2).is_empty());
        assert!(grant(&spent, GRANTED_ATTEMPTS_MAX - 1).is_empty());
        assert_eq!(grant(&spent, GRANTED_ATTEMPTS_MAX), ["retry.granted_attempts"]);
        assert_eq!(grant(&spent, u32::MAX), ["retry.granted_attempts"]);
        assert!(grant(&in_review(), 0).is_empty(), "attempts are left");
    }

    #[test]
    fn start_before_lies_after_now_and_not_after_the_deadline() {
        let fits = |limit| bad_fields(resolve_to(&in_review(), true, retry(1, Some(limit)))).is_empty();
        assert_eq!(around(NOW).map(fits), [false, false, true]);
        assert_eq!(around(NOW.plus_ms(TIMEOUT_MS)).map(fits), [true, true, false]);
    }

    #[test]
    fn all_bad_fields_of_a_retry_are_named() {
        let fields = bad_fields(resolve_to(&in_review(), false, retry(u32::MAX, Some(NOW))));
        assert_eq!(fields, ["effect_verified", "retry.granted_attempts", "retry.start_before"]);
    }
}

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

//! What people do to tasks: cancel, resolve; and what is told of it.

use crate::{
    domain::{
        decide::{GRANTED_ATTEMPTS_MAX, Resolution, ResolvedTo},
        ids::{RequestId, TaskId},
        policy::PolicyRequest,
        receipt::OperatorReceipt,
        rejection::Rejection,
    },
    proto::{self, resolve_task_request::Outcome},
};

use super::{Fields, decision, report::task_error_of, state_name, timestamp};

/// The longest reason, in characters.
const REASON_CHARS_MAX: usize = 1_024;
/// The most references, and the longest of them, in characters.
const REFERENCES_MAX: usize = 16;
const REFERENCE_CHARS_MAX: usize = 512;

/// Reads a cancel.
pub(crate) fn cancel(request: &proto::CancelTaskRequest) -> Result<(TaskId, RequestId), Rejection> {
    let mut fields = Fields::default();
    let task_id = fields.id("task_id", &request.task_id).map(TaskId);
    let request_id = fields.id("request_id", &request.request_id).map(RequestId);
    reason(&mut fields, &request.reason);
    fields.finish(task_id.zip(request_id))
}

/// Reads a resolution. A result has at most so many bytes; a new deadline defaults to the task's own time.
pub(crate) fn resolve(
    request: proto::ResolveTaskRequest,
    result_bytes_max: usize,
    task_timeout_ms: u32,
) -> Result<(TaskId, RequestId, Resolution), Rejection> {
    let mut fields = Fields::default();
    let task_id = fields.id("task_id", &request.task_id).map(TaskId);
    let request_id = fields.id("request_id", &request.request_id).map(RequestId);
    if request.expected_revision == 0 {
        fields.bad("expected_revision", "is required: the revision of the task you looked at");
    }
    if request.reason.is_empty() {
        fields.bad("reason", "is required: say what you found out, for the record");
    }
    reason(&mut fields, &request.reason);
    let too_long = |r: &String| r.chars().count() > REFERENCE_CHARS_MAX;
    if request.evidence_refs.len() > REFERENCES_MAX || request.evidence_refs.iter().any(too_long) {
        let what =
            format!("must be at most {REFERENCES_MAX} texts of at most {REFERENCE_CHARS_MAX} characters");
        fields.bad("evidence_refs", what);
    }
    let outcome = outcome(&mut fields, request.outcome, result_bytes_max, task_timeout_ms);
    let ((task_id, request_id), outcome) = fields.finish(task_id.zip(request_id).zip(outcome))?;
    let resolution = Resolution {
        expected_revision: request.expected_revision,
        effect_verified: request.effect_verified,
        reason: request.reason,
        evidence: request.evidence_refs,
        outcome,
    };
    Ok((task_id, request_id, resolution))
}

fn reason(fields: &mut Fields, reason: &str) {
    if reason.chars().count() > REASON_CHARS_MAX {
        fields.bad("reason", format!("has more than {REASON_CHARS_MAX} characters"));
    }
}

fn outcome(
    fields: &mut Fields,
    outcome: Option<Outcome>,
    result_bytes_max: usize,
    own_timeout_ms: u32,
) -> Option<ResolvedTo> {
    match outcome {
        None => {
            fields.bad("outcome", "is required: succeeded, failed, canceled or retry");
            None
        }
        Some(Outcome::Succeeded(succeeded)) => {
            let result = fields.json("succeeded.result", &succeeded.result, result_bytes_max)?;
            Some(ResolvedTo::Succeeded { result })
        }
        Some(Outcome::Failed(failed)) => {
            let Some(error) = &failed.error else {
                fields.bad("failed.error", "is required, with a code");
                return None;
            };
            let names = ["failed.error.code", "failed.error.message", "failed.error.details"];
            Some(ResolvedTo::Failed { error: task_error_of(fields, error, names) })
        }
        Some(Outcome::Canceled(_)) => Some(ResolvedTo::Canceled),
        Some(Outcome::Retry(retry)) => {
            let granted_attempts = retry.granted_attempts.unwrap_or(1);
            if !(1..=GRANTED_ATTEMPTS_MAX).contains(&granted_attempts) {
                let what = format!("is {granted_attempts}; must be 1 to {GRANTED_ATTEMPTS_MAX}");
                fields.bad("retry.granted_attempts", what);
            }
            let task_timeout_ms = retry.task_timeout_ms.unwrap_or(own_timeout_ms);
            let range = PolicyRequest { task_timeout_ms: Some(task_timeout_ms), ..PolicyRequest::default() };
            if range.freeze().is_err() {
                let what = format!("is {task_timeout_ms}; must be 100 to 2592000000");
                fields.bad("retry.task_timeout_ms", what);
            }
            let start_before = fields.moment("retry.start_before", retry.start_before);
            Some(ResolvedTo::Retry { granted_attempts, task_timeout_ms, start_before })
        }
    }
}

/// Writes what a cancel or a resolution did.
pub(crate) fn operator_receipt(receipt: &OperatorReceipt) -> proto::OperatorReceipt {
    proto::OperatorReceipt {
        changed: receipt.changed,
        task_state: state_name(receipt.task_state).into(),
        revision: receipt.revision,
        decision: decision(receipt.decision).into(),
        effect_uncertain: receipt.effect_uncertain,
        committed_at: Some(timestamp(receipt.committed_at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(outcome: Option<Outcome>) -> proto::ResolveTaskRequest {
        proto::ResolveTaskRequest {
            task_id: uuid::Uuid::nil().to_string(),
            expected_revision: 3,
            effect_verified: true,
            reason: "looked".to_owned(),
            evidence_refs: vec!["ticket-1".to_owned()],
            outcome,
            request_id: uuid::Uuid::nil().to_string(),
        }
    }

    fn bad(request: proto::ResolveTaskRequest) -> Vec<&'static str> {
        match resolve(request, 10, 1_000) {
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn a_retry_has_defaults() {
        let retry = Some(Outcome::Retry(proto::ResolveRetry::default()));
        let (_, _, resolution) = resolve(request(retry), 10, 1_000).expect("valid");
        let expected = ResolvedTo::Retry { granted_attempts: 1, task_timeout_ms: 1_000, start_before: None };
        assert_eq!(resolution.outcome, expected);
    }

    #[test]
    fn all_bad_fields_are_named() {
        let empty = proto::ResolveTaskRequest::default();
        let names = ["task_id", "request_id", "expected_revision", "reason", "outcome"];
        assert_eq!(bad(empty), names);
        let none = Some(Outcome::Failed(proto::ResolveFailed { error: None }));
        assert_eq!(bad(request(none)), ["failed.error"]);
        let zero =
            proto::ResolveRetry { granted_attempts: Some(0), task_timeout_ms: Some(0), start_before: None };
        assert_eq!(
            bad(request(Some(Outcome::Retry(zero)))),
            ["retry.granted_attempts", "retry.task_timeout_ms"]
        );
        let large = Some(Outcome::Succeeded(proto::ResolveSucceeded { result: "1".repeat(11) }));
        assert_eq!(bad(request(large)), ["succeeded.result"]);
        let mut long = request(Some(Outcome::Canceled(proto::ResolveCanceled {})));
        long.reason = "x".repeat(1_025);
        long.evidence_refs = vec!["x".repeat(513)];
        assert_eq!(bad(long), ["reason", "evidence_refs"]);
    }
}

use tonic_types::StatusExt as _;

use super::*;
use crate::domain::{
    fixtures::{acceptance, attempt_id},
    task::StateName,
};

fn field(name: &'static str, reason: FieldReason) -> FieldProblem {
    FieldProblem { reason, ..FieldProblem::new(name, "is bad") }
}

type Case = (Rejection, Code, &'static str, String);

/// Every rejection, with the code, the reason and the facts that it is told by.
fn table() -> Vec<Case> {
    let (task_id, attempt_id) = (acceptance().task_id, attempt_id(3));
    let limit = TimeLimit::StartBefore;
    let state = StateName::NeedsReview;
    let (task, attempt) = (format!("task_id={task_id}"), format!("attempt_id={attempt_id}"));
    let conflict = Rejection::IdempotencyConflict { field: "idempotency_key", value: "k".into() };
    let mismatch = Rejection::RevisionMismatch { expected: 1, actual: 2 };
    let failed =
        |rejection, reason, facts: &str| (rejection, Code::FailedPrecondition, reason, facts.to_owned());
    let missing = |rejection, reason, facts: String| (rejection, Code::NotFound, reason, facts);
    let exists = |rejection, reason, facts: &str| (rejection, Code::AlreadyExists, reason, facts.to_owned());
    vec![
        (
            Rejection::Invalid(vec![
                field("queue_id", FieldReason::InvalidArgument),
                field("payload", FieldReason::PayloadNotJson),
            ]),
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
            "fields=queue_id,payload".to_owned(),
        ),
        missing(Rejection::TaskNotFound(task_id), "TASK_NOT_FOUND", task.clone()),
        missing(Rejection::KeyNotFound("k".into()), "TASK_NOT_FOUND", "idempotency_key=k".into()),
        missing(
            Rejection::AttemptNotFound { task_id, attempt_id },
            "ATTEMPT_NOT_FOUND",
            format!("{attempt} {task}"),
        ),
        missing(Rejection::QueueNotFound("q".into()), "QUEUE_NOT_FOUND", "queue_id=q".into()),
        exists(Rejection::QueueExists("q".into()), "QUEUE_EXISTS", "queue_id=q"),
        exists(conflict, "IDEMPOTENCY_CONFLICT", "idempotency_key=k"),
        (mismatch, Code::Aborted, "REVISION_MISMATCH", "actual_revision=2 expected_revision=1".into()),
        failed(Rejection::LeaseLost(attempt_id), "LEASE_LOST", &attempt),
        failed(Rejection::AlreadyStarted(attempt_id), "ALREADY_STARTED", &attempt),
        failed(Rejection::CancelRequested(task_id), "CANCEL_REQUESTED", &task),
        failed(Rejection::CancelNotRequested(task_id), "CANCEL_NOT_REQUESTED", &task),
        failed(
            Rejection::DeadlineExceeded { task_id, limit },
            "DEADLINE_EXCEEDED",
            &format!("limit=start_before {task}"),
        ),
        failed(Rejection::EvidenceLimit(attempt_id), "EVIDENCE_LIMIT", &attempt),
        failed(
            Rejection::IllegalState { task_id, state },
            "ILLEGAL_STATE",
            &format!("state=TASK_STATE_NEEDS_REVIEW {task}"),
        ),
    ]
}

#[test]
fn every_rejection_has_its_code_reason_and_facts() {
    for (rejection, code, reason, facts) in table() {
        let status = status(&rejection);
        assert_eq!(status.code(), code, "{rejection:?}");
        assert!(!status.message().is_empty());
        let details = status.get_error_details();
        let info = details.error_info().expect("always there");
        assert_eq!((info.domain.as_str(), info.reason.as_str()), ("orbit", reason));
        let mut told: Vec<_> = info.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
        told.sort();
        assert_eq!(told.join(" "), facts);
        assert_eq!(details.bad_request().is_some(), code == Code::InvalidArgument);
        assert_eq!(details.resource_info().is_some(), code == Code::NotFound);
        assert_eq!(details.precondition_failure().is_some(), code == Code::FailedPrecondition);
        assert!(details.retry_info().is_none());
    }
}

#[test]
fn a_reason_that_all_bad_fields_share_is_that_of_the_error() {
    use FieldReason::{InvalidArgument, PayloadNotJson, PayloadTooLarge, RetryableNotAllowed};
    let reason = |reasons: &[FieldReason]| {
        let problems = reasons.iter().map(|r| field("f", *r)).collect();
        let info = status(&Rejection::Invalid(problems)).get_details_error_info();
        info.map(|i| i.reason).unwrap_or_default()
    };
    assert_eq!(reason(&[RetryableNotAllowed]), "RETRYABLE_NOT_ALLOWED");
    assert_eq!(reason(&[PayloadTooLarge]), "PAYLOAD_TOO_LARGE");
    assert_eq!(reason(&[PayloadNotJson, PayloadNotJson]), "PAYLOAD_NOT_JSON");
    assert_eq!(reason(&[PayloadNotJson, PayloadTooLarge]), "INVALID_ARGUMENT");
    assert_eq!(reason(&[InvalidArgument, RetryableNotAllowed]), "INVALID_ARGUMENT");
    assert_eq!(reason(&[]), "INVALID_ARGUMENT");
}

#[test]
fn all_bad_fields_are_listed_and_long_descriptions_are_cut() {
    let problems = vec![FieldProblem::new("a", "ü".repeat(10_000)), FieldProblem::new("b", "is bad")];
    let status = status(&Rejection::Invalid(problems));
    let violations = status.get_details_bad_request().map(|b| b.field_violations).unwrap_or_default();
    let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
    assert_eq!(fields, ["a", "b"]);
    assert_eq!(violations[0].description.chars().count(), 201);
    assert!(status.details().len() < 4_096);
}

#[test]
fn what_may_be_sent_again_says_so() {
    let wait = Duration::from_millis(1_500);
    let incident = Uuid::from_u128(9);
    let table = [
        (Failure::Overloaded { retry_after: wait }, Code::ResourceExhausted, "OVERLOADED", Some(wait)),
        (
            Failure::DatabaseUnavailable { retry_after: wait },
            Code::Unavailable,
            "DATABASE_UNAVAILABLE",
            Some(wait),
        ),
        (Failure::OutcomeUnknown, Code::Unavailable, "OUTCOME_UNKNOWN", None),
        (Failure::Draining { retry_after: wait }, Code::Unavailable, "DRAINING", Some(wait)),
        (Failure::Inconsistent { incident }, Code::Internal, "INTERNAL", None),
        (Failure::Rejected(Rejection::QueueNotFound("q".into())), Code::NotFound, "QUEUE_NOT_FOUND", None),
    ];
    for (failure, code, reason, retry_after) in table {
        let status = status(&failure);
        let details = status.get_error_details();
        assert_eq!(status.code(), code);
        assert_eq!(details.error_info().map(|i| i.reason.as_str()), Some(reason));
        assert_eq!(details.retry_info().and_then(|r| r.retry_delay), retry_after);
    }
}

#[test]
fn a_message_within_a_stream_is_refused_with_the_same_details() {
    let rejection = Rejection::LeaseLost(attempt_id(3));
    let (whole, message) = (status(&rejection), rpc_status(&rejection));
    assert_eq!(message.code, whole.code() as i32);
    assert_eq!(message.message, whole.message());
    assert_eq!(message.encode_to_vec(), whole.details());
}

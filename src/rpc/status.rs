//! What a failure looks like to a caller: a code, a stable reason, what is wrong, and what to do about it.
//!
//! Nothing of a database, a path or a driver appears here: a failure of that kind only carries the number under which
//! the log tells more.

use std::{collections::HashMap, time::Duration};

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};
use uuid::Uuid;

use crate::{
    domain::{
        ids::{AttemptId, TaskId},
        rejection::{FieldProblem, FieldReason, Rejection, TimeLimit},
    },
    engine::Failure,
};

use super::convert;

/// The domain of every `ErrorInfo`.
pub(crate) const ERROR_DOMAIN: &str = "orbit";

/// The longest description of one bad field, in characters. Details travel in a header, and common clients read headers
/// of 8 KiB in all.
const DESCRIPTION_CHARS_MAX: usize = 200;
/// The longest message about several bad fields, in characters.
const MESSAGE_CHARS_MAX: usize = 600;

/// An error as it is told to a caller, in a status or inside a command's result.
pub(crate) struct ErrorReply {
    code: Code,
    reason: &'static str,
    message: String,
    metadata: HashMap<String, String>,
    details: ErrorDetails,
}

/// What an error is about: its kind, the field that names it, and its name.
type Subject = (&'static str, &'static str, String);

impl ErrorReply {
    /// An error with its stable reason.
    pub(crate) fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), metadata: HashMap::new(), details: ErrorDetails::new() }
    }

    /// Adds an id or a value that the error is about.
    #[must_use]
    pub(crate) fn about(mut self, name: &str, value: String) -> Self {
        self.metadata.insert(name.to_owned(), value);
        self
    }

    /// One or more bad fields.
    pub(crate) fn invalid(problems: &[FieldProblem]) -> Self {
        let described = problems.iter().map(|p| (p.field.to_owned(), p.description.clone()));
        Self::bad_fields(shared_reason(problems), described)
    }

    /// One or more bad fields, each with what is wrong with it.
    pub(crate) fn bad_fields(
        reason: &'static str,
        problems: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let described: Vec<_> =
            problems.into_iter().map(|(field, d)| (field, shortened(&d, DESCRIPTION_CHARS_MAX))).collect();
        let texts: Vec<_> = described.iter().map(|(f, d)| format!("{f} {d}")).collect();
        let fields: Vec<_> = described.iter().map(|(f, _)| f.as_str()).collect();
        let mut reply =
            Self::new(Code::InvalidArgument, reason, shortened(&texts.join("; "), MESSAGE_CHARS_MAX))
                .about("fields", fields.join(","));
        let violations: Vec<_> = described.into_iter().map(|(f, d)| FieldViolation::new(f, d)).collect();
        reply.details.set_bad_request(violations);
        reply
    }

    fn not_found(reason: &'static str, (kind, field, name): Subject, hint: &str) -> Self {
        let message = format!("{kind} {name} does not exist{hint}");
        let mut reply = Self::new(Code::NotFound, reason, message).about(field, name.clone());
        reply.details.set_resource_info(format!("orbit.v1.{kind}"), name, "", "does not exist");
        reply
    }

    fn precondition(reason: &'static str, (kind, field, name): Subject, message: &str) -> Self {
        let mut reply = Self::new(Code::FailedPrecondition, reason, message).about(field, name.clone());
        reply.details.add_precondition_failure_violation(reason, format!("{kind}/{name}"), message);
        reply
    }

    fn retry_later(code: Code, reason: &'static str, message: &str, retry_after: Duration) -> Self {
        let mut reply =
            Self::new(code, reason, message).about("retry_after_ms", retry_after.as_millis().to_string());
        reply.details.set_retry_info(Some(retry_after));
        reply
    }

    /// A shutdown, told to whoever still wants something of this node.
    pub(crate) fn draining(retry_after: Duration) -> Self {
        let message = "this node is shutting down: send the same again, to another node if there is one";
        Self::retry_later(Code::Unavailable, "DRAINING", message, retry_after)
    }

    fn database_unavailable(retry_after: Duration) -> Self {
        let message = "the database cannot be reached at the moment: send the same again after a while";
        Self::retry_later(Code::Unavailable, "DATABASE_UNAVAILABLE", message, retry_after)
    }

    fn outcome_unknown() -> Self {
        let message =
            "whether it was committed is not known yet: send the same again, under the same key or id";
        Self::new(Code::Unavailable, "OUTCOME_UNKNOWN", message)
    }

    pub(crate) fn internal(incident: Uuid) -> Self {
        let message =
            format!("a bug, or damaged data: the server's log tells more under incident {incident}");
        Self::new(Code::Internal, "INTERNAL", message).about("incident_id", incident.to_string())
    }

    /// As the status of a call.
    pub(crate) fn into_status(mut self) -> Status {
        self.details.set_error_info(self.reason, ERROR_DOMAIN, self.metadata);
        Status::with_error_details(self.code, self.message, self.details)
    }

    /// As the status of one message within a stream.
    pub(crate) fn into_rpc_status(self) -> tonic_types::Status {
        to_rpc_status(&self.into_status())
    }
}

/// The reason that all bad fields share, if it is a special one.
fn shared_reason(problems: &[FieldProblem]) -> &'static str {
    let mut reasons = problems.iter().map(|p| p.reason);
    let first = reasons.next().unwrap_or(FieldReason::InvalidArgument);
    let shared = if reasons.all(|r| r == first) { first } else { FieldReason::InvalidArgument };
    match shared {
        FieldReason::InvalidArgument => "INVALID_ARGUMENT",
        FieldReason::RetryableNotAllowed => "RETRYABLE_NOT_ALLOWED",
        FieldReason::PayloadTooLarge => "PAYLOAD_TOO_LARGE",
        FieldReason::PayloadNotJson => "PAYLOAD_NOT_JSON",
    }
}

fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl From<&Rejection> for ErrorReply {
    fn from(rejection: &Rejection) -> Self {
        let attempt = |id: &AttemptId| ("attempt", "attempt_id", id.to_string());
        let task = |id: &TaskId| ("task", "task_id", id.to_string());
        match rejection {
            Rejection::Invalid(problems) => Self::invalid(problems),
            Rejection::TaskNotFound(id) => Self::not_found(
                "TASK_NOT_FOUND",
                ("Task", "task_id", id.to_string()),
                ", or its retention time is over",
            ),
            Rejection::KeyNotFound(key) => Self::not_found(
                "TASK_NOT_FOUND",
                ("Task", "idempotency_key", key.clone()),
                " under this idempotency key, or its retention time is over",
            ),
            Rejection::AttemptNotFound { task_id, attempt_id } => Self::not_found(
                "ATTEMPT_NOT_FOUND",
                ("Attempt", "attempt_id", attempt_id.to_string()),
                " with this epoch: send task_id, attempt_id and epoch as they were dispatched",
            )
            .about("task_id", task_id.to_string()),
            Rejection::QueueNotFound(queue_id) => Self::not_found(
                "QUEUE_NOT_FOUND",
                ("Queue", "queue_id", queue_id.clone()),
                ": make it with CreateQueue",
            ),
            Rejection::QueueExists(queue_id) => Self::new(
                Code::AlreadyExists,
                "QUEUE_EXISTS",
                format!("queue {queue_id} exists already: change it with UpdateQueue, or take another name"),
            )
            .about("queue_id", queue_id.clone()),
            Rejection::IdempotencyConflict { field, value } => Self::new(
                Code::AlreadyExists,
                "IDEMPOTENCY_CONFLICT",
                format!(
                    "{field} {value} came before with other content: send the same content again, or new content \
                     under another {field}"
                ),
            )
            .about(field, value.clone()),
            Rejection::RevisionMismatch { expected, actual } => Self::new(
                Code::Aborted,
                "REVISION_MISMATCH",
                format!("the revision is {actual}, not {expected}: read it again and decide anew"),
            )
            .about("expected_revision", expected.to_string())
            .about("actual_revision", actual.to_string()),
            Rejection::LeaseLost(id) => Self::precondition("LEASE_LOST", attempt(id), LEASE_LOST),
            Rejection::AlreadyStarted(id) => {
                Self::precondition("ALREADY_STARTED", attempt(id), ALREADY_STARTED)
            }
            Rejection::CancelRequested(id) => {
                Self::precondition("CANCEL_REQUESTED", task(id), CANCEL_REQUESTED)
            }
            Rejection::CancelNotRequested(id) => {
                Self::precondition("CANCEL_NOT_REQUESTED", task(id), CANCEL_NOT_REQUESTED)
            }
            Rejection::DeadlineExceeded { task_id, limit } => {
                Self::precondition("DEADLINE_EXCEEDED", task(task_id), DEADLINE_EXCEEDED)
                    .about("limit", limit_name(*limit).to_owned())
            }
            Rejection::EvidenceLimit(id) => {
                Self::precondition("EVIDENCE_LIMIT", attempt(id), EVIDENCE_LIMIT)
            }
            Rejection::IllegalState { task_id, state } => {
                let state = convert::state_name(*state).as_str_name();
                let name = state.trim_start_matches("TASK_STATE_");
                let what = format!("the task is {name}; only a task that is NEEDS_REVIEW can be resolved");
                Self::precondition("ILLEGAL_STATE", task(task_id), &what).about("state", state.to_owned())
            }
        }
    }
}

const LEASE_LOST: &str =
    "the attempt's lease has ended: do not run the handler; if it is due again, it is dispatched again";
const ALREADY_STARTED: &str = "another message started this attempt: this process must not run the handler";
const CANCEL_REQUESTED: &str = "a cancel is recorded for the task: no attempt starts any more, so do not run the handler; nor can it be retried";
const CANCEL_NOT_REQUESTED: &str =
    "nobody asked for a cancel of the task: report SUCCEEDED, FAILED or UNKNOWN instead of CANCELED";
const DEADLINE_EXCEEDED: &str = "it is too late to start: do not run the handler";
const EVIDENCE_LIMIT: &str =
    "as many reports without authority are kept of this attempt as may be: stop sending more";

const fn limit_name(limit: TimeLimit) -> &'static str {
    match limit {
        TimeLimit::Deadline => "deadline_at",
        TimeLimit::StartBefore => "start_before",
    }
}

impl From<&Failure> for ErrorReply {
    fn from(failure: &Failure) -> Self {
        match failure {
            Failure::Rejected(rejection) => rejection.into(),
            Failure::Overloaded { retry_after } => Self::retry_later(
                Code::ResourceExhausted,
                "OVERLOADED",
                "more is submitted than can be taken in: send the same again after the time in RetryInfo",
                *retry_after,
            ),
            Failure::DatabaseUnavailable { retry_after } => Self::database_unavailable(*retry_after),
            Failure::OutcomeUnknown => Self::outcome_unknown(),
            Failure::Draining { retry_after } => Self::draining(*retry_after),
            Failure::Inconsistent { incident } => Self::internal(*incident),
        }
    }
}

/// The status of a call that failed.
pub(crate) fn status<'a, F>(failure: &'a F) -> Status
where
    ErrorReply: From<&'a F>,
{
    ErrorReply::from(failure).into_status()
}

/// An error of the transport, with a reason: a message that could not be read, a call that nobody serves.
pub(crate) fn explained(status: &Status) -> Status {
    let unreadable = |reason| {
        let message = format!("the message cannot be read: {}", status.message());
        ErrorReply::new(Code::InvalidArgument, reason, message)
    };
    let reply = match status.code() {
        // The transport's own words for a message above the limit, and for one that is no message.
        Code::OutOfRange => unreadable("PAYLOAD_TOO_LARGE"),
        Code::Internal => unreadable("INVALID_ARGUMENT"),
        Code::Unimplemented if status.message().is_empty() => {
            let message = "this server does not know the method: ask its reflection for those it knows";
            ErrorReply::new(Code::Unimplemented, "UNIMPLEMENTED", message)
        }
        Code::Unimplemented => ErrorReply::new(Code::Unimplemented, "UNIMPLEMENTED", status.message()),
        Code::NotFound => ErrorReply::new(Code::NotFound, "NOT_FOUND", status.message()),
        other => ErrorReply::new(other, "TRANSPORT", status.message()),
    };
    reply.into_status()
}

/// The same status as a message.
pub(crate) fn to_rpc_status(status: &Status) -> tonic_types::Status {
    // The details of a status are such a message, encoded.
    tonic_types::Status::decode(status.details()).unwrap_or_else(|_| tonic_types::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: vec![],
    })
}

/// The status of one message, within a stream, that failed.
pub(crate) fn rpc_status<'a, F>(failure: &'a F) -> tonic_types::Status
where
    ErrorReply: From<&'a F>,
{
    ErrorReply::from(failure).into_rpc_status()
}

#[cfg(test)]
mod tests;

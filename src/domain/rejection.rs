//! Why a command is refused. A refusal changes nothing.

use super::{
    ids::{AttemptId, TaskId},
    task::StateName,
};

/// One bad field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldProblem {
    /// The field's path, such as `retry.max_attempts`.
    pub field: &'static str,
    /// The stable reason of the whole error when this is its only kind of problem.
    pub reason: FieldReason,
    /// What is wrong with it and what would be right.
    pub description: String,
}

/// The stable reason that a bad field stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldReason {
    /// Out of range, malformed or missing.
    InvalidArgument,
    /// `retryable` together with an outcome other than FAILED.
    RetryableNotAllowed,
    /// A JSON text larger than the limit.
    PayloadTooLarge,
    /// A text that is not JSON, or nested too deeply.
    PayloadNotJson,
}

impl FieldProblem {
    /// A problem without a reason of its own.
    pub fn new(field: &'static str, description: impl Into<String>) -> Self {
        Self { field, reason: FieldReason::InvalidArgument, description: description.into() }
    }

    /// A problem with a JSON text.
    pub fn json(field: &'static str, problem: super::json::JsonProblem) -> Self {
        use super::json::JsonProblem::{NotJson, TooLarge};
        match problem {
            NotJson(description) => Self { field, reason: FieldReason::PayloadNotJson, description },
            TooLarge { bytes, bytes_max } => Self {
                field,
                reason: FieldReason::PayloadTooLarge,
                description: format!("has {bytes} bytes; at most {bytes_max} are allowed"),
            },
        }
    }
}

/// Which time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// The task's deadline.
    Deadline,
    /// `start_before`.
    StartBefore,
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Bad fields, all of them.
    Invalid(Vec<FieldProblem>),
    /// No such task, or retention removed it.
    TaskNotFound(TaskId),
    /// No task of the caller has this idempotency key, or retention removed it.
    KeyNotFound(String),
    /// The task never had this attempt with this epoch.
    AttemptNotFound {
        /// The task.
        task_id: TaskId,
        /// The attempt asked for.
        attempt_id: AttemptId,
    },
    /// No such queue.
    QueueNotFound(String),
    /// The queue is there already.
    QueueExists(String),
    /// The same key, message id or request id came before with other content.
    IdempotencyConflict {
        /// Which of them, by its field's name.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The object changed since the caller looked.
    RevisionMismatch {
        /// What the caller expected.
        expected: u32,
        /// What it is.
        actual: u32,
    },
    /// The attempt's lease has ended, or a newer attempt is current.
    LeaseLost(AttemptId),
    /// Another message started the attempt: this process must not run the handler.
    AlreadyStarted(AttemptId),
    /// A cancel is recorded.
    CancelRequested(TaskId),
    /// CANCELED was reported, and nobody asked for a cancel.
    CancelNotRequested(TaskId),
    /// It is too late to start.
    DeadlineExceeded {
        /// The task.
        task_id: TaskId,
        /// Which limit was reached.
        limit: TimeLimit,
    },
    /// The attempt has the most evidence that is kept.
    EvidenceLimit(AttemptId),
    /// The task's state does not allow it.
    IllegalState {
        /// The task.
        task_id: TaskId,
        /// Its state.
        state: StateName,
    },
}

impl Rejection {
    /// One bad field.
    pub fn field(field: &'static str, description: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldProblem::new(field, description)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::json::JsonProblem;

    #[test]
    fn a_problem_keeps_its_field_and_its_stable_reason() {
        let problem = |json| {
            let FieldProblem { field, reason, description } = FieldProblem::json("payload_json", json);
            assert_eq!(field, "payload_json");
            (reason, description)
        };
        let too_large = (FieldReason::PayloadTooLarge, "has 3 bytes; at most 2 are allowed".to_owned());
        assert_eq!(problem(JsonProblem::TooLarge { bytes: 3, bytes_max: 2 }), too_large);
        assert_eq!(
            problem(JsonProblem::NotJson("is odd".into())),
            (FieldReason::PayloadNotJson, "is odd".into())
        );
        let plain =
            FieldProblem { field: "x", reason: FieldReason::InvalidArgument, description: "is odd".into() };
        assert_eq!(Rejection::field("x", "is odd"), Rejection::Invalid(vec![plain]));
    }
}

//! Rows, and their translation from and to domain values. A row that cannot be is an [`Inconsistency`].

use std::{fmt::Display, sync::Arc};

use sea_orm::{FromQueryResult, Value};
use uuid::Uuid;

use crate::domain::{
    attempt::{AttemptEnd, EndedAttempt, Holder, Lease},
    digest::Digest,
    ids::{AttemptId, MessageId, QueueNo, Route, SessionId, TaskId},
    json::JsonText,
    policy::Policy,
    queue::Queue,
    receipt::Receipt,
    report::{Finish, Outcome, Report, TaskError},
    task::{CancelRecord, OperatorVerdict, State, StateName, Task},
    time::Moment,
};

use super::{
    codes::{Code, attempt_state},
    error::Inconsistency,
};

/// Columns of a task with its lease, as [`TaskRow`] reads them.
pub(super) const TASK_COLUMNS: &str = "t.task_id, t.route, t.payload_bytes, t.max_attempts, t.granted_attempts, \
    t.initial_delay_ms, t.max_delay_ms, t.attempt_timeout_ms, t.recovery_safety, t.task_timeout_ms, t.start_before, \
    t.deadline_at, t.state, t.revision, t.attempt_count, t.available_at, t.last_decision, t.effect_uncertain, \
    t.cancel_requested_at, t.cancel_requested_by, t.cancel_reason, t.completed_at, t.created_at, t.updated_at, \
    t.result, t.error_code, t.error_message, t.error_details, \
    l.attempt_id AS l_attempt_id, l.epoch AS l_epoch, l.principal AS l_principal, l.session_id AS l_session_id, \
    l.node_id AS l_node_id, l.worker_name AS l_worker_name, l.leased_at AS l_leased_at, \
    l.lease_until AS l_lease_until, l.cap_at AS l_cap_at, l.started_at AS l_started_at";

#[derive(FromQueryResult)]
pub(super) struct TaskRow {
    pub(super) task_id: Uuid,
    pub(super) route: i32,
    payload_bytes: i32,
    max_attempts: i32,
    granted_attempts: i32,
    initial_delay_ms: i32,
    max_delay_ms: i32,
    attempt_timeout_ms: i32,
    recovery_safety: i16,
    task_timeout_ms: i64,
    start_before: Option<i64>,
    deadline_at: i64,
    state: i16,
    revision: i32,
    attempt_count: i32,
    available_at: Option<i64>,
    last_decision: Option<i16>,
    effect_uncertain: bool,
    cancel_requested_at: Option<i64>,
    cancel_requested_by: Option<String>,
    cancel_reason: Option<String>,
    completed_at: Option<i64>,
    created_at: i64,
    updated_at: i64,
    result: Option<String>,
    error_code: Option<String>,
    error_message: Option<String>,
    error_details: Option<String>,
    l_attempt_id: Option<Uuid>,
    l_epoch: Option<i32>,
    l_principal: Option<String>,
    l_session_id: Option<Uuid>,
    l_node_id: Option<String>,
    l_worker_name: Option<String>,
    l_leased_at: Option<i64>,
    l_lease_until: Option<i64>,
    l_cap_at: Option<i64>,
    l_started_at: Option<i64>,
}

/// Reads numbers and codes of one row, and names the row when one cannot be.
pub(super) struct Distrust<I> {
    table: &'static str,
    id: I,
}

impl<I: Display> Distrust<I> {
    pub(super) fn new(table: &'static str, id: I) -> Self {
        Self { table, id }
    }

    fn error(&self, column: &'static str, why: impl Into<String>) -> Inconsistency {
        Inconsistency::new(self.table, column, &self.id, why)
    }

    pub(super) fn count(&self, column: &'static str, value: impl Into<i64>) -> Result<u32, Inconsistency> {
        let value = value.into();
        u32::try_from(value).map_err(|_| self.error(column, format!("{value} is out of range")))
    }

    pub(super) fn code<T: Code>(
        &self,
        column: &'static str,
        value: impl Into<i64>,
    ) -> Result<T, Inconsistency> {
        let value = value.into();
        T::from_code(value).ok_or_else(|| self.error(column, format!("{value} is no known code")))
    }

    pub(super) fn code_opt<T: Code>(
        &self,
        column: &'static str,
        value: Option<i16>,
    ) -> Result<Option<T>, Inconsistency> {
        value.map(|v| self.code(column, v)).transpose()
    }

    pub(super) fn present<T>(&self, column: &'static str, value: Option<T>) -> Result<T, Inconsistency> {
        value.ok_or_else(|| self.error(column, "is null and must not be"))
    }
}

impl TaskRow {
    /// The task, given where its route lies.
    pub(super) fn into_task(self, route: Route) -> Result<Task, Inconsistency> {
        let row = Distrust::new("tasks", self.task_id);
        let name: StateName = row.code("state", self.state)?;
        let verdict = match (&self.result, &self.error_code) {
            (Some(result), None) => Some(OperatorVerdict::Result(JsonText::stored(result.clone()))),
            (None, Some(_)) => {
                task_error(self.error_code.clone(), self.error_message.clone(), self.error_details.clone())
                    .map(OperatorVerdict::Error)
            }
            (None, None) => None,
            (Some(_), Some(_)) => return Err(row.error("result", "stands beside an error")),
        };
        Ok(Task {
            id: TaskId(self.task_id),
            route,
            policy: Policy {
                max_attempts: row.count("max_attempts", self.max_attempts)?,
                initial_delay_ms: row.count("initial_delay_ms", self.initial_delay_ms)?,
                max_delay_ms: row.count("max_delay_ms", self.max_delay_ms)?,
                attempt_timeout_ms: row.count("attempt_timeout_ms", self.attempt_timeout_ms)?,
                recovery_safety: row.code("recovery_safety", self.recovery_safety)?,
                task_timeout_ms: row.count("task_timeout_ms", self.task_timeout_ms)?,
            },
            granted_attempts: row.count("granted_attempts", self.granted_attempts)?,
            created_at: Moment::from_micros(self.created_at),
            updated_at: Moment::from_micros(self.updated_at),
            deadline_at: Moment::from_micros(self.deadline_at),
            start_before: self.start_before.map(Moment::from_micros),
            payload_bytes: row.count("payload_bytes", self.payload_bytes)?,
            revision: row.count("revision", self.revision)?,
            attempt_count: row.count("attempt_count", self.attempt_count)?,
            doubt: self.effect_uncertain,
            cancel: self.cancel_requested_at.map(|at| CancelRecord {
                requested_at: Moment::from_micros(at),
                requested_by: self.cancel_requested_by.clone().unwrap_or_default().into(),
                reason: self.cancel_reason.clone().unwrap_or_default().into(),
            }),
            last_decision: row.code_opt("last_decision", self.last_decision)?,
            verdict,
            state: self.into_state(name, &row)?,
        })
    }

    fn into_state(self, name: StateName, row: &Distrust<impl Display>) -> Result<State, Inconsistency> {
        let lease_missing = self.l_attempt_id.is_none();
        let needs_lease = matches!(name, StateName::Leased | StateName::Running);
        if needs_lease == lease_missing {
            return Err(row.error("state", format!("{name:?} does not go with the task's row in leases")));
        }
        let completed_at = self.completed_at;
        let completed = || row.present("completed_at", completed_at).map(Moment::from_micros);
        Ok(match name {
            StateName::Waiting => State::Waiting {
                available_at: Moment::from_micros(row.present("available_at", self.available_at)?),
            },
            StateName::Leased => State::Leased(self.into_lease(row)?),
            StateName::Running => {
                let started_at = Moment::from_micros(row.present("leases.started_at", self.l_started_at)?);
                State::Running { lease: self.into_lease(row)?, started_at }
            }
            StateName::Succeeded => State::Succeeded { completed_at: completed()? },
            StateName::Failed => State::Failed { completed_at: completed()? },
            StateName::Canceled => State::Canceled { completed_at: completed()? },
            StateName::NeedsReview => State::NeedsReview,
        })
    }

    fn into_lease(self, row: &Distrust<impl Display>) -> Result<Lease, Inconsistency> {
        if self.l_epoch != Some(self.attempt_count) {
            return Err(row.error("attempt_count", format!("is not the lease's epoch, {:?}", self.l_epoch)));
        }
        Ok(Lease {
            attempt_id: AttemptId(row.present("leases.attempt_id", self.l_attempt_id)?),
            holder: Holder {
                principal: row.present("leases.principal", self.l_principal)?.into(),
                session_id: SessionId(row.present("leases.session_id", self.l_session_id)?),
                node_id: row.present("leases.node_id", self.l_node_id)?.into(),
                worker_name: row.present("leases.worker_name", self.l_worker_name)?.into(),
            },
            leased_at: Moment::from_micros(row.present("leases.leased_at", self.l_leased_at)?),
            lease_until: Moment::from_micros(row.present("leases.lease_until", self.l_lease_until)?),
            cap_at: Moment::from_micros(row.present("leases.cap_at", self.l_cap_at)?),
        })
    }
}

/// An error, if there is a code.
pub(super) fn task_error(
    code: Option<String>,
    message: Option<String>,
    details: Option<String>,
) -> Option<TaskError> {
    code.map(|code| TaskError {
        code: code.into(),
        message: message.unwrap_or_default().into(),
        details: details.map(JsonText::stored),
    })
}

/// The three error columns.
pub(super) fn error_values(error: Option<&TaskError>) -> [Value; 3] {
    let text = |t: Option<&str>| Value::String(t.map(str::to_owned));
    [
        text(error.map(|e| &*e.code)),
        text(error.map(|e| &*e.message).filter(|m| !m.is_empty())),
        text(error.and_then(|e| e.details.as_ref()).map(JsonText::as_str)),
    ]
}

pub(super) const RECEIPT_COLUMNS: &str = "task_id, epoch, message_id, kind, digest, disposition, task_state, decision, \
    effect_uncertain, next_available_at, committed_at";

#[derive(FromQueryResult)]
pub(super) struct ReceiptRow {
    pub(super) task_id: Uuid,
    pub(super) epoch: i32,
    message_id: Uuid,
    kind: i16,
    digest: Vec<u8>,
    disposition: i16,
    task_state: i16,
    decision: Option<i16>,
    effect_uncertain: bool,
    next_available_at: Option<i64>,
    committed_at: i64,
}

impl ReceiptRow {
    pub(super) fn into_receipt(self) -> Result<Receipt, Inconsistency> {
        let row = Distrust::new("receipts", self.message_id);
        Ok(Receipt {
            message_id: MessageId(self.message_id),
            kind: row.code("kind", self.kind)?,
            digest: digest(&row, self.digest)?,
            disposition: row.code("disposition", self.disposition)?,
            task_state: row.code("task_state", self.task_state)?,
            decision: row.code_opt("decision", self.decision)?,
            effect_uncertain: self.effect_uncertain,
            next_available_at: self.next_available_at.map(Moment::from_micros),
            committed_at: Moment::from_micros(self.committed_at),
        })
    }
}

/// A stored digest.
pub(super) fn digest(row: &Distrust<impl Display>, bytes: Vec<u8>) -> Result<Digest, Inconsistency> {
    bytes.try_into().map(Digest).map_err(|_| row.error("digest", "does not have 32 bytes"))
}

pub(super) const QUEUE_COLUMNS: &str = "id, queue_id, paused, max_running, revision, created_at, updated_at";

#[derive(FromQueryResult)]
pub(super) struct QueueRow {
    id: i32,
    queue_id: String,
    paused: bool,
    max_running: i32,
    revision: i32,
    created_at: i64,
    updated_at: i64,
}

impl QueueRow {
    pub(super) fn into_queue(self) -> Result<Queue, Inconsistency> {
        let row = Distrust::new("queues", self.id);
        Ok(Queue {
            no: QueueNo(self.id),
            queue_id: self.queue_id,
            paused: self.paused,
            max_running: row.count("max_running", self.max_running)?,
            revision: row.count("revision", self.revision)?,
            created_at: Moment::from_micros(self.created_at),
            updated_at: Moment::from_micros(self.updated_at),
        })
    }
}

pub(super) const ATTEMPT_COLUMNS: &str = "epoch, attempt_id, state, principal, session_id, node_id, worker_name, \
    leased_at, lease_until, started_at, ended_at, result, error_code, error_message, error_details, decision, cause, \
    delay_ms, retryable";

#[derive(FromQueryResult)]
pub(super) struct AttemptRow {
    epoch: i32,
    attempt_id: Uuid,
    state: i16,
    principal: String,
    session_id: Uuid,
    node_id: String,
    worker_name: String,
    leased_at: i64,
    lease_until: i64,
    started_at: Option<i64>,
    ended_at: i64,
    result: Option<String>,
    error_code: Option<String>,
    error_message: Option<String>,
    error_details: Option<String>,
    decision: i16,
    cause: i16,
    delay_ms: Option<i32>,
    retryable: bool,
}

impl AttemptRow {
    pub(super) fn into_attempt(self) -> Result<EndedAttempt, Inconsistency> {
        let row = Distrust::new("attempts", self.attempt_id);
        let error = task_error(self.error_code, self.error_message, self.error_details);
        let end = match i64::from(self.state) {
            attempt_state::SUCCEEDED => {
                AttemptEnd::Succeeded { result: JsonText::stored(row.present("result", self.result)?) }
            }
            attempt_state::FAILED => {
                AttemptEnd::Failed { retryable: self.retryable, error: row.present("error_code", error)? }
            }
            attempt_state::UNKNOWN => AttemptEnd::Unknown { error },
            attempt_state::UNSTARTED => AttemptEnd::Unstarted,
            attempt_state::CANCELED => AttemptEnd::Canceled { error },
            other => return Err(row.error("state", format!("{other} is no known code"))),
        };
        Ok(EndedAttempt {
            epoch: row.count("epoch", self.epoch)?,
            lease: Lease {
                attempt_id: AttemptId(self.attempt_id),
                holder: Holder {
                    principal: Arc::from(self.principal),
                    session_id: SessionId(self.session_id),
                    node_id: self.node_id.into(),
                    worker_name: self.worker_name.into(),
                },
                leased_at: Moment::from_micros(self.leased_at),
                lease_until: Moment::from_micros(self.lease_until),
                // History: nothing extends it any more.
                cap_at: Moment::from_micros(self.lease_until),
            },
            started_at: self.started_at.map(Moment::from_micros),
            ended_at: Moment::from_micros(self.ended_at),
            end,
            decision: row.code("decision", self.decision)?,
            cause: row.code("cause", self.cause)?,
            delay_ms: self.delay_ms.map(|d| row.count("delay_ms", d)).transpose()?,
        })
    }
}

pub(super) const EVIDENCE_COLUMNS: &str = "task_id, epoch, attempt_id, message_id, outcome, retryable, result, error_code, \
    error_message, error_details, received_at, session_id, node_id";

#[derive(FromQueryResult)]
pub(super) struct EvidenceRow {
    task_id: Uuid,
    pub(super) epoch: i32,
    attempt_id: Uuid,
    message_id: Uuid,
    outcome: i16,
    retryable: bool,
    result: Option<String>,
    error_code: Option<String>,
    error_message: Option<String>,
    error_details: Option<String>,
    received_at: i64,
    session_id: Uuid,
    node_id: String,
}

impl EvidenceRow {
    pub(super) fn into_record(self) -> Result<super::reads::EvidenceRecord, Inconsistency> {
        let row = Distrust::new("evidence", self.message_id);
        let error = task_error(self.error_code, self.error_message, self.error_details);
        let report = match row.code("outcome", self.outcome)? {
            Outcome::Succeeded => {
                Report::Succeeded { result: JsonText::stored(row.present("result", self.result)?) }
            }
            Outcome::Failed => {
                Report::Failed { retryable: self.retryable, error: row.present("error_code", error)? }
            }
            Outcome::Unknown => Report::Unknown { error },
            Outcome::Canceled => Report::Canceled { error },
        };
        let attempt = crate::domain::ids::AttemptRef {
            task_id: TaskId(self.task_id),
            attempt_id: AttemptId(self.attempt_id),
            epoch: row.count("epoch", self.epoch)?,
        };
        Ok(super::reads::EvidenceRecord {
            message: Finish { message_id: MessageId(self.message_id), attempt, report },
            received_at: Moment::from_micros(self.received_at),
            session_id: SessionId(self.session_id),
            node_id: self.node_id,
        })
    }
}

//! What rows are made of: the columns that are written, and their values.

use sea_orm::Value;
use serde_json::json;

use crate::domain::{
    attempt::{AttemptEnd, EndedAttempt, Lease},
    decide::EvidenceRecord,
    digest::{DIGEST_VERSION, Digest},
    event::Event,
    ids::{AttemptId, AttemptRef, SessionId, TaskId},
    queue::Queue,
    receipt::Receipt,
    report::Report,
    submission::Submission,
    task::{State, Task},
    time::Moment,
};

use super::{
    codes::{Code, attempt_state},
    dialect::Kind,
    rows::error_values,
};

/// The values of one row, in the order of its columns.
pub(super) type Row = Vec<Value>;

/// WAITING ⇔ one row: (route, available_at, expires_at).
pub(super) fn ready_row(task: &Task) -> Option<(i32, i64, i64)> {
    match task.state {
        State::Waiting { available_at } => {
            Some((task.route.route.0, available_at.micros(), task.expires_at().micros()))
        }
        _ => None,
    }
}

/// RUNNING with a recorded cancel ⇔ one row in `cancels`.
pub(super) fn canceled_attempt(task: &Task) -> Option<AttemptId> {
    let running = matches!(task.state, State::Running { .. }) && task.cancel.is_some();
    task.lease().filter(|_| running).map(|l| l.attempt_id)
}

pub(super) fn lease_of(task: &Task) -> Option<(&Lease, Option<Moment>, u32)> {
    let started_at = match task.state {
        State::Running { started_at, .. } => Some(started_at),
        _ => None,
    };
    task.lease().map(|lease| (lease, started_at, task.attempt_count))
}

pub(super) const LEASE_COLUMNS: &[&str] = &[
    "task_id",
    "queue",
    "attempt_id",
    "epoch",
    "principal",
    "session_id",
    "node_id",
    "worker_name",
    "leased_at",
    "lease_until",
    "cap_at",
    "started_at",
];

pub(super) fn lease_row(task: &Task) -> Option<Row> {
    let (lease, started_at, epoch) = lease_of(task)?;
    let holder = &lease.holder;
    Some(vec![
        task.id.0.into(),
        task.route.queue.0.into(),
        lease.attempt_id.0.into(),
        epoch.into(),
        (&*holder.principal).into(),
        holder.session_id.0.into(),
        (&*holder.node_id).into(),
        (&*holder.worker_name).into(),
        lease.leased_at.micros().into(),
        lease.lease_until.micros().into(),
        lease.cap_at.micros().into(),
        started_at.map(Moment::micros).into(),
    ])
}

pub(super) const LEASE_SETS: [(&str, Kind); 3] =
    [("lease_until", Kind::Int), ("cap_at", Kind::Int), ("started_at", Kind::Int)];

pub(super) fn lease_change_row(task: &Task) -> Row {
    let Some((lease, started_at, epoch)) = lease_of(task) else {
        return Vec::new();
    };
    vec![
        task.id.0.into(),
        epoch.into(),
        lease.lease_until.micros().into(),
        lease.cap_at.micros().into(),
        started_at.map(Moment::micros).into(),
    ]
}

pub(super) const TASK_COLUMNS: &[&str] = &[
    "task_id",
    "route",
    "principal",
    "idempotency_key",
    "digest",
    "digest_version",
    "payload_version",
    "payload_bytes",
    "max_attempts",
    "granted_attempts",
    "initial_delay_ms",
    "max_delay_ms",
    "attempt_timeout_ms",
    "recovery_safety",
    "task_timeout_ms",
    "not_before",
    "start_before",
    "deadline_at",
    "state",
    "revision",
    "attempt_count",
    "available_at",
    "effect_uncertain",
    "created_at",
    "updated_at",
];

pub(super) fn task_row(task: &Task, submission: &Submission, digest: Digest) -> Row {
    let policy = &task.policy;
    vec![
        task.id.0.into(),
        task.route.route.0.into(),
        (&*submission.principal).into(),
        submission.idempotency_key.as_str().into(),
        digest.0.to_vec().into(),
        DIGEST_VERSION.into(),
        submission.payload_version.as_str().into(),
        task.payload_bytes.into(),
        policy.max_attempts.into(),
        task.granted_attempts.into(),
        policy.initial_delay_ms.into(),
        policy.max_delay_ms.into(),
        policy.attempt_timeout_ms.into(),
        policy.recovery_safety.code().into(),
        i64::from(policy.task_timeout_ms).into(),
        submission.not_before.map(Moment::micros).into(),
        task.start_before.map(Moment::micros).into(),
        task.deadline_at.micros().into(),
        task.state.name().code().into(),
        task.revision.into(),
        task.attempt_count.into(),
        ready_row(task).map(|(_, at, _)| at).into(),
        task.doubt.into(),
        task.created_at.micros().into(),
        task.updated_at.micros().into(),
    ]
}

pub(super) const TASK_SETS: [(&str, Kind); 8] = [
    ("state", Kind::Int),
    ("revision", Kind::Int),
    ("attempt_count", Kind::Int),
    ("available_at", Kind::Int),
    ("last_decision", Kind::Int),
    ("completed_at", Kind::Int),
    ("effect_uncertain", Kind::Int),
    ("updated_at", Kind::Int),
];

pub(super) fn task_change_row(before: &Task, after: &Task) -> Row {
    let completed_at = match after.state {
        State::Succeeded { completed_at }
        | State::Failed { completed_at }
        | State::Canceled { completed_at } => Some(completed_at),
        State::Waiting { .. } | State::Leased(_) | State::Running { .. } | State::NeedsReview => None,
    };
    vec![
        after.id.0.into(),
        before.revision.into(),
        after.state.name().code().into(),
        after.revision.into(),
        after.attempt_count.into(),
        ready_row(after).map(|(_, at, _)| at).into(),
        after.last_decision.map(Code::code).into(),
        completed_at.map(Moment::micros).into(),
        i64::from(after.doubt).into(),
        after.updated_at.micros().into(),
    ]
}

pub(super) const ATTEMPT_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "attempt_id",
    "state",
    "principal",
    "session_id",
    "node_id",
    "worker_name",
    "leased_at",
    "lease_until",
    "started_at",
    "ended_at",
    "decision",
    "cause",
    "delay_ms",
    "retryable",
    "result",
    "error_code",
    "error_message",
    "error_details",
];

pub(super) fn attempt_row(task_id: TaskId, ended: &EndedAttempt) -> Row {
    let (lease, holder) = (&ended.lease, &ended.lease.holder);
    let (state, retryable, result, error) = match &ended.end {
        AttemptEnd::Succeeded { result } => (attempt_state::SUCCEEDED, false, Some(result), None),
        AttemptEnd::Failed { retryable, error } => (attempt_state::FAILED, *retryable, None, Some(error)),
        AttemptEnd::Unknown { error } => (attempt_state::UNKNOWN, false, None, error.as_ref()),
        AttemptEnd::Unstarted => (attempt_state::UNSTARTED, false, None, None),
        AttemptEnd::Canceled { error } => (attempt_state::CANCELED, false, None, error.as_ref()),
    };
    let mut row: Row = vec![
        task_id.0.into(),
        ended.epoch.into(),
        lease.attempt_id.0.into(),
        state.into(),
        (&*holder.principal).into(),
        holder.session_id.0.into(),
        (&*holder.node_id).into(),
        (&*holder.worker_name).into(),
        lease.leased_at.micros().into(),
        lease.lease_until.micros().into(),
        ended.started_at.map(Moment::micros).into(),
        ended.ended_at.micros().into(),
        ended.decision.code().into(),
        ended.cause.code().into(),
        ended.delay_ms.into(),
        retryable.into(),
        result.map(|r| r.as_str().to_owned()).into(),
    ];
    row.extend(error_values(error));
    row
}

pub(super) const RECEIPT_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "message_id",
    "kind",
    "digest",
    "digest_version",
    "disposition",
    "task_state",
    "decision",
    "effect_uncertain",
    "next_available_at",
    "committed_at",
];

pub(super) fn receipt_row((attempt, receipt): &(AttemptRef, Receipt)) -> Row {
    vec![
        attempt.task_id.0.into(),
        attempt.epoch.into(),
        receipt.message_id.0.into(),
        receipt.kind.code().into(),
        receipt.digest.0.to_vec().into(),
        DIGEST_VERSION.into(),
        receipt.disposition.code().into(),
        receipt.task_state.code().into(),
        receipt.decision.map(Code::code).into(),
        receipt.effect_uncertain.into(),
        receipt.next_available_at.map(Moment::micros).into(),
        receipt.committed_at.micros().into(),
    ]
}

pub(super) const EVIDENCE_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "ordinal",
    "attempt_id",
    "message_id",
    "outcome",
    "retryable",
    "received_at",
    "session_id",
    "node_id",
    "result",
    "error_code",
    "error_message",
    "error_details",
];

pub(super) fn evidence_row(record: &EvidenceRecord, session_id: SessionId, node_id: &str) -> Row {
    let report = &record.message.report;
    let (retryable, result, error) = match report {
        Report::Succeeded { result } => (false, Some(result), None),
        Report::Failed { retryable, error } => (*retryable, None, Some(error)),
        Report::Unknown { error } | Report::Canceled { error } => (false, None, error.as_ref()),
    };
    let mut row: Row = vec![
        record.attempt.task_id.0.into(),
        record.attempt.epoch.into(),
        record.ordinal.into(),
        record.attempt.attempt_id.0.into(),
        record.message.message_id.0.into(),
        report.outcome().code().into(),
        retryable.into(),
        record.received_at.micros().into(),
        session_id.0.into(),
        node_id.into(),
        result.map(|r| r.as_str().to_owned()).into(),
    ];
    row.extend(error_values(error));
    row
}

pub(super) const EVENT_COLUMNS: &[&str] = &[
    "task_id",
    "revision",
    "ordinal",
    "kind",
    "at",
    "state",
    "epoch",
    "decision",
    "cause",
    "delay_ms",
    "next_available_at",
    "attempt_count",
    "max_attempts",
    "effect_uncertain",
    "principal",
    "session_id",
    "node_id",
    "note",
    "evidence_refs",
];

pub(super) fn event_row(task_id: TaskId, event: &Event) -> Row {
    vec![
        task_id.0.into(),
        event.revision.into(),
        event.ordinal.into(),
        event.kind.code().into(),
        event.at.micros().into(),
        event.state.code().into(),
        event.epoch.into(),
        event.decision.map(Code::code).into(),
        event.cause.map(Code::code).into(),
        event.delay_ms.into(),
        event.next_available_at.map(Moment::micros).into(),
        event.attempt_count.into(),
        event.max_attempts.into(),
        event.effect_uncertain.into(),
        (&*event.actor.principal).into(),
        event.actor.session_id.map(|s| s.0).into(),
        (&*event.actor.node_id).into(),
        event.note.clone().into(),
        (!event.references.is_empty()).then(|| json!(event.references).to_string()).into(),
    ]
}

pub(super) const QUEUE_COLUMNS: &[&str] =
    &["queue_id", "paused", "max_running", "revision", "created_at", "updated_at"];

pub(super) fn queue_row(queue: &Queue) -> Row {
    vec![
        queue.queue_id.as_str().into(),
        queue.paused.into(),
        queue.max_running.into(),
        queue.revision.into(),
        queue.created_at.micros().into(),
        queue.updated_at.micros().into(),
    ]
}

//! Tasks and attempts for people and for scripts.

use orbit::proto::{Attempt, Evidence, RetryPolicy, Task, TaskError};

use super::super::{
    json::Json,
    table::{self, Table},
    value::{Name as _, duration, moment_json, moment_short, yes_no},
};

pub(in crate::cli) fn task_text(task: &Task) -> String {
    let retry = task.retry.unwrap_or_default();
    let attempts_max = retry.max_attempts().saturating_add(task.granted_attempts);
    let cancel = task.cancel.as_ref().map(|cancel| {
        let at = moment_short(cancel.requested_at.as_ref());
        format!("asked for at {at} by {}: {}", cancel.requested_by, cancel.reason)
    });
    table::fields(vec![
        ("task", task.task_id.clone()),
        ("state", task.state().name().to_owned()),
        ("last decision", task.last_decision().name().to_owned()),
        ("effect uncertain", yes_no(task.effect_uncertain)),
        ("attempts", format!("{} of {attempts_max}", task.attempt_count)),
        ("queue", task.queue_id.clone()),
        ("handler", format!("{} {}", task.handler, task.handler_version)),
        ("key", task.idempotency_key.clone()),
        (
            "retry delay",
            format!("{}, doubling to {}", duration(retry.initial_delay_ms()), duration(retry.max_delay_ms())),
        ),
        ("attempt timeout", duration(retry.attempt_timeout_ms())),
        ("recovery safety", task.recovery_safety().name().to_owned()),
        ("not before", moment_short(task.not_before.as_ref())),
        ("start before", moment_short(task.start_before.as_ref())),
        ("created", moment_short(task.created_at.as_ref())),
        ("updated", moment_short(task.updated_at.as_ref())),
        ("available", moment_short(task.available_at.as_ref())),
        ("deadline", moment_short(task.deadline_at.as_ref())),
        ("completed", moment_short(task.completed_at.as_ref())),
        ("cancel", cancel.unwrap_or_default()),
        ("error", task.error.as_ref().map(error_text).unwrap_or_default()),
        ("payload version", task.payload_version.clone()),
        ("payload", task.payload.clone()),
        ("result", task.result.clone()),
    ])
}

/// Code, message and details, one after the other.
pub(super) fn error_text(error: &TaskError) -> String {
    let parts = [(": ", error.message.as_str()), (" ", error.details.as_str())];
    let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
    parts.fold(error.code.clone(), |text, (separator, part)| format!("{text}{separator}{part}"))
}

pub(in crate::cli) fn attempts_table(attempts: &[Attempt]) -> String {
    let mut table = Table::new(&[
        "NUMBER",
        "STATE",
        "RETRYABLE",
        "LEASED",
        "STARTED",
        "ENDED",
        "DECISION",
        "DELAY",
        "WORKER",
        "ERROR",
    ]);
    for attempt in attempts {
        let delay = if attempt.delay_ms == 0 { String::new() } else { duration(attempt.delay_ms) };
        table.row(&[
            attempt.number.to_string(),
            attempt.state().name().to_owned(),
            yes_no(attempt.retryable),
            moment_short(attempt.leased_at.as_ref()),
            moment_short(attempt.started_at.as_ref()),
            moment_short(attempt.ended_at.as_ref()),
            attempt.decision().name().to_owned(),
            delay,
            attempt.worker_name.clone(),
            attempt.error.as_ref().map(error_text).unwrap_or_default(),
        ]);
    }
    let evidence: usize = attempts.iter().map(|attempt| attempt.evidence.len()).sum();
    if evidence == 0 {
        return table.print();
    }
    format!("{}reports without authority, kept as evidence: {evidence} (--json shows them)\n", table.print())
}

/// The task of an answer without payload and result, which are then left out rather than shown as null.
pub(in crate::cli) fn basic_task_json(task: &Task) -> Json {
    match task_json(task) {
        Json::Object(mut fields) => {
            fields.retain(|(name, _)| !matches!(*name, "payload" | "result"));
            Json::Object(fields)
        }
        other => other,
    }
}

pub(super) fn task_json(task: &Task) -> Json {
    let cancel = task.cancel.as_ref().map(|cancel| {
        Json::Object(vec![
            ("requested_at", moment_json(cancel.requested_at.as_ref())),
            ("requested_by", cancel.requested_by.as_str().into()),
            ("reason", cancel.reason.as_str().into()),
        ])
    });
    Json::Object(vec![
        ("task_id", task.task_id.as_str().into()),
        ("queue_id", task.queue_id.as_str().into()),
        ("idempotency_key", task.idempotency_key.as_str().into()),
        ("handler", task.handler.as_str().into()),
        ("handler_version", task.handler_version.as_str().into()),
        ("payload_version", task.payload_version.as_str().into()),
        ("payload", Json::raw_or_null(&task.payload)),
        ("retry", task.retry.as_ref().map_or(Json::Null, retry_json)),
        ("recovery_safety", Json::text_or_null(task.recovery_safety().name())),
        ("task_timeout_ms", task.task_timeout_ms.into()),
        ("not_before", moment_json(task.not_before.as_ref())),
        ("start_before", moment_json(task.start_before.as_ref())),
        ("state", Json::text_or_null(task.state().name())),
        ("revision", task.revision.into()),
        ("effect_uncertain", task.effect_uncertain.into()),
        ("attempt_count", task.attempt_count.into()),
        ("granted_attempts", task.granted_attempts.into()),
        ("available_at", moment_json(task.available_at.as_ref())),
        ("deadline_at", moment_json(task.deadline_at.as_ref())),
        ("created_at", moment_json(task.created_at.as_ref())),
        ("updated_at", moment_json(task.updated_at.as_ref())),
        ("completed_at", moment_json(task.completed_at.as_ref())),
        ("result", Json::raw_or_null(&task.result)),
        ("error", task.error.as_ref().map_or(Json::Null, error_json)),
        ("last_decision", Json::text_or_null(task.last_decision().name())),
        ("cancel", cancel.into()),
    ])
}

pub(super) fn attempts_json(attempts: &[Attempt]) -> String {
    let attempts = attempts.iter().map(attempt_json).collect();
    Json::Object(vec![("attempts", Json::List(attempts))]).print()
}

fn attempt_json(attempt: &Attempt) -> Json {
    Json::Object(vec![
        ("attempt_id", attempt.attempt_id.as_str().into()),
        ("number", attempt.number.into()),
        ("epoch", attempt.epoch.into()),
        ("state", Json::text_or_null(attempt.state().name())),
        ("retryable", attempt.retryable.into()),
        ("worker_name", attempt.worker_name.as_str().into()),
        ("session_id", attempt.session_id.as_str().into()),
        ("node_id", attempt.node_id.as_str().into()),
        ("leased_at", moment_json(attempt.leased_at.as_ref())),
        ("lease_until", moment_json(attempt.lease_until.as_ref())),
        ("started_at", moment_json(attempt.started_at.as_ref())),
        ("ended_at", moment_json(attempt.ended_at.as_ref())),
        ("result", Json::raw_or_null(&attempt.result)),
        ("error", attempt.error.as_ref().map_or(Json::Null, error_json)),
        ("decision", Json::text_or_null(attempt.decision().name())),
        ("delay_ms", attempt.delay_ms.into()),
        ("evidence", Json::List(attempt.evidence.iter().map(evidence_json).collect())),
    ])
}

fn evidence_json(evidence: &Evidence) -> Json {
    Json::Object(vec![
        ("message_id", evidence.message_id.as_str().into()),
        ("outcome", Json::text_or_null(evidence.outcome().name())),
        ("retryable", evidence.retryable.into()),
        ("result", Json::raw_or_null(&evidence.result)),
        ("error", evidence.error.as_ref().map_or(Json::Null, error_json)),
        ("received_at", moment_json(evidence.received_at.as_ref())),
        ("session_id", evidence.session_id.as_str().into()),
        ("node_id", evidence.node_id.as_str().into()),
    ])
}

fn error_json(error: &TaskError) -> Json {
    Json::Object(vec![
        ("code", error.code.as_str().into()),
        ("message", error.message.as_str().into()),
        ("details", Json::raw_or_null(&error.details)),
    ])
}

fn retry_json(retry: &RetryPolicy) -> Json {
    Json::Object(vec![
        ("max_attempts", retry.max_attempts().into()),
        ("initial_delay_ms", retry.initial_delay_ms().into()),
        ("max_delay_ms", retry.max_delay_ms().into()),
        ("attempt_timeout_ms", retry.attempt_timeout_ms().into()),
    ])
}

#[cfg(test)]
mod tests;

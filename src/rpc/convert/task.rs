//! Writes tasks.

use crate::{
    domain::{
        report::TaskError,
        task::{CancelRecord, State, Task},
        time::Moment,
    },
    proto,
    store::reads::TaskRecord,
};

use super::{decision, recovery_safety, state_name, timestamp};

/// Writes a task, its texts only as far as they were read.
pub(crate) fn task(record: TaskRecord) -> proto::Task {
    let TaskRecord {
        task,
        idempotency_key,
        queue_id,
        handler,
        handler_version,
        payload_version,
        not_before,
        payload,
        result,
        error,
    } = record;
    let (available_at, completed_at) = moments(&task.state);
    proto::Task {
        task_id: task.id.to_string(),
        queue_id,
        idempotency_key,
        handler,
        handler_version,
        payload_version,
        payload: payload.unwrap_or_default(),
        retry: Some(retry(&task)),
        recovery_safety: recovery_safety(task.policy.recovery_safety).into(),
        task_timeout_ms: task.policy.task_timeout_ms,
        not_before: not_before.map(timestamp),
        start_before: task.start_before.map(timestamp),
        state: state_name(task.state.name()).into(),
        revision: task.revision,
        effect_uncertain: task.doubt,
        attempt_count: task.attempt_count,
        available_at: available_at.map(timestamp),
        deadline_at: Some(timestamp(task.deadline_at)),
        created_at: Some(timestamp(task.created_at)),
        updated_at: Some(timestamp(task.updated_at)),
        completed_at: completed_at.map(timestamp),
        result: result.unwrap_or_default(),
        error: error.as_ref().map(task_error),
        last_decision: decision(task.last_decision).into(),
        cancel: task.cancel.as_ref().map(cancel),
        granted_attempts: task.granted_attempts,
    }
}

/// The earliest next claim, and when it ended, of the states that have them.
const fn moments(state: &State) -> (Option<Moment>, Option<Moment>) {
    match state {
        State::Waiting { available_at } => (Some(*available_at), None),
        State::Succeeded { completed_at }
        | State::Failed { completed_at }
        | State::Canceled { completed_at } => (None, Some(*completed_at)),
        State::Leased(_) | State::Running { .. } | State::NeedsReview => (None, None),
    }
}

const fn retry(task: &Task) -> proto::RetryPolicy {
    proto::RetryPolicy {
        max_attempts: Some(task.policy.max_attempts),
        initial_delay_ms: Some(task.policy.initial_delay_ms),
        max_delay_ms: Some(task.policy.max_delay_ms),
        attempt_timeout_ms: Some(task.policy.attempt_timeout_ms),
    }
}

fn cancel(record: &CancelRecord) -> proto::Cancel {
    proto::Cancel {
        requested_at: Some(timestamp(record.requested_at)),
        requested_by: record.requested_by.as_ref().to_owned(),
        reason: record.reason.as_ref().to_owned(),
    }
}

/// Writes an error.
pub(crate) fn task_error(error: &TaskError) -> proto::TaskError {
    proto::TaskError {
        code: error.code.as_ref().to_owned(),
        message: error.message.as_ref().to_owned(),
        details: error.details.as_ref().map_or_else(String::new, |d| d.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        decide::Decision,
        fixtures::{NOW, error, waiting},
        json::JsonText,
    };

    fn record(state: State) -> TaskRecord {
        TaskRecord {
            task: Task { state, ..waiting() },
            idempotency_key: "key-1".into(),
            queue_id: "default".into(),
            handler: "h".into(),
            handler_version: "1".into(),
            payload_version: "2".into(),
            not_before: None,
            payload: None,
            result: None,
            error: None,
        }
    }

    #[test]
    fn each_state_shows_only_its_own_moments() {
        let waits = task(record(State::Waiting { available_at: NOW }));
        assert_eq!(waits.state(), proto::TaskState::Waiting);
        assert_eq!((waits.available_at, waits.completed_at), (Some(timestamp(NOW)), None));
        let failed = task(record(State::Failed { completed_at: NOW }));
        assert_eq!((failed.available_at, failed.completed_at), (None, Some(timestamp(NOW))));
        let review = task(record(State::NeedsReview));
        assert_eq!((review.available_at, review.completed_at), (None, None));
    }

    #[test]
    fn everything_else_is_written_out() {
        let mut record = record(State::NeedsReview);
        record.task.doubt = true;
        record.task.last_decision = Some(Decision::ReconciliationRequired);
        record.task.granted_attempts = 4;
        record.not_before = Some(NOW.plus_ms(1));
        record.task.start_before = Some(NOW.plus_ms(2));
        record.task.cancel =
            Some(CancelRecord { requested_at: NOW, requested_by: "me".into(), reason: "why".into() });
        record.payload = Some("[1]".into());
        record.result = Some("[2]".into());
        record.error = Some(TaskError {
            message: "m".into(),
            details: Some(JsonText::stored("[3]".into())),
            ..error("X")
        });
        let expected = proto::Task {
            task_id: waiting().id.to_string(),
            queue_id: "default".into(),
            idempotency_key: "key-1".into(),
            handler: "h".into(),
            handler_version: "1".into(),
            payload_version: "2".into(),
            payload: "[1]".into(),
            retry: Some(proto::RetryPolicy {
                max_attempts: Some(3),
                initial_delay_ms: Some(1_000),
                max_delay_ms: Some(60_000),
                attempt_timeout_ms: Some(300_000),
            }),
            recovery_safety: proto::RecoverySafety::ReconcileOnly.into(),
            task_timeout_ms: 86_400_000,
            not_before: Some(timestamp(NOW.plus_ms(1))),
            start_before: Some(timestamp(NOW.plus_ms(2))),
            state: proto::TaskState::NeedsReview.into(),
            revision: 1,
            effect_uncertain: true,
            attempt_count: 0,
            available_at: None,
            deadline_at: Some(timestamp(NOW.plus_ms(86_400_000))),
            created_at: Some(timestamp(NOW)),
            updated_at: Some(timestamp(NOW)),
            completed_at: None,
            result: "[2]".into(),
            error: Some(proto::TaskError { code: "X".into(), message: "m".into(), details: "[3]".into() }),
            last_decision: proto::Decision::ReconciliationRequired.into(),
            cancel: Some(proto::Cancel {
                requested_at: Some(timestamp(NOW)),
                requested_by: "me".into(),
                reason: "why".into(),
            }),
            granted_attempts: 4,
        };
        assert_eq!(task(record), expected);
    }
}

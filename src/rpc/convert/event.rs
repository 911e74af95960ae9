//! Writes events.

use crate::{
    domain::{
        decide::Cause,
        event::{Event, EventKind},
    },
    proto,
};

use super::{decision, state_name, timestamp};

/// Writes an event.
pub(crate) fn event(event: Event) -> proto::TaskEvent {
    proto::TaskEvent {
        r#type: type_name(event.kind).to_owned(),
        revision: event.revision,
        occurred_at: Some(timestamp(event.at)),
        task_state: state_name(event.state).into(),
        epoch: event.epoch.unwrap_or(0),
        decision: decision(event.decision).into(),
        cause: event.cause.map_or(proto::Cause::Unspecified, cause).into(),
        delay_ms: event.delay_ms.unwrap_or(0),
        next_available_at: event.next_available_at.map(timestamp),
        attempt_count: event.attempt_count,
        max_attempts: event.max_attempts,
        effect_uncertain: event.effect_uncertain,
        principal: event.actor.principal.as_ref().to_owned(),
        session_id: event.actor.session_id.map(|s| s.to_string()).unwrap_or_default(),
        node_id: event.actor.node_id.as_ref().to_owned(),
        note: event.note.unwrap_or_default(),
        evidence_refs: event.references,
    }
}

const fn type_name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Accepted => "task.accepted",
        EventKind::Leased => "task.leased",
        EventKind::Started => "task.started",
        EventKind::Requeued => "task.requeued",
        EventKind::Succeeded => "task.succeeded",
        EventKind::Failed => "task.failed",
        EventKind::Canceled => "task.canceled",
        EventKind::ReviewRequired => "task.review_required",
        EventKind::EvidenceRecorded => "task.evidence_recorded",
        EventKind::CancelRequested => "task.cancel_requested",
        EventKind::Resolved => "task.resolved",
    }
}

const fn cause(cause: Cause) -> proto::Cause {
    match cause {
        Cause::Reported => proto::Cause::Reported,
        Cause::LeaseExpired => proto::Cause::LeaseExpired,
        Cause::AttemptTimeout => proto::Cause::AttemptTimeout,
        Cause::TaskDeadline => proto::Cause::TaskDeadline,
        Cause::StartDeadline => proto::Cause::StartDeadline,
        Cause::Cancel => proto::Cause::Cancel,
        Cause::Operator => proto::Cause::Operator,
    }
}

//! Writes what workers are told.

use std::time::Duration;

use crate::{
    domain::{receipt::Receipt, task::LeaseStatus},
    engine::Dispatch,
    proto,
};

use super::{decision, disposition, recovery_safety, state_name, timestamp};

pub(crate) fn receipt(receipt: &Receipt) -> proto::Receipt {
    proto::Receipt {
        disposition: disposition(receipt.disposition).into(),
        task_state: state_name(receipt.task_state).into(),
        decision: decision(receipt.decision).into(),
        effect_uncertain: receipt.effect_uncertain,
        next_available_at: receipt.next_available_at.map(timestamp),
        committed_at: Some(timestamp(receipt.committed_at)),
    }
}

pub(crate) const fn lease_status(lease: LeaseStatus) -> proto::LeaseStatus {
    proto::LeaseStatus {
        valid: lease.valid,
        remaining_ms: lease.remaining_ms,
        cancel_requested: lease.cancel_requested,
    }
}

pub(crate) fn dispatch(dispatch: Dispatch) -> proto::Dispatch {
    let age = dispatch.claimed_at.elapsed();
    proto::Dispatch {
        attempt_id: dispatch.attempt.attempt_id.to_string(),
        epoch: dispatch.attempt.epoch,
        attempt_number: dispatch.attempt.epoch,
        max_attempts: dispatch.max_attempts,
        lease_ms: millis(dispatch.lease.saturating_sub(age)),
        task_id: dispatch.attempt.task_id.to_string(),
        queue_id: dispatch.route.queue_id.as_ref().to_owned(),
        handler: dispatch.route.handler.as_ref().to_owned(),
        handler_version: dispatch.route.handler_version.as_ref().to_owned(),
        payload_version: dispatch.payload_version,
        payload: dispatch.payload,
        recovery_safety: recovery_safety(dispatch.recovery_safety).into(),
        effect_uncertain: dispatch.effect_uncertain,
        deadline_ms: millis(dispatch.deadline.saturating_sub(age)),
        attempt_timeout_ms: dispatch.attempt_timeout_ms,
    }
}

/// Whole milliseconds, rounded down: a worker is never promised more than there is.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

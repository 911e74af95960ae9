//! Attempts: the live one is a lease, the ended ones are history.

use std::sync::Arc;

use super::{
    decide::{Cause, Decision},
    ids::{AttemptId, Epoch, SessionId},
    json::JsonText,
    report::TaskError,
    time::Moment,
};

/// The worker session that holds an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who it belongs to.
    pub principal: Arc<str>,
    /// The worker stream that it was dispatched on.
    pub session_id: SessionId,
    /// The node that claimed it.
    pub node_id: Arc<str>,
    /// The worker's label.
    pub worker_name: Arc<str>,
}

/// The right to act on an attempt until a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The attempt.
    pub attempt_id: AttemptId,
    /// Who holds it.
    pub holder: Holder,
    /// When it was claimed.
    pub leased_at: Moment,
    /// Until when it is valid, exclusive.
    pub lease_until: Moment,
    /// What no grant, renewal or extension passes: the deadline, `start_before` or the attempt's time limit.
    pub cap_at: Moment,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// Reported success.
    Succeeded {
        /// What the handler returned.
        result: JsonText,
    },
    /// Reported failure.
    Failed {
        /// Whether the worker called it safe to retry.
        retryable: bool,
        /// The worker's error.
        error: TaskError,
    },
    /// Its effect is unknown: reported so, or the lease or the time ran out after the start.
    Unknown {
        /// The worker's error, if it reported one.
        error: Option<TaskError>,
    },
    /// Never started: nothing happened.
    Unstarted,
    /// Stopped because of a cancel.
    Canceled {
        /// The worker's error, if it reported one.
        error: Option<TaskError>,
    },
}

/// An attempt that is history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedAttempt {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its lease as it was at the end.
    pub lease: Lease,
    /// When its start was granted, if it was.
    pub started_at: Option<Moment>,
    /// When it ended.
    pub ended_at: Moment,
    /// How.
    pub end: AttemptEnd,
    /// What was decided.
    pub decision: Decision,
    /// What brought it about.
    pub cause: Cause,
    /// The backoff that followed, in milliseconds.
    pub delay_ms: Option<u32>,
}

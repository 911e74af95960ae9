//! What passes between the dispatcher and worker sessions.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    domain::{
        ids::{AttemptId, AttemptRef},
        policy::RecoverySafety,
        task::LeaseStatus,
    },
    store::RouteInfo,
};

use super::Session;

/// What a session asks for when it sits down.
#[derive(Clone, Debug)]
pub struct SeatRequest {
    /// The session.
    pub session: Session,
    /// The queues it serves.
    pub queue_ids: Vec<String>,
    /// The handlers it serves, with their versions.
    pub handlers: Vec<(String, String)>,
    /// Attempts at once.
    pub max_in_flight: u32,
    /// Attempts it holds already, with authority: they take slots.
    pub held: Vec<(AttemptRef, LeaseStatus)>,
}

/// An attempt on its way to a worker, claimed and committed.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The attempt.
    pub attempt: AttemptRef,
    /// How many attempts there may be in all.
    pub max_attempts: u32,
    /// How long its lease lasts, from `claimed_at` on.
    pub lease: Duration,
    /// How long until the task's deadline, from `claimed_at` on.
    pub deadline: Duration,
    /// When it was claimed, by this node's clock; for durations only.
    pub claimed_at: Instant,
    /// Where it waited.
    pub route: RouteInfo,
    /// The version of the payload's schema.
    pub payload_version: String,
    /// As submitted.
    pub payload: String,
    /// As frozen at acceptance.
    pub recovery_safety: RecoverySafety,
    /// Whether an earlier execution may have had its effect.
    pub effect_uncertain: bool,
    /// How long the attempt may run from its granted start, in milliseconds.
    pub attempt_timeout_ms: u32,
}

/// What a session hears at its seat.
#[derive(Clone, Debug)]
pub enum SeatEvent {
    /// An attempt for it.
    Dispatch(Box<Dispatch>),
    /// A cancel was recorded for an attempt that it runs.
    Canceled {
        /// The attempt.
        attempt_id: AttemptId,
        /// As given by who asked.
        reason: Arc<str>,
    },
}

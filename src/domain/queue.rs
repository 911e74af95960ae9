//! Queues.

use super::{ids::QueueNo, time::Moment};

/// The largest `max_running`.
pub const MAX_RUNNING_MAX: u32 = 1_000_000;

/// Where tasks wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its stored number.
    pub no: QueueNo,
    /// Its name.
    pub queue_id: String,
    /// Whether claims are stopped.
    pub paused: bool,
    /// Permits over all nodes; 0 means unlimited.
    pub max_running: u32,
    /// Raised by one with every change.
    pub revision: u32,
    /// When it was made.
    pub created_at: Moment,
    /// When it last changed.
    pub updated_at: Moment,
}

/// A change to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    /// Stop claims.
    Pause,
    /// Let claims go on.
    Resume,
    /// Set the limit of attempts at once.
    SetMaxRunning {
        /// 0 means unlimited.
        max_running: u32,
    },
}

impl Queue {
    /// The queue after a change at `now`. A change to what it is already changes nothing, not even the revision.
    #[must_use]
    pub fn changed(&self, change: QueueChange, now: Moment) -> Self {
        let mut next = self.clone();
        match change {
            QueueChange::Pause => next.paused = true,
            QueueChange::Resume => next.paused = false,
            QueueChange::SetMaxRunning { max_running } => next.max_running = max_running,
        }
        if next != *self {
            next.revision += 1;
            next.updated_at = now;
        }
        next
    }
}

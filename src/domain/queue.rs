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

#[cfg(test)]
mod tests {
    use super::*;

    const MADE: Moment = Moment::from_micros(1);
    const NOW: Moment = Moment::from_micros(2);

    fn queue(paused: bool, max_running: u32, revision: u32, updated_at: Moment) -> Queue {
        Queue {
            no: QueueNo(7),
            queue_id: "default".into(),
            paused,
            max_running,
            revision,
            created_at: MADE,
            updated_at,
        }
    }

    #[test]
    fn a_change_raises_the_revision_and_one_to_what_it_is_already_does_not() {
        use QueueChange::{Pause, Resume, SetMaxRunning};
        let (open, paused) = (queue(false, 5, 1, MADE), queue(true, 5, 1, MADE));
        let unlimited = SetMaxRunning { max_running: 0 };
        let table = [
            (&open, Pause, queue(true, 5, 2, NOW)),
            (&paused, Pause, paused.clone()),
            (&paused, Resume, queue(false, 5, 2, NOW)),
            (&open, Resume, open.clone()),
            (&open, unlimited, queue(false, 0, 2, NOW)),
            (&paused, unlimited, queue(true, 0, 2, NOW)),
            (&open, SetMaxRunning { max_running: 5 }, open.clone()),
        ];
        for (before, change, after) in table {
            assert_eq!(before.changed(change, NOW), after, "{before:?}, {change:?}");
        }
    }
}

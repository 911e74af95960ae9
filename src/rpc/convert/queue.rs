//! Writes queues.

use crate::{domain::queue::Queue, engine::ServedHandler, proto, store::reads::QueueStats};

use super::timestamp;

pub(crate) fn queue(queue: Queue) -> proto::Queue {
    proto::Queue {
        queue_id: queue.queue_id,
        paused: queue.paused,
        max_running: queue.max_running,
        revision: queue.revision,
        created_at: Some(timestamp(queue.created_at)),
        updated_at: Some(timestamp(queue.updated_at)),
    }
}

pub(crate) fn served_handler(served: ServedHandler) -> proto::ServedHandler {
    let ServedHandler { handler, handler_version, sessions } = served;
    proto::ServedHandler { handler, handler_version, sessions }
}

pub(crate) const fn queue_stats(stats: &QueueStats) -> proto::QueueStats {
    proto::QueueStats {
        running: stats.running,
        waiting: stats.waiting,
        waiting_capped: stats.waiting_capped,
        oldest_due_age_ms: stats.oldest_due_age_ms,
        needs_review: stats.needs_review,
    }
}

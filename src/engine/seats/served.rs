//! What the sessions at a node serve.

use std::collections::BTreeMap;

use super::Seats;

/// A handler that sessions at this node serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedHandler {
    /// The handler.
    pub handler: String,
    /// Its version.
    pub handler_version: String,
    /// How many sessions take its tasks.
    pub sessions: u32,
}

impl Seats {
    /// What is served for a queue, by name. A session that takes nothing more does not count.
    pub(in crate::engine) fn served(&self, queue_id: &str) -> Vec<ServedHandler> {
        let mut sessions: BTreeMap<(String, String), u32> = BTreeMap::new();
        let board = self.lock();
        for sitting in board.seats.values().filter(|s| !s.draining && s.queue_ids.contains(queue_id)) {
            for handler in &sitting.handlers {
                *sessions.entry(handler.clone()).or_default() += 1;
            }
        }
        drop(board);
        let served =
            |((handler, handler_version), sessions)| ServedHandler { handler, handler_version, sessions };
        sessions.into_iter().map(served).collect()
    }
}

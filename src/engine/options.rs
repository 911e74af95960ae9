//! How an engine is run.

use std::time::Duration;

use crate::{
    domain::submission::PAYLOAD_BYTES_MAX_DEFAULT,
    store::{Database, LeaseTerms},
};

/// How an engine is run.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The node's name in events; by default a fresh one for each start.
    pub node_id: String,
    /// How long a granted or renewed lease lasts: 1 s to 1 h, default 60 s.
    pub lease: Duration,
    /// How long a dispatched attempt may wait for its start: 1 s to 1 h, default 15 s.
    pub start_window: Duration,
    /// How often to look for leases and waits that time has ended; default 250 ms.
    pub sweep_interval: Duration,
    /// How often to look for work that other nodes accepted; default 200 ms.
    pub poll_interval: Duration,
    /// The largest payload or result, in bytes; default 1 MiB.
    pub payload_bytes_max: usize,
    /// How long finished tasks are kept, from their end on; by default for ever.
    pub keep_finished: Option<Duration>,
    /// Lanes, that is transactions at once, on MySQL: 1 to 16, default 2. SQLite has one.
    pub lanes: usize,
    /// The most commands of one transaction: 1 to 1,024, default 256.
    pub batch_max: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_id: format!("node-{}", uuid::Uuid::new_v4().simple()),
            lease: Duration::from_mins(1),
            start_window: Duration::from_secs(15),
            sweep_interval: Duration::from_millis(250),
            poll_interval: Duration::from_millis(200),
            payload_bytes_max: PAYLOAD_BYTES_MAX_DEFAULT,
            keep_finished: None,
            lanes: 2,
            batch_max: 256,
        }
    }
}

impl EngineOptions {
    /// The lease, in milliseconds.
    pub fn lease_ms(&self) -> u32 {
        millis(self.lease)
    }

    /// The unstarted lease, in milliseconds.
    pub fn start_window_ms(&self) -> u32 {
        millis(self.start_window)
    }

    pub(super) fn lease_terms(&self) -> LeaseTerms {
        LeaseTerms { lease_ms: self.lease_ms(), start_window_ms: self.start_window_ms() }
    }

    /// Two lanes that take every kind of command were the fastest on MySQL; SQLite has one writer.
    pub(super) fn lane_count(&self, database: &Database) -> usize {
        if database.is_sqlite() { 1 } else { self.lanes.clamp(1, 16) }
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

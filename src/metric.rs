//! What a running node measures about itself, by name. Who runs it decides whether somebody records them.

use std::time::Duration;

use metrics::{counter, histogram};

/// Commands of one transaction.
pub const BATCH_COMMANDS: &str = "orbit_batch_commands";
/// From a command's arrival at its lane to the begin of its transaction, in seconds.
pub const LANE_WAIT: &str = "orbit_lane_wait_seconds";
/// A whole transaction, re-runs included, in seconds.
pub const TRANSACTION: &str = "orbit_transaction_seconds";
/// Its COMMIT alone, in seconds.
pub const COMMIT: &str = "orbit_commit_seconds";
/// From the moment a task is due to the claim that leases it, in seconds.
pub const DISPATCH: &str = "orbit_dispatch_latency_seconds";
/// Rows inserted, updated or deleted, by `table`.
pub const ROWS_WRITTEN: &str = "orbit_rows_written_total";

/// Counts rows that a statement wrote.
pub(crate) fn rows_written(table: &'static str, rows: usize) {
    counter!(ROWS_WRITTEN, "table" => table).increment(rows as u64);
}

/// Notes how long something took.
pub(crate) fn took(name: &'static str, duration: Duration) {
    histogram!(name).record(duration);
}

//! Learns what other nodes did to attempts that are held here, of which this node is not told: reclaimed them, when their
//! leases should have ended; recorded a cancel.

use std::time::Duration;

use tokio::time::sleep;

use super::Engine;

const INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn run(engine: Engine) {
    loop {
        tokio::select! {
            () = engine.inner.stop.cancelled() => break,
            () = sleep(INTERVAL) => {}
        }
        if engine.inner.seats.holds_any() {
            match engine.inner.database.canceled().await {
                Ok(canceled) => engine.inner.seats.canceled(&canceled),
                Err(fault) => tracing::debug!(%fault, "cancels not looked for"),
            }
        }
        let overdue = engine.inner.seats.overdue();
        if overdue.is_empty() {
            continue;
        }
        let tasks: Vec<_> = overdue.iter().map(|a| a.task_id).collect();
        match engine.inner.database.held(&tasks).await {
            Ok(held) => engine.inner.seats.reconcile(&overdue, &held),
            Err(fault) => tracing::debug!(%fault, "leases not looked at"),
        }
    }
}

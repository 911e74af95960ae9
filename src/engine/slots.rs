//! Frees the slots of attempts that other nodes reclaimed: this node is not told, so it looks when their leases should
//! have ended.

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

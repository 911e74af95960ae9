//! Removes tasks that ended long ago, if the node was told how long to keep them. Every node of a cluster may do so.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::{domain::ids::TaskId, store::Fault};

use super::{Engine, Failure};

/// After each step it rests so many times as long as the step took, so that it never takes more than a share of what the
/// database can do, and less when that is busy.
const REST_FACTOR: u32 = 2;
/// The least rest.
const REST_MIN: Duration = Duration::from_millis(5);
/// The longest rest between two walks.
const WALK_INTERVAL_MAX: Duration = Duration::from_mins(1);

/// Walks until the node stops.
pub(super) async fn run(engine: Engine) {
    let Some(keep) = engine.inner.options.keep_finished else {
        return;
    };
    let interval = (keep / 10).clamp(Duration::from_secs(1), WALK_INTERVAL_MAX);
    loop {
        tokio::select! {
            () = engine.inner.stop.cancelled() => break,
            () = sleep(interval) => {}
        }
        match run_once(&engine, keep).await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed finished tasks"),
            Err(failure) => tracing::debug!(?failure, "finished tasks not removed"),
        }
    }
}

/// One walk over all tasks that may be due, or what is left of it when the node stops.
pub(super) async fn run_once(engine: &Engine, keep: Duration) -> Result<u64, Failure> {
    let database = &engine.inner.database;
    let (mut after, mut removed) = (TaskId(Uuid::nil()), 0);
    while !engine.inner.stop.is_cancelled() {
        let began = Instant::now();
        let step = database.finished(keep, after).await?;
        if !step.tasks.is_empty() {
            match database.remove_finished(keep, &step.tasks).await {
                Ok(tasks) => removed += tasks,
                Err(fault @ Fault::Away(_)) => return Err(fault.into()),
                // They are looked at again by the next walk, and must not keep this one from the others.
                Err(fault) => tracing::warn!(%fault, "some finished tasks were not removed"),
            }
        }
        match step.next {
            Some(next) => after = next,
            None => break,
        }
        let rest = (began.elapsed() * REST_FACTOR).max(REST_MIN);
        tokio::select! {
            () = engine.inner.stop.cancelled() => break,
            () = sleep(rest) => {}
        }
    }
    Ok(removed)
}

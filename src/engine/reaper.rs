//! Reclaims what has lapsed. Several nodes may do so at once: candidates are read without locks, and each is judged
//! again under its lock.

use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;

use super::{
    Engine, Failure,
    command::{Lapse, Lapsed},
};

/// Candidates of one look.
const CANDIDATES_MAX: u32 = 1_000;
/// Commands under way at once.
const CONCURRENCY: usize = 256;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks that seemed to have lapsed.
    pub candidates: usize,
    /// Tasks that it moved.
    pub changed: usize,
}

/// Sweeps until the node stops.
pub(super) async fn run(engine: Engine) {
    let interval = engine.inner.options.sweep_interval;
    loop {
        let full = match run_once(&engine).await {
            Ok(swept) => {
                if swept.changed > 0 {
                    tracing::info!(changed = swept.changed, "reclaimed what had lapsed");
                }
                // More than one look's worth: go on at once, as long as that gets anywhere.
                swept.candidates >= CANDIDATES_MAX as usize && swept.changed > 0
            }
            Err(failure) => {
                tracing::debug!(?failure, "sweep failed");
                false
            }
        };
        if !full {
            tokio::select! {
                () = engine.inner.stop.cancelled() => break,
                () = sleep(interval) => {}
            }
        }
        if engine.inner.stop.is_cancelled() {
            break;
        }
    }
}

/// Looks once.
pub(super) async fn run_once(engine: &Engine) -> Result<Swept, Failure> {
    let tasks = engine.inner.database.lapsed(CANDIDATES_MAX).await?;
    let candidates = tasks.len();
    let outcomes: Vec<Result<Lapsed, Failure>> = stream::iter(tasks)
        .map(|task_id| engine.send(engine.lane_of(task_id), Lapse { task_id }))
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let changed = outcomes.iter().filter(|o| matches!(o, Ok(Lapsed::Changed))).count();
    Ok(Swept { candidates, changed })
}

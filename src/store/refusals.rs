//! Whether the lanes can write. The small writes beside them may still pass, as on a disk with a little room left.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Refused for so long, the database counts as one that takes no writes.
const REFUSED_AFTER: Duration = Duration::from_secs(3);
/// With nothing refused for so long, nobody knows any more: the next transaction finds out.
const KNOWN_FOR: Duration = Duration::from_secs(2);
/// The same trouble is told once in so long.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How the lanes of a node fare, all together.
#[derive(Default)]
pub(super) struct Refusals {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refused: Option<Refused>,
    told_at: Option<Instant>,
    untold: u32,
}

/// No transaction was written between these two moments.
#[derive(Clone, Copy)]
struct Refused {
    first: Instant,
    last: Instant,
}

impl Refusals {
    /// A transaction was written.
    pub(super) fn written(&self) {
        self.lock().refused = None;
    }

    /// One could not be written, for a reason that is the database's.
    pub(super) fn refused(&self) {
        let (mut state, now) = (self.lock(), Instant::now());
        let first = state.refused.map_or(now, |refused| refused.first);
        state.refused = Some(Refused { first, last: now });
    }

    /// Whether none can be written.
    pub(super) fn go_on(&self) -> bool {
        self.lock()
            .refused
            .is_some_and(|r| r.first.elapsed() >= REFUSED_AFTER && r.last.elapsed() < KNOWN_FOR)
    }

    /// Whether to tell of a failed commit: if so, how many there were since that was last told.
    pub(super) fn tell(&self) -> Option<u32> {
        let mut state = self.lock();
        state.untold += 1;
        if state.told_at.is_some_and(|at| at.elapsed() < TELL_EVERY) {
            return None;
        }
        state.told_at = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_count_once_they_last_and_until_one_is_written() {
        let refusals = Refusals::default();
        for _ in 0..6 {
            refusals.refused();
            assert!(!refusals.go_on());
            advance(Duration::from_millis(500)).await;
        }
        refusals.refused();
        assert!(refusals.go_on());
        refusals.written();
        assert!(!refusals.go_on());
    }

    // Whoever looks at health sends nothing while it is bad: somebody has to try.
    #[tokio::test(start_paused = true)]
    async fn what_has_not_been_tried_for_a_while_is_tried_and_known_at_once() {
        let refusals = Refusals::default();
        refusals.refused();
        advance(REFUSED_AFTER).await;
        refusals.refused();
        assert!(refusals.go_on());
        advance(KNOWN_FOR).await;
        assert!(!refusals.go_on());
        refusals.refused();
        assert!(refusals.go_on());
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_trouble_is_told_once_a_second_with_its_count() {
        let refusals = Refusals::default();
        let mut told = Vec::new();
        for _ in 0..21 {
            told.extend(refusals.tell());
            advance(Duration::from_millis(100)).await;
        }
        assert_eq!(told, [1, 10, 10]);
    }
}

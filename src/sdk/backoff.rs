//! Waiting before something is tried again.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use uuid::Uuid;

/// Endless delays from `first` up to `limit`, doubling, each with up to as much again of jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    limit: Duration,
    delays: ExponentialBackoff,
}

impl Backoff {
    pub(crate) fn new(first: Duration, limit: Duration) -> Self {
        let delays = ExponentialBuilder::new()
            .with_min_delay(first)
            .with_max_delay(limit)
            .without_max_times()
            .with_jitter()
            // backon's own seed is a constant without its `std` feature: all workers would come back at once.
            .with_jitter_seed(Uuid::new_v4().as_u64_pair().0)
            .build();
        Self { first, limit, delays }
    }

    /// The delay before the next try.
    pub(crate) fn next_delay(&mut self) -> Duration {
        self.delays.next().unwrap_or(self.limit)
    }

    /// Begins again with the first delay.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.first, self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_limit_and_differ_between_clients() {
        let (first, limit) = (Duration::from_millis(100), Duration::from_secs(2));
        let mut one = Backoff::new(first, limit);
        let delays: Vec<_> = (0..64).map(|_| one.next_delay()).collect();
        assert!(delays.iter().all(|delay| (first..=2 * limit).contains(delay)), "{delays:?}");
        assert!(delays[10..].iter().all(|delay| *delay >= limit), "{delays:?}");

        let mut other = Backoff::new(first, limit);
        assert_ne!(delays, (0..64).map(|_| other.next_delay()).collect::<Vec<_>>());
        one.reset();
        assert!(one.next_delay() <= 2 * first);
    }
}

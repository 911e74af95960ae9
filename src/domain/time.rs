//! Moments of the database's clock.

use std::time::Duration;

/// A moment: microseconds since the Unix epoch, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This moment, `ms` milliseconds later.
    #[must_use]
    pub const fn plus_ms(self, ms: u32) -> Self {
        Self(self.0.saturating_add(ms as i64 * 1_000))
    }

    /// Whole milliseconds from `earlier` to this moment, 0 if it is not later; saturates at `u32::MAX`.
    pub fn ms_since(self, earlier: Self) -> u32 {
        let ms = self.0.saturating_sub(earlier.0).max(0) / 1_000;
        u32::try_from(ms).unwrap_or(u32::MAX)
    }

    /// From `earlier` to this moment, nothing if it is not later.
    pub fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: i64) -> Moment {
        Moment::from_micros(micros)
    }

    #[test]
    fn milliseconds_are_added_and_saturate() {
        assert_eq!(at(7).plus_ms(0), at(7));
        assert_eq!(at(-1).plus_ms(2), at(1_999));
        assert_eq!(at(0).plus_ms(u32::MAX).micros(), 4_294_967_295_000);
        assert_eq!(at(i64::MAX - 999).plus_ms(1), at(i64::MAX));
        assert_eq!(at(i64::MAX - 1_000).plus_ms(1), at(i64::MAX));
    }

    #[test]
    fn whole_milliseconds_between_two_moments_are_counted() {
        let table = [(0, 0), (999, 0), (1_000, 1), (1_999, 1), (2_000, 2), (-1, 0), (-5_000, 0)];
        for (micros, ms) in table {
            assert_eq!(at(10 + micros).ms_since(at(10)), ms, "{micros}");
        }
        assert_eq!(at(4_294_967_295_999).ms_since(at(0)), u32::MAX);
        assert_eq!(at(4_294_967_296_000).ms_since(at(0)), u32::MAX);
        assert_eq!(at(i64::MAX).ms_since(at(i64::MIN)), u32::MAX);
        assert_eq!(at(i64::MIN).ms_since(at(i64::MAX)), 0);
    }

    #[test]
    fn moments_are_ordered_by_the_microsecond() {
        assert!(at(1) < at(2) && at(-1) < at(0));
    }
}

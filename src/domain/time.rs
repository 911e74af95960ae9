//! Moments of the database's clock.

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
}

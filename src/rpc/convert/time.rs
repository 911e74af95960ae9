//! Moments of the contract: seconds and nanoseconds there, microseconds here.

use prost_types::Timestamp;

use crate::domain::time::Moment;

/// The first second of the year 1, which is the least that a Timestamp may hold.
const SECONDS_MIN: i64 = -62_135_596_800;
/// The last second of the year 9999.
const SECONDS_MAX: i64 = 253_402_300_799;

/// Reads a moment. What is finer than a microsecond is cut off.
pub(super) fn moment(at: Timestamp) -> Result<Moment, String> {
    if !(SECONDS_MIN..=SECONDS_MAX).contains(&at.seconds) {
        return Err(format!("has {} seconds; must lie in the years 1 to 9999", at.seconds));
    }
    if !(0..1_000_000_000).contains(&at.nanos) {
        return Err(format!("has {} nanos; must be 0 to 999999999", at.nanos));
    }
    // Within the years 1 to 9999 this is far from the limits of 64 bits.
    Ok(Moment::from_micros(at.seconds * 1_000_000 + i64::from(at.nanos / 1_000)))
}

/// Writes a moment.
pub(crate) fn timestamp(at: Moment) -> Timestamp {
    let micros = at.micros();
    let below_a_second = i32::try_from(micros.rem_euclid(1_000_000)).unwrap_or(0);
    Timestamp { seconds: micros.div_euclid(1_000_000), nanos: below_a_second * 1_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanos: i32) -> Result<i64, String> {
        moment(Timestamp { seconds, nanos }).map(Moment::micros)
    }

    #[test]
    fn moments_have_microseconds() {
        assert_eq!(at(0, 0), Ok(0));
        assert_eq!(at(1, 999_999_999), Ok(1_999_999));
        assert_eq!(at(-1, 1_000), Ok(-999_999));
        assert_eq!(at(SECONDS_MIN, 0), Ok(SECONDS_MIN * 1_000_000));
        assert_eq!(at(SECONDS_MAX, 999_999_999), Ok(SECONDS_MAX * 1_000_000 + 999_999));
    }

    #[test]
    fn what_no_timestamp_may_hold_is_refused() {
        for (seconds, nanos) in [
            (SECONDS_MIN - 1, 0),
            (SECONDS_MAX + 1, 0),
            (i64::MIN, 0),
            (i64::MAX, i32::MAX),
            (0, -1),
            (0, 1_000_000_000),
            (0, i32::MIN),
        ] {
            assert!(at(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for micros in [0, 1, -1, 1_700_000_000_123_456, -62_135_596_800_000_000] {
            let written = timestamp(Moment::from_micros(micros));
            assert!((0..1_000_000_000).contains(&written.nanos));
            assert_eq!(moment(written).map(Moment::micros), Ok(micros));
        }
    }
}

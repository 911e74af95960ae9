//! Values of the contract as people and scripts read them.

use std::time::Duration;

use orbit::proto::{AttemptState, Cause, Decision, Outcome, RecoverySafety, TaskState};
use prost_types::Timestamp;

use super::json::Json;

/// The name of an enum's value without the prefix that the contract gives it; empty if unspecified.
pub(crate) trait Name {
    fn name(self) -> &'static str;
}

macro_rules! names {
    ($($type:ident $prefix:literal;)*) => {$(
        impl Name for $type {
            fn name(self) -> &'static str {
                let full = self.as_str_name();
                match full.strip_prefix($prefix).unwrap_or(full) {
                    "UNSPECIFIED" => "",
                    name => name,
                }
            }
        }
    )*};
}

names! {
    TaskState "TASK_STATE_";
    AttemptState "ATTEMPT_STATE_";
    Decision "DECISION_";
    Outcome "OUTCOME_";
    RecoverySafety "RECOVERY_SAFETY_";
    Cause "CAUSE_";
}

/// A moment in RFC 3339, UTC; empty if absent.
pub(crate) fn moment(at: Option<&Timestamp>) -> String {
    at.map(ToString::to_string).unwrap_or_default()
}

/// As [`moment`], cut to milliseconds.
pub(crate) fn moment_short(at: Option<&Timestamp>) -> String {
    let cut = |at: &Timestamp| Timestamp { nanos: at.nanos / 1_000_000 * 1_000_000, ..*at };
    moment(at.map(cut).as_ref())
}

/// A moment for scripts.
pub(crate) fn moment_json(at: Option<&Timestamp>) -> Json {
    Json::text_or_null(&moment(at))
}

/// A number of milliseconds, for people.
pub(crate) fn duration(ms: u32) -> String {
    match ms {
        0 => "none".to_owned(),
        ms if ms % 1_000 != 0 => format!("{ms} ms"),
        ms if ms % 60_000 != 0 => format!("{} s", ms / 1_000),
        ms if ms % 3_600_000 != 0 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}

/// Yes or no, for people.
pub(crate) fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// How long finished tasks may be kept.
const KEEP_MIN: Duration = Duration::from_mins(1);
const KEEP_MAX: Duration = Duration::from_hours(24 * 36_500);

/// Reads for how long finished tasks are kept: a number with its unit, or none.
pub(crate) fn parse_keep(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        return Ok(None);
    }
    let read = || {
        let unit = text.chars().next_back()?;
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return None,
        };
        number.checked_mul(seconds).map(Duration::from_secs)
    };
    let keep = read().filter(|keep| (KEEP_MIN..=KEEP_MAX).contains(keep));
    keep.map(Some).ok_or_else(|| {
        "must be `forever`, or a number with its unit, s, m, h or d, from 1m to 36500d, such as 30d"
            .to_owned()
    })
}

/// Reads a moment: RFC 3339 with its offset, since a moment without one is nobody's.
pub(crate) fn parse_moment(text: &str) -> Result<Timestamp, String> {
    let problem = || {
        "a moment is RFC 3339 with an offset, such as 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+01:00"
            .to_owned()
    };
    let (_, time) = text.split_once(['T', 't']).ok_or_else(problem)?;
    if !time.ends_with(['Z', 'z']) && !time.contains(['+', '-']) {
        return Err(problem());
    }
    text.parse().map_err(|_| problem())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_need_their_offset() {
        for (text, read) in [
            ("2030-01-31T09:30:00Z", "2030-01-31T09:30:00Z"),
            ("2030-01-31t09:30:00.25z", "2030-01-31T09:30:00.250Z"),
            ("2030-01-31T09:30:00+01:30", "2030-01-31T08:00:00Z"),
            ("2030-01-31T00:30:00-01:00", "2030-01-31T01:30:00Z"),
        ] {
            assert_eq!(parse_moment(text).map(|at| at.to_string()), Ok(read.to_owned()), "{text}");
        }
        for text in [
            "",
            "now",
            "2030-01-31",
            "2030-01-31T09:30:00",
            "2030-02-30T09:30:00Z",
            "2030-01-31T25:00:00Z",
            "1893456000",
        ] {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_to_keep_tasks_has_a_unit_and_limits() {
        for (text, seconds) in [("60s", 60), ("1m", 60), ("90m", 5_400), ("12h", 43_200), ("30d", 2_592_000)]
        {
            assert_eq!(parse_keep(text), Ok(Some(Duration::from_secs(seconds))), "{text}");
        }
        assert_eq!(parse_keep("forever"), Ok(None));
        assert!(parse_keep("36500d").is_ok());
        for text in [
            "",
            "d",
            "30",
            "30 d",
            "-1d",
            "1.5d",
            "59s",
            "0d",
            "36501d",
            "1w",
            "30D",
            "99999999999999999999d",
            "1é",
        ] {
            assert!(parse_keep(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_have_no_prefix() {
        assert_eq!(TaskState::NeedsReview.name(), "NEEDS_REVIEW");
        assert_eq!(Decision::Unspecified.name(), "");
        assert_eq!(RecoverySafety::ReconcileOnly.name(), "RECONCILE_ONLY");
    }

    #[test]
    fn durations_keep_their_exact_value() {
        for (ms, text) in [
            (0, "none"),
            (1, "1 ms"),
            (1_500, "1500 ms"),
            (2_000, "2 s"),
            (300_000, "5 min"),
            (86_400_000, "24 h"),
        ] {
            assert_eq!(duration(ms), text);
        }
    }
}

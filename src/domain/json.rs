//! JSON texts: checked once, then kept and handed on byte for byte.
//!
//! A text is never parsed into numbers or maps: that would change digits, key order and duplicate keys.

use std::{fmt, sync::Arc};

use super::rejection::{FieldProblem, Rejection};

/// The deepest nesting of arrays and objects that is accepted. Below the 127 levels that common parsers read, so that
/// a text stays readable when it is wrapped in a response.
pub const DEPTH_MAX: usize = 100;

/// A valid JSON text.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(Arc<str>);

/// Why a text is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonProblem {
    /// It has more bytes than allowed.
    TooLarge {
        /// How many it has.
        bytes: usize,
        /// How many are allowed.
        bytes_max: usize,
    },
    /// It is not JSON, or nested too deeply.
    NotJson(String),
}

impl JsonText {
    /// Checks a text. An empty one stands for `null`.
    pub fn parse(text: &str, bytes_max: usize) -> Result<Self, JsonProblem> {
        if text.len() > bytes_max {
            return Err(JsonProblem::TooLarge { bytes: text.len(), bytes_max });
        }
        if text.is_empty() {
            return Ok(Self::null());
        }
        // Before the parser, whose own limit is on the stack's depth and not ours.
        check_depth(text)?;
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map_err(|e| JsonProblem::NotJson(format!("is not valid JSON: {e}")))?;
        Ok(Self(text.into()))
    }

    /// The text `null`.
    pub fn null() -> Self {
        Self("null".into())
    }

    /// Refuses a text that is larger than a configured limit.
    pub fn check_size(&self, field: &'static str, bytes_max: usize) -> Result<(), Rejection> {
        let bytes = self.0.len();
        if bytes <= bytes_max {
            return Ok(());
        }
        let problem = JsonProblem::TooLarge { bytes, bytes_max };
        Err(Rejection::Invalid(vec![FieldProblem::json(field, problem)]))
    }

    /// A text that was checked before it was stored.
    pub fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads are the producer's own: they stay out of logs.
        write!(f, "JsonText({} bytes)", self.0.len())
    }
}

fn check_depth(text: &str) -> Result<(), JsonProblem> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(JsonProblem::NotJson(format!("is nested more than {DEPTH_MAX} levels deep")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_byte_for_byte() {
        let text = r#" {"n":9007199254740993,"e":1E2,"d":0.10,"d":1,"v":18446744073709551616,"big":1e400} "#;
        assert_eq!(JsonText::parse(text, 1_000).map(|j| j.as_str().to_owned()), Ok(text.to_owned()));
        assert_eq!(JsonText::parse("", 0), Ok(JsonText::null()));
        let marker = r#"{"$serde_json::private::Number":"x","$serde_json::private::RawValue":"{"}"#;
        assert!(JsonText::parse(marker, 1_000).is_ok());
    }

    #[test]
    fn depth_is_limited_before_parsing() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(JsonText::parse(&nested(100), 1 << 20).is_ok());
        assert!(JsonText::parse(&nested(101), 1 << 20).is_err());
        assert!(JsonText::parse(&"[".repeat(100_000), 1 << 20).is_err());
        let brackets_in_a_string = format!("\"{}\\\"{}\"", "[".repeat(200), "{".repeat(200));
        assert!(JsonText::parse(&brackets_in_a_string, 1 << 20).is_ok());
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for bad in ["{", "nul", "01", "{'a':1}", "1 2", "\"\u{1}\"", "[1,]", "\u{feff}{}", "NaN"] {
            assert!(matches!(JsonText::parse(bad, 1_000), Err(JsonProblem::NotJson(_))), "{bad}");
        }
        assert_eq!(JsonText::parse("[1]", 2), Err(JsonProblem::TooLarge { bytes: 3, bytes_max: 2 }));
    }

    #[test]
    fn closed_brackets_do_not_count_as_depth() {
        let wide = format!("[{}[]]", "[],{},".repeat(200).replace("{}", "{\"a\":[]}"));
        assert!(JsonText::parse(&wide, 1 << 20).is_ok());
        let mixed = format!("{}1{}", "{\"a\":[".repeat(50), "]}".repeat(50));
        assert!(JsonText::parse(&mixed, 1 << 20).is_ok());
        assert!(JsonText::parse(&format!("[{mixed}]"), 1 << 20).is_err());
        let after_an_escape = format!("[\"a\\\\\",{}]", "[".repeat(100) + &"]".repeat(100));
        assert!(JsonText::parse(&after_an_escape, 1 << 20).is_err(), "the string ended, so these count");
    }

    #[test]
    fn a_size_equal_to_the_limit_is_allowed() {
        let text = JsonText::stored("[1]".to_owned());
        assert_eq!(text.check_size("payload_json", 3), Ok(()));
        let problem = JsonProblem::TooLarge { bytes: 3, bytes_max: 2 };
        let refused = Rejection::Invalid(vec![FieldProblem::json("payload_json", problem)]);
        assert_eq!(text.check_size("payload_json", 2), Err(refused));
        assert!(JsonText::parse("[1]", 3).is_ok());
    }

    #[test]
    fn a_text_stays_out_of_logs() {
        assert_eq!(format!("{:?}", JsonText::stored("\"secret\"".to_owned())), "JsonText(8 bytes)");
    }
}

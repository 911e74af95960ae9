//! How a handler says that it did not succeed, and what that is reported as.

use std::{error::Error as StdError, fmt};

use serde::Serialize;
use serde_json::value::RawValue;

use crate::proto::{Outcome, TaskError};

/// Limits of the contract's `TaskError`: a report beyond them would be refused.
const CODE_CHARS_MAX: usize = 128;
const MESSAGE_BYTES_MAX: usize = 4 * 1024;
const DETAILS_BYTES_MAX: usize = 64 * 1024;

/// Code of an ordinary error that a handler returned.
pub(crate) const HANDLER_ERROR: &str = "HANDLER_ERROR";
/// Code of a payload that is not what the handler takes.
const PAYLOAD_INVALID: &str = "PAYLOAD_INVALID";
/// Code of a result that could not be reported.
const RESULT_INVALID: &str = "RESULT_INVALID";
/// Code of a failure without one.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Why an attempt did not succeed, and whether its effect is known.
///
/// Only [`retryable`](Self::retryable) and [`permanent`](Self::permanent) claim that the effect did not happen. Any other
/// error, which `?` turns into a `Failure`, is reported UNKNOWN: Orbit then runs the task again only if it was
/// submitted as IDEMPOTENT, and else asks a person. So a time-out of a remote call must not be made retryable by
/// hand unless it is certain that nothing happened.
///
/// It is deliberately no `std::error::Error`, so that every such error can become one.
///
/// ```
/// use orbit::sdk::Failure;
///
/// fn charge(balance: i64) -> Result<i64, Failure> {
///     if balance == 0 {
///         return Err(Failure::permanent("NO_FUNDS").message("the account is empty"));
///     }
///     let fee: i64 = "7".parse()?; // any other error: UNKNOWN
///     Ok(balance - fee)
/// }
/// # assert_eq!(charge(10).ok(), Some(3));
/// ```
#[derive(Debug, Clone)]
pub struct Failure {
    class: Class,
    code: String,
    message: String,
    details: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Retryable,
    Permanent,
    Unknown,
    Canceled,
}

impl Failure {
    /// Nothing happened, or doing it again is harmless: Orbit tries again while budget and time allow.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// // The bank refused before it did anything.
    /// assert!(Failure::retryable("BANK_BUSY").is_retryable());
    /// ```
    pub fn retryable(code: impl Into<String>) -> Self {
        Self::new(Class::Retryable, code)
    }

    /// Nothing happened and trying again would not help: the task fails.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// assert!(!Failure::permanent("NO_FUNDS").is_retryable());
    /// ```
    pub fn permanent(code: impl Into<String>) -> Self {
        Self::new(Class::Permanent, code)
    }

    /// Whether the effect happened is not known. What every other error becomes, with a code of the handler's own.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// // The answer did not come in time: it may have been booked.
    /// assert!(!Failure::unknown("BANK_SILENT").is_retryable());
    /// ```
    pub fn unknown(code: impl Into<String>) -> Self {
        Self::new(Class::Unknown, code)
    }

    /// The handler stopped because a cancel was requested, and nothing more will happen. Without a recorded cancel
    /// it is reported UNKNOWN.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     context.cancelled().await;
    ///     match context.cancel_reason() {
    ///         Some(CancelReason::Requested) => Err(Failure::canceled("STOPPED")),
    ///         _ => Err(Failure::unknown("INTERRUPTED")),
    ///     }
    /// }
    /// ```
    pub fn canceled(code: impl Into<String>) -> Self {
        Self::new(Class::Canceled, code)
    }

    /// An explanation for people, at most 4 KiB: what is longer is cut.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// assert_eq!(Failure::permanent("NO_FUNDS").message("3 cents are missing").to_string(), "NO_FUNDS: 3 cents are missing");
    /// ```
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Details for programs, written as JSON, at most 64 KiB. Details that cannot be written are left out, and the
    /// message says so: they do not change what the failure means.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// let failure = Failure::permanent("NO_FUNDS").details(&serde_json::json!({ "missing_cents": 3 }));
    /// ```
    #[must_use]
    pub fn details<T: Serialize + ?Sized>(self, details: &T) -> Self {
        match serde_json::to_string(details) {
            Ok(text) => self.details_json(text),
            Err(error) => self.without_details(&error.to_string()),
        }
    }

    /// Details as JSON text, kept byte for byte; as [`details`](Self::details).
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// let failure = Failure::permanent("NO_FUNDS").details_json(r#"{"missing_cents":3}"#);
    /// ```
    #[must_use]
    pub fn details_json(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        if text.len() > DETAILS_BYTES_MAX {
            return self.without_details("they are larger than 64 KiB");
        }
        if let Err(error) = serde_json::from_str::<&RawValue>(&text) {
            return self.without_details(&error.to_string());
        }
        self.details = text;
        self
    }

    /// The code, as given.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// assert_eq!(Failure::retryable("BANK_BUSY").code(), "BANK_BUSY");
    /// assert_eq!(Failure::from("any other error").code(), "HANDLER_ERROR");
    /// ```
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Whether Orbit is told that trying again is safe.
    ///
    /// ```
    /// # use orbit::sdk::Failure;
    /// assert!(Failure::retryable("BANK_BUSY").is_retryable());
    /// assert!(!Failure::from("any other error").is_retryable());
    /// ```
    pub fn is_retryable(&self) -> bool {
        self.class == Class::Retryable
    }

    fn new(class: Class, code: impl Into<String>) -> Self {
        Self { class, code: code.into(), message: String::new(), details: String::new() }
    }

    fn without_details(mut self, problem: &str) -> Self {
        let blank = if self.message.is_empty() { "" } else { " " };
        self.message = format!("{}{blank}(details left out: {problem})", self.message);
        self
    }
}

/// Every other error, boxed ones, `anyhow`'s and plain texts too: UNKNOWN, with the causes in the message.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::unknown(HANDLER_ERROR).message(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            f.write_str(&self.code)
        } else {
            write!(f, "{}: {}", self.code, self.message)
        }
    }
}

/// What is reported of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    pub(crate) retryable: bool,
    /// JSON text, with SUCCEEDED only.
    pub(crate) result: String,
    /// With everything but SUCCEEDED.
    pub(crate) error: Option<TaskError>,
}

impl Ending {
    /// The handler returned JSON text. A result that cannot be reported leaves the effect, which did happen,
    /// unverified.
    pub(crate) fn of_result(result: String, bytes_max: usize) -> Self {
        if result.len() > bytes_max {
            let message =
                format!("the result has {} bytes; at most {bytes_max} can be reported", result.len());
            return Self::unknown(RESULT_INVALID, message);
        }
        // An empty text stands for `null` in the contract.
        if !result.is_empty()
            && let Err(error) = serde_json::from_str::<&RawValue>(&result)
        {
            return Self::unknown(RESULT_INVALID, format!("the result is not JSON text: {error}"));
        }
        Self { outcome: Outcome::Succeeded, retryable: false, result, error: None }
    }

    /// The handler returned a value.
    pub(crate) fn of_value<R: Serialize>(value: &R, bytes_max: usize) -> Self {
        match serde_json::to_string(value) {
            Ok(text) => Self::of_result(text, bytes_max),
            Err(error) => {
                Self::unknown(RESULT_INVALID, format!("the result could not be written as JSON: {error}"))
            }
        }
    }

    pub(crate) fn of_failure(failure: Failure) -> Self {
        let outcome = match failure.class {
            Class::Retryable | Class::Permanent => Outcome::Failed,
            Class::Unknown => Outcome::Unknown,
            Class::Canceled => Outcome::Canceled,
        };
        let code = if failure.code.is_empty() {
            UNSPECIFIED.to_owned()
        } else {
            failure.code.chars().take(CODE_CHARS_MAX).collect()
        };
        Self {
            outcome,
            retryable: failure.class == Class::Retryable,
            result: String::new(),
            error: Some(TaskError { code, message: cut(failure.message), details: failure.details }),
        }
    }

    /// The payload is not what the handler takes. The handler did not run, so this is no unknown.
    pub(crate) fn payload_invalid(error: &serde_json::Error) -> Self {
        Self::of_failure(Failure::permanent(PAYLOAD_INVALID).message(error.to_string()))
    }

    /// The attempt may have been authorized, but the handler was not called and never will be.
    pub(crate) fn never_ran(message: &str) -> Self {
        Self::of_failure(Failure::retryable("NEVER_RAN").message(message))
    }

    /// A cancel was recorded before the handler was called.
    pub(crate) fn canceled_before_run() -> Self {
        Self::of_failure(Failure::canceled("CANCELED").message("canceled before the handler was called"))
    }

    pub(crate) fn unknown(code: &str, message: String) -> Self {
        Self::of_failure(Failure::unknown(code).message(message))
    }

    /// What is left to say when the report itself was refused: that the effect is not known.
    pub(crate) fn refused(reason: Option<&str>, message: &str) -> Self {
        let reason = reason.unwrap_or("REPORT_REFUSED");
        Self::unknown(reason, format!("the report was refused: {message}"))
    }
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(ending: &Ending) -> &str {
        ending.error.as_ref().map_or("", |error| &error.code)
    }

    #[test]
    fn only_a_retryable_failure_is_reported_retryable() {
        let ending = Ending::of_failure(Failure::retryable("BUSY"));
        assert_eq!((ending.outcome, ending.retryable), (Outcome::Failed, true));
        for failure in [Failure::permanent("P"), Failure::unknown("U"), Failure::canceled("C")] {
            assert!(!Ending::of_failure(failure).retryable);
        }
    }

    #[test]
    fn any_other_error_is_unknown_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("calling the bank")]
        struct Outer(#[source] std::num::ParseIntError);
        fn handler() -> Result<i32, Failure> {
            Ok("x".parse().map_err(Outer)?)
        }
        let ending = Ending::of_failure(handler().unwrap_err());
        assert_eq!((ending.outcome, code(&ending)), (Outcome::Unknown, HANDLER_ERROR));
        assert_eq!(ending.error.unwrap().message, "calling the bank: invalid digit found in string");
    }

    #[test]
    fn boxed_errors_and_texts_are_unknown_too() {
        fn boxed() -> Result<(), Failure> {
            let error: Box<dyn StdError + Send + Sync> = "x".parse::<i32>().unwrap_err().into();
            Err(error)?;
            Ok(())
        }
        fn text() -> Result<(), Failure> {
            Err("the bank hung up".into())
        }
        for failure in [boxed(), text()] {
            let ending = Ending::of_failure(failure.unwrap_err());
            assert_eq!((ending.outcome, code(&ending)), (Outcome::Unknown, HANDLER_ERROR));
            assert!(!ending.error.unwrap().message.is_empty());
        }
    }

    #[test]
    fn a_result_that_cannot_be_reported_is_unknown() {
        let too_large = Ending::of_value(&"12345678", 8);
        let not_json = Ending::of_result("{".to_owned(), 8);
        let unwritable = Ending::of_value(&std::collections::HashMap::from([((1, 2), 3)]), 8);
        for ending in [too_large, not_json, unwritable] {
            assert_eq!((ending.outcome, code(&ending)), (Outcome::Unknown, RESULT_INVALID));
        }
        assert_eq!(Ending::of_result("1E2".to_owned(), 8).result, "1E2");
        assert_eq!(Ending::of_value(&(), 8).result, "null");
    }

    #[test]
    fn errors_are_kept_within_the_limits_of_the_contract() {
        let failure = Failure::permanent("ü".repeat(200)).message("é".repeat(4_000)).details_json("{");
        let error = Ending::of_failure(failure).error.unwrap();
        assert_eq!(error.code.chars().count(), 128);
        assert!(error.message.len() <= 4 * 1024);
        assert_eq!(error.details, "");
        assert_eq!(code(&Ending::of_failure(Failure::permanent(""))), UNSPECIFIED);

        let failure = Failure::retryable("BUSY").message("later").details(&"x".repeat(70_000));
        assert_eq!(failure.to_string(), "BUSY: later (details left out: they are larger than 64 KiB)");
        assert!(failure.is_retryable());
    }
}

//! What workers say: start and finish.

use std::sync::Arc;

use super::{
    digest::{Digest, Digester},
    ids::{AttemptRef, MessageId},
    json::JsonText,
};

/// How a worker, or an operator, describes a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    /// A stable code in the handler's own vocabulary.
    pub code: Arc<str>,
    /// For people; may be empty.
    pub message: Arc<str>,
    /// Further facts.
    pub details: Option<JsonText>,
}

/// The longest error code, in characters.
pub const ERROR_CODE_LEN_MAX: usize = 128;
/// The longest error message, in bytes.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// The largest error details, in bytes.
pub const ERROR_DETAILS_BYTES_MAX: usize = 64 * 1024;

/// Asks whether an attempt may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Names the message.
    pub message_id: MessageId,
    /// The attempt.
    pub attempt: AttemptRef,
}

/// Reports how an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Names the message.
    pub message_id: MessageId,
    /// The attempt.
    pub attempt: AttemptRef,
    /// What happened.
    pub report: Report,
}

/// What happened, as the worker says. `retryable` exists only where it is legal (S6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The effect happened.
    Succeeded {
        /// What it returned.
        result: JsonText,
    },
    /// The effect did not happen.
    Failed {
        /// Nothing happened, or doing it again is safe.
        retryable: bool,
        /// Why.
        error: TaskError,
    },
    /// Whether the effect happened is not known.
    Unknown {
        /// Why, if it is known.
        error: Option<TaskError>,
    },
    /// Stopped because of a cancel; nothing more will happen.
    Canceled {
        /// Further facts.
        error: Option<TaskError>,
    },
}

/// The kind of a message, as it stands in digests and receipts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// A start.
    Start = 1,
    /// A finish.
    Finish = 2,
}

impl Start {
    /// The digest of its content.
    pub fn digest(&self) -> Digest {
        Digester::new().number(1, MessageKind::Start as i64).number(2, i64::from(self.attempt.epoch)).finish()
    }
}

impl Finish {
    /// The digest of its content: kind, epoch, outcome, `retryable` only if true, result, error. So a worker that does
    /// not know `retryable` and one that leaves it false mean the same.
    pub fn digest(&self) -> Digest {
        let pairs = Digester::new()
            .number(1, MessageKind::Finish as i64)
            .number(2, i64::from(self.attempt.epoch))
            .number(3, self.report.outcome() as i64);
        let pairs = match &self.report {
            Report::Succeeded { result } => pairs.text_unless(5, result.as_str(), "null"),
            Report::Failed { retryable, error } => {
                digest_error(pairs.number_unless(4, i64::from(*retryable), 0), Some(error))
            }
            Report::Unknown { error } | Report::Canceled { error } => digest_error(pairs, error.as_ref()),
        };
        pairs.finish()
    }
}

fn digest_error(pairs: Digester, error: Option<&TaskError>) -> Digester {
    let Some(error) = error else { return pairs };
    let pairs = pairs.text(6, &error.code).text_unless(7, &error.message, "");
    match &error.details {
        Some(details) => pairs.text(8, details.as_str()),
        None => pairs,
    }
}

/// A report's outcome, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants of Report, documented there")]
pub enum Outcome {
    Succeeded = 1,
    Failed = 2,
    Unknown = 3,
    Canceled = 4,
}

impl Report {
    /// Its outcome.
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Succeeded { .. } => Outcome::Succeeded,
            Self::Failed { .. } => Outcome::Failed,
            Self::Unknown { .. } => Outcome::Unknown,
            Self::Canceled { .. } => Outcome::Canceled,
        }
    }

    /// Bytes of text that it carries.
    pub fn bytes(&self) -> usize {
        let error_bytes = |e: &TaskError| {
            e.code.len() + e.message.len() + e.details.as_ref().map_or(0, |d| d.as_str().len())
        };
        match self {
            Self::Succeeded { result } => result.as_str().len(),
            Self::Failed { error, .. } => error_bytes(error),
            Self::Unknown { error } | Self::Canceled { error } => error.as_ref().map_or(0, error_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{attempt_ref, error, message_id};

    fn finish(report: Report) -> Finish {
        Finish { message_id: message_id(1), attempt: attempt_ref(1), report }
    }

    fn failed(retryable: bool) -> Digest {
        finish(Report::Failed { retryable, error: error("X") }).digest()
    }

    #[test]
    fn a_false_retryable_is_left_out_of_the_digest_and_a_true_one_is_not() {
        let without_the_field = Digester::new().number(1, 2).number(2, 1).number(3, 2).text(6, "X").finish();
        assert_eq!(failed(false), without_the_field);
        assert_ne!(failed(true), without_the_field);
    }

    #[test]
    fn digest_vectors_are_pinned() {
        // Computed by an independent program from the scheme's description.
        insta::assert_compact_debug_snapshot!(
            [
                Start { message_id: message_id(9), attempt: attempt_ref(1) }.digest(),
                failed(false),
                failed(true),
                finish(Report::Succeeded { result: JsonText::stored("{\"a\": 1}".to_owned()) }).digest(),
                finish(Report::Unknown { error: None }).digest(),
            ],
            @"[7342a753f915907d5472087e882469f02e3e46d21628ee44e23052f719abee5e, f4fc45068f3908ae31912035f554cb23084280f69566350779c312f8e6d090f5, e90aea4f4030220c64b74293e971fb2a2a5d87b1e6024bc7b8082d9ec329245b, 1cb86e5cccae7461d7f5d9a3ba01d1003c815ccffea3683e07c66a7757f4ec61, bd85dc734ccacc82f9c9eacbd69104714d9d6d1db694f361a050356beddf8c59]"
        );
    }

    #[test]
    fn the_message_id_is_no_part_of_the_content() {
        let mut other = finish(Report::Unknown { error: None });
        let digest = other.digest();
        other.message_id = message_id(2);
        assert_eq!(other.digest(), digest);
        other.attempt.epoch = 2;
        assert_ne!(other.digest(), digest);
    }

    fn full_error() -> TaskError {
        TaskError {
            code: "X".into(),
            message: "why".into(),
            details: Some(JsonText::stored("[1]".to_owned())),
        }
    }

    #[test]
    fn every_part_of_a_report_is_part_of_its_digest() {
        let succeeded = |text: &str| Report::Succeeded { result: JsonText::stored(text.to_owned()) };
        let failed = |error| Report::Failed { retryable: false, error };
        let full = full_error();
        let reports = [
            succeeded("null"),
            succeeded("{\"a\":1}"),
            succeeded("{\"a\": 1}"),
            failed(error("X")),
            failed(error("Y")),
            failed(TaskError { message: "".into(), ..full.clone() }),
            failed(TaskError { details: None, ..full.clone() }),
            failed(full.clone()),
            Report::Failed { retryable: true, error: full.clone() },
            Report::Unknown { error: None },
            Report::Unknown { error: Some(full.clone()) },
            Report::Canceled { error: None },
            Report::Canceled { error: Some(full) },
        ];
        let digests: std::collections::HashSet<_> =
            reports.iter().cloned().map(|r| finish(r).digest()).collect();
        assert_eq!(digests.len(), reports.len());
    }

    #[test]
    fn a_start_and_a_finish_never_look_alike_and_each_epoch_is_another_content() {
        let start = |epoch| Start { message_id: message_id(1), attempt: attempt_ref(epoch) }.digest();
        assert_eq!(start(1), Digester::new().number(1, 1).number(2, 1).finish());
        assert_ne!(start(1), start(2));
        assert_ne!(start(1), finish(Report::Unknown { error: None }).digest());
    }

    #[test]
    fn a_result_of_null_is_the_default_and_left_out() {
        let null = finish(Report::Succeeded { result: JsonText::null() }).digest();
        assert_eq!(null, Digester::new().number(1, 2).number(2, 1).number(3, 1).finish());
    }

    #[test]
    fn a_report_counts_its_bytes_and_names_its_outcome() {
        let result = JsonText::stored("[1, 2]".to_owned());
        let table = [
            (Report::Succeeded { result }, 6, Outcome::Succeeded),
            (Report::Failed { retryable: true, error: full_error() }, 1 + 3 + 3, Outcome::Failed),
            (Report::Failed { retryable: false, error: error("CODE") }, 4, Outcome::Failed),
            (Report::Unknown { error: None }, 0, Outcome::Unknown),
            (Report::Unknown { error: Some(full_error()) }, 7, Outcome::Unknown),
            (Report::Canceled { error: None }, 0, Outcome::Canceled),
            (Report::Canceled { error: Some(full_error()) }, 7, Outcome::Canceled),
        ];
        for (report, bytes, outcome) in table {
            assert_eq!((report.bytes(), report.outcome()), (bytes, outcome), "{report:?}");
        }
    }

    #[test]
    fn the_limits_are_those_of_the_contract() {
        let limits = (ERROR_CODE_LEN_MAX, ERROR_MESSAGE_BYTES_MAX, ERROR_DETAILS_BYTES_MAX);
        assert_eq!(limits, (128, 4_096, 65_536));
        assert_eq!(crate::domain::submission::PAYLOAD_BYTES_MAX_DEFAULT, 1_048_576);
    }
}

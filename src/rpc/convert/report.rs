//! Reads what workers say of attempts.

use uuid::Uuid;

use crate::{
    domain::{
        ids::{AttemptId, AttemptRef, MessageId, TaskId},
        json::JsonText,
        rejection::{FieldProblem, FieldReason, Rejection},
        report::{
            ERROR_CODE_LEN_MAX, ERROR_DETAILS_BYTES_MAX, ERROR_MESSAGE_BYTES_MAX, Finish, Report, Start,
            TaskError,
        },
    },
    proto::{self, Outcome},
};

use super::{Fields, fields::uuid};

/// The most leases that one message renews.
pub(crate) const RENEW_LEASES_MAX: usize = 1_000;

/// Reads a start.
pub(crate) fn start(message: &proto::Start) -> Result<Start, Rejection> {
    let mut fields = Fields::default();
    let message_id = fields.id("message_id", &message.message_id);
    let attempt = attempt_ref(&mut fields, &message.task_id, &message.attempt_id, message.epoch);
    let (message_id, attempt) = fields.finish(message_id.zip(attempt))?;
    Ok(Start { message_id: MessageId(message_id), attempt })
}

/// Reads a finish. A result has at most so many bytes.
pub(crate) fn finish(message: &proto::Finish, result_bytes_max: usize) -> Result<Finish, Rejection> {
    let mut fields = Fields::default();
    let message_id = fields.id("message_id", &message.message_id);
    let attempt = attempt_ref(&mut fields, &message.task_id, &message.attempt_id, message.epoch);
    let report = report(&mut fields, message, result_bytes_max);
    let ((message_id, attempt), report) = fields.finish(message_id.zip(attempt).zip(report))?;
    Ok(Finish { message_id: MessageId(message_id), attempt, report })
}

fn attempt_ref(fields: &mut Fields, task_id: &str, attempt_id: &str, epoch: u32) -> Option<AttemptRef> {
    let task_id = fields.id("task_id", task_id);
    let attempt_id = fields.id("attempt_id", attempt_id);
    if epoch == 0 {
        fields.bad("epoch", "is 0; must be as it was dispatched, 1 or more");
    }
    Some(named(task_id?, attempt_id?, epoch))
}

const fn named(task_id: Uuid, attempt_id: Uuid, epoch: u32) -> AttemptRef {
    AttemptRef { task_id: TaskId(task_id), attempt_id: AttemptId(attempt_id), epoch }
}

/// Reads the attempts of a list, of which the first bad one is told.
pub(super) fn attempt_refs(
    fields: &mut Fields,
    field: &'static str,
    list: &[proto::AttemptRef],
) -> Option<Vec<AttemptRef>> {
    let read = |(i, a): (usize, &proto::AttemptRef)| {
        let at = |name: &str, what: &str| format!("[{i}].{name} {what}");
        let task_id = uuid(&a.task_id).map_err(|what| at("task_id", &what))?;
        let attempt_id = uuid(&a.attempt_id).map_err(|what| at("attempt_id", &what))?;
        if a.epoch == 0 {
            return Err(at("epoch", "is 0; must be as it was dispatched, 1 or more"));
        }
        Ok(named(task_id, attempt_id, a.epoch))
    };
    let all = list.iter().enumerate().map(read).collect();
    fields.read(field, all)
}

/// Reads a renewal.
pub(crate) fn renew(message: &proto::Renew) -> Result<Vec<AttemptRef>, Rejection> {
    let mut fields = Fields::default();
    let count = message.leases.len();
    if count > RENEW_LEASES_MAX {
        let what = format!("has {count} attempts; at most {RENEW_LEASES_MAX} are allowed");
        return Err(Rejection::field("leases", what));
    }
    let leases = attempt_refs(&mut fields, "leases", &message.leases);
    fields.finish(leases)
}

fn report(fields: &mut Fields, message: &proto::Finish, result_bytes_max: usize) -> Option<Report> {
    let outcome = message.outcome();
    if outcome == Outcome::Unspecified {
        let what = "must be SUCCEEDED, FAILED, UNKNOWN or CANCELED";
        fields.bad("outcome", what);
    }
    if message.retryable && outcome != Outcome::Failed {
        fields.all_bad([FieldProblem {
            field: "retryable",
            reason: FieldReason::RetryableNotAllowed,
            description: "is allowed only with FAILED: it must not dress up another outcome".to_owned(),
        }]);
    }
    let result = result(fields, message, outcome, result_bytes_max);
    let error = error(fields, message.error.as_ref(), outcome);
    match outcome {
        Outcome::Unspecified => None,
        Outcome::Succeeded => Some(Report::Succeeded { result: result? }),
        Outcome::Failed => Some(Report::Failed { retryable: message.retryable, error: error? }),
        Outcome::Unknown => Some(Report::Unknown { error }),
        Outcome::Canceled => Some(Report::Canceled { error }),
    }
}

fn result(
    fields: &mut Fields,
    message: &proto::Finish,
    outcome: Outcome,
    bytes_max: usize,
) -> Option<JsonText> {
    if outcome == Outcome::Succeeded {
        return fields.json("result", &message.result, bytes_max);
    }
    if !message.result.is_empty() {
        fields.bad("result", "is allowed only with SUCCEEDED");
    }
    None
}

fn error(fields: &mut Fields, error: Option<&proto::TaskError>, outcome: Outcome) -> Option<TaskError> {
    let Some(error) = error else {
        if outcome == Outcome::Failed {
            fields.bad("error", "is required with FAILED, with a code");
        }
        return None;
    };
    if outcome == Outcome::Succeeded {
        fields.bad("error", "is not allowed with SUCCEEDED");
        return None;
    }
    Some(task_error_of(fields, error, ["error.code", "error.message", "error.details"]))
}

/// Reads an error whose code, message and details have these names.
pub(super) fn task_error_of(
    fields: &mut Fields,
    error: &proto::TaskError,
    [code, message, details]: [&'static str; 3],
) -> TaskError {
    let code_len = error.code.chars().count();
    if !(1..=ERROR_CODE_LEN_MAX).contains(&code_len) {
        let what = format!("has {code_len} characters; must have 1 to {ERROR_CODE_LEN_MAX}");
        fields.bad(code, what);
    }
    let bytes = error.message.len();
    if bytes > ERROR_MESSAGE_BYTES_MAX {
        let what = format!("has {bytes} bytes; at most {ERROR_MESSAGE_BYTES_MAX} are allowed");
        fields.bad(message, what);
    }
    let details = match error.details.as_str() {
        "" => None,
        text => fields.json(details, text, ERROR_DETAILS_BYTES_MAX),
    };
    TaskError { code: error.code.as_str().into(), message: error.message.as_str().into(), details }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{attempt_ref, message_id};

    const RESULT_BYTES_MAX: usize = 100;

    fn message(outcome: Outcome) -> proto::Finish {
        let attempt = attempt_ref(2);
        proto::Finish {
            message_id: message_id(9).to_string(),
            task_id: attempt.task_id.to_string(),
            attempt_id: attempt.attempt_id.to_string(),
            epoch: 2,
            outcome: outcome.into(),
            ..Default::default()
        }
    }

    fn coded(code: &str) -> proto::TaskError {
        proto::TaskError { code: code.into(), ..Default::default() }
    }

    fn read(message: &proto::Finish) -> Result<Report, Vec<(&'static str, FieldReason)>> {
        match finish(message, RESULT_BYTES_MAX) {
            Ok(finish) => {
                assert_eq!((finish.message_id, finish.attempt), (message_id(9), attempt_ref(2)));
                Ok(finish.report)
            }
            Err(Rejection::Invalid(problems)) => Err(problems.iter().map(|p| (p.field, p.reason)).collect()),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn bad(field: &'static str) -> Result<Report, Vec<(&'static str, FieldReason)>> {
        Err(vec![(field, FieldReason::InvalidArgument)])
    }

    #[test]
    fn each_outcome_takes_what_belongs_to_it() {
        let succeeded = proto::Finish { result: "[1]".into(), ..message(Outcome::Succeeded) };
        let result = JsonText::stored("[1]".into());
        assert_eq!(read(&succeeded), Ok(Report::Succeeded { result }));
        let null = JsonText::null();
        assert_eq!(read(&message(Outcome::Succeeded)), Ok(Report::Succeeded { result: null }));
        let failed = proto::Finish { error: Some(coded("X")), retryable: true, ..message(Outcome::Failed) };
        let error = crate::domain::fixtures::error("X");
        assert_eq!(read(&failed), Ok(Report::Failed { retryable: true, error }));
        assert_eq!(read(&message(Outcome::Unknown)), Ok(Report::Unknown { error: None }));
        assert_eq!(read(&message(Outcome::Canceled)), Ok(Report::Canceled { error: None }));
    }

    #[test]
    fn retryable_is_refused_with_every_other_outcome() {
        for outcome in [Outcome::Succeeded, Outcome::Unknown, Outcome::Canceled] {
            let message = proto::Finish { retryable: true, ..message(outcome) };
            assert_eq!(read(&message), Err(vec![("retryable", FieldReason::RetryableNotAllowed)]));
        }
    }

    #[test]
    fn results_and_errors_are_refused_where_they_do_not_belong() {
        for outcome in [Outcome::Failed, Outcome::Unknown, Outcome::Canceled] {
            let with_result =
                proto::Finish { result: "null".into(), error: Some(coded("X")), ..message(outcome) };
            assert_eq!(read(&with_result), bad("result"));
        }
        let with_error = proto::Finish { error: Some(coded("X")), ..message(Outcome::Succeeded) };
        assert_eq!(read(&with_error), bad("error"));
        assert_eq!(read(&message(Outcome::Failed)), bad("error"));
        assert_eq!(read(&message(Outcome::Unspecified)), bad("outcome"));
        let unknown_number = proto::Finish { outcome: 99, ..message(Outcome::Failed) };
        assert_eq!(read(&unknown_number), bad("outcome"));
    }

    #[test]
    fn errors_have_limits() {
        let with = |code: &str, message_bytes: usize, details: &str| {
            read(&proto::Finish {
                error: Some(proto::TaskError {
                    code: code.into(),
                    message: "m".repeat(message_bytes),
                    details: details.into(),
                }),
                ..message(Outcome::Unknown)
            })
        };
        assert!(with(&"ü".repeat(128), 4_096, "[1]").is_ok());
        assert_eq!(with(&"ü".repeat(129), 0, ""), bad("error.code"));
        assert_eq!(with("", 0, ""), bad("error.code"));
        assert_eq!(with("X", 4_097, ""), bad("error.message"));
        assert_eq!(with("X", 0, "{"), Err(vec![("error.details", FieldReason::PayloadNotJson)]));
        let details = |bytes: usize| format!("\"{}\"", "d".repeat(bytes - 2));
        assert!(with("X", 0, &details(64 * 1024)).is_ok());
        assert_eq!(
            with("X", 0, &details(64 * 1024 + 1)),
            Err(vec![("error.details", FieldReason::PayloadTooLarge)])
        );
    }

    #[test]
    fn a_result_that_is_too_large_or_no_json_has_a_reason_of_its_own() {
        let with = |result: String| read(&proto::Finish { result, ..message(Outcome::Succeeded) });
        assert!(with(format!("\"{}\"", "r".repeat(RESULT_BYTES_MAX - 2))).is_ok());
        assert_eq!(
            with(format!("\"{}\"", "r".repeat(RESULT_BYTES_MAX - 1))),
            Err(vec![("result", FieldReason::PayloadTooLarge)])
        );
        assert_eq!(with("nul".into()), Err(vec![("result", FieldReason::PayloadNotJson)]));
    }

    #[test]
    fn ids_are_checked_all_at_once() {
        let Err(Rejection::Invalid(problems)) = start(&proto::Start::default()) else {
            panic!("refused");
        };
        let fields: Vec<_> = problems.iter().map(|p| p.field).collect();
        assert_eq!(fields, ["message_id", "task_id", "attempt_id", "epoch"]);
    }

    #[test]
    fn a_renewal_names_its_first_bad_lease_and_has_a_limit() {
        let good = proto::AttemptRef {
            task_id: attempt_ref(1).task_id.to_string(),
            attempt_id: attempt_ref(1).attempt_id.to_string(),
            epoch: 1,
        };
        let of = |leases| renew(&proto::Renew { leases });
        assert_eq!(of(vec![good.clone(); 1_000]).map(|l| l.len()), Ok(1_000));
        assert_eq!(of(vec![]), Ok(vec![]));
        assert!(of(vec![good.clone(); 1_001]).is_err());
        let bad = proto::AttemptRef { epoch: 0, ..good.clone() };
        let Err(Rejection::Invalid(problems)) = of(vec![good, bad]) else {
            panic!("refused");
        };
        assert_eq!(problems[0].field, "leases");
        assert!(problems[0].description.starts_with("[1].epoch"), "{}", problems[0].description);
    }
}

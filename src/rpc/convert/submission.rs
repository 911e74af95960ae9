//! Reads what a producer submits.

use std::sync::Arc;

use crate::{
    domain::{
        names,
        policy::{PolicyRequest, RecoverySafety},
        rejection::Rejection,
        submission::Submission,
    },
    proto,
};

use super::Fields;

/// Checks a submission as far as that depends on nothing but itself and the payload's limit, in bytes.
pub(crate) fn submission(
    request: proto::SubmitTaskRequest,
    principal: Arc<str>,
) -> Result<Submission, Rejection> {
    let mut fields = Fields::default();
    fields.check("queue_id", names::check_queue_id(&request.queue_id));
    fields.check("idempotency_key", names::check_key(&request.idempotency_key));
    fields.check("handler", names::check_handler(&request.handler));
    fields.check("handler_version", names::check_handler(&request.handler_version));
    fields.check("payload_version", names::check_handler(&request.payload_version));
    // Its size is judged only for a key that is new; no request is larger than the transport takes.
    let payload = fields.json("payload", &request.payload, usize::MAX);
    let recovery_safety = safety(&mut fields, request.recovery_safety);
    let retry = request.retry.unwrap_or_default();
    let policy = PolicyRequest {
        max_attempts: retry.max_attempts,
        initial_delay_ms: retry.initial_delay_ms,
        max_delay_ms: retry.max_delay_ms,
        attempt_timeout_ms: retry.attempt_timeout_ms,
        recovery_safety,
        task_timeout_ms: request.task_timeout_ms,
    };
    let policy = policy.freeze().map_err(|problems| fields.all_bad(problems)).ok();
    let not_before = fields.moment("not_before", request.not_before);
    let start_before = fields.moment("start_before", request.start_before);
    let (payload, policy) = fields.finish(payload.zip(policy))?;
    Ok(Submission {
        principal,
        idempotency_key: request.idempotency_key,
        queue_id: request.queue_id,
        handler: request.handler,
        handler_version: request.handler_version,
        payload_version: request.payload_version,
        payload,
        policy,
        not_before,
        start_before,
    })
}

fn safety(fields: &mut Fields, number: i32) -> Option<RecoverySafety> {
    match proto::RecoverySafety::try_from(number) {
        Ok(proto::RecoverySafety::Unspecified) => None,
        Ok(proto::RecoverySafety::ReconcileOnly) => Some(RecoverySafety::ReconcileOnly),
        Ok(proto::RecoverySafety::Idempotent) => Some(RecoverySafety::Idempotent),
        Err(_) => {
            let what = format!("is {number}, which this server does not know: RECONCILE_ONLY or IDEMPOTENT");
            fields.bad("recovery_safety", what);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::domain::{ids::LOCAL_PRINCIPAL, rejection::FieldReason, time::Moment};

    fn request() -> proto::SubmitTaskRequest {
        proto::SubmitTaskRequest {
            queue_id: "default".into(),
            idempotency_key: "order-1".into(),
            handler: "text/normalize".into(),
            handler_version: "v1".into(),
            payload_version: "v1".into(),
            payload: r#"{"zeta": 1, "n":9007199254740993}"#.into(),
            ..Default::default()
        }
    }

    fn read(request: proto::SubmitTaskRequest) -> Result<Submission, Rejection> {
        submission(request, LOCAL_PRINCIPAL.into())
    }

    fn problems(change: impl FnOnce(&mut proto::SubmitTaskRequest)) -> Vec<(&'static str, FieldReason)> {
        let mut request = request();
        change(&mut request);
        match read(request) {
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| (p.field, p.reason)).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn a_minimal_submission_gets_defaults_and_keeps_its_bytes() {
        let read = read(request()).expect("valid");
        assert_eq!(read.payload.as_str(), request().payload);
        assert_eq!(Ok(read.policy), PolicyRequest::default().freeze());
        assert_eq!((read.not_before, read.start_before), (None, None));
        assert_eq!(&*read.principal, LOCAL_PRINCIPAL);
    }

    #[test]
    fn every_field_arrives() {
        let read = read(proto::SubmitTaskRequest {
            payload: String::new(),
            retry: Some(proto::RetryPolicy {
                max_attempts: Some(2),
                initial_delay_ms: Some(3),
                max_delay_ms: Some(4),
                attempt_timeout_ms: Some(500),
            }),
            recovery_safety: proto::RecoverySafety::Idempotent.into(),
            task_timeout_ms: Some(600),
            not_before: Some(Timestamp { seconds: 7, nanos: 0 }),
            start_before: Some(Timestamp { seconds: 8, nanos: 0 }),
            ..request()
        })
        .expect("valid");
        let policy = read.policy;
        assert_eq!(read.payload.as_str(), "null");
        assert_eq!((policy.max_attempts, policy.initial_delay_ms, policy.max_delay_ms), (2, 3, 4));
        assert_eq!((policy.attempt_timeout_ms, policy.task_timeout_ms), (500, 600));
        assert_eq!(policy.recovery_safety, RecoverySafety::Idempotent);
        assert_eq!(read.not_before, Some(Moment::from_micros(7_000_000)));
        assert_eq!(read.start_before, Some(Moment::from_micros(8_000_000)));
    }

    #[test]
    fn all_bad_fields_are_named_at_once() {
        let all = problems(|r| {
            *r = proto::SubmitTaskRequest {
                queue_id: "a b".into(),
                idempotency_key: "é".into(),
                payload: "{".into(),
                retry: Some(proto::RetryPolicy { max_attempts: Some(0), ..Default::default() }),
                recovery_safety: 9,
                task_timeout_ms: Some(0),
                not_before: Some(Timestamp { seconds: 0, nanos: -1 }),
                start_before: Some(Timestamp { seconds: i64::MAX, nanos: 0 }),
                ..Default::default()
            }
        });
        let names: Vec<_> = all.iter().map(|(field, _)| *field).collect();
        assert_eq!(
            names,
            [
                "queue_id",
                "idempotency_key",
                "handler",
                "handler_version",
                "payload_version",
                "payload",
                "recovery_safety",
                "retry.max_attempts",
                "task_timeout_ms",
                "not_before",
                "start_before"
            ]
        );
    }

    #[test]
    fn a_bad_payload_has_a_reason_of_its_own() {
        let of = |payload: &str| problems(|r| r.payload = payload.to_owned());
        assert_eq!(of("nul"), [("payload", FieldReason::PayloadNotJson)]);
    }
}

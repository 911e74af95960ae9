//! HTTP answers: a message, or an error.

use std::time::Duration;

use prost_reflect::DynamicMessage;
use serde::Serialize;
use serde_json::value::RawValue;
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{HeaderValue, Response, StatusCode, header},
};
use tonic_types::StatusExt as _;

use crate::rpc::status::ErrorReply;

use super::{api::Api, write::to_json};

pub(super) type Answer = Response<Body>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A text of some kind.
pub(super) fn text(content_type: HeaderValue, text: impl Into<tonic::codegen::Bytes>) -> Answer {
    let mut answer = Response::new(Body::new(http_body_util::Full::new(text.into())));
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    // No browser guesses another kind, and none shows yesterday's task.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// A JSON text.
pub(super) fn json(body: String) -> Answer {
    text(JSON, body)
}

/// A page that may load nothing and be shown in no other.
pub(super) fn page(html: String) -> Answer {
    let mut answer = text(HeaderValue::from_static("text/html; charset=utf-8"), html);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    answer
}

/// An error, as it came from the call.
pub(super) fn error(api: &Api, status: &Status) -> Answer {
    error_with(api, status, http_code(status.code()))
}

/// An error for which HTTP has a code that says more.
pub(super) fn error_with(api: &Api, status: &Status, code: StatusCode) -> Answer {
    let mut answer = json(error_body(api, status, code));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    if let Some(wait) = status.get_details_retry_info().and_then(|info| info.retry_delay) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    if code == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// The header knows only seconds; none of them would mean "at once".
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorParts<'a>,
}

#[derive(Serialize)]
struct ErrorParts<'a> {
    code: u16,
    status: &'a str,
    message: &'a str,
    details: Box<RawValue>,
}

fn error_body(api: &Api, status: &Status, code: StatusCode) -> String {
    let details = details(api, status).unwrap_or_else(|| {
        tracing::error!(code = ?status.code(), "the details of an error cannot be written as JSON");
        RawValue::NULL.to_owned()
    });
    let parts = ErrorParts {
        code: code.as_u16(),
        status: code_name(status.code()),
        message: status.message(),
        details,
    };
    // Texts and numbers are always JSON.
    serde_json::to_string(&ErrorBody { error: parts }).unwrap_or_default()
}

/// The details of a status, each with its type.
fn details(api: &Api, status: &Status) -> Option<Box<RawValue>> {
    #[derive(serde::Deserialize)]
    struct Parts {
        details: Box<RawValue>,
    }
    let message = DynamicMessage::decode(api.status.clone(), status.details()).ok()?;
    let parts: Parts = serde_json::from_str(&to_json(&message, &api.texts).ok()?).ok()?;
    Some(parts.details)
}

/// As `google.rpc.Code` documents.
fn http_code(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// What the gateway itself refuses.
pub(super) enum Refusal {
    /// No such path.
    NoPath,
    /// The path has other methods.
    OtherMethods(String),
    /// The body is not said to be JSON.
    NotJson,
    /// The body is too large, in bytes at most.
    TooLarge(usize),
    /// The body did not arrive in time.
    TooSlow,
    /// The body broke off.
    Broken,
    /// Bad fields.
    Fields(Vec<(String, String)>),
    /// A page of another origin wrote.
    Origin,
    /// The call's own error.
    Call(Status),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Call(status)
    }
}

impl Refusal {
    pub(super) fn into_answer(self, api: &Api) -> Answer {
        let own = |code, reason, message: &str| ErrorReply::new(code, reason, message).into_status();
        match self {
            Self::NoPath => {
                let message = "there is no such path: see /docs for those there are";
                error(api, &own(Code::NotFound, "PATH_NOT_FOUND", message))
            }
            Self::OtherMethods(allowed) => {
                let message = format!("this path takes {allowed}");
                let status = own(Code::Unimplemented, "METHOD_NOT_ALLOWED", &message);
                let mut answer = error_with(api, &status, StatusCode::METHOD_NOT_ALLOWED);
                if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                    answer.headers_mut().insert(header::ALLOW, allowed);
                }
                answer
            }
            Self::NotJson => {
                let message = "the body must be JSON: send the header Content-Type: application/json";
                let status = own(Code::InvalidArgument, "CONTENT_TYPE", message);
                error_with(api, &status, StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            Self::TooLarge(bytes_max) => {
                let message = format!("the body has more than the {bytes_max} bytes that are allowed");
                error(api, &own(Code::InvalidArgument, "PAYLOAD_TOO_LARGE", &message))
            }
            Self::TooSlow => {
                let message = "the body did not arrive in time: nothing was done";
                let status = own(Code::DeadlineExceeded, "BODY_TOO_SLOW", message);
                error_with(api, &status, StatusCode::REQUEST_TIMEOUT)
            }
            Self::Broken => {
                error(api, &own(Code::InvalidArgument, "INVALID_ARGUMENT", "the body cannot be read"))
            }
            Self::Fields(problems) => {
                error(api, &ErrorReply::bad_fields("INVALID_ARGUMENT", problems).into_status())
            }
            Self::Origin => {
                let message = "pages of this origin may not write: the server's setting `cors_origins` names those \
                               that may";
                error(api, &own(Code::PermissionDenied, "ORIGIN_NOT_ALLOWED", message))
            }
            Self::Call(status) => error(api, &status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_rounded_down() {
        let ms = |ms| whole_seconds(Duration::from_millis(ms));
        assert_eq!((ms(0), ms(1), ms(1_000), ms(1_001), ms(2_500)), (1, 1, 1, 2, 3));
    }

    #[test]
    fn details_are_written_with_their_types() {
        let api = Api::read().expect("the contract");
        let status =
            ErrorReply::bad_fields("INVALID_ARGUMENT", [("a.b".into(), "is bad".into())]).into_status();
        let body: serde_json::Value =
            serde_json::from_str(&error_body(&api, &status, StatusCode::BAD_REQUEST)).expect("JSON");
        assert_eq!(
            body,
            serde_json::json!({ "error": {
                "code": 400, "status": "INVALID_ARGUMENT", "message": "a.b is bad", "details": [
                    { "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "INVALID_ARGUMENT",
                      "domain": "orbit", "metadata": { "fields": "a.b" } },
                    { "@type": "type.googleapis.com/google.rpc.BadRequest", "field_violations": [
                        { "field": "a.b", "description": "is bad", "reason": "" }
                    ] }
                ]
            }})
        );
    }
}

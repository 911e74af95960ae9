//! Gives the errors that the transport makes by itself the same form as all others.

use std::task::{Context, Poll};

use futures_util::{TryFutureExt as _, future::MapOk};
use tonic::{
    Code, Status,
    codegen::{Service, http},
};

use super::status::explained;

/// Serves like `S`, but no error without an `ErrorInfo` leaves it.
#[derive(Clone, Debug)]
pub(super) struct ErrorInfoOnAll<S> {
    inner: S,
}

impl<S> ErrorInfoOnAll<S> {
    pub(super) const fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, R, B> Service<R> for ErrorInfoOnAll<S>
where
    S: Service<R, Response = http::Response<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = MapOk<S::Future, fn(http::Response<B>) -> http::Response<B>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.inner.call(request).map_ok(with_error_info)
    }
}

/// An answer that is an error from the start stands in its headers.
fn with_error_info<B>(mut response: http::Response<B>) -> http::Response<B> {
    let headers = response.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS) || headers.contains_key(Status::GRPC_STATUS_DETAILS) {
        return response;
    }
    if let Some(status) = Status::from_header_map(headers)
        && status.code() != Code::Ok
    {
        // Only what is not fit for a header can fail, and then the plain error stays.
        let _ = explained(&status).add_header(headers);
    }
    response
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    fn through(status: &Status) -> Status {
        let mut response = http::Response::new(());
        status.add_header(response.headers_mut()).expect("fit for a header");
        Status::from_header_map(with_error_info(response).headers()).expect("a status")
    }

    #[test]
    fn plain_errors_get_a_reason() {
        let reason = |status: Status| {
            let status = through(&status);
            (status.code(), status.get_details_error_info().map(|i| (i.domain, i.reason)))
        };
        let info = |reason: &str| Some(("orbit".to_owned(), reason.to_owned()));
        assert_eq!(reason(Status::unimplemented("")), (Code::Unimplemented, info("UNIMPLEMENTED")));
        assert_eq!(
            reason(Status::internal("failed to decode")),
            (Code::InvalidArgument, info("INVALID_ARGUMENT"))
        );
        assert_eq!(
            reason(Status::out_of_range("too large")),
            (Code::InvalidArgument, info("PAYLOAD_TOO_LARGE"))
        );
    }

    #[test]
    fn others_stay_as_they_are() {
        let own = super::super::status::ErrorReply::new(Code::Internal, "INTERNAL", "incident").into_status();
        let same = through(&own);
        assert_eq!((same.code(), same.details()), (own.code(), own.details()));
        let fine = with_error_info(http::Response::new(()));
        assert!(fine.headers().is_empty());
        assert_eq!(through(&Status::ok("")).details(), b"");
    }
}

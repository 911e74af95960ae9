//! HTTP with JSON beside gRPC, on the same listener: each request becomes a call to the same services, so that
//! whoever comes this way is held to the same rights and limits.

mod answer;
mod api;
mod call;
mod openapi;
mod page;
mod read;
mod write;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::Either;
use prost::Message as _;
use prost_reflect::DynamicMessage;
use tokio::time::timeout;
use tonic::{
    Code,
    body::Body,
    codegen::{
        Service,
        http::{
            HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, uri::PathAndQuery,
        },
    },
};
use tonic_health::pb::{HealthCheckResponse, health_check_response::ServingStatus};

use crate::{proto, rpc::status::ErrorReply};

use answer::{Answer, Refusal};
use api::{Api, Found};
use call::{Caller, Services};

pub use api::ApiError;
pub use openapi::openapi;

/// What the OpenAPI document says before all calls.
const GATEWAY_TEXT: &str = "\
JSON over HTTP/1.1 and HTTP/2 for the same calls as gRPC, on the same port and with the same rights.

Fields have their proto names; lowerCamelCase is read as well, and a field that is not known is refused. Defaults are \
written out; what is absent is left out. `payload`, `result` and `details` are JSON values, kept byte for byte.

An error is `{\"error\": {code, status, message, details}}`; one of the details is a google.rpc.ErrorInfo with a \
stable `reason`. What \
only HTTP knows has HTTP's own code: 404 for a path, 405 for a method, 408 for a body that is too slow, 415 for one \
that is not said to be JSON.";

/// How long a request may take in all; less than the limit of calls, whose answer would be one of gRPC.
const REQUEST_LIMIT: Duration = Duration::from_secs(85);

/// The longest wait that `Prefer` gets, in seconds: the longest of WaitTask.
const PREFER_WAIT_MAX: u32 = 60;

const SUBMIT_TASK: &str = "orbit.v1.TaskService.SubmitTask";
const WAIT_TASK: &str = "/orbit.v1.TaskService/WaitTask";
const WAIT_TASK_RESPONSE: &str = "orbit.v1.WaitTaskResponse";
/// Paths that are no calls.
const OWN_PATHS: [&str; 4] = ["/healthz", "/readyz", "/openapi.json", "/docs"];
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// The gateway's settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatewayOptions {
    /// The largest body, in bytes.
    pub(crate) body_bytes_max: usize,
    /// Origins whose pages may read and write. Default none.
    pub(crate) cors_origins: Vec<String>,
}

/// Serves gRPC by `S`, and HTTP with JSON through it.
#[derive(Clone, Debug)]
pub(crate) struct Gateway<S> {
    services: S,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    api: Api,
    options: GatewayOptions,
    /// The OpenAPI document and its page, once somebody asked.
    documents: OnceLock<(String, String)>,
}

impl<S> Gateway<S> {
    /// A gateway before these services.
    pub(crate) fn new(services: S, options: GatewayOptions) -> Result<Self, ApiError> {
        let api = Api::read()?;
        Ok(Self { services, shared: Arc::new(Shared { api, options, documents: OnceLock::new() }) })
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<S: Services> Service<Request<Body>> for Gateway<S> {
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.services.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_grpc(&request) {
            return Either::Left(self.services.call(request));
        }
        let (services, shared) = (self.services.clone(), Arc::clone(&self.shared));
        Either::Right(Box::pin(async move { Ok(shared.answer(services, request).await) }))
    }
}

/// gRPC is HTTP/2; over HTTP/1.1 its streams would have neither keepalive nor an end.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_2 && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

impl Shared {
    async fn answer<S: Services>(&self, services: S, request: Request<Body>) -> Answer {
        let origin = request.headers().get(header::ORIGIN).cloned();
        let allowed = origin.as_ref().filter(|origin| self.allows(origin)).cloned();
        let mut answer = if is_preflight(&request) && allowed.is_some() {
            preflight_answer()
        } else if origin.is_some() && allowed.is_none() && !is_read(request.method()) {
            // A page that is not known may not even try: its user might be in this network, and the page not.
            Refusal::Origin.into_answer(&self.api)
        } else {
            let answer = timeout(REQUEST_LIMIT, self.route(services, request)).await;
            answer
                .unwrap_or_else(|_| Err(timed_out()))
                .unwrap_or_else(|refusal| refusal.into_answer(&self.api))
        };
        if let Some(origin) = allowed {
            let headers = answer.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("Origin"));
            let exposed = HeaderValue::from_static("Retry-After, Preference-Applied");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
        answer
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.options.cors_origins.iter().any(|allowed| allowed.as_bytes() == origin.as_bytes())
    }

    async fn route<S: Services>(&self, services: S, request: Request<Body>) -> Result<Answer, Refusal> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let caller = Caller::new(&parts)?;
        if OWN_PATHS.contains(&path) {
            if !is_read(&parts.method) {
                return Err(Refusal::OtherMethods("GET, HEAD".to_owned()));
            }
            return match path {
                "/readyz" => Ok(self.ready(services, &caller).await),
                "/openapi.json" => Ok(answer::json(self.documents()?.0.clone())),
                "/docs" => Ok(answer::page(self.documents()?.1.clone())),
                _ => Ok(plain("ok\n")),
            };
        }
        let (route, fields) = match self.api.find(&parts.method, path) {
            Found::Route(route, fields) => (route, fields),
            Found::OtherMethods(methods) => {
                let names: Vec<_> = methods.iter().map(|method| method.as_str()).collect();
                return Err(Refusal::OtherMethods(names.join(", ")));
            }
            Found::Nothing => return Err(Refusal::NoPath),
        };
        let bytes_max = self.options.body_bytes_max;
        let message = call::read_request(&self.api, route, fields, &parts, body, bytes_max).await?;
        let mut answer = caller.call_route(services.clone(), route, &message).await?;
        let wait = preferred_wait(&parts.headers).filter(|_| route.method.full_name() == SUBMIT_TASK);
        let waited = match wait {
            Some(wait) => self.wait(services, &caller, &mut answer, wait).await,
            None => None,
        };
        let text = write::to_json(&answer, &self.api.texts).map_err(|e| call::broken(&e))?;
        let mut answer = answer::json(text);
        if let Some(applied) = waited {
            answer.headers_mut().insert("preference-applied", applied);
        }
        Ok(answer)
    }

    /// Puts the task, as it is when it is settled or the time is over, into the answer of its submit. If that fails,
    /// the task is accepted all the same, and its answer stays as it is.
    async fn wait<S: Services>(
        &self,
        services: S,
        caller: &Caller,
        submitted: &mut DynamicMessage,
        seconds: u32,
    ) -> Option<HeaderValue> {
        let accepted: proto::SubmitTaskResponse = submitted.transcode_to().ok()?;
        let request = proto::WaitTaskRequest {
            task_id: accepted.task?.task_id,
            wait_ms: Some(seconds * 1_000),
            view: proto::TaskView::Full.into(),
        };
        let path = PathAndQuery::from_static(WAIT_TASK);
        let waited = caller.call(services, path, &request.encode_to_vec()).await.ok()?;
        let descriptor = self.api.pool.get_message_by_name(WAIT_TASK_RESPONSE)?;
        let task = DynamicMessage::decode(descriptor, waited).ok()?.take_field_by_name("task")?;
        submitted.set_field_by_name("task", task);
        HeaderValue::from_str(&format!("wait={seconds}")).ok()
    }

    /// Whether to send anything here: what the health service says.
    async fn ready<S: Services>(&self, services: S, caller: &Caller) -> Answer {
        let health = caller.call(services, PathAndQuery::from_static(HEALTH_CHECK), &[]).await;
        let health = health.ok().and_then(|bytes| HealthCheckResponse::decode(bytes).ok());
        if health.is_some_and(|health| health.status() == ServingStatus::Serving) {
            return plain("ok\n");
        }
        let message = "this node does not serve at the moment: it shuts down, or its database is away";
        answer::error(&self.api, &ErrorReply::new(Code::Unavailable, "NOT_SERVING", message).into_status())
    }

    fn documents(&self) -> Result<&(String, String), Refusal> {
        if let Some(documents) = self.documents.get() {
            return Ok(documents);
        }
        let document = openapi().map_err(|e| call::broken(&e))?;
        let page = page::page(&serde_json::from_str(&document).map_err(|e| call::broken(&e))?);
        Ok(self.documents.get_or_init(|| (document, page)))
    }
}

fn is_read(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// A browser asks whether a page of another origin may send what it wants to.
fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight_answer() -> Answer {
    let mut answer = plain("");
    *answer.status_mut() = StatusCode::NO_CONTENT;
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PATCH"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "Authorization, Content-Type, Idempotency-Key, Prefer"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// The seconds of `Prefer: wait=10` (RFC 7240). A preference that cannot be read is none.
fn preferred_wait(headers: &HeaderMap) -> Option<u32> {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut waits = preferences.flat_map(|value| value.split(',')).filter_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().parse::<u32>().ok())?
    });
    waits.next().filter(|wait| *wait > 0).map(|wait| wait.min(PREFER_WAIT_MAX))
}

fn timed_out() -> Refusal {
    let message = "no answer came in time: whether it was done is not known, so send the same again";
    ErrorReply::new(Code::DeadlineExceeded, "TIMEOUT", message).into_status().into()
}

fn plain(text: &'static str) -> Answer {
    answer::text(HeaderValue::from_static("text/plain; charset=utf-8"), text)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{Ready, ready},
        sync::Mutex,
    };

    use http_body_util::BodyExt as _;
    use tonic::Status;

    use super::*;

    /// Refuses every call, and keeps what was said about the last one.
    #[derive(Clone, Default)]
    struct Refusing(Arc<Mutex<Option<Request<()>>>>);

    impl Service<Request<Body>> for Refusing {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            *self.0.lock().expect("not poisoned") = Some(request.map(drop));
            ready(Ok(Status::unauthenticated("who are you?").into_http()))
        }
    }

    /// Whoever the peer is, as the transport knows it.
    #[derive(Clone, Debug, PartialEq)]
    struct Peer(u8);

    #[tokio::test]
    async fn a_call_is_made_with_the_callers_own_credentials_and_refused_as_in_grpc() {
        let services = Refusing::default();
        let mut gateway = Gateway::new(services.clone(), GatewayOptions::default()).expect("the contract");
        let request = Request::get("/v1/tasks/x?view=TASK_VIEW_FULL")
            .header("authorization", "Bearer secret")
            .header("x-request-id", "7")
            .header("grpc-encoding", "gzip")
            .header("host", "h")
            .extension(Peer(7))
            .body(Body::empty())
            .expect("a request");
        let answer = gateway.call(request).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(answer.headers()[header::WWW_AUTHENTICATE], "Bearer");
        let text = answer.into_body().collect().await.expect("a body").to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(
            (&body["error"]["code"], &body["error"]["message"]),
            (&401.into(), &"who are you?".into())
        );

        let call = services.0.lock().expect("not poisoned").take().expect("a call");
        assert_eq!(call.uri(), "/orbit.v1.TaskService/GetTask");
        assert_eq!(call.extensions().get(), Some(&Peer(7)));
        let said = |name: &str| call.headers().get(name).and_then(|v| v.to_str().ok());
        assert_eq!((said("authorization"), said("x-request-id")), (Some("Bearer secret"), Some("7")));
        assert_eq!((said("content-type"), said("te")), (Some("application/grpc"), Some("trailers")));
        assert_eq!((said("grpc-encoding"), said("host")), (None, None));
    }

    #[test]
    fn a_wait_is_preferred_in_whole_seconds_and_capped() {
        let wait = |value: &'static str| {
            let headers =
                HeaderMap::from_iter([("prefer".parse().expect("a name"), HeaderValue::from_static(value))]);
            preferred_wait(&headers)
        };
        assert_eq!(
            (wait("wait=10"), wait("respond-async, Wait = 5"), wait("wait=999")),
            (Some(10), Some(5), Some(60))
        );
        assert_eq!(
            (wait("wait=0"), wait("wait=-1"), wait("wait=1.5"), wait("waiting=1")),
            (None, None, None, None)
        );
    }
}

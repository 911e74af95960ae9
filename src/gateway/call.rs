//! One call: the HTTP request as a gRPC request to the same services, and its answer back.

use std::{future::poll_fn, time::Duration};

use http_body_util::{BodyExt as _, Full};
use percent_encoding::percent_decode_str;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};
use tokio::time::timeout;
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes, Service,
        http::{
            Extensions, HeaderMap, HeaderValue, Method, Request, Response, Version, header, request::Parts,
            uri::PathAndQuery,
        },
    },
};

use super::{
    answer::Refusal,
    api::{Api, PathFields, Route, encode},
    read::{Reader, field_of, shortened},
};

/// How long a body may take to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(20);
/// For how long the rest of a body that is refused is read, so that its sender gets to see why.
const REST_LIMIT: Duration = Duration::from_secs(1);

/// Names the submit that a request is, as the field of that name does.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const IDEMPOTENCY_KEY_FIELD: &str = "idempotency_key";

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The compression flag and the length before each message.
const FRAME_PREFIX_BYTES: usize = 5;

/// The services, as gRPC reaches them.
pub(super) trait Services:
    Service<Request<Body>, Response = Response<Body>, Future: Send, Error: std::fmt::Display>
    + Clone
    + Send
    + 'static
{
}

impl<S> Services for S where
    S: Service<Request<Body>, Response = Response<Body>, Future: Send, Error: std::fmt::Display>
        + Clone
        + Send
        + 'static
{
}

/// Reads the message that a request stands for.
pub(super) async fn read_request(
    api: &Api,
    route: &Route,
    path: PathFields<'_>,
    parts: &Parts,
    body: Body,
    bytes_max: usize,
) -> Result<DynamicMessage, Refusal> {
    let input = route.method.input();
    let mut reader = Reader::new(&api.texts);
    let mut message = if route.has_body {
        let body = read_body(&parts.headers, body, bytes_max).await?;
        if let Some(query) = parts.uri.query().filter(|query| !query.is_empty()) {
            refuse_query(&mut reader, query);
        }
        reader.message(&input, if body.is_empty() { "{}" } else { &body }, "")
    } else {
        read_query(&mut reader, &input, parts.uri.query().unwrap_or_default())
    };
    for (field, text) in path {
        match percent_decode_str(text).decode_utf8() {
            Ok(text) => agree(&mut reader, &mut message, &field, &text, "the path"),
            Err(_) => reader.bad(field.name(), "must be UTF-8"),
        }
    }
    if let Some(field) = input.get_field_by_name(IDEMPOTENCY_KEY_FIELD) {
        for key in parts.headers.get_all(IDEMPOTENCY_KEY) {
            let key = String::from_utf8_lossy(key.as_bytes());
            agree(&mut reader, &mut message, &field, &key, "the header Idempotency-Key");
        }
    }
    if reader.problems.is_empty() { Ok(message) } else { Err(Refusal::Fields(reader.problems)) }
}

/// Sets a field that the body may have set as well, to the same.
fn agree(
    reader: &mut Reader<'_>,
    message: &mut DynamicMessage,
    field: &FieldDescriptor,
    text: &str,
    source: &str,
) {
    if !message.has_field(field) {
        message.set_field(field, Value::String(text.to_owned()));
    } else if message.get_field(field).as_str() != Some(text) {
        reader.bad(field.name(), format!("differs from {source}: give it once, or twice the same"));
    }
}

async fn read_body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<String, Refusal> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max as u64) {
        // To be refused before it is sent; but who does not wait for that must see the answer.
        if !headers.contains_key(header::EXPECT) {
            skip(body).await;
        }
        return Err(Refusal::TooLarge(bytes_max));
    }
    let read = timeout(BODY_LIMIT, collect(body, bytes_max)).await;
    let collected = read.unwrap_or(Err(Refusal::TooSlow))?;
    if !collected.is_empty() && !is_json(headers) {
        return Err(Refusal::NotJson);
    }
    String::from_utf8(collected).map_err(|_| not_utf8())
}

async fn collect(mut body: Body, bytes_max: usize) -> Result<Vec<u8>, Refusal> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::Broken)?.into_data() else { continue };
        if collected.len() + data.len() > bytes_max {
            skip(body).await;
            return Err(Refusal::TooLarge(bytes_max));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected)
}

fn not_utf8() -> Refusal {
    Refusal::Fields(vec![("body".to_owned(), "must be UTF-8".to_owned())])
}

/// Reads what is left, for a while.
async fn skip(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(REST_LIMIT, rest).await;
}

/// Whether the body is said to be JSON. What a browser sends for a page of another origin without asking never is.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// The names and values of a query.
fn pairs(query: &str) -> impl Iterator<Item = (String, Option<String>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned).ok()
        };
        (decode(name).unwrap_or_else(|| name.to_owned()), decode(value))
    })
}

fn refuse_query(reader: &mut Reader<'_>, query: &str) {
    for (name, _) in pairs(query) {
        reader.bad(shortened(&name), "stands in the query, but belongs into the body");
    }
}

/// Reads the fields that stand in a query; those with many values may come many times.
fn read_query(reader: &mut Reader<'_>, input: &MessageDescriptor, query: &str) -> DynamicMessage {
    let mut message = DynamicMessage::new(input.clone());
    let mut read: Vec<(FieldDescriptor, Vec<String>)> = Vec::new();
    for (name, value) in pairs(query) {
        let Some(field) = field_of(input, &name) else {
            reader.bad(shortened(&name), format!("is no field of {}", input.name()));
            continue;
        };
        match value.map(|value| literal(&field, &value)) {
            None => reader.bad(field.name(), "must be UTF-8"),
            Some(json) => match read.iter_mut().find(|(other, _)| *other == field) {
                Some((_, values)) if field.is_list() => values.push(json),
                Some(_) => reader.bad(field.name(), "is given more than once"),
                None => read.push((field, vec![json])),
            },
        }
    }
    for (field, values) in read {
        let json = if field.is_list() { format!("[{}]", values.join(",")) } else { values.concat() };
        reader.field(&mut message, &field, &json, field.name());
    }
    message
}

/// A value of a query as JSON. Most kinds are read from a text as well.
fn literal(field: &FieldDescriptor, value: &str) -> String {
    let bare = match field.kind() {
        Kind::Bool => value == "true" || value == "false",
        Kind::Enum(_) => value.parse::<i32>().is_ok(),
        _ => false,
    };
    // A text is always JSON.
    if bare { value.to_owned() } else { serde_json::to_string(value).unwrap_or_default() }
}

/// What is said about a call beside its message.
#[derive(Clone)]
pub(super) struct Caller {
    headers: HeaderMap,
    extensions: Extensions,
}

impl Caller {
    /// The caller of an HTTP request. What the headers say about the body, or to the next hop, is not said of the call.
    pub(super) fn new(parts: &Parts) -> Result<Self, Refusal> {
        // The transport would obey it, and answer as gRPC does.
        if parts.headers.contains_key(GRPC_TIMEOUT) {
            let problem = "is a header of gRPC: wait_ms and Prefer say how long to wait";
            return Err(Refusal::Fields(vec![(GRPC_TIMEOUT.to_owned(), problem.to_owned())]));
        }
        let mut headers = parts.headers.clone();
        for name in [
            header::ACCEPT_ENCODING,
            header::CONNECTION,
            header::CONTENT_ENCODING,
            header::CONTENT_LENGTH,
            header::EXPECT,
            header::HOST,
            header::TRANSFER_ENCODING,
            header::UPGRADE,
        ] {
            headers.remove(name);
        }
        let of_grpc: Vec<_> =
            headers.keys().filter(|name| name.as_str().starts_with("grpc-")).cloned().collect();
        for name in of_grpc {
            headers.remove(name);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        Ok(Self { headers, extensions: parts.extensions.clone() })
    }

    /// Calls a method and returns its answer, encoded.
    pub(super) async fn call<S: Services>(
        &self,
        mut services: S,
        path: PathAndQuery,
        message: &[u8],
    ) -> Result<Bytes, Status> {
        let mut request = Request::new(Body::new(Full::new(frame(message)?)));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path.into();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers.clone();
        *request.extensions_mut() = self.extensions.clone();
        poll_fn(|cx| services.poll_ready(cx)).await.map_err(|e| broken(&e))?;
        let response = services.call(request).await.map_err(|e| broken(&e))?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status);
        }
        let body = response.into_body().collect().await?;
        match body.trailers().and_then(Status::from_header_map) {
            Some(status) if status.code() == tonic::Code::Ok => {}
            Some(status) => return Err(status),
            None => return Err(broken(&"no trailers")),
        }
        let mut bytes = body.to_bytes();
        if bytes.len() < FRAME_PREFIX_BYTES {
            return Err(broken(&"no message"));
        }
        Ok(bytes.split_off(FRAME_PREFIX_BYTES))
    }

    /// Calls the method of a route.
    pub(super) async fn call_route<S: Services>(
        &self,
        services: S,
        route: &Route,
        message: &DynamicMessage,
    ) -> Result<DynamicMessage, Status> {
        let answer = self.call(services, route.grpc_path.clone(), &encode(message)).await?;
        DynamicMessage::decode(route.method.output(), answer).map_err(|e| broken(&e))
    }
}

fn frame(message: &[u8]) -> Result<Bytes, Status> {
    let length = u32::try_from(message.len()).map_err(|e| broken(&e))?;
    let mut frame = Vec::with_capacity(FRAME_PREFIX_BYTES + message.len());
    frame.push(0); // not compressed
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    Ok(frame.into())
}

/// What cannot be, between the two halves of one program.
pub(super) fn broken(problem: &dyn std::fmt::Display) -> Status {
    let incident = uuid::Uuid::new_v4();
    tracing::error!(%incident, %problem, "a call from HTTP did not get through to its service");
    crate::rpc::status::ErrorReply::internal(incident).into_status()
}

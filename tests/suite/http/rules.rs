//! How requests are read and errors are told.

use orbit::proto::SubmitTaskRequest;
use serde_json::{Value, json};
use tonic::codegen::http;

use super::{JSON, submission, submit, task};
use crate::support::{
    eventually,
    http::{Answer, Http, get, post, send},
    on_mysql,
    proxy::Proxy,
    server::Server,
    stream::new_id,
};

const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

/// The bad fields that an error names.
fn fields(answer: &Answer) -> Vec<String> {
    answer.hold_error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT");
    let violations = answer.detail("BadRequest")["field_violations"].as_array().cloned().unwrap_or_default();
    violations.iter().map(|v| v["field"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn unknown_and_bad_fields_are_refused_by_name() {
    let server = Server::dev().await;
    let bad = async |body: &str| fields(&post(&server, "/v1/tasks", body.to_owned()).await);
    assert_eq!(bad(r#"{"queue":"default","retry":{"max_attempt":1}}"#).await, ["queue", "retry.max_attempt"]);
    assert_eq!(bad(r#"{"queue_id":"default","queueId":"default"}"#).await, ["queue_id"]);
    assert_eq!(bad(r#"{"retry":{"maxAttempts":"many"}}"#).await, ["retry.max_attempts"]);
    assert_eq!(bad(r#"{"retry":{"maxAttempts":1.5}}"#).await, ["retry.max_attempts"]);
    assert_eq!(bad("[]").await, ["body"]);
    assert_eq!(bad("{").await, ["body"]);
    // What only the service can tell comes in the same form.
    assert_eq!(
        bad("").await,
        ["queue_id", "idempotency_key", "handler", "handler_version", "payload_version"]
    );
    assert_eq!(fields(&get(&server, "/v1/queues?page=2").await), ["page"]);
    assert_eq!(fields(&get(&server, "/v1/queues?page_size=1&pageSize=2").await), ["page_size"]);
    assert_eq!(fields(&get(&server, "/v1/queues?page_size=-1").await), ["page_size"]);
    assert_eq!(fields(&get(&server, "/v1/queues?page_size=one").await), ["page_size"]);
    assert_eq!(fields(&get(&server, "/v1/tasks/%ff").await), ["task_id"]);
    assert_eq!(fields(&post(&server, "/v1/tasks?queue_id=default", "{}").await), ["queue_id"]);
    let other = json!({ "task_id": "x", "request_id": new_id() }).to_string();
    assert_eq!(fields(&post(&server, "/v1/tasks/y:cancel", other).await), ["task_id"]);
    server.stop().await;
}

#[tokio::test]
async fn both_forms_of_names_make_the_same_task() {
    let server = Server::dev().await;
    let snake = submission("k", "[ 1 ]");
    let camel = ["queue_id", "idempotency_key", "handler_version", "payload_version"].iter().fold(
        snake.clone(),
        |text, name| {
            let (head, tail) = name.split_once('_').expect("two words");
            text.replace(name, &format!("{head}{}{}", tail[..1].to_uppercase(), &tail[1..]))
        },
    );
    assert_ne!(camel, snake);
    assert_eq!(post(&server, "/v1/tasks", snake).await.json()["replayed"], false);
    assert_eq!(post(&server, "/v1/tasks", camel).await.json()["replayed"], true);
    // The same by gRPC: one path, one digest.
    let request = SubmitTaskRequest {
        queue_id: "default".into(),
        idempotency_key: "k".into(),
        handler: "text.normalize".into(),
        handler_version: "v1".into(),
        payload_version: "v1".into(),
        payload: "[ 1 ]".into(),
        ..SubmitTaskRequest::default()
    };
    assert!(server.tasks().submit_task(request).await.expect("accepted").into_inner().replayed);
    server.stop().await;
}

#[tokio::test]
async fn the_header_sets_the_key_and_must_agree_with_the_body() {
    let server = Server::dev().await;
    let with = async |key: &str, body: String| {
        send(&server, Http::One, ("POST", "/v1/tasks"), &[JSON, ("Idempotency-Key", key)], body).await
    };
    let without = submission("", "1").replace(r#""idempotency_key":"","#, "");
    let first = with("from-the-header", without.clone()).await.json();
    assert_eq!(task(&first, "idempotency_key"), "from-the-header");
    assert_eq!(with("from-the-header", submission("from-the-header", "1")).await.json()["replayed"], true);
    assert_eq!(fields(&with("other", submission("from-the-header", "1")).await), ["idempotency_key"]);
    assert_eq!(fields(&with("with blank", without).await), ["idempotency_key"]);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_call_gets_the_code_of_http() {
    let server = Server::dev().await;
    for path in ["/", "/v1", "/v1/tasks/x:y", "/orbit.v1.TaskService/GetTask", "/v1/tasks/a/b"] {
        get(&server, path).await.hold_error(404, "NOT_FOUND", "PATH_NOT_FOUND");
    }
    let method = send(&server, Http::Two, ("DELETE", "/v1/tasks"), &[], "").await;
    method.hold_error(405, "UNIMPLEMENTED", "METHOD_NOT_ALLOWED");
    assert!(method.header("allow").is_some_and(|allow| allow.contains("POST")), "{method:?}");
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""] {
        let answer = send(&server, Http::One, ("POST", "/v1/tasks"), &[("content-type", kind)], "{}").await;
        answer.hold_error(415, "INVALID_ARGUMENT", "CONTENT_TYPE");
    }
    let charset = [("content-type", "Application/JSON; charset=utf-8")];
    let answer = send(&server, Http::One, ("POST", "/v1/tasks"), &charset, submission("c", "1")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let utf16 = send(&server, Http::One, ("POST", "/v1/tasks"), &[JSON], vec![0xff, 0xfe]).await;
    assert_eq!(fields(&utf16), ["body"]);
    server.stop().await;
}

#[tokio::test]
async fn grpc_is_served_by_http_2_alone_and_keeps_its_own_headers() {
    let server = Server::dev().await;
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let path = ("POST", "/orbit.v1.QueueService/ListQueues");
    let old = send(&server, Http::One, path, &grpc, vec![0; 5]).await;
    old.hold_error(404, "NOT_FOUND", "PATH_NOT_FOUND");
    let new = send(&server, Http::Two, path, &grpc, vec![0; 5]).await;
    assert_eq!((new.status, new.header("content-type")), (200, Some("application/grpc")));
    let limited = send(&server, Http::One, ("GET", "/v1/queues"), &[("grpc-timeout", "1n")], "").await;
    assert!(limited.status == 400 || limited.header("grpc-status").is_some(), "{limited:?}");
    // A coding that gRPC would have used means nothing here.
    let coded = [("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip"), ("accept-encoding", "gzip")];
    assert_eq!(send(&server, Http::One, ("GET", "/v1/queues"), &coded, "").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn pages_of_other_origins_are_let_in_only_if_they_are_named() {
    let server = Server::dev().await;
    let origin = ("origin", "https://console.example");
    let ask = [origin, ("access-control-request-method", "POST")];
    let preflight = send(&server, Http::One, ("OPTIONS", "/v1/tasks"), &ask, "").await;
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (403, None));
    let write = send(&server, Http::One, ("POST", "/v1/tasks"), &[JSON, origin], submission("o", "1")).await;
    write.hold_error(403, "PERMISSION_DENIED", "ORIGIN_NOT_ALLOWED");
    let read = send(&server, Http::One, ("GET", "/v1/queues"), &[origin], "").await;
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, None));
    server.stop().await;

    let database = crate::support::database::TestDatabase::sqlite().await;
    let named = ["--cors-origins", "https://a.example,https://console.example"];
    let server = Server::start_with(&database, &named).await.with_queue().await;
    let preflight = send(&server, Http::One, ("OPTIONS", "/v1/tasks"), &ask, "").await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some(origin.1));
    assert!(preflight.header("access-control-allow-headers").is_some_and(|h| h.contains("Idempotency-Key")));
    let write = send(&server, Http::One, ("POST", "/v1/tasks"), &[JSON, origin], submission("o", "1")).await;
    assert_eq!((write.status, write.header("access-control-allow-origin")), (200, Some(origin.1)));
    let other = ("origin", "https://console.example.evil");
    let write = send(&server, Http::One, ("POST", "/v1/tasks"), &[JSON, other], submission("o", "1")).await;
    write.hold_error(403, "PERMISSION_DENIED", "ORIGIN_NOT_ALLOWED");
    server.stop().await;
    database.drop().await;
}

#[tokio::test]
async fn the_document_and_its_page_are_served() {
    let server = Server::dev().await;
    let document = get(&server, "/openapi.json").await;
    assert_eq!((document.status, document.text.as_str()), (200, DOCUMENT));
    let page = get(&server, "/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.text.contains("GET /v1/tasks/{task_id}"), "{page:?}");
    let head = send(&server, Http::One, ("HEAD", "/healthz"), &[], "").await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert_eq!(get(&server, "/readyz").await.status, 200);
    server.stop().await;
}

/// The path of each operation, with its HTTP method.
#[test]
fn every_annotated_call_stands_in_the_document() {
    let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
    let operations = document["paths"].as_object().expect("paths").iter().flat_map(|(path, methods)| {
        methods.as_object().expect("methods").keys().map(move |method| format!("{method} {path}"))
    });
    let operations: Vec<_> = operations.collect();
    for call in
        ["post /v1/tasks", "get /v1/tasks/{task_id}:wait", "patch /v1/queues/{queue_id}", "get /readyz"]
    {
        assert!(operations.iter().any(|operation| operation == call), "{call} in {operations:?}");
    }
    assert!(http::Method::from_bytes(b"PATCH").is_ok());
}

on_mysql! {
    async fn while_the_database_is_away_http_says_when_to_come_again() {
        let database = crate::support::database::TestDatabase::mysql().await;
        let proxy = Proxy::before(&database.url).await;
        let server = Server::start_on(&proxy.url(&database.url), &[]).await.with_queue().await;
        submit(&server, "before").await;
        assert_eq!(get(&server, "/readyz").await.status, 200);
        proxy.cut();
        let refused = post(&server, "/v1/tasks", submission("during", "1")).await;
        refused.hold_error(503, "UNAVAILABLE", "DATABASE_UNAVAILABLE");
        let seconds = refused.header("retry-after").and_then(|text| text.parse::<u32>().ok());
        assert!(seconds.is_some_and(|s| s >= 1), "{refused:?}");
        let limit = std::time::Duration::from_secs(20);
        eventually("it is not ready", limit, async || {
            (get(&server, "/readyz").await.status == 503).then_some(())
        })
        .await;
        assert_eq!(get(&server, "/healthz").await.status, 200);
        proxy.restore();
        eventually("it is ready again", limit, async || {
            (get(&server, "/readyz").await.status == 200).then_some(())
        })
        .await;
        submit(&server, "during").await;
        server.stop().await;
        proxy.end().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

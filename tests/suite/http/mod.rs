//! The HTTP gateway, over the network, beside gRPC on the same port.

mod limits;
mod rules;

use std::time::Duration;

use orbit::sdk::{Context, Failure, Worker};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    http::{Answer, Http, get, post, send},
    on_every_database,
    server::Server,
    stream::new_id,
};

/// Not what a rewriting server would write.
const PAYLOAD: &str = r#"{"n":9007199254740993,"e":1E+400, "d":0.10,"d":1,"é":"\u00e9"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");

fn submission(key: &str, payload: &str) -> String {
    format!(
        r#"{{"queue_id":"default","idempotency_key":"{key}","handler":"text.normalize","handler_version":"v1",
            "payload_version":"v1","payload":{payload}}}"#
    )
}

async fn submit(server: &Server, key: &str) -> String {
    id_of(&post(server, "/v1/tasks", submission(key, "1")).await)
}

fn id_of(answer: &Answer) -> String {
    answer.json()["task"]["task_id"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

fn task<'a>(body: &'a Value, name: &str) -> &'a Value {
    &body["task"][name]
}

/// The same, as far as a client that reads numbers into doubles can.
const READABLE: &str = r#"{"n":9007199254740993, "d":0.10,"d":1,"é":"\u00e9"}"#;

/// Hands its payload back.
async fn echo(_: Context, payload: String) -> Result<String, Failure> {
    Ok(payload)
}

on_every_database! {
    async fn a_task_is_submitted_and_read_by_http(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        for (http, key) in [(Http::One, "one"), (Http::Two, "two")] {
            let submit =
                async || send(&server, http, ("POST", "/v1/tasks"), &[JSON], submission(key, PAYLOAD)).await;
            let first = submit().await;
            assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
            let accepted = first.json();
            assert_eq!(accepted["replayed"], false);
            assert_eq!(task(&accepted, "state"), "TASK_STATE_WAITING");
            assert_eq!(task(&accepted, "retry")["max_attempts"], 1);
            let again = submit().await.json();
            assert_eq!(again, json!({ "task": accepted["task"], "replayed": true }));

            let id = id_of(&first);
            let read = get(&server, &format!("/v1/tasks/{id}?view=TASK_VIEW_FULL")).await;
            assert!(read.text.contains(&format!("\"payload\":{PAYLOAD}")), "{read:?}");
            let by_grpc = server.client().get(&id).await.expect("the same task");
            assert_eq!((by_grpc.payload.as_str(), by_grpc.idempotency_key.as_str()), (PAYLOAD, key));
        }
        let conflict = post(&server, "/v1/tasks", submission("one", "1")).await;
        conflict.hold_error(409, "ALREADY_EXISTS", "IDEMPOTENCY_CONFLICT");
        let absent = get(&server, "/v1/tasks/00000000-0000-7000-8000-000000000000").await;
        absent.hold_error(404, "NOT_FOUND", "TASK_NOT_FOUND");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn a_submit_that_prefers_to_wait_gets_the_finished_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let prefer = |key: &str, wait: &'static str| {
            let (server, body) = (&server, submission(key, READABLE));
            async move { send(server, Http::One, ("POST", "/v1/tasks"), &[JSON, ("prefer", wait)], body).await }
        };
        // Nobody runs it.
        let began = Instant::now();
        let waiting = prefer("a", "respond-async, wait=1").await;
        assert!(began.elapsed() >= Duration::from_secs(1));
        assert_eq!(task(&waiting.json(), "state"), "TASK_STATE_WAITING");
        for none in ["wait=0", "wait=-1", "wait=x", "wait", "return=minimal"] {
            assert_eq!(prefer("a", none).await.header("preference-applied"), None);
        }

        let client = server.client();
        let worker = Worker::builder(&client).queue("default").raw_handler("text.normalize", "v1", echo);
        let worker = worker.build().expect("a worker").start().expect("it runs");
        let finished = prefer("b", "wait=30").await;
        assert_eq!(finished.header("preference-applied"), Some("wait=30"));
        assert_eq!(task(&finished.json(), "state"), "TASK_STATE_SUCCEEDED");
        assert!(finished.text.contains(&format!("\"result\":{READABLE}")), "{finished:?}");
        let again = prefer("b", "wait=30").await.json();
        assert_eq!((&again["replayed"], task(&again, "state")), (&json!(true), &json!("TASK_STATE_SUCCEEDED")));
        worker.drain(Duration::from_secs(10)).await.expect("drained");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn every_call_is_served(database: TestDatabase) {
        let server = Server::start(&database).await;
        let queue = json!({ "queue_id": "default", "max_running": 2, "request_id": new_id() }).to_string();
        let created = post(&server, "/v1/queues", queue).await.json();
        assert_eq!(created["queue"]["max_running"], 2);
        let change = json!({ "maxRunning": 3, "requestId": new_id() }).to_string();
        let changed = send(&server, Http::One, ("PATCH", "/v1/queues/default"), &[JSON], change).await.json();
        assert_eq!(changed["queue"]["max_running"], 3);
        let by = || json!({ "request_id": new_id() }).to_string();
        let paused = post(&server, "/v1/queues/default:pause", by()).await.json();
        assert_eq!(paused["queue"]["paused"], true);
        let resumed = post(&server, "/v1/queues/default:resume", by()).await.json();
        assert_eq!(resumed["queue"]["paused"], false);
        let listed = get(&server, "/v1/queues?page_size=10").await.json();
        assert_eq!((&listed["queues"][0]["queue_id"], &listed["next_page_token"]), (&json!("default"), &json!("")));

        let id = submit(&server, "a").await;
        let stats = get(&server, "/v1/queues/default").await.json();
        assert_eq!((&stats["stats"]["waiting"], &stats["queue"]["revision"]), (&json!(1), &json!(4)));
        let batch = format!("{{\"tasks\":[{},{}]}}", submission("a", "1"), submission("b", "{"));
        post(&server, "/v1/tasks:batchSubmit", batch).await.hold_error(400, "INVALID_ARGUMENT", "INVALID_ARGUMENT");
        let batch = format!("{{\"tasks\":[{},{}]}}", submission("a", "1"), submission("a", READABLE));
        let results = post(&server, "/v1/tasks:batchSubmit", batch).await.json();
        assert_eq!(results["results"][0]["submitted"]["task"]["task_id"], id.as_str());
        let refused = &results["results"][1]["error"];
        assert_eq!((&refused["code"], &refused["details"][0]["reason"]), (&json!(6), &json!("IDEMPOTENCY_CONFLICT")));
        let list = "/v1/tasks?states=TASK_STATE_FAILED&states=TASK_STATE_WAITING&effect_uncertain=false&page_size=1";
        let listed = get(&server, list).await.json();
        assert_eq!(listed["tasks"][0]["task_id"], id.as_str());
        let none = get(&server, "/v1/tasks?queueId=other&created_after=2020-01-01T00:00:00Z").await.json();
        assert_eq!(none["tasks"], json!([]));
        let found = get(&server, "/v1/tasks:lookup?idempotencyKey=a").await;
        assert_eq!(id_of(&found), id);
        let waited = get(&server, &format!("/v1/tasks/{id}:wait?wait_ms=0")).await;
        assert_eq!(id_of(&waited), id);
        let attempts = get(&server, &format!("/v1/tasks/{id}/attempts")).await.json();
        assert_eq!(attempts, json!({ "attempts": [], "next_page_token": "" }));
        let events = get(&server, &format!("/v1/tasks/{id}/events?page_size=1")).await.json();
        assert_eq!(events["events"][0]["type"], "task.accepted");
        let resolve = json!({ "expected_revision": 1, "reason": "x", "succeeded": { "result": [1] },
                              "effect_verified": true, "request_id": new_id() });
        let resolved = post(&server, &format!("/v1/tasks/{id}:resolve"), resolve.to_string()).await;
        resolved.hold_error(400, "FAILED_PRECONDITION", "ILLEGAL_STATE");
        let canceled = post(&server, &format!("/v1/tasks/{id}:cancel"), by()).await.json();
        assert_eq!((&canceled["receipt"]["changed"], task(&canceled, "state")), (&json!(true), &json!("TASK_STATE_CANCELED")));
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

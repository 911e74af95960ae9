//! The HTTP gateway, over the network, beside gRPC on the same port.

use serde_json::json;

use crate::support::{
    http::{Http, get, post, send},
    on_every_database,
    server::Server,
};

/// Not what a rewriting server would write.
const PAYLOAD: &str = r#"{"n":9007199254740993,"e":1E+400, "d":0.10,"d":1,"é":"\u00e9"}"#;

fn submission(key: &str, payload: &str) -> String {
    format!(
        r#"{{"queue_id":"default","idempotency_key":"{key}","handler":"text.normalize","handler_version":"v1",
            "payload_version":"v1","payload":{payload}}}"#
    )
}

on_every_database! {
    async fn a_task_is_submitted_and_read_by_http(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        for (http, key) in [(Http::One, "one"), (Http::Two, "two")] {
            let submit = async || {
                let json = [("content-type", "application/json")];
                send(&server, http, ("POST", "/v1/tasks"), &json, submission(key, PAYLOAD)).await
            };
            let first = submit().await;
            assert_eq!((first.status, first.header("content-type")), (200, Some("application/json")));
            let accepted = first.json();
            assert_eq!(accepted["replayed"], false);
            assert_eq!(accepted["task"]["state"], "TASK_STATE_WAITING");
            assert_eq!(accepted["task"]["retry"]["max_attempts"], 1);
            let again = submit().await.json();
            assert_eq!(again, json!({ "task": accepted["task"], "replayed": true }));

            let id = accepted["task"]["task_id"].as_str().expect("an id");
            let read = get(&server, &format!("/v1/tasks/{id}?view=TASK_VIEW_FULL")).await;
            assert!(read.text.contains(&format!("\"payload\":{PAYLOAD}")), "{read:?}");
            let by_grpc = server.client().get(id).await.expect("the same task");
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
}

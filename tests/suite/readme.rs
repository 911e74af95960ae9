//! The README's lines, and real gRPC clients that are not ours, without a proto file: `grpcurl` and `buf curl`.
//!
//! `tests/run` provides both and names them in `ORBIT_TEST_GRPCURL` and `ORBIT_TEST_BUF`.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::{
    foreign::session::shell,
    support::{on_every_database, server::Server},
};

const README: &str = include_str!("../../README.md");
const MARK: &str = "<!-- a test runs these lines -->\n```sh\n";
const README_ADDRESS: &str = "127.0.0.1:7070";

/// The program that a variable names.
fn tool(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} names a program; tests/run provides it"))
}

/// The README's lines, all that are marked.
fn readme_lines() -> Vec<&'static str> {
    let blocks = README.split(MARK).skip(1).map(|rest| rest.split_once("```").expect("an end").0);
    blocks.flat_map(str::lines).collect()
}

/// Runs a line of the README as a shell does, with the server's port.
fn run_line(line: &str, server: &Server) -> Output {
    let mut shell = shell(&line.replace(README_ADDRESS, &server.address().to_string()));
    shell.env("ORBIT_URL", server.url()).stdin(Stdio::null()).output().expect("a shell")
}

fn stdout(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn answer(output: &Output) -> Value {
    let text = stdout(output);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn grpcurl(server: &Server, method: &str, request: &Value) -> Output {
    let (address, request) = (server.address().to_string(), request.to_string());
    let arguments = ["-plaintext", "-d", &request, &address, method];
    Command::new(tool("ORBIT_TEST_GRPCURL")).args(arguments).output().expect("grpcurl")
}

fn buf_curl(server: &Server, arguments: &[&str], path: &str) -> Output {
    Command::new(tool("ORBIT_TEST_BUF"))
        .args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"])
        .args(["--reflect", "--reflect-protocol", "grpc-v1"])
        .args(arguments)
        .arg(format!("{}{path}", server.url()))
        .output()
        .expect("buf")
}

fn submission(key: &str, payload: &str) -> Value {
    json!({
        "queue_id": "default", "idempotency_key": key, "handler": "text.normalize", "handler_version": "v1",
        "payload_version": "v1", "payload": payload
    })
}

/// Runs all the README's lines against a server with a queue `default`, and what it says of them.
async fn hold_the_readme(server: &Server) {
    let lines = readme_lines();
    let [list, describe, submit, curl, python] = lines[..] else { panic!("{lines:?}") };
    hold_its_grpcurl([list, describe, submit], server);

    let first = answer(&run_line(curl, server));
    assert_eq!((&first["task"]["state"], &first["replayed"]), (&json!("TASK_STATE_WAITING"), &json!(false)));
    let again = answer(&run_line(curl, server));
    assert_eq!((&again["task"]["task_id"], &again["replayed"]), (&first["task"]["task_id"], &json!(true)));
    let id = first["task"]["task_id"].as_str().expect("an id");
    assert_eq!(server.client().get(id).await.expect("the task").payload, r#"{"text":"  hello  "}"#);

    // The same two lines as the README shows for the example in Rust.
    let (_, shown) = README.split_once("```text\n").expect("what the example prints");
    let (shown, _) = shown.split_once("```").expect("an end");
    let (before, after) = shown.split_once("<id>").expect("a place for the id");
    let printed = stdout(&run_line(python, server));
    let id = printed.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    assert!(id.is_some_and(|id| id.len() == 36), "{printed}");
}

fn hold_its_grpcurl([list, describe, submit]: [&str; 3], server: &Server) {
    let services = stdout(&run_line(list, server));
    for service in
        ["orbit.v1.TaskService", "orbit.v1.QueueService", "orbit.v1.WorkerService", "grpc.health.v1.Health"]
    {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let described = stdout(&run_line(describe, server));
    assert!(described.starts_with("orbit.v1.TaskService is a service:"), "{described}");
    for rpc in ["rpc SubmitTask", "rpc GetTask", "rpc ListAttempts"] {
        assert!(described.contains(rpc), "{described}");
    }

    let first = answer(&run_line(submit, server));
    assert_eq!(first["task"]["state"], "TASK_STATE_WAITING");
    assert_eq!(first.get("replayed"), None);
    let again = run_line(submit, server);
    assert!(stdout(&again).contains("\"replayed\": true"), "as the README writes it");
    assert_eq!(answer(&again)["task"]["taskId"], first["task"]["taskId"]);

    let conflict = run_line(&submit.replace("hello", "good bye"), server);
    let error = String::from_utf8_lossy(&conflict.stderr);
    assert!(!conflict.status.success());
    assert!(error.contains("Code: AlreadyExists") && error.contains("IDEMPOTENCY_CONFLICT"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_the_readme_do_what_it_says() {
    let server = Server::dev().await;
    hold_the_readme(&server).await;
    server.stop().await;
}

on_every_database! {
    async fn the_lines_of_the_readme_do_the_same_on_every_database(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        hold_the_readme(&server).await;
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn grpcurl_submits_gets_and_reads_the_history(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let payload = r#"{"n":9007199254740993,"e":1E2,"d":0.10,"d":1}"#;
        let submit = "orbit.v1.TaskService/SubmitTask";
        let submitted = answer(&grpcurl(&server, submit, &submission("grpcurl", payload)));
        let id = &submitted["task"]["taskId"];

        let get = json!({ "task_id": id, "view": "TASK_VIEW_FULL" });
        let task = answer(&grpcurl(&server, "orbit.v1.TaskService/GetTask", &get));
        assert_eq!(task["task"]["payload"], payload);
        assert_eq!((&task["task"]["taskId"], &task["task"]["idempotencyKey"]), (id, &json!("grpcurl")));
        let attempts =
            answer(&grpcurl(&server, "orbit.v1.TaskService/ListAttempts", &json!({ "task_id": id })));
        assert_eq!(attempts, json!({}));
        let queues = answer(&grpcurl(&server, "orbit.v1.QueueService/ListQueues", &json!({})));
        assert_eq!(queues["queues"][0]["queueId"], "default");

        let none = json!({ "task_id": "00000000-0000-7000-8000-000000000000" });
        let absent = grpcurl(&server, "orbit.v1.TaskService/GetTask", &none);
        let error = String::from_utf8_lossy(&absent.stderr);
        assert!(error.contains("Code: NotFound") && error.contains("TASK_NOT_FOUND"), "{error}");
        server.stop().await;
        database.drop().await;
    }

    async fn buf_curl_lists_describes_submits_and_gets(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let services = stdout(&buf_curl(&server, &["--list-services"], ""));
        assert!(services.lines().any(|line| line == "orbit.v1.TaskService"), "{services}");
        let methods = stdout(&buf_curl(&server, &["--list-methods"], ""));
        assert!(methods.lines().any(|line| line == "orbit.v1.TaskService/SubmitTask"), "{methods}");

        let request = submission("buf", r#"{"d":0.10}"#).to_string();
        let submit = || buf_curl(&server, &["-d", &request], "/orbit.v1.TaskService/SubmitTask");
        let first = answer(&submit());
        let again = answer(&submit());
        assert_eq!((first.get("replayed"), &again["replayed"]), (None, &json!(true)));
        assert_eq!(first["task"]["taskId"], again["task"]["taskId"]);

        let get = json!({ "task_id": first["task"]["taskId"], "view": "TASK_VIEW_FULL" }).to_string();
        let task = answer(&buf_curl(&server, &["-d", &get], "/orbit.v1.TaskService/GetTask"));
        assert_eq!(task["task"]["payload"], r#"{"d":0.10}"#);

        let other = submission("buf", "1").to_string();
        let conflict = buf_curl(&server, &["-d", &other], "/orbit.v1.TaskService/SubmitTask");
        let error = String::from_utf8_lossy(&conflict.stderr);
        assert!(!conflict.status.success());
        // It shows the details of an error, the reason among them, in base64 only.
        assert!(error.contains("already_exists") && error.contains("other content"), "{error}");
        server.stop().await;
        database.drop().await;
    }
}

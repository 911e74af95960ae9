//! The producer's client: what is sent again, and what an error says.

use std::{collections::HashMap, time::Duration};

use orbit::{
    proto::{RecoverySafety, ResolveTaskRequest, RetryPolicy, Task, TaskState},
    sdk::{Client, ErrorKind, Submit},
};
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::fake_tasks::{FakeTasks, Reply};

fn accepted() -> Reply {
    Reply::Task(Box::new(Task { task_id: "t".to_owned(), ..Task::default() }))
}

fn unavailable() -> Reply {
    Reply::Fail(Status::unavailable("the database is away"))
}

fn in_state(state: TaskState) -> Reply {
    Reply::Task(Box::new(Task { state: state.into(), ..Task::default() }))
}

fn submit(client: &Client) -> Submit {
    client.submit("q", "h", "v1").payload(&1)
}

#[tokio::test]
async fn a_submit_is_sent_again_with_its_key_while_the_server_is_unavailable() {
    let (server, url) = FakeTasks::start([unavailable(), unavailable(), accepted()]);
    let client = Client::connect(url).unwrap();
    let submitted = submit(&client).send().await.unwrap();
    assert_eq!((submitted.task.task_id.as_str(), submitted.replayed), ("t", false));
    let submits = server.submits();
    assert_eq!(submits.len(), 3);
    assert_eq!(submits[0].idempotency_key.len(), 36);
    assert!(submits.iter().all(|request| *request == submits[0]));
}

#[tokio::test]
async fn a_submit_that_is_sent_twice_by_its_caller_keeps_its_key() {
    let (server, url) = FakeTasks::start([Reply::Fail(Status::internal("?")), accepted(), accepted()]);
    let client = Client::connect(url).unwrap();
    let once = submit(&client);
    assert_eq!(once.send().await.unwrap_err().code(), Code::Internal);
    once.send().await.unwrap();
    let other = submit(&client).await.unwrap();
    assert_eq!(other.task.task_id, "t");
    let keys: Vec<_> = server.submits().into_iter().map(|request| request.idempotency_key).collect();
    assert_eq!(keys[0], once.key());
    assert_eq!(keys[0], keys[1]);
    assert_ne!(keys[1], keys[2]);
}

#[tokio::test]
async fn a_submit_says_what_its_builder_was_told() {
    let (server, url) = FakeTasks::start([accepted()]);
    let client = Client::connect(url).unwrap();
    let submit = client
        .submit("q", "h", "v2")
        .idempotency_key("k")
        .payload_json("1E2")
        .payload_version("v9")
        .max_attempts(3)
        .initial_delay(Duration::from_micros(1_500))
        .max_delay(Duration::from_secs(2))
        .attempt_timeout(Duration::from_secs(u64::MAX))
        .task_timeout(Duration::from_mins(1))
        .recovery_safety(RecoverySafety::Idempotent);
    submit.send().await.unwrap();
    let request = server.submits().remove(0);
    assert_eq!((request.queue_id.as_str(), request.handler_version.as_str()), ("q", "v2"));
    assert_eq!((request.idempotency_key.as_str(), request.payload.as_str()), ("k", "1E2"));
    assert_eq!((request.payload_version.as_str(), request.task_timeout_ms), ("v9", Some(60_000)));
    assert_eq!(request.recovery_safety(), RecoverySafety::Idempotent);
    let retry = RetryPolicy {
        max_attempts: Some(3),
        initial_delay_ms: Some(2),
        max_delay_ms: Some(2_000),
        attempt_timeout_ms: Some(u32::MAX),
    };
    assert_eq!(request.retry, Some(retry));
}

#[tokio::test]
async fn an_error_carries_reason_metadata_fields_and_wait() {
    let mut details = ErrorDetails::new();
    details
        .set_error_info("OVERLOADED", "orbit", HashMap::from([("queue_id".to_owned(), "q".to_owned())]))
        .set_retry_info(Some(Duration::from_millis(1_500)))
        .add_bad_request_violation("retry.max_attempts", "0 is out of range");
    let status = Status::with_error_details(Code::ResourceExhausted, "too much at once", details);
    let (server, url) = FakeTasks::start([Reply::Fail(status)]);
    let error = submit(&Client::connect(url).unwrap()).send().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Server, Code::ResourceExhausted));
    assert_eq!((error.reason(), error.message()), (Some("OVERLOADED"), "too much at once"));
    assert_eq!(error.to_string(), "too much at once (OVERLOADED)");
    assert_eq!(error.metadata()["queue_id"], "q");
    assert_eq!(error.retry_after(), Some(Duration::from_millis(1_500)));
    assert_eq!(error.field_violations()[0].field, "retry.max_attempts");
    assert!(error.is_transient());
    // Left to the caller: only UNAVAILABLE is sent again.
    assert_eq!(server.submits().len(), 1);
}

#[tokio::test]
async fn a_call_ends_at_its_timeout() {
    let (server, url) = FakeTasks::start([Reply::Silence]);
    let client = Client::builder().url(url).call_timeout(Duration::from_millis(300)).build().unwrap();
    let began = Instant::now();
    let error = submit(&client).send().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Timeout, Code::DeadlineExceeded));
    assert!((250..2_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(server.submits().len(), 1);

    let nobody = client_of_nobody(Duration::from_millis(300));
    let error = submit(&nobody).send().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Transport, Code::Unavailable));
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_failure_is_told_rather_than_that_the_time_of_the_next_try_was_short() {
    let (server, url) = FakeTasks::start([unavailable(), Reply::Silence]);
    let client = Client::builder().url(url).call_timeout(Duration::from_millis(800)).build().unwrap();
    let error = submit(&client).send().await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Server, Code::Unavailable), "{error}");
    assert_eq!(server.submits().len(), 2);
}

fn client_of_nobody(timeout: Duration) -> Client {
    Client::builder().url("http://127.0.0.1:1").call_timeout(timeout).build().unwrap()
}

#[tokio::test]
async fn a_call_moves_on_from_a_dead_or_silent_address_and_stays_there() {
    let (silent, silent_url) = FakeTasks::start([Reply::Silence]);
    let (server, url) = FakeTasks::start([accepted(), accepted()]);
    let client = Client::builder()
        .url(format!("http://127.0.0.1:1, {silent_url}"))
        .url(url)
        .call_timeout(Duration::from_secs(3))
        .build()
        .unwrap();
    submit(&client).send().await.unwrap();
    submit(&client).send().await.unwrap();
    assert_eq!((silent.submits().len(), server.submits().len()), (1, 2));
    assert_eq!(silent.submits()[0], server.submits()[0]);
}

#[tokio::test]
async fn a_token_goes_with_every_call() {
    let (server, url) = FakeTasks::start([accepted()]);
    let client = Client::builder().url(url).bearer_token("secret").build().unwrap();
    client.get("t").await.unwrap();
    assert_eq!(server.metadata().get("authorization").unwrap(), "Bearer secret");
    assert!(server.metadata().get("grpc-timeout").is_some());
}

#[tokio::test]
async fn a_wait_ends_when_the_task_is_settled_whatever_happens_meanwhile() {
    let (_server, url) = FakeTasks::start([
        in_state(TaskState::Waiting),
        unavailable(),
        in_state(TaskState::Running),
        in_state(TaskState::NeedsReview),
        in_state(TaskState::NeedsReview),
    ]);
    let task = Client::connect(url).unwrap().wait("t", Duration::from_secs(5)).await.unwrap();
    assert_eq!(task.state(), TaskState::NeedsReview);
}

#[tokio::test]
async fn a_wait_for_a_task_that_is_not_settled_times_out() {
    let (_server, url) = FakeTasks::start((0..100).map(|_| in_state(TaskState::Running)));
    let client = Client::connect(url).unwrap();
    let error = client.wait("t", Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("TASK_STATE_RUNNING"), "{error}");

    let error =
        client_of_nobody(Duration::from_secs(10)).wait("t", Duration::from_millis(200)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[test]
fn a_client_outside_of_a_runtime_is_an_error_not_a_panic() {
    assert_eq!(Client::connect("http://127.0.0.1:1").unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_payload_that_is_no_json_is_not_sent() {
    let (server, url) = FakeTasks::start([]);
    let client = Client::connect(url).unwrap();
    let payload = HashMap::from([((1, 2), 3)]);
    let error = client.submit("q", "h", "v1").payload(&payload).send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Serialization);
    assert!(server.submits().is_empty());
}

#[tokio::test]
async fn an_operators_request_keeps_its_id_over_the_tries() {
    let (server, url) = FakeTasks::start([unavailable(), accepted(), unavailable(), accepted(), accepted()]);
    let client = Client::connect(url).unwrap();
    client.cancel("t", "not wanted").await.unwrap();
    client.resolve(ResolveTaskRequest::default()).await.unwrap();
    client.resolve(ResolveTaskRequest { request_id: "mine".to_owned(), ..Default::default() }).await.unwrap();
    let ids = server.request_ids();
    assert_eq!((ids.len(), ids[0].len(), ids[4].as_str()), (5, 36, "mine"));
    assert!(ids[0] == ids[1] && ids[1] != ids[2] && ids[2] == ids[3], "{ids:?}");
}

#[tokio::test]
async fn a_batch_has_an_answer_for_each_and_sends_only_what_is_open_again() {
    // The whole call fails once, then the second of three is refused; of the next call the first is unwritable.
    let refused = Reply::Fail(Status::already_exists("other content"));
    let (server, url) = FakeTasks::start([unavailable(), accepted(), refused, accepted()]);
    let client = Client::connect(url).unwrap();
    let unwritable = client.submit("q", "h", "v1").payload(&HashMap::from([((1, 2), 3)]));
    let submits = [submit(&client), unwritable, submit(&client), submit(&client)];
    let answers = client.submit_batch(&submits).await;
    let codes: Vec<_> = answers.iter().map(|a| a.as_ref().err().map(orbit::sdk::Error::code)).collect();
    assert_eq!(codes, [None, Some(Code::InvalidArgument), Some(Code::AlreadyExists), None]);
    let sent: Vec<_> = server.submits().into_iter().map(|request| request.idempotency_key).collect();
    let keys = [&submits[0], &submits[2], &submits[3]].map(|s| s.key().to_owned());
    assert_eq!(sent, [keys.clone(), keys].concat());
    assert!(client.submit_batch(&[]).await.is_empty());
}

#[tokio::test]
async fn a_large_batch_goes_in_several_calls() {
    let (server, url) = FakeTasks::start((0..2_005).map(|_| accepted()));
    let client = Client::connect(url).unwrap();
    let large = client.submit("q", "h", "v1").payload(&"x".repeat(1024 * 1024));
    let submits: Vec<_> = (0..2_001).map(|_| submit(&client)).chain((0..4).map(|_| large.clone())).collect();
    let answers = client.submit_batch(&submits).await;
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 2_005);
    assert_eq!(server.batches(), [1_000, 1_000, 3, 2]);
}

//! What a handler's end is reported as.

use std::collections::HashMap;

use orbit::{
    proto::{Disposition, Drain, Finish, Outcome, worker_request::Message},
    sdk::{Context, Failure},
};
use tokio::sync::oneshot;

use super::fake_worker::{FakeServer, Gate, LOST, double};

/// Behaves as its payload says.
async fn moody(context: Context, mood: String) -> Result<HashMap<String, u32>, Failure> {
    match mood.as_str() {
        "retryable" => Err(Failure::retryable("BUSY").message("later").details(&[1, 2])),
        "permanent" => Err(Failure::permanent("NO_SUCH_ACCOUNT")),
        "error" => Ok(HashMap::from([("n".to_owned(), "x".parse()?)])),
        "panic" => panic!("out of luck at {}", context.task_id()),
        "large" => Ok(HashMap::from([("x".repeat(2_000_000), 1)])),
        "canceled" => Err(Failure::canceled("STOPPED")),
        _ => Ok(HashMap::from([("epoch".to_owned(), context.epoch())])),
    }
}

async fn unserialisable(_: Context, _: serde_json::Value) -> Result<HashMap<(u8, u8), u8>, Failure> {
    Ok(HashMap::from([((1, 2), 3)]))
}

/// Gives the payload back, as the text it is.
async fn echo(_: Context, payload: String) -> Result<String, Failure> {
    Ok(payload)
}

async fn not_json(_: Context, _: String) -> Result<String, Failure> {
    Ok("{".to_owned())
}

async fn reported(handler: &str, payload: &str) -> Finish {
    let mut server = FakeServer::start();
    let worker = server
        .worker()
        .handler("moody", "v1", moody)
        .handler("double", "v1", double)
        .handler("unserialisable", "v1", unserialisable)
        .raw_handler("echo", "v1", echo)
        .raw_handler("not_json", "v1", not_json)
        .build()
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = worker.run_until(async move { drop(stopped.await) });
    let play = async {
        let mut session = server.session().await;
        session.run("a", handler, payload).await;
        let finish = session.finish().await;
        session.accept(&finish.message_id, Disposition::Applied, LOST).await;
        drop(stop);
        assert_eq!(session.frame().await, Some(Message::Drain(Drain {})));
        finish
    };
    let (report, finish) = tokio::join!(worker, play);
    let report = report.unwrap();
    assert_eq!((report.drained, report.started, report.confirmed), (true, 1, 1));
    finish
}

fn code(finish: &Finish) -> &str {
    finish.error.as_ref().map_or("", |error| &error.code)
}

#[tokio::test]
async fn a_value_is_reported_succeeded() {
    let finish = reported("moody", "\"good\"").await;
    assert_eq!(
        (finish.outcome(), finish.result.as_str(), finish.error),
        (Outcome::Succeeded, r#"{"epoch":1}"#, None)
    );
}

#[tokio::test]
async fn only_explicit_failures_are_reported_failed() {
    let finish = reported("moody", "\"retryable\"").await;
    assert_eq!((finish.outcome(), finish.retryable, code(&finish)), (Outcome::Failed, true, "BUSY"));
    let error = finish.error.unwrap();
    assert_eq!((error.message.as_str(), error.details.as_str()), ("later", "[1,2]"));

    let finish = reported("moody", "\"permanent\"").await;
    assert_eq!(
        (finish.outcome(), finish.retryable, code(&finish)),
        (Outcome::Failed, false, "NO_SUCH_ACCOUNT")
    );
}

#[tokio::test]
async fn any_other_error_is_reported_unknown() {
    let finish = reported("moody", "\"error\"").await;
    assert_eq!(
        (finish.outcome(), finish.retryable, code(&finish)),
        (Outcome::Unknown, false, "HANDLER_ERROR")
    );
}

#[tokio::test]
async fn a_panic_is_reported_unknown() {
    let finish = reported("moody", "\"panic\"").await;
    assert_eq!(
        (finish.outcome(), finish.retryable, code(&finish)),
        (Outcome::Unknown, false, "HANDLER_PANICKED")
    );
    assert_eq!(finish.error.unwrap().message, "the handler panicked: out of luck at task-a");
}

#[tokio::test]
async fn a_result_that_cannot_be_reported_is_reported_unknown() {
    for (handler, payload) in [("moody", "\"large\""), ("unserialisable", "1"), ("not_json", "")] {
        let finish = reported(handler, payload).await;
        assert_eq!(
            (finish.outcome(), finish.retryable, code(&finish)),
            (Outcome::Unknown, false, "RESULT_INVALID")
        );
    }
}

#[tokio::test]
async fn a_payload_of_another_type_is_a_permanent_failure() {
    let finish = reported("double", "\"two\"").await;
    assert_eq!(
        (finish.outcome(), finish.retryable, code(&finish)),
        (Outcome::Failed, false, "PAYLOAD_INVALID")
    );
}

#[tokio::test]
async fn a_raw_handler_sees_and_gives_json_text_byte_for_byte() {
    let text = r#"{"n":9007199254740993,"e":1E2,"d":0.10,"d":1}"#;
    assert_eq!(reported("echo", text).await.result, text);
    assert_eq!(reported("echo", "").await.result, "null");
}

#[tokio::test]
async fn stopping_for_a_cancel_is_reported_canceled() {
    assert_eq!(reported("moody", "\"canceled\"").await.outcome(), Outcome::Canceled);
}

#[test]
fn an_aborted_handler_is_reported_unknown() {
    let handlers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut server = FakeServer::start();
    let gate = Gate::default();
    let entered = handlers.enter();
    let _worker = server.worker().handler("gate", "v1", gate.handler()).build().unwrap().start().unwrap();
    drop(entered);
    let tests = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tests.block_on(async {
        let mut session = server.session().await;
        session.run("a", "gate", "null").await;
        gate.called().await;
        handlers.shutdown_background();
        let finish = session.finish().await;
        assert_eq!((finish.outcome(), code(&finish)), (Outcome::Unknown, "HANDLER_ABORTED"));
    });
}

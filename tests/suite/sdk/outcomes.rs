//! The table of outcomes of docs/workers.md: what a handler returns, and what becomes of its task.

use std::time::Duration;

use orbit::{
    proto::{AttemptState, Decision, RecoverySafety, Task, TaskState},
    sdk::{Client, Context, Failure},
};

use super::{LIMIT, attempts, counts, drained, end, start, worker};
use crate::support::{
    database::TestDatabase,
    on_every_database,
    rig::{HANDLER, QUEUE},
    server::Server,
};

/// What the handler does at each attempt.
type Script = &'static [&'static str];

/// Does at each attempt what its payload says.
async fn scripted(context: Context, script: Vec<String>) -> Result<serde_json::Value, Failure> {
    let step = usize::try_from(context.attempt_number()).expect("small") - 1;
    match script[step].as_str() {
        "value" => Ok(context.attempt_number().into()),
        "large" => Ok("x".repeat(2 * 1024 * 1024).into()),
        "retryable" => Err(Failure::retryable("BUSY").message("not now").details(&[step])),
        "permanent" => Err(Failure::permanent("NO_FUNDS")),
        "canceled" => Err(Failure::canceled("STOPPED")),
        "unknown" => Err(Failure::unknown("TIMED_OUT")),
        "error" => Err("the connection broke".into()),
        "panic" => panic!("at step {step}"),
        other => panic!("no step {other}"),
    }
}

/// An attempt as its history shows it: state, retryable, error code, decision.
type Line = (AttemptState, bool, String, Decision);

fn line(state: AttemptState, retryable: bool, code: &str, decision: Decision) -> Line {
    (state, retryable, code.to_owned(), decision)
}

fn succeeded() -> Line {
    line(AttemptState::Succeeded, false, "", Decision::Succeeded)
}

fn retried() -> Line {
    line(AttemptState::Failed, true, "BUSY", Decision::RetryableFailure)
}

fn unknown(code: &str, decision: Decision) -> Line {
    line(AttemptState::Unknown, false, code, decision)
}

/// Runs a task with so many attempts; what became of it, and its history.
async fn play(client: &Client, script: Script, safety: RecoverySafety, budget: u32) -> (Task, Vec<Line>) {
    let submit = client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(script).recovery_safety(safety);
    let submit = submit.max_attempts(budget).initial_delay(Duration::from_millis(20));
    let id = submit.send().await.expect("accepted").task.task_id;
    let task = client.wait(&id, LIMIT).await.expect("settled");
    let history = attempts(client, &id).await.into_iter().map(|attempt| {
        let code = attempt.error.as_ref().map(|error| error.code.clone()).unwrap_or_default();
        (attempt.state(), attempt.retryable, code, attempt.decision())
    });
    (task, history.collect())
}

/// One row of the table, on a server of its own.
async fn row(
    database: TestDatabase,
    script: Script,
    (safety, budget): (RecoverySafety, u32),
    (state, effect_uncertain): (TaskState, bool),
    expected: &[Line],
) {
    let server = Server::start(&database).await.with_queue().await;
    let client = server.client();
    let handlers = orbit::sdk::Worker::builder(&client).queue(QUEUE).handler(HANDLER.0, HANDLER.1, scripted);
    let worker = start(handlers);
    let (task, history) = play(&client, script, safety, budget).await;
    assert_eq!((task.state(), task.effect_uncertain), (state, effect_uncertain), "{task:?}");
    assert_eq!(history, expected);
    let runs = u64::try_from(expected.len()).expect("few");
    assert_eq!(counts(drained(worker).await), (runs, runs, 0));
    end(server, database).await;
}

use RecoverySafety::{Idempotent, ReconcileOnly};

on_every_database! {
    async fn an_explicit_failure_is_tried_again_and_succeeds(database: TestDatabase) {
        let history = [retried(), succeeded()];
        row(database, &["retryable", "value"], (ReconcileOnly, 3), (TaskState::Succeeded, false), &history).await;
    }

    async fn an_unknown_of_an_idempotent_task_is_tried_again_and_succeeds(database: TestDatabase) {
        let history = [unknown("HANDLER_ERROR", Decision::IdempotentUnknown), succeeded()];
        row(database, &["error", "value"], (Idempotent, 3), (TaskState::Succeeded, false), &history).await;
    }

    async fn an_unknown_by_default_needs_review(database: TestDatabase) {
        let history = [unknown("TIMED_OUT", Decision::ReconciliationRequired)];
        row(database, &["unknown"], (ReconcileOnly, 3), (TaskState::NeedsReview, true), &history).await;
    }

    async fn retryable_failures_end_with_the_budget(database: TestDatabase) {
        let last = line(AttemptState::Failed, true, "BUSY", Decision::AttemptLimit);
        let history = [retried(), retried(), last];
        row(database, &["retryable"; 3], (ReconcileOnly, 3), (TaskState::Failed, false), &history).await;
    }

    async fn a_permanent_failure_is_not_tried_again(database: TestDatabase) {
        let history = [line(AttemptState::Failed, false, "NO_FUNDS", Decision::NonRetryableFailure)];
        row(database, &["permanent"], (Idempotent, 3), (TaskState::Failed, false), &history).await;
    }

    async fn a_permanent_failure_after_a_doubt_needs_review(database: TestDatabase) {
        let first = unknown("HANDLER_ERROR", Decision::IdempotentUnknown);
        let history = [first, line(AttemptState::Failed, false, "NO_FUNDS", Decision::NonRetryableFailure)];
        row(database, &["error", "permanent"], (Idempotent, 3), (TaskState::NeedsReview, true), &history).await;
    }

    async fn a_panic_is_unknown_and_the_worker_goes_on(database: TestDatabase) {
        let history = [unknown("HANDLER_PANICKED", Decision::IdempotentUnknown), succeeded()];
        row(database, &["panic", "value"], (Idempotent, 3), (TaskState::Succeeded, false), &history).await;
    }

    async fn a_result_that_is_too_large_is_unknown(database: TestDatabase) {
        let history = [unknown("RESULT_INVALID", Decision::ReconciliationRequired)];
        row(database, &["large"], (ReconcileOnly, 3), (TaskState::NeedsReview, true), &history).await;
    }

    // The worker's own limit is higher than the server's: the refusal is final for that result, and the effect happened.
    async fn a_result_that_the_server_refuses_is_reported_unknown_instead(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let large = |_, (): ()| async { Ok::<_, Failure>("x".repeat(2 * 1024 * 1024)) };
        let handlers = orbit::sdk::Worker::builder(&client).queue(QUEUE).handler(HANDLER.0, HANDLER.1, large);
        let worker = start(handlers.result_bytes_max(8 * 1024 * 1024));
        let id = super::submit(&client, &()).await;
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
        let history = attempts(&client, &id).await;
        assert_eq!(history.len(), 1);
        assert_eq!(history[0].error.as_ref().map(|error| error.code.as_str()), Some("PAYLOAD_TOO_LARGE"));
        assert_eq!(counts(drained(worker).await), (1, 1, 0));
        end(server, database).await;
    }

    async fn canceled_without_a_cancel_is_unknown(database: TestDatabase) {
        let history = [unknown("CANCEL_NOT_REQUESTED", Decision::ReconciliationRequired)];
        row(database, &["canceled"], (ReconcileOnly, 3), (TaskState::NeedsReview, true), &history).await;
    }

    async fn a_payload_of_another_type_fails_before_anything_runs(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let worker = start(worker(&client, |_: Context, number: u32| async move { Ok(number) }));
        let id = super::submit(&client, &"no number").await;
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::Failed, false));
        assert_eq!(task.error.expect("an error").code, "PAYLOAD_INVALID");
        assert_eq!(counts(drained(worker).await), (1, 1, 0));
        end(server, database).await;
    }

    // Canceled while it runs: the handler hears of it and says that nothing more will happen.
    async fn a_handler_that_stops_for_a_cancel_leaves_a_canceled_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let obedient = |context: Context, (): ()| async move {
            context.cancelled().await;
            Err(Failure::canceled("STOPPED"))
        };
        let worker = start(worker(&client, obedient));
        let id = super::submit(&client, &()).await;
        super::until(&client, &id, "it runs", |task| task.state() == TaskState::Running).await;
        client.cancel(&id, "not wanted").await.expect("recorded");
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::Canceled, false));
        assert_eq!(counts(drained(worker).await), (1, 1, 0));
        end(server, database).await;
    }

    // The token is cancelled at the attempt's timeout; what the handler then says is too late to count.
    async fn a_handler_that_passes_its_timeout_is_told_and_its_result_is_evidence(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let slow = |context: Context, (): ()| async move {
            context.cancelled().await;
            assert_eq!(context.cancel_reason(), Some(orbit::sdk::CancelReason::TimedOut));
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(7)
        };
        let worker = start(worker(&client, slow));
        let submit = client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(&());
        let submitted = submit.attempt_timeout(Duration::from_millis(500)).send().await.expect("accepted");
        let id = submitted.task.task_id;
        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
        assert_eq!(counts(drained(worker).await), (1, 1, 1));
        let history = attempts(&client, &id).await;
        assert_eq!((history.len(), history[0].evidence.len()), (1, 1));
        assert_eq!(history[0].evidence[0].result, "7");
        let task = client.get(&id).await.expect("the task");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
        end(server, database).await;
    }
}

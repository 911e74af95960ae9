//! The main job, end to end: a task fails once in a way that is safe to retry, waits out its backoff in the database,
//! runs again and succeeds.
//!
//! ```sh
//! cargo run --example retry -- --embedded               # starts a server of its own
//! cargo run --example retry -- http://127.0.0.1:7070
//! ```
//!
//! It survives the server's death and return: everything it does may be sent again. Two lines go to standard output,
//! everything else to standard error; the exit code is not 0 when anything is not as promised.

mod support;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use orbit::{
    proto::{Attempt, AttemptState, Task, TaskState},
    sdk::{Client, Context, Failure, Worker, shutdown_signal},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use support::Outcome;

/// How long everything may take, an absence of the server included.
const LIMIT: Duration = Duration::from_mins(1);
const INITIAL_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(2);

#[derive(Deserialize, Serialize)]
struct Text {
    text: String,
}

/// The first attempt refuses before it does anything: that, and only that, makes the failure safe to retry.
async fn normalize(context: Context, input: Text) -> Result<Text, Failure> {
    eprintln!(
        "attempt {} of {} of task {}",
        context.attempt_number(),
        context.max_attempts(),
        context.task_id()
    );
    if context.attempt_number() == 1 {
        return Err(Failure::retryable("TEMPORARY_REJECTION").message("not now"));
    }
    Ok(Text { text: input.text.trim().to_uppercase() })
}

#[tokio::main]
async fn main() -> ExitCode {
    support::run(async |url| {
        let late = |_| format!("not done within {} s", LIMIT.as_secs());
        tokio::time::timeout(LIMIT, retry(url)).await.map_err(late)?
    })
    .await
}

/// Submits the task, runs a worker until it is settled, and checks what the server says of it.
async fn retry(url: &str) -> Outcome<()> {
    // As patient as the whole example, so that a restart of the server is no error.
    let client = Client::builder().url(url).call_timeout(LIMIT).build()?;
    // A queue of its own, so that no other worker of this handler takes the task.
    let queue = format!("retry-{}", Uuid::new_v4());
    client.create_queue(&queue, 0).await?;

    let worker = Worker::builder(&client)
        .queue(&queue)
        .handler("text.normalize", "v1", normalize)
        .name("retry-example")
        .build()?
        .start()?;

    let submitted = client
        .submit(&queue, "text.normalize", "v1")
        .idempotency_key(&queue)
        .payload_json(r#"{"text":"  safe retry  "}"#)
        .max_attempts(3)
        .initial_delay(INITIAL_DELAY)
        .max_delay(MAX_DELAY)
        .attempt_timeout(Duration::from_secs(10))
        .task_timeout(LIMIT)
        .send()
        .await?;
    eprintln!("submitted task {} to queue {queue}", submitted.task.task_id);

    let task = tokio::select! {
        task = client.wait(&submitted.task.task_id, LIMIT) => task?,
        () = shutdown_signal()? => {
            let report = worker.drain(LIMIT).await?;
            return Err(format!("told to stop; the worker drained: {report:?}").into());
        }
    };
    let attempts = client.attempts(&task.task_id).await?;
    let first_retryable = check(&task, &attempts)?;
    println!(
        "task={} state={} attempts={} first_retryable={first_retryable} result={}",
        task.task_id,
        task.state().as_str_name().trim_start_matches("TASK_STATE_"),
        attempts.len(),
        task.result
    );

    let report = worker.drain(LIMIT).await?;
    println!(
        "worker_drained={} started={} confirmed={} running={}",
        report.drained, report.started, report.confirmed, report.running
    );
    if (report.drained, report.started, report.confirmed, report.running) != (true, 2, 2, 0) {
        return Err(format!("the worker did not end as expected: {report:?}").into());
    }
    Ok(())
}

/// Compares the history with the promise; returns whether the first attempt was reported retryable.
fn check(task: &Task, attempts: &[Attempt]) -> Outcome<bool> {
    let [first, second] = attempts else {
        return Err(format!("2 attempts were expected, not {}", attempts.len()).into());
    };
    let states = (first.state(), second.state(), task.state());
    if states != (AttemptState::Failed, AttemptState::Succeeded, TaskState::Succeeded) {
        return Err(format!("unexpected states {states:?}").into());
    }
    if !first.retryable || first.error.as_ref().is_none_or(|error| error.code != "TEMPORARY_REJECTION") {
        return Err(format!("the first attempt did not end as expected: {first:?}").into());
    }
    if task.result != r#"{"text":"SAFE RETRY"}"# {
        return Err(format!("unexpected result {}", task.result).into());
    }
    // By the database's clock, however long the server was away.
    let ended = SystemTime::try_from(first.ended_at.ok_or("the first attempt has no end")?)?;
    let claimed = SystemTime::try_from(second.leased_at.ok_or("the second attempt has no claim")?)?;
    let waited = claimed.duration_since(ended).unwrap_or_default();
    eprintln!("the second attempt was claimed {} ms after the end of the first", waited.as_millis());
    if waited < INITIAL_DELAY / 2 {
        return Err(format!("the backoff was cut short: {} ms", waited.as_millis()).into());
    }
    Ok(first.retryable)
}

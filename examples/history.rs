//! What a task went through: a failure that was safe to retry, then a doubt, then a person's word. All of it is kept.
//!
//! ```sh
//! cargo run --example history -- --embedded
//! cargo run --example history -- http://127.0.0.1:7070
//! ```

mod support;

use std::{process::ExitCode, time::Duration};

use orbit::{
    proto::{
        Attempt, ResolveSucceeded, ResolveTaskRequest, TaskEvent, TaskState, resolve_task_request::Outcome,
    },
    sdk::{Client, Context, Failure, Worker},
};
use uuid::Uuid;

const LIMIT: Duration = Duration::from_mins(1);

/// First refuses, then loses the connection in the middle.
async fn charge(context: Context, (): ()) -> Result<(), Failure> {
    if context.attempt_number() == 1 {
        // Before anything was done.
        return Err(Failure::retryable("BANK_BUSY").message("please call again"));
    }
    // Whether the bank has booked, nobody here knows.
    Err("the connection to the bank broke".into())
}

#[tokio::main]
async fn main() -> ExitCode {
    support::run(history).await
}

async fn history(url: &str) -> support::Outcome<()> {
    let client = Client::builder().url(url).call_timeout(Duration::from_secs(30)).build()?;
    let queue = format!("history-{}", Uuid::new_v4());
    client.create_queue(&queue, 0).await?;
    let worker =
        Worker::builder(&client).queue(&queue).handler("bank.charge", "v1", charge).build()?.start()?;
    let submit = client.submit(&queue, "bank.charge", "v1").payload(&());
    let submitted = submit.max_attempts(5).initial_delay(Duration::from_millis(50)).send().await?;
    let task_id = &submitted.task.task_id;
    let task = client.wait(task_id, LIMIT).await?;
    if task.state() != TaskState::NeedsReview {
        return Err(format!("a doubt was expected, not {task:?}").into());
    }

    // A person has looked at the bank's books: it was booked.
    let resolved = client
        .resolve(ResolveTaskRequest {
            task_id: task_id.clone(),
            expected_revision: task.revision,
            effect_verified: true,
            outcome: Some(Outcome::Succeeded(ResolveSucceeded { result: r#""booked""#.to_owned() })),
            reason: "found in the bank's books".to_owned(),
            ..ResolveTaskRequest::default()
        })
        .await?;

    for attempt in client.attempts(task_id).await? {
        println!("{}", line_of_attempt(&attempt));
    }
    for event in client.events(task_id).await? {
        println!("{}", line_of_event(&event));
    }
    let task = resolved.task;
    println!(
        "task={task_id} state={} attempts={} effect_uncertain={}",
        short(task.state().as_str_name(), "TASK_STATE_"),
        task.attempt_count,
        task.effect_uncertain
    );
    worker.drain(LIMIT).await?;
    Ok(())
}

fn line_of_attempt(attempt: &Attempt) -> String {
    let error = attempt.error.as_ref();
    format!(
        "attempt {} {} retryable={} error={} decision={}",
        attempt.number,
        short(attempt.state().as_str_name(), "ATTEMPT_STATE_"),
        attempt.retryable,
        error.map_or("-", |error| &error.code),
        short(attempt.decision().as_str_name(), "DECISION_")
    )
}

fn line_of_event(event: &TaskEvent) -> String {
    format!(
        "event {} {} state={} cause={}",
        event.revision,
        event.r#type,
        short(event.task_state().as_str_name(), "TASK_STATE_"),
        short(event.cause().as_str_name(), "CAUSE_")
    )
}

/// A value of an enum without its prefix.
fn short<'a>(name: &'a str, prefix: &str) -> &'a str {
    name.trim_start_matches(prefix)
}

//! A producer: submits, loses the answer and submits again, looks, waits and takes back.
//!
//! ```sh
//! cargo run --example tasks -- --embedded
//! cargo run --example tasks -- http://127.0.0.1:7070
//! ```
//!
//! Nobody runs these tasks: the example is about everything that a producer does without a worker.

mod support;

use std::{process::ExitCode, time::Duration};

use orbit::{
    proto::{RecoverySafety, Task},
    sdk::{Client, ErrorKind},
};
use serde::Serialize;
use uuid::Uuid;

use support::Outcome;

#[derive(Serialize)]
struct Invoice {
    number: u32,
    cents: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    support::run(tasks).await
}

async fn tasks(url: &str) -> Outcome<()> {
    let client = Client::builder().url(url).call_timeout(Duration::from_secs(30)).build()?;
    let queue = format!("invoices-{}", Uuid::new_v4());
    client.create_queue(&queue, 10).await?;

    // The key names the operation, not the try: whoever submits it again means the same task.
    let key = format!("{queue}/4711/send");
    let submit = client
        .submit(&queue, "invoice.send", "v1")
        .idempotency_key(&key)
        .payload(&Invoice { number: 4711, cents: 12_900 })
        .max_attempts(5)
        .recovery_safety(RecoverySafety::ReconcileOnly)
        .task_timeout(Duration::from_hours(12));
    let first = submit.send().await?;
    println!("submitted task={} replayed={}", first.task.task_id, first.replayed);

    // As after an answer that was lost, or a crash right behind it.
    let second = submit.send().await?;
    println!("again task={} replayed={}", second.task.task_id, second.replayed);

    // Other content under the same key is a mistake of the producer, and is told so.
    let other = client.submit(&queue, "invoice.send", "v1").idempotency_key(&key);
    match other.payload(&Invoice { number: 4711, cents: 1 }).send().await {
        Err(error) if error.kind() == ErrorKind::Server => {
            println!("conflict reason={}", error.reason().unwrap_or("none"));
        }
        other => return Err(format!("a conflict was expected, not {other:?}").into()),
    }

    // The key is enough to find the task.
    let found = client.lookup(&key).await?;
    println!("lookup task={} state={}", found.task_id, state(&found));

    // Nobody runs it, so it is not settled in time; that says nothing about the task.
    match client.wait(&found.task_id, Duration::from_millis(200)).await {
        Err(error) if error.kind() == ErrorKind::Timeout => println!("wait timeout=true"),
        other => return Err(format!("a time-out was expected, not {other:?}").into()),
    }

    let canceled = client.cancel(&found.task_id, "the customer withdrew").await?;
    println!("canceled state={}", state(&canceled.task));
    let task = client.get(&found.task_id).await?;
    println!("payload {}", task.payload);
    Ok(())
}

fn state(task: &Task) -> &'static str {
    task.state().as_str_name().trim_start_matches("TASK_STATE_")
}

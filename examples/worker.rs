//! A worker as a process: takes work of the queue `default` until it is told to stop, then drains.
//!
//! ```sh
//! cargo run -- dev --ephemeral                          # in one terminal
//! cargo run --example worker                            # in another
//! cargo run -- task submit --handler text.normalize --payload '{"text":"  hello  "}'
//! cargo run -- task submit --handler demo.sleep --payload '{"ms":5000}'
//! ```
//!
//! SIGTERM or Ctrl-C begins the drain: no more work is taken, what runs may end, every result is confirmed. One line on
//! standard output says how that went; the exit code is 0 when nothing was left.

mod support;

use std::{process::ExitCode, time::Duration};

use orbit::sdk::{CancelReason, Client, Context, Failure, Worker, shutdown_signal};
use serde::{Deserialize, Serialize};

use support::Outcome;

/// Less than the time that a supervisor gives a process between SIGTERM and SIGKILL.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

#[derive(Deserialize, Serialize)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
struct Sleep {
    ms: u64,
}

/// Does something that can be done in one go.
async fn normalize(_: Context, input: Text) -> Result<Text, Failure> {
    if input.text.trim().is_empty() {
        // Nothing happened, and nothing will.
        return Err(Failure::permanent("EMPTY_TEXT").message("there is nothing to normalize"));
    }
    Ok(Text { text: input.text.trim().to_uppercase() })
}

/// Does something that takes long, and can be stopped.
async fn sleep(context: Context, input: Sleep) -> Result<&'static str, Failure> {
    eprintln!("task {} sleeps, attempt {}", context.task_id(), context.attempt_number());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(input.ms)) => Ok("slept well"),
        () = context.cancelled() => match context.cancel_reason() {
            // Somebody took the task back. Stopped, and nothing more will happen.
            Some(CancelReason::Requested) => Err(Failure::canceled("WOKEN")),
            // The lease is lost, or the time is over: it is for Orbit to judge.
            _ => Err(Failure::unknown("INTERRUPTED").message("the sleep was cut short")),
        },
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    support::run(work).await
}

async fn work(url: &str) -> Outcome<()> {
    let client = Client::connect(url)?;
    // From here on a signal drains, and no longer kills.
    let shutdown = shutdown_signal()?;
    let worker = Worker::builder(&client)
        .queue("default")
        .handler("text.normalize", "v1", normalize)
        .handler("demo.sleep", "v1", sleep)
        .slots(20)
        .name("worker-example")
        .drain_limit(DRAIN_LIMIT)
        .build()?;
    eprintln!("working; SIGTERM or Ctrl-C drains");
    let report = worker.run_until(shutdown).await?;
    println!(
        "worker_drained={} started={} confirmed={} running={} evidence={}",
        report.drained, report.started, report.confirmed, report.running, report.evidence
    );
    if report.drained { Ok(()) } else { Err(format!("the drain left something behind: {report:?}").into()) }
}

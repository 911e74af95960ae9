//! `orbit task resubmit`.

use std::process::ExitCode;

use clap::Args;
use orbit::{
    proto::{SubmitTaskRequest, TaskState},
    sdk::Submitted,
};

use super::{
    super::{client::ClientArgs, failure::Failure, value::Name as _},
    submit,
};

const AFTER: &str = "\
The new task has its own id, events and budget, and the queue, handler, versions, payload, retry policy, \
recovery safety and time of the old one; not its not_before and start_before, which lie in the past. \
The old one stays as it is. Sending the same again with the same --key returns the task that was made first. \
A task that SUCCEEDED, or needs review, is never submitted again: see `orbit task resolve`.

Exit codes: 0 submitted, 1 failed or refused, 2 wrong usage.

Example:
  orbit task resubmit 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --key invoice-4711/send/2";

/// Make a new task from one that FAILED or was CANCELED
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct ResubmitArgs {
    /// The old task's id, a UUID
    #[arg(value_name = "TASK_ID")]
    task: String,

    /// The new task's idempotency key: another than the old one's, 1 to 255 visible ASCII characters
    #[arg(long)]
    key: String,

    #[command(flatten)]
    client: ClientArgs,
}

/// Submits the old task's content under the new key.
pub(super) async fn run(args: ResubmitArgs) -> Result<ExitCode, Failure> {
    let ResubmitArgs { task, key, client } = args;
    let orbit = client.connect()?;
    let old = orbit.get(&task).await.map_err(|error| client.failure(&error))?;
    let state = old.state();
    if !matches!(state, TaskState::Failed | TaskState::Canceled) {
        let hint = if state == TaskState::NeedsReview { ": resolve it (`orbit review`)" } else { "" };
        let (id, state) = (old.task_id, state.name());
        return Err(Failure::new(format!(
            "task {id} is {state}{hint}; only what FAILED or was CANCELED is submitted again"
        )));
    }
    if key == old.idempotency_key {
        return Err(Failure::new("--key is the old task's: a new task needs another"));
    }
    let request = SubmitTaskRequest {
        queue_id: old.queue_id,
        idempotency_key: key,
        handler: old.handler,
        handler_version: old.handler_version,
        payload_version: old.payload_version,
        payload: old.payload,
        retry: old.retry,
        recovery_safety: old.recovery_safety,
        task_timeout_ms: Some(old.task_timeout_ms),
        not_before: None,
        start_before: None,
    };
    let submitted: Submitted =
        orbit.submit_request(request).send().await.map_err(|error| client.failure(&error))?;
    submit::show_submitted(&submitted, client.json)
}

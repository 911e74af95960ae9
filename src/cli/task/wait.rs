//! `orbit task wait`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use orbit::{
    proto::{Task, TaskState},
    sdk::ErrorKind,
};

use super::{
    super::{
        client::{ClientArgs, ServerArgs},
        failure::Failure,
        print,
    },
    show,
};

/// The exit code for a task to which more will happen.
pub(super) const ON_ITS_WAY: u8 = 6;

/// How long one call may take, in milliseconds; the wait is made of as many as it needs.
const CALL_TIMEOUT_MS: u32 = 10_000;

const AFTER: &str = "\
Exit codes: 0 SUCCEEDED, 4 FAILED or CANCELED, 5 NEEDS_REVIEW, 6 still on its way when the time was over;
1 the server did not answer or refused, 2 wrong usage.

Example:
  orbit task wait 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --timeout-ms 60000";

/// Wait until a task has ended or needs review, and show it
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct WaitArgs {
    /// The task's id, a UUID
    #[arg(value_name = "TASK_ID")]
    task: String,

    /// How long to wait, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30_000)]
    timeout_ms: u32,

    #[command(flatten)]
    server: ServerArgs,

    /// Answer with JSON, for scripts
    #[arg(long)]
    json: bool,
}

/// Waits.
pub(super) async fn run(args: WaitArgs) -> Result<ExitCode, Failure> {
    let client = ClientArgs { server: args.server, timeout_ms: CALL_TIMEOUT_MS, json: args.json };
    let orbit = client.connect()?;
    let limit = Duration::from_millis(args.timeout_ms.into());
    let task = match orbit.wait(&args.task, limit).await {
        // Either it is still on its way, or nobody answered: a look tells which.
        Err(error) if error.kind() == ErrorKind::Timeout => orbit.get(&args.task).await,
        waited => waited,
    };
    let task = task.map_err(|error| client.failure(&error))?;
    print(&if client.json { show::task_json(&task).print() } else { show::task_text(&task) })?;
    Ok(exit_code(&task))
}

/// Whether nothing more happens to the task by itself.
pub(super) fn is_settled(task: &Task) -> bool {
    match task.state() {
        TaskState::Succeeded | TaskState::Failed | TaskState::Canceled | TaskState::NeedsReview => true,
        TaskState::Waiting | TaskState::Leased | TaskState::Running | TaskState::Unspecified => false,
    }
}

/// By the task's state.
pub(super) fn exit_code(task: &Task) -> ExitCode {
    match task.state() {
        TaskState::Succeeded => ExitCode::SUCCESS,
        TaskState::Failed | TaskState::Canceled => ExitCode::from(4),
        TaskState::NeedsReview => ExitCode::from(5),
        TaskState::Waiting | TaskState::Leased | TaskState::Running | TaskState::Unspecified => {
            ExitCode::from(ON_ITS_WAY)
        }
    }
}

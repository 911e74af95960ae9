//! `orbit task watch`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use orbit::{
    proto::{Task, TaskEvent, TaskView},
    sdk::{Client, Error, ErrorKind},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{client::ClientArgs, failure::Failure, json::Json, signals::until_told_to_stop, write_out},
    events, wait,
};

/// How long to wait for the task's end before its events are looked at again.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

const AFTER: &str = "\
With --json each event is one JSON object on its line. Ctrl-C ends the watch, not the task.

Exit codes: 0 SUCCEEDED, 4 FAILED or CANCELED, 5 NEEDS_REVIEW, 6 still on its way when Ctrl-C ended the watch; \
1 the server did not answer or refused, 2 wrong usage.

Example:
  orbit task watch 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12";

/// Show the changes of a task as they happen, until it has ended or needs review
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct WatchArgs {
    /// The task's id, a UUID
    #[arg(value_name = "TASK_ID")]
    task: String,

    #[command(flatten)]
    client: ClientArgs,
}

/// Watches.
pub(super) async fn run(args: WatchArgs) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    until_told_to_stop(stop.clone(), watch(args, stop)).await
}

async fn watch(args: WatchArgs, stop: CancellationToken) -> Result<ExitCode, Failure> {
    let WatchArgs { task, client } = args;
    let orbit = client.connect()?;
    let mut seen = 0;
    loop {
        let looked = tokio::select! {
            looked = look(&orbit, &task, seen > 0) => looked,
            () = stop.cancelled() => return Ok(ExitCode::from(wait::ON_ITS_WAY)),
        };
        let (now, all) = looked.map_err(|error| client.failure(&error))?;
        let new = all.get(seen..).unwrap_or_default();
        seen = all.len();
        let text: String = new.iter().map(|event| told(event, client.json)).collect();
        let heard = text.is_empty() || write_out(&text)?;
        if !heard || wait::is_settled(&now) {
            return Ok(wait::exit_code(&now));
        }
    }
}

/// The task, when it has settled or a while has passed, and its events until then at least.
async fn look(orbit: &Client, task: &str, wait: bool) -> Result<(Task, Vec<TaskEvent>), Error> {
    if wait {
        match orbit.wait(task, LOOK_INTERVAL).await {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    // First the task: what has settled it is among the events that are read then.
    let now = orbit.get_view(task, TaskView::Basic).await?;
    Ok((now, orbit.events(task).await?))
}

fn told(event: &TaskEvent, json: bool) -> String {
    if json {
        let line: Json = events::event_json(event);
        return line.line();
    }
    events::event_line(event)
}

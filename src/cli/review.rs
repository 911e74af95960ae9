//! `orbit review`: what waits for a person, and the way through it.

mod dialog;

use std::{
    io::{IsTerminal as _, stdin, stdout},
    process::ExitCode,
};

use clap::Args;
use orbit::{
    proto::{ListTasksRequest, Task, TaskState},
    sdk::Client,
};
use tokio_util::sync::CancellationToken;

use super::{
    client::ClientArgs,
    failure::Failure,
    print,
    signals::until_told_to_stop,
    task::{
        events::explanation,
        list::{Pages, tasks_table},
        show,
    },
    value::Name as _,
    write_out,
};
use dialog::{Dialog, resolution};

const AFTER: &str = "\
On a terminal it goes from task to task, shows what is known, and asks what you found out at the resource. \
Nothing is sent before you have said yes at the end; a task that somebody else changed meanwhile is left alone. \
Elsewhere it lists, with --json one JSON object a line; `orbit task resolve` is the command for scripts. \
Ctrl-C ends it: what was resolved until then stays resolved.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C.

Examples:
  orbit review
  orbit review --queue mail --json | jq -r .task_id";

/// Show the tasks that need review, and resolve them one after the other
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct ReviewArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    queue: String,

    /// Ask, although input or output is no terminal
    #[arg(long, conflicts_with = "json")]
    interactive: bool,

    #[command(flatten)]
    client: ClientArgs,
}

/// Lists, or walks through.
pub(crate) async fn run(args: ReviewArgs) -> Result<ExitCode, Failure> {
    let orbit = args.client.connect()?;
    let tasks = in_review(&orbit, &args).await?;
    let asks = args.interactive || (stdin().is_terminal() && stdout().is_terminal());
    if args.client.json {
        let lines: String = tasks.iter().map(|task| show::basic_task_json(task).line()).collect();
        print(&lines)
    } else if tasks.is_empty() {
        print("nothing needs review\n")
    } else if asks {
        let stop = CancellationToken::new();
        until_told_to_stop(stop.clone(), walk(&orbit, &args.client, &tasks, stop)).await
    } else {
        print(&tasks_table(&tasks))
    }
}

async fn in_review(orbit: &Client, args: &ReviewArgs) -> Result<Vec<Task>, Failure> {
    let filter = ListTasksRequest {
        queue_id: args.queue.clone(),
        states: vec![TaskState::NeedsReview.into()],
        ..ListTasksRequest::default()
    };
    let (mut tasks, mut pages) = (Vec::new(), Pages::new(orbit.clone(), filter));
    while let Some(page) = pages.next(u32::MAX, &args.client).await? {
        tasks.extend(page);
    }
    // Who has waited longest comes first.
    tasks.reverse();
    Ok(tasks)
}

/// How the walk goes on.
enum Next {
    Task,
    End,
}

async fn walk(
    orbit: &Client,
    client: &ClientArgs,
    tasks: &[Task],
    stop: CancellationToken,
) -> Result<ExitCode, Failure> {
    let mut dialog = Dialog::new(stop.clone());
    for (index, task) in tasks.iter().enumerate() {
        let heading = format!("\n{} of {} that need review\n\n", index + 1, tasks.len());
        if !write_out(&heading)? {
            return Ok(ExitCode::SUCCESS);
        }
        match review(orbit, client, &task.task_id, &mut dialog).await? {
            Next::Task => {}
            Next::End => break,
        }
    }
    if stop.is_cancelled() {
        print("\nended: what was resolved stays resolved, the rest waits on\n")?;
        return Ok(ExitCode::from(130));
    }
    print("done\n")
}

/// Shows one task, asks, resolves.
async fn review(
    orbit: &Client,
    client: &ClientArgs,
    task_id: &str,
    dialog: &mut Dialog,
) -> Result<Next, Failure> {
    let failure = |error: &orbit::sdk::Error| client.failure(error);
    let task = orbit.get(task_id).await.map_err(|error| failure(&error))?;
    if task.state() != TaskState::NeedsReview {
        print(&format!("task {task_id} is {} by now\n", task.state().name()))?;
        return Ok(Next::Task);
    }
    let events = orbit.events(task_id).await.map_err(|error| failure(&error))?;
    let attempts = orbit.attempts(task_id).await.map_err(|error| failure(&error))?;
    let queue = orbit.get_queue(&task.queue_id).await.map_err(|error| failure(&error))?;
    print(&format!(
        "{}\n{}\n{}\n",
        show::task_text(&task),
        show::attempts_table(&attempts),
        explanation(&task, &events, &queue.queue, &queue.stats, &queue.served_here)
    ))?;
    let Some(answer) = resolution(&task, dialog).await? else {
        return Ok(Next::End);
    };
    let Some(request) = answer else {
        return Ok(Next::Task);
    };
    // Told and not fatal: somebody else may have been quicker.
    match orbit.resolve(request).await {
        Ok(resolved) => {
            let receipt = resolved.receipt;
            print(&format!("resolved: {} at revision {}\n", receipt.task_state().name(), receipt.revision))?;
        }
        Err(error) => {
            print(&format!("not resolved: {}\n", failure(&error)))?;
        }
    }
    Ok(Next::Task)
}

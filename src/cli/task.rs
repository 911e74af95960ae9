//! `orbit task`: submitting tasks, looking at them, and what people do to them.

pub(super) mod events;
pub(super) mod list;
mod operate;
mod resubmit;
pub(super) mod show;
mod submit;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{client::ClientArgs, failure::Failure, json::Json, print};

const EXAMPLES: &str = "\
Examples:
  orbit task submit --handler text.normalize --payload '{\"text\":\"  hello  \"}'
  orbit task get 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12
  orbit task attempts 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --json
  orbit task explain 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12
  orbit task list --queue mail --state FAILED";

/// Submit tasks, look at them, cancel and resolve them
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TaskArgs {
    #[command(subcommand)]
    command: TaskCommand,
}

#[derive(Subcommand)]
enum TaskCommand {
    Submit(Box<submit::SubmitArgs>),
    /// Show a task as of now, with its payload and result
    ///
    /// With --json payload, result and error details are the JSON texts as they were sent, byte for byte.
    #[command(after_help = "Example:\n  orbit task get 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12")]
    Get {
        /// The task's id, a UUID
        #[arg(value_name = "TASK_ID")]
        task: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List the attempts of a task, oldest first
    ///
    /// With --json also the reports that had no authority (evidence), and results byte for byte.
    #[command(after_help = "Example:\n  orbit task attempts 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12")]
    Attempts {
        /// The task's id, a UUID
        #[arg(value_name = "TASK_ID")]
        task: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List every change of a task, oldest first
    #[command(after_help = "Example:\n  orbit task events 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12")]
    Events {
        /// The task's id, a UUID
        #[arg(value_name = "TASK_ID")]
        task: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Say in words why a task is where it is, what it waits for, what happens next
    #[command(after_help = "Example:\n  orbit task explain 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12")]
    Explain {
        /// The task's id, a UUID
        #[arg(value_name = "TASK_ID")]
        task: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    List(Box<list::ListArgs>),
    Wait(wait::WaitArgs),
    Watch(watch::WatchArgs),
    Resubmit(resubmit::ResubmitArgs),
    Cancel(operate::CancelArgs),
    Resolve(Box<operate::ResolveArgs>),
}

/// Does what is asked for.
pub(crate) async fn run(args: TaskArgs) -> Result<ExitCode, Failure> {
    match args.command {
        TaskCommand::Submit(args) => submit::run(*args).await,
        TaskCommand::Get { task, client } => {
            let task = client.connect()?.get(&task).await.map_err(|error| client.failure(&error))?;
            print(&if client.json { show::task_json(&task).print() } else { show::task_text(&task) })
        }
        TaskCommand::Attempts { task, client } => {
            let attempts = client.connect()?.attempts(&task).await.map_err(|error| client.failure(&error))?;
            print(&if client.json { show::attempts_json(&attempts) } else { show::attempts_table(&attempts) })
        }
        TaskCommand::Events { task, client } => {
            let events = client.connect()?.events(&task).await.map_err(|error| client.failure(&error))?;
            print(&if client.json { events::events_json(&events) } else { events::events_table(&events) })
        }
        TaskCommand::Explain { task, client } => {
            let orbit = client.connect()?;
            let events = orbit.events(&task).await.map_err(|error| client.failure(&error))?;
            let task = orbit.get(&task).await.map_err(|error| client.failure(&error))?;
            let queue = orbit.get_queue(&task.queue_id).await.map_err(|error| client.failure(&error))?;
            let words = events::explanation(&task, &events, &queue.queue, &queue.stats, &queue.served_here);
            print(&if client.json {
                Json::Object(vec![("explanation", words.trim_end().into())]).print()
            } else {
                words
            })
        }
        TaskCommand::List(args) => list::run(*args).await,
        TaskCommand::Watch(args) => watch::run(args).await,
        TaskCommand::Resubmit(args) => resubmit::run(args).await,
        TaskCommand::Wait(args) => wait::run(args).await,
        TaskCommand::Cancel(args) => operate::cancel(args).await,
        TaskCommand::Resolve(args) => operate::resolve(*args).await,
    }
}

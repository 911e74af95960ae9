//! `orbit task`: submitting tasks and looking at them.

mod show;
mod submit;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{client::ClientArgs, failure::Failure, print};

const EXAMPLES: &str = "\
Examples:
  orbit task submit --handler text.normalize --payload '{\"text\":\"  hello  \"}'
  orbit task get 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12
  orbit task attempts 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --json";

/// Submit tasks and look at them
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
}

/// Submits or shows.
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
    }
}

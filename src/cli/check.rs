//! `orbit check`: rows that contradict each other.

use std::process::ExitCode;

use clap::Args;
use orbit::server;

use super::{
    failure::Failure,
    file::ConfigFile,
    logging,
    options::{DatabaseArgs, LogArgs},
    print, settings,
};

/// Something is broken.
const BROKEN: u8 = 3;

/// Tasks named for each broken invariant.
const TASKS_MAX: u32 = 100;

const EXAMPLES: &str = "\
It reads every task, so on a large database it takes a while; it changes nothing and may run beside a server.

Example:
  orbit check --database-url sqlite:orbit.db

Exit codes: 0 all is well, 1 failed, 2 wrong usage, 3 rows contradict each other.";

/// Look for rows of the database that contradict each other
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// Checks, and tells of each invariant as it goes.
pub(crate) async fn run(args: CheckArgs) -> Result<ExitCode, Failure> {
    let file = ConfigFile::read(args.database.config.as_deref())?;
    let url = settings::database_url(args.database.database_url, file.database_url)?;
    logging::start(args.log.log.as_deref(), file.log.as_deref())?;
    let (mut code, mut printed) = (ExitCode::SUCCESS, Ok(ExitCode::SUCCESS));
    server::check(&url, TASKS_MAX, |invariant, broken| {
        let mut text = format!("{}  {invariant}\n", if broken.is_empty() { "ok    " } else { "BROKEN" });
        for task in broken {
            text.extend(["        task ", &task.task_id.to_string(), "\n"]);
            code = ExitCode::from(BROKEN);
        }
        if let Err(failure) = print(&text) {
            printed = Err(failure);
        }
    })
    .await?;
    printed?;
    Ok(code)
}

//! `orbit migrate`: the database's schema.

use std::process::ExitCode;

use clap::Args;
use orbit::server::{self, Migrated, SchemaStatus, StartError};

use super::{
    failure::Failure,
    file::ConfigFile,
    logging,
    options::{DatabaseArgs, LogArgs},
    print, settings,
};

/// With `--check`: there is something to do.
const PENDING: u8 = 3;

const EXAMPLES: &str = "\
Migrations only move forward. Running it from several nodes at once is safe, and so is running it again.

Examples:
  orbit migrate --database-url sqlite:orbit.db
  ORBIT_DATABASE_URL=mysql://orbit:secret@db:3306/orbit orbit migrate --check

Exit codes: 0 the schema is current (now), 1 failed or the schema is newer than this program, 2 wrong usage,
3 migrations are pending (only with --check).";

/// Create the database's schema or bring it up to date
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    /// Only tell whether migrations are pending, and change nothing
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    log: LogArgs,
}

/// Migrates, or tells whether that is due.
pub(crate) async fn run(args: MigrateArgs) -> Result<ExitCode, Failure> {
    let file = ConfigFile::read(args.database.config.as_deref())?;
    let url = settings::database_url(args.database.database_url, file.database_url)?;
    logging::start(args.log.log.as_deref(), file.log.as_deref())?;
    if !args.check {
        let Migrated { from, to } = server::migrate(&url).await?;
        return print(&if from == to {
            format!("the schema is current (step {to})\n")
        } else {
            format!("the schema was brought from step {from} to step {to}\n")
        });
    }
    match server::schema_status(&url).await? {
        SchemaStatus::Current { version } => print(&format!("the schema is current (step {version})\n")),
        SchemaStatus::Empty => pending("the database has no schema yet: run `orbit migrate`\n"),
        SchemaStatus::Older { applied, known } => pending(&format!(
            "{} migrations are pending (step {applied} of {known}): run `orbit migrate`\n",
            known.saturating_sub(applied)
        )),
        SchemaStatus::Newer { applied, known } => Err(StartError::SchemaNewer { applied, known }.into()),
    }
}

fn pending(text: &str) -> Result<ExitCode, Failure> {
    print(text)?;
    Ok(ExitCode::from(PENDING))
}

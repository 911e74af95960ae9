//! `orbit bench`: how fast Orbit is on a database.

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use orbit::bench::{self, BenchError, Options, Progress, Report};
use tokio_util::sync::CancellationToken;

use super::{failure::Failure, print, signals::until_told_to_stop};

const EXAMPLES: &str = "\
Server and load run in processes of their own, on a database made for the run and removed after it; an existing one is
never touched. On MySQL the user must be allowed to make databases.

Examples:
  orbit bench
  orbit bench lifecycle --database-url mysql://root:secret@127.0.0.1:3306 --json
  orbit bench ceiling

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped.";

/// Measure Orbit on a database, beside what the database can do by itself
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum, default_value_t = Mode::Lifecycle)]
    mode: Mode,

    /// Where to make the database: mysql://user:password@host:port or sqlite:DIRECTORY/ [default: a temporary SQLite file]
    #[arg(long, value_name = "URL", env = "ORBIT_BENCH_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,

    /// Print one flat JSON object
    #[arg(long)]
    json: bool,

    /// How long figures are taken
    #[arg(long, value_name = "S", default_value_t = 16.0)]
    seconds: f64,

    /// How long the load runs before
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    warm_up: f64,

    /// Turns of Orbit and ceiling
    #[arg(long, value_name = "N", default_value_t = 2)]
    rounds: u32,

    /// Worker streams
    #[arg(long, value_name = "N", default_value_t = 4)]
    workers: u32,

    /// Attempts that each worker takes at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    slots: u32,

    /// Submits under way at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    submitters: u32,

    /// Connections of all submitters, and of all workers
    #[arg(long, value_name = "N", default_value_t = 4)]
    connections: u32,

    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 300)]
    payload_bytes: usize,

    /// Submits a second [default: as many as can be]
    #[arg(long, value_name = "PER_S")]
    rate: Option<f64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Submit, dispatch, start and finish, each acknowledged after its commit
    Lifecycle,
    /// The same rows written straight, without Orbit
    Ceiling,
}

/// Measures.
pub(crate) async fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    let json = args.json;
    let options = Options {
        mode: match args.mode {
            Mode::Lifecycle => bench::Mode::Lifecycle,
            Mode::Ceiling => bench::Mode::Ceiling,
        },
        database_url: args.database_url,
        measured: Duration::from_secs_f64(args.seconds),
        warm_up: Duration::from_secs_f64(args.warm_up),
        rounds: args.rounds,
        workers: args.workers,
        slots: args.slots,
        submitters: args.submitters,
        payload_bytes: args.payload_bytes,
        rate: args.rate,
        connections: args.connections,
    };
    let bar = bar()?;
    let shown = bar.clone();
    let progress = Progress::new(Box::new(move |what, done| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1,000")]
        shown.set_position((done * 1_000.0) as u64);
        shown.set_message(what.to_owned());
    }));
    let cancel = CancellationToken::new();
    let measured = async { bench::run(&options, &progress, cancel.clone()).await.map_err(Failure::from) };
    let report = until_told_to_stop(cancel.clone(), measured).await;
    bar.finish_and_clear();
    match report? {
        Some(report) if json => print(&format!("{}\n", report.to_json())),
        Some(report) => print(&text(&report)),
        None => Err(Failure::interrupted()),
    }
}

/// One of the processes of a measurement, which its parent talks to.
pub(crate) async fn child(work: impl Future<Output = Result<(), BenchError>>) -> Result<ExitCode, Failure> {
    super::logging::start(Some("warn"), None)?;
    work.await.map_err(Failure::from).map(|()| ExitCode::SUCCESS)
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(error.to_string())
    }
}

fn bar() -> Result<ProgressBar, Failure> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}");
    Ok(ProgressBar::new(1_000).with_style(style.map_err(|error| Failure::new(error.to_string()))?))
}

fn text(report: &Report) -> String {
    let width = report.figures.iter().map(|figure| figure.label.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for figure in &report.figures {
        let value = figure.value.as_str().map_or_else(|| figure.value.to_string(), str::to_owned);
        text.push_str(&format!("{:<width$}  {value} {}", figure.label, figure.unit).trim_end().to_owned());
        text.push('\n');
    }
    for warning in &report.warnings {
        text.extend(["WARNING: ", warning, "\n"]);
    }
    text
}

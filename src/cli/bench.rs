//! `orbit bench`: how fast Orbit is on a database.

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use orbit::bench::{self, BenchError, Burden, Options, Progress, Report};
use tokio_util::sync::CancellationToken;

use super::{failure::Failure, print, signals::until_told_to_stop};

const EXAMPLES: &str = "\
Nodes and load run in processes of their own, on a database made for the run and removed after it; an existing one is
never touched. On MySQL the user must be allowed to make databases. docs/performance.md tells what the figures mean.

Examples:
  orbit bench
  orbit bench lifecycle --database-url mysql://root:secret@127.0.0.1:3306 --json
  orbit bench latency --rate 50
  orbit bench drain --waiting 1000000 --compare
  orbit bench lifecycle --finished 2000000 --compare --pairs 5
  orbit bench idle --workers 5000 --connections 50

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped.";

/// Measure Orbit on a database, beside what the database can do by itself
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum, value_name = "MODE", default_value_t = Mode::Lifecycle)]
    mode: Mode,

    /// Where to make databases: mysql://user:password@host:port, or beside sqlite:PATH [default: a temporary SQLite file]
    #[arg(long, value_name = "URL", env = "ORBIT_BENCH_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,

    /// Print one flat JSON object
    #[arg(long)]
    json: bool,

    /// How long figures are taken, in seconds
    #[arg(long, value_name = "S", default_value_t = 16.0, value_parser = parse_seconds)]
    seconds: f64,

    /// How long the load runs before, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = parse_seconds)]
    warm_up: f64,

    /// How often Orbit and its reference take turns
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Worker streams [default: 4; idle: 5000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    workers: Option<u32>,

    /// Attempts that each worker takes at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,

    /// Submits under way at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    submitters: u32,

    /// Connections of the submitters, and of the workers [default: 4; idle: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,

    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 300)]
    payload_bytes: usize,

    /// Submits a second [default: as many as can be; latency: 50]
    #[arg(long, value_name = "PER_S", value_parser = parse_seconds)]
    rate: Option<f64>,

    /// Tasks of one call, with `batch`
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=1_000))]
    batch: u32,

    /// Transactions that a node runs at once [default: as `orbit serve`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    lanes: Option<u32>,

    /// Commands in one transaction at most [default: as `orbit serve`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    batch_max: Option<u32>,

    #[command(flatten)]
    burden: BurdenArgs,

    /// Run the same with and without the burden in turn, and tell the ratio
    #[arg(long)]
    compare: bool,

    /// How often, with `--compare`
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
}

#[derive(Args)]
#[command(next_help_heading = "Burden")]
struct BurdenArgs {
    /// Nodes on the database (MySQL only)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    nodes: u32,

    /// Queues in use
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    queues: u32,

    /// Handlers in use
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    handlers: u32,

    /// Tasks that wait in a paused queue beside
    #[arg(long, value_name = "N", default_value_t = 0)]
    paused: u64,

    /// Tasks that succeeded before
    #[arg(long, value_name = "N", default_value_t = 0)]
    finished: u64,

    /// Tasks that wait at the start, with `drain`
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    waiting: u64,

    /// Every first attempt fails and is retried after a second
    #[arg(long)]
    retries: bool,

    /// Somebody else holds a snapshot of the database open
    #[arg(long)]
    snapshot: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Submit, dispatch, start and finish, each acknowledged after its commit
    Lifecycle,
    /// Submits alone
    Submit,
    /// Submits of many tasks a call, beside the same rows written straight
    Batch,
    /// Workers work off a backlog
    Drain,
    /// A fixed rate: how long until a task's handler starts, and until it is done
    Latency,
    /// Workers with nothing to do: memory and CPU
    Idle,
    /// The same rows written straight, without Orbit
    Ceiling,
}

impl From<Mode> for bench::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Lifecycle => Self::Lifecycle,
            Mode::Submit => Self::Submit,
            Mode::Batch => Self::Batch,
            Mode::Drain => Self::Drain,
            Mode::Latency => Self::Latency,
            Mode::Idle => Self::Idle,
            Mode::Ceiling => Self::Ceiling,
        }
    }
}

impl BenchArgs {
    fn options(self) -> Result<Options, Failure> {
        let idle = matches!(self.mode, Mode::Idle);
        let mysql = self.database_url.as_deref().is_some_and(|url| url.starts_with("mysql:"));
        if self.burden.nodes > 1 && !mysql {
            return Err(Failure::new(
                "several nodes need MySQL: one server at a time can use an SQLite file",
            ));
        }
        let workers = self.workers.unwrap_or(if idle { 5_000 } else { 4 });
        if self.burden.queues.div_ceil(bench::QUEUES_PER_WORKER) > workers {
            return Err(Failure::new("a worker takes up to 100 queues: more --workers are needed"));
        }
        let BurdenArgs { nodes, queues, handlers, paused, finished, waiting, retries, snapshot } =
            self.burden;
        Ok(Options {
            mode: self.mode.into(),
            database_url: self.database_url,
            measured: Duration::from_secs_f64(self.seconds),
            warm_up: Duration::from_secs_f64(self.warm_up),
            rounds: self.rounds,
            workers,
            slots: self.slots,
            submitters: self.submitters,
            connections: self.connections.unwrap_or(if idle { 50 } else { 4 }),
            payload_bytes: self.payload_bytes,
            rate: self.rate,
            batch: self.batch,
            lanes: self.lanes,
            batch_max: self.batch_max,
            burden: Burden { nodes, queues, handlers, paused, finished, waiting, retries, snapshot },
            pairs: self.compare.then_some(self.pairs),
        })
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.01..=86_400.0).contains(number));
    number.ok_or_else(|| "a number from 0.01 to 86400 is wanted".to_owned())
}

/// Measures.
pub(crate) async fn run(args: BenchArgs) -> Result<ExitCode, Failure> {
    let json = args.json;
    let options = args.options()?;
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
        let line = format!("{:<width$}  {value} {}", figure.label, figure.unit);
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for warning in &report.warnings {
        text.extend(["WARNING: ", warning, "\n"]);
    }
    text
}

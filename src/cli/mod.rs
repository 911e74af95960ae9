//! The command line: reads what to do, starts it, and ends the process with the right code.

mod bench;
mod check;
mod client;
mod dev;
mod failure;
mod file;
mod json;
mod logging;
mod migrate;
mod openapi;
mod options;
mod queue;
mod review;
mod serve;
mod settings;
mod signals;
mod table;
mod task;
mod text;
mod value;

use std::{future::Future, io::Write as _, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};

use failure::Failure;

const EXAMPLES: &str = "\
Examples:
  orbit dev
  orbit task submit --handler text.normalize --payload '{\"text\":\"  hello  \"}'

Exit codes: 0 done, 1 failed, 2 wrong usage.";

/// How long blocking work, such as a read of standard input, may hold the process up after all is done.
const LINGER: Duration = Duration::from_millis(200);

/// Orbit, a durable task control plane: it retries only what is known to be safe
#[derive(Parser)]
#[command(name = "orbit", version, after_help = EXAMPLES, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Serve(serve::ServeArgs),
    Migrate(migrate::MigrateArgs),
    Check(check::CheckArgs),
    Openapi(openapi::OpenapiArgs),
    Queue(queue::QueueArgs),
    Task(task::TaskArgs),
    #[command(hide = true, name = "bench-node")]
    BenchNode,
    #[command(hide = true, name = "bench-load")]
    BenchLoad,
    Review(review::ReviewArgs),
    Bench(bench::BenchArgs),
}

/// Runs what the command line asks for.
pub(crate) fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let done = match command {
        Command::Dev(args) => on_all_cores(dev::run(args)),
        Command::Serve(args) => on_all_cores(serve::run(args)),
        Command::Migrate(args) => on_one_core(migrate::run(args)),
        Command::Check(args) => on_one_core(check::run(args)),
        Command::Openapi(args) => openapi::run(&args),
        Command::Queue(args) => on_one_core(queue::run(args)),
        Command::Task(args) => on_one_core(task::run(args)),
        Command::Bench(args) => on_all_cores(bench::run(args)),
        Command::BenchNode => on_all_cores(bench::child(orbit::bench::run_node())),
        Command::BenchLoad => on_one_core(bench::child(orbit::bench::run_load())),
        Command::Review(args) => on_one_core(review::run(args)),
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            // Nothing is left to tell a failure to if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.exit_code()
        }
    }
}

fn on_all_cores(work: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    on(tokio::runtime::Builder::new_multi_thread(), work)
}

fn on_one_core(work: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    on(tokio::runtime::Builder::new_current_thread(), work)
}

fn on(
    mut builder: tokio::runtime::Builder,
    work: impl Future<Output = Result<ExitCode, Failure>>,
) -> Result<ExitCode, Failure> {
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("the program could not start: {error}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(LINGER);
    done
}

/// Writes to standard output. A reader that has left, as `| head` does, is no failure.
fn print(text: &str) -> Result<ExitCode, Failure> {
    write_out(text).map(|_| ExitCode::SUCCESS)
}

/// As [`print`]; tells whether there is a reader still.
fn write_out(text: &str) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::new(format!("the output could not be written: {error}"))),
    }
}

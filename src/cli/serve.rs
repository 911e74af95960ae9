//! `orbit serve`: one node on a database.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, builder::BoolishValueParser};
use orbit::server;
use tokio_util::sync::CancellationToken;

use super::{
    failure::Failure,
    logging,
    options::{DatabaseArgs, ListenArgs, LogArgs, RetentionArgs},
    settings::Settings,
    signals::until_told_to_stop,
};

const EXAMPLES: &str = "\
Each setting is taken from the first of: flag, ORBIT_* variable, configuration file, default.

Examples:
  orbit serve --database-url sqlite:orbit.db --migrate
  ORBIT_DATABASE_URL=mysql://orbit:secret@db:3306/orbit orbit serve --listen 127.0.0.1:7070
  orbit serve --config orbit.toml
  orbit serve --database-url sqlite:orbit.db --tls-cert orbit.crt --tls-key orbit.key

SIGTERM or Ctrl-C ends it within 10 seconds without losing anything; a second one ends it at once.
Exit codes: 0 stopped as told, 1 failed, 2 wrong usage, 130 stopped at once.";

/// Run a server on MySQL or SQLite
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,

    #[command(flatten)]
    pub(crate) listen: ListenArgs,

    /// Bring the database's schema up to date first; otherwise another schema is refused
    #[arg(
        long,
        value_name = "BOOL",
        env = "ORBIT_MIGRATE",
        hide_env_values = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) migrate: Option<bool>,

    /// Origins, such as https://console.example, whose pages in a browser may use the HTTP gateway [default: none]
    #[arg(
        long,
        value_name = "ORIGIN,...",
        env = "ORBIT_CORS_ORIGINS",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) cors_origins: Option<Vec<String>>,

    /// Speak TLS only, with this certificate: PEM, the server's own first, then those up to its authority [default: plain text]
    #[arg(long, value_name = "FILE", env = "ORBIT_TLS_CERT", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's private key: PEM, without a passphrase
    #[arg(long, value_name = "FILE", env = "ORBIT_TLS_KEY", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,

    /// This node's name in events and attempts, 1 to 64 visible ASCII characters [default: made up at each start]
    #[arg(long, value_name = "NAME", env = "ORBIT_NODE_ID", hide_env_values = true)]
    pub(crate) node_id: Option<String>,

    /// How long a granted or renewed lease lasts, 1000 to 3600000 [default: 60000]
    #[arg(long, value_name = "MS", env = "ORBIT_LEASE_MS", hide_env_values = true)]
    pub(crate) lease_ms: Option<u32>,

    /// How long a worker has to start a dispatched attempt, 1000 to 3600000 [default: 15000]
    #[arg(long, value_name = "MS", env = "ORBIT_START_WINDOW_MS", hide_env_values = true)]
    pub(crate) start_window_ms: Option<u32>,

    /// How often ended leases and deadlines are looked for, 10 to 60000 [default: 250]
    #[arg(long, value_name = "MS", env = "ORBIT_SWEEP_INTERVAL_MS", hide_env_values = true)]
    pub(crate) sweep_interval_ms: Option<u32>,

    /// How often work that other nodes accepted is looked for, 10 to 60000 [default: 200]
    #[arg(long, value_name = "MS", env = "ORBIT_POLL_INTERVAL_MS", hide_env_values = true)]
    pub(crate) poll_interval_ms: Option<u32>,

    /// Transactions at once on MySQL, 1 to 16; SQLite has one [default: 2]
    #[arg(long, value_name = "N", env = "ORBIT_LANES", hide_env_values = true)]
    pub(crate) lanes: Option<u32>,

    /// The most commands of one transaction, 1 to 1024 [default: 256]
    #[arg(long, value_name = "N", env = "ORBIT_BATCH_MAX", hide_env_values = true)]
    pub(crate) batch_max: Option<u32>,

    /// The largest payload and the largest result, 1024 to 2000000 [default: 1048576]
    #[arg(long, value_name = "BYTES", env = "ORBIT_PAYLOAD_BYTES_MAX", hide_env_values = true)]
    pub(crate) payload_bytes_max: Option<u32>,

    #[command(flatten)]
    pub(crate) retention: RetentionArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Runs the server until a signal ends it.
pub(crate) async fn run(args: ServeArgs) -> Result<ExitCode, Failure> {
    let Settings { server, log } = Settings::resolve(args)?;
    logging::start(log.chosen.as_deref(), log.from_file.as_deref())?;
    let shutdown = CancellationToken::new();
    let served = async { Ok(server::run(server, shutdown.clone()).await?) };
    until_told_to_stop(shutdown.clone(), served).await?;
    Ok(ExitCode::SUCCESS)
}

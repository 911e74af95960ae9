//! Options that several commands take.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, builder::BoolishValueParser};

/// Where the log goes is fixed; how much of it is told is not.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// What to log, to standard error: a level, or a filter such as `info,orbit::engine=debug` [default: RUST_LOG, else info]
    #[arg(long, value_name = "FILTER", env = "ORBIT_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

/// How long finished tasks are kept.
#[derive(Args)]
pub(crate) struct RetentionArgs {
    /// Remove SUCCEEDED, FAILED and CANCELED tasks so long after their end, such as 30d or 12h; their idempotency keys are
    /// free again then [default: forever]
    #[arg(long, value_name = "TIME", env = "ORBIT_KEEP_FINISHED", hide_env_values = true)]
    pub(crate) keep_finished: Option<String>,
}

/// The database, and the file that may tell it.
#[derive(Args)]
pub(crate) struct DatabaseArgs {
    /// The database: mysql://user:password@host:port/database, or sqlite:PATH
    ///
    /// The password never appears in the log. On the command line other users of the machine can see it:
    /// prefer the environment or the configuration file.
    // No value of the environment is ever shown in a help text; this one holds a password.
    #[arg(long, value_name = "URL", env = "ORBIT_DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: Option<String>,

    /// A TOML file with settings; flags and ORBIT_* variables outrank it
    #[arg(long, value_name = "FILE", env = "ORBIT_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}

/// The address to listen on.
#[derive(Args)]
pub(crate) struct ListenArgs {
    /// The address to listen on; port 0 takes a free one [default: 127.0.0.1:7070]
    #[arg(long, value_name = "IP:PORT", env = "ORBIT_LISTEN", hide_env_values = true, value_parser = parse_listen)]
    pub(crate) listen: Option<SocketAddr>,

    /// Listen where other machines reach it, although everybody there may then do everything
    #[arg(
        long,
        value_name = "BOOL",
        env = "ORBIT_INSECURE_NO_AUTH",
        hide_env_values = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_possible_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub(crate) insecure_no_auth: Option<bool>,
}

/// Reads an address to listen on.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "an address is IP:PORT, such as 127.0.0.1:7070 or [::1]:7070".to_owned())
}

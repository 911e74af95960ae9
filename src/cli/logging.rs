//! The log: to standard error, one compact line an event.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::failure::Failure;

const LEVEL_DEFAULT: &str = "info";
/// Libraries that tell their every step. A filter that names one of them overrides its entry here.
const QUIET: &str =
    "sea_orm=warn,sea_orm_migration=warn,sqlx=warn,h2=warn,hyper=warn,hyper_util=warn,tower=warn,tonic=warn";

/// Begins to log. The first of: `chosen` (`--log` or `ORBIT_LOG`), `RUST_LOG`, `from_file`, `info`.
pub(crate) fn start(chosen: Option<&str>, from_file: Option<&str>) -> Result<(), Failure> {
    let rust_log = std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let wanted = chosen.or(rust_log.as_deref()).or(from_file).unwrap_or(LEVEL_DEFAULT);
    let filter = EnvFilter::try_new(format!("{QUIET},{wanted}")).map_err(|error| {
        Failure::new(format!(
            "`{wanted}` is not a log filter ({error}): use a level such as `debug`, or `info,orbit::engine=debug`"
        ))
    })?;
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_writer(std::io::stderr)
        // They would be told on the very stream that is gone, and end the process.
        .log_internal_errors(false)
        .try_init()
        .map_err(|error| Failure::new(format!("the log could not be started: {error}")))
}

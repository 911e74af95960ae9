//! The configuration file.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::failure::Failure;

/// The keys of the configuration file, all optional. `docs/configuration.md` is their manual.
///
/// Not `Debug`: it holds the database's password.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// The database's address.
    pub(crate) database_url: Option<String>,
    /// The address to listen on, `IP:PORT`.
    pub(crate) listen: Option<String>,
    /// Whether `orbit serve` brings the schema up to date first.
    pub(crate) migrate: Option<bool>,
    /// Whether an address that other machines reach is allowed without credentials.
    pub(crate) insecure_no_auth: Option<bool>,
    /// Origins whose pages in a browser may use the HTTP gateway.
    pub(crate) cors_origins: Option<Vec<String>>,
    /// The server's certificate, for TLS.
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key.
    pub(crate) tls_key: Option<PathBuf>,
    /// This node's name in events and attempts.
    pub(crate) node_id: Option<String>,
    /// How long a granted or renewed lease lasts, in milliseconds.
    pub(crate) lease_ms: Option<u32>,
    /// How long a worker has to start a dispatched attempt, in milliseconds.
    pub(crate) start_window_ms: Option<u32>,
    /// How often ended leases and deadlines are looked for, in milliseconds.
    pub(crate) sweep_interval_ms: Option<u32>,
    /// How often work that other nodes accepted is looked for, in milliseconds.
    pub(crate) poll_interval_ms: Option<u32>,
    /// Transactions at once on MySQL.
    pub(crate) lanes: Option<u32>,
    /// The most commands of one transaction.
    pub(crate) batch_max: Option<u32>,
    /// The largest payload and the largest result, in bytes.
    pub(crate) payload_bytes_max: Option<u32>,
    /// How long finished tasks are kept.
    pub(crate) keep_finished: Option<String>,
    /// What to log.
    pub(crate) log: Option<String>,
}

impl ConfigFile {
    /// Reads the file if there is one to read. Anything unknown or wrong in it is refused.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(format!("the configuration file {} cannot be read: {error}", path.display()))
        })?;
        Self::parse(&text, path)
    }

    pub(super) fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        toml::from_str(text).map_err(|error| {
            // The error's own Display quotes the line, which may hold the password.
            let line = error
                .span()
                .map_or(0, |span| text.get(..span.start).unwrap_or_default().matches('\n').count())
                + 1;
            let problem = without_texts(error.message()).replacen("unknown field", "unknown key", 1);
            let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
            Failure::new(format!("the configuration file {}, line {line}: {problem}", path.display()))
        })
    }
}

/// A text at the wrong key may be the database's address with its password.
fn without_texts(message: &str) -> String {
    let quoted = message.split_once('"').and_then(|(before, rest)| Some((before, rest.rsplit_once('"')?.1)));
    quoted.map_or_else(|| message.to_owned(), |(before, after)| format!("{before}…{after}"))
}

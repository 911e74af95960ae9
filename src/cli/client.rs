//! Talking to a server, for the commands that do.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use orbit::sdk::{self, Client};

use super::failure::Failure;

/// Where a server is unless told otherwise.
pub(crate) const URL_DEFAULT: &str = sdk::DEFAULT_URL;

/// Which server to talk to.
#[derive(Args)]
pub(crate) struct ServerArgs {
    /// The server, or several of one cluster separated by commas
    #[arg(long, value_name = "URL", env = "ORBIT_URL", hide_env_values = true, default_value = URL_DEFAULT)]
    url: String,

    /// The authority (PEM) that signed the certificate of an https:// server [default: those of the system]
    #[arg(long, value_name = "FILE", env = "ORBIT_CA", hide_env_values = true)]
    ca: Option<PathBuf>,
}

/// Which server to talk to, and how to show its answers.
#[derive(Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    // Longer than a server needs to find out that its database is away.
    /// How long to try, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        env = "ORBIT_TIMEOUT_MS",
        hide_env_values = true,
        default_value_t = 10_000
    )]
    pub(crate) timeout_ms: u32,

    /// Answer with JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

impl ClientArgs {
    /// A client for the server. Connects when it is first used.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        let ServerArgs { url, ca } = &self.server;
        let mut client =
            Client::builder().url(url).call_timeout(Duration::from_millis(self.timeout_ms.into()));
        if let Some(path) = ca {
            let pem = std::fs::read_to_string(path).map_err(|error| {
                Failure::new(format!("the authority {} (--ca) cannot be read: {error}", path.display()))
            })?;
            client = client.ca_certificate_pem(pem);
        }
        client.build().map_err(|error| self.failure(&error))
    }

    /// What the user reads when a call fails.
    pub(crate) fn failure(&self, error: &sdk::Error) -> Failure {
        Failure::call(error, &self.server.url)
    }
}

//! Talking to a server, for the commands that do.

use std::time::Duration;

use clap::Args;
use orbit::sdk::{self, Client};

use super::failure::Failure;

/// Where a server is unless told otherwise.
pub(crate) const URL_DEFAULT: &str = sdk::DEFAULT_URL;

/// Which server to talk to, and how to show its answers.
#[derive(Args)]
pub(crate) struct ClientArgs {
    /// The server, or several of one cluster separated by commas
    #[arg(long, value_name = "URL", env = "ORBIT_URL", hide_env_values = true, default_value = URL_DEFAULT)]
    pub(crate) url: String,

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
        Client::builder()
            .url(&self.url)
            .call_timeout(Duration::from_millis(self.timeout_ms.into()))
            .build()
            .map_err(|error| self.failure(&error))
    }

    /// What the user reads when a call fails.
    pub(crate) fn failure(&self, error: &sdk::Error) -> Failure {
        Failure::call(error, &self.url)
    }
}

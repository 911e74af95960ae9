//! A server inside the calling process.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
};

use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{DatabaseUrl, Server, ServerConfig, StartError};

/// The queue of an embedded server and of `orbit dev`.
const QUEUE: &str = "default";

/// A server inside the calling process, on a temporary SQLite file and a free loopback port, with the queue `default`.
/// For examples and tests.
///
/// Dropping it begins the shutdown without waiting for its end; [`shutdown`](Self::shutdown) waits.
pub struct Embedded {
    url: String,
    #[cfg(feature = "testing")]
    database: crate::store::Database,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), StartError>>,
}

impl Embedded {
    /// Starts it with a server's default settings.
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(|_| ()).await
    }

    /// Starts it with other settings; whatever `change` does to the database, address, schema or TLS is undone.
    pub async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Result<Self, StartError> {
        let directory = TempDir::with_prefix("orbit-")
            .map_err(|error| StartError::TemporaryDirectory(super::error::one_line(&error)))?;
        let database_url = ephemeral_url(&directory);
        let mut config = ServerConfig::new(database_url.clone());
        config.queues.push(QUEUE.to_owned());
        change(&mut config);
        config.database_url = database_url;
        config.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        config.migrate = true;
        config.tls = None;

        // Boxed: nested a few times more, its type would be too deep for the compiler of whoever embeds it.
        let server = Box::pin(Server::start(config)).await?;
        let url = format!("http://{}", server.local_addr());
        #[cfg(feature = "testing")]
        let database = server.engine.database().clone();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let serving = TaskTracker::new().spawn(async move {
            let outcome = server.serve(stop).await;
            // Lives as long as the database is open.
            drop(directory);
            outcome
        });
        Ok(Self {
            url,
            #[cfg(feature = "testing")]
            database,
            shutdown,
            serving,
        })
    }

    /// The address for clients and workers, `http://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends all leases that there are, now; answers how many.
    #[cfg(feature = "testing")]
    pub(crate) async fn expire_leases(&self) -> Result<u64, StartError> {
        let expired = self.database.expire_leases().await;
        expired.map_err(|error| StartError::Engine(super::error::one_line(&error)))
    }

    /// Ends it within 10 s and removes its database.
    pub async fn shutdown(mut self) -> Result<(), StartError> {
        self.shutdown.cancel();
        match (&mut self.serving).await {
            Ok(served) => served,
            Err(error) => Err(StartError::Serve(super::error::one_line(&error))),
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The address of an SQLite file in a temporary directory.
pub(super) fn ephemeral_url(directory: &TempDir) -> DatabaseUrl {
    DatabaseUrl::new(format!("sqlite:{}", directory.path().join("orbit.db").display()))
}

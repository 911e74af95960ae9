//! A whole node in one call: database, engine and gRPC, from start to shutdown.

mod database_url;
mod embedded;
mod error;
mod schema;
mod tls;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    time::{sleep, timeout},
};
use tokio_rustls::rustls;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    domain::{
        ids::{LOCAL_PRINCIPAL, RequestId},
        rejection::Rejection,
    },
    engine::{Engine, EngineOptions, Failure, Request},
    rpc,
    store::{Database, DatabaseOptions},
};

pub use database_url::DatabaseUrl;
pub use embedded::Embedded;
pub use error::StartError;
pub use schema::{Migrated, SchemaStatus, check, migrate, schema_status};
pub use tls::TlsFiles;

/// Where a server listens unless told otherwise.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// How long open calls and worker streams get to end by themselves after the shutdown began.
const DRAIN_LIMIT: Duration = Duration::from_secs(4);
/// After which the server is left to itself. With [`ENGINE_LIMIT`] it stays below the 10 s that supervisors give a
/// process.
const SERVE_LIMIT: Duration = Duration::from_secs(7);
/// How long the engine then gets to commit what was accepted and to close the database.
const ENGINE_LIMIT: Duration = Duration::from_millis(2_500);
/// Connections that the kernel holds until they are accepted.
const BACKLOG: u32 = 1_024;

/// What a server runs on.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// `mysql://user:password@host:port/database` or `sqlite:path`.
    pub database_url: DatabaseUrl,
    /// The address to listen on. Port 0 takes a free one. Default [`LISTEN_DEFAULT`].
    pub listen: SocketAddr,
    /// Whether to bring the schema to this program's version first. Otherwise any other version is refused.
    pub migrate: bool,
    /// Whether an address that other machines reach is allowed, although everybody there may then do everything.
    pub insecure_no_auth: bool,
    /// Origins, such as `https://console.example`, whose pages in a browser may use the HTTP gateway. Default none.
    pub cors_origins: Vec<String>,
    /// The certificate by which all connections are TLS. Default none: all are plain text.
    pub tls: Option<TlsFiles>,
    /// Queues to make if they are not there yet.
    pub queues: Vec<String>,
    /// Leases, intervals and limits.
    pub engine: EngineOptions,
}

impl ServerConfig {
    /// Defaults for everything but the database.
    pub fn new(database_url: DatabaseUrl) -> Self {
        Self {
            database_url,
            listen: LISTEN_DEFAULT,
            migrate: false,
            insecure_no_auth: false,
            cors_origins: Vec::new(),
            tls: None,
            queues: Vec::new(),
            engine: EngineOptions::default(),
        }
    }
}

/// Runs a server until `shutdown` is cancelled, then ends it within 10 s.
pub async fn run(config: ServerConfig, shutdown: CancellationToken) -> Result<(), StartError> {
    run_announced(config, shutdown, |_| ()).await
}

/// As [`run`]; calls `ready` with the address once the server listens.
pub async fn run_announced(
    config: ServerConfig,
    shutdown: CancellationToken,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), StartError> {
    let server = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        server = Server::start(config) => server?,
    };
    ready(server.local_addr());
    server.serve(shutdown).await
}

/// A server that listens and has a running engine, and does not answer yet.
pub struct Server {
    listener: TcpListener,
    local_addr: SocketAddr,
    engine: Engine,
    cors_origins: Vec<String>,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Server {
    /// Reads the certificate, opens the database, checks or migrates its schema, starts the engine and listens.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        let socket = reserve(config.listen, config.insecure_no_auth)?;
        let tls = config.tls.as_ref().map(TlsFiles::read).transpose()?;
        let database = Database::open(config.database_url.expose(), DatabaseOptions::default()).await?;
        let engine = start_engine(&config, database).await?;
        let (listener, local_addr) = match listen(socket, config.listen) {
            Ok(listening) => listening,
            Err(error) => {
                engine.shutdown().await;
                return Err(error);
            }
        };
        // Only now: a start that fails says one line, and that is its error.
        tracing::info!(database = %config.database_url, node_id = %config.engine.node_id, address = %local_addr, tls = tls.is_some(), "listening");
        Ok(Self { listener, local_addr, engine, cors_origins: config.cors_origins, tls })
    }

    /// The address it listens on, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Answers until `shutdown` is cancelled or a part of the engine breaks, then ends within 10 s: streams are told,
    /// what was accepted is committed, the database is closed.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), StartError> {
        let Self { listener, engine, cors_origins, tls, .. } = self;
        let options = rpc::Options { drain_limit: DRAIN_LIMIT, cors_origins, tls };
        let shutdown = shutdown.child_token();
        let end = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = engine.broken() => shutdown.cancel(),
            }
            sleep(SERVE_LIMIT).await;
        };
        let served = tokio::select! {
            served = rpc::serve(listener, engine.clone(), shutdown.clone(), options) => {
                served.map_err(|error| StartError::Serve(error::one_line(&error)))
            }
            () = end => {
                tracing::warn!(limit = ?SERVE_LIMIT, "some clients did not leave in time and were cut off");
                Ok(())
            }
        };
        if timeout(ENGINE_LIMIT, engine.shutdown()).await.is_err() {
            tracing::warn!(limit = ?ENGINE_LIMIT, "the database did not finish in time: unanswered requests may be sent again");
        }
        tracing::info!("stopped");
        if engine.is_broken() { Err(StartError::Broken) } else { served }
    }
}

async fn start_engine(config: &ServerConfig, database: Database) -> Result<Engine, StartError> {
    if let Err(error) = schema::prepare(&database, config.migrate).await {
        database.close().await;
        return Err(error);
    }
    let engine = Engine::start(database, config.engine.clone())
        .await
        .map_err(|error| StartError::Engine(error::one_line(&error)))?;
    for queue_id in &config.queues {
        if let Err(error) = ensure_queue(&engine, queue_id).await {
            engine.shutdown().await;
            return Err(error);
        }
    }
    Ok(engine)
}

async fn ensure_queue(engine: &Engine, queue_id: &str) -> Result<(), StartError> {
    let request = Request { principal: Arc::from(LOCAL_PRINCIPAL), request_id: RequestId(Uuid::new_v4()) };
    match engine.create_queue(queue_id.to_owned(), 0, request).await {
        Ok(_) => {
            tracing::info!(queue_id, "queue created");
            Ok(())
        }
        Err(Failure::Rejected(Rejection::QueueExists(_))) => Ok(()),
        Err(failure) => Err(StartError::Queue { queue_id: queue_id.to_owned(), problem: describe(&failure) }),
    }
}

fn describe(failure: &Failure) -> String {
    match failure {
        Failure::Rejected(Rejection::Invalid(problems)) => {
            let problems =
                problems.iter().map(|problem| format!("{} {}", problem.field, problem.description));
            problems.collect::<Vec<_>>().join("; ")
        }
        Failure::Rejected(rejection) => format!("refused: {rejection:?}"),
        Failure::DatabaseUnavailable { .. } | Failure::OutcomeUnknown => "the database went away".to_owned(),
        Failure::Overloaded { .. } | Failure::Draining { .. } => "the server is not ready".to_owned(),
        Failure::Inconsistent { incident } => {
            format!("the database holds rows that cannot be, see incident {incident}")
        }
    }
}

/// Takes the port without accepting connections yet: a taken port is told before the database is touched, and no
/// client connects to a server that may still fail to start.
fn reserve(address: SocketAddr, insecure_no_auth: bool) -> Result<TcpSocket, StartError> {
    if !address.ip().to_canonical().is_loopback() && !insecure_no_auth {
        return Err(StartError::NotLoopback { address });
    }
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    };
    let bind = |socket: TcpSocket| {
        // As std's listeners do: connections of an earlier process that still linger are no reason to refuse.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    };
    socket.and_then(bind).map_err(|error| StartError::listen(address, &error))
}

fn listen(socket: TcpSocket, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let listen = || {
        let listener = socket.listen(BACKLOG)?;
        let local_addr = listener.local_addr()?;
        Ok((listener, local_addr))
    };
    listen().map_err(|error| StartError::listen(address, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_whose_part_panics_ends() {
        let directory = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", directory.path().join("orbit.db").display());
        let mut config = ServerConfig::new(DatabaseUrl::new(url));
        (config.migrate, config.listen) = (true, "127.0.0.1:0".parse().expect("an address"));
        let server = Server::start(config).await.expect("it starts");
        let engine = server.engine.clone();
        let serve = timeout(Duration::from_secs(10), server.serve(CancellationToken::new()));
        let (ended, ()) = tokio::join!(serve, async { engine.break_down() });
        let ended = ended.expect("it ends");
        assert!(matches!(ended, Err(StartError::Broken)), "{ended:?}");
    }
}

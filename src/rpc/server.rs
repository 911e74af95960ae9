//! The gRPC server: what it serves, and how it comes to an end.

use std::{sync::Arc, time::Duration};

use tokio::{net::TcpListener, sync::watch, time::timeout};
use tokio_rustls::rustls::ServerConfig;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{server::NamedService, service::Routes, transport::Server};
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health, HealthServer},
    server::HealthReporter,
};

use crate::{
    engine::Engine,
    gateway::{ApiError, Gateway, GatewayOptions},
    proto::{
        self, queue_service_server::QueueServiceServer, task_service_server::TaskServiceServer,
        worker_service_server::WorkerServiceServer,
    },
    session::Sessions,
};

use super::{errors::ErrorInfoOnAll, incoming::incoming, queue::Queues, task::Tasks, worker::Workers};

/// The largest request of a unary call, in bytes, unless payloads may be larger.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Room for what surrounds the texts of a request, in bytes.
const REQUEST_FRAME_BYTES: usize = 64 * 1024;
/// The largest message that is read on a worker stream, in bytes. A result of up to 16 MiB gets an answer that says what
/// is wrong with it: if the stream broke instead, the worker would open it again and send the same.
const WORKER_MESSAGE_BYTES_MAX: usize = 20 * 1024 * 1024;

/// How many bytes a stream, and a connection with all its streams, may send before any is read. The transport ends a
/// connection whose many small unread frames weigh more than about half of its window: ten thousand reports at once,
/// which the contract allows, must not.
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Streams that a client may have open on one connection: hundreds of workers and as many unary calls beside them.
const STREAMS_MAX: u32 = 10_000;

/// How long a call may take until its answer begins. The longest regular one waits for a task, and then for the
/// database; past that it is a
/// request that does not arrive.
const CALL_LIMIT: Duration = Duration::from_secs(90);

/// How long a connection may be silent before it is asked whether it lives.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long it has to answer.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long ended streams have to reach their readers before connections are closed.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// All names that the health service knows: the whole server, and each service.
const HEALTH_NAMES: [&str; 4] = [
    "",
    TaskServiceServer::<Tasks>::NAME,
    QueueServiceServer::<Queues>::NAME,
    WorkerServiceServer::<Workers>::NAME,
];

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a shutdown waits for calls and worker streams to end by themselves. Default 5 s, at most that.
    pub drain_limit: Duration,
    /// Origins whose pages in a browser may use the HTTP gateway. Default none.
    pub cors_origins: Vec<String>,
    /// With which certificate to speak TLS, and how. Default not at all.
    pub tls: Option<Arc<ServerConfig>>,
}

impl Options {
    /// The longest drain, so that a shutdown is over within 8 s.
    const DRAIN_LIMIT_MAX: Duration = Duration::from_secs(5);
}

impl Default for Options {
    fn default() -> Self {
        Self { drain_limit: Self::DRAIN_LIMIT_MAX, cors_origins: Vec::new(), tls: None }
    }
}

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The descriptor set of the contract is not readable: the build is broken.
    #[error("the descriptor set cannot be served: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The contract cannot be served by HTTP: the build is broken.
    #[error(transparent)]
    Gateway(#[from] ApiError),
    /// The transport failed.
    #[error("the server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// All services, ready to be routed to.
fn routes(
    engine: &Engine,
    sessions: Sessions,
    health: HealthServer<impl Health>,
    shutdown: &CancellationToken,
) -> Result<Routes, ServeError> {
    let tasks = TaskServiceServer::new(Tasks::new(engine.clone(), shutdown.clone()));
    let queues = QueueServiceServer::new(Queues::new(engine.clone()));
    let workers = WorkerServiceServer::new(Workers::new(engine.clone(), sessions));
    let payload_bytes_max = engine.text_bytes_max();
    let request_bytes_max = request_bytes_max(engine);
    let worker_bytes_max = WORKER_MESSAGE_BYTES_MAX.max(payload_bytes_max + REQUEST_FRAME_BYTES);
    // No compression is accepted: a small message could stand for a huge one. Answers have no limit of their own, since
    // what was accepted must be readable; pages are cut where they are made.
    Ok(Routes::new(health)
        .add_service(tasks.max_decoding_message_size(request_bytes_max))
        .add_service(queues.max_decoding_message_size(request_bytes_max))
        .add_service(workers.max_decoding_message_size(worker_bytes_max))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?))
}

fn request_bytes_max(engine: &Engine) -> usize {
    REQUEST_BYTES_MAX.max(engine.text_bytes_max()) + REQUEST_FRAME_BYTES
}

/// Old clients, grpcurl among them, ask for the alpha version. The details of errors belong to it: without their
/// descriptors such a client shows people base64 in place of a reason.
fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
}

/// Serves until `shutdown` is cancelled and what it led to has ended, at most 8 s after it, whatever clients do.
///
/// The end is a sequence: health says NOT_SERVING and nothing more is accepted; workers are asked to go elsewhere; calls
/// and streams have the drain limit to end; then streams are ended, and then connections.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    shutdown: CancellationToken,
    options: Options,
) -> Result<(), ServeError> {
    let sessions = Sessions::default();
    let (reporter, health) = tonic_health::server::health_reporter();
    let healthy = *engine.healthy().borrow();
    set_health(&reporter, healthy).await;
    let routes = routes(&engine, sessions.clone(), health, &shutdown)?;
    let gateway = GatewayOptions {
        body_bytes_max: request_bytes_max(&engine),
        cors_origins: options.cors_origins.clone(),
    };
    let service = Gateway::new(ErrorInfoOnAll::new(routes.prepare()), gateway)?;
    let tasks = TaskTracker::new();
    let follower = follow_health(engine.healthy(), reporter, shutdown.clone());
    tasks.spawn(follower);
    tasks.close();

    let closing = CancellationToken::new();
    // Connections do not outlive this call, even if it is dropped before its end.
    let _close = closing.clone().drop_guard();
    let server = Server::builder()
        .accept_http1(true)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .timeout(CALL_LIMIT)
        .serve_with_incoming_shutdown(
            service,
            incoming(listener, options.tls.clone(), shutdown.clone(), closing.clone()),
            shutdown.clone().cancelled_owned(),
        );
    tokio::pin!(server);
    let result = tokio::select! {
        result = &mut server => result,
        () = drained(&shutdown, &sessions, options.drain_limit) => {
            closing.cancel();
            // Nothing holds the connections any more; should one hang all the same, it does so alone.
            timeout(GOODBYE_LIMIT, &mut server).await.unwrap_or(Ok(()))
        }
    };
    shutdown.cancel();
    sessions.end();
    closing.cancel();
    tasks.wait().await;
    Ok(result?)
}

/// Returns when a shutdown has waited long enough for everybody to leave.
async fn drained(shutdown: &CancellationToken, sessions: &Sessions, drain_limit: Duration) {
    shutdown.cancelled().await;
    sessions.stop();
    tokio::time::sleep(drain_limit.min(Options::DRAIN_LIMIT_MAX)).await;
    sessions.end();
    tokio::time::sleep(GOODBYE_LIMIT).await;
}

/// Tells the health service what the engine knows, until the shutdown: then nothing serves any more, and who watches is
/// sent home.
async fn follow_health(
    mut healthy: watch::Receiver<bool>,
    mut reporter: HealthReporter,
    shutdown: CancellationToken,
) {
    loop {
        let now = *healthy.borrow_and_update();
        set_health(&reporter, now).await;
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = healthy.changed() => {
                if changed.is_err() {
                    // The engine is gone; so is its health.
                    set_health(&reporter, false).await;
                    shutdown.cancelled().await;
                    break;
                }
            }
        }
    }
    set_health(&reporter, false).await;
    // A watch ends with its subject, after the last change; else each would keep its connection to the drain's end.
    for name in HEALTH_NAMES {
        reporter.clear_service_status(name).await;
    }
}

async fn set_health(reporter: &HealthReporter, healthy: bool) {
    let status = if healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
    for name in HEALTH_NAMES {
        reporter.set_service_status(name, status).await;
    }
}

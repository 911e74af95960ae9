//! A worker service whose streams are played by the test.

use std::{sync::Arc, thread, time::Duration};

use orbit::{
    proto::{
        AttemptRef, CommandResult, Dispatch, Disposition, Drain, Finish, Hello, LeaseStatus, Pong, Receipt,
        Renewed, RenewedLease, Start, Welcome, WorkerRequest, WorkerResponse,
        worker_request::Message,
        worker_response::Message as Answer,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
    sdk::{Client, Context, Failure, Report, Worker, WorkerBuilder, WorkerHandle},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

pub(crate) const LEASE_MS: u32 = 3_000;
pub(crate) const VALID: LeaseStatus =
    LeaseStatus { valid: true, remaining_ms: LEASE_MS, cancel_requested: false };
pub(crate) const LOST: LeaseStatus = LeaseStatus { valid: false, remaining_ms: 0, cancel_requested: false };

/// How long a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The server; it runs on a thread of its own, so that tests may block theirs.
pub(crate) struct FakeServer {
    pub(crate) url: String,
    sessions: mpsc::Receiver<Session>,
}

/// One stream, after its hello.
pub(crate) struct Session {
    pub(crate) hello: Hello,
    frames: Streaming<WorkerRequest>,
    answers: mpsc::Sender<Result<WorkerResponse, Status>>,
    /// Whether pings and renewals are answered.
    pub(crate) attentive: bool,
    /// How many renewals arrived.
    pub(crate) renewals: usize,
}

struct Service(mpsc::Sender<Session>);

#[tonic::async_trait]
impl WorkerService for Service {
    type WorkerStream = ReceiverStream<Result<WorkerResponse, Status>>;

    async fn worker(
        &self,
        request: Request<Streaming<WorkerRequest>>,
    ) -> Result<Response<Self::WorkerStream>, Status> {
        let mut frames = request.into_inner();
        let hello = match frames.message().await? {
            Some(WorkerRequest { message: Some(Message::Hello(hello)) }) => hello,
            other => return Err(Status::failed_precondition(format!("no hello but {other:?}"))),
        };
        let (answers, stream) = mpsc::channel(16);
        let session = Session { hello, frames, answers, attentive: true, renewals: 0 };
        self.0.send(session).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl FakeServer {
    pub(crate) fn start() -> Self {
        Self::serve("http://127.0.0.1", Server::builder())
    }

    /// By a server that the test has set up, at a free port of that host.
    pub(crate) fn serve(host: &str, mut server: Server) -> Self {
        let (session, sessions) = mpsc::channel(16);
        let (address, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
                address.send(incoming.local_addr().unwrap()).unwrap();
                let service = WorkerServiceServer::new(Service(session));
                server.add_service(service).serve_with_incoming(incoming).await.unwrap();
            });
        });
        let url = format!("{host}:{}", started.recv().unwrap().port());
        Self { url, sessions }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url).unwrap()
    }

    /// A worker of queue `q`.
    pub(crate) fn worker(&self) -> WorkerBuilder {
        Worker::builder(&self.client()).queue("q")
    }

    /// The next stream, not welcomed yet.
    pub(crate) async fn hello(&mut self) -> Session {
        timeout(PATIENCE, self.sessions.recv()).await.expect("no stream").unwrap()
    }

    /// The next stream, welcomed.
    pub(crate) async fn session(&mut self) -> Session {
        let session = self.hello().await;
        session.welcome().await;
        session
    }
}

impl Session {
    pub(crate) async fn welcome(&self) {
        let held = self.hello.held.iter().map(|attempt| renewed(attempt, VALID)).collect();
        self.send(Answer::Welcome(Welcome {
            session_id: "session".to_owned(),
            node_id: "node".to_owned(),
            lease_ms: LEASE_MS,
            renew_every_ms: LEASE_MS / 3,
            features: vec!["safe-retry/1".to_owned()],
            held,
            unknown_queue_ids: Vec::new(),
        }))
        .await;
    }

    pub(crate) async fn send(&self, message: Answer) {
        self.answers.send(Ok(WorkerResponse { message: Some(message) })).await.unwrap();
    }

    /// Ends the stream with a status.
    pub(crate) async fn fail(self, status: Status) {
        self.answers.send(Err(status)).await.unwrap();
    }

    /// The next frame; pings and renewals are answered meanwhile. `None` at the end of the stream.
    pub(crate) async fn frame(&mut self) -> Option<Message> {
        loop {
            let frame = timeout(PATIENCE, self.frames.message()).await.expect("no frame");
            match frame.ok().flatten()?.message? {
                Message::Ping(ping) if self.attentive => {
                    self.send(Answer::Pong(Pong { sequence: ping.sequence })).await;
                }
                Message::Renew(renew) => {
                    self.renewals += 1;
                    let leases = renew.leases.iter().map(|lease| renewed(lease, VALID)).collect();
                    if self.attentive {
                        self.send(Answer::Renewed(Renewed { leases })).await;
                    }
                }
                Message::Ping(_) => {}
                other => return Some(other),
            }
        }
    }

    pub(crate) async fn start(&mut self) -> Start {
        match self.frame().await {
            Some(Message::Start(start)) => start,
            other => panic!("a start was expected, not {other:?}"),
        }
    }

    pub(crate) async fn finish(&mut self) -> Finish {
        match self.frame().await {
            Some(Message::Finish(finish)) => finish,
            other => panic!("a finish was expected, not {other:?}"),
        }
    }

    pub(crate) async fn dispatch(&self, id: &str, handler: &str, payload: &str) {
        self.send(Answer::Dispatch(dispatch(id, handler, payload))).await;
    }

    /// Dispatches and grants the start.
    pub(crate) async fn run(&mut self, id: &str, handler: &str, payload: &str) {
        self.dispatch(id, handler, payload).await;
        let start = self.start().await;
        assert_eq!(start.attempt_id, id);
        self.accept(&start.message_id, Disposition::Applied, VALID).await;
    }

    /// Says that the attempt's lease is not valid.
    pub(crate) async fn lose(&self, id: &str) {
        let attempt = AttemptRef { task_id: format!("task-{id}"), attempt_id: id.to_owned(), epoch: 1 };
        self.send(Answer::Renewed(Renewed { leases: vec![renewed(&attempt, LOST)] })).await;
    }

    pub(crate) async fn accept(&self, message_id: &str, disposition: Disposition, lease: LeaseStatus) {
        let receipt = Receipt { disposition: disposition.into(), ..Receipt::default() };
        self.send(Answer::CommandResult(CommandResult {
            message_id: message_id.to_owned(),
            status: Some(tonic_types::Status::default()),
            receipt: Some(receipt),
            replayed: false,
            lease: Some(lease),
        }))
        .await;
    }
}

fn renewed(attempt: &AttemptRef, lease: LeaseStatus) -> RenewedLease {
    RenewedLease { attempt: Some(attempt.clone()), lease: Some(lease) }
}

pub(crate) fn dispatch(id: &str, handler: &str, payload: &str) -> Dispatch {
    Dispatch {
        attempt_id: id.to_owned(),
        epoch: 1,
        attempt_number: 1,
        max_attempts: 3,
        lease_ms: 15_000,
        task_id: format!("task-{id}"),
        queue_id: "q".to_owned(),
        handler: handler.to_owned(),
        handler_version: "v1".to_owned(),
        payload_version: "v1".to_owned(),
        payload: payload.to_owned(),
        deadline_ms: 600_000,
        attempt_timeout_ms: 60_000,
        ..Dispatch::default()
    }
}

/// Drains the worker and ends its stream when it asks for that, as the server does when nothing is in flight.
pub(crate) async fn drained(worker: WorkerHandle, mut session: Session) -> Report {
    let farewell = async {
        assert_eq!(session.frame().await, Some(Message::Drain(Drain {})));
        drop(session);
    };
    tokio::join!(worker.drain(PATIENCE), farewell).0.unwrap()
}

/// Doubles a number.
pub(crate) async fn double(_: Context, number: i64) -> Result<i64, Failure> {
    Ok(number * 2)
}

/// Runs until somebody notifies it, and counts its calls.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(crate) open: Arc<tokio::sync::Notify>,
    pub(crate) calls: Arc<std::sync::atomic::AtomicUsize>,
}

impl Gate {
    pub(crate) fn handler(
        &self,
    ) -> impl Fn(Context, ()) -> futures_util::future::BoxFuture<'static, Result<u32, Failure>>
    + Send
    + Sync
    + 'static {
        let gate = self.clone();
        move |_, ()| {
            let gate = gate.clone();
            Box::pin(async move {
                gate.calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                gate.open.notified().await;
                Ok(7)
            })
        }
    }

    /// Waits until the handler was called.
    pub(crate) async fn called(&self) {
        let called = async {
            while self.calls() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, called).await.expect("not called");
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(std::sync::atomic::Ordering::SeqCst)
    }
}

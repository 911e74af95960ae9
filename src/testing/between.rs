//! What stands between a [`TestServer`](super::TestServer) and its clients: passes calls on, and misbehaves on worker
//! streams as it is told to.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures_util::{
    Stream, StreamExt as _,
    future::{BoxFuture, FutureExt as _},
    stream::{self, BoxStream},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::{Service, http},
    metadata::MetadataMap,
    transport::{Channel, Endpoint, Server},
};

use super::Faults;
use crate::proto::{
    WorkerRequest, WorkerResponse,
    worker_request::Message as Ask,
    worker_response::Message as Told,
    worker_service_client::WorkerServiceClient,
    worker_service_server::{WorkerService, WorkerServiceServer},
};

/// The one call that is not passed on as it is.
const WORKER_CALL: &str = "/orbit.v1.WorkerService/Worker";
/// Frames as large as the largest of the server.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Listens on a free port. The future serves until `stop` is cancelled and all calls have ended.
pub(super) async fn serve(
    server_url: &str,
    faults: watch::Receiver<Faults>,
    stop: CancellationToken,
) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send + 'static)> {
    let server = Endpoint::from_shared(server_url.to_owned()).map_err(io::Error::other)?.connect_lazy();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let streams = Streams { server: server.clone(), faults, stop: stop.clone() };
    let streams = WorkerServiceServer::new(streams).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let serving = Server::builder().serve_with_incoming_shutdown(
        Calls { server, streams },
        TcpListenerStream::new(listener),
        stop.cancelled_owned(),
    );
    let serving = async {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the test server's front failed");
        }
    };
    Ok((address, serving))
}

/// All calls: worker streams go through [`Streams`], everything else goes to the server byte for byte.
#[derive(Clone)]
struct Calls {
    server: Channel,
    streams: WorkerServiceServer<Streams>,
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.server.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() == WORKER_CALL {
            let answer = self.streams.call(request);
            return async { Ok(answer.await.unwrap_or_else(|never| match never {})) }.boxed();
        }
        self.server.call(request).boxed()
    }
}

/// The worker streams.
struct Streams {
    server: Channel,
    faults: watch::Receiver<Faults>,
    stop: CancellationToken,
}

/// What kind of message an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Start,
    Finish,
}

/// Messages that have no answer yet, by their id.
type Open = Arc<Mutex<HashMap<String, Asked>>>;

#[tonic::async_trait]
impl WorkerService for Streams {
    type WorkerStream = BoxStream<'static, Result<WorkerResponse, Status>>;

    async fn worker(
        &self,
        request: Request<Streaming<WorkerRequest>>,
    ) -> Result<Response<Self::WorkerStream>, Status> {
        let (metadata, _, asked) = request.into_parts();
        let open = Open::default();
        let told = self.open(metadata, noting(asked, Arc::clone(&open))).await?;
        let mut faults = self.faults.clone();
        // Only cuts from now on concern this stream.
        let cuts = faults.borrow_and_update().cuts;
        let passage = Passage {
            told,
            open,
            faults,
            cuts,
            stop: self.stop.clone(),
            again: VecDeque::new(),
            over: false,
        };
        Ok(Response::new(passage.frames().boxed()))
    }
}

impl Streams {
    /// Opens the same stream at the server.
    async fn open(
        &self,
        metadata: MetadataMap,
        asked: impl Stream<Item = WorkerRequest> + Send + 'static,
    ) -> Result<Streaming<WorkerResponse>, Status> {
        let mut request = Request::new(asked);
        *request.metadata_mut() = metadata;
        let client = WorkerServiceClient::new(self.server.clone());
        let answer = client.max_decoding_message_size(MESSAGE_BYTES_MAX).worker(request).await?;
        Ok(answer.into_inner())
    }
}

/// What the worker sends, until it ends or breaks; notes what its answers will be for.
fn noting(asked: Streaming<WorkerRequest>, open: Open) -> impl Stream<Item = WorkerRequest> + Send + 'static {
    let whole = asked.take_while(|frame| std::future::ready(frame.is_ok()));
    whole.filter_map(move |frame| {
        let frame = frame.ok();
        let noted = match frame.as_ref().and_then(|frame| frame.message.as_ref()) {
            Some(Ask::Start(start)) => Some((start.message_id.clone(), Asked::Start)),
            Some(Ask::Finish(finish)) => Some((finish.message_id.clone(), Asked::Finish)),
            _ => None,
        };
        open.lock().unwrap_or_else(PoisonError::into_inner).extend(noted);
        std::future::ready(frame)
    })
}

/// One worker's stream, from the server to the worker.
struct Passage {
    told: Streaming<WorkerResponse>,
    open: Open,
    faults: watch::Receiver<Faults>,
    cuts: u64,
    stop: CancellationToken,
    /// Frames to pass on before the server's next one.
    again: VecDeque<WorkerResponse>,
    over: bool,
}

impl Passage {
    fn frames(self) -> impl Stream<Item = Result<WorkerResponse, Status>> + Send + 'static {
        stream::unfold(self, |mut passage| async move { Some((passage.next().await?, passage)) })
    }

    async fn next(&mut self) -> Option<Result<WorkerResponse, Status>> {
        while !self.over {
            if let Some(frame) = self.again.pop_front() {
                return Some(Ok(frame));
            }
            let cuts = self.cuts;
            let frame = tokio::select! {
                biased;
                _ = self.faults.wait_for(|faults| faults.cuts != cuts) => Err(Status::unavailable("cut by the test")),
                () = self.stop.cancelled() => Err(Status::unavailable("the test server is gone")),
                frame = self.told.message() => frame,
            };
            match frame {
                Ok(Some(frame)) => {
                    if let Some(frame) = self.through(frame) {
                        return Some(Ok(frame));
                    }
                }
                Ok(None) => self.over = true,
                Err(status) => {
                    self.over = true;
                    return Some(Err(status));
                }
            }
        }
        None
    }

    /// What becomes of a frame under the faults of now.
    fn through(&mut self, frame: WorkerResponse) -> Option<WorkerResponse> {
        let faults = *self.faults.borrow();
        match &frame.message {
            Some(Told::CommandResult(result)) => {
                let asked =
                    self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&result.message_id);
                let dropped = match asked {
                    Some(Asked::Start) => faults.drop_start_acknowledgements,
                    Some(Asked::Finish) => faults.drop_acknowledgements,
                    None => false,
                };
                (!dropped).then_some(frame)
            }
            Some(Told::Dispatch(_)) if faults.deliver_twice => {
                self.again.push_back(frame.clone());
                Some(frame)
            }
            _ => Some(frame),
        }
    }
}

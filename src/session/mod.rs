//! Worker streams: each is one session, from its hello to its end.
//!
//! `protocol` is what is said and when, without any I/O; `connection` drives it; `outbox` is what a worker has not read
//! yet.

mod connection;
mod exchange;
mod frames;
mod outbox;
mod protocol;

use std::sync::Arc;

use futures_util::Stream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

use crate::{engine::Engine, proto};

pub use outbox::OutboxStream;

/// All sessions of this server, to end them together.
#[derive(Clone, Debug, Default)]
pub struct Sessions {
    tasks: TaskTracker,
    stopping: CancellationToken,
    ending: CancellationToken,
}

impl Sessions {
    /// Opens a session over the frames of a worker. What is returned is what the worker is to read.
    pub fn open<S>(&self, engine: Engine, principal: Arc<str>, frames: S) -> OutboxStream
    where
        S: Stream<Item = Result<proto::WorkerRequest, Status>> + Send + Unpin + 'static,
    {
        let (outbox, stream) = outbox::outbox();
        let connection = connection::Connection::new(engine, principal, outbox, self.clone());
        self.tasks.spawn(connection.run(frames));
        stream
    }

    /// Asks all workers to go elsewhere. Their sessions end when nothing is in flight on them any more.
    pub fn stop(&self) {
        self.stopping.cancel();
        self.tasks.close();
    }

    /// Ends all sessions now. What they hold keeps its leases.
    pub fn end(&self) {
        self.stop();
        self.ending.cancel();
    }

    /// Waits until all sessions have ended, after [`Sessions::stop`].
    pub async fn ended(&self) {
        self.tasks.wait().await;
    }
}

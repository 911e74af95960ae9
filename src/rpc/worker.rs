//! WorkerService: hands each stream to a session of its own.

use tonic::{Request, Response, Status, Streaming};

use crate::{
    engine::Engine,
    proto::{WorkerRequest, worker_service_server::WorkerService},
    session::{OutboxStream, Sessions},
};

use super::auth;

/// The service.
pub(super) struct Workers {
    engine: Engine,
    sessions: Sessions,
}

impl Workers {
    pub(super) const fn new(engine: Engine, sessions: Sessions) -> Self {
        Self { engine, sessions }
    }
}

#[tonic::async_trait]
impl WorkerService for Workers {
    type WorkerStream = OutboxStream;

    async fn worker(
        &self,
        request: Request<Streaming<WorkerRequest>>,
    ) -> Result<Response<Self::WorkerStream>, Status> {
        let principal = auth::principal(&request);
        let stream = self.sessions.open(self.engine.clone(), principal, request.into_inner());
        Ok(Response::new(stream))
    }
}

//! A task service that answers as the test tells it to.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
};

use orbit::proto::{
    BatchSubmitTasksRequest, BatchSubmitTasksResponse, BatchSubmitTasksResult, CancelTaskRequest,
    CancelTaskResponse, GetTaskRequest, GetTaskResponse, ListAttemptsRequest, ListAttemptsResponse,
    ListTaskEventsRequest, ListTaskEventsResponse, ListTasksRequest, ListTasksResponse, LookupTaskRequest,
    LookupTaskResponse, OperatorReceipt, ResolveTaskRequest, ResolveTaskResponse, SubmitTaskRequest,
    SubmitTaskResponse, Task, WaitTaskRequest, WaitTaskResponse,
    batch_submit_tasks_result::Outcome,
    task_service_server::{TaskService, TaskServiceServer},
};
use tonic::{
    Code, Request, Response, Status,
    metadata::MetadataMap,
    transport::{Server, server::TcpIncoming},
};

/// What happens to one call.
pub(crate) enum Reply {
    Task(Box<Task>),
    Fail(Status),
    /// Never answers.
    Silence,
}

#[derive(Clone, Default)]
pub(crate) struct FakeTasks {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    submits: Arc<Mutex<Vec<SubmitTaskRequest>>>,
    /// How many tasks each batch had.
    batches: Arc<Mutex<Vec<usize>>>,
    /// The request ids of cancels and resolutions.
    requests: Arc<Mutex<Vec<String>>>,
    metadata: Arc<Mutex<MetadataMap>>,
}

impl FakeTasks {
    /// Replies one after the other; the address. It lives as long as the test's process.
    pub(crate) fn start(replies: impl IntoIterator<Item = Reply>) -> (Self, String) {
        let (fake, address) = Self::serve(replies, Server::builder());
        (fake, format!("http://{address}"))
    }

    /// The same, by a server that the test has set up.
    pub(crate) fn serve(replies: impl IntoIterator<Item = Reply>, mut server: Server) -> (Self, SocketAddr) {
        let fake = Self::default();
        fake.replies.lock().unwrap().extend(replies);
        let (address, started) = std::sync::mpsc::channel();
        let service = fake.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
                address.send(incoming.local_addr().unwrap()).unwrap();
                server
                    .add_service(TaskServiceServer::new(service))
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
            });
        });
        (fake, started.recv().unwrap())
    }

    pub(crate) fn submits(&self) -> Vec<SubmitTaskRequest> {
        self.submits.lock().unwrap().clone()
    }

    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }

    pub(crate) fn request_ids(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn metadata(&self) -> MetadataMap {
        self.metadata.lock().unwrap().clone()
    }

    async fn reply(&self, metadata: &MetadataMap) -> Result<Task, Status> {
        *self.metadata.lock().unwrap() = metadata.clone();
        let reply = self.replies.lock().unwrap().pop_front();
        match reply {
            Some(Reply::Task(task)) => Ok(*task),
            Some(Reply::Fail(status)) => Err(status),
            Some(Reply::Silence) => std::future::pending().await,
            None => Err(Status::internal("the test gave no reply")),
        }
    }
}

#[tonic::async_trait]
impl TaskService for FakeTasks {
    async fn submit_task(
        &self,
        request: Request<SubmitTaskRequest>,
    ) -> Result<Response<SubmitTaskResponse>, Status> {
        self.submits.lock().unwrap().push(request.get_ref().clone());
        let task = self.reply(request.metadata()).await?;
        Ok(Response::new(SubmitTaskResponse { task: Some(task), replayed: false }))
    }

    async fn batch_submit_tasks(
        &self,
        request: Request<BatchSubmitTasksRequest>,
    ) -> Result<Response<BatchSubmitTasksResponse>, Status> {
        self.batches.lock().unwrap().push(request.get_ref().tasks.len());
        self.submits.lock().unwrap().extend(request.get_ref().tasks.iter().cloned());
        let mut results = Vec::new();
        for _ in &request.get_ref().tasks {
            let outcome = match self.reply(request.metadata()).await {
                Ok(task) => Outcome::Submitted(SubmitTaskResponse { task: Some(task), replayed: false }),
                Err(status) if status.code() == Code::Unavailable => return Err(status),
                Err(status) => {
                    let code = status.code().into();
                    let message = status.message().to_owned();
                    Outcome::Error(tonic_types::Status { code, message, details: vec![] })
                }
            };
            results.push(BatchSubmitTasksResult { outcome: Some(outcome) });
        }
        Ok(Response::new(BatchSubmitTasksResponse { results }))
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<GetTaskResponse>, Status> {
        let task = self.reply(request.metadata()).await?;
        Ok(Response::new(GetTaskResponse { task: Some(task) }))
    }

    async fn lookup_task(
        &self,
        request: Request<LookupTaskRequest>,
    ) -> Result<Response<LookupTaskResponse>, Status> {
        let task = self.reply(request.metadata()).await?;
        Ok(Response::new(LookupTaskResponse { task: Some(task) }))
    }

    async fn list_tasks(
        &self,
        request: Request<ListTasksRequest>,
    ) -> Result<Response<ListTasksResponse>, Status> {
        let task = self.reply(request.metadata()).await?;
        Ok(Response::new(ListTasksResponse { tasks: vec![task], next_page_token: String::new() }))
    }

    async fn wait_task(
        &self,
        request: Request<WaitTaskRequest>,
    ) -> Result<Response<WaitTaskResponse>, Status> {
        let task = self.reply(request.metadata()).await?;
        Ok(Response::new(WaitTaskResponse { task: Some(task) }))
    }

    async fn list_attempts(
        &self,
        request: Request<ListAttemptsRequest>,
    ) -> Result<Response<ListAttemptsResponse>, Status> {
        self.reply(request.metadata()).await?;
        Ok(Response::new(ListAttemptsResponse::default()))
    }

    async fn list_task_events(
        &self,
        request: Request<ListTaskEventsRequest>,
    ) -> Result<Response<ListTaskEventsResponse>, Status> {
        self.reply(request.metadata()).await?;
        Ok(Response::new(ListTaskEventsResponse::default()))
    }

    async fn cancel_task(
        &self,
        request: Request<CancelTaskRequest>,
    ) -> Result<Response<CancelTaskResponse>, Status> {
        self.requests.lock().unwrap().push(request.get_ref().request_id.clone());
        let task = self.reply(request.metadata()).await?;
        let receipt = Some(OperatorReceipt::default());
        Ok(Response::new(CancelTaskResponse { receipt, task: Some(task) }))
    }

    async fn resolve_task(
        &self,
        request: Request<ResolveTaskRequest>,
    ) -> Result<Response<ResolveTaskResponse>, Status> {
        self.requests.lock().unwrap().push(request.get_ref().request_id.clone());
        let task = self.reply(request.metadata()).await?;
        let receipt = Some(OperatorReceipt::default());
        Ok(Response::new(ResolveTaskResponse { receipt, task: Some(task) }))
    }
}

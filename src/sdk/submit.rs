//! Submitting a task.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use uuid::Uuid;

use super::{client::Client, error::Error};
use crate::proto::{RecoverySafety, RetryPolicy, SubmitTaskRequest, SubmitTaskResponse, Task};

/// The payload version of tasks that name none.
pub const DEFAULT_PAYLOAD_VERSION: &str = "v1";

/// A task to submit; made by [`Client::submit`], sent by [`send`](Self::send) or by awaiting it.
///
/// Everything left out keeps the server's default, which the contract documents at `SubmitTaskRequest`.
/// Durations are sent in whole milliseconds, rounded up; out-of-range values are refused by the server.
#[derive(Debug, Clone)]
#[must_use = "a task is submitted by `.send().await`"]
pub struct Submit {
    client: Client,
    request: SubmitTaskRequest,
    /// The first value that could not be written as JSON.
    unwritable: Option<(&'static str, Arc<serde_json::Error>)>,
}

/// An accepted task: when you hold this, the task is committed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Submitted {
    /// The task as of the answer, without payload and result.
    pub task: Task,
    /// Whether the key had been accepted before: `task` is then the original one.
    pub replayed: bool,
}

impl Submitted {
    pub(crate) fn read(rpc: &str, answer: SubmitTaskResponse) -> Result<Self, Error> {
        let SubmitTaskResponse { task, replayed } = answer;
        let task = task.ok_or_else(|| Error::protocol(format!("{rpc} was answered without a task")))?;
        Ok(Self { task, replayed })
    }
}

impl Submit {
    pub(crate) fn new(client: Client, queue: String, handler: String, version: String) -> Self {
        let request = SubmitTaskRequest {
            queue_id: queue,
            idempotency_key: Uuid::new_v4().to_string(),
            handler,
            handler_version: version,
            payload_version: DEFAULT_PAYLOAD_VERSION.to_owned(),
            ..SubmitTaskRequest::default()
        };
        Self::from_request(client, request)
    }

    pub(crate) fn from_request(client: Client, request: SubmitTaskRequest) -> Self {
        Self { client, request, unwritable: None }
    }

    /// The producer's own name for this operation: 1 to 255 visible ASCII characters.
    ///
    /// Without one a random UUID is used, which protects against a re-send by this builder only, not against the
    /// producer itself running twice. Derive it from your business operation, such as `invoice-4711/send`.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.request.idempotency_key = key.into();
        self
    }

    /// The key this submit carries: the caller's, or the generated one.
    pub fn key(&self) -> &str {
        &self.request.idempotency_key
    }

    /// The payload, written as JSON. A value that cannot be is reported by [`send`](Self::send).
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        match serde_json::to_string(payload) {
            Ok(text) => self.request.payload = text,
            Err(error) => self.unwritable = Some(("payload", Arc::new(error))),
        }
        self
    }

    /// The payload as JSON text, kept byte for byte.
    pub fn payload_json(mut self, text: impl Into<String>) -> Self {
        self.request.payload = text.into();
        self
    }

    /// The version of the payload's schema, for the handler. Default [`DEFAULT_PAYLOAD_VERSION`].
    pub fn payload_version(mut self, version: impl Into<String>) -> Self {
        self.request.payload_version = version.into();
        self
    }

    /// How many attempts may be claimed, the first included: 1 to 1,000. Default 1, no retry.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry().max_attempts = Some(attempts);
        self
    }

    /// Backoff after the first attempt, doubled after each further one: 1 ms to a day. Default 1 s.
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.retry().initial_delay_ms = Some(whole_millis(delay));
        self
    }

    /// Where the doubling stops: at least the initial delay, at most a week. Default 60 s.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.retry().max_delay_ms = Some(whole_millis(delay));
        self
    }

    /// How long one attempt may run from its granted start: 100 ms to a day. Default 5 minutes.
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.retry().attempt_timeout_ms = Some(whole_millis(timeout));
        self
    }

    /// Whether an execution with unknown effect may be repeated. Default `ReconcileOnly`: a person must look.
    pub fn recovery_safety(mut self, safety: RecoverySafety) -> Self {
        self.request.set_recovery_safety(safety);
        self
    }

    /// Total time from acceptance to the task's deadline: 100 ms to 30 days. Default a day.
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.request.task_timeout_ms = Some(whole_millis(timeout));
        self
    }

    /// Earliest first claim. Default at once.
    pub fn not_before(mut self, moment: SystemTime) -> Self {
        self.request.not_before = Some(moment.into());
        self
    }

    /// No attempt is claimed or started at or after this moment. Default none.
    pub fn start_before(mut self, moment: SystemTime) -> Self {
        self.request.start_before = Some(moment.into());
        self
    }

    /// Sends the task, again with the same key if the answer stays out, until the client's call timeout.
    ///
    /// After a `Transport` or `Timeout` error the task may or may not have been accepted: calling `send` on the
    /// same value again finds out, without a second task.
    pub async fn send(&self) -> Result<Submitted, Error> {
        if let Some(error) = self.unwritable() {
            return Err(error);
        }
        Submitted::read("SubmitTask", self.client.submit_task(&self.request).await?)
    }

    pub(crate) fn request(&self) -> &SubmitTaskRequest {
        &self.request
    }

    /// Why it cannot be sent.
    pub(crate) fn unwritable(&self) -> Option<Error> {
        self.unwritable.as_ref().map(|(what, error)| Error::serialization(what, Arc::clone(error)))
    }

    fn retry(&mut self) -> &mut RetryPolicy {
        self.request.retry.get_or_insert_default()
    }
}

impl IntoFuture for Submit {
    type Output = Result<Submitted, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.send().await })
    }
}

/// Saturating: what does not fit is out of every range, and the server says so.
fn whole_millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

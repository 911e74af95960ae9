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
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
/// assert_eq!(submitted.task.payload_version, orbit::sdk::DEFAULT_PAYLOAD_VERSION);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub const DEFAULT_PAYLOAD_VERSION: &str = "v1";

/// A task to submit; made by [`Client::submit`], sent by [`send`](Self::send) or by awaiting it.
///
/// Everything left out keeps the server's default, which the contract documents at `SubmitTaskRequest`.
/// Durations are sent in whole milliseconds, rounded up; out-of-range values are refused by the server.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// use std::time::Duration;
///
/// use orbit::proto::RecoverySafety;
///
/// let submit = client
///     .submit("default", "bank.charge", "v1")
///     .idempotency_key("order-17/charge")
///     .payload(&serde_json::json!({ "account": "A", "cents": 990 }))
///     .max_attempts(5)
///     .initial_delay(Duration::from_secs(2))
///     .max_delay(Duration::from_mins(5))
///     .attempt_timeout(Duration::from_secs(30))
///     .task_timeout(Duration::from_hours(1))
///     .recovery_safety(RecoverySafety::Idempotent);
/// let task = submit.await?.task;
/// assert_eq!(task.attempt_count, 0);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a task is submitted by `.send().await`"]
pub struct Submit {
    client: Client,
    request: SubmitTaskRequest,
    /// The first value that could not be written as JSON.
    unwritable: Option<(&'static str, Arc<serde_json::Error>)>,
}

/// An accepted task: when you hold this, the task is committed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
/// assert!(!submitted.replayed);
/// println!("accepted {}", submitted.task.task_id);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
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
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "invoice.send", "v1").idempotency_key("invoice-4711/send");
    /// assert!(!submit.send().await?.replayed);
    /// // Other content under the same key is a mistake.
    /// let other = submit.clone().payload("other");
    /// assert_eq!(other.send().await.unwrap_err().reason(), Some("IDEMPOTENCY_CONFLICT"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.request.idempotency_key = key.into();
        self
    }

    /// The key this submit carries: the caller's, or the generated one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1");
    /// assert_eq!(submit.key().len(), 36);
    /// assert_eq!(submit.idempotency_key("order-17").key(), "order-17");
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &str {
        &self.request.idempotency_key
    }

    /// The payload, written as JSON. A value that cannot be is reported by [`send`](Self::send).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").payload(&(1, "two"));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.payload, r#"[1,"two"]"#);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload<T: Serialize + ?Sized>(mut self, payload: &T) -> Self {
        match serde_json::to_string(payload) {
            Ok(text) => self.request.payload = text,
            Err(error) => self.unwritable = Some(("payload", Arc::new(error))),
        }
        self
    }

    /// The payload as JSON text, kept byte for byte.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").payload_json(r#"{"n": 1e400}"#);
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.payload, r#"{"n": 1e400}"#);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload_json(mut self, text: impl Into<String>) -> Self {
        self.request.payload = text.into();
        self
    }

    /// The version of the payload's schema, for the handler. Default [`DEFAULT_PAYLOAD_VERSION`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").payload_version("v2");
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.payload_version, "v2");
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload_version(mut self, version: impl Into<String>) -> Self {
        self.request.payload_version = version.into();
        self
    }

    /// How many attempts may be claimed, the first included: 1 to 1,000. Default 1, no retry.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").max_attempts(3);
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.retry.unwrap().max_attempts, Some(3));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.retry().max_attempts = Some(attempts);
        self
    }

    /// Backoff after the first attempt, doubled after each further one: 1 ms to a day. Default 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").initial_delay(std::time::Duration::from_millis(250));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.retry.unwrap().initial_delay_ms, Some(250));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.retry().initial_delay_ms = Some(whole_millis(delay));
        self
    }

    /// Where the doubling stops: at least the initial delay, at most a week. Default 60 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").max_delay(std::time::Duration::from_secs(10));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.retry.unwrap().max_delay_ms, Some(10_000));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.retry().max_delay_ms = Some(whole_millis(delay));
        self
    }

    /// How long one attempt may run from its granted start: 100 ms to a day. Default 5 minutes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").attempt_timeout(std::time::Duration::from_secs(5));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.retry.unwrap().attempt_timeout_ms, Some(5_000));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.retry().attempt_timeout_ms = Some(whole_millis(timeout));
        self
    }

    /// Whether an execution with unknown effect may be repeated. Default `ReconcileOnly`: a person must look.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").recovery_safety(orbit::proto::RecoverySafety::Idempotent);
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.recovery_safety(), orbit::proto::RecoverySafety::Idempotent);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn recovery_safety(mut self, safety: RecoverySafety) -> Self {
        self.request.set_recovery_safety(safety);
        self
    }

    /// Total time from acceptance to the task's deadline: 100 ms to 30 days. Default a day.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").task_timeout(std::time::Duration::from_hours(1));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert_eq!(task.task_timeout_ms, 3_600_000);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn task_timeout(mut self, timeout: Duration) -> Self {
        self.request.task_timeout_ms = Some(whole_millis(timeout));
        self
    }

    /// Earliest first claim. Default at once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").not_before(std::time::SystemTime::now() + std::time::Duration::from_mins(1));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert!(task.available_at.unwrap().seconds > task.created_at.unwrap().seconds);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn not_before(mut self, moment: SystemTime) -> Self {
        self.request.not_before = Some(moment.into());
        self
    }

    /// No attempt is claimed or started at or after this moment. Default none.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").start_before(std::time::SystemTime::now() + std::time::Duration::from_mins(1));
    /// let task = client.get(&submit.send().await?.task.task_id).await?;
    /// assert!(task.start_before.is_some());
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_before(mut self, moment: SystemTime) -> Self {
        self.request.start_before = Some(moment.into());
        self
    }

    /// Sends the task, again with the same key if the answer stays out, until the client's call timeout.
    ///
    /// After a `Transport` or `Timeout` error the task may or may not have been accepted: calling `send` on the
    /// same value again finds out, without a second task.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "text.normalize", "v1").payload("hello");
    /// match submit.send().await {
    ///     Ok(submitted) => println!("accepted {}", submitted.task.task_id),
    ///     Err(error) if error.is_transient() => println!("send the same again later: {error}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
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

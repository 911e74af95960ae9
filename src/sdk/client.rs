//! The producer's client.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    backoff::Backoff,
    call::{Caller, millis},
    endpoint::{Endpoints, MESSAGE_BYTES_MAX, Transport},
    error::Error,
    submit::Submit,
};
use crate::proto::{
    Attempt, GetTaskRequest, ListAttemptsRequest, ListAttemptsResponse, LookupTaskRequest, SubmitTaskRequest,
    SubmitTaskResponse, Task, TaskState, TaskView, WaitTaskRequest, task_service_client::TaskServiceClient,
};

/// Where a server listens unless told otherwise.
///
/// ```
/// assert_eq!(orbit::sdk::DEFAULT_URL, "http://127.0.0.1:7070");
/// ```
pub const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// How long a unary call may take, all its tries together, unless the client says otherwise.
///
/// ```
/// assert_eq!(orbit::sdk::DEFAULT_CALL_TIMEOUT.as_secs(), 10);
/// ```
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one call may wait on the server.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// What a waiting call leaves for its answer to arrive.
const WAIT_ANSWER: Duration = Duration::from_millis(500);
/// No time for a call is left.
const WAIT_LEAST: Duration = Duration::from_millis(5);
const WAIT_AGAIN_FIRST: Duration = Duration::from_millis(25);
const WAIT_AGAIN_LIMIT: Duration = Duration::from_millis(500);
const ATTEMPTS_PAGE_SIZE: i32 = 1_000;

/// Talks to one Orbit cluster. Cheap to clone; all clones share their connections.
///
/// A call is sent again, with the same key or request id, while the server is unavailable or the connection breaks,
/// until the call timeout (10 s unless set). With several addresses it moves on to the next.
///
/// ```no_run
/// # async fn example() -> Result<(), orbit::sdk::Error> {
/// use orbit::sdk::Client;
///
/// let client = Client::connect("http://127.0.0.1:7070")?;
/// let submitted = client
///     .submit("default", "text.normalize", "v1")
///     .idempotency_key("greeting-1")
///     .payload(&serde_json::json!({ "text": " hello " }))
///     .max_attempts(3)
///     .send()
///     .await?;
/// println!("accepted {}", submitted.task.task_id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    endpoints: Arc<Endpoints>,
    caller: Caller,
}

/// What a [`Client`] is made from.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use orbit::sdk::{Client, ErrorKind};
///
/// let client = Client::builder()
///     .url("https://orbit-1.example:7070,https://orbit-2.example:7070")
///     .bearer_token("a secret")
///     .call_timeout(Duration::from_secs(5))
///     .build()?;
///
/// let wrong = Client::builder().url("orbit.example:7070").build();
/// assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Config);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a client is made by `.build()`"]
pub struct ClientBuilder {
    urls: Vec<String>,
    ca_pem: Option<String>,
    token: Option<String>,
    call_timeout: Duration,
}

impl ClientBuilder {
    /// Adds an address, `http://host:port` or `https://host:port`, or several separated by commas.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut builder = orbit::sdk::Client::builder();
    /// builder = builder.url("http://10.0.0.1:7070").url("http://10.0.0.2:7070");
    /// let client = builder.build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        let urls = url.as_ref().split(',').map(str::trim).filter(|url| !url.is_empty());
        self.urls.extend(urls.map(str::to_owned));
        self
    }

    /// Trusts this certificate authority (PEM) instead of the system's. All addresses must then be `https`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use orbit::sdk::{Client, ErrorKind};
    ///
    /// // let pem = std::fs::read_to_string("ca.pem")?;
    /// # let pem = "-----BEGIN CERTIFICATE-----";
    /// // Beside an address without TLS it would check nothing.
    /// let wrong = Client::builder().url("http://orbit.example").ca_certificate_pem(pem).build();
    /// assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Config);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ca_certificate_pem(mut self, pem: impl Into<String>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Sends `authorization: Bearer …` with every call and stream.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut builder = orbit::sdk::Client::builder();
    /// builder = builder.url("https://orbit.example").bearer_token("a secret");
    /// let client = builder.build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long one call may take, all its tries together. Default [`DEFAULT_CALL_TIMEOUT`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut builder = orbit::sdk::Client::builder();
    /// builder = builder.url("http://10.0.0.1:7070").call_timeout(std::time::Duration::from_secs(30));
    /// let client = builder.build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Makes the client; connects when it is first used. Errors of kind `Config`: no or a wrong address, a certificate
    /// authority that is none, or for an address without TLS, a token that no header can carry, a call outside of a tokio
    /// runtime.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = orbit::sdk::Client::builder().url("http://127.0.0.1:7070").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<Client, Error> {
        let endpoints = Endpoints::parse(&self.urls, self.ca_pem.as_deref(), self.token.as_deref())?;
        let caller = Caller::new(&endpoints, self.call_timeout)?;
        Ok(Client { endpoints: Arc::new(endpoints), caller })
    }
}

impl Client {
    /// A client for one address, or for several of the same cluster separated by commas.
    ///
    /// Connects when it is first used, so a server that is not there yet is no error here. Errors as
    /// [`ClientBuilder::build`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Nobody listens there yet.
    /// let client = orbit::sdk::Client::connect("http://10.0.0.1:7070,http://10.0.0.2:7070")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(urls: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(urls).build()
    }

    /// A client with a token, its own certificate authority or another call timeout.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = orbit::sdk::Client::builder().url("http://127.0.0.1:7070").bearer_token("a secret").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder { urls: Vec::new(), ca_pem: None, token: None, call_timeout: DEFAULT_CALL_TIMEOUT }
    }

    /// The same client, on the same connections, with another call timeout.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let patient = client.with_call_timeout(std::time::Duration::from_mins(5));
    /// patient.list_queues().await?;
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_call_timeout(&self, timeout: Duration) -> Self {
        Self { endpoints: Arc::clone(&self.endpoints), caller: self.caller.with_timeout(timeout) }
    }

    /// Begins to submit a task to a queue, for the handler of that name and version.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "invoice.send", "v1").idempotency_key("invoice-4711/send");
    /// let first = submit.send().await?;
    /// let again = submit.send().await?;
    /// assert_eq!((&first.task.task_id, again.replayed), (&again.task.task_id, true));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(
        &self,
        queue: impl Into<String>,
        handler: impl Into<String>,
        handler_version: impl Into<String>,
    ) -> Submit {
        Submit::new(self.clone(), queue.into(), handler.into(), handler_version.into())
    }

    /// Begins to submit a task that is written out already, its idempotency key too.
    pub fn submit_request(&self, request: SubmitTaskRequest) -> Submit {
        Submit::from_request(self.clone(), request)
    }

    /// The task as of now, with payload and result. Reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submitted = client.submit("default", "text.normalize", "v1").payload("hello").send().await?;
    /// let task = client.get(&submitted.task.task_id).await?;
    /// assert_eq!(task.payload, r#""hello""#);
    ///
    /// let missing = client.get("0198d7a4-0000-7000-8000-000000000000").await.unwrap_err();
    /// assert_eq!(missing.reason(), Some("TASK_NOT_FOUND"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, task_id: &str) -> Result<Task, Error> {
        self.get_view(task_id, TaskView::Full).await
    }

    /// The task as of now, in the view asked for: BASIC leaves payload and result out. Reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use orbit::proto::{TaskState, TaskView};
    ///
    /// let submitted = client.submit("default", "text.normalize", "v1").payload("hello").send().await?;
    /// let task = client.get_view(&submitted.task.task_id, TaskView::Basic).await?;
    /// assert_eq!((task.state(), task.payload.as_str()), (TaskState::Waiting, ""));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_view(&self, task_id: &str, view: TaskView) -> Result<Task, Error> {
        let request = GetTaskRequest { task_id: task_id.to_owned(), view: view.into() };
        let answer = self
            .caller
            .call("GetTask", &request, |transport, request| async move {
                tasks(transport).get_task(request).await
            })
            .await?;
        answer.task.ok_or_else(|| Error::protocol("GetTask was answered without a task"))
    }

    /// The task that this client's idempotency key made, without payload and result: what became of a submit whose
    /// answer was lost. Reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submit = client.submit("default", "invoice.send", "v1").idempotency_key("invoice-4711/send");
    /// let submitted = submit.send().await?;
    /// assert_eq!(client.lookup("invoice-4711/send").await?.task_id, submitted.task.task_id);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lookup(&self, idempotency_key: &str) -> Result<Task, Error> {
        let request = LookupTaskRequest { idempotency_key: idempotency_key.to_owned() };
        let answer = self
            .caller
            .call("LookupTask", &request, |transport, request| async move {
                tasks(transport).lookup_task(request).await
            })
            .await?;
        answer.task.ok_or_else(|| Error::protocol("LookupTask was answered without a task"))
    }

    /// All attempts of the task, oldest first, with what they reported. Reason `TASK_NOT_FOUND`.
    ///
    /// Holds the whole history in memory; [`attempts_page`](Self::attempts_page) reads a long one in portions.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
    /// // No worker has taken it.
    /// assert!(client.attempts(&submitted.task.task_id).await?.is_empty());
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn attempts(&self, task_id: &str) -> Result<Vec<Attempt>, Error> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let page = self.attempts_page(task_id, ATTEMPTS_PAGE_SIZE, &token).await?;
            all.extend(page.attempts);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            token = page.next_page_token;
        }
    }

    /// One page of the task's attempts: at most `page_size`, from `page_token` on (empty for the first page).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
    /// let page = client.attempts_page(&submitted.task.task_id, 50, "").await?;
    /// assert!(page.next_page_token.is_empty());
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn attempts_page(
        &self,
        task_id: &str,
        page_size: i32,
        page_token: &str,
    ) -> Result<ListAttemptsResponse, Error> {
        let request =
            ListAttemptsRequest { task_id: task_id.to_owned(), page_size, page_token: page_token.to_owned() };
        self.caller
            .call("ListAttempts", &request, |transport, request| async move {
                tasks(transport).list_attempts(request).await
            })
            .await
    }

    /// Waits until the task is SUCCEEDED, FAILED, CANCELED or `NEEDS_REVIEW`, at most `limit`, and returns it whole.
    ///
    /// The server tells at once: nothing is polled. Goes on waiting while the server is away. An error of kind `Timeout` when the task is not settled by then;
    /// reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::{proto::TaskState, sdk::{Context, Failure, Worker}};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?.start()?;
    /// let submitted = client.submit("default", "double", "v1").payload(&21).send().await?;
    /// let task = client.wait(&submitted.task.task_id, Duration::from_secs(30)).await?;
    /// assert_eq!((task.state(), task.result.as_str()), (TaskState::Succeeded, "42"));
    /// # worker.drain(Duration::from_secs(10)).await?;
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self, task_id: &str, limit: Duration) -> Result<Task, Error> {
        let deadline = Instant::now() + limit;
        let mut backoff = Backoff::new(WAIT_AGAIN_FIRST, WAIT_AGAIN_LIMIT);
        let mut state = TaskState::Unspecified;
        let mut last = None;
        loop {
            let began = Instant::now();
            let left = deadline.saturating_duration_since(began);
            if left < WAIT_LEAST {
                let message = format!(
                    "task {task_id} was not settled within {} ms; its last known state is {}",
                    millis(limit),
                    state.as_str_name()
                );
                return Err(Error::timeout(message, last));
            }
            let caller = self.caller.with_timeout(left.min(self.caller.timeout()));
            // Each try must leave time for its answer.
            let try_time = caller.try_time(caller.timeout());
            let wait = try_time.saturating_sub((try_time / 4).min(WAIT_ANSWER)).min(WAIT_MAX);
            match wait_once(&caller, task_id, wait).await {
                Ok(task) if is_settled(task.state()) => return Ok(task),
                Ok(task) => {
                    state = task.state();
                    last = None;
                }
                Err(error) if error.is_transient() => last = Some(error),
                Err(error) => return Err(error),
            }
            // It waited as it was asked to. Otherwise the server is going away, or is away.
            if last.is_none() && began.elapsed() >= wait {
                backoff = Backoff::new(WAIT_AGAIN_FIRST, WAIT_AGAIN_LIMIT);
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            sleep(backoff.next_delay().min(left)).await;
        }
    }

    pub(crate) async fn submit_task(&self, request: &SubmitTaskRequest) -> Result<SubmitTaskResponse, Error> {
        self.caller
            .call("SubmitTask", request, |transport, request| async move {
                tasks(transport).submit_task(request).await
            })
            .await
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn endpoints(&self) -> &Arc<Endpoints> {
        &self.endpoints
    }
}

pub(crate) fn tasks(transport: Transport) -> TaskServiceClient<Transport> {
    TaskServiceClient::new(transport).max_decoding_message_size(MESSAGE_BYTES_MAX)
}

/// One long poll: the task, settled or as it is when `wait` is over.
async fn wait_once(caller: &Caller, task_id: &str, wait: Duration) -> Result<Task, Error> {
    let request = WaitTaskRequest {
        task_id: task_id.to_owned(),
        wait_ms: Some(u32::try_from(wait.as_millis()).unwrap_or(0)),
        view: TaskView::Full.into(),
    };
    let answer =
        caller
            .call("WaitTask", &request, |transport, request| async move {
                tasks(transport).wait_task(request).await
            })
            .await?;
    answer.task.ok_or_else(|| Error::protocol("WaitTask was answered without a task"))
}

/// Whether nothing more happens to the task by itself.
fn is_settled(state: TaskState) -> bool {
    match state {
        TaskState::Succeeded | TaskState::Failed | TaskState::Canceled | TaskState::NeedsReview => true,
        TaskState::Unspecified | TaskState::Waiting | TaskState::Leased | TaskState::Running => false,
    }
}

//! Describing a worker.

use std::{sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{
    context::Context,
    failure::Failure,
    handle::Worker,
    handler::{self, Handler, Handlers},
    link::SAFE_RETRY,
};
use crate::{
    proto::Hello,
    sdk::{client::Client, error::Error},
};

/// How many handlers run at once unless the worker says otherwise.
///
/// ```
/// assert_eq!(orbit::sdk::DEFAULT_SLOTS, 10);
/// ```
pub const DEFAULT_SLOTS: u32 = 10;
/// How long a drain may take unless the worker says otherwise.
///
/// ```
/// assert_eq!(orbit::sdk::DEFAULT_DRAIN_LIMIT.as_secs(), 30);
/// ```
pub const DEFAULT_DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// The largest result that is reported unless the worker says otherwise, in bytes of JSON text: the server's default.
///
/// ```
/// assert_eq!(orbit::sdk::DEFAULT_RESULT_BYTES_MAX, 1 << 20);
/// ```
pub const DEFAULT_RESULT_BYTES_MAX: usize = 1024 * 1024;

const SLOTS_MAX: u32 = 10_000;

/// What a [`Worker`] is made from.
///
/// ```no_run
/// use orbit::sdk::{Client, Context, Failure, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize, Serialize)]
/// struct Text {
///     text: String,
/// }
///
/// async fn normalize(context: Context, input: Text) -> Result<Text, Failure> {
///     if input.text.is_empty() {
///         return Err(Failure::permanent("EMPTY_TEXT"));
///     }
///     tracing::info!(task_id = context.task_id(), "normalizing");
///     Ok(Text { text: input.text.trim().to_uppercase() })
/// }
///
/// # async fn example() -> Result<(), orbit::sdk::Error> {
/// let client = Client::connect("http://127.0.0.1:7070")?;
/// let worker = Worker::builder(&client)
///     .queue("default")
///     .handler("text.normalize", "v1", normalize)
///     .slots(20)
///     .build()?;
/// # let shutdown = async {};
/// let report = worker.run_until(shutdown).await?;
/// println!("{} reports confirmed", report.confirmed);
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker is made by `.build()`"]
pub struct WorkerBuilder {
    client: Client,
    hello: Hello,
    handlers: Vec<(String, String, Wrap)>,
    result_bytes_max: usize,
    drain_limit: Duration,
}

/// Makes the handler once the largest result is known.
type Wrap = Box<dyn FnOnce(usize) -> Handler + Send>;

impl WorkerBuilder {
    pub(crate) fn new(client: Client) -> Self {
        let hello = Hello {
            worker_name: format!("rust-{}", Uuid::new_v4().as_fields().0),
            max_in_flight: DEFAULT_SLOTS,
            features: vec![SAFE_RETRY.to_owned()],
            ..Hello::default()
        };
        Self {
            client,
            hello,
            handlers: Vec::new(),
            result_bytes_max: DEFAULT_RESULT_BYTES_MAX,
            drain_limit: DEFAULT_DRAIN_LIMIT,
        }
    }

    /// Adds a queue to take work from; at least one. A queue that does not exist yet is served once it does.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// let worker = Worker::builder(&client).queue("default").queue("mail").handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn queue(mut self, queue_id: impl Into<String>) -> Self {
        self.hello.queue_ids.push(queue_id.into());
        self
    }

    /// Adds a handler of serde types for tasks of this name and version; at least one.
    ///
    /// `Ok` is reported SUCCEEDED. Of failures only [`Failure::retryable`] and [`Failure::permanent`] are reported FAILED.
    /// Every other error, a panic, an abort, and a result that cannot be written as JSON or is too large, is
    /// reported UNKNOWN. A payload that is not a `T` is a permanent failure, `PAYLOAD_INVALID`: nothing ran.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// async fn double(_: Context, number: u32) -> Result<u32, Failure> {
    ///     number.checked_mul(2).ok_or_else(|| Failure::permanent("TOO_LARGE"))
    /// }
    ///
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn handler<T, R, F, Fut>(
        mut self,
        name: impl Into<String>,
        version: impl Into<String>,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        R: Serialize + Send + 'static,
        F: Fn(Context, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Failure>> + Send + 'static,
    {
        let wrap = Box::new(move |bytes_max| handler::typed(handler, bytes_max));
        self.handlers.push((name.into(), version.into(), wrap));
        self
    }

    /// Adds a handler of JSON texts, which sees the payload byte for byte as submitted; otherwise as
    /// [`handler`](Self::handler). A result that is not JSON is reported UNKNOWN.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// async fn echo(_: Context, json: String) -> Result<String, Failure> {
    ///     Ok(json)
    /// }
    ///
    /// let worker = Worker::builder(&client).queue("default").raw_handler("echo", "v1", echo).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn raw_handler<F, Fut>(
        mut self,
        name: impl Into<String>,
        version: impl Into<String>,
        handler: F,
    ) -> Self
    where
        F: Fn(Context, String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, Failure>> + Send + 'static,
    {
        let wrap = Box::new(move |bytes_max| handler::raw(handler, bytes_max));
        self.handlers.push((name.into(), version.into(), wrap));
        self
    }

    /// How many handlers run at once: 1 to 10,000. Default [`DEFAULT_SLOTS`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// let worker = Worker::builder(&client).queue("default").slots(100).handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(mut self, slots: u32) -> Self {
        self.hello.max_in_flight = slots;
        self
    }

    /// A label for people, 1 to 128 visible characters. Default `rust-` and a random number.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// let worker = Worker::builder(&client).queue("default").name("mailer-3").handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.hello.worker_name = name.into();
        self
    }

    /// How long the drain of [`Worker::run_until`] may take. Default [`DEFAULT_DRAIN_LIMIT`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// let worker = Worker::builder(&client).queue("default").drain_limit(std::time::Duration::from_secs(60)).handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain_limit(mut self, limit: Duration) -> Self {
        self.drain_limit = limit;
        self
    }

    /// The largest result that is reported, in bytes of JSON text. Default [`DEFAULT_RESULT_BYTES_MAX`]; raise it only
    /// together with the server's limit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// let worker = Worker::builder(&client).queue("default").result_bytes_max(64 * 1024).handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn result_bytes_max(mut self, bytes: usize) -> Self {
        self.result_bytes_max = bytes;
        self
    }

    /// Makes the worker. Errors of kind `Config`: no queue, no handler, a handler twice, a number of slots out of range.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use orbit::sdk::{Client, Context, Failure, Worker};
    /// # let client = Client::connect("http://127.0.0.1:7070")?;
    /// # let nothing = |_: Context, (): ()| async { Ok::<_, Failure>(()) };
    /// assert!(Worker::builder(&client).handler("nothing", "v1", nothing).build().is_err(), "it has no queue");
    /// let worker = Worker::builder(&client).queue("default").handler("nothing", "v1", nothing).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(mut self) -> Result<Worker, Error> {
        if self.hello.queue_ids.is_empty() {
            return Err(Error::config("a worker needs at least one queue"));
        }
        if !(1..=SLOTS_MAX).contains(&self.hello.max_in_flight) {
            let slots = self.hello.max_in_flight;
            return Err(Error::config(format!("a worker has 1 to {SLOTS_MAX} slots, not {slots}")));
        }
        let mut handlers = Handlers::default();
        for (name, version, wrap) in self.handlers {
            let message = format!("the handler `{name}` {version} was given twice");
            if !handlers.insert(name, version, wrap(self.result_bytes_max)) {
                return Err(Error::config(message));
            }
        }
        self.hello.handlers = handlers.versions();
        if self.hello.handlers.is_empty() {
            return Err(Error::config("a worker needs at least one handler"));
        }
        Ok(Worker {
            client: self.client,
            declaration: self.hello,
            handlers: Arc::new(handlers),
            drain_limit: self.drain_limit,
        })
    }
}

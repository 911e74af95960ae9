//! A worker's life: started, draining, stopped.

use std::{sync::Arc, thread, time::Duration};

use tokio::{
    runtime::{Builder, Handle},
    sync::{oneshot, watch},
    time::Instant,
};

use super::{
    builder::WorkerBuilder,
    driver::{Control, Driver},
    handler::Handlers,
};
use crate::{
    proto::Hello,
    sdk::{client::Client, error::Error},
};

/// A worker that is ready to run; see [`Worker::builder`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// use std::time::Duration;
///
/// use orbit::sdk::{Context, Failure, Worker};
///
/// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
/// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?;
/// let submitted = client.submit("default", "double", "v1").payload(&21).send().await?;
/// let settled = async { drop(client.wait(&submitted.task.task_id, Duration::from_secs(30)).await) };
/// let report = worker.run_until(settled).await?;
/// assert!(report.drained);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker runs by `.run_until(…).await` or `.start()`"]
pub struct Worker {
    pub(crate) client: Client,
    pub(crate) declaration: Hello,
    pub(crate) handlers: Arc<Handlers>,
    pub(crate) drain_limit: Duration,
}

/// What a worker did from its start to its end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// use std::time::Duration;
///
/// use orbit::sdk::{Context, Failure, Worker};
///
/// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
/// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?.start()?;
/// let submitted = client.submit("default", "double", "v1").payload(&21).send().await?;
/// client.wait(&submitted.task.task_id, Duration::from_secs(30)).await?;
/// let report = worker.drain(Duration::from_secs(10)).await?;
/// assert_eq!((report.drained, report.started, report.confirmed, report.running), (true, 1, 1, 0));
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Whether it ended with nothing at work and nothing unconfirmed.
    pub drained: bool,
    /// Attempts whose start was granted.
    pub started: u64,
    /// Reports with a receipt, of failures too; so not a number of tasks.
    pub confirmed: u64,
    /// Handlers still at work.
    pub running: u64,
    /// Of the confirmed reports, those without authority: they were kept, and changed nothing.
    pub evidence: u64,
    /// Reports that will never have a receipt: the task is gone, or the server refused them for good.
    pub refused: u64,
    /// Reports still without a receipt.
    pub unconfirmed: u64,
}

impl Worker {
    /// Begins to describe a worker of the client's cluster. It uses the client's addresses and credentials, on
    /// connections of its own.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::sdk::{Context, Failure, Worker};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).slots(4).build()?;
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(client: &Client) -> WorkerBuilder {
        WorkerBuilder::new(client.clone())
    }

    /// Works until `shutdown` is ready, then drains within the builder's drain limit.
    ///
    /// Reconnects for as long as it takes. An error only when the server refuses this worker for good (codes
    /// UNAUTHENTICATED, `PERMISSION_DENIED`, `INVALID_ARGUMENT`, `FAILED_PRECONDITION`), or of kind `Config` outside of a
    /// tokio runtime. Dropping the future stops the worker at once, without confirming anything.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::sdk::{Context, Failure, Worker};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?;
    /// // In a program: `worker.run_until(orbit::sdk::shutdown_signal()?)`.
    /// let report = worker.run_until(tokio::time::sleep(Duration::from_millis(50))).await?;
    /// assert!(report.drained);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<Report, Error> {
        let limit = self.drain_limit;
        let mut handle = self.start()?;
        tokio::select! {
            stopped = handle.stopped() => stopped,
            () = shutdown => handle.drain(limit).await,
        }
    }

    /// Starts the worker; handlers run on the current tokio runtime, the worker itself on a thread of its own.
    ///
    /// An error of kind `Config` outside of a tokio runtime, or when the thread cannot be made.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::sdk::{Context, Failure, Worker};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?;
    /// let handle = worker.start()?;
    /// handle.drain(Duration::from_secs(10)).await?;
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> Result<WorkerHandle, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::config("a worker must be started inside a tokio runtime"))?;
        let own = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::config(format!("the worker's own runtime could not be made: {error}")))?;
        let (control, controlled) = watch::channel(Control::Work);
        let (done, outcome) = oneshot::channel();
        let endpoints = Arc::clone(self.client.endpoints());
        let driver = Driver::new(self.declaration, endpoints, self.handlers, runtime, controlled);
        let subscriber = tracing::dispatcher::get_default(Clone::clone);
        thread::Builder::new()
            .name("orbit-worker".to_owned())
            .spawn(move || {
                let outcome = tracing::dispatcher::with_default(&subscriber, || own.block_on(driver.run()));
                // Nobody listens when the handle was dropped.
                let _ = done.send(outcome);
            })
            .map_err(|error| Error::config(format!("the worker's thread could not be made: {error}")))?;
        Ok(WorkerHandle { control, outcome })
    }
}

/// A running worker. Dropping it stops the worker at once, without confirming anything: handlers are told by their
/// tokens, and their leases run out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// use std::time::Duration;
///
/// use orbit::sdk::{Context, Failure, Worker};
///
/// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
/// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?.start()?;
/// // Something else meanwhile; then:
/// let report = worker.drain(Duration::from_secs(10)).await?;
/// assert!(report.drained);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the handle stops the worker"]
pub struct WorkerHandle {
    control: watch::Sender<Control>,
    outcome: oneshot::Receiver<Result<Report, Error>>,
}

impl WorkerHandle {
    /// Stops taking work, lets handlers end and has every result confirmed, at most for `limit`.
    ///
    /// When `limit` is over, the report tells what was left; those handlers are told by their tokens. Errors as
    /// [`Worker::run_until`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::sdk::{Context, Failure, Worker};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?.start()?;
    /// let report = worker.drain(Duration::from_secs(10)).await?;
    /// if !report.drained {
    ///     eprintln!("{} handlers are still at work, {} reports unconfirmed", report.running, report.unconfirmed);
    /// }
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(mut self, limit: Duration) -> Result<Report, Error> {
        let until = Instant::now() + limit;
        self.control.send_replace(Control::Drain { until });
        self.stopped().await
    }

    /// Waits until the worker has ended by itself, because the server refused it. Errors as [`Worker::run_until`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use std::time::Duration;
    ///
    /// use orbit::sdk::{Context, Failure, Worker};
    ///
    /// let double = |_: Context, number: u32| async move { Ok::<_, Failure>(2 * number) };
    /// let worker = Worker::builder(&client).queue("default").handler("double", "v1", double).build()?;
    /// let mut handle = worker.start()?;
    /// tokio::select! {
    ///     refused = handle.stopped() => eprintln!("the server refuses this worker: {refused:?}"),
    ///     () = tokio::time::sleep(Duration::from_millis(50)) => {}
    /// }
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stopped(&mut self) -> Result<Report, Error> {
        match (&mut self.outcome).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::protocol("the worker's thread has ended")),
        }
    }
}

//! A test kit for worker authors: Orbit inside the test's process, and the faults that a worker has to live through.
//!
//! [`TestServer`] is a real server on a temporary SQLite file, with something in between that can lose answers, deliver
//! twice and cut streams. A worker's test uses its own handlers and the real [`Worker`](crate::sdk::Worker).
//!
//! Needs the feature `testing`, in the dev-dependencies of a worker:
//!
//! ```toml
//! [dev-dependencies]
//! orbit = { version = "0.1", features = ["testing"] }
//! ```
//!
//! A handler that calls itself IDEMPOTENT is executed twice at once here, and must hold:
//!
//! ```
//! use std::{collections::HashMap, sync::{Arc, Mutex}, time::Duration};
//!
//! use orbit::{proto::{RecoverySafety, TaskState}, sdk::{Context, Failure, Worker}, testing::TestServer};
//! use tokio::sync::Notify;
//!
//! /// The resource: it books once for each key, and answers a repeated key with the first receipt.
//! #[derive(Default)]
//! struct Bank(Mutex<HashMap<String, u32>>);
//!
//! impl Bank {
//!     fn book(&self, key: &str) -> u32 {
//!         let mut booked = self.0.lock().unwrap();
//!         let next = booked.len() as u32 + 1;
//!         *booked.entry(key.to_owned()).or_insert(next)
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let orbit = TestServer::start().await?;
//!     let client = orbit.client()?;
//!     let (bank, booked) = (Arc::new(Bank::default()), Arc::new(Notify::new()));
//!
//!     let (the_bank, has_booked) = (Arc::clone(&bank), Arc::clone(&booked));
//!     let handler = move |context: Context, (): ()| {
//!         let (bank, booked) = (Arc::clone(&the_bank), Arc::clone(&has_booked));
//!         async move {
//!             let receipt = bank.book(context.task_id());
//!             booked.notify_one();
//!             if context.attempt_number() == 1 {
//!                 // Frozen after the effect, until the worker hears that the lease is lost.
//!                 context.cancelled().await;
//!             }
//!             Ok::<_, Failure>(receipt)
//!         }
//!     };
//!     let worker = Worker::builder(&client).queue("default").handler("charge", "v1", handler).build()?.start()?;
//!     let submit = client.submit("default", "charge", "v1").payload(&());
//!     let submit = submit.recovery_safety(RecoverySafety::Idempotent).max_attempts(2);
//!     let task = submit.initial_delay(Duration::from_millis(10)).send().await?.task;
//!
//!     booked.notified().await;
//!     orbit.expire_leases().await?;
//!     let task = client.wait(&task.task_id, Duration::from_secs(30)).await?;
//!     assert_eq!((task.state(), task.attempt_count, task.result.as_str()), (TaskState::Succeeded, 2, "1"));
//!     assert_eq!(bank.0.lock().unwrap().len(), 1);
//!
//!     // The first attempt's result was late: kept as evidence.
//!     let report = worker.drain(Duration::from_secs(30)).await?;
//!     assert_eq!((report.started, report.confirmed, report.evidence), (2, 2, 1));
//!     orbit.shutdown().await?;
//!     Ok(())
//! }
//! ```

mod between;

use std::time::Duration;

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    sdk::{Client, Error},
    server::{Embedded, ServerConfig, StartError},
};

/// Short, so that a worker hears within a second, at its next renewal, of what became of a lease.
const LEASE: Duration = Duration::from_secs(3);
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);

/// An Orbit inside the test's process, on a temporary SQLite file, with the queue `default` and faults to switch on.
///
/// Leases last 3 s unless changed, and what has expired is noticed within 50 ms. See the [module](self) for an example.
/// Dropping it begins the shutdown without waiting for its end.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
/// assert_eq!(client.attempts(&submitted.task.task_id).await?.len(), 0);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TestServer {
    url: String,
    server: Embedded,
    faults: watch::Sender<Faults>,
    /// Ends what stands between, also when this is dropped.
    stop: DropGuard,
    serving: JoinHandle<()>,
}

/// What goes wrong between server and workers.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    drop_start_acknowledgements: bool,
    drop_acknowledgements: bool,
    deliver_twice: bool,
    /// Raised to cut all streams there are.
    cuts: u64,
}

impl TestServer {
    /// Starts one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let orbit = orbit::testing::TestServer::start().await?;
    /// let client = orbit.client()?;
    /// let task = client.submit("default", "text.normalize", "v1").send().await?.task;
    /// assert_eq!(client.get(&task.task_id).await?.attempt_count, 0);
    /// orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(|_| ()).await
    }

    /// Starts one with other settings: further queues, other leases. Whatever `change` does to the database, address or
    /// schema is undone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let orbit = orbit::testing::TestServer::start_with(|config| config.queues.push("mail".to_owned())).await?;
    /// assert_eq!(orbit.client()?.list_queues().await?.len(), 2);
    /// orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start_with(change: impl FnOnce(&mut ServerConfig)) -> Result<Self, StartError> {
        let server = Embedded::start_with(|config| {
            config.engine.lease = LEASE;
            config.engine.sweep_interval = SWEEP_INTERVAL;
            change(config);
        })
        .await?;
        let (faults, told) = watch::channel(Faults::default());
        let stop = CancellationToken::new();
        let (address, serving) = between::serve(server.url(), told, stop.clone())
            .await
            .map_err(|error| StartError::Serve(error.to_string()))?;
        let serving = TaskTracker::new().spawn(serving);
        Ok(Self { url: format!("http://{address}"), server, faults, stop: stop.drop_guard(), serving })
    }

    /// The address for clients and workers, `http://127.0.0.1:port`, behind which the switches work.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let client = orbit::sdk::Client::connect(orbit.url())?;
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client of it, for producers and for workers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// assert_eq!(client.list_queues().await?.len(), 1);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn client(&self) -> Result<Client, Error> {
        Client::connect(&self.url)
    }

    /// Whether the answers to reports (`finish`) are lost from now on. The server has committed them all the same: a
    /// worker sends them again until one arrives, and the handler is not called again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// orbit.drop_acknowledgements(true);
    /// // … a worker reports, and does not hear that it was committed …
    /// orbit.drop_acknowledgements(false);
    /// orbit.cut_streams();
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_acknowledgements(&self, drop: bool) {
        self.faults.send_modify(|faults| faults.drop_acknowledgements = drop);
    }

    /// Whether the answers to `start` are lost from now on: attempts are authorized, and their workers do not know it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// orbit.drop_start_acknowledgements(true);
    /// // … an attempt is RUNNING, and its handler must not run yet …
    /// orbit.drop_start_acknowledgements(false);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_start_acknowledgements(&self, drop: bool) {
        self.faults.send_modify(|faults| faults.drop_start_acknowledgements = drop);
    }

    /// Whether each attempt is handed over twice from now on: the same attempt, which must run once.
    ///
    /// For two executions of one task, which a handler that is declared IDEMPOTENT must survive, see
    /// [`expire_leases`](Self::expire_leases).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// orbit.deliver_twice(true);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn deliver_twice(&self, twice: bool) {
        self.faults.send_modify(|faults| faults.deliver_twice = twice);
    }

    /// Breaks all worker streams that there are, on both sides, as a connection breaks. Workers come back and go on with
    /// what they hold.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// orbit.cut_streams();
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cut_streams(&self) {
        self.faults.send_modify(|faults| faults.cuts += 1);
    }

    /// Ends all leases that there are, now; answers how many. As if their workers had been silent for too long: what had
    /// been started is in doubt, and is run again only if its task is IDEMPOTENT. The workers hear of it at their next
    /// renewal, and what they then report is evidence.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// assert_eq!(orbit.expire_leases().await?, 0);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn expire_leases(&self) -> Result<u64, StartError> {
        self.server.expire_leases().await
    }

    /// Ends it, and removes its database. Workers that are still there are told to go away.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(self) -> Result<(), StartError> {
        let Self { server, stop, serving, .. } = self;
        // First the streams, so that the server waits for no worker.
        stop.disarm().cancel();
        let served = server.shutdown().await;
        // It ends by the token, with the last call that the server answered.
        let _ = serving.await;
        served
    }
}

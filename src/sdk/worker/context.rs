//! What a handler knows about its attempt, and how the worker tells it that something changed.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::proto::{Dispatch, RecoverySafety};

/// One attempt, as its handler sees it. Cheap to clone.
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
/// let look = |context: Context, (): ()| async move {
///     assert_eq!((context.attempt_number(), context.max_attempts(), context.epoch()), (1, 1, 1));
///     assert_eq!((context.queue_id(), context.handler()), ("default", "look"));
///     assert!(!context.effect_uncertain() && !context.is_cancelled());
///     Ok::<_, Failure>(context.task_id().to_owned())
/// };
/// let worker = Worker::builder(&client).queue("default").handler("look", "v1", look).build()?.start()?;
/// let id = client.submit("default", "look", "v1").send().await?.task.task_id;
/// let task = client.wait(&id, Duration::from_secs(30)).await?;
/// assert_eq!(task.result, format!("{id:?}"));
/// # worker.drain(Duration::from_secs(10)).await?;
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dispatch: Dispatch,
    deadline: Instant,
    token: CancellationToken,
    reason: Arc<OnceLock<CancelReason>>,
    lease: watch::Receiver<LeaseSignal>,
}

/// Why a handler is asked to stop. Its result is wanted all the same.
///
/// ```
/// # use orbit::sdk::{CancelReason, Context, Failure};
/// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
///     tokio::select! {
///         () = tokio::time::sleep(std::time::Duration::from_secs(60)) => {}
///         () = context.cancelled() => return Err(match context.cancel_reason() {
///             Some(CancelReason::Requested) => Failure::canceled("STOPPED"),
///             _ => Failure::unknown("INTERRUPTED"),
///         }),
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// Somebody canceled the task. A handler that stops, and after which nothing more will happen, returns
    /// [`Failure::canceled`](super::Failure::canceled).
    Requested,
    /// The server said that the lease is not valid: the attempt may be somebody else's. What the handler reports is
    /// kept as evidence.
    LeaseLost,
    /// The attempt's timeout or the task's deadline has passed.
    TimedOut,
    /// The worker has let go of the attempt: it has been reported, or the worker stops without waiting any longer.
    Released,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseSignal {
    Confirmed,
    /// The lease may have run out by now; only the server can tell.
    Unconfirmed,
    Lost,
}

impl Context {
    /// The task's id, the same over all automatic retries: **the key for business idempotency**.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let key = context.task_id(); // for the resource: `Idempotency-Key`, a unique column
    ///     Ok(())
    /// }
    /// ```
    pub fn task_id(&self) -> &str {
        &self.inner.dispatch.task_id
    }

    /// The attempt's id. It changes with every attempt, so it is no key for business idempotency.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     println!("attempt {} begins", context.attempt_id());
    ///     Ok(())
    /// }
    /// ```
    pub fn attempt_id(&self) -> &str {
        &self.inner.dispatch.attempt_id
    }

    /// The attempt's number, from 1.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     println!("attempt {} of {}", context.attempt_number(), context.max_attempts());
    ///     Ok(())
    /// }
    /// ```
    pub fn attempt_number(&self) -> u32 {
        self.inner.dispatch.attempt_number
    }

    /// How many attempts there may be in all.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let last = context.attempt_number() == context.max_attempts();
    ///     Ok(())
    /// }
    /// ```
    pub fn max_attempts(&self) -> u32 {
        self.inner.dispatch.max_attempts
    }

    /// The fencing number: a resource that remembers the highest it has seen can turn away a late, older attempt.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let update = "UPDATE devices SET setting = ?, epoch = ? WHERE id = ? AND epoch <= ?";
    ///     let fence = context.epoch();
    ///     Ok(())
    /// }
    /// ```
    pub fn epoch(&self) -> u32 {
        self.inner.dispatch.epoch
    }

    /// The task's queue.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     println!("from queue {}", context.queue_id());
    ///     Ok(())
    /// }
    /// ```
    pub fn queue_id(&self) -> &str {
        &self.inner.dispatch.queue_id
    }

    /// The handler's name.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     println!("{} {}", context.handler(), context.handler_version());
    ///     Ok(())
    /// }
    /// ```
    pub fn handler(&self) -> &str {
        &self.inner.dispatch.handler
    }

    /// The handler's version.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     println!("{} {}", context.handler(), context.handler_version());
    ///     Ok(())
    /// }
    /// ```
    pub fn handler_version(&self) -> &str {
        &self.inner.dispatch.handler_version
    }

    /// The version of the payload's schema.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     if context.payload_version() != "v1" {
    ///         return Err(Failure::permanent("UNKNOWN_PAYLOAD_VERSION"));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn payload_version(&self) -> &str {
        &self.inner.dispatch.payload_version
    }

    /// What the task was submitted as.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     if context.recovery_safety() != orbit::proto::RecoverySafety::Idempotent {
    ///         return Err(Failure::permanent("MUST_BE_IDEMPOTENT"));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn recovery_safety(&self) -> RecoverySafety {
        self.inner.dispatch.recovery_safety()
    }

    /// Whether an earlier execution of the task may have had its effect: look before you act.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     if context.effect_uncertain() {
    ///         // Look at the resource: has an earlier attempt done it?
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn effect_uncertain(&self) -> bool {
        self.inner.dispatch.effect_uncertain
    }

    /// When the attempt's time is over, by this process's clock: the attempt's timeout or the task's deadline,
    /// whichever comes first. The cancellation token is cancelled then.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let answer = tokio::time::timeout_at(context.deadline(), async { "an answer" }).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.inner.deadline
    }

    /// Time left to [`deadline`](Self::deadline); zero when it has passed.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let answer = tokio::time::timeout(context.remaining(), async { "an answer" }).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.inner.deadline.saturating_duration_since(Instant::now())
    }

    /// A token that is cancelled when the handler should stop; [`cancel_reason`](Self::cancel_reason) tells why.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     let token = context.cancellation_token();
    ///     let part = async move { token.run_until_cancelled(async { "done" }).await };
    ///     Ok(())
    /// }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        // A child, so that a handler cannot cancel what the worker judges by.
        self.inner.token.child_token()
    }

    /// Waits until the handler should stop.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     tokio::select! {
    ///         () = context.cancelled() => return Err(Failure::unknown("INTERRUPTED")),
    ///         () = tokio::time::sleep(std::time::Duration::from_secs(60)) => {}
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn cancelled(&self) -> WaitForCancellationFutureOwned {
        self.inner.token.clone().cancelled_owned()
    }

    /// Whether the handler should stop.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     for step in 0..1_000 {
    ///         if context.is_cancelled() {
    ///             return Err(Failure::unknown("INTERRUPTED").details(&step));
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.inner.token.is_cancelled()
    }

    /// Why the handler should stop; `None` while it should not.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     if context.cancel_reason() == Some(CancelReason::Requested) {
    ///         return Err(Failure::canceled("STOPPED"));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.inner.reason.get().copied()
    }

    /// Waits until the server says that the lease is not valid, or the attempt is over.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     tokio::select! {
    ///         () = context.lease_lost() => return Err(Failure::unknown("FENCED")),
    ///         () = tokio::time::sleep(std::time::Duration::from_secs(60)) => {}
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn lease_lost(&self) {
        let mut lease = self.inner.lease.clone();
        // An error means that the worker has let go of the attempt, and of its lease with it.
        let _ = lease.wait_for(|signal| *signal == LeaseSignal::Lost).await;
    }

    /// Waits until the lease could not be confirmed in time: the server may be away.
    ///
    /// No reason to stop by itself, since after an outage the server gives living leases a new term; a reason not to
    /// begin something that must not happen twice.
    ///
    /// ```
    /// # use orbit::sdk::{CancelReason, Context, Failure};
    /// async fn handler(context: Context, (): ()) -> Result<(), Failure> {
    ///     use futures_util::FutureExt as _;
    ///
    ///     if context.lease_unconfirmed().now_or_never().is_some() {
    ///         return Err(Failure::retryable("NOT_NOW")); // before the one thing that must not happen twice
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub async fn lease_unconfirmed(&self) {
        let mut lease = self.inner.lease.clone();
        let _ = lease.wait_for(|signal| *signal != LeaseSignal::Confirmed).await;
    }
}

/// The worker's end of a [`Context`].
#[derive(Debug)]
pub(crate) struct Signals {
    token: CancellationToken,
    reason: Arc<OnceLock<CancelReason>>,
    lease: watch::Sender<LeaseSignal>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        let (lease, _) = watch::channel(LeaseSignal::Confirmed);
        Self { token: CancellationToken::new(), reason: Arc::new(OnceLock::new()), lease }
    }

    pub(crate) fn context(&self, dispatch: Dispatch, deadline: Instant) -> Context {
        Context {
            inner: Arc::new(Inner {
                dispatch,
                deadline,
                token: self.token.clone(),
                reason: Arc::clone(&self.reason),
                lease: self.lease.subscribe(),
            }),
        }
    }

    /// The first reason stays.
    pub(crate) fn cancel(&self, reason: CancelReason) {
        let _ = self.reason.set(reason);
        self.token.cancel();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    pub(crate) fn lease(&self, signal: LeaseSignal) {
        self.lease.send_if_modified(|now| std::mem::replace(now, signal) != signal);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Whatever outlives the attempt must not believe in it.
        self.cancel(CancelReason::Released);
    }
}

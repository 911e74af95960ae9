//! What a handler knows about its attempt, and how the worker tells it that something changed.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::proto::{Dispatch, RecoverySafety};

/// One attempt, as its handler sees it. Cheap to clone.
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
    pub fn task_id(&self) -> &str {
        &self.inner.dispatch.task_id
    }

    /// The attempt's id. It changes with every attempt, so it is no key for business idempotency.
    pub fn attempt_id(&self) -> &str {
        &self.inner.dispatch.attempt_id
    }

    /// The attempt's number, from 1.
    pub fn attempt_number(&self) -> u32 {
        self.inner.dispatch.attempt_number
    }

    /// How many attempts there may be in all.
    pub fn max_attempts(&self) -> u32 {
        self.inner.dispatch.max_attempts
    }

    /// The fencing number: a resource that remembers the highest it has seen can turn away a late, older attempt.
    pub fn epoch(&self) -> u32 {
        self.inner.dispatch.epoch
    }

    /// The task's queue.
    pub fn queue_id(&self) -> &str {
        &self.inner.dispatch.queue_id
    }

    /// The handler's name.
    pub fn handler(&self) -> &str {
        &self.inner.dispatch.handler
    }

    /// The handler's version.
    pub fn handler_version(&self) -> &str {
        &self.inner.dispatch.handler_version
    }

    /// The version of the payload's schema.
    pub fn payload_version(&self) -> &str {
        &self.inner.dispatch.payload_version
    }

    /// What the task was submitted as.
    pub fn recovery_safety(&self) -> RecoverySafety {
        self.inner.dispatch.recovery_safety()
    }

    /// Whether an earlier execution of the task may have had its effect: look before you act.
    pub fn effect_uncertain(&self) -> bool {
        self.inner.dispatch.effect_uncertain
    }

    /// When the attempt's time is over, by this process's clock: the attempt's timeout or the task's deadline,
    /// whichever comes first. The cancellation token is cancelled then.
    pub fn deadline(&self) -> Instant {
        self.inner.deadline
    }

    /// Time left to [`deadline`](Self::deadline); zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.inner.deadline.saturating_duration_since(Instant::now())
    }

    /// A token that is cancelled when the handler should stop; [`cancel_reason`](Self::cancel_reason) tells why.
    pub fn cancellation_token(&self) -> CancellationToken {
        // A child, so that a handler cannot cancel what the worker judges by.
        self.inner.token.child_token()
    }

    /// Waits until the handler should stop.
    pub fn cancelled(&self) -> WaitForCancellationFutureOwned {
        self.inner.token.clone().cancelled_owned()
    }

    /// Whether the handler should stop.
    pub fn is_cancelled(&self) -> bool {
        self.inner.token.is_cancelled()
    }

    /// Why the handler should stop; `None` while it should not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.inner.reason.get().copied()
    }

    /// Waits until the server says that the lease is not valid, or the attempt is over.
    pub async fn lease_lost(&self) {
        let mut lease = self.inner.lease.clone();
        // An error means that the worker has let go of the attempt, and of its lease with it.
        let _ = lease.wait_for(|signal| *signal == LeaseSignal::Lost).await;
    }

    /// Waits until the lease could not be confirmed in time: the server may be away.
    ///
    /// No reason to stop by itself, since after an outage the server gives living leases a new term; a reason not to
    /// begin something that must not happen twice.
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

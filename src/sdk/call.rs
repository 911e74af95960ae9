//! One unary call: a deadline over all tries, and a re-send only where that is known to be harmless.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Request, Response, Status};

use super::{
    backoff::Backoff,
    endpoint::{Endpoints, Transport},
    error::{Error, ErrorKind},
};

pub(crate) const RESEND_DELAY_FIRST: Duration = Duration::from_millis(50);
pub(crate) const RESEND_DELAY_LIMIT: Duration = Duration::from_secs(2);

/// The channels to all addresses, and which of them answered last.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    channels: Arc<[Transport]>,
    /// Shared by all clones: the first call that finds an address dead moves the others on too.
    preferred: Arc<AtomicUsize>,
    timeout: Duration,
}

impl Caller {
    pub(crate) fn new(endpoints: &Endpoints, timeout: Duration) -> Result<Self, Error> {
        let channels =
            (0..endpoints.len()).map(|index| endpoints.channel(index)).collect::<Result<_, _>>()?;
        Ok(Self { channels, preferred: Arc::new(AtomicUsize::new(0)), timeout })
    }

    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends `message` until it is answered, a failure is final, or the time is over.
    ///
    /// `send` makes one try. Every message of the contract is safe to send again: reads change nothing, and writes
    /// carry a key or a request id, which stays the same over the tries.
    pub(crate) async fn call<M, R, F, Fut>(&self, rpc: &str, message: &M, send: F) -> Result<R, Error>
    where
        M: Clone,
        F: Fn(Transport, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = Backoff::new(RESEND_DELAY_FIRST, RESEND_DELAY_LIMIT);
        let mut failure: Option<Error> = None;
        loop {
            let index = self.preferred.load(Ordering::Relaxed);
            let Some(transport) = self.channels.get(index % self.channels.len().max(1)) else {
                return Err(Error::config("no address of an Orbit server was given"));
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let try_time = self.try_time(left);
            let mut request = Request::new(message.clone());
            request.set_timeout(try_time);
            let error = match timeout(try_time, send(transport.clone(), request)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => classify(status),
                Err(_) => {
                    Error::timeout(format!("{rpc} was not answered within {} ms", millis(try_time)), None)
                }
            };
            if !may_send_again(&error) {
                return Err(error);
            }
            // Only if no other call has moved on already.
            let next = index.wrapping_add(1);
            let _ = self.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);

            let delay = backoff.next_delay().max(error.retry_after().unwrap_or_default());
            tracing::debug!(rpc, %error, delay_ms = millis(delay), "the call may be sent again");
            // What failed tells more than that the time of a later try ran out.
            let told = failure.take_if(|_| error.kind() == ErrorKind::Timeout).unwrap_or(error);
            if delay >= deadline.saturating_duration_since(Instant::now()) {
                return Err(told);
            }
            failure = Some(told);
            sleep(delay).await;
        }
    }

    /// With several addresses one that swallows everything must leave time for another.
    pub(crate) fn try_time(&self, left: Duration) -> Duration {
        if self.channels.len() > 1 { left.min(self.timeout / 3) } else { left }
    }
}

fn classify(status: Status) -> Error {
    let error = Error::from(status);
    // tonic, on either side, turns an expired `grpc-timeout` into one of these; Orbit's own errors carry a reason.
    if error.reason().is_none() && matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled) {
        return Error::timeout("the call was not answered in time", Some(error));
    }
    error
}

fn may_send_again(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Transport | ErrorKind::Timeout => true,
        ErrorKind::Server => error.code() == Code::Unavailable,
        ErrorKind::Config | ErrorKind::Serialization | ErrorKind::Protocol => false,
    }
}

/// For logs and messages.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

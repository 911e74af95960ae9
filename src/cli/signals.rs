//! Being told to stop.

use std::{future::Future, io};

use tokio_util::sync::CancellationToken;

use super::failure::Failure;

/// Runs `work` to its end. SIGTERM or Ctrl-C cancels `shutdown`, which `work` is expected to heed; the next one drops
/// `work` where it stands.
pub(crate) async fn until_told_to_stop<T>(
    shutdown: CancellationToken,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut signals =
        Signals::listen().map_err(|error| Failure::new(format!("signals cannot be received: {error}")))?;
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        signal = signals.next() => {
            tracing::info!(signal, "stopping; a second signal stops at once");
            shutdown.cancel();
        }
    }
    tokio::select! {
        done = &mut work => done,
        _ = signals.next() => Err(Failure::interrupted()),
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

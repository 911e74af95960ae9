//! Being told to stop by the operating system.

use std::future::Future;

use super::error::Error;

/// Ready when this process is asked to end: SIGTERM, which supervisors and container runtimes send, or Ctrl-C. For
/// [`Worker::run_until`](super::Worker::run_until).
///
/// Listens from this call on; from then on these signals no longer end the process by themselves. Errors of kind
/// `Config`: outside of a tokio runtime, or signals cannot be received.
///
/// ```no_run
/// # async fn example(worker: orbit::sdk::Worker) -> Result<(), orbit::sdk::Error> {
/// let report = worker.run_until(orbit::sdk::shutdown_signal()?).await?;
/// # Ok(())
/// # }
/// ```
pub fn shutdown_signal() -> Result<impl Future<Output = ()> + Send + 'static, Error> {
    tokio::runtime::Handle::try_current()
        .map_err(|_| Error::config("signals are received inside a tokio runtime only"))?;
    listen().map_err(|error| Error::config(format!("signals cannot be received: {error}")))
}

#[cfg(unix)]
fn listen() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn listen() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    Ok(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

//! Accepts connections: survives a lack of descriptors, and can close what it accepted.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::transport::{Duplex, Transport};

/// The first wait after a failure to accept; doubled up to [`BACKOFF_MAX`] while it lasts.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
/// The longest wait, so that the server accepts again soon after it can.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// What a client says first, in bytes: the HTTP/2 preface. From then on keepalive finds out whether it lives.
const PREFACE_BYTES: usize = 24;
/// How long it may take, TLS included.
const PREFACE_LIMIT: Duration = Duration::from_secs(10);

/// How long a peer may take none of what is written to it. HTTP/2 finds that out by its keepalive, HTTP/1.1 has none.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// The connections of a listener, for ever, by TLS if there is a configuration of it. When `closing` is cancelled, those accepted so far break; when `shutdown`
/// is, those that have said nothing yet.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    shutdown: CancellationToken,
    closing: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let state = (listener, tls, shutdown, closing);
    stream::unfold(state, |(listener, tls, shutdown, closing)| async move {
        let stream = accept(&listener).await;
        let connection = Connection::new(stream, tls.as_ref(), &shutdown, &closing);
        Some((Ok(connection), (listener, tls, shutdown, closing)))
    })
}

async fn accept(listener: &TcpListener) -> TcpStream {
    let mut backoff = BACKOFF_MIN;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The peer was faster in going than we in accepting: the next one is ready.
            Err(e) if is_of_the_peer(&e) => {}
            Err(e) => {
                // Most likely descriptors or memory: what is open goes on, and gives some back in time.
                tracing::warn!(error = %e, "cannot accept connections, trying again in {backoff:?}");
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// An accepted connection, which breaks when the server closes for good, whatever its peer does.
pub(super) struct Connection {
    transport: Transport,
    addresses: TcpConnectInfo,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    /// While the peer has not introduced itself.
    unknown: Option<Unknown>,
    /// While a write waits for the peer to read.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// A peer that has not introduced itself: a descriptor is not kept for it for long, nor does a shutdown wait for it.
#[derive(Debug)]
struct Unknown {
    bytes: usize,
    limit: Pin<Box<Sleep>>,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    fn new(
        stream: TcpStream,
        tls: Option<&Arc<ServerConfig>>,
        shutdown: &CancellationToken,
        closing: &CancellationToken,
    ) -> Self {
        if let Err(e) = stream.set_nodelay(true) {
            tracing::debug!(error = %e, "cannot set TCP_NODELAY");
        }
        let addresses =
            TcpConnectInfo { local_addr: stream.local_addr().ok(), remote_addr: stream.peer_addr().ok() };
        Self {
            transport: Transport::new(stream, tls),
            addresses,
            closed: Box::pin(closing.clone().cancelled_owned()),
            unknown: Some(Unknown {
                bytes: 0,
                limit: Box::pin(sleep(PREFACE_LIMIT)),
                shutdown: Box::pin(shutdown.clone().cancelled_owned()),
            }),
            stalled: None,
        }
    }

    /// What to read from and write to, once there is agreement on TLS.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        let peer = self.addresses.remote_addr;
        self.transport.poll_open(cx).map_err(|error| {
            tracing::debug!(?peer, %error, "no agreement on TLS");
            error
        })
    }

    /// Fails once the connection is to break. Asked in each read and each write, because a peer that reads nothing
    /// blocks the one, and a peer that says nothing the other.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if let Some(unknown) = &mut self.unknown
            && (unknown.shutdown.as_mut().poll(cx).is_ready() || unknown.limit.as_mut().poll(cx).is_ready())
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Notes whether a write got on; fails once it has not for too long.
    fn progress<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_LIMIT)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn heard(&mut self, bytes: usize) {
        if let Some(unknown) = &mut self.unknown {
            unknown.bytes += bytes;
            if unknown.bytes >= PREFACE_BYTES {
                self.unknown = None;
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.addresses.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let filled = buf.filled().len();
        let read = ready!(self.poll_open(cx))?.poll_read(cx, buf);
        let bytes = buf.filled().len() - filled;
        self.heard(bytes);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = ready!(self.poll_open(cx))?.poll_write(cx, buf);
        self.progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = ready!(self.poll_open(cx))?.poll_write_vectored(cx, bufs);
        self.progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true // TCP and TLS both
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let flushed = ready!(self.poll_open(cx))?.poll_flush(cx);
        self.progress(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS says goodbye, and may have to wait for a peer that reads nothing.
        self.check(cx)?;
        if self.transport.is_unopened() {
            return Poll::Ready(Ok(()));
        }
        let ended = ready!(self.poll_open(cx))?.poll_shutdown(cx);
        self.progress(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Pair {
        client: TcpStream,
        server: Connection,
        shutdown: CancellationToken,
        closing: CancellationToken,
    }

    async fn pair() -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let (shutdown, closing) = (CancellationToken::new(), CancellationToken::new());
        let mut incoming = Box::pin(incoming(listener, None, shutdown.clone(), closing.clone()));
        let client = TcpStream::connect(address).await.expect("it listens");
        let server = incoming.next().await.expect("endless").expect("accepted");
        Pair { client, server, shutdown, closing }
    }

    #[tokio::test]
    async fn a_connection_that_said_nothing_does_not_outlast_a_shutdown() {
        let mut pair = pair().await;
        let (read, ()) = tokio::join!(pair.server.read_u8(), async { pair.shutdown.cancel() });
        assert_eq!(read.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn one_that_introduced_itself_does_until_the_server_closes() {
        let mut pair = pair().await;
        let mut preface = [0; PREFACE_BYTES];
        pair.client.write_all(&[7; PREFACE_BYTES]).await.expect("open");
        pair.server.read_exact(&mut preface).await.expect("open");
        pair.shutdown.cancel();
        pair.client.write_u8(8).await.expect("open");
        assert_eq!(pair.server.read_u8().await.ok(), Some(8));
        let (read, ()) = tokio::join!(pair.server.read_u8(), async { pair.closing.cancel() });
        assert_eq!(read.map_err(|e| e.kind()), Err(io::ErrorKind::ConnectionAborted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_ends() {
        let mut pair = pair().await;
        let full = vec![0; 64 * 1024 * 1024];
        let written = pair.server.write_all(&full).await;
        assert_eq!(written.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn closing_also_breaks_a_write_that_nobody_reads() {
        let mut pair = pair().await;
        let full = vec![0; 64 * 1024 * 1024];
        let (written, ()) = tokio::join!(pair.server.write_all(&full), async { pair.closing.cancel() });
        assert_eq!(written.map_err(|e| e.kind()), Err(io::ErrorKind::ConnectionAborted));
    }
}

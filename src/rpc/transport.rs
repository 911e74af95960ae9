//! What the bytes of a connection go through: TCP, and TLS over it where the server has a certificate.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{Accept, TlsAcceptor, rustls::ServerConfig, server::TlsStream};

/// Bytes in both directions.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection's bytes. TLS is agreed on by the first read, which is the connection's own task: nobody else waits.
pub(super) enum Transport {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Broken,
}

impl Transport {
    pub(super) fn new(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Self {
        match tls {
            None => Self::Plain(stream),
            Some(config) => Self::Handshake(Box::new(TlsAcceptor::from(Arc::clone(config)).accept(stream))),
        }
    }

    /// What to read from and write to, once both sides have agreed on it.
    pub(super) fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Self::Handshake(accept) = self {
            match ready!(Pin::new(accept).poll(cx)) {
                Ok(stream) => *self = Self::Tls(Box::new(stream)),
                Err(error) => {
                    *self = Self::Broken;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Pin::new(stream)),
            Self::Tls(stream) => Ok(Pin::new(stream.as_mut())),
            Self::Handshake(_) | Self::Broken => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    /// Whether there is nothing that a goodbye could be said through.
    pub(super) const fn is_unopened(&self) -> bool {
        matches!(self, Self::Handshake(_) | Self::Broken)
    }
}

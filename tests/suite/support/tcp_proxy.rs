//! A TCP proxy whose connections a test can cut, swallow and refuse.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    /// What the client sends is thrown away.
    deaf: bool,
    /// What the server sends is thrown away.
    mute: bool,
    /// New connections are closed at once.
    refuse: bool,
    /// Raised to close all connections there are.
    cuts: u64,
}

/// Stands before a server until it is dropped.
pub(crate) struct TcpProxy {
    address: SocketAddr,
    rules: watch::Sender<Rules>,
    stop: CancellationToken,
}

impl TcpProxy {
    /// Listens on a free port and passes everything on.
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (rules, _) = watch::channel(Rules::default());
        let stop = CancellationToken::new();
        let (told, stopped) = (rules.clone(), stop.clone());
        TaskTracker::new().spawn(async move {
            tokio::select! {
                () = accept(listener, server, told) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self { address, rules, stop }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing that the server says arrives.
    pub(crate) fn swallow_answers(&self) {
        self.rules.send_modify(|rules| rules.mute = true);
    }

    /// From now on nothing that the client says arrives.
    pub(crate) fn swallow_requests(&self) {
        self.rules.send_modify(|rules| rules.deaf = true);
    }

    /// Closes all connections; further ones work.
    pub(crate) fn cut(&self) {
        self.rules.send_modify(|rules| *rules = Rules { cuts: rules.cuts + 1, ..Rules::default() });
    }

    /// Closes all connections and takes no further ones, as if nothing listened.
    pub(crate) fn go_away(&self) {
        self.cut();
        self.rules.send_modify(|rules| rules.refuse = true);
    }

    /// Takes connections again.
    pub(crate) fn come_back(&self) {
        self.rules.send_modify(|rules| rules.refuse = false);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.go_away();
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, rules: watch::Sender<Rules>) {
    let connections = TaskTracker::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let mut rules = rules.subscribe();
        let begun = *rules.borrow_and_update();
        if begun.refuse {
            continue;
        }
        connections.spawn(async move {
            let Ok(upstream) = TcpStream::connect(server).await else { return };
            for stream in [&client, &upstream] {
                drop(stream.set_nodelay(true));
            }
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), upstream.into_split());
            let there = pass(from_client, to_server, rules.clone(), |rules| rules.deaf);
            let back = pass(from_server, to_client, rules.clone(), |rules| rules.mute);
            tokio::select! {
                _ = async { tokio::join!(there, back) } => {}
                _ = rules.wait_for(|now| now.cuts != begun.cuts) => {}
            }
        });
    }
}

/// Passes bytes on until one side ends.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    rules: watch::Receiver<Rules>,
    swallow: fn(&Rules) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) if swallow(&rules.borrow()) => {}
            Ok(bytes) => {
                if to.write_all(&buffer[..bytes]).await.is_err() {
                    break;
                }
            }
        }
    }
    drop(to.shutdown().await);
}

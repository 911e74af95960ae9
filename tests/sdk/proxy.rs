//! A TCP proxy whose connections can go silent without ending, as behind a firewall that forgot them.

use std::thread;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    task::JoinSet,
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToWorker,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    swallow: watch::Sender<Option<Direction>>,
}

impl Proxy {
    pub(crate) fn start(target: &str) -> Self {
        let target = target.trim_start_matches("http://").to_owned();
        let (swallow, swallowed) = watch::channel(None);
        let (address, started) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                address.send(listener.local_addr().unwrap()).unwrap();
                let mut pipes = JoinSet::new();
                loop {
                    let (worker, _) = listener.accept().await.unwrap();
                    let server = TcpStream::connect(&target).await.unwrap();
                    let (from_worker, to_worker) = worker.into_split();
                    let (from_server, to_server) = server.into_split();
                    // Only what happens after it was made concerns a connection.
                    let mut swallowed = swallowed.clone();
                    swallowed.mark_unchanged();
                    pipes.spawn(pipe(from_worker, to_server, swallowed.clone(), Direction::ToServer));
                    pipes.spawn(pipe(from_server, to_worker, swallowed, Direction::ToWorker));
                }
            });
        });
        Self { url: format!("http://{}", started.recv().unwrap()), swallow }
    }

    /// From now on the present connections carry nothing in this direction. New ones work.
    pub(crate) fn swallow(&self, direction: Direction) {
        self.swallow.send_replace(Some(direction));
    }
}

async fn pipe(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut swallowed: watch::Receiver<Option<Direction>>,
    direction: Direction,
) {
    let mut buffer = vec![0; 16 * 1024];
    let mut silent = false;
    loop {
        tokio::select! {
            changed = swallowed.changed(), if !silent => {
                if changed.is_err() {
                    return;
                }
                silent = *swallowed.borrow_and_update() == Some(direction);
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) if silent => {}
                Ok(length) => {
                    if to.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            },
        }
    }
}

//! A TCP proxy between an engine and MySQL that can freeze, cut, and lose the answer to a COMMIT.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{self, AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What happens to a COMMIT on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitFate {
    /// Nothing.
    Passes,
    /// The server commits; its answer is lost with the connection.
    AnswerLost,
    /// The connection breaks before the server hears of it.
    NeverArrives,
    /// The connection breaks for the client at once; the server gets the COMMIT all the same, so much later.
    ArrivesLate(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fine,
    Frozen,
    Cut,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    tasks: TaskTracker,
    end: CancellationToken,
}

struct Shared {
    server: String,
    weather: watch::Sender<Weather>,
    fates: Mutex<VecDeque<CommitFate>>,
    lost: AtomicUsize,
    /// The next loss is the beginning of an outage.
    cut_with_loss: AtomicBool,
    /// Packets with this text wait.
    held_text: watch::Sender<Option<&'static str>>,
    held: AtomicUsize,
}

impl Proxy {
    /// A proxy in front of the server of a MySQL URL.
    pub(crate) async fn before(url: &str) -> Self {
        let rest = url.rsplit_once('@').expect("user@host").1;
        let server = rest.split('/').next().expect("host:port").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server,
            weather: watch::Sender::new(Weather::Fine),
            fates: Mutex::default(),
            lost: AtomicUsize::new(0),
            cut_with_loss: AtomicBool::new(false),
            held_text: watch::Sender::new(None),
            held: AtomicUsize::new(0),
        });
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(accept(listener, shared.clone(), tasks.clone(), end.clone()));
        Self { address, shared, tasks, end }
    }

    /// The URL that leads through it.
    pub(crate) fn url(&self, url: &str) -> String {
        let (user, rest) = url.rsplit_once('@').expect("user@host");
        let database = rest.split_once('/').expect("a database").1;
        format!("{user}@{}/{database}", self.address)
    }

    /// Nothing passes any more; connections stay.
    pub(crate) fn freeze(&self) {
        self.shared.weather.send_replace(Weather::Frozen);
    }

    /// Every connection breaks, and no new one is made.
    pub(crate) fn cut(&self) {
        self.shared.weather.send_replace(Weather::Cut);
    }

    /// Everything passes, also what was held back.
    pub(crate) fn restore(&self) {
        self.shared.weather.send_replace(Weather::Fine);
    }

    /// What becomes of the next COMMITs, in this order.
    pub(crate) fn next_commits(&self, fates: &[CommitFate]) {
        self.shared.fates().extend(fates);
    }

    /// Loses the next COMMIT like this, and with it every way to the server.
    pub(crate) fn cut_with_next_commit(&self, fate: CommitFate) {
        self.shared.cut_with_loss.store(true, Ordering::SeqCst);
        self.next_commits(&[fate]);
    }

    /// COMMITs whose answers were lost.
    pub(crate) fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }

    /// From now on packets that contain a text wait; a statement does so when a connection prepares it, once.
    pub(crate) fn hold(&self, text: &'static str) {
        self.shared.held_text.send_replace(Some(text));
    }

    /// They go on.
    pub(crate) fn let_go(&self) {
        self.shared.held_text.send_replace(None);
    }

    /// How many have had to wait.
    pub(crate) fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    pub(crate) async fn end(self) {
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Shared {
    fn fates(&self) -> std::sync::MutexGuard<'_, VecDeque<CommitFate>> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happened(&self) {
        if self.cut_with_loss.swap(false, Ordering::SeqCst) {
            self.weather.send_replace(Weather::Cut);
        }
    }

    async fn fine(&self) {
        // The sender lives as long as this does.
        let _ = self.weather.subscribe().wait_for(|w| *w == Weather::Fine).await;
    }

    async fn let_go(&self, packet: &[u8]) {
        let mut held_text = self.held_text.subscribe();
        let waits =
            |text: Option<&str>| text.is_some_and(|t| packet.windows(t.len()).any(|w| w == t.as_bytes()));
        if waits(*held_text.borrow_and_update()) {
            self.held.fetch_add(1, Ordering::SeqCst);
            let _ = held_text.wait_for(|text| !waits(*text)).await;
        }
    }

    async fn is_cut(&self) {
        let _ = self.weather.subscribe().wait_for(|w| *w == Weather::Cut).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tasks: TaskTracker, end: CancellationToken) {
    while let Some(Ok((client, _))) = end.run_until_cancelled(listener.accept()).await {
        let (shared, end) = (shared.clone(), end.clone());
        tasks.spawn(async move {
            tokio::select! {
                _ = connection(client, &shared) => {}
                () = shared.is_cut() => {}
                () = end.cancelled() => {}
            }
        });
    }
}

/// A COMMIT that is to arrive later, on a connection that has gone for the client.
struct Late {
    after: Duration,
    server: OwnedWriteHalf,
    packet: Vec<u8>,
}

async fn connection(client: TcpStream, shared: &Shared) -> io::Result<()> {
    shared.fine().await;
    let server = TcpStream::connect(&shared.server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let deaf = AtomicBool::new(false);
    // Both directions end with the first; what they own closes with them.
    let late = tokio::select! {
        late = requests(client_read, server_write, shared, &deaf) => late?,
        result = answers(server_read, client_write, shared, &deaf) => return result,
    };
    if let Some(mut late) = late {
        sleep(late.after).await;
        late.server.write_all(&late.packet).await?;
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Packets from the client, one by one: three bytes of length, one of sequence, the payload.
async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    shared: &Shared,
    deaf: &AtomicBool,
) -> io::Result<Option<Late>> {
    loop {
        let mut packet = vec![0; 4];
        client.read_exact(&mut packet).await?;
        let length = u32::from_le_bytes([packet[0], packet[1], packet[2], 0]) as usize;
        packet.resize(4 + length, 0);
        client.read_exact(&mut packet[4..]).await?;
        let fate = if is_commit(&packet) { shared.fates().pop_front() } else { None };
        match fate.unwrap_or(CommitFate::Passes) {
            CommitFate::Passes => {}
            CommitFate::AnswerLost => {
                shared.lost.fetch_add(1, Ordering::SeqCst);
                deaf.store(true, Ordering::SeqCst);
            }
            CommitFate::NeverArrives => {
                shared.lost.fetch_add(1, Ordering::SeqCst);
                shared.happened();
                return Ok(None);
            }
            CommitFate::ArrivesLate(after) => {
                shared.lost.fetch_add(1, Ordering::SeqCst);
                return Ok(Some(Late { after, server, packet }));
            }
        }
        shared.let_go(&packet).await;
        shared.fine().await;
        server.write_all(&packet).await?;
    }
}

async fn answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    shared: &Shared,
    deaf: &AtomicBool,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let read = server.read(&mut bytes).await?;
        if deaf.load(Ordering::SeqCst) {
            // The server has answered, so it has committed.
            shared.happened();
            return Ok(());
        }
        if read == 0 {
            return Ok(());
        }
        shared.fine().await;
        client.write_all(&bytes[..read]).await?;
    }
}

/// COM_QUERY, the first packet of its exchange, with the text COMMIT.
fn is_commit(packet: &[u8]) -> bool {
    packet[3] == 0 && packet.get(4) == Some(&3) && packet[5..].eq_ignore_ascii_case(b"COMMIT")
}

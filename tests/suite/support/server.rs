//! `orbit` as a server process on a test's database.

use std::{
    io::{BufRead as _, BufReader, Read},
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use orbit::{
    proto::{SubmitTaskRequest, task_service_client::TaskServiceClient},
    sdk::Client,
};
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use uuid::Uuid;

use super::{
    certificates::Certificates,
    database::TestDatabase,
    eventually,
    rig::{HANDLER, QUEUE},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_orbit");
/// How long a server has to start, and to end after it was asked to.
const LIMIT: Duration = Duration::from_secs(10);

/// A server process. It is killed when this is dropped; if a test fails, its log is shown.
pub(crate) struct Server {
    arguments: Vec<String>,
    /// What the shell does that starts it, if one does.
    shell: Option<String>,
    address: SocketAddr,
    /// Whom its clients must trust, if it speaks TLS.
    ca: Option<String>,
    process: Child,
    log: Log,
}

/// What the processes of one server wrote to standard error, one after the other.
type Log = Arc<Mutex<Vec<String>>>;

impl Server {
    /// Starts `orbit serve` on a free port, without a queue.
    pub(crate) async fn start(database: &TestDatabase) -> Self {
        Self::start_with(database, &[]).await
    }

    /// The same, with further arguments.
    pub(crate) async fn start_with(database: &TestDatabase, more: &[&str]) -> Self {
        Self::start_on(&database.url, more).await
    }

    /// The same, on the database of that address.
    pub(crate) async fn start_on(database_url: &str, more: &[&str]) -> Self {
        let arguments = ["serve", "--database-url", database_url];
        Self::run(arguments.iter().chain(more).map(ToString::to_string).collect()).await
    }

    /// Starts `orbit serve` with a certificate.
    pub(crate) async fn start_by_tls(
        database: &TestDatabase,
        certificates: &Certificates,
        more: &[&str],
    ) -> Self {
        let (cert, key) = (certificates.path("cert"), certificates.path("key"));
        let files = ["--tls-cert", &cert, "--tls-key", &key];
        let mut server = Self::start_with(database, &[&files[..], more].concat()).await;
        server.ca = Some(certificates.authority.pem());
        server
    }

    /// Starts `orbit dev`, with its queue `default`.
    pub(crate) async fn dev() -> Self {
        Self::run(vec!["dev".to_owned(), "--ephemeral".to_owned()]).await
    }

    /// Starts `orbit serve` with so many file descriptors at most.
    pub(crate) async fn start_with_files(database: &TestDatabase, files: u32) -> Self {
        let arguments = ["serve", "--database-url", &database.url].map(str::to_owned);
        Self::run_limited(arguments.into(), Some(format!("ulimit -n {files}"))).await
    }

    /// Starts `orbit serve` so that it can be told to write no further: [`Self::fill_disk`].
    pub(crate) async fn start_on_small_disk(database: &TestDatabase, more: &[&str]) -> Self {
        let arguments = ["serve", "--database-url", &database.url];
        let arguments = arguments.iter().chain(more).map(ToString::to_string).collect();
        Self::run_limited(arguments, Some("trap '' XFSZ".to_owned())).await
    }

    /// From now on its files do not grow beyond so many bytes; none: they may again.
    pub(crate) fn fill_disk(&self, bytes: Option<u64>) {
        let limit = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let arguments = ["--pid", &self.pid().to_string(), &format!("--fsize={limit}:unlimited")];
        assert!(Command::new("prlimit").args(arguments).status().expect("prlimit").success());
    }

    async fn run(arguments: Vec<String>) -> Self {
        Self::run_limited(arguments, None).await
    }

    async fn run_limited(arguments: Vec<String>, shell: Option<String>) -> Self {
        let log = Log::default();
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let process = spawn(&arguments, shell.as_deref(), any_port, &log);
        let mut server = Self { arguments, shell, address: any_port, ca: None, process, log };
        server.address = server.listening(0).await;
        server
    }

    /// Waits until a process that began to write at this line of the log listens.
    async fn listening(&mut self, from: usize) -> SocketAddr {
        eventually("the server listens", LIMIT, async || {
            let ended = self.process.try_wait().expect("the process is ours");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            let log = lines(&self.log);
            let line = log.iter().skip(from).find(|line| line.contains("listening"))?;
            let address = line.split("address=").nth(1)?.split_whitespace().next()?;
            Some(address.parse().expect("an address"))
        })
        .await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.ca.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn log(&self) -> Vec<String> {
        lines(&self.log)
    }

    /// Lines of the log that tell of something that should not be.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.log().into_iter().filter(|l| l.contains(" WARN ") || l.contains(" ERROR ")).collect()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits for the end, at most the 10 s that a server has.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        eventually("the server ends", LIMIT, async || self.process.try_wait().expect("the process is ours"))
            .await
    }

    /// Starts it again, on the same port, once it has ended.
    pub(crate) async fn restart(&mut self) {
        let from = self.log().len();
        self.process = spawn(&self.arguments, self.shell.as_deref(), self.address, &self.log);
        self.listening(from).await;
    }

    /// Ends it as supervisors do, and holds that all went well.
    pub(crate) async fn stop(mut self) {
        self.signal("-TERM");
        let status = self.ended().await;
        assert_eq!(status.code(), Some(0));
    }

    /// A client that is patient.
    pub(crate) fn client(&self) -> Client {
        let mut client = Client::builder().url(self.url()).call_timeout(Duration::from_secs(30));
        if let Some(pem) = &self.ca {
            client = client.ca_certificate_pem(pem);
        }
        client.build().expect("a client")
    }

    /// A connection of its own, made at the first call.
    pub(crate) fn channel(&self) -> Channel {
        channel(self.address)
    }

    pub(crate) fn tasks(&self) -> TaskServiceClient<Channel> {
        TaskServiceClient::new(self.channel())
    }

    /// Makes the queue `default`.
    pub(crate) async fn with_queue(self) -> Self {
        self.client().create_queue(QUEUE, 0).await.expect("a queue");
        self
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if thread::panicking() {
            eprintln!("--- log of the server at {}\n{}\n---", self.address, self.log().join("\n"));
        }
    }
}

pub(crate) fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}

/// What a server says of itself.
pub(crate) async fn health(channel: Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.expect("an answer").into_inner().status()
}

/// A task for the test's handler, under a key of its own.
pub(crate) fn submit_request(payload: impl Into<String>) -> SubmitTaskRequest {
    SubmitTaskRequest {
        queue_id: QUEUE.to_owned(),
        idempotency_key: Uuid::new_v4().to_string(),
        handler: HANDLER.0.to_owned(),
        handler_version: HANDLER.1.to_owned(),
        payload_version: "v1".to_owned(),
        payload: payload.into(),
        ..SubmitTaskRequest::default()
    }
}

/// An example, which cargo builds beside the program when it builds all targets.
pub(crate) fn example(name: &str) -> Command {
    let mut path = PathBuf::from(PROGRAM);
    path.pop();
    path.extend(["examples", name]);
    assert!(path.exists(), "{} is not built: `cargo build --examples`", path.display());
    without_settings(Command::new(path))
}

/// Set to run all servers and engines of the tests with so many commands of one transaction at most.
pub(crate) const BATCH_MAX: &str = "ORBIT_TEST_BATCH_MAX";

/// The program.
pub(crate) fn orbit() -> Command {
    without_settings(Command::new(PROGRAM))
}

/// Without whatever the environment says about Orbit.
fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ORBIT_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    if let Ok(batch_max) = std::env::var(BATCH_MAX) {
        command.env("ORBIT_BATCH_MAX", batch_max);
    }
    command.stdin(Stdio::null());
    command
}

fn spawn(arguments: &[String], shell: Option<&str>, listen: SocketAddr, log: &Log) -> Child {
    let mut command = match shell {
        Some(first) => {
            let mut shell = without_settings(Command::new("sh"));
            shell.args(["-c", &format!("{first} && exec \"$0\" \"$@\""), PROGRAM]);
            shell
        }
        None => without_settings(Command::new(PROGRAM)),
    };
    command.args(arguments).args(["--listen", &listen.to_string()]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a process");
    collect(process.stderr.take().expect("piped"), log);
    process
}

/// Adds lines as they are written.
pub(crate) fn collect(stream: impl Read + Send + 'static, log: &Arc<Mutex<Vec<String>>>) {
    let log = Arc::clone(log);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
}

pub(crate) fn lines(log: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

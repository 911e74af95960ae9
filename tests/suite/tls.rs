//! TLS on the one port: gRPC and HTTP with JSON come through it as they do without, and nobody who gets it wrong holds
//! others up.

use std::{
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt as _, Empty};
use hyper::{
    Request,
    body::Bytes,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use orbit::{
    proto::TaskState,
    sdk::{Client, Context, ErrorKind, Failure, Worker},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};
use tokio_util::task::TaskTracker;

use crate::{
    authority::Authority,
    foreign::tool,
    support::{
        certificates::Certificates,
        database::TestDatabase,
        eventually, on_every_database,
        server::{Server, orbit},
    },
};

const LIMIT: Duration = Duration::from_secs(30);
/// How a record with a ClientHello begins.
const CLIENT_HELLO_BEGINS: [u8; 3] = [22, 3, 1];

/// HTTP/2's frame that says: no further streams here.
const GOAWAY: u8 = 7;

/// A server on an SQLite file of its own.
struct Served {
    certificates: Certificates,
    database: TestDatabase,
    server: Server,
}

impl Served {
    async fn start() -> Self {
        let (certificates, database) = (Certificates::new(), TestDatabase::sqlite().await);
        let server = Server::start_by_tls(&database, &certificates, &[]).await.with_queue().await;
        Self { certificates, database, server }
    }

    /// A TLS connection that offers these protocols.
    async fn connect(&self, protocols: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let pem = self.certificates.authority.pem();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("an authority");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions");
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, self.tcp().await).await
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.server.address()).await.expect("it listens")
    }

    async fn end(self) {
        assert_eq!(self.server.complaints(), [""; 0]);
        self.server.stop().await;
        self.database.drop().await;
    }
}

/// All that comes until the server closes.
async fn rest(stream: &mut (impl tokio::io::AsyncRead + Unpin), limit: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Whether it says goodbye does not matter here.
    let read = timeout(limit, stream.read_to_end(&mut bytes)).await;
    assert!(read.is_ok(), "still open after {limit:?}: {}", String::from_utf8_lossy(&bytes));
    bytes
}

async fn output(mut command: Command) -> Output {
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"));
    timeout(LIMIT, output).await.expect("it ends").expect("no panic")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("a text")
}

/// Refuses the first attempt in a way that is safe to retry.
async fn second_time_lucky(context: Context, text: String) -> Result<String, Failure> {
    if context.attempt_number() == 1 {
        return Err(Failure::retryable("TEMPORARY_REJECTION"));
    }
    Ok(text.to_uppercase())
}

on_every_database! {
    async fn a_worker_retries_by_tls_though_the_server_is_killed_in_between(database: TestDatabase) {
        let certificates = Certificates::new();
        let mut server = Server::start_by_tls(&database, &certificates, &[]).await.with_queue().await;
        assert!(server.log().iter().any(|line| line.contains("listening") && line.contains("tls=true")));
        let client = server.client();
        let worker = Worker::builder(&client).queue("default").handler("text.normalize", "v1", second_time_lucky);
        let worker = worker.build().expect("a worker").start().expect("it runs");
        let submit = client.submit("default", "text.normalize", "v1").payload("safe retry");
        let submit = submit.max_attempts(3).initial_delay(Duration::from_millis(600));
        let id = submit.send().await.expect("accepted").task.task_id;
        eventually("the first attempt fails", LIMIT, async || {
            let task = client.get(&id).await.expect("the task");
            (task.state() == TaskState::Waiting && task.attempt_count == 1).then_some(())
        })
        .await;
        server.kill();
        server.restart().await;
        let task = client.wait(&id, LIMIT).await.expect("an end");
        assert_eq!((task.state(), task.result.as_str()), (TaskState::Succeeded, "\"SAFE RETRY\""));
        let attempts = client.attempts(&id).await.expect("its attempts");
        assert_eq!(attempts.iter().map(|attempt| attempt.retryable).collect::<Vec<_>>(), [true, false]);
        let report = worker.drain(LIMIT).await.expect("drained");
        assert_eq!((report.started, report.confirmed), (2, 2));
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_reaches_the_gateway_by_both_versions_of_http() {
    let served = Served::start().await;
    for (flag, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let mut curl = tool("curl");
        let body = json!({
            "queue_id": "default", "idempotency_key": flag, "handler": "text.normalize", "handler_version": "v1",
            "payload_version": "v1", "payload": [1]
        });
        curl.args(["--silent", "--show-error", flag, "--cacert", &served.certificates.path("ca")])
            .args(["--header", "Content-Type: application/json", "--data", &body.to_string()])
            .args([
                "--write-out",
                "\n%{http_version} %{http_code}",
                &format!("{}/v1/tasks", served.server.url()),
            ]);
        let text = stdout(&output(curl).await);
        let (answer, told) = text.rsplit_once('\n').expect("two lines");
        assert_eq!(told, format!("{version} 200"), "{answer}");
        let answer: Value = serde_json::from_str(answer).expect("JSON");
        assert_eq!(answer["task"]["idempotency_key"], flag);
    }
    // Who does not trust the authority sends nothing.
    let mut curl = tool("curl");
    curl.args(["--silent", &format!("{}/v1/queues", served.server.url())]);
    assert_eq!(
        output(curl).await.status.code(),
        Some(60),
        "curl's code for a certificate that it does not know"
    );
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_lists_and_submits() {
    let served = Served::start().await;
    let (ca, address) = (served.certificates.path("ca"), served.server.address().to_string());
    let grpcurl = |arguments: &[&str]| {
        let mut command = tool("grpcurl");
        command.args(["-cacert", &ca]).args(arguments);
        output(command)
    };
    let services = stdout(&grpcurl(&[&address, "list"]).await);
    assert!(services.lines().any(|line| line == "orbit.v1.WorkerService"), "{services}");
    let submission = json!({
        "queue_id": "default", "idempotency_key": "grpcurl", "handler": "text.normalize", "handler_version": "v1",
        "payload_version": "v1", "payload": "1"
    });
    let submit = ["-d", &submission.to_string(), &address, "orbit.v1.TaskService/SubmitTask"];
    let answer: Value = serde_json::from_str(&stdout(&grpcurl(&submit).await)).expect("JSON");
    assert_eq!(answer["task"]["state"], "TASK_STATE_WAITING");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_reaches_it_with_the_authority_and_says_so_without() {
    let served = Served::start().await;
    let url = served.server.url();
    let list = |url: &str, ca: Option<&str>| {
        let mut command = orbit();
        command.args(["queue", "list", "--url", url]).args(ca.iter().flat_map(|ca| ["--ca", *ca]));
        output(command)
    };
    let ca = served.certificates.path("ca");
    assert!(stdout(&list(&url, Some(&ca)).await).contains("default"));
    let refused = async |url: &str, ca: Option<&str>| {
        let output = list(url, ca).await;
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("a text")
    };
    let stranger = served.certificates.write("stranger", &Authority::new().pem());
    for ca in [None, Some(stranger.as_str())] {
        let error = refused(&url, ca).await;
        assert!(error.contains("certificate") && error.contains("--ca FILE"), "{error}");
    }
    let error = refused(&url.replace("https", "http"), None).await;
    assert!(error.contains("If it speaks TLS, its address begins with https://"), "{error}");
    let error = refused(&url, Some("no-such-file")).await;
    assert!(error.contains("no-such-file (--ca) cannot be read: No such file"), "{error}");
    let error = refused(&url.replace("https", "http"), Some(&ca)).await;
    assert!(error.contains("https://"), "{error}");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_is_negotiated_and_told_from_the_first_bytes_where_it_is_not() {
    let served = Served::start().await;
    for (offered, chosen) in [
        (&[&b"h2"[..]][..], Some(&b"h2"[..])),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[b"http/1.1", b"h2"], Some(b"h2")),
        (&[b"acme", b"http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let stream = served.connect(offered).await.expect("agreed");
        assert_eq!(stream.get_ref().1.alpn_protocol(), chosen);
    }
    let error = served.connect(&[b"acme"]).await.expect_err("nothing in common");
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");

    let tasks = TaskTracker::new();
    let request = |uri: String| {
        let request = Request::get(uri).header("host", "127.0.0.1");
        request.body(Empty::<Bytes>::new()).expect("a request")
    };
    let stream = TokioIo::new(served.connect(&[]).await.expect("agreed"));
    let (mut sender, connection) = http1::handshake(stream).await.expect("HTTP/1.1");
    tasks.spawn(connection);
    let answer = sender.send_request(request("/readyz".to_owned())).await.expect("an answer");
    assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "ok\n");
    let stream = TokioIo::new(served.connect(&[]).await.expect("agreed"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
    tasks.spawn(connection);
    let answer =
        sender.send_request(request(format!("{}/readyz", served.server.url()))).await.expect("an answer");
    assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "ok\n");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_does_not_end_is_cut_off_and_holds_nobody_up() {
    let served = Served::start().await;
    let mut slow = Vec::new();
    for i in 0..60 {
        let mut stream = served.tcp().await;
        // Some say nothing at all, some do not get beyond the beginning.
        if i % 2 == 0 {
            stream.write_all(&CLIENT_HELLO_BEGINS).await.expect("sent");
        }
        slow.push(stream);
    }
    // One agrees on TLS, and then says nothing.
    let mut silent = served.connect(&[]).await.expect("agreed");
    let began = Instant::now();
    let client = served.server.client();
    client.get_queue("default").await.expect("it answers");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    for stream in &mut slow {
        rest(stream, Duration::from_secs(15)).await;
    }
    rest(&mut silent, Duration::from_secs(5)).await;
    assert!(began.elapsed() > Duration::from_secs(8), "{:?}", began.elapsed());
    client.get_queue("default").await.expect("it still does");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_is_refused_and_harms_nobody() {
    let served = Served::start().await;
    for text in ["GET /v1/queues HTTP/1.1\r\nhost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = served.tcp().await;
        stream.write_all(text.as_bytes()).await.expect("sent");
        let answer = rest(&mut stream, Duration::from_secs(5)).await;
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    let plain = Client::builder()
        .url(served.server.url().replace("https", "http"))
        .call_timeout(Duration::from_secs(1))
        .build();
    let error = plain.expect("a client").get_queue("default").await.expect_err("not by plain text");
    assert!(matches!(error.kind(), ErrorKind::Transport | ErrorKind::Timeout), "{error}");
    served.server.client().get_queue("default").await.expect("it answers");
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_answer_pings_is_let_go() {
    let served = Served::start().await;
    let mut stream = served.connect(&[b"h2"]).await.expect("agreed");
    // The preface and empty settings; from here on it only listens.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let began = Instant::now();
    rest(&mut stream, Duration::from_secs(45)).await;
    assert!(began.elapsed() > Duration::from_secs(19), "{:?}", began.elapsed());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_read_is_given_up() {
    let served = Served::start().await;
    let mut stream = served.connect(&[b"http/1.1"]).await.expect("agreed");
    // Many answers of 80 KiB each, none of which is read.
    let requests = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400);
    stream.write_all(requests.as_bytes()).await.expect("sent");
    sleep(Duration::from_secs(45)).await;
    let bytes = rest(&mut stream, Duration::from_secs(10)).await;
    assert!(bytes.len() < 400 * 80_000, "it had given up: {}", bytes.len());
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_tells_everybody_and_waits_for_no_handshake() {
    let mut served = Served::start().await;
    let client = served.server.client();
    let worker = Worker::builder(&client).queue("default").handler("text.normalize", "v1", second_time_lucky);
    let worker = worker.build().expect("a worker").start().expect("it runs");
    let mut half = served.tcp().await;
    half.write_all(&CLIENT_HELLO_BEGINS).await.expect("sent");
    let silent = served.connect(&[b"h2"]).await.expect("agreed");
    let mut watching = served.connect(&[b"h2"]).await.expect("agreed");
    watching.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    let mut idle = served.connect(&[b"http/1.1"]).await.expect("agreed");
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
    let mut begins = [0; 12];
    idle.read_exact(&mut begins).await.expect("an answer");
    assert_eq!(&begins, b"HTTP/1.1 200");
    sleep(Duration::from_millis(300)).await;

    let began = Instant::now();
    served.server.signal("-TERM");
    let mut frames = Vec::new();
    while !kinds(&frames).contains(&GOAWAY) {
        let read = timeout(LIMIT, watching.read_buf(&mut frames)).await.expect("in time");
        assert!(read.expect("it goes on") > 0, "no GOAWAY in {frames:?}");
    }
    drop(watching);
    assert_eq!(served.server.ended().await.code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop((half, silent, worker));
    served.database.drop().await;
}

/// The types of HTTP/2 frames.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = bytes {
        kinds.push(*kind);
        let length = u32::from_be_bytes([0, *a, *b, *c]);
        bytes = rest.get(length as usize..).unwrap_or_default();
    }
    kinds
}

/// The one line of a server that does not start; no database is made either.
fn refusal(certificates: &Certificates, cert: &str, key: &str) -> String {
    refusal_of(certificates, &["--tls-cert", cert, "--tls-key", key])
}

fn refusal_of(certificates: &Certificates, arguments: &[&str]) -> String {
    let database = certificates.path("orbit.db");
    let mut command = orbit();
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--migrate",
        "--database-url",
        &format!("sqlite:{database}"),
    ]);
    let output = command.args(arguments).output().expect("it runs");
    let stderr = String::from_utf8(output.stderr).expect("a text");
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(!std::path::Path::new(&database).exists(), "the database was touched");
    stderr
}

#[test]
fn files_that_are_of_no_use_are_refused_by_name_before_anything_else() {
    let certificates = Certificates::new();
    let (cert, key) = (certificates.path("cert"), certificates.path("key"));
    let other_key = certificates.write("other", &certificates.authority.issue("127.0.0.1").1);
    let empty = certificates.write("empty", "");
    let broken = certificates.write("broken", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let no_certificate =
        certificates.write("no-der", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let no_key =
        certificates.write("no-key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    let pkcs8 = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let pkcs8 = certificates.write("pkcs8", pkcs8);
    let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n\
               -----END RSA PRIVATE KEY-----\n";
    let old = certificates.write("old", old);
    let absent = certificates.path("absent");
    for (cert, key, wrong, told) in [
        (&absent, &key, &absent, "(--tls-cert) cannot be read: No such file"),
        (&cert, &absent, &absent, "(--tls-key) cannot be read: No such file"),
        (&empty, &key, &empty, "(--tls-cert) is none: the file must hold PEM"),
        (&key, &key, &key, "(--tls-cert) is none: the file must hold PEM"),
        (&broken, &key, &broken, "(--tls-cert) is no PEM"),
        (&no_certificate, &key, &no_certificate, "(--tls-cert) cannot be used"),
        (&cert, &empty, &empty, "(--tls-key) is none: the file must hold PEM"),
        (&cert, &cert, &cert, "(--tls-key) is none: the file must hold PEM"),
        (&cert, &no_key, &no_key, "(--tls-key) cannot be used"),
        (&cert, &pkcs8, &pkcs8, "(--tls-key) is encrypted"),
        (&cert, &old, &old, "(--tls-key) is encrypted"),
        (&cert, &other_key, &other_key, "(--tls-key) does not belong to the certificate in"),
    ] {
        let error = refusal(&certificates, cert, key);
        assert!(error.contains(&format!("{wrong} {told}")), "{error}");
    }
    for (flag, file, missing) in
        [("--tls-cert", &cert, "--tls-key FILE"), ("--tls-key", &key, "--tls-cert FILE")]
    {
        let error = refusal_of(&certificates, &[flag, file]);
        assert!(error.contains(missing), "{error}");
    }
}

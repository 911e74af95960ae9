//! TLS: the SDK talks to a server whose certificate it can check, and to no other.

use std::time::Duration;

use orbit::{
    proto::{Disposition, Task},
    sdk::{Client, Error, ErrorKind, Worker},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::{
    fake_tasks::{FakeTasks, Reply},
    fake_worker::{FakeServer, LOST, double, drained},
};

/// A certificate authority of the test's own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server with a certificate for that name.
    fn server(&self, name: &str) -> Server {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
        Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap()
    }
}

fn answer() -> [Reply; 1] {
    [Reply::Task(Box::new(Task { task_id: "t".to_owned(), ..Task::default() }))]
}

/// A call to the port of the fake, at that address.
async fn get(url: String, ca_pem: Option<String>) -> Result<Task, Error> {
    let mut client =
        Client::builder().url(url).bearer_token("secret").call_timeout(Duration::from_millis(700));
    if let Some(pem) = ca_pem {
        client = client.ca_certificate_pem(pem);
    }
    client.build().unwrap().get("t").await
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_served() {
    let authority = Authority::new();
    let (fake, address) = FakeTasks::serve(answer(), authority.server("localhost"));
    let task = get(format!("https://localhost:{}", address.port()), Some(authority.pem())).await.unwrap();
    assert_eq!(task.task_id, "t");
    assert_eq!(fake.metadata().get("authorization").unwrap(), "Bearer secret");
}

#[tokio::test]
async fn a_server_that_cannot_be_checked_is_sent_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (fake, address) = FakeTasks::serve(answer(), authority.server("localhost"));
    let (elsewhere, second) = FakeTasks::serve(answer(), authority.server("orbit.example"));
    let wrong = [
        // Known to no authority of this system.
        get(format!("https://localhost:{}", address.port()), None).await,
        get(format!("https://localhost:{}", address.port()), Some(other.pem())).await,
        // For another name.
        get(format!("https://localhost:{}", second.port()), Some(authority.pem())).await,
        // It speaks TLS only.
        get(format!("http://localhost:{}", address.port()), None).await,
    ];
    for refused in wrong {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
    }
    assert!(fake.metadata().is_empty() && elsewhere.metadata().is_empty());
}

#[tokio::test]
async fn the_error_says_what_is_wrong_with_the_certificate() {
    let (fake, address) = FakeTasks::serve(answer(), Authority::new().server("localhost"));
    let url = format!("https://localhost:{}", address.port());
    let error = get(url, Some(Authority::new().pem())).await.unwrap_err();
    assert!(error.message().contains("certificate"), "{error}");
    assert!(fake.metadata().is_empty());
}

#[tokio::test]
async fn a_server_without_tls_is_sent_no_token() {
    let (fake, url) = FakeTasks::start(answer());
    let url = url.replace("http://127.0.0.1", "https://localhost");
    let error = get(url, Some(Authority::new().pem())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
    assert!(fake.metadata().is_empty());
}

#[tokio::test]
async fn an_authority_that_is_no_pem_is_refused_before_anything_is_sent() {
    let client = Client::builder().url("https://localhost:1").ca_certificate_pem("no certificate").build();
    assert_eq!(client.unwrap_err().kind(), ErrorKind::Config);
}

#[tokio::test]
async fn a_worker_works_over_tls() {
    let authority = Authority::new();
    let mut server = FakeServer::serve("https://localhost", authority.server("localhost"));
    let client = Client::builder().url(&server.url).ca_certificate_pem(authority.pem()).build().unwrap();
    let worker = Worker::builder(&client).queue("q").handler("double", "v1", double).build().unwrap();
    let worker = worker.start().unwrap();
    let mut session = server.session().await;
    session.run("a", "double", "21").await;
    let finish = session.finish().await;
    assert_eq!(finish.result, "42");
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    let report = drained(worker, session).await;
    assert_eq!((report.started, report.confirmed), (1, 1));
}

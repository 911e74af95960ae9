//! TLS: the SDK talks to a server whose certificate it can check, and to no other.

use std::time::Duration;

use orbit::{
    proto::{Disposition, Task},
    sdk::{Client, Error, ErrorKind, Worker},
};
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::{
    authority::Authority,
    fake_tasks::{FakeTasks, Reply},
    fake_worker::{FakeServer, LOST, double, drained},
};

/// A server with a certificate for that name.
fn server(authority: &Authority, name: &str) -> Server {
    let (certificate, key) = authority.issue(name);
    let identity = Identity::from_pem(certificate, key);
    Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap()
}

fn answer() -> [Reply; 1] {
    [Reply::Task(Box::new(Task { task_id: "t".to_owned(), ..Task::default() }))]
}

/// A call to the port of the fake, at that address.
async fn get(url: String, ca_pem: Option<String>) -> Result<Task, Error> {
    let mut client = Client::builder().url(url).bearer_token("secret").call_timeout(Duration::from_secs(3));
    if let Some(pem) = ca_pem {
        client = client.ca_certificate_pem(pem);
    }
    client.build().unwrap().get("t").await
}

#[tokio::test]
async fn a_client_that_trusts_the_authority_is_served() {
    let authority = Authority::new();
    let (fake, address) = FakeTasks::serve(answer(), server(&authority, "localhost"));
    let task = get(format!("https://localhost:{}", address.port()), Some(authority.pem())).await.unwrap();
    assert_eq!(task.task_id, "t");
    assert_eq!(fake.metadata().get("authorization").unwrap(), "Bearer secret");
}

#[tokio::test]
async fn a_server_that_cannot_be_checked_is_sent_nothing() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (fake, address) = FakeTasks::serve(answer(), server(&authority, "localhost"));
    let (elsewhere, second) = FakeTasks::serve(answer(), server(&authority, "orbit.example"));
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
    let (fake, address) = FakeTasks::serve(answer(), server(&Authority::new(), "localhost"));
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
    let mut fake = FakeServer::serve("https://localhost", server(&authority, "localhost"));
    let client = Client::builder().url(&fake.url).ca_certificate_pem(authority.pem()).build().unwrap();
    let worker = Worker::builder(&client).queue("q").handler("double", "v1", double).build().unwrap();
    let worker = worker.start().unwrap();
    let mut session = fake.session().await;
    session.run("a", "double", "21").await;
    let finish = session.finish().await;
    assert_eq!(finish.result, "42");
    session.accept(&finish.message_id, Disposition::Applied, LOST).await;
    let report = drained(worker, session).await;
    assert_eq!((report.started, report.confirmed), (1, 1));
}

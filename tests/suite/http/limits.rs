//! What is too large or too slow is refused, and holds nothing up.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{submission, submit};
use crate::support::{
    http::{get, post},
    server::Server,
};

const MIB: usize = 1024 * 1024;

async fn talk(server: &Server, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
    stream.write_all(text.as_bytes()).await.expect("sent");
    stream
}

/// All that comes until the server closes.
async fn rest(mut stream: TcpStream, limit: Duration) -> String {
    let mut bytes = Vec::new();
    let read = timeout(limit, stream.read_to_end(&mut bytes)).await;
    assert!(read.is_ok(), "still open after {limit:?}: {}", String::from_utf8_lossy(&bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn what_is_too_large_is_refused_with_an_answer() {
    let server = Server::dev().await;
    let text = |bytes| format!("\"{}\"", "x".repeat(bytes - 2));
    for bytes in [MIB + 1, 3 * MIB, 4 * MIB, 5 * MIB, 32 * MIB] {
        let answer = post(&server, "/v1/tasks", submission("large", &text(bytes))).await;
        answer.hold_error(400, "INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE");
    }
    let deep = "[".repeat(101) + &"]".repeat(101);
    let answer = post(&server, "/v1/tasks", submission("deep", &deep)).await;
    answer.hold_error(400, "INVALID_ARGUMENT", "PAYLOAD_NOT_JSON");
    let answer = post(&server, "/v1/tasks", submission("largest", &text(MIB))).await;
    assert_eq!(answer.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = Server::dev().await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let began = Instant::now();
    let answer = rest(talk(&server, head).await, Duration::from_secs(40)).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("BODY_TOO_SLOW"), "{answer}");
    assert!(began.elapsed() >= Duration::from_secs(19), "{:?}", began.elapsed());
    assert_eq!(get(&server, "/healthz").await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_does_not_end_and_a_silent_connection_are_closed() {
    let server = Server::dev().await;
    let silent = talk(&server, "").await;
    let half = talk(&server, "GET /v1/queues HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    rest(silent, Duration::from_secs(20)).await;
    rest(half, Duration::from_secs(45)).await;
    server.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_not_read_is_given_up() {
    let server = Server::dev().await;
    let id = submit(&server, "a").await;
    // Many answers of 80 KiB each, none of which is read.
    let request = "GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400);
    let stream = talk(&server, &request).await;
    sleep(Duration::from_secs(45)).await;
    let mut stream = stream;
    let mut bytes = Vec::new();
    let read = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await;
    assert!(read.is_ok(), "the server still holds the connection");
    assert!(bytes.len() < 400 * 80_000, "it had given up: {}", bytes.len());
    assert_eq!(get(&server, &format!("/v1/tasks/{id}")).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_stays_open_does_not_hold_a_shutdown_up() {
    let server = Server::dev().await;
    let mut idle = talk(&server, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut bytes = [0; 12];
    idle.read_exact(&mut bytes).await.expect("an answer");
    assert_eq!(&bytes, b"HTTP/1.1 200");
    let id = submit(&server, "a").await;
    let waiting =
        talk(&server, &format!("GET /v1/tasks/{id}:wait?wait_ms=60000 HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let answer = rest(waiting, Duration::from_secs(5)).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("TASK_STATE_WAITING"), "{answer}");
}

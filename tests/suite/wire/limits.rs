//! What is too deep, too large or compressed is refused, and whatever was accepted can be read again.

use std::{future::poll_fn, time::Duration};

use futures_util::future::join_all;
use http_body_util::Full;
use orbit::proto::{CommandResult, Finish, GetTaskRequest, TaskState, TaskView};
use tokio::time::timeout;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Bytes, Service as _, http},
    transport::Channel,
};

use super::{resident, submit, task};
use crate::support::{
    on_every_database,
    server::{Server, submit_request},
    stream::{Stream, attempt_of, hold_applied, succeeded},
};

const MIB: usize = 1024 * 1024;
/// Far more than a refusal takes.
const PROMPT: Duration = Duration::from_secs(5);

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

/// A JSON string of that many bytes.
fn text_of(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

async fn refusal(server: &Server, payload: String) -> Status {
    let mut tasks = server.tasks();
    let call = tasks.submit_task(submit_request(payload));
    timeout(PROMPT, call).await.expect("a prompt answer").expect_err("refused")
}

fn hold_refused(answer: &CommandResult) {
    let status = answer.status.as_ref().expect("a status");
    assert_eq!(Code::from(status.code), Code::InvalidArgument, "{status:?}");
}

on_every_database! {
    async fn t12_depth_is_limited_and_what_was_accepted_stays_readable(database: TestDatabase) {
        let mut server = Server::start(&database).await.with_queue().await;
        let pid = server.pid();
        let bomb = "[".repeat(100_000);
        for payload in [bomb.clone(), nested(100_000), nested(101), nested(126), nested(127), nested(128)] {
            assert_eq!(refusal(&server, payload).await.code(), Code::InvalidArgument);
        }
        let mut ids = Vec::new();
        for depth in [60, 100] {
            ids.push((submit(&server, submit_request(nested(depth))).await, nested(depth)));
        }
        assert_eq!(server.pid(), pid);
        server.kill();
        server.restart().await;

        let mut worker = Stream::open(server.channel(), 1).await;
        for (id, payload) in &ids {
            let dispatch = worker.dispatch().await;
            assert_eq!((&dispatch.task_id, &dispatch.payload), (id, payload));
            let attempt = attempt_of(&dispatch);
            hold_applied(&worker.start(&attempt).await);
            for result in [bomb.clone(), nested(100_000), nested(101)] {
                hold_refused(&worker.finish(&succeeded(&attempt, &result)).await);
            }
            let lease = worker.renew(vec![attempt.clone()]).await.leases[0].lease.expect("a lease");
            assert!(lease.valid, "{lease:?}");
            hold_applied(&worker.finish(&succeeded(&attempt, payload)).await);
            let task = task(&server, id).await;
            assert_eq!((&task.payload, &task.result), (payload, payload));
        }
        drop(worker);
        server.stop().await;
        database.drop().await;
    }

    async fn t13_what_is_accepted_reaches_a_client_with_default_limits(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        for bytes in [MIB + 1, 4 * MIB - 2_048, 4 * MIB - 1, 4 * MIB, 16 * MIB] {
            let status = refusal(&server, text_of(bytes)).await;
            assert_eq!(status.code(), Code::InvalidArgument, "{bytes}: {status:?}");
        }
        let largest = text_of(MIB);
        let id = submit(&server, submit_request(largest.clone())).await;
        // With tonic's default: 4 MiB a message.
        let mut worker = Stream::open(server.channel(), 1).await;
        let dispatch = worker.dispatch().await;
        assert!(dispatch.task_id == id && dispatch.payload == largest);
        let attempt = attempt_of(&dispatch);
        hold_applied(&worker.start(&attempt).await);
        for bytes in [MIB + 1, 4 * MIB - 2_048, 4 * MIB - 1, 4 * MIB, 16 * MIB] {
            let report: Finish = succeeded(&attempt, &text_of(bytes));
            let answer = timeout(PROMPT, worker.finish(&report)).await.expect("a prompt answer");
            hold_refused(&answer);
            let lease = worker.renew(vec![attempt.clone()]).await.leases[0].lease.expect("a lease");
            assert!(lease.valid, "{bytes}: {lease:?}");
        }
        hold_applied(&worker.finish(&succeeded(&attempt, &largest)).await);
        let task = task(&server, &id).await;
        assert!(task.payload == largest && task.result == largest);
        assert_eq!((task.state(), task.attempt_count), (TaskState::Succeeded, 1));
        drop(worker);
        server.stop().await;
        database.drop().await;
    }
}

/// A gzip stream of about 2 MiB that inflates to more than 300 MiB of zeros, one match after the other.
fn gzip_bomb() -> Vec<u8> {
    const MATCHES: usize = 1_300_000;
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let (mut word, mut filled) = (0_u64, 0);
    // Codes are written with their first bit first.
    let mut put = |code: &str| {
        for bit in code.bytes() {
            word |= u64::from(bit - b'0') << filled;
            filled += 1;
            if filled == 8 {
                bytes.push(u8::try_from(word).expect("8 bits"));
                (word, filled) = (0, 0);
            }
        }
    };
    put("1"); // the last block
    put("10"); // with fixed codes
    put("00110000"); // a zero
    for _ in 0..MATCHES {
        put("1100010100000"); // the last 258 bytes again, from one byte back
    }
    put("0000000");
    put("00000000");
    bytes.extend([0; 8]);
    bytes
}

/// Sends a gRPC frame that says it is compressed, and answers with the status.
async fn send_compressed(mut channel: Channel, path: &str, message: &[u8]) -> Option<Status> {
    let mut frame = vec![1];
    frame.extend(u32::try_from(message.len()).expect("a length").to_be_bytes());
    frame.extend(message);
    let request = http::Request::builder()
        .method("POST")
        .uri(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-encoding", "gzip")
        .body(Body::new(Full::new(Bytes::from(frame))))
        .expect("a request");
    poll_fn(|cx| channel.poll_ready(cx)).await.expect("connected");
    let answer = timeout(PROMPT, channel.call(request)).await.expect("a prompt answer").expect("an answer");
    Status::from_header_map(answer.headers())
}

#[tokio::test(flavor = "multi_thread")]
async fn t61_compressed_frames_are_refused_and_not_inflated() {
    let server = Server::dev().await;
    let id = submit(&server, submit_request("1")).await;
    let bomb = gzip_bomb();
    assert!(bomb.len() > 2 * MIB && bomb.len() < 3 * MIB);
    let before = resident(&server);
    for path in ["/orbit.v1.TaskService/SubmitTask", "/orbit.v1.WorkerService/Worker"] {
        let bombs = (0..20).map(|_| send_compressed(server.channel(), path, &bomb));
        let others = async {
            let request = GetTaskRequest { task_id: id.clone(), view: TaskView::Basic.into() };
            timeout(PROMPT, server.tasks().get_task(request)).await.expect("served").expect("found")
        };
        let (answers, _) = tokio::join!(join_all(bombs), others);
        for status in answers {
            let status = status.expect("a status");
            assert!(matches!(status.code(), Code::Unimplemented | Code::ResourceExhausted), "{status:?}");
        }
    }
    let growth = resident(&server).saturating_sub(before);
    println!("grew by {} kB", growth / 1_024);
    assert!(growth < 100 * MIB, "{growth}");
    server.stop().await;
}

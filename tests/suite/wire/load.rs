//! More streams, more frames and less reading than anybody should.

mod alone {
    use std::time::Duration;

    use futures_util::{StreamExt as _, stream};
    use orbit::proto::{AttemptRef, GetTaskRequest, Renew, TaskView, worker_request::Message as Ask};
    use tokio::{
        net::TcpStream,
        time::{Instant, timeout},
    };

    use super::super::{resident, submit};
    use crate::support::{
        database::TestDatabase,
        eventually,
        server::{Server, submit_request},
        stream::{Stream, hello, new_id},
    };

    const MIB: usize = 1024 * 1024;
    const PROMPT: Duration = Duration::from_secs(2);

    /// Opens idle streams, many at once, spread over so many connections.
    async fn idle_streams(server: &Server, streams: usize, connections: usize) -> Vec<Stream> {
        let channels: Vec<_> = (0..connections).map(|_| server.channel()).collect();
        stream::iter(0..streams)
            .map(|i| Stream::open_with(channels[i % connections].clone(), hello(1)))
            .buffer_unordered(50)
            .map(|stream| stream.expect("served"))
            .collect()
            .await
    }

    async fn get(server: &Server, task_id: &str) {
        let request = GetTaskRequest { task_id: task_id.to_owned(), view: TaskView::Basic.into() };
        timeout(PROMPT, server.tasks().get_task(request)).await.expect("served in time").expect("found");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t26_500_streams_on_one_connection_leave_room_for_calls() {
        let server = Server::dev().await;
        let channel = server.channel();
        let id = submit(&server, submit_request("1")).await;
        let mut hello = hello(1);
        hello.queue_ids = vec!["elsewhere".to_owned()];
        let mut streams = Vec::new();
        for _ in 0..500 {
            streams.push(Stream::open_with(channel.clone(), hello.clone()).await.expect("served"));
        }
        let mut tasks = orbit::proto::task_service_client::TaskServiceClient::new(channel);
        for _ in 0..20 {
            let request = GetTaskRequest { task_id: id.clone(), view: TaskView::Basic.into() };
            timeout(PROMPT, tasks.get_task(request)).await.expect("served in time").expect("found");
        }
        drop(streams);
        server.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t26_5000_idle_streams_on_50_connections_are_served() {
        let server = Server::dev().await;
        let began = Instant::now();
        let mut streams = idle_streams(&server, 5_000, 50).await;
        println!("opened in {:?}", began.elapsed());
        assert_eq!(streams.len(), 5_000);
        let began = Instant::now();
        let id = submit(&server, submit_request("1")).await;
        get(&server, &id).await;
        println!("submit and get took {:?}", began.elapsed());
        // One of them gets it.
        let dispatches = streams.iter_mut().map(Stream::dispatch).map(Box::pin);
        let (dispatch, at, _) = futures_util::future::select_all(dispatches).await;
        streams[at].run(&dispatch).await;
        drop(streams);
        server.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t26_a_server_out_of_descriptors_accepts_again_once_some_return() {
        let database = TestDatabase::sqlite().await;
        let server = Server::start_with_files(&database, 256).await.with_queue().await;
        let id = submit(&server, submit_request("1")).await;
        let mut connections = Vec::new();
        for _ in 0..400 {
            // The kernel takes more of them than the server can.
            if let Ok(Ok(connection)) = timeout(PROMPT, TcpStream::connect(server.address())).await {
                connections.push(connection);
            }
        }
        assert!(connections.len() > 300, "{}", connections.len());
        let files = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("a process").count();
        eventually("the server is out of descriptors", PROMPT, async || (files() >= 255).then_some(())).await;
        connections.drain(..300);
        eventually("the server accepts again", Duration::from_secs(5), async || {
            let request = GetTaskRequest { task_id: id.clone(), view: TaskView::Basic.into() };
            timeout(PROMPT, server.tasks().get_task(request)).await.ok()?.ok()
        })
        .await;
        drop(connections);
        server.stop().await;
        database.drop().await;
    }

    /// Sends renewals without reading an answer; how many went through before nothing moved, or all.
    async fn flood(stream: &Stream, frames: usize) -> usize {
        let lease = AttemptRef { task_id: new_id(), attempt_id: new_id(), epoch: 1 };
        for sent in 0..frames {
            let renew = Renew { leases: vec![lease.clone()] };
            if !stream.try_send(Ask::Renew(renew), Duration::from_secs(1)).await {
                return sent;
            }
        }
        frames
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn t27_a_silent_reader_and_a_flooder_harm_nobody_else() {
        const TASKS: usize = 400;
        const PAYLOAD_BYTES: usize = 100_000;
        const FLOOD: usize = 200_000;
        /// Unstarted on one stream at most: 4 MiB of payloads.
        const HELD_MAX: usize = 4 * MIB / PAYLOAD_BYTES;

        let database = TestDatabase::sqlite().await;
        let server = Server::start(&database).await.with_queue().await;
        // Warm: what any load takes is no growth of the fault.
        submit(&server, submit_request("1")).await;
        let mut healthy = Stream::open(server.channel(), 4).await;
        let dispatch = healthy.dispatch().await;
        healthy.run(&dispatch).await;
        drop(healthy);
        let before = resident(&server);

        let silent = Stream::open(server.channel(), 10_000).await;
        let payload = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2));
        let mut tasks = server.tasks();
        for _ in 0..TASKS {
            tasks.submit_task(submit_request(payload.clone())).await.expect("accepted");
        }
        let mut healthy = Stream::open(server.channel(), 4).await;
        let flooder = Stream::open_with(server.channel(), {
            let mut hello = hello(1);
            hello.queue_ids = vec!["elsewhere".to_owned()];
            hello
        })
        .await
        .expect("a stream");
        let mut waits = Vec::new();
        let work = async {
            for _ in 0..TASKS - HELD_MAX - 1 {
                let began = Instant::now();
                let dispatch = healthy.dispatch().await;
                healthy.run(&dispatch).await;
                waits.push(began.elapsed());
            }
        };
        let (sent, ()) = tokio::join!(flood(&flooder, FLOOD), work);
        waits.sort_unstable();
        let p99 = waits[waits.len() * 99 / 100];
        let growth = resident(&server).saturating_sub(before);
        println!("flooded {sent} frames; healthy p99 {p99:?}; grew by {} kB", growth / 1_024);
        assert!(sent < FLOOD, "the flooder is slowed");
        assert!(p99 < Duration::from_secs(1), "{p99:?}");
        assert!(growth < 100 * MIB, "{growth}");
        let held = database.number("SELECT COUNT(*) FROM leases").await;
        assert!(usize::try_from(held).expect("a count") <= HELD_MAX + 1 + 4, "{held}");
        drop((silent, flooder, healthy));
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

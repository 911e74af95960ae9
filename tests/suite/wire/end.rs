//! T25: the end of a server does not wait for those who cannot answer.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use orbit::proto::{AttemptState, TaskState, worker_request::Message as Ask};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{attempts, retried, submit, task};
use crate::support::{
    on_every_database,
    server::{Server, example},
    stream::{Stream, attempt_of, hello, hold_applied, succeeded},
};

/// A worker process that stands still.
struct Stopped(Child);

impl Stopped {
    fn new(server: &Server) -> Self {
        let mut command = example("retry");
        command.env("ORBIT_URL", server.url()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the example runs");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        // From its first attempt on it has a stream.
        let ran = stderr.lines().map_while(Result::ok).any(|line| line.starts_with("attempt 1 "));
        assert!(ran, "the example ended early");
        let status = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
        assert!(status.expect("kill").success());
        Self(child)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

on_every_database! {
    async fn t25_peers_that_do_not_answer_do_not_keep_a_server(database: TestDatabase) {
        let mut server = Server::start(&database).await.with_queue().await;
        let silent = TcpStream::connect(server.address()).await.expect("a connection");
        let _stopped = Stopped::new(&server);
        let idle = [Stream::open(server.channel(), 1).await, Stream::open(server.channel(), 1).await];
        drop(idle);
        let mut hello_elsewhere = hello(1);
        hello_elsewhere.queue_ids = vec!["nothing-here".to_owned()];
        let mut idle = Vec::new();
        for _ in 0..2 {
            idle.push(Stream::open_with(server.channel(), hello_elsewhere.clone()).await.expect("a stream"));
        }
        let mut worker = Stream::open(server.channel(), 1).await;
        let id = submit(&server, retried("1")).await;
        let attempt = attempt_of(&worker.dispatch().await);
        hold_applied(&worker.start(&attempt).await);
        let finish = succeeded(&attempt, "1");

        let began = Instant::now();
        worker.send(Ask::Finish(finish.clone())).await;
        server.signal("-TERM");
        for stream in &mut idle {
            stream.go_away().await;
        }
        let answer = timeout(Duration::from_secs(10), worker.answer(&finish.message_id)).await;
        hold_applied(&answer.expect("acknowledged"));
        assert_eq!(server.ended().await.code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        println!("ended after {:?}", began.elapsed());
        drop(silent);

        server.restart().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        assert!(worker.finish(&finish).await.replayed);
        assert_eq!(task(&server, &id).await.state(), TaskState::Succeeded);
        let next = submit(&server, retried("2")).await;
        let dispatch = worker.dispatch().await;
        worker.run(&dispatch).await;
        assert_eq!(attempts(&server, &next).await[0].state(), AttemptState::Succeeded);
        drop(worker);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

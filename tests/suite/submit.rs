//! Submits over the network, sent more than once.

use futures_util::future::join_all;
use orbit::proto::{SubmitTaskRequest, Task};
use tokio::sync::Barrier;

use crate::support::{
    on_every_database,
    server::{Server, submit_request},
};

const SUBMITS: usize = 64;
const CHANNELS: usize = 8;
const ROUNDS: usize = 5;

on_every_database! {
    async fn sixty_four_identical_submits_at_once_make_one_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let channels: Vec<_> = (0..CHANNELS).map(|_| server.tasks()).collect();
        for round in 1..=ROUNDS {
            let request = submit_request(r#"{"text":"once"}"#);
            let barrier = Barrier::new(SUBMITS);
            let submits = (0..SUBMITS).map(|i| {
                let (mut tasks, request, barrier) = (channels[i % CHANNELS].clone(), request.clone(), &barrier);
                async move {
                    barrier.wait().await;
                    tasks.submit_task(request).await.expect("accepted").into_inner()
                }
            });
            let answers = join_all(submits).await;
            let tasks: Vec<&Task> = answers.iter().map(|a| a.task.as_ref().expect("a task")).collect();
            assert_eq!(tasks.len(), SUBMITS);
            assert!(tasks.iter().all(|task| *task == tasks[0]), "64 equal answers: {tasks:?}");
            assert_eq!(answers.iter().filter(|a| !a.replayed).count(), 1, "one made it");
            let rows = i64::try_from(round).expect("a number");
            assert_eq!(database.number("SELECT COUNT(*) FROM tasks").await, rows);
        }
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn of_two_contents_under_one_key_one_wins(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let channels: Vec<_> = (0..CHANNELS).map(|_| server.tasks()).collect();
        let one = submit_request("1");
        let two = SubmitTaskRequest { payload: "2".to_owned(), ..one.clone() };
        let barrier = Barrier::new(SUBMITS);
        let submits = (0..SUBMITS).map(|i| {
            let request = if i % 2 == 0 { one.clone() } else { two.clone() };
            let (mut tasks, barrier) = (channels[i % CHANNELS].clone(), &barrier);
            async move {
                barrier.wait().await;
                let answer = tasks.submit_task(request).await;
                (i % 2, answer.map(|a| a.into_inner().task.expect("a task").task_id))
            }
        });
        let answers = join_all(submits).await;
        let (winner, task_id) = answers
            .iter()
            .find_map(|(content, answer)| answer.as_ref().ok().map(|id| (*content, id.clone())))
            .expect("one wins");
        for (content, answer) in &answers {
            match answer {
                Ok(id) => assert_eq!((*content, id), (winner, &task_id)),
                Err(status) => {
                    assert_ne!(*content, winner);
                    assert_eq!(status.code(), tonic::Code::AlreadyExists, "{status:?}");
                }
            }
        }
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

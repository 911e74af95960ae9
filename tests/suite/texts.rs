//! JSON texts are kept byte for byte, wherever they go.

use orbit::proto::{
    Attempt, Finish, GetTaskRequest, ListAttemptsRequest, Task, TaskError, TaskState, TaskView,
};

use crate::support::{
    on_every_database,
    server::{Server, submit_request},
    stream::{Stream, attempt_of, failed, hold_applied, succeeded},
};

/// Numbers that no float holds, keys twice, blanks, an order of their own.
const TEXTS: [&str; 5] = [
    r#"{"n":9007199254740993,"e":1E2,"d":0.10,"d":1}"#,
    r#"{"id":9007199254740993,"u":18446744073709551615,"v":18446744073709551616,"n":-9223372036854775809}"#,
    "{\"zeta\": 1,\t\"alpha\" :2,\n \"z\":[ ],\"big\":1e400,\"small\":-0.0}",
    r#""é \u00e9 \ud83d\ude00 😀 \/""#,
    " null ",
];

async fn get(server: &Server, task_id: &str) -> Task {
    let request = GetTaskRequest { task_id: task_id.to_owned(), view: TaskView::Full.into() };
    server.tasks().get_task(request).await.expect("found").into_inner().task.expect("a task")
}

async fn attempts(server: &Server, task_id: &str) -> Vec<Attempt> {
    let request = ListAttemptsRequest { task_id: task_id.to_owned(), ..ListAttemptsRequest::default() };
    server.tasks().list_attempts(request).await.expect("found").into_inner().attempts
}

on_every_database! {
    async fn t7_texts_survive_every_way_through_orbit(database: TestDatabase) {
        let mut server = Server::start(&database).await.with_queue().await;
        let mut ids = Vec::new();
        for text in TEXTS {
            let request = submit_request(text);
            let task = |answer: orbit::proto::SubmitTaskResponse| (answer.task.expect("a task"), answer.replayed);
            let (first, replayed) = task(server.tasks().submit_task(request.clone()).await.expect("accepted").into_inner());
            assert!(!replayed);
            // The same bytes are the same content.
            let (again, replayed) = task(server.tasks().submit_task(request).await.expect("accepted").into_inner());
            assert_eq!((&again.task_id, replayed), (&first.task_id, true));
            assert_eq!(get(&server, &first.task_id).await.payload, text);
            ids.push(first.task_id);
        }

        server.kill();
        server.restart().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        for (id, text) in ids.iter().zip(TEXTS) {
            assert_eq!(get(&server, id).await.payload, text, "after a restart");
            let dispatch = worker.dispatch().await;
            assert_eq!((&dispatch.task_id, dispatch.payload.as_str()), (id, text));
            let attempt = attempt_of(&dispatch);
            hold_applied(&worker.start(&attempt).await);
            let report = succeeded(&attempt, text);
            hold_applied(&worker.finish(&report).await);
            assert!(worker.finish(&report).await.replayed, "the same bytes are the same report");
        }

        drop(worker);
        server.kill();
        server.restart().await;
        for (id, text) in ids.iter().zip(TEXTS) {
            let task = get(&server, id).await;
            assert_eq!((task.payload.as_str(), task.result.as_str()), (text, text));
            assert_eq!(attempts(&server, id).await[0].result, text);
        }
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn the_details_of_an_error_survive_too(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        for text in TEXTS {
            server.tasks().submit_task(submit_request("1")).await.expect("accepted");
            let dispatch = worker.dispatch().await;
            let attempt = attempt_of(&dispatch);
            hold_applied(&worker.start(&attempt).await);
            let error =
                TaskError { code: "NO".to_owned(), message: text.to_owned(), details: text.to_owned() };
            let report = Finish { error: Some(error.clone()), ..failed(&attempt, "NO") };
            hold_applied(&worker.finish(&report).await);
            let task = get(&server, &attempt.task_id).await;
            assert_eq!((task.state(), task.error.as_ref()), (TaskState::Failed, Some(&error)));
            assert_eq!(attempts(&server, &attempt.task_id).await[0].error.as_ref(), Some(&error));
        }
        drop(worker);
        server.stop().await;
        database.drop().await;
    }
}

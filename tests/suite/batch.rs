//! Many submits in one call.

use orbit::proto::{
    BatchSubmitTasksRequest, BatchSubmitTasksResult, GetTaskRequest, SubmitTaskRequest, SubmitTaskResponse,
    TaskView, batch_submit_tasks_result::Outcome,
};
use tonic::Code;
use tonic_types::RpcStatusExt as _;

use crate::support::{
    on_every_database,
    server::{Server, submit_request},
};

async fn submit(server: &Server, tasks: Vec<SubmitTaskRequest>) -> Vec<BatchSubmitTasksResult> {
    let request = BatchSubmitTasksRequest { tasks };
    server.tasks().batch_submit_tasks(request).await.expect("answered").into_inner().results
}

fn submitted(result: &BatchSubmitTasksResult) -> &SubmitTaskResponse {
    match &result.outcome {
        Some(Outcome::Submitted(submitted)) => submitted,
        other => panic!("not submitted: {other:?}"),
    }
}

fn reason(result: &BatchSubmitTasksResult) -> (Code, String) {
    match &result.outcome {
        Some(Outcome::Error(error)) => {
            let info = error.get_details_error_info().expect("an ErrorInfo");
            (Code::from_i32(error.code), info.reason)
        }
        other => panic!("not refused: {other:?}"),
    }
}

on_every_database! {
    async fn a_batch_that_is_sent_again_makes_nothing_twice(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let batch: Vec<_> = (0..1_000).map(|n| submit_request(n.to_string())).collect();
        let (first, meanwhile) = tokio::join!(submit(&server, batch.clone()), submit(&server, batch.clone()));
        let again = submit(&server, batch.clone()).await;
        let (mut made, mut ids) = (0, Vec::new());
        for (n, request) in batch.iter().enumerate() {
            let answers = [&first, &meanwhile, &again].map(|results| submitted(&results[n]));
            let tasks = answers.map(|answer| answer.task.as_ref().expect("a task"));
            assert!(tasks.iter().all(|task| *task == tasks[0]), "equal answers: {tasks:?}");
            assert_eq!(tasks[0].idempotency_key, request.idempotency_key);
            assert!(answers[2].replayed);
            made += answers.iter().filter(|answer| !answer.replayed).count();
            ids.push(tasks[0].task_id.clone());
        }
        assert_eq!(made, 1_000);
        assert_eq!(database.number("SELECT COUNT(*) FROM tasks").await, 1_000);
        let request = GetTaskRequest { task_id: ids.swap_remove(777), view: TaskView::Full.into() };
        let task = server.tasks().get_task(request).await.expect("there").into_inner().task;
        assert_eq!(task.expect("a task").payload, "777");
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn a_bad_task_of_a_batch_fails_alone(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let good = submit_request("1");
        let same_key = SubmitTaskRequest { payload: "2".to_owned(), ..good.clone() };
        let no_queue = SubmitTaskRequest { queue_id: "nowhere".to_owned(), ..submit_request("3") };
        let no_json = submit_request("{");
        let too_large = submit_request(format!("\"{}\"", "x".repeat(1024 * 1024)));
        let batch = vec![good.clone(), no_json, same_key, no_queue, too_large, good, submit_request("4")];
        let results = submit(&server, batch).await;
        assert!(!submitted(&results[0]).replayed);
        assert_eq!(reason(&results[1]), (Code::InvalidArgument, "PAYLOAD_NOT_JSON".to_owned()));
        assert_eq!(reason(&results[2]), (Code::AlreadyExists, "IDEMPOTENCY_CONFLICT".to_owned()));
        assert_eq!(reason(&results[3]), (Code::NotFound, "QUEUE_NOT_FOUND".to_owned()));
        assert_eq!(reason(&results[4]), (Code::InvalidArgument, "PAYLOAD_TOO_LARGE".to_owned()));
        assert!(submitted(&results[5]).replayed);
        assert_eq!(submitted(&results[5]).task, submitted(&results[0]).task);
        assert!(!submitted(&results[6]).replayed);
        assert_eq!(database.number("SELECT COUNT(*) FROM tasks").await, 2);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn what_is_no_batch_is_refused_whole(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        for count in [0, 1_001] {
            let tasks = (0..count).map(|n| submit_request(n.to_string())).collect();
            let answer = server.tasks().batch_submit_tasks(BatchSubmitTasksRequest { tasks }).await;
            let status = answer.expect_err("no batch");
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains("1 to 1000"), "{status:?}");
        }
        assert_eq!(database.number("SELECT COUNT(*) FROM tasks").await, 0);
        server.stop().await;
        database.drop().await;
    }
}

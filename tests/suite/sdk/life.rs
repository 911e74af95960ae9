//! A worker's life: what it is given, and how it leaves.

use std::time::Duration;

use orbit::{
    proto::{TaskState, TaskView},
    sdk::{Context, Worker},
};
use tokio::time::sleep;

use super::{
    Gate, LIMIT, attempts, counts, drained, end, start, submit, submit_many, succeeded_at_once, worker,
};
use crate::support::{
    on_every_database,
    rig::{HANDLER, QUEUE},
    server::Server,
};

/// Long enough for a worker to be given what it must not be given.
const A_WHILE: Duration = Duration::from_millis(700);

on_every_database! {
    // What was begun ends and is confirmed; what was not begun is left as it was, for others, with its whole budget.
    async fn a_drain_under_load_leaves_nothing_half_done(database: TestDatabase) {
        const TASKS: usize = 400;
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let brief = |_: Context, (): ()| async {
            sleep(Duration::from_millis(50)).await;
            Ok(1)
        };
        let first = start(worker(&client, brief).slots(20));
        let ids = submit_many(&client, TASKS).await;
        let report = drained(first).await;
        assert!(report.started > 0 && report.started < 400, "{report:?}");
        assert_eq!((report.confirmed, report.evidence), (report.started, 0));

        let mut done = 0;
        for id in &ids {
            let task = client.get_view(id, TaskView::Basic).await.expect("the task");
            match (task.state(), task.attempt_count) {
                (TaskState::Succeeded, 1) => done += 1,
                (TaskState::Waiting, 0) => {}
                other => panic!("half done: {other:?}"),
            }
        }
        assert_eq!(done, report.started);
        let second = start(worker(&client, brief).slots(20));
        for id in &ids {
            succeeded_at_once(&client, id).await;
        }
        assert_eq!(counts(drained(second).await), (400 - done, 400 - done, 0));
        end(server, database).await;
    }

    // It is welcome, and is served as soon as there is such a queue.
    async fn a_worker_for_an_unknown_queue_waits_for_it(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let gate = Gate::new();
        gate.let_end(2);
        let worker = start(gate.worker(&client).queue("later"));
        // It works for the queue that there is.
        succeeded_at_once(&client, &submit(&client, &()).await).await;
        let refused = client.submit("later", HANDLER.0, HANDLER.1).payload(&()).send().await.expect_err("no queue");
        assert_eq!(refused.reason(), Some("QUEUE_NOT_FOUND"));
        client.create_queue("later", 0).await.expect("a queue");
        let late = client.submit("later", HANDLER.0, HANDLER.1).payload(&()).send().await.expect("accepted");
        succeeded_at_once(&client, &late.task.task_id).await;
        assert_eq!(counts(drained(worker).await), (2, 2, 0));
        end(server, database).await;
    }

    // A task is for one version of its handler. Another one is never given it; the task waits, visibly, unharmed.
    async fn a_worker_of_another_version_is_not_given_the_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let (old, new) = (Gate::new(), Gate::new());
        old.let_end(1);
        new.let_end(1);
        let gate = new.clone();
        let next = Worker::builder(&client)
            .queue(QUEUE)
            .handler(HANDLER.0, "v2", move |context, (): ()| gate.clone().handle(context));
        let next = start(next);
        let id = submit(&client, &()).await;
        sleep(A_WHILE).await;
        let task = client.get(&id).await.expect("the task");
        assert_eq!((task.state(), task.attempt_count), (TaskState::Waiting, 0));
        assert!(attempts(&client, &id).await.is_empty());

        let current = start(old.worker(&client));
        succeeded_at_once(&client, &id).await;
        let newer = client.submit(QUEUE, HANDLER.0, "v2").payload(&()).send().await.expect("accepted");
        let newer = client.wait(&newer.task.task_id, LIMIT).await.expect("settled");
        assert_eq!(newer.state(), TaskState::Succeeded);
        assert_eq!((old.calls(), new.calls()), (1, 1));
        for worker in [next, current] {
            assert_eq!(counts(drained(worker).await), (1, 1, 0));
        }
        end(server, database).await;
    }
}

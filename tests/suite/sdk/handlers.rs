//! Handlers that behave badly, and many at once.

use std::time::Duration;

use orbit::{
    proto::TaskState,
    sdk::{Context, Failure},
};

use super::{
    Gate, LIMIT, counts, drained, end, start, submit, submit_many, succeeded_at_once, until, worker,
};
use crate::support::{on_every_database, server::Server};

on_every_database! {
    // All threads of the handlers' runtime are blocked for several leases; renewals go on all the same.
    async fn a_handler_that_blocks_its_thread_keeps_its_lease(database: TestDatabase) {
        const LEASE: Duration = Duration::from_secs(2);
        let lease_ms = LEASE.as_millis().to_string();
        let server = Server::start_with(&database, &["--lease-ms", &lease_ms]).await.with_queue().await;
        let client = server.client();
        let handlers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let handlers = handlers.expect("a runtime");
        // Deliberately wrong: it blocks its thread.
        let blocking = |context: Context, (): ()| async move {
            std::thread::sleep(3 * LEASE);
            if context.is_cancelled() { Err(Failure::unknown("TOLD_TO_STOP")) } else { Ok(1) }
        };
        let worker = {
            let _entered = handlers.enter();
            start(worker(&client, blocking))
        };
        let id = submit(&client, &()).await;
        succeeded_at_once(&client, &id).await;
        assert_eq!(counts(drained(worker).await), (1, 1, 0));
        handlers.shutdown_background();
        end(server, database).await;
    }

    // One handler never looks up again; its lease ends with its timeout. The worker's only slot is free again, and the
    // others run.
    async fn a_frozen_handler_does_not_block_the_others(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let frozen_first = |_: Context, frozen: bool| async move {
            if frozen {
                std::future::pending::<()>().await;
            }
            Ok(1)
        };
        let worker = start(worker(&client, frozen_first).slots(1));
        let submitted = client.submit("default", "text.normalize", "v1").payload(&true);
        let submitted = submitted.attempt_timeout(Duration::from_millis(300)).send().await.expect("accepted");
        let frozen = submitted.task.task_id;
        until(&client, &frozen, "it runs", |task| task.state() == TaskState::Running).await;
        for _ in 0..3 {
            let id = submit(&client, &false).await;
            succeeded_at_once(&client, &id).await;
        }
        let task = client.wait(&frozen, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::NeedsReview, true));
        let report = worker.drain(Duration::from_millis(300)).await.expect("a report");
        assert_eq!((report.drained, report.started, report.confirmed, report.running), (false, 4, 3, 1));
        end(server, database).await;
    }

    async fn a_thousand_handlers_run_at_once(database: TestDatabase) {
        const HANDLERS: usize = 1_000;
        let server = Server::start(&database).await.with_queue().await;
        let client = server.client();
        let gate = Gate::new();
        let worker = start(gate.worker(&client).slots(1_000));
        let ids = submit_many(&client, HANDLERS).await;
        gate.called(1_000).await;
        gate.let_end(HANDLERS);
        for id in &ids {
            succeeded_at_once(&client, id).await;
        }
        assert_eq!(counts(drained(worker).await), (1_000, 1_000, 0));
        assert_eq!(gate.calls(), 1_000);
        end(server, database).await;
    }
}

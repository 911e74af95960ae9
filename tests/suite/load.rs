//! Many workers, many tasks.

mod alone {
    use std::{
        collections::HashMap,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use futures_util::{StreamExt as _, TryStreamExt as _, future, stream};
    use orbit::{
        proto::SubmitTaskRequest,
        sdk::{Worker, WorkerHandle},
    };
    use tokio::time::Instant;

    use crate::support::{
        database::TestDatabase,
        eventually, on_every_database,
        rig::{HANDLER, QUEUE},
        server::{Server, submit_request},
    };

    const TASKS: usize = 10_000;
    const WORKERS: usize = 100;
    const SLOTS: u32 = 10;
    const PRODUCERS: usize = 64;
    const DRAIN_LIMIT: Duration = Duration::from_secs(150);

    /// How often the handler ran, by task.
    type Runs = Arc<Mutex<HashMap<String, u32>>>;

    fn worker(server: &Server, number: usize, runs: &Runs) -> WorkerHandle {
        let runs = Arc::clone(runs);
        Worker::builder(&server.client())
            .queue(QUEUE)
            .raw_handler(HANDLER.0, HANDLER.1, move |context, payload: String| {
                *runs.lock().expect("no panic").entry(context.task_id().to_owned()).or_default() += 1;
                future::ready(Ok(payload))
            })
            .slots(SLOTS)
            .name(format!("worker-{number}"))
            .build()
            .expect("a worker")
            .start()
            .expect("started")
    }

    async fn submit_all(server: &Server) {
        let channels: Vec<_> = (0..4).map(|_| server.tasks()).collect();
        stream::iter(0..TASKS)
            .map(|i| {
                let mut tasks = channels[i % channels.len()].clone();
                let request: SubmitTaskRequest = submit_request(format!("{{\"task\":{i}}}"));
                async move { tasks.submit_task(request).await.map(drop) }
            })
            .buffer_unordered(PRODUCERS)
            .try_collect::<()>()
            .await
            .expect("all are accepted");
    }

    async fn succeeded(database: &TestDatabase) -> usize {
        let count = database.number("SELECT COUNT(*) FROM tasks WHERE state = 4").await;
        usize::try_from(count).expect("a count")
    }

    on_every_database! {
        async fn a_hundred_workers_drain_ten_thousand_tasks_each_once(database: TestDatabase) {
            let server = Server::start(&database).await.with_queue().await;
            let began = Instant::now();
            submit_all(&server).await;
            let submitted = began.elapsed();

            let runs = Runs::default();
            let began = Instant::now();
            let workers: Vec<_> = (0..WORKERS).map(|number| worker(&server, number, &runs)).collect();
            eventually("all tasks succeed", DRAIN_LIMIT, async || {
                tokio::time::sleep(Duration::from_millis(200)).await;
                (succeeded(&database).await == TASKS).then_some(())
            })
            .await;
            let drained = began.elapsed();
            println!("submitted in {submitted:?}, drained in {drained:?}");

            let reports = future::join_all(workers.into_iter().map(|w| w.drain(Duration::from_secs(20)))).await;
            let (mut started, mut confirmed) = (0, 0);
            for report in reports {
                let report = report.expect("no worker was refused");
                assert!(report.drained && report.evidence == 0 && report.refused == 0, "{report:?}");
                started += report.started;
                confirmed += report.confirmed;
            }
            assert_eq!((started, confirmed), (TASKS as u64, TASKS as u64));
            let runs = runs.lock().expect("no panic").clone();
            assert_eq!((runs.len(), runs.values().max()), (TASKS, Some(&1)));

            let attempts = "SELECT COUNT(*) FROM attempts";
            assert_eq!(database.number(attempts).await, i64::try_from(TASKS).expect("a number"));
            assert_eq!(database.number("SELECT MAX(epoch) FROM attempts").await, 1);
            assert_eq!(database.number("SELECT COUNT(*) FROM leases").await, 0);
            assert_eq!(database.number("SELECT COUNT(*) FROM ready").await, 0);
            assert_eq!(server.complaints(), [""; 0]);
            server.stop().await;
            database.check_invariants().await;
            database.drop().await;
        }
    }
}

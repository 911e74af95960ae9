//! How soon a submitted task reaches a worker.

mod mysql_only {
    mod alone {
        use std::time::Duration;

        use futures_util::future::join;
        use tokio::time::{Instant, sleep};

        use crate::support::{
            database::TestDatabase,
            on_every_database,
            server::{Server, submit_request},
            stream::Stream,
        };

        const TASKS: usize = 40;
        /// Not in step with any interval of the server.
        const PAUSE: Duration = Duration::from_millis(37);
        const SAME_NODE_LIMIT: Duration = Duration::from_millis(20);
        const OTHER_NODE_LIMIT: Duration = Duration::from_millis(300);
        /// Statements to the database on a task's way from its submit to its dispatch, about, and commits.
        const STATEMENTS: u32 = 40;
        const COMMITS: u32 = 2;
        /// What a statement that does nothing takes on an idle machine, at most, and one with a durable commit.
        const IDLE_STATEMENT: Duration = Duration::from_micros(250);
        const IDLE_COMMIT: Duration = Duration::from_millis(3);

        /// Medians over all tasks.
        struct Medians {
            /// From the submit to the dispatch.
            wait: Duration,
            /// Of a statement that does nothing, and of one that commits a row, at the same time.
            statement: Duration,
            commit: Duration,
        }

        impl Medians {
            /// Holds a limit for an idle machine; one that is busy with something else gets what its delays add.
            fn hold(&self, limit: Duration) {
                let Self { wait, statement, commit } = *self;
                println!(
                    "median from submit to dispatch: {wait:?}, of a statement: {statement:?}, with commit: {commit:?}"
                );
                let excess = statement.saturating_sub(IDLE_STATEMENT) * STATEMENTS
                    + commit.saturating_sub(IDLE_COMMIT) * COMMITS;
                assert!(wait < limit + excess, "{wait:?} is not within {limit:?} and {excess:?}");
            }
        }

        fn median(mut durations: Vec<Duration>) -> Duration {
            durations.sort_unstable();
            durations[durations.len() / 2]
        }

        /// Submits tasks to one node at a quiet pace and runs them at another.
        async fn medians(database: &TestDatabase, producer: &Server, consumer: &Server) -> Medians {
            let mut tasks = producer.tasks();
            let mut worker = Stream::open(consumer.channel(), 4).await;
            let (mut waits, mut statements, mut commits) = (Vec::new(), Vec::new(), Vec::new());
            database.sql("CREATE TABLE probe (n BIGINT)").await;
            for i in 0..=TASKS {
                let began = Instant::now();
                let submit =
                    async { tasks.submit_task(submit_request("{}")).await.expect("accepted").into_inner() };
                let dispatch = async { (worker.dispatch().await, began.elapsed()) };
                let (submitted, (dispatch, waited)) = join(submit, dispatch).await;
                assert_eq!(dispatch.task_id, submitted.task.expect("a task").task_id);
                worker.run(&dispatch).await;
                // The first one opens connections and makes the route.
                if i > 0 {
                    waits.push(waited);
                }
                let began = Instant::now();
                database.number("1").await;
                statements.push(began.elapsed());
                let began = Instant::now();
                database.sql("INSERT INTO probe VALUES (1)").await;
                commits.push(began.elapsed());
                sleep(PAUSE).await;
            }
            Medians { wait: median(waits), statement: median(statements), commit: median(commits) }
        }

        on_every_database! {
            async fn a_task_reaches_a_worker_of_its_node_in_20_ms(database: TestDatabase) {
                let server = Server::start(&database).await.with_queue().await;
                medians(&database, &server, &server).await.hold(SAME_NODE_LIMIT);
                server.stop().await;
                database.check_invariants().await;
                database.drop().await;
            }
        }

        #[tokio::test(flavor = "multi_thread")]
        async fn a_task_reaches_a_worker_of_another_node_in_300_ms() {
            let database = TestDatabase::mysql().await;
            let (a, b) = (Server::start(&database).await.with_queue().await, Server::start(&database).await);
            medians(&database, &a, &b).await.hold(OTHER_NODE_LIMIT);
            let attempts_of_b = database.number("SELECT COUNT(*) FROM attempts").await;
            assert_eq!(attempts_of_b, i64::try_from(TASKS + 1).expect("a number"));
            a.stop().await;
            b.stop().await;
            database.check_invariants().await;
            database.drop().await;
        }
    }
}

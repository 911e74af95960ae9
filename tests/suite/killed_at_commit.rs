//! A server killed at its COMMIT (S20): just before it, with all rows written, nothing has happened; just after it, with
//! the answer not yet out, all has. Either way the next server goes on from the truth, a message sent again gets its true
//! receipt, and nothing is doubled.
//!
//! The program is the one that runs in production. What it does is seen, and stopped, in its database.

use std::time::Duration;

use orbit::{
    domain::event::EventKind,
    proto::{
        Attempt, AttemptRef, CommandResult, Finish, GetTaskRequest, ListAttemptsRequest,
        ListTaskEventsRequest, Outcome, RecoverySafety, RetryPolicy, SubmitTaskRequest, Task, TaskState,
        TaskView, worker_request::Message as Ask, worker_response::Message as Told,
    },
};
use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection};
use tokio::{
    join,
    time::{Instant, sleep},
};
use tonic::transport::Channel;

use crate::support::{
    blocker::Blocker,
    database::TestDatabase,
    eventually, on_every_database,
    rig::QUEUE,
    server::{Server, channel, submit_request},
    stream::{Stream, attempt_of, disposition, failed, finish, hold_applied, start as start_of, succeeded},
    tcp_proxy::TcpProxy,
};

const LIMIT: Duration = Duration::from_secs(10);
/// Nobody else writes for so long: it is no ordinary transaction.
const STUCK: Duration = Duration::from_millis(200);
const POINTS: [Point; 2] = [Point::BeforeCommit, Point::AfterCommit];

/// Where the server dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Everything is written but COMMIT.
    BeforeCommit,
    /// As soon as the commit is seen from outside; the answer is lost.
    AfterCommit,
}

/// A server that is going to die, behind a proxy that can lose its answers.
struct Doomed {
    server: Server,
    proxy: TcpProxy,
    database: TestDatabase,
}

impl Doomed {
    async fn start(database: TestDatabase) -> Self {
        let more = ["--lease-ms", "1000", "--start-window-ms", "1000", "--sweep-interval-ms", "50"];
        let server = Server::start_with(&database, &more).await.with_queue().await;
        let proxy = TcpProxy::before(server.address()).await;
        Self { server, proxy, database }
    }

    /// Kills the server at that point of the transaction which writes an event of that kind, while `asked` waits.
    async fn killed_while<T>(&mut self, point: Point, kind: EventKind, asked: impl Future<Output = T>) -> T {
        let before = self.database.picture().await;
        match point {
            Point::BeforeCommit => {
                let stop = Stop::before_commit_of(&self.database, kind).await;
                let dies = async {
                    stop.reached(&self.database).await;
                    self.server.kill();
                };
                let (answer, ()) = join!(asked, dies);
                stop.lift(&self.database).await;
                // A queue that was resumed, and a lease that was extended while all waited, are no part of it.
                let others = ["requests", "lease ends"];
                assert_eq!(self.database.picture().await.without(&others), before.without(&others));
                answer
            }
            Point::AfterCommit => {
                let sql = format!("SELECT COUNT(*) FROM events WHERE kind = {}", code(kind));
                let had = self.database.number(&sql).await;
                self.proxy.swallow_answers();
                let dies = async {
                    let deadline = Instant::now() + LIMIT;
                    while self.database.number(&sql).await == had {
                        assert!(Instant::now() < deadline, "no {kind:?} within {LIMIT:?}");
                    }
                    self.server.kill();
                };
                let (answer, ()) = join!(asked, dies);
                self.proxy.cut();
                assert_eq!(self.database.number(&sql).await, had + 1);
                answer
            }
        }
    }

    /// To the server, through the proxy.
    fn channel(&self) -> Channel {
        channel(self.proxy.address())
    }

    async fn submit(&self, request: &SubmitTaskRequest) -> (Task, bool) {
        let answer = self.server.tasks().submit_task(request.clone()).await.expect("accepted").into_inner();
        (answer.task.expect("a task"), answer.replayed)
    }

    async fn task(&self, task_id: &str) -> Task {
        let request = GetTaskRequest { task_id: task_id.to_owned(), view: TaskView::Basic.into() };
        let answer = self.server.tasks().get_task(request).await.expect("found").into_inner();
        answer.task.expect("a task")
    }

    async fn attempts(&self, task_id: &str) -> Vec<Attempt> {
        let request = ListAttemptsRequest { task_id: task_id.to_owned(), ..Default::default() };
        self.server.tasks().list_attempts(request).await.expect("listed").into_inner().attempts
    }

    /// Holds that this is all that ever happened to the task.
    async fn hold_events(&self, task_id: &str, expected: &[&str]) {
        let request = ListTaskEventsRequest { task_id: task_id.to_owned(), ..Default::default() };
        let answer = self.server.tasks().list_task_events(request).await.expect("listed").into_inner();
        let types: Vec<_> = answer.events.iter().map(|event| event.r#type.as_str()).collect();
        assert_eq!(types, expected);
    }

    /// A task whose first attempt runs at a worker behind the proxy.
    async fn running(&self, request: &SubmitTaskRequest) -> (Stream, AttemptRef) {
        self.submit(request).await;
        let mut worker = Stream::open(self.channel(), 1).await;
        let attempt = attempt_of(&worker.dispatch().await);
        hold_applied(&worker.start(&attempt).await);
        (worker, attempt)
    }

    async fn end(self) {
        self.server.stop().await;
        self.database.check_invariants().await;
        self.database.drop().await;
    }
}

/// Stops the server in its last statement before COMMIT.
enum Stop {
    /// The last row's trigger counts for minutes.
    Sqlite(DatabaseConnection),
    /// The last table is locked.
    MySql(Blocker),
}

impl Stop {
    async fn before_commit_of(database: &TestDatabase, kind: EventKind) -> Self {
        if database.is_mysql() {
            let blocker = Blocker::new(database, "LOCK TABLES events WRITE", "UNLOCK TABLES").await;
            return Self::MySql(blocker);
        }
        let endless = "CREATE VIEW endless AS WITH RECURSIVE n (i) AS \
                       (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT COUNT(*) FROM n";
        database.sql(endless).await;
        let trigger = format!(
            "CREATE TRIGGER stop AFTER INSERT ON events WHEN NEW.kind = {} BEGIN SELECT * FROM endless; END",
            code(kind)
        );
        database.sql(&trigger).await;
        let mut options = ConnectOptions::new(&database.url);
        options.max_connections(1).sqlx_logging(false);
        let side = sea_orm::Database::connect(options).await.expect("connected");
        side.execute_unprepared("PRAGMA busy_timeout = 0").await.expect("set");
        Self::Sqlite(side)
    }

    /// Waits until the server stands there.
    async fn reached(&self, database: &TestDatabase) {
        match self {
            Self::Sqlite(side) => {
                let (deadline, mut free_at) = (Instant::now() + LIMIT, Instant::now());
                while free_at.elapsed() < STUCK {
                    assert!(Instant::now() < deadline, "the server wrote no such event");
                    if side.execute_unprepared("BEGIN IMMEDIATE").await.is_ok() {
                        side.execute_unprepared("ROLLBACK").await.expect("rolled back");
                        free_at = Instant::now();
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            }
            Self::MySql(_) => {
                let is_mariadb = database.number("SELECT VERSION() LIKE '%MariaDB%'").await == 1;
                // MySQL's list of processes cannot be read while statements carry bytes.
                let (table, db, state) = if is_mariadb {
                    ("information_schema.processlist", "db", "state")
                } else {
                    ("performance_schema.threads", "processlist_db", "processlist_state")
                };
                let waiting = format!(
                    "SELECT COUNT(*) FROM {table} WHERE {db} = DATABASE() AND {state} LIKE 'Waiting for table%lock'"
                );
                eventually("the server waits", LIMIT, async || {
                    (database.number(&waiting).await > 0).then_some(())
                })
                .await;
            }
        }
    }

    async fn lift(self, database: &TestDatabase) {
        match self {
            Self::Sqlite(side) => {
                side.close().await.expect("closed");
                database.sql("DROP TRIGGER stop").await;
                database.sql("DROP VIEW endless").await;
            }
            Self::MySql(blocker) => blocker.release().await,
        }
    }
}

/// As the schema counts them.
fn code(kind: EventKind) -> i32 {
    match kind {
        EventKind::Accepted => 1,
        EventKind::Leased => 2,
        EventKind::Started => 3,
        EventKind::Requeued => 4,
        EventKind::Succeeded => 5,
        other => unreachable!("{other:?}"),
    }
}

/// Three attempts, a moment apart.
fn retried() -> SubmitTaskRequest {
    let retry = RetryPolicy {
        max_attempts: Some(3),
        initial_delay_ms: Some(50),
        max_delay_ms: Some(50),
        ..RetryPolicy::default()
    };
    SubmitTaskRequest { retry: Some(retry), ..submit_request("1") }
}

/// Sends a message again and again: the first answer tells whether it had been committed, and all are the same.
async fn sent_again(worker: &mut Stream, point: Point, message: Ask, message_id: &str) {
    worker.send(message.clone()).await;
    let first = worker.answer(message_id).await;
    hold_applied(&first);
    assert_eq!(first.replayed, point == Point::AfterCommit);
    worker.send(message).await;
    let second = worker.answer(message_id).await;
    assert_eq!((second.receipt, second.replayed), (first.receipt, true));
}

/// The answer to a message, if one comes before the stream breaks.
async fn answer_before_death(worker: &mut Stream, message: Ask) -> Option<CommandResult> {
    worker.send(message).await;
    while let Ok(Some(told)) = worker.next().await {
        if let Told::CommandResult(result) = told {
            return Some(result);
        }
    }
    None
}

on_every_database! {
    async fn a_killed_submit_is_accepted_once(database: TestDatabase) {
        let mut it = Doomed::start(database).await;
        for point in POINTS {
            let request = submit_request("1");
            let mut tasks = orbit::proto::task_service_client::TaskServiceClient::new(it.channel());
            let answer =
                it.killed_while(point, EventKind::Accepted, tasks.submit_task(request.clone())).await;
            assert!(answer.is_err(), "{point:?}: {answer:?}");
            it.server.restart().await;

            let (task, replayed) = it.submit(&request).await;
            assert_eq!(replayed, point == Point::AfterCommit);
            let (again, replayed) = it.submit(&request).await;
            assert_eq!((again.task_id, replayed), (task.task_id.clone(), true));
            let mut worker = Stream::open(it.server.channel(), 1).await;
            let dispatch = worker.dispatch().await;
            worker.run(&dispatch).await;
            it.hold_events(&task.task_id, &["task.accepted", "task.leased", "task.started", "task.succeeded"])
                .await;
        }
        it.end().await;
    }

    // Nobody has heard of the claim: committed or not, nothing ran, and the task goes to somebody else.
    async fn a_killed_claim_spends_its_unit_of_budget_or_not(database: TestDatabase) {
        let mut it = Doomed::start(database).await;
        for point in POINTS {
            it.server.client().pause_queue(QUEUE).await.expect("paused");
            let (task, _) = it.submit(&retried()).await;
            let mut worker = Stream::open(it.channel(), 1).await;
            let client = it.server.client();
            let claimed = async {
                client.resume_queue(QUEUE).await.expect("resumed");
                worker.next().await
            };
            let told = it.killed_while(point, EventKind::Leased, claimed).await;
            assert!(!matches!(told, Ok(Some(_))), "{point:?}: {told:?}");
            it.server.restart().await;

            let spent = u32::from(point == Point::AfterCommit);
            let state = [TaskState::Waiting, TaskState::Leased][spent as usize];
            let after = it.task(&task.task_id).await;
            assert_eq!((after.state(), after.attempt_count), (state, spent), "{point:?}");
            let mut worker = Stream::open(it.server.channel(), 1).await;
            let dispatch = worker.dispatch().await;
            assert_eq!((&dispatch.task_id, dispatch.epoch), (&task.task_id, spent + 1));
            worker.run(&dispatch).await;
            let claimed_twice = ["task.accepted", "task.leased", "task.requeued", "task.leased"];
            let lead = if spent == 1 { &claimed_twice[..] } else { &claimed_twice[..2] };
            it.hold_events(&task.task_id, &[lead, &["task.started", "task.succeeded"]].concat()).await;
        }
        it.end().await;
    }

    async fn a_killed_start_is_granted_once(database: TestDatabase) {
        let mut it = Doomed::start(database).await;
        for point in POINTS {
            let (task, _) = it.submit(&retried()).await;
            let mut worker = Stream::open(it.channel(), 1).await;
            let attempt = attempt_of(&worker.dispatch().await);
            let start = start_of(&attempt);
            let message = Ask::Start(start.clone());
            let asked = answer_before_death(&mut worker, message.clone());
            let told = it.killed_while(point, EventKind::Started, asked).await;
            assert_eq!(told, None, "{point:?}");
            it.server.restart().await;

            let mut worker = Stream::open(it.server.channel(), 1).await;
            sent_again(&mut worker, point, message, &start.message_id).await;
            hold_applied(&worker.finish(&succeeded(&attempt, "1")).await);
            it.hold_events(&task.task_id, &["task.accepted", "task.leased", "task.started", "task.succeeded"])
                .await;
        }
        it.end().await;
    }

    async fn a_killed_finish_is_applied_once(database: TestDatabase) {
        let mut it = Doomed::start(database).await;
        for (retryable, kind) in [(true, EventKind::Requeued), (false, EventKind::Succeeded)] {
            for point in POINTS {
                let (mut worker, attempt) = it.running(&retried()).await;
                let report = if retryable {
                    Finish { retryable: true, ..failed(&attempt, "BUSY") }
                } else {
                    succeeded(&attempt, "1")
                };
                let message = Ask::Finish(report.clone());
                let asked = answer_before_death(&mut worker, message.clone());
                let told = it.killed_while(point, kind, asked).await;
                assert_eq!(told, None, "{point:?}");
                it.server.restart().await;

                let mut worker = Stream::open(it.server.channel(), 1).await;
                sent_again(&mut worker, point, message, &report.message_id).await;
                let mut expected = vec!["task.accepted", "task.leased", "task.started"];
                if retryable {
                    let dispatch = worker.dispatch().await;
                    assert_eq!((&dispatch.task_id, dispatch.epoch), (&attempt.task_id, 2));
                    worker.run(&dispatch).await;
                    expected.extend(["task.requeued", "task.leased", "task.started"]);
                }
                expected.push("task.succeeded");
                it.hold_events(&attempt.task_id, &expected).await;
                assert!(it.attempts(&attempt.task_id).await.iter().all(|a| a.evidence.is_empty()));
            }
        }
        it.end().await;
    }

    async fn a_killed_reclaim_happens_once(database: TestDatabase) {
        let mut it = Doomed::start(database).await;
        for point in POINTS {
            let idempotent =
                SubmitTaskRequest { recovery_safety: RecoverySafety::Idempotent.into(), ..retried() };
            let (worker, attempt) = it.running(&idempotent).await;
            // Its worker says no more: the lease of a second ends.
            drop(worker);
            it.killed_while(point, EventKind::Requeued, async {}).await;
            it.server.restart().await;

            let mut worker = Stream::open(it.server.channel(), 1).await;
            let dispatch = worker.dispatch().await;
            assert_eq!((&dispatch.task_id, dispatch.epoch), (&attempt.task_id, 2));
            let late = worker.finish(&finish(&attempt, Outcome::Unknown)).await;
            assert_eq!(disposition(&late), orbit::proto::Disposition::Evidence);
            worker.run(&dispatch).await;
            let task = it.task(&attempt.task_id).await;
            assert_eq!((task.state(), task.effect_uncertain), (TaskState::Succeeded, false));
            let expected = [
                "task.accepted", "task.leased", "task.started", "task.requeued", "task.leased",
                "task.evidence_recorded", "task.started", "task.succeeded",
            ];
            it.hold_events(&attempt.task_id, &expected).await;
        }
        it.end().await;
    }
}

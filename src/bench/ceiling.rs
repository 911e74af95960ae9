//! The reference: what the database can do by itself.
//!
//! The rows of a task that succeeds at once, written straight, a hundred tasks a transaction, each step of their life
//! committed before the next. Nothing is read, locked for reading, decided, validated or sent to anybody; the statements
//! are multi-row, prepared once and reused, and values that all rows share are sent once. It is fixed: sixteen row
//! writes a lifecycle, whatever Orbit itself needs.
//!
//! | step | rows |
//! | --- | --- |
//! | submit | `tasks`, `payloads`, `ready`, `events` |
//! | claim | `tasks`, `leases`, −`ready`, `events` |
//! | start | `leases`, `receipts`, `events` |
//! | finish | `tasks`, −`leases`, `attempts`, `receipts`, `events` |

use std::{path::Path, time::Duration};

use hdrhistogram::Histogram;
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, DbErr, Statement, Value,
    sqlx::{
        Executor as _,
        sqlite::{SqliteJournalMode, SqliteSynchronous},
    },
};
use tokio::{
    task::JoinSet,
    time::{Instant, interval},
};
use uuid::Uuid;

use super::BenchError;

/// Tasks of one transaction.
const TASKS: usize = 100;
/// Row writes of one lifecycle.
pub(super) const ROWS: u32 = 16;

const PRINCIPAL: &str = "local";
const NODE: &str = "node-00000000000000000000000000000000";
const WORKER: &str = "bench-0";
/// What stands in for the database's time: only the size of a moment matters.
const NOW: i64 = 1_800_000_000_000_000;
const MINUTE: i64 = 60_000_000;
const DAY: i64 = 86_400_000_000;

/// What was done, and in how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub(super) tasks: u64,
    pub(super) seconds: f64,
}

/// What is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Whole lifecycles.
    Lifecycles,
    /// What a submit writes, so many tasks a transaction.
    Submits(u32),
}

/// Writes over `connections` at once for so long.
pub(super) async fn measure(
    url: &str,
    work: Work,
    connections: u32,
    payload_bytes: usize,
    duration: Duration,
) -> Result<Reached, BenchError> {
    let payload = payload(payload_bytes);
    let mut writers = Vec::new();
    for _ in 0..connections {
        let writer = Writer::open(url, &payload).await.map_err(BenchError::of("the ceiling"))?;
        // Prepares every statement.
        writer.work(work).await.map_err(BenchError::of("the ceiling"))?;
        writers.push(writer);
    }
    let began = Instant::now();
    let mut writing = JoinSet::new();
    for writer in writers {
        writing.spawn(async move {
            let mut tasks = 0;
            while began.elapsed() < duration {
                tasks += writer.work(work).await?;
            }
            writer.db.close().await?;
            Ok::<_, DbErr>(tasks)
        });
    }
    let mut reached = Reached::default();
    while let Some(done) = writing.join_next().await {
        let done = done.map_err(BenchError::of("the ceiling"))?;
        reached.tasks += done.map_err(BenchError::of("the ceiling"))?;
    }
    reached.seconds = began.elapsed().as_secs_f64();
    Ok(reached)
}

/// Commits one row at a time, so many a second, and notes how long each took.
pub(super) async fn commits(
    url: &str,
    per_s: f64,
    duration: Duration,
    times: &mut Histogram<u64>,
) -> Result<(), BenchError> {
    let writer = Writer::open(url, "{}").await.map_err(BenchError::of("the commits"))?;
    writer.commits_by_itself().await.map_err(BenchError::of("the commits"))?;
    let began = Instant::now();
    let mut ticks = interval(Duration::from_secs_f64(1.0 / per_s));
    while began.elapsed() < duration {
        ticks.tick().await;
        let sent = Instant::now();
        writer.one_row().await.map_err(BenchError::of("the commits"))?;
        times.saturating_record(u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    let _ = writer.db.close().await;
    Ok(())
}

fn payload(bytes: usize) -> String {
    format!(r#"{{"pad":"{}"}}"#, "x".repeat(bytes.saturating_sub(10)))
}

/// One connection and its statements.
struct Writer {
    db: DatabaseConnection,
    backend: DbBackend,
    begin: Option<&'static str>,
    sql: Sql,
    payload: String,
}

/// The fixed statements, each for [`TASKS`] rows.
struct Sql {
    tasks: String,
    payloads: String,
    ready: String,
    events: String,
    claim_tasks: String,
    leases: String,
    take_ready: String,
    start_leases: String,
    receipts: String,
    finish_tasks: String,
    end_leases: String,
    attempts: String,
}

impl Sql {
    fn new(mysql: bool) -> Self {
        // Without them, small tables would be scanned and other connections' rows be locked.
        let force = if mysql { " FORCE INDEX (PRIMARY)" } else { "" };
        let by_key = |table: &str| {
            if mysql {
                format!("DELETE /*+ INDEX({table} PRIMARY) */ FROM {table}")
            } else {
                format!("DELETE FROM {table}")
            }
        };
        let ids = format!("({})", vec!["?"; TASKS].join(", "));
        Self {
            tasks: insert(
                "tasks",
                "task_id, route, principal, idempotency_key, digest, digest_version, payload_version, payload_bytes, \
                 max_attempts, granted_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, recovery_safety, \
                 task_timeout_ms, deadline_at, state, revision, attempt_count, available_at, effect_uncertain, \
                 created_at, updated_at",
            ),
            payloads: insert("payloads", "task_id, payload"),
            ready: insert("ready", "route, available_at, task_id, expires_at"),
            events: insert(
                "events",
                "task_id, revision, ordinal, kind, at, state, epoch, attempt_count, max_attempts, effect_uncertain, \
                 principal, session_id, node_id",
            ),
            claim_tasks: format!(
                "UPDATE tasks{force} SET state = 2, revision = 2, attempt_count = 1, available_at = NULL, \
                 updated_at = ? WHERE task_id IN {ids}"
            ),
            leases: insert(
                "leases",
                "task_id, queue, attempt_id, epoch, principal, session_id, node_id, worker_name, leased_at, \
                 lease_until, cap_at",
            ),
            take_ready: format!(
                "{} WHERE route = ? AND available_at = ? AND task_id IN {ids}",
                by_key("ready")
            ),
            start_leases: format!(
                "UPDATE leases{force} SET started_at = ?, lease_until = ? WHERE task_id IN {ids}"
            ),
            receipts: insert(
                "receipts",
                "task_id, epoch, message_id, kind, digest, digest_version, disposition, task_state, decision, \
                 effect_uncertain, committed_at",
            ),
            finish_tasks: format!(
                "UPDATE tasks{force} SET state = 4, revision = 4, last_decision = 1, completed_at = ?, \
                 updated_at = ? WHERE task_id IN {ids}"
            ),
            end_leases: format!("{} WHERE task_id IN {ids}", by_key("leases")),
            attempts: insert(
                "attempts",
                "task_id, epoch, attempt_id, state, principal, session_id, node_id, worker_name, leased_at, \
                 lease_until, started_at, ended_at, decision, cause, retryable, result",
            ),
        }
    }
}

fn insert(table: &str, columns: &str) -> String {
    let row = format!("({})", vec!["?"; columns.split(',').count()].join(", "));
    format!("INSERT INTO {table} ({columns}) VALUES {}", vec![row; TASKS].join(", "))
}

impl Writer {
    async fn open(url: &str, payload: &str) -> Result<Self, DbErr> {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).min_connections(1).test_before_acquire(false).sqlx_logging(false);
        let path = url.strip_prefix("sqlite:").map(|path| Path::new(path).to_owned());
        let mysql = path.is_none();
        if let Some(path) = path {
            options.map_sqlx_sqlite_opts(move |o| {
                o.filename(&path)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(Duration::from_secs(30))
            });
        } else {
            options.map_sqlx_mysql_pool_opts(|pool| {
                pool.after_connect(|connection, _| {
                    Box::pin(async move {
                        connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
                        // Saves a BEGIN in each transaction.
                        connection.execute("SET SESSION autocommit = 0").await.map(|_| ())
                    })
                })
            });
        }
        Ok(Self {
            db: Database::connect(options).await?,
            backend: if mysql { DbBackend::MySql } else { DbBackend::Sqlite },
            begin: (!mysql).then_some("BEGIN IMMEDIATE"),
            sql: Sql::new(mysql),
            payload: payload.to_owned(),
        })
    }

    /// Does it once. Answers for how many tasks.
    async fn work(&self, work: Work) -> Result<u64, DbErr> {
        match work {
            Work::Lifecycles => self.lifecycles().await,
            Work::Submits(batch) => self.submits(batch).await,
        }
    }

    /// The whole life of [`TASKS`] tasks: four transactions.
    async fn lifecycles(&self) -> Result<u64, DbErr> {
        let ids: Vec<Uuid> = (0..TASKS).map(|_| Uuid::now_v7()).collect();
        let session = Uuid::new_v4();

        self.begin().await?;
        self.submit(&ids).await?;
        self.commit().await?;

        self.begin().await?;
        self.run(&self.sql.claim_tasks, keyed([NOW.into()], &ids)).await?;
        self.run(&self.sql.leases, rows(&ids, |id| lease(id, session))).await?;
        self.run(&self.sql.take_ready, keyed([1_i32.into(), NOW.into()], &ids)).await?;
        self.events(&ids, 2, Some(session)).await?;
        self.commit().await?;

        self.begin().await?;
        self.run(&self.sql.start_leases, keyed([NOW.into(), (NOW + MINUTE).into()], &ids)).await?;
        self.run(&self.sql.receipts, rows(&ids, |id| receipt(id, 1))).await?;
        self.events(&ids, 3, Some(session)).await?;
        self.commit().await?;

        self.begin().await?;
        self.run(&self.sql.finish_tasks, keyed([NOW.into(), NOW.into()], &ids)).await?;
        self.run(&self.sql.end_leases, keyed([], &ids)).await?;
        self.run(&self.sql.attempts, rows(&ids, |id| attempt(id, session))).await?;
        self.run(&self.sql.receipts, rows(&ids, |id| receipt(id, 2))).await?;
        self.events(&ids, 4, Some(session)).await?;
        self.commit().await?;
        Ok(TASKS as u64)
    }

    /// Transactions of so many tasks each.
    async fn submits(&self, batch: u32) -> Result<u64, DbErr> {
        self.begin().await?;
        let mut tasks = 0;
        while tasks < u64::from(batch) {
            let ids: Vec<Uuid> = (0..TASKS).map(|_| Uuid::now_v7()).collect();
            self.submit(&ids).await?;
            tasks += TASKS as u64;
        }
        self.commit().await?;
        Ok(tasks)
    }

    async fn submit(&self, ids: &[Uuid]) -> Result<(), DbErr> {
        self.run(&self.sql.tasks, rows(ids, |id| self.task(id))).await?;
        self.run(&self.sql.payloads, rows(ids, |id| vec![id.into(), self.payload.as_str().into()])).await?;
        self.run(
            &self.sql.ready,
            rows(ids, |id| vec![1_i32.into(), NOW.into(), id.into(), (NOW + DAY).into()]),
        )
        .await?;
        self.events(ids, 1, None).await
    }

    async fn commits_by_itself(&self) -> Result<(), DbErr> {
        match self.backend {
            DbBackend::MySql => self.db.execute_unprepared("SET SESSION autocommit = 1").await.map(|_| ()),
            _ => Ok(()),
        }
    }

    async fn one_row(&self) -> Result<(), DbErr> {
        let sql = "INSERT INTO payloads (task_id, payload) VALUES (?, ?)";
        let values: Vec<Value> = vec![Uuid::now_v7().into(), self.payload.as_str().into()];
        self.db.execute_raw(Statement::from_sql_and_values(self.backend, sql, values)).await.map(|_| ())
    }

    fn task(&self, id: Uuid) -> Vec<Value> {
        vec![
            id.into(),
            1_i32.into(),
            PRINCIPAL.into(),
            format!("bench-{}", id.simple()).into(),
            digest(id),
            1_i16.into(),
            "v1".into(),
            i32::try_from(self.payload.len()).unwrap_or(i32::MAX).into(),
            1_i32.into(),
            0_i32.into(),
            1_000_i32.into(),
            60_000_i32.into(),
            300_000_i32.into(),
            1_i16.into(),
            86_400_000_i64.into(),
            (NOW + DAY).into(),
            1_i16.into(),
            1_i32.into(),
            0_i32.into(),
            NOW.into(),
            0_i32.into(),
            NOW.into(),
            NOW.into(),
        ]
    }

    /// The step's event of every task: 1 accepted, 2 leased, 3 started, 4 succeeded. Kind, state and revision are equal
    /// but for the last kind.
    async fn events(&self, ids: &[Uuid], step: i16, session: Option<Uuid>) -> Result<(), DbErr> {
        let event = |id: Uuid| {
            vec![
                id.into(),
                i32::from(step).into(),
                0_i32.into(),
                (if step == 4 { 5 } else { step }).into(),
                NOW.into(),
                step.into(),
                (step > 1).then_some(1_i32).into(),
                i32::from(step > 1).into(),
                1_i32.into(),
                0_i32.into(),
                PRINCIPAL.into(),
                session.into(),
                NODE.into(),
            ]
        };
        self.run(&self.sql.events, rows(ids, event)).await
    }

    async fn begin(&self) -> Result<(), DbErr> {
        match self.begin {
            Some(begin) => self.db.execute_unprepared(begin).await.map(|_| ()),
            None => Ok(()),
        }
    }

    async fn commit(&self) -> Result<(), DbErr> {
        self.db.execute_unprepared("COMMIT").await.map(|_| ())
    }

    async fn run(&self, sql: &str, values: Vec<Value>) -> Result<(), DbErr> {
        let done = self.db.execute_raw(Statement::from_sql_and_values(self.backend, sql, values)).await?;
        if done.rows_affected() == TASKS as u64 {
            return Ok(());
        }
        Err(DbErr::Custom(format!("{} rows instead of {TASKS}: {sql:.60}", done.rows_affected())))
    }
}

fn rows(ids: &[Uuid], row: impl Fn(Uuid) -> Vec<Value>) -> Vec<Value> {
    ids.iter().flat_map(|id| row(*id)).collect()
}

fn keyed<const N: usize>(values: [Value; N], ids: &[Uuid]) -> Vec<Value> {
    values.into_iter().chain(ids.iter().map(|id| (*id).into())).collect()
}

/// As long as a digest; its content does not matter.
fn digest(id: Uuid) -> Value {
    [id.as_bytes().as_slice(), id.as_bytes().as_slice()].concat().into()
}

fn lease(id: Uuid, session: Uuid) -> Vec<Value> {
    vec![
        id.into(),
        1_i32.into(),
        Uuid::new_v4().into(),
        1_i32.into(),
        PRINCIPAL.into(),
        session.into(),
        NODE.into(),
        WORKER.into(),
        NOW.into(),
        (NOW + MINUTE).into(),
        (NOW + DAY).into(),
    ]
}

/// Of a start, 1, or a finish, 2.
fn receipt(id: Uuid, kind: i16) -> Vec<Value> {
    vec![
        id.into(),
        1_i32.into(),
        Uuid::new_v4().into(),
        kind.into(),
        digest(id),
        1_i16.into(),
        1_i16.into(),
        (kind + 2).into(),
        (kind == 2).then_some(1_i16).into(),
        0_i32.into(),
        NOW.into(),
    ]
}

fn attempt(id: Uuid, session: Uuid) -> Vec<Value> {
    vec![
        id.into(),
        1_i32.into(),
        Uuid::new_v4().into(),
        3_i16.into(),
        PRINCIPAL.into(),
        session.into(),
        NODE.into(),
        WORKER.into(),
        NOW.into(),
        (NOW + MINUTE).into(),
        NOW.into(),
        NOW.into(),
        1_i16.into(),
        1_i16.into(),
        0_i32.into(),
        "{}".into(),
    ]
}

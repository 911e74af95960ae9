//! Fills a database with a million tasks and measures what operators and producers do most, over gRPC, on SQLite and on
//! the MySQL of `ORBIT_TEST_MYSQL_URL`; then lets retention remove what has ended while tasks are submitted.
//! `tests/million.sh --help` says more.

mod load;

use std::time::Duration;

use load::{Load, MIXED, key, routes};
use orbit::{
    proto::{ListTasksRequest, TaskState},
    sdk::Client,
    server::{DatabaseUrl, ServerConfig, run_announced},
    store::{Access, Database, DatabaseOptions},
};
use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection, DbBackend, Statement};
use tokio::{sync::oneshot, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// Tasks of one statement.
const CHUNK: u64 = 10_000;
const RUNS: usize = 50;
const PAGE_SIZE: i32 = 50;
/// What each median must stay below.
const LIMIT: Duration = Duration::from_millis(10);
/// How long tasks are submitted with and without retention.
const SUBMIT_TIME: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    let tasks: u64 = std::env::var("ORBIT_MILLION_TASKS").map_or(1_000_000, |n| n.parse().expect("a number"));
    let mut slow = Vec::new();
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("orbit.db").display());
    slow.extend(measure("SQLite", &url, tasks).await);
    match std::env::var("ORBIT_TEST_MYSQL_URL") {
        Ok(server) => {
            let admin = connect(&format!("{server}/mysql")).await;
            let name = format!("orbit_million_{}", std::process::id());
            admin.execute_unprepared(&format!("CREATE DATABASE {name}")).await.expect("a database");
            slow.extend(measure("MySQL", &format!("{server}/{name}"), tasks).await);
            admin.execute_unprepared(&format!("DROP DATABASE {name}")).await.expect("dropped");
        }
        Err(_) => println!("\nMySQL is left out: ORBIT_TEST_MYSQL_URL names none"),
    }
    assert!(slow.is_empty(), "too slow: {slow:#?}");
}

async fn connect(url: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(1).sqlx_logging(false);
    sea_orm::Database::connect(options).await.expect("the database")
}

/// Fills, measures, tells. Answers what was too slow.
async fn measure(name: &str, url: &str, tasks: u64) -> Vec<String> {
    println!("\n{name}, {tasks} tasks");
    let mysql = url.starts_with("mysql:");
    fill(url, mysql, tasks).await;
    if std::env::var_os("ORBIT_MILLION_CHECK").is_some() {
        check(url).await;
    }

    let mut slow = Vec::new();
    let server = Server::start(url, None).await;
    let client = Client::connect(&server.url).expect("a client");
    let filters = [
        ("list all", ListTasksRequest::default()),
        ("list of a queue", ListTasksRequest { queue_id: "load-3".to_owned(), ..Default::default() }),
        ("list of a handler", ListTasksRequest { handler: "handler-2".to_owned(), ..Default::default() }),
        ("list SUCCEEDED", of_state(TaskState::Succeeded)),
        ("list FAILED", of_state(TaskState::Failed)),
        ("list WAITING", of_state(TaskState::Waiting)),
        ("list RUNNING", of_state(TaskState::Running)),
        ("list NEEDS_REVIEW", of_state(TaskState::NeedsReview)),
    ];
    for (what, filter) in filters {
        let first = ListTasksRequest { page_size: PAGE_SIZE, ..filter };
        let pages = pages(&client, &first).await;
        let last = pages.last().expect("a page").clone();
        let at_first = told(&mut slow, &format!("{what}, page 1"), list_times(&client, &first).await);
        let what = format!("{what}, page {}", pages.len());
        let at_last = told(&mut slow, &what, list_times(&client, &last).await);
        // A millisecond is what a busy machine may add.
        if at_last > at_first * 2 + Duration::from_millis(1) {
            slow.push(format!("{what}: {at_last:?} against {at_first:?} of page 1"));
        }
    }
    let numbers: Vec<u64> = (0..RUNS as u64).map(|i| (i * 7_919 + 13) * 17 % tasks).collect();
    let mut times = Vec::new();
    for n in &numbers {
        let began = Instant::now();
        client.lookup(&key(*n)).await.expect("a task");
        times.push(began.elapsed());
    }
    told(&mut slow, "lookup", times);
    let request = ListTasksRequest { page_size: PAGE_SIZE, ..of_state(TaskState::Waiting) };
    let waiting = client.list_page(request).await.expect("a page").tasks;
    let mut times = Vec::new();
    for task in &waiting {
        let began = Instant::now();
        let canceled = client.cancel(&task.task_id, "measured").await.expect("canceled");
        times.push(began.elapsed());
        assert!(canceled.receipt.changed);
    }
    told(&mut slow, "cancel", times);

    let alone = submits(&client).await;
    server.stop().await;
    let server = Server::start(url, Some(Duration::from_mins(1))).await;
    let client = Client::connect(&server.url).expect("a client");
    // The first walk begins after a tenth of the time that tasks are kept.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let before = oldest(url, mysql).await;
    let beside = submits(&client).await;
    let removed = oldest(url, mysql).await.saturating_sub(before);
    println!(
        "  one submit after the other: median {:?}, 99 of 100 below {:?}; beside retention, which removed the tasks up to \
         {} further ({} a second): median {:?}, 99 of 100 below {:?}",
        alone.0,
        alone.1,
        removed,
        removed / SUBMIT_TIME.as_secs(),
        beside.0,
        beside.1
    );
    server.stop().await;
    if std::env::var_os("ORBIT_MILLION_CHECK").is_some() {
        check(url).await;
    }
    slow
}

fn of_state(state: TaskState) -> ListTasksRequest {
    ListTasksRequest { states: vec![state.into()], ..Default::default() }
}

async fn fill(url: &str, mysql: bool, tasks: u64) {
    let side = connect(&if mysql { url.to_owned() } else { format!("{url}?mode=rwc") }).await;
    if !mysql {
        side.execute_unprepared("PRAGMA journal_mode = WAL").await.expect("set");
        side.execute_unprepared("PRAGMA synchronous = OFF").await.expect("set");
    }
    migration::migrate(&side).await.expect("migrated");
    // All of it ended more than ten minutes ago.
    let from_ms = now_ms(&side, mysql).await - tasks / 10 - 600_000;
    let load = Load { mysql, from_ms, state: MIXED };
    let began = Instant::now();
    for statement in routes() {
        side.execute_unprepared(&statement).await.expect("routes");
    }
    for from in (0..tasks).step_by(usize::try_from(CHUNK).expect("a size")) {
        for statement in load.tasks(from, CHUNK.min(tasks - from)) {
            side.execute_unprepared(&statement).await.unwrap_or_else(|e| panic!("{statement}: {e}"));
        }
    }
    if mysql {
        side.execute_unprepared("ANALYZE TABLE tasks, attempts, events, ready, leases, reviews")
            .await
            .expect("run");
    }
    println!("  filled in {:?}", began.elapsed());
    side.close().await.expect("closed");
}

async fn now_ms(side: &DatabaseConnection, mysql: bool) -> u64 {
    let (backend, now) = if mysql {
        (DbBackend::MySql, "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)")
    } else {
        (DbBackend::Sqlite, "CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)")
    };
    let statement = Statement::from_string(backend, format!("SELECT {now} AS n"));
    let row = side.query_one_raw(statement).await.expect("read").expect("a row");
    u64::try_from(row.try_get::<i64>("", "n").expect("a number")).expect("after 1970")
}

async fn check(url: &str) {
    let began = Instant::now();
    let options = DatabaseOptions { access: Access::Inspect, ..DatabaseOptions::default() };
    let database = Database::open(url, options).await.expect("the database");
    for invariant in Database::invariants() {
        let broken = database.broken(invariant, 3).await.expect("read");
        assert!(broken.is_empty(), "{invariant}: {broken:?}");
    }
    database.close().await;
    println!("  checked in {:?}", began.elapsed());
}

/// The requests of page 1 to 1,000, or of all there are.
async fn pages(client: &Client, first: &ListTasksRequest) -> Vec<ListTasksRequest> {
    let mut pages = vec![first.clone()];
    while pages.len() < 1_000 {
        let page = client.list_page(pages.last().expect("one").clone()).await.expect("a page");
        if page.next_page_token.is_empty() {
            break;
        }
        pages.push(ListTasksRequest { page_token: page.next_page_token, ..first.clone() });
    }
    pages
}

async fn list_times(client: &Client, request: &ListTasksRequest) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        client.list_page(request.clone()).await.expect("a page");
        times.push(began.elapsed());
    }
    times
}

/// The median, printed, and noted if it is too slow.
fn told(slow: &mut Vec<String>, what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("  {what:<30} {:>8.2} ms", median.as_secs_f64() * 1_000.0);
    if median >= LIMIT {
        slow.push(format!("{what}: {median:?}"));
    }
    median
}

/// One submit after the other: the median, and what 99 of 100 stay below.
async fn submits(client: &Client) -> (Duration, Duration) {
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < SUBMIT_TIME {
        let sent = Instant::now();
        client.submit("load-0", "handler-0", "v1").payload_json("1").send().await.expect("accepted");
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// The number of the oldest task that succeeded.
async fn oldest(url: &str, mysql: bool) -> u64 {
    let side = connect(url).await;
    let sql = "SELECT idempotency_key AS k FROM tasks WHERE state = 4 ORDER BY task_id LIMIT 1";
    let backend = if mysql { DbBackend::MySql } else { DbBackend::Sqlite };
    let row = side.query_one_raw(Statement::from_string(backend, sql)).await.expect("read");
    let key = row.map(|r| r.try_get::<String>("", "k").expect("a key")).unwrap_or_default();
    side.close().await.expect("closed");
    key.strip_prefix("load-").and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A server in this process.
struct Server {
    url: String,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(url: &str, keep_finished: Option<Duration>) -> Self {
        let mut config = ServerConfig::new(DatabaseUrl::new(url));
        config.listen.set_port(0);
        config.engine.keep_finished = keep_finished;
        let shutdown = CancellationToken::new();
        let (ready, listening) = oneshot::channel();
        let stop = shutdown.clone();
        let serving = tokio_util::task::TaskTracker::new().spawn(async move {
            let told = |address| ready.send(address).expect("somebody waits");
            run_announced(config, stop, told).await.expect("served");
        });
        let address = listening.await.expect("it listens");
        Self { url: format!("http://{address}"), shutdown, serving }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("ended");
    }
}

//! Opening a database, and its connections: one for each lane, a pool for reads, and one way for small writes.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use sea_orm::{
    ConnectOptions, ConnectionTrait as _, DatabaseConnection, DbErr, RuntimeErr, Statement,
    sqlx::{
        self, Connection as _, Executor as _,
        mysql::MySqlDatabaseError,
        sqlite::{SqliteJournalMode, SqliteSynchronous},
    },
};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{dialect::Dialect, error::Fault, refusals::Refusals, routes::Routes};

/// What a MySQL session is like, whatever the server's defaults are. Strict: a value that does not fit must fail, not be
/// cut. A node that vanishes without a word must not keep its locks for hours.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
    autocommit = 1, completion_type = 0, unique_checks = 1, sql_safe_updates = 0, sql_auto_is_null = 0, \
    sql_select_limit = 18446744073709551615, innodb_lock_wait_timeout = 3, lock_wait_timeout = 3, wait_timeout = 60";
/// A lane stops between two statements only if its node does, as one that is frozen: others wait for its locks meanwhile.
const LANE: &str = "SET SESSION wait_timeout = 10";
/// Gap locks of REPEATABLE READ would make claims wait for each other.
const TRANSACTIONS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// How a database is used.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseOptions {
    /// For what.
    pub access: Access,
    /// Connections for reads; default 8.
    pub read_connections: u32,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self { access: Access::Serve, read_connections: 8 }
    }
}

/// For what a database is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To serve: an SQLite file is made if it is missing, and locked against other servers.
    Serve,
    /// To look, also beside a running server and at a file that cannot be written.
    Inspect,
}

/// Why a database cannot be opened: one clear line, without the password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is no database's.
    #[error(
        "the database URL {0}; it should look like mysql://user:password@host:3306/orbit or sqlite:orbit.db"
    )]
    BadUrl(String),
    /// Nobody answers.
    #[error("cannot reach the database at {0}; is it running, and is the address right?")]
    Unreachable(String),
    /// Wrong user or password.
    #[error("the database at {0} refused the user or the password")]
    AccessDenied(String),
    /// The server has no such database.
    #[error("the server at {0} has no such database; make it first: CREATE DATABASE …")]
    NoSuchDatabase(String),
    /// It takes no writes.
    #[error("the database at {0} is read-only")]
    ReadOnly(String),
    /// Another server has the SQLite file.
    #[error("{0} is in use by another Orbit server; one server at a time can use an SQLite file")]
    FileInUse(PathBuf),
    /// The SQLite file cannot be used.
    #[error("cannot use the SQLite file {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// Something else.
    #[error("cannot open the database at {place}: {why}")]
    Other {
        /// Where.
        place: String,
        /// Why.
        why: String,
    },
}

/// An open database. A cheap handle.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    dialect: Dialect,
    target: Target,
    read_connections: u32,
    pools: RwLock<Pools>,
    statement_bytes_max: usize,
    /// On SQLite one writes at a time; who is next waits here.
    writer: Mutex<()>,
    routes: Routes,
    refusals: Refusals,
    closing: TaskTracker,
    /// Held as long as the database is open.
    _lock_file: Option<File>,
}

/// Connections that are not a lane's.
#[derive(Clone)]
struct Pools {
    reads: DatabaseConnection,
    /// On MySQL the same as `reads`; on SQLite one connection of its own.
    writes: DatabaseConnection,
}

#[derive(Clone)]
enum Target {
    MySql { url: String },
    Sqlite { path: PathBuf, access: Access },
}

/// What connections are for.
#[derive(Clone, Copy)]
enum Purpose {
    /// A lane's own: given up after any doubt, so that nothing of an earlier transaction is left on it.
    Lane,
    /// So many, borrowed by whoever needs one.
    Pool(u32),
}

impl Database {
    /// Opens `mysql://…` or `sqlite:path`.
    pub async fn open(url: &str, options: DatabaseOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.access)?;
        let lock_file = match &target {
            Target::Sqlite { path, access: Access::Serve } => Some(lock(path)?),
            Target::Sqlite { path, access: Access::Inspect } if !path.exists() => {
                return Err(OpenError::File { path: path.clone(), why: "there is no such file".to_owned() });
            }
            Target::Sqlite { .. } | Target::MySql { .. } => None,
        };
        let place = target.place();
        let open_error = |error: DbErr| target.open_error(&place, &error);
        let pools = target.pools(options.read_connections).await.map_err(open_error)?;
        let dialect = target.dialect(&pools.writes).await.map_err(open_error)?;
        let statement_bytes_max = target.statement_bytes_max(&pools.writes).await.map_err(open_error)?;
        let inner = Inner {
            dialect,
            target: target.clone(),
            read_connections: options.read_connections,
            pools: RwLock::new(pools),
            statement_bytes_max,
            writer: Mutex::new(()),
            routes: Routes::default(),
            refusals: Refusals::default(),
            closing: TaskTracker::new(),
            _lock_file: lock_file,
        };
        let this = Self { inner: Arc::new(inner) };
        if options.access == Access::Serve {
            this.check_writable().await?;
        }
        Ok(this)
    }

    async fn check_writable(&self) -> Result<(), OpenError> {
        let place = self.inner.target.place();
        let db = self.writes_connection();
        match self.dialect() {
            Dialect::MySql | Dialect::MariaDb => {
                let statement = self.dialect().statement("SELECT @@global.read_only AS read_only", vec![]);
                let row = db
                    .query_one_raw(statement)
                    .await
                    .map_err(|e| self.inner.target.open_error(&place, &e))?;
                let read_only = row.and_then(|r| r.try_get::<i64>("", "read_only").ok()).unwrap_or(0);
                if read_only != 0 {
                    return Err(OpenError::ReadOnly(place));
                }
            }
            Dialect::Sqlite => {
                // Takes the write lock and gives it back.
                let begin = db.execute_unprepared("BEGIN IMMEDIATE; ROLLBACK").await;
                begin.map_err(|e| self.inner.target.open_error(&place, &e))?;
            }
        }
        Ok(())
    }

    /// The connection for migrations.
    pub fn connection(&self) -> DatabaseConnection {
        self.writes_connection()
    }

    /// Whether everything is in one file, written by one at a time.
    pub fn is_sqlite(&self) -> bool {
        self.dialect() == Dialect::Sqlite
    }

    /// How many bytes of text one statement may safely carry: half of what the server takes, at most 4 MiB.
    pub fn statement_bytes_max(&self) -> usize {
        self.inner.statement_bytes_max
    }

    /// All routes known so far.
    pub fn routes(&self) -> &Routes {
        &self.inner.routes
    }

    /// Whether the lanes' transactions fail and go on failing, though the database may answer.
    pub fn refuses_writes(&self) -> bool {
        self.inner.refusals.go_on()
    }

    /// Ends all connections.
    pub async fn close(&self) {
        self.inner.closing.close();
        let limit = Duration::from_secs(2);
        let _ = timeout(limit, self.inner.closing.wait()).await;
        let Pools { reads, writes } = self.pools();
        let _ = timeout(limit, reads.close()).await;
        let _ = timeout(limit, writes.close()).await;
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.inner.dialect
    }

    pub(super) fn reads_connection(&self) -> DatabaseConnection {
        self.pools().reads
    }

    pub(super) fn writes_connection(&self) -> DatabaseConnection {
        self.pools().writes
    }

    pub(super) fn refusals(&self) -> &Refusals {
        &self.inner.refusals
    }

    fn pools(&self) -> Pools {
        self.inner.pools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes on with new connections after the database did not answer in time. A pool waits for ever for a connection
    /// whose other end is gone without a word, so enough of them would leave it empty for good.
    pub async fn renew_connections(&self) {
        if self.is_sqlite() {
            return;
        }
        if let Ok(pools) = self.inner.target.pools(self.inner.read_connections).await {
            *self.inner.pools.write().unwrap_or_else(PoisonError::into_inner) = pools;
        }
    }

    /// On SQLite: waits for the turn to write, first come, first served.
    pub(super) async fn writers_turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.dialect() {
            Dialect::Sqlite => Some(self.inner.writer.lock().await),
            Dialect::MySql | Dialect::MariaDb => None,
        }
    }

    /// One small statement on its own, outside the lanes. Answers how many rows it changed.
    ///
    /// It runs to its end in a task of its own: a dropped future must not leave a statement half sent on a pooled
    /// connection.
    pub(super) async fn write(&self, statement: Statement) -> Result<u64, Fault> {
        let this = self.clone();
        let task = self.inner.closing.spawn(async move {
            let _turn = this.writers_turn().await;
            let limit = Duration::from_secs(5);
            match timeout(limit, this.writes_connection().execute_raw(statement)).await {
                Ok(result) => Ok(result?.rows_affected()),
                Err(_) => Err(Fault::Away(DbErr::Custom("time-out".to_owned()))),
            }
        });
        task.await.unwrap_or_else(|e| Err(Fault::Permanent(DbErr::Custom(e.to_string()))))
    }

    /// A connection for one lane.
    pub(super) async fn lane_connection(&self) -> Result<DatabaseConnection, Fault> {
        Ok(self.inner.target.connect(Purpose::Lane).await?)
    }

    /// Closes a connection that is given up, without waiting for it.
    pub(super) fn close_later(&self, connection: DatabaseConnection) {
        self.inner.closing.spawn(async move {
            let _ = timeout(Duration::from_secs(5), connection.close()).await;
        });
    }
}

impl Target {
    fn parse(url: &str, access: Access) -> Result<Self, OpenError> {
        if let Some(path) = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")) {
            let path = path.split('?').next().unwrap_or_default();
            if path.is_empty() || path == ":memory:" {
                return Err(OpenError::BadUrl(
                    "names no SQLite file (memory databases are not supported)".into(),
                ));
            }
            return Ok(Self::Sqlite { path: path.into(), access });
        }
        if !url.starts_with("mysql://") {
            return Err(OpenError::BadUrl("must begin with mysql:// or sqlite:".into()));
        }
        match url.parse::<sqlx::mysql::MySqlConnectOptions>() {
            Ok(_)
                if url
                    .rsplit_once('@')
                    .map_or(&url[8..], |(_, rest)| rest)
                    .trim_end_matches('/')
                    .contains('/') =>
            {
                Ok(Self::MySql { url: url.to_owned() })
            }
            Ok(_) => Err(OpenError::BadUrl("names no database".into())),
            Err(_) => Err(OpenError::BadUrl("cannot be read".into())),
        }
    }

    /// Where it is, for people: without user and password.
    fn place(&self) -> String {
        match self {
            Self::MySql { url } => {
                let rest = url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest);
                let rest = rest.trim_start_matches("mysql://");
                rest.split('?').next().unwrap_or(rest).to_owned()
            }
            Self::Sqlite { path, .. } => path.display().to_string(),
        }
    }

    async fn pools(&self, read_connections: u32) -> Result<Pools, DbErr> {
        let reads = self.connect(Purpose::Pool(read_connections)).await?;
        let writes = match self {
            Self::MySql { .. } => reads.clone(),
            Self::Sqlite { .. } => self.connect(Purpose::Pool(1)).await?,
        };
        Ok(Pools { reads, writes })
    }

    async fn connect(&self, purpose: Purpose) -> Result<DatabaseConnection, DbErr> {
        let size = match purpose {
            Purpose::Lane => 1,
            Purpose::Pool(size) => size,
        };
        let mut options = ConnectOptions::new(match self {
            Self::MySql { url } => url.clone(),
            Self::Sqlite { .. } => "sqlite::memory:".to_owned(),
        });
        options
            .max_connections(size)
            .min_connections(0)
            .acquire_timeout(Duration::from_secs(4))
            .connect_timeout(Duration::from_secs(4))
            .max_lifetime(None)
            .connect_lazy(true)
            .test_before_acquire_if_idle_for(Duration::from_secs(30))
            .sqlx_logging(false);
        match self {
            Self::MySql { .. } => {
                options.map_sqlx_mysql_opts(|o| o.statement_cache_capacity(1_024));
                options.map_sqlx_mysql_pool_opts(move |pool| {
                    let pool = pool.after_connect(move |connection, _| {
                        Box::pin(async move {
                            connection.execute(SESSION).await?;
                            connection.execute(TRANSACTIONS).await?;
                            if matches!(purpose, Purpose::Lane) {
                                connection.execute(LANE).await?;
                            }
                            Ok(())
                        })
                    });
                    match purpose {
                        Purpose::Lane => pool,
                        // A transaction whose future was dropped while it began must not reach the next borrower.
                        Purpose::Pool(_) => pool.after_release(|connection, _| {
                            Box::pin(async move { connection.execute("ROLLBACK").await.map(|_| true) })
                        }),
                    }
                });
            }
            Self::Sqlite { path, access } => {
                let (path, access) = (path.clone(), *access);
                options.map_sqlx_sqlite_opts(move |o| {
                    let o = o
                        .filename(&path)
                        .in_memory(false)
                        .shared_cache(false)
                        .busy_timeout(Duration::from_secs(5))
                        .statement_cache_capacity(1_024);
                    match access {
                        Access::Serve => o
                            .create_if_missing(true)
                            .journal_mode(SqliteJournalMode::Wal)
                            .synchronous(SqliteSynchronous::Full),
                        // A file without a WAL beside it is nobody's now. SQLite would make one even to read, which a
                        // read-only folder does not allow and which would stay.
                        Access::Inspect => o.read_only(true).immutable(!beside(&path, "-wal").exists()),
                    }
                });
                // After a COMMIT that failed, as on a full disk, the driver takes a transaction for open that is none, and
                // what the next borrower begins stays open for ever, with the lock to write. The ping comes after what
                // was left to be rolled back.
                options.map_sqlx_sqlite_pool_opts(|pool| {
                    pool.after_release(|connection, _| {
                        Box::pin(async move {
                            connection.ping().await?;
                            Ok(!connection.is_in_transaction())
                        })
                    })
                });
            }
        }
        sea_orm::Database::connect(options).await
    }

    async fn dialect(&self, connection: &DatabaseConnection) -> Result<Dialect, DbErr> {
        let Self::MySql { .. } = self else {
            return Ok(Dialect::Sqlite);
        };
        let statement = Dialect::MySql.statement("SELECT VERSION() AS version", vec![]);
        let row = connection.query_one_raw(statement).await?;
        let version: String = row.map(|r| r.try_get("", "version")).transpose()?.unwrap_or_default();
        Ok(if version.contains("MariaDB") { Dialect::MariaDb } else { Dialect::MySql })
    }

    async fn statement_bytes_max(&self, connection: &DatabaseConnection) -> Result<usize, DbErr> {
        const ALWAYS_MAX: usize = 4 * 1024 * 1024;
        let Self::MySql { .. } = self else { return Ok(ALWAYS_MAX) };
        let statement = Dialect::MySql.statement("SELECT CAST(@@max_allowed_packet AS SIGNED) AS n", vec![]);
        let row = connection.query_one_raw(statement).await?;
        let packet: i64 = row.map(|r| r.try_get("", "n")).transpose()?.unwrap_or(0);
        Ok(usize::try_from(packet / 2).unwrap_or(0).min(ALWAYS_MAX))
    }

    fn open_error(&self, place: &str, error: &DbErr) -> OpenError {
        if let Self::Sqlite { path, access } = self {
            return OpenError::File { path: path.clone(), why: sqlite_reason(error, *access) };
        }
        let place = place.to_owned();
        let sqlx_error = match error {
            DbErr::Conn(RuntimeErr::SqlxError(e))
            | DbErr::Exec(RuntimeErr::SqlxError(e))
            | DbErr::Query(RuntimeErr::SqlxError(e)) => e.as_ref(),
            _ => return OpenError::Unreachable(place),
        };
        let number = match sqlx_error {
            sqlx::Error::Database(e) => {
                e.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
            }
            _ => None,
        };
        match number {
            Some(1044 | 1045 | 1698) => OpenError::AccessDenied(place),
            Some(1049) => OpenError::NoSuchDatabase(place),
            Some(1290 | 1792 | 1836) => OpenError::ReadOnly(place),
            Some(number) => OpenError::Other { place, why: format!("MySQL error {number}") },
            None => OpenError::Unreachable(place),
        }
    }
}

fn sqlite_reason(error: &DbErr, access: Access) -> String {
    let text = error.to_string();
    if text.contains("readonly") || text.contains("read-only") {
        "it is read-only".to_owned()
    } else if text.contains("not a database") {
        "it is not an SQLite database".to_owned()
    } else if access == Access::Inspect {
        "it cannot be read; may this user do that?".to_owned()
    } else {
        "it cannot be opened for writing; does its folder exist, and may this user write there?".to_owned()
    }
}

/// A file of the same name with an ending.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Locks `<file>.lock`, so that a second server fails instead of fighting.
fn lock(path: &Path) -> Result<File, OpenError> {
    let file_error = |e: std::io::Error| OpenError::File { path: path.to_owned(), why: e.to_string() };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(beside(path, ".lock"))
        .map_err(file_error)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::FileInUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(e)) => Err(file_error(e)),
    }
}

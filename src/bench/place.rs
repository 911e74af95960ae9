//! Databases that a measurement makes for itself, and removes.

use std::path::PathBuf;

use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement};
use tempfile::TempDir;
use uuid::Uuid;

use super::{BenchError, usage};
use crate::server::{self, DatabaseUrl};

/// Where databases are made.
pub(super) enum Place {
    /// In a folder that goes away with this.
    Sqlite { folder: TempDir },
    /// On a server, under names that nobody else has.
    MySql { server: DatabaseConnection, url: String, names: Vec<String>, pid: Option<u32> },
}

/// A snapshot of the database that somebody holds open: what was deleted since must be kept for it.
pub(super) struct Snapshot {
    db: DatabaseConnection,
}

impl Snapshot {
    pub(super) async fn take(url: &str) -> Result<Self, BenchError> {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).test_before_acquire(false).sqlx_logging(false);
        let db = Database::connect(options).await.map_err(BenchError::of("the snapshot"))?;
        let begin: &[&str] = match db.get_database_backend() {
            DbBackend::Sqlite => &["BEGIN"],
            _ => &[
                "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            ],
        };
        // The first read takes SQLite's snapshot.
        for sql in begin.iter().chain(&["SELECT COUNT(*) FROM queues"]) {
            db.execute_unprepared(sql).await.map_err(BenchError::of("the snapshot"))?;
        }
        Ok(Self { db })
    }

    pub(super) async fn end(self) {
        let _ = self.db.close().await;
    }
}

/// What a person should know about the database.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Product and version.
    pub(super) version: String,
    /// The settings that make a commit durable, as they are.
    pub(super) durability: String,
    /// What is not durable about it.
    pub(super) warning: Option<String>,
}

impl Place {
    /// A place for databases at that URL: beside an SQLite file that must not exist, or on a MySQL server.
    pub(super) async fn open(url: Option<&str>) -> Result<Self, BenchError> {
        let Some(url) = url else {
            let folder =
                TempDir::with_prefix("orbit-bench-").map_err(BenchError::of("a temporary folder"))?;
            return Ok(Self::Sqlite { folder });
        };
        if let Some(path) = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")) {
            let path = PathBuf::from(path.split('?').next().unwrap_or_default());
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let folder = TempDir::with_prefix_in("orbit-bench-", parent.unwrap_or(&PathBuf::from(".")))
                .map_err(BenchError::of("a folder beside the SQLite file"))?;
            return Ok(Self::Sqlite { folder });
        }
        let server = connect(url).await?;
        let port = text(&server, "SELECT CAST(@@port AS CHAR) AS value").await?;
        let local = ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| authority(url).starts_with(host));
        let port = port.parse().ok().filter(|_| local);
        let pid = port.and_then(|port| usage::listening(port, &["mysqld", "mariadbd"]));
        Ok(Self::MySql { server, url: url.to_owned(), names: Vec::new(), pid })
    }

    /// A new database with Orbit's tables.
    pub(super) async fn make(&mut self, label: &str) -> Result<String, BenchError> {
        let url = match self {
            Self::Sqlite { folder } => {
                format!("sqlite:{}", folder.path().join(format!("{label}.db")).display())
            }
            Self::MySql { server, url, names, .. } => {
                let name = format!("orbit_bench_{label}_{}", Uuid::new_v4().simple());
                let create = format!("CREATE DATABASE {name} DEFAULT CHARACTER SET utf8mb4");
                server
                    .execute_unprepared(&create)
                    .await
                    .map_err(BenchError::of("the user may not make a database"))?;
                names.push(name.clone());
                with_database(url, &name)
            }
        };
        server::migrate(&DatabaseUrl::new(url.clone())).await.map_err(BenchError::new)?;
        Ok(url)
    }

    /// Whether it is a server of its own.
    pub(super) fn is_mysql(&self) -> bool {
        matches!(self, Self::MySql { .. })
    }

    /// The database server's process, if it runs on this machine and can be seen.
    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Sqlite { .. } => None,
            Self::MySql { pid, .. } => *pid,
        }
    }

    /// Product, version and durability.
    pub(super) async fn settings(&self, url: &str) -> Result<Settings, BenchError> {
        match self {
            Self::Sqlite { folder } => {
                let database = crate::store::Database::open(
                    url,
                    crate::store::DatabaseOptions {
                        access: crate::store::Access::Inspect,
                        ..crate::store::DatabaseOptions::default()
                    },
                );
                let database = database.await.map_err(BenchError::new)?;
                let db = database.connection();
                let version = text(&db, "SELECT sqlite_version() AS value").await?;
                let mode = text(&db, "SELECT journal_mode AS value FROM pragma_journal_mode").await?;
                let synchronous =
                    text(&db, "SELECT CAST(synchronous AS TEXT) AS value FROM pragma_synchronous").await?;
                database.close().await;
                let file_system = file_system(folder.path());
                let memory = matches!(file_system.as_deref(), Some("tmpfs" | "ramfs"));
                let warning = if memory {
                    Some(format!("{} is in memory: nothing there is durable", folder.path().display()))
                } else {
                    (synchronous != "2")
                        .then(|| "synchronous is not FULL: commits are not durable".to_owned())
                };
                Ok(Settings {
                    version: format!("SQLite {version}"),
                    durability: format!(
                        "journal_mode={mode} synchronous={} on {}",
                        if synchronous == "2" { "FULL" } else { &synchronous },
                        file_system.unwrap_or_else(|| "an unknown file system".to_owned()),
                    ),
                    warning,
                })
            }
            Self::MySql { server, .. } => {
                let version = text(server, "SELECT VERSION() AS value").await?;
                let flush =
                    text(server, "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR) AS value").await?;
                let sync = text(server, "SELECT CAST(@@sync_binlog AS CHAR) AS value").await?;
                let binlog = text(server, "SELECT CAST(@@log_bin AS CHAR) AS value").await?;
                let pool =
                    text(server, "SELECT CAST(ROUND(@@innodb_buffer_pool_size / 1048576) AS CHAR) AS value")
                        .await?;
                let durable = flush == "1" && (sync == "1" || binlog == "0");
                Ok(Settings {
                    version: if version.contains("MariaDB") { version } else { format!("MySQL {version}") },
                    durability: format!(
                        "innodb_flush_log_at_trx_commit={flush} sync_binlog={sync} log_bin={binlog} \
                         innodb_buffer_pool_size={pool}M"
                    ),
                    warning: (!durable).then(|| {
                        "commits are not durable: innodb_flush_log_at_trx_commit and sync_binlog should be 1".to_owned()
                    }),
                })
            }
        }
    }

    /// Removes everything it made.
    pub(super) async fn remove(self) -> Result<(), BenchError> {
        match self {
            Self::Sqlite { folder } => {
                folder.close().map_err(BenchError::of("the temporary folder could not be removed"))
            }
            Self::MySql { server, names, .. } => {
                let mut removed = Ok(());
                for name in names {
                    let drop = server.execute_unprepared(&format!("DROP DATABASE {name}")).await;
                    removed = removed.and(drop.map(|_| ()));
                }
                let _ = server.close().await;
                removed.map_err(BenchError::of("a database could not be removed"))
            }
        }
    }
}

async fn connect(url: &str) -> Result<DatabaseConnection, BenchError> {
    // The database that a URL may name is not touched, and need not be there.
    let mut options = ConnectOptions::new(with_database(url, "information_schema"));
    options.max_connections(1).sqlx_logging(false);
    let shown = DatabaseUrl::new(url);
    // The library's own text could hold the password.
    Database::connect(options).await.map_err(|error| {
        tracing::debug!(%error, "not connected");
        BenchError::new(format!(
            "cannot use the database server at {shown}; is it running, and are user and password right?"
        ))
    })
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> String {
    // A password may hold any character, so nothing left of the last `@` is looked at.
    let (user, rest) = url.rsplit_once('@').unwrap_or(("mysql://", url.trim_start_matches("mysql://")));
    let at = if user == "mysql://" { "" } else { "@" };
    let parameters = rest.split_once('?').map(|(_, parameters)| parameters);
    let rest = format!("{user}{at}{}", authority(rest));
    let parameters = parameters.map(|p| format!("?{p}")).unwrap_or_default();
    format!("{rest}/{name}{parameters}")
}

/// `host:port` of a MySQL URL.
fn authority(url: &str) -> &str {
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    let rest = rest.strip_prefix("mysql://").unwrap_or(rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}

async fn text(db: &DatabaseConnection, sql: &str) -> Result<String, BenchError> {
    let backend = match db.get_database_backend() {
        DbBackend::Sqlite => DbBackend::Sqlite,
        _ => DbBackend::MySql,
    };
    let row = db.query_one_raw(Statement::from_string(backend, sql)).await;
    let row = row.map_err(BenchError::of("the database's settings"))?;
    let value = row.map(|row| row.try_get::<String>("", "value")).transpose();
    Ok(value.map_err(BenchError::of("the database's settings"))?.unwrap_or_default())
}

/// The kind of file system that holds a folder. Linux only.
fn file_system(folder: &std::path::Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let fitting = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        folder.starts_with(at).then(|| (at.len(), kind.to_owned()))
    });
    fitting.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_exchanged() {
        for (url, other) in [
            ("mysql://root@127.0.0.1:3306", "mysql://root@127.0.0.1:3306/b"),
            ("mysql://root:a/b@db:3306/orbit?x=1", "mysql://root:a/b@db:3306/b?x=1"),
            ("mysql://db/orbit", "mysql://db/b"),
        ] {
            assert_eq!(with_database(url, "b"), other);
        }
        assert_eq!(authority("mysql://root:p@db:3306/orbit?x"), "db:3306");
    }
}

//! A database for one test.

use std::net::{SocketAddr, ToSocketAddrs as _};

use orbit::store::{Access, Database, DatabaseOptions};
use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection, DbBackend, Statement};
use tempfile::TempDir;
use uuid::Uuid;

/// A migrated database that goes away with the test.
pub(crate) struct TestDatabase {
    pub(crate) url: String,
    side: DatabaseConnection,
    keep: Keep,
}

enum Keep {
    Sqlite { _dir: TempDir },
    MySql { server: DatabaseConnection, name: String },
}

impl TestDatabase {
    pub(crate) async fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = format!("sqlite:{}", dir.path().join("orbit.db").display());
        let database = Database::open(&url, DatabaseOptions::default()).await.expect("an SQLite file");
        migration::migrate(&database.connection()).await.expect("migrated");
        database.close().await;
        drop(database);
        let side = connect(&url).await;
        side.execute_unprepared("PRAGMA busy_timeout = 5000").await.expect("set");
        Self { url, side, keep: Keep::Sqlite { _dir: dir } }
    }

    pub(crate) async fn mysql() -> Self {
        let server_url = std::env::var("ORBIT_TEST_MYSQL_URL")
            .expect("ORBIT_TEST_MYSQL_URL names a MySQL server; tests/run starts one");
        Self::mysql_at(&server_url).await
    }

    /// On another MySQL server.
    pub(crate) async fn mysql_at(server_url: &str) -> Self {
        let this = Self::empty_mysql_at(server_url).await;
        migration::migrate(&this.side).await.expect("migrated");
        this
    }

    /// Without tables, and in all else as that server makes databases.
    pub(crate) async fn empty_mysql_at(server_url: &str) -> Self {
        let name = format!("orbit_test_{}", Uuid::new_v4().simple());
        let server = connect(&format!("{server_url}/mysql")).await;
        server.execute_unprepared(&format!("CREATE DATABASE {name}")).await.expect("a database");
        let url = format!("{server_url}/{name}");
        let side = connect(&url).await;
        Self { url, side, keep: Keep::MySql { server, name } }
    }

    pub(crate) fn is_mysql(&self) -> bool {
        matches!(self.keep, Keep::MySql { .. })
    }

    /// Where the MySQL server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        let authority = self.authority();
        let mut addresses = authority.to_socket_addrs().unwrap_or_else(|e| panic!("{authority}: {e}"));
        addresses.next().expect("an address")
    }

    /// This database's URL, reached through that address.
    pub(crate) fn url_through(&self, address: SocketAddr) -> String {
        self.url.replacen(self.authority(), &address.to_string(), 1)
    }

    /// `host:port` of the URL.
    fn authority(&self) -> &str {
        let rest = self.url.split_once("://").expect("a MySQL URL").1;
        let rest = rest.split_once('/').expect("a database").0;
        rest.rsplit_once('@').map_or(rest, |(_, authority)| authority)
    }

    pub(crate) async fn open(&self) -> Database {
        Database::open(&self.url, DatabaseOptions::default()).await.expect("the test's database")
    }

    /// Runs raw SQL beside Orbit. Answers how many rows it changed.
    pub(crate) async fn sql(&self, sql: &str) -> u64 {
        self.side.execute_unprepared(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")).rows_affected()
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let backend = if self.is_mysql() { DbBackend::MySql } else { DbBackend::Sqlite };
        let row =
            self.side.query_one_raw(Statement::from_string(backend, format!("SELECT ({sql}) AS n"))).await;
        let row = row.unwrap_or_else(|e| panic!("{sql}: {e}")).expect("one row");
        row.try_get::<Option<i64>>("", "n").unwrap_or_else(|e| panic!("{sql}: {e}")).unwrap_or(0)
    }

    /// Holds that no rows contradict each other.
    pub(crate) async fn check_invariants(&self) {
        let options = DatabaseOptions { access: Access::Inspect, ..DatabaseOptions::default() };
        let database = Database::open(&self.url, options).await.expect("the test's database");
        for invariant in Database::invariants() {
            let broken = database.broken(invariant, 10).await.expect("read");
            assert!(broken.is_empty(), "{invariant}: {broken:?}");
        }
        database.close().await;
    }

    pub(crate) async fn drop(self) {
        self.side.close().await.expect("closed");
        if let Keep::MySql { server, name } = self.keep {
            server.execute_unprepared(&format!("DROP DATABASE {name}")).await.expect("dropped");
            server.close().await.expect("closed");
        }
    }
}

async fn connect(url: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(2).sqlx_logging(false);
    sea_orm::Database::connect(options).await.unwrap_or_else(|e| panic!("{url}: {e}"))
}

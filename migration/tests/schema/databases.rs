//! Databases for tests: a temporary SQLite file always, and a new database on a MySQL server when
//! `ORBIT_TEST_MYSQL_URL` names one, such as `mysql://root@127.0.0.1:3306`.

use sea_orm_migration::prelude::ConnectionTrait;
use sea_orm_migration::sea_orm::{
    ConnectOptions, Database, DatabaseConnection, DbBackend, DbErr, QueryResult, Statement,
};
use tempfile::TempDir;

/// One test's own database.
pub(crate) struct TestDatabase {
    pub(crate) db: DatabaseConnection,
    url: String,
    home: Home,
}

enum Home {
    Directory { held: TempDir },
    Server { admin: DatabaseConnection, name: String },
}

impl TestDatabase {
    pub(crate) async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}?mode=rwc", directory.path().join("orbit.db").display());
        Self { db: connect(&url).await, url, home: Home::Directory { held: directory } }
    }

    /// `None` without a server. `options` follow CREATE DATABASE.
    pub(crate) async fn mysql(options: &str) -> Option<Self> {
        let server = std::env::var("ORBIT_TEST_MYSQL_URL").ok()?;
        let server = server.trim_end_matches('/');
        let admin = connect(server).await;
        let number =
            admin.query_one_raw(Statement::from_string(DbBackend::MySql, "SELECT UUID_SHORT() AS n"));
        let number: u64 = number.await.unwrap().unwrap().try_get("", "n").unwrap();
        let name = format!("orbit_schema_{number}");
        admin.execute_unprepared(&format!("CREATE DATABASE {name} {options}")).await.unwrap();
        let url = format!("{server}/{name}");
        Some(Self { db: connect(&url).await, url, home: Home::Server { admin, name } })
    }

    /// One database of each kind there is.
    pub(crate) async fn each() -> Vec<Self> {
        let mut all = vec![Self::sqlite().await];
        all.extend(Self::mysql("").await);
        all
    }

    /// A new, empty database of the same kind.
    pub(crate) async fn another(&self) -> Self {
        match self.home {
            Home::Directory { .. } => Self::sqlite().await,
            Home::Server { .. } => Self::mysql("").await.unwrap(),
        }
    }

    /// A second pool on the same database, as another node would have.
    pub(crate) async fn another_pool(&self) -> DatabaseConnection {
        connect(&self.url).await
    }

    pub(crate) fn is_mysql(&self) -> bool {
        matches!(self.home, Home::Server { .. })
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.try_run(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn try_run(&self, sql: &str) -> Result<(), DbErr> {
        self.db.execute_unprepared(sql).await.map(|_| ())
    }

    pub(crate) async fn query(&self, sql: &str) -> Vec<QueryResult> {
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        self.db.query_all_raw(statement).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first column of each row.
    pub(crate) async fn strings(&self, sql: &str) -> Vec<String> {
        self.query(sql).await.iter().map(|row| row.try_get_by_index(0).unwrap()).collect()
    }

    pub(crate) async fn tables(&self) -> Vec<String> {
        let mut tables = self
            .strings(if self.is_mysql() {
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
            } else {
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            })
            .await;
        tables.retain(|table| table != "seaql_migrations");
        tables.sort();
        tables
    }

    pub(crate) async fn columns(&self, table: &str) -> Vec<String> {
        self.strings(&if self.is_mysql() {
            format!(
                "SELECT column_name FROM information_schema.columns \
                 WHERE table_schema = DATABASE() AND table_name = '{table}' ORDER BY ordinal_position"
            )
        } else {
            format!("SELECT name FROM pragma_table_info('{table}') ORDER BY cid")
        })
        .await
    }

    /// Every row of a table as one line, each of `columns` in hexadecimal; sorted.
    pub(crate) async fn lines(&self, table: &str, columns: &[String]) -> Vec<String> {
        let columns: Vec<String> =
            columns.iter().map(|name| format!("'{name}=' || COALESCE(HEX({name}), 'NULL')")).collect();
        let sql = format!("SELECT {} FROM {table} ORDER BY 1", columns.join(" || ' ' || "));
        self.strings(&sql).await
    }

    /// Everything in every table.
    pub(crate) async fn contents(&self) -> Vec<String> {
        let mut contents = Vec::new();
        for table in self.tables().await {
            let lines = self.lines(&table, &self.columns(&table).await).await;
            contents.extend(lines.into_iter().map(|line| format!("{table}: {line}")));
        }
        contents
    }

    /// Closes and removes the database. After a panic it stays, to be looked at.
    pub(crate) async fn remove(self) {
        self.db.close().await.unwrap();
        match self.home {
            Home::Directory { held } => held.close().unwrap(),
            Home::Server { admin, name } => {
                admin.execute_unprepared(&format!("DROP DATABASE {name}")).await.unwrap();
                admin.close().await.unwrap();
            }
        }
    }
}

async fn connect(url: &str) -> DatabaseConnection {
    let mut options = ConnectOptions::new(url);
    options.max_connections(4).sqlx_logging(false);
    Database::connect(options).await.unwrap()
}

//! A session beside Orbit that stands in its way.

use sea_orm::{ConnectOptions, ConnectionTrait as _, DatabaseConnection};

use super::database::TestDatabase;

/// Holds a lock until it is told to let go: on MySQL the one that is asked for; on SQLite nobody can write at all.
pub(crate) struct Blocker {
    session: DatabaseConnection,
    release: &'static str,
}

impl Blocker {
    pub(crate) async fn new(database: &TestDatabase, block: &str, release: &'static str) -> Self {
        let mut options = ConnectOptions::new(&database.url);
        options.max_connections(1).sqlx_logging(false);
        let session = sea_orm::Database::connect(options).await.expect("connected");
        let (block, release) =
            if database.is_mysql() { (block, release) } else { ("BEGIN IMMEDIATE", "COMMIT") };
        session.execute_unprepared(block).await.expect("blocked");
        Self { session, release }
    }

    /// Holds the rows of all queues, so that neither claim nor pause goes on.
    pub(crate) async fn of_queues(database: &TestDatabase) -> Self {
        let this = Self::new(database, "BEGIN", "COMMIT").await;
        if database.is_mysql() {
            let lock = "SELECT id FROM queues FOR UPDATE";
            this.session.execute_unprepared(lock).await.expect("locked");
        }
        this
    }

    pub(crate) async fn release(self) {
        self.session.execute_unprepared(self.release).await.expect("released");
        self.session.close().await.expect("closed");
    }
}

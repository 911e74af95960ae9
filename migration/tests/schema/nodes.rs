//! Several nodes migrate at once, and others keep working meanwhile.

use std::time::Duration;

use migration::{Migrated, SchemaStatus, migrate, migrate_to, status};
use sea_orm_migration::prelude::ConnectionTrait;
use sea_orm_migration::sea_orm::TransactionTrait;
use tokio::time::{Instant, sleep};

use crate::databases::TestDatabase;
use crate::upgrade::fill_older;

#[tokio::test]
async fn nodes_that_migrate_at_once_all_succeed_and_one_does_the_work() {
    for start in [0, 4] {
        for database in TestDatabase::each().await {
            migrate_to(&database.db, start).await.unwrap();
            let (second, third) = (database.another_pool().await, database.another_pool().await);
            let (a, b, c) = tokio::join!(migrate(&database.db), migrate(&second), migrate(&third));
            let mut all = [a.unwrap(), b.unwrap(), c.unwrap()];
            all.sort_by_key(|migrated| migrated.from);
            let done = Migrated { from: 6, to: 6 };
            assert_eq!(all, [Migrated { from: start, to: 6 }, done, done]);
            assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Current { version: 6 });
            second.close().await.unwrap();
            third.close().await.unwrap();
            database.remove().await;
        }
    }
}

#[tokio::test]
async fn a_node_waits_while_another_holds_the_migration_lock() {
    let Some(database) = TestDatabase::mysql("").await else {
        return;
    };
    let other_node = database.db.begin().await.unwrap();
    let lock = "DO GET_LOCK(CONCAT('orbit.', SHA2(DATABASE(), 224)), 0)";
    other_node.execute_unprepared(lock).await.unwrap();

    let holder = async {
        wait_for_state(&database, "User lock").await;
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Empty);
        assert!(database.tables().await.is_empty());
        other_node.execute_unprepared("DO RELEASE_ALL_LOCKS()").await.unwrap();
        other_node.commit().await.unwrap();
    };
    let (migrated, ()) = tokio::join!(migrate(&database.db), holder);
    assert_eq!(migrated.unwrap(), Migrated { from: 0, to: 6 });
    database.remove().await;
}

/// Waits until some connection to the database is in `state`.
async fn wait_for_state(database: &TestDatabase, state: &str) {
    // MySQL's information_schema would convert the statements of all other sessions, which fails on binary values in
    // them; MariaDB's performance_schema is off by default.
    let version = database.strings("SELECT VERSION()").await.concat();
    let waiting = if version.contains("MariaDB") {
        format!(
            "SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE db = DATABASE() AND state = '{state}'"
        )
    } else {
        format!(
            "SELECT CAST(processlist_id AS CHAR) FROM performance_schema.threads \
             WHERE processlist_db = DATABASE() AND processlist_state = '{state}'"
        )
    };
    let limit = Instant::now() + Duration::from_secs(20);
    while database.strings(&waiting).await.is_empty() {
        assert!(Instant::now() < limit, "the migration was never in the state {state}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_long_reader_delays_the_upgrade_but_stalls_nobody_else_for_long() {
    let Some(database) = TestDatabase::mysql("").await else {
        return;
    };
    fill_older(&database).await;
    let reader = database.db.begin().await.unwrap();
    reader.execute_unprepared("SELECT COUNT(*) FROM tasks").await.unwrap();

    let others = async {
        wait_for_state(&database, "Waiting for table metadata lock").await;
        let asked = Instant::now();
        database.strings("SELECT CAST(COUNT(*) AS CHAR) FROM tasks").await;
        assert!(asked.elapsed() < Duration::from_secs(8), "stalled for {:?}", asked.elapsed());
        reader.commit().await.unwrap();
    };
    let (migrated, ()) = tokio::join!(migrate(&database.db), others);
    assert_eq!(migrated.unwrap(), Migrated { from: 4, to: 6 });
    database.remove().await;
}

//! Telling where a database stands, and refusing what this build cannot do.

use migration::{MigrateError, Migrated, Migrator, SchemaStatus, migrate, migrate_to, status};
use sea_orm_migration::MigratorTrait;

use crate::databases::TestDatabase;
use crate::rows::queue;

const A_LATER_STEP: &str = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m0099_later', 0)";

#[tokio::test]
async fn status_tells_empty_older_and_current_and_touches_nothing() {
    for database in TestDatabase::each().await {
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Empty);
        let all = if database.is_mysql() {
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        } else {
            "SELECT name FROM sqlite_master"
        };
        assert!(database.strings(all).await.is_empty());

        for step in 1..6 {
            let migrated = migrate_to(&database.db, step).await.unwrap();
            assert_eq!(migrated, Migrated { from: step - 1, to: step });
            assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Older { applied: step, known: 6 });
        }
        assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 5, to: 6 });
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Current { version: 6 });
        // Never back.
        assert_eq!(migrate_to(&database.db, 2).await.unwrap(), Migrated { from: 6, to: 6 });
        database.remove().await;
    }
}

#[tokio::test]
async fn a_newer_schema_is_recognized_and_left_alone() {
    // Also when steps of ours seem to be missing: a newer build may have merged them.
    for step in [6, 3] {
        for database in TestDatabase::each().await {
            migrate_to(&database.db, step).await.unwrap();
            database.run(A_LATER_STEP).await;
            let newer = SchemaStatus::Newer { applied: step + 1, known: 6 };
            assert_eq!(status(&database.db).await.unwrap(), newer);
            let before = database.tables().await;
            let refusal = migrate(&database.db).await.unwrap_err();
            assert!(matches!(refusal, MigrateError::Newer { known: 6, .. }), "{refusal}");
            assert_eq!(database.tables().await, before);
            assert_eq!(status(&database.db).await.unwrap(), newer);
            database.remove().await;
        }
    }
}

#[tokio::test]
async fn a_step_that_does_not_exist_is_refused() {
    let database = TestDatabase::sqlite().await;
    let refusal = migrate_to(&database.db, 7).await.unwrap_err();
    assert!(matches!(refusal, MigrateError::NoSuchStep { step: 7, known: 6 }), "{refusal}");
    assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Empty);
    database.remove().await;
}

#[tokio::test]
async fn going_back_is_refused_and_loses_nothing() {
    for database in TestDatabase::each().await {
        migrate(&database.db).await.unwrap();
        database.run(&queue().insert()).await;
        let before = database.contents().await;
        for refusal in [
            Migrator::down(&database.db, None).await,
            Migrator::refresh(&database.db).await,
            Migrator::reset(&database.db).await,
            Migrator::fresh(&database.db).await,
        ] {
            let refusal = refusal.unwrap_err().to_string();
            assert!(refusal.contains("only moves forward"), "{refusal}");
        }
        assert_eq!(database.contents().await, before);
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Current { version: 6 });
        database.remove().await;
    }
}

//! From the platform before safe retry (steps 1 to 4) to today's.

use migration::{Migrated, SchemaStatus, migrate, migrate_to, status};

use crate::databases::TestDatabase;
use crate::reruns::definitions;
use crate::rows::{NEEDS_REVIEW, WAITING, before_safe_retry, id, task};

/// A database of the older platform, with rows in every state.
pub(crate) async fn fill_older(database: &TestDatabase) {
    migrate_to(&database.db, 4).await.unwrap();
    for row in before_safe_retry() {
        database.run(&row.insert()).await;
    }
}

#[tokio::test]
async fn the_upgrade_puts_what_waits_for_review_in_doubt_and_changes_nothing_else() {
    for database in TestDatabase::each().await {
        fill_older(&database).await;
        let tables = database.tables().await;
        let mut before = Vec::new();
        for table in &tables {
            let columns = database.columns(table).await;
            before.push((table, database.lines(table, &columns).await, columns));
        }

        assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 4, to: 6 });

        for (table, lines, columns) in before {
            let mut expected = lines;
            if table == "receipts" {
                // The receipts that announced a review tell of the doubt; no other is touched. (SQLite's HEX writes
                // a number's digits.)
                let hex = if database.is_mysql() { ["7", "0", "1"] } else { ["37", "30", "31"] };
                let [review, no, yes] = hex.map(|digits| format!("={digits} "));
                for line in expected.iter_mut().filter(|line| line.contains(&format!("task_state{review}"))) {
                    *line = line.replace(&format!("effect_uncertain{no}"), &format!("effect_uncertain{yes}"));
                }
            }
            assert_eq!(database.lines(table, &columns).await, expected, "{table}");
        }
        for (table, column, raised) in [
            ("tasks", "effect_uncertain", format!("state = {NEEDS_REVIEW}")),
            ("attempts", "retryable", "1 = 0".to_owned()),
            ("evidence", "retryable", "1 = 0".to_owned()),
        ] {
            let wrong = format!("SELECT HEX(task_id) FROM {table} WHERE {column} <> ({raised})");
            assert_eq!(database.strings(&wrong).await, Vec::<String>::new(), "{table}.{column}");
        }
        database.remove().await;
    }
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    for database in TestDatabase::each().await {
        fill_older(&database).await;
        migrate(&database.db).await.unwrap();
        let before = (definitions(&database).await, database.contents().await);
        assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 6, to: 6 });
        assert_eq!((definitions(&database).await, database.contents().await), before);

        // Nor when the record of the last steps was lost.
        database.run("DELETE FROM seaql_migrations WHERE version >= 'm0005_safe_retry'").await;
        assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 4, to: 6 });
        assert_eq!((definitions(&database).await, database.contents().await), before);
        database.remove().await;
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_stops_the_upgrade_until_it_is_repaired() {
    for database in TestDatabase::each().await {
        fill_older(&database).await;
        let broken = task(WAITING).with("task_id", &id(200)).with("idempotency_key", "'broken'");
        database.run(&broken.with("available_at", "NULL").insert()).await;

        let refusal = migrate(&database.db).await.unwrap_err().to_string();
        assert!(refusal.contains("ck_tasks_available_at"), "{refusal}");
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Older { applied: 4, known: 6 });

        database.run("UPDATE tasks SET available_at = 3000 WHERE idempotency_key = 'broken'").await;
        assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 4, to: 6 });
        database.remove().await;
    }
}

#[tokio::test]
async fn stored_answers_about_tasks_name_their_task() {
    for database in TestDatabase::each().await {
        migrate_to(&database.db, 5).await.unwrap();
        let task = "0190f5c2-7b1e-7c3d-9a4f-2b6d8e0f1a3c";
        for (n, kind, answer) in [
            (1, 1, r#"{"queue_id":"default","paused":false}"#.to_owned()),
            (2, 2, format!(r#"{{"changed":true,"task_id":"{task}"}}"#)),
        ] {
            let (id, digest) = ("0".repeat(31), "00".repeat(32));
            database
                .run(&format!(
                    "INSERT INTO requests (principal, request_id, kind, digest, answer, created_at) \
                     VALUES ('local', x'{id}{n}', {kind}, x'{digest}', '{answer}', 1)"
                ))
                .await;
        }
        migrate(&database.db).await.unwrap();
        let named =
            "SELECT CASE WHEN task_id IS NULL THEN 'none' ELSE HEX(task_id) END FROM requests ORDER BY kind";
        let id = task.replace('-', "").to_uppercase();
        assert_eq!(database.strings(named).await, ["none".to_owned(), id]);
        database.remove().await;
    }
}

//! A migration that stopped at any point can be run again.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use migration::{Migrated, SchemaStatus, migrate, migrate_to, status};

use crate::databases::TestDatabase;
use crate::upgrade::fill_older;

/// What the database says its tables are, without what may differ between equal ones.
pub(crate) async fn definitions(database: &TestDatabase) -> Vec<(String, Vec<String>)> {
    let mut definitions = Vec::new();
    for table in database.tables().await {
        let mut lines = definition(database, &table).await;
        lines.sort();
        definitions.push((table, lines));
    }
    definitions
}

/// The lines of a table's definition: the first opens it, then columns, keys, constraints, then the end.
async fn definition(database: &TestDatabase, table: &str) -> Vec<String> {
    if database.is_mysql() {
        let row = database.query(&format!("SHOW CREATE TABLE {table}")).await.remove(0);
        let sql: String = row.try_get_by_index(1).unwrap();
        return sql.lines().map(|line| line.trim().trim_end_matches(',').to_owned()).collect();
    }
    let sql = format!(
        "SELECT sql FROM sqlite_master WHERE tbl_name = '{table}' AND sql IS NOT NULL ORDER BY type DESC"
    );
    let lines = database.strings(&sql).await;
    lines.iter().map(|sql| sql.replace('"', "").replace("( ", "(").replace(" )", ")")).collect()
}

/// The statements that lead from `present` to `wanted`, each small enough for a server to die behind it.
async fn missing_statements(present: &TestDatabase, wanted: &TestDatabase) -> Vec<String> {
    let mut statements = Vec::new();
    let tables = present.tables().await;
    for table in wanted.tables().await {
        let lines = definition(wanted, &table).await;
        if !wanted.is_mysql() {
            let has = if tables.contains(&table) { definition(present, &table).await } else { Vec::new() };
            // SQLite's CHECKs come with the table or not at all.
            let news = lines.into_iter().filter(|sql| !has.contains(sql) && !sql.contains("CHECK"));
            statements.extend(news);
        } else if tables.contains(&table) {
            let has = definition(present, &table).await;
            let news = lines.iter().filter(|line| !has.contains(line) && !line.starts_with(')'));
            statements.extend(news.map(|line| format!("ALTER TABLE {table} ADD {line}")));
        } else {
            let (keys, body): (Vec<&String>, Vec<&String>) =
                lines.iter().partition(|line| line.starts_with("KEY "));
            let inner: Vec<&str> = body[1..body.len() - 1].iter().map(|line| line.as_str()).collect();
            statements.push(format!("{}{}{}", body[0], inner.join(", "), body[body.len() - 1]));
            statements.extend(keys.iter().map(|key| format!("ALTER TABLE {table} ADD {key}")));
        }
    }
    statements
}

#[tokio::test]
async fn a_step_that_stopped_after_any_of_its_tables_is_run_again() {
    for wanted in TestDatabase::each().await {
        for step in 1..=4 {
            migrate_to(&wanted.db, step).await.unwrap();
            let expected = (definitions(&wanted).await, wanted.contents().await);
            let mut cut = 0;
            loop {
                let database = wanted.another().await;
                migrate_to(&database.db, step - 1).await.unwrap();
                let statements = missing_statements(&database, &wanted).await;
                assert!(statements.len() >= 2, "{statements:?}");
                for statement in statements.iter().take(cut) {
                    database.run(statement).await;
                }
                let again = migrate_to(&database.db, step).await.unwrap();
                assert_eq!(again, Migrated { from: step - 1, to: step });
                assert_eq!(
                    (definitions(&database).await, database.contents().await),
                    expected,
                    "{step}, {cut}"
                );
                database.remove().await;
                cut += 1;
                if cut > statements.len() {
                    break;
                }
            }
        }
        wanted.remove().await;
    }
}

#[tokio::test]
async fn safe_retry_that_stopped_after_any_of_its_statements_is_run_again() {
    for wanted in TestDatabase::each().await {
        fill_older(&wanted).await;
        let mut statements = if wanted.is_mysql() {
            let older = wanted.another().await;
            migrate_to(&older.db, 4).await.unwrap();
            migrate(&wanted.db).await.unwrap();
            let statements = missing_statements(&older, &wanted).await;
            older.remove().await;
            statements
        } else {
            migrate(&wanted.db).await.unwrap();
            let column =
                |table, name| format!("ALTER TABLE {table} ADD COLUMN {name} BOOLEAN NOT NULL DEFAULT 0");
            vec![
                column("tasks", "effect_uncertain"),
                column("attempts", "retryable"),
                column("evidence", "retryable"),
                "CREATE INDEX receipts_applied ON receipts (task_id, epoch, digest)".to_owned(),
            ]
        };
        let expected = (definitions(&wanted).await, wanted.contents().await);
        // The next step's, which follows in any case.
        statements.retain(|sql| !sql.contains("tasks_route") && !sql.contains("requests"));
        // As the migration does: columns and index, the back-fill, the constraints.
        statements.sort_by_key(|sql| sql.contains("CONSTRAINT"));
        let back_fill = "UPDATE tasks SET effect_uncertain = 1 WHERE state = 7";
        statements.insert(4, back_fill.to_owned());
        statements.insert(5, "UPDATE receipts SET effect_uncertain = 1 WHERE task_state = 7".to_owned());

        let all = statements.len();
        assert!(if wanted.is_mysql() { all > 40 } else { all == 6 }, "{statements:#?}");
        let cuts = (0..=8).chain((9..all).step_by(7)).chain([all]).filter(|cut| *cut <= all);
        for cut in cuts {
            let database = wanted.another().await;
            fill_older(&database).await;
            for statement in statements.iter().take(cut) {
                database.run(statement).await;
            }
            assert_eq!(migrate(&database.db).await.unwrap(), Migrated { from: 4, to: 6 });
            assert_eq!((definitions(&database).await, database.contents().await), expected, "cut {cut}");
            database.remove().await;
        }
        wanted.remove().await;
    }
}

/// Drops `future` when it has not ended after `polls` polls.
async fn give_up_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_migration_dropped_at_any_await_leaves_neither_lock_nor_ruin() {
    for wanted in TestDatabase::each().await {
        fill_older(&wanted).await;
        migrate(&wanted.db).await.unwrap();
        let database = wanted.another().await;
        fill_older(&database).await;
        let mut polls = 1;
        let migrated = loop {
            match give_up_after(polls, migrate(&database.db)).await {
                None => polls += 1,
                Some(migrated) => break migrated.unwrap(),
            }
        };
        assert!(polls > 20, "{polls}");
        assert_eq!(migrated.to, 6);
        assert_eq!(status(&database.db).await.unwrap(), SchemaStatus::Current { version: 6 });
        assert_eq!(definitions(&database).await, definitions(&wanted).await);
        assert_eq!(database.contents().await, wanted.contents().await);
        database.remove().await;
        wanted.remove().await;
    }
}

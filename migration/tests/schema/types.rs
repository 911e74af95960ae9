//! Columns are what the code believes they are, on both databases.

use migration::migrate;
use sea_orm_migration::prelude::ConnectionTrait;
use sea_orm_migration::sea_orm::prelude::Uuid;
use sea_orm_migration::sea_orm::{DbErr, QueryResult, SqlErr, Statement};

use crate::databases::TestDatabase;
use crate::rows::{
    FAILED, RUNNING, Row, SUCCEEDED, WAITING, attempt, cancel, event, evidence, id, lane_commit, lease,
    payload, queue, ready, receipt, request, review, route, task_now,
};

const MOMENTS: &[&str] = &["_at", "_until", "_before", "last_seen", "claim_count", "seq", "task_timeout_ms"];
const CODES: &[&str] =
    &["state", "kind", "disposition", "decision", "cause", "outcome", "recovery_safety", "digest_version"];
const FLAGS: &[&str] = &["paused", "effect_uncertain", "retryable"];
const NUMBERS: &[&str] = &[
    "queue",
    "route",
    "revision",
    "epoch",
    "max_running",
    "payload_bytes",
    "_attempts",
    "attempt_count",
    "delay_ms",
    "attempt_timeout_ms",
];

fn ends_in(column: &str, ends: &[&str]) -> bool {
    ends.iter().any(|end| column.ends_with(end))
}

/// Reads a column as the type that belongs to its name; NULL too.
fn read(row: &QueryResult, table: &str, column: &str) -> Result<(), DbErr> {
    let small = (table == "cluster" && column == "id") || (table == "evidence" && column == "ordinal");
    if small {
        return row.try_get::<i16>("", column).map(|_| ());
    }
    match column {
        "id" | "ordinal" => row.try_get::<i32>("", column).map(|_| ()),
        "at" => row.try_get::<i64>("", column).map(|_| ()),
        "queue_id" | "node_id" => row.try_get::<String>("", column).map(|_| ()),
        "digest" => row.try_get::<Vec<u8>>("", column).map(|bytes| assert_eq!(bytes.len(), 32)),
        _ if column.ends_with("_id") => {
            row.try_get::<Option<Uuid>>("", column)?;
            row.try_get::<Option<Vec<u8>>>("", column).map(|_| ())
        }
        _ if FLAGS.contains(&column) => row.try_get::<bool>("", column).map(|_| ()),
        _ if ends_in(column, MOMENTS) => row.try_get::<Option<i64>>("", column).map(|_| ()),
        _ if ends_in(column, CODES) => row.try_get::<Option<i16>>("", column).map(|_| ()),
        _ if ends_in(column, NUMBERS) => row.try_get::<Option<i32>>("", column).map(|_| ()),
        _ => row.try_get::<Option<String>>("", column).map(|_| ()),
    }
}

#[tokio::test]
async fn every_column_reads_as_its_type() {
    let rows = [
        queue(),
        route(),
        task_now(WAITING),
        task_now(FAILED)
            .with("cancel_requested_at", "5")
            .with("cancel_requested_by", "'x'")
            .with("last_decision", "1"),
        task_now(FAILED)
            .with("task_id", &id(20))
            .with("idempotency_key", "'more'")
            .with("error_message", "'m'"),
        task_now(SUCCEEDED).with("result", "'{}'").with("not_before", "1"),
        payload(),
        ready(),
        attempt(3).with("result", "'[]'"),
        attempt(4).with("error_message", "'m'").with("error_details", "'{}'").with("delay_ms", "500"),
        lease(),
        review(),
        cancel(),
        receipt(WAITING),
        receipt(RUNNING),
        evidence(1).with("result", "'{}'"),
        evidence(2).with("error_code", "'X'").with("error_message", "'m'").with("error_details", "'{}'"),
        event(),
        event().with("revision", "2").with("epoch", "1").with("session_id", &id(3)).with("note", "'n'"),
        lane_commit(),
        request(),
    ];
    for database in TestDatabase::each().await {
        migrate(&database.db).await.unwrap();
        for row in &rows {
            database.run(&row.insert()).await;
        }
        for table in database.tables().await {
            let rows = database.query(&format!("SELECT * FROM {table}")).await;
            assert!(!rows.is_empty(), "{table}");
            for column in database.columns(&table).await {
                for row in &rows {
                    read(row, &table, &column).unwrap_or_else(|error| panic!("{table}.{column}: {error}"));
                }
            }
        }
        database.remove().await;
    }
}

#[tokio::test]
async fn json_and_text_are_kept_byte_for_byte() {
    let payload = "{\"n\": 1.10, \"n\": 1e3,  \"s\": \"\\u00e9 \u{e9} \u{1f980} \"} ";
    for database in TestDatabase::each().await {
        migrate(&database.db).await.unwrap();
        let sql = format!("INSERT INTO payloads (task_id, payload) VALUES ({}, ?)", id(1));
        let backend = database.db.get_database_backend();
        for text in [payload.to_owned(), "x".repeat(1 << 20)] {
            database.run("DELETE FROM payloads").await;
            let statement = Statement::from_sql_and_values(backend, &sql, [text.clone().into()]);
            database.db.execute_raw(statement).await.unwrap();
            assert_eq!(database.strings("SELECT payload FROM payloads").await, [text]);
        }
        database.remove().await;
    }
}

/// A row for each unique key of text.
fn keyed(key: &str, number: u8) -> [Row; 7] {
    let quoted = format!("'{key}'");
    [
        queue().with("queue_id", &quoted),
        route().with("handler", &quoted),
        route().with("handler_version", &quoted),
        task_now(WAITING).with("task_id", &id(number)).with("idempotency_key", &quoted),
        task_now(WAITING).with("task_id", &id(number + 1)).with("principal", &quoted),
        request().with("principal", &quoted),
        lane_commit().with("lane", &quoted),
    ]
}

#[tokio::test]
async fn keys_differ_by_every_byte_whatever_the_databases_default_is() {
    let mut databases = vec![TestDatabase::sqlite().await];
    for default in [
        "",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    ] {
        databases.extend(TestDatabase::mysql(default).await);
    }
    for database in databases {
        migrate(&database.db).await.unwrap();
        for row in keyed("Order-A", 10).into_iter().chain(keyed("order-a", 20)) {
            database.run(&row.insert()).await;
        }
        for row in keyed("order-a", 30) {
            let refusal = database.try_run(&row.insert()).await.expect_err(&row.insert());
            let unique = matches!(refusal.sql_err(), Some(SqlErr::UniqueConstraintViolation(_)));
            assert!(unique, "{}: {refusal}", row.insert());
        }
        let backend = database.db.get_database_backend();
        let sql = "SELECT queue_id FROM queues WHERE queue_id = ?";
        for key in ["Order-A", "order-a"] {
            let found = database.db.query_all_raw(Statement::from_sql_and_values(backend, sql, [key.into()]));
            let found = found.await.unwrap();
            let keys: Vec<String> = found.iter().map(|row| row.try_get("", "queue_id").unwrap()).collect();
            assert_eq!(keys, [key]);
        }
        database.remove().await;
    }
}

#[tokio::test]
async fn a_lookup_with_a_bound_key_uses_the_unique_index() {
    let Some(database) = TestDatabase::mysql("COLLATE utf8mb4_general_ci").await else {
        return;
    };
    migrate(&database.db).await.unwrap();
    for number in 1..20 {
        let key = format!("'key-{number}'");
        database
            .run(&task_now(WAITING).with("task_id", &id(number)).with("idempotency_key", &key).insert())
            .await;
    }
    let sql =
        "EXPLAIN FORMAT=TRADITIONAL SELECT task_id FROM tasks WHERE principal = ? AND idempotency_key = ?";
    let values = ["producer".into(), "key-7".into()];
    let backend = database.db.get_database_backend();
    let plan = database
        .db
        .query_one_raw(Statement::from_sql_and_values(backend, sql, values))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(plan.try_get::<String>("", "key").unwrap(), "tasks_idempotency_key");
    assert_eq!(plan.try_get::<String>("", "type").unwrap(), "const");
    database.remove().await;
}

#[tokio::test]
async fn every_table_and_column_has_a_comment_on_mysql() {
    let Some(database) = TestDatabase::mysql("").await else {
        return;
    };
    migrate(&database.db).await.unwrap();
    let commented = database
        .strings(
            "SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name <> 'seaql_migrations' AND column_comment <> ''",
        )
        .await;
    let mut all = 0;
    for table in database.tables().await {
        for column in database.columns(&table).await {
            assert!(commented.contains(&format!("{table}.{column}")), "{table}.{column} has no comment");
            all += 1;
        }
    }
    assert!(all > 120, "{all}");
    let bare = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() \
                AND table_name <> 'seaql_migrations' AND (table_comment = '' OR engine <> 'InnoDB')";
    assert_eq!(database.strings(bare).await, Vec::<String>::new());
    let folding = "SELECT CONCAT(table_name, '.', column_name) FROM information_schema.columns \
                   WHERE table_schema = DATABASE() AND table_name <> 'seaql_migrations' \
                   AND collation_name NOT IN ('ascii_bin', 'utf8mb4_bin')";
    assert_eq!(database.strings(folding).await, Vec::<String>::new());
    database.remove().await;
}

//! Very many tasks at once, as copies of one that Orbit itself wrote: the rows are genuine, only ids and keys differ.

use std::fmt::Write as _;

use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, DbErr, Statement,
};
use uuid::Uuid;

use super::{BenchError, Progress};

/// Copies of one statement.
const COPIES: u64 = 10_000;

/// Every table that may hold rows of a task that waits or has ended.
const TABLES: [&str; 6] = ["tasks", "payloads", "ready", "attempts", "receipts", "events"];

/// Makes `count` copies of the task with the given idempotency key.
pub(super) async fn copy(
    url: &str,
    idempotency_key: &str,
    count: u64,
    progress: &Progress,
) -> Result<(), BenchError> {
    let mut options = ConnectOptions::new(url);
    options.max_connections(1).sqlx_logging(false);
    let db = Database::connect(options).await.map_err(BenchError::of("the bulk load"))?;
    let copied = copy_on(&db, idempotency_key, count, progress).await;
    let _ = db.close().await;
    copied.map_err(BenchError::of("the bulk load"))
}

async fn copy_on(
    db: &DatabaseConnection,
    idempotency_key: &str,
    count: u64,
    progress: &Progress,
) -> Result<(), DbErr> {
    let backend = db.get_database_backend();
    let seed = "SELECT task_id FROM tasks WHERE idempotency_key = ?";
    let seed = Statement::from_sql_and_values(backend, seed, [idempotency_key.into()]);
    let seed: Uuid = match db.query_one_raw(seed).await? {
        Some(row) => row.try_get("", "task_id")?,
        None => return Err(DbErr::RecordNotFound("the task to copy".to_owned())),
    };
    let mut copies = Vec::new();
    for table in TABLES {
        copies.push(copies_of(table, &columns(db, table).await?, backend));
    }
    let mut done = 0;
    while done < count {
        let next = count.min(done + COPIES);
        db.execute_unprepared("BEGIN").await?;
        for sql in &copies {
            let values = [done.into(), (next - done).into(), seed.into()];
            db.execute_raw(Statement::from_sql_and_values(backend, sql, values)).await?;
        }
        db.execute_unprepared("COMMIT").await?;
        done = next;
        progress.at(&format!("bulk load, {done} of {count} tasks"));
    }
    Ok(())
}

/// The statement that copies a task's rows of one table. Its parameters: how many copies there are already, how many
/// more, and the task.
fn copies_of(table: &str, columns: &[String], backend: DbBackend) -> String {
    let sqlite = backend == DbBackend::Sqlite;
    // The millisecond of the original, and then the copy's number in place of what is random.
    let id = if sqlite {
        "unhex(substr(hex(t.task_id), 1, 12) || '70008' || printf('%015x', n.n))"
    } else {
        "UNHEX(CONCAT(SUBSTR(HEX(t.task_id), 1, 12), '70008', LPAD(HEX(n.n), 15, '0')))"
    };
    let key = if sqlite { "t.idempotency_key || '-' || n.n" } else { "CONCAT(t.idempotency_key, '-', n.n)" };
    let values = columns.iter().map(|column| match column.as_str() {
        "task_id" => id.to_owned(),
        "idempotency_key" => key.to_owned(),
        other => format!("t.{other}"),
    });
    let values = values.collect::<Vec<_>>().join(", ");
    format!(
        "INSERT INTO {table} ({}) SELECT {values} FROM {table} AS t CROSS JOIN (SELECT n + CAST(? AS SIGNED) AS n FROM ({}) AS m \
         WHERE m.n < ?) AS n WHERE t.task_id = ?",
        columns.join(", "),
        numbers(),
    )
}

/// 0 to 9,999, in a way that all databases know.
fn numbers() -> String {
    let digits = (1..10).fold("SELECT 0 AS d".to_owned(), |mut sql, d| {
        // Writing to a String cannot fail.
        let _ = write!(sql, " UNION ALL SELECT {d}");
        sql
    });
    format!(
        "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n FROM ({digits}) AS a CROSS JOIN ({digits}) AS b \
         CROSS JOIN ({digits}) AS c CROSS JOIN ({digits}) AS e"
    )
}

async fn columns(db: &DatabaseConnection, table: &str) -> Result<Vec<String>, DbErr> {
    let backend = db.get_database_backend();
    let sql = match backend {
        DbBackend::Sqlite => "SELECT name AS name FROM pragma_table_info(?)",
        _ => {
            "SELECT CAST(column_name AS CHAR) AS name FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position"
        }
    };
    let rows = db.query_all_raw(Statement::from_sql_and_values(backend, sql, [table.into()])).await?;
    rows.iter().map(|row| row.try_get("", "name")).collect()
}

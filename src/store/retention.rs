//! Removing tasks that ended long ago, each with all that is known of it.
//!
//! There is no index by the time of the end: it would be written once more in the life of every task, in the table that
//! everything locks. The tasks are walked in the order of their ids instead, which is that of their acceptance, up to
//! those accepted too late to be due. What stands before that and is not removed yet is little: it waits, is in review,
//! or ended later.
//!
//! A batch is one transaction beside the lanes. It takes the tasks first, as the lanes do, and only those that nobody
//! has: so it waits for nobody, and two nodes never take the same. What became of its COMMIT needs no settling, since
//! the next walk finds what is left.

use std::time::Duration;

use sea_orm::{
    ConnectionTrait as _, DatabaseTransaction, DbErr, FromQueryResult, SqliteTransactionMode,
    TransactionOptions, TransactionTrait as _, Value,
};
use tokio::time::timeout;
use uuid::Uuid;

use crate::domain::{ids::TaskId, time::Moment};

use super::{
    database::Database,
    dialect::{Dialect, Kind},
    error::{Fault, Inconsistency},
};

/// Tasks that one step looks at.
const LOOK_ROWS: u32 = 256;
/// What one batch weighs at most, unless it is a single task: 1 for each task, 1 for each attempt, 1 for each 32 KiB of
/// payload. A task that succeeded at once weighs 2. On MySQL nobody waits for a batch; on SQLite everybody who writes does.
const WEIGHT_MAX: u64 = 256;
const WEIGHT_MAX_SQLITE: u64 = 64;
const PAYLOAD_BYTES_PER_WEIGHT: u64 = 32 * 1024;
/// How long one batch may take before it is given up. Only a single task with very much history takes seconds.
const BATCH_LIMIT: Duration = Duration::from_secs(30);

/// What one step of a walk found.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Tasks to remove, enough for a batch.
    pub tasks: Vec<TaskId>,
    /// The id after which the next step goes on; none at the end of the walk.
    pub next: Option<TaskId>,
}

#[derive(FromQueryResult)]
struct LookRow {
    task_id: Uuid,
    attempt_count: i32,
    payload_bytes: i32,
    completed_at: Option<i64>,
    cutoff: i64,
}

impl LookRow {
    fn weight(&self) -> u64 {
        let count = |n: i32| u64::try_from(n).unwrap_or(0);
        1 + count(self.attempt_count) + count(self.payload_bytes) / PAYLOAD_BYTES_PER_WEIGHT
    }
}

impl Database {
    /// One step of a walk over all tasks: which of those after `after` ended `keep` ago or longer, by the database's
    /// clock. Never one that has not ended, or is in review.
    pub async fn finished(&self, keep: Duration, after: TaskId) -> Result<Finished, Fault> {
        let dialect = self.dialect();
        let sql = format!(
            "SELECT task_id, attempt_count, payload_bytes, completed_at, {} - ? AS cutoff \
             FROM tasks{} WHERE task_id > ? ORDER BY task_id LIMIT ?",
            dialect.now(),
            dialect.force_primary()
        );
        let values = vec![micros(keep).into(), after.0.into(), LOOK_ROWS.into()];
        let rows = self.reads_connection().query_all_raw(dialect.statement(sql, values)).await?;
        let weight_max = if self.is_sqlite() { WEIGHT_MAX_SQLITE } else { WEIGHT_MAX };
        let (mut found, mut weight) = (Finished::default(), 0);
        for row in &rows {
            let row = LookRow::from_query_result(row, "").map_err(Fault::Permanent)?;
            if row.task_id >= TaskId::first_at(Moment::from_micros(row.cutoff)).0 {
                // Accepted after the cutoff, as all that follow.
                return Ok(Finished { next: None, ..found });
            }
            if row.completed_at.is_some_and(|at| at <= row.cutoff) {
                weight += row.weight();
                if weight > weight_max && !found.tasks.is_empty() {
                    return Ok(found);
                }
                found.tasks.push(TaskId(row.task_id));
            }
            found.next = Some(TaskId(row.task_id));
        }
        found.next = found.next.filter(|_| rows.len() == LOOK_ROWS as usize);
        Ok(found)
    }

    /// Removes those of these tasks that ended `keep` ago or longer, and tells how many they were: all or none of each,
    /// and none that somebody else has locked.
    pub async fn remove_finished(&self, keep: Duration, tasks: &[TaskId]) -> Result<u64, Fault> {
        let _turn = self.writers_turn().await;
        let options = TransactionOptions {
            sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        let batch = async {
            let tx = self.writes_connection().begin_with_options(options).await?;
            let removed = self.remove_locked(&tx, keep, tasks).await?;
            tx.commit().await?;
            Ok(removed)
        };
        let too_long = |_| Err(Fault::Away(DbErr::Custom("time-out".to_owned())));
        timeout(BATCH_LIMIT, batch).await.unwrap_or_else(too_long)
    }

    async fn remove_locked(
        &self,
        tx: &DatabaseTransaction,
        keep: Duration,
        tasks: &[TaskId],
    ) -> Result<u64, Fault> {
        let dialect = self.dialect();
        let ids: Vec<Uuid> = tasks.iter().map(|t| t.0).collect();
        let (list, mut values) = Dialect::in_list(&ids);
        values.push(micros(keep).into());
        let sql = format!(
            "SELECT task_id FROM tasks{} WHERE task_id IN {list} AND completed_at <= {} - ? ORDER BY task_id{}",
            dialect.force_primary(),
            dialect.now(),
            dialect.for_update_skip_locked(),
        );
        let rows = tx.query_all_raw(dialect.statement(sql, values)).await?;
        let ids: Result<Vec<Uuid>, _> = rows.iter().map(|r| r.try_get("", "task_id")).collect();
        let ids = ids.map_err(Fault::Permanent)?;
        if ids.is_empty() {
            return Ok(0);
        }
        let key = [("task_id", Kind::Id)];
        let keys = || ids.iter().map(|id| vec![Value::from(*id)]).collect::<Vec<_>>();
        for table in ["payloads", "attempts", "receipts", "evidence", "events"] {
            tx.execute_raw(dialect.delete(table, &key, keys())).await?;
        }
        tx.execute_raw(dialect.delete_by("requests_task_id", "requests", &key, keys())).await?;
        let removed = tx.execute_raw(dialect.delete("tasks", &key, keys())).await?.rows_affected();
        if removed != ids.len() as u64 {
            let why = format!("expected so many rows, found {removed}");
            return Err(Inconsistency::new("tasks", "(removal)", ids.len(), why).into());
        }
        Ok(removed)
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

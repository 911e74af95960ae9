//! Finding tasks by something else than what they are called.

use sea_orm::ConnectionTrait as _;

use uuid::Uuid;

use crate::domain::{ids::TaskId, task::StateName};

use super::{
    codes::Code as _,
    database::Database,
    dialect::{Dialect, ROWS_MAX},
    error::Fault,
};

impl Database {
    /// The task that a principal's idempotency key made, if it did.
    pub async fn task_of_key(&self, principal: &str, key: &str) -> Result<Option<TaskId>, Fault> {
        let sql = "SELECT task_id FROM tasks WHERE principal = ? AND idempotency_key = ?";
        let statement = self.dialect().statement(sql, vec![principal.into(), key.into()]);
        let row = self.reads_connection().query_one_raw(statement).await?;
        row.map(|r| r.try_get("", "task_id").map(TaskId)).transpose().map_err(Fault::Permanent)
    }

    /// Those of these tasks to which nothing more happens by itself. One query, unless they are very many.
    pub async fn settled(&self, ids: &[TaskId]) -> Result<Vec<TaskId>, Fault> {
        let ids: Vec<Uuid> = ids.iter().map(|t| t.0).collect();
        let states: Vec<String> = StateName::SETTLED.iter().map(|s| s.code().to_string()).collect();
        let mut settled = Vec::new();
        for ids in ids.chunks(ROWS_MAX) {
            let (list, values) = Dialect::in_list(ids);
            let sql = format!(
                "SELECT task_id FROM tasks{} WHERE task_id IN {list} AND state IN ({})",
                self.dialect().force_primary(),
                states.join(", "),
            );
            let rows = self.reads_connection().query_all_raw(self.dialect().statement(sql, values)).await?;
            for row in rows {
                settled.push(TaskId(row.try_get("", "task_id").map_err(Fault::Permanent)?));
            }
        }
        Ok(settled)
    }
}

//! Finding tasks by something else than what they are called.

use sea_orm::ConnectionTrait as _;

use crate::domain::ids::TaskId;

use super::{database::Database, error::Fault};

impl Database {
    /// The task that a principal's idempotency key made, if it did.
    pub async fn task_of_key(&self, principal: &str, key: &str) -> Result<Option<TaskId>, Fault> {
        let sql = "SELECT task_id FROM tasks WHERE principal = ? AND idempotency_key = ?";
        let statement = self.dialect().statement(sql, vec![principal.into(), key.into()]);
        let row = self.reads_connection().query_one_raw(statement).await?;
        row.map(|r| r.try_get("", "task_id").map(TaskId)).transpose().map_err(Fault::Permanent)
    }
}

//! Lists of a queue's tasks, and stored answers that go with their task.

use sea_orm_migration::prelude::*;

use crate::dialect::{Dialect, add_column, create_index, null, refuse_down};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        // Neither column ever changes, so no change of a task's state touches the index.
        create_index(manager, "tasks", "tasks_route", &["route", "task_id"]).await?;

        let task = "The task that was cancelled or resolved: tasks.task_id; null for a write to a queue";
        add_column(manager, "requests", null(d.id16("task_id", task))).await?;
        let from_answer = match d {
            Dialect::MySql => "UNHEX(REPLACE(JSON_UNQUOTE(JSON_EXTRACT(answer, '$.task_id')), '-', ''))",
            Dialect::Sqlite => "unhex(json_extract(answer, '$.task_id'), '-')",
        };
        let sql = format!("UPDATE requests SET task_id = {from_answer} WHERE kind = 2 AND task_id IS NULL");
        manager.get_connection().execute_unprepared(&sql).await?;
        create_index(manager, "requests", "requests_task_id", &["task_id"]).await
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

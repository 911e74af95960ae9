//! Attempts: the ended ones, the live ones with their leases, and the tasks that wait for a person.

use sea_orm_migration::prelude::*;

use crate::dialect::{Dialect, create_index, create_table, null, primary_key, refuse_down};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        let key = primary_key(&["task_id", "epoch"]);
        let comment = "Ended attempts; the live one of a task is its row in leases";
        create_table(manager, "attempts", comment, attempts(d), [key]).await?;

        let key = primary_key(&["task_id"]);
        let comment = "The LEASED and RUNNING tasks: their live attempts, each with its permit";
        create_table(manager, "leases", comment, leases(d), [key]).await?;
        create_index(manager, "leases", "leases_lease_until", &["lease_until"]).await?;
        create_index(manager, "leases", "leases_queue", &["queue"]).await?;

        let reviews =
            vec![d.id16("task_id", "The task: tasks.task_id"), d.int("queue", "The task's queue: queues.id")];
        let key = primary_key(&["task_id"]);
        create_table(manager, "reviews", "The NEEDS_REVIEW tasks", reviews, [key]).await?;
        create_index(manager, "reviews", "reviews_queue", &["queue"]).await?;

        let cancels = vec![
            d.id16("task_id", "The task: tasks.task_id"),
            d.id16("attempt_id", "The attempt that runs all the same"),
        ];
        let key = primary_key(&["task_id"]);
        let comment = "The RUNNING tasks with a recorded cancel, whose workers are to be told";
        create_table(manager, "cancels", comment, cancels, [key]).await
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

fn attempts(d: Dialect) -> Vec<ColumnDef> {
    let causes = "1 REPORTED, 2 LEASE_EXPIRED, 3 ATTEMPT_TIMEOUT, 4 TASK_DEADLINE, 5 START_DEADLINE, 6 CANCEL, \
                  7 OPERATOR";
    vec![
        d.id16("task_id", "The task: tasks.task_id"),
        d.int("epoch", "The attempt's number and fencing token, from 1"),
        d.id16("attempt_id", "UUID of the attempt"),
        d.code("state", "3 SUCCEEDED, 4 FAILED, 5 UNKNOWN, 6 UNSTARTED, 7 CANCELED"),
        d.name("principal", 128, "Who claimed it"),
        d.id16("session_id", "UUID of the worker session that held it"),
        d.name("node_id", 64, "The node that claimed it"),
        d.text("worker_name", 128, "The label the worker gave itself"),
        d.moment("leased_at", "When it was claimed"),
        d.moment("lease_until", "Until when its lease last ran"),
        null(d.moment("started_at", "When it was authorized to start; null if never")),
        d.moment("ended_at", "When it ended"),
        null(d.json("result", "Reported with SUCCEEDED: JSON text, byte for byte")),
        null(d.text("error_code", 128, "Reported error, its code")),
        null(d.long_text("error_message", "Reported error, text for people")),
        null(d.json("error_details", "Reported error, details as JSON text")),
        d.code("decision", "What was decided at its end: orbit.v1.Decision"),
        d.code("cause", causes),
        null(d.int("delay_ms", "The backoff that followed it (milliseconds); null without a retry")),
    ]
}

fn leases(d: Dialect) -> Vec<ColumnDef> {
    vec![
        d.id16("task_id", "The task: tasks.task_id"),
        d.int("queue", "The queue whose permit it holds: queues.id"),
        d.id16("attempt_id", "UUID of the attempt"),
        d.int("epoch", "The attempt's number and fencing token, from 1"),
        d.name("principal", 128, "Who claimed it"),
        d.id16("session_id", "UUID of the worker session that holds it"),
        d.name("node_id", 64, "The node that claimed it"),
        d.text("worker_name", 128, "The label the worker gave itself"),
        d.moment("leased_at", "When it was claimed"),
        d.moment("lease_until", "The lease is valid before then, not at it"),
        d.moment("cap_at", "lease_until never passes it"),
        null(d.moment("started_at", "When it was authorized to start; null while LEASED")),
    ]
}

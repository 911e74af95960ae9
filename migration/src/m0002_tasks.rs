//! Tasks with their frozen policy, their payloads, and the index of what may be claimed.

use sea_orm_migration::prelude::*;

use crate::dialect::{Dialect, create_index, create_table, null, primary_key, refuse_down, unique_key, zero};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        let tasks = [as_submitted(d), as_of_now(d)].concat();
        let keys = [
            primary_key(&["task_id"]),
            unique_key("tasks_idempotency_key", &["principal", "idempotency_key"]),
        ];
        create_table(manager, "tasks", "Tasks, kept until retention removes them", tasks, keys).await?;

        let payloads = vec![
            d.id16("task_id", "The task: tasks.task_id"),
            d.json("payload", "JSON text as submitted, byte for byte"),
        ];
        let key = primary_key(&["task_id"]);
        let comment = "Payloads, apart from tasks so that those are quick to load";
        create_table(manager, "payloads", comment, payloads, [key]).await?;

        let ready = vec![
            d.int("route", "The route: routes.id"),
            d.moment("available_at", "Earliest next claim"),
            d.id16("task_id", "The task: tasks.task_id"),
            d.moment("expires_at", "The earlier of deadline_at and start_before: no claim from then on"),
        ];
        let key = primary_key(&["route", "available_at", "task_id"]);
        create_table(manager, "ready", "The WAITING tasks in the order of claiming", ready, [key]).await?;
        create_index(manager, "ready", "ready_expires_at", &["expires_at"]).await
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

/// Columns of `tasks` that acceptance fills.
fn as_submitted(d: Dialect) -> Vec<ColumnDef> {
    vec![
        d.id16("task_id", "UUIDv7 of the task, the same over all attempts"),
        d.int("route", "Queue, handler and version: routes.id"),
        d.name("principal", 128, "Who submitted it; the scope of the idempotency key"),
        d.name("idempotency_key", 255, "The producer's name for the operation, compared byte for byte"),
        d.id32("digest", "SHA-256 of the submitted content without the key"),
        d.code("digest_version", "How the digest was computed"),
        d.name("payload_version", 128, "The version of the payload's schema"),
        d.int("payload_bytes", "Length of the payload (bytes)"),
        d.int("max_attempts", "Frozen budget: how many attempts may be claimed (1 to 1000)"),
        zero(d.int("granted_attempts", "Attempts added by operators")),
        d.int("initial_delay_ms", "Frozen backoff after the first attempt (milliseconds)"),
        d.int("max_delay_ms", "Frozen upper limit of the backoff (milliseconds)"),
        d.int("attempt_timeout_ms", "Frozen limit of one attempt from its granted start (milliseconds)"),
        d.code("recovery_safety", "Frozen: 1 RECONCILE_ONLY, 2 IDEMPOTENT"),
        d.bigint("task_timeout_ms", "Frozen total time from acceptance to the deadline (milliseconds)"),
        null(d.moment("not_before", "Earliest first claim as submitted")),
        null(d.moment("start_before", "No attempt is claimed or started from then on")),
        d.moment("deadline_at", "Nothing starts from then on"),
    ]
}

/// Columns of `tasks` that change with its life.
fn as_of_now(d: Dialect) -> Vec<ColumnDef> {
    let states = "1 WAITING, 2 LEASED, 3 RUNNING, 4 SUCCEEDED, 5 FAILED, 6 CANCELED, 7 NEEDS_REVIEW";
    vec![
        d.code("state", states),
        d.int("revision", "Raised by one with every change of the task"),
        d.int("attempt_count", "Attempts claimed so far, which is the last epoch"),
        null(d.moment("available_at", "Earliest next claim, only while WAITING")),
        null(d.code("last_decision", "The decision that led to the state: orbit.v1.Decision")),
        null(d.moment("cancel_requested_at", "When a cancel was recorded")),
        null(d.name("cancel_requested_by", 128, "The principal that asked for the cancel")),
        null(d.text("cancel_reason", 1024, "Its reason as given")),
        null(d.moment("completed_at", "When the task became SUCCEEDED, FAILED or CANCELED")),
        null(d.json("result", "An operator's result as JSON text; a worker's stays with the attempt")),
        null(d.text("error_code", 128, "An operator's error, its code; a worker's stays with the attempt")),
        null(d.long_text("error_message", "An operator's error, text for people")),
        null(d.json("error_details", "An operator's error, details as JSON text")),
        d.moment("created_at", "When the task was accepted"),
        d.moment("updated_at", "When the task last changed"),
    ]
}

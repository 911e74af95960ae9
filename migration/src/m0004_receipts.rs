//! What was answered and what happened: receipts, evidence, events; and the rows that nodes keep for themselves.

use sea_orm_migration::prelude::*;

use crate::dialect::{Dialect, create_table, null, primary_key, refuse_down, zero};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        let key = primary_key(&["task_id", "epoch", "message_id"]);
        let comment = "Stored answers to start and finish messages, as of their commit";
        create_table(manager, "receipts", comment, receipts(d), [key]).await?;

        let key = primary_key(&["task_id", "epoch", "ordinal"]);
        let comment = "Reports without authority: kept, and changing nothing about the task";
        create_table(manager, "evidence", comment, evidence(d), [key]).await?;

        let key = primary_key(&["task_id", "revision", "ordinal"]);
        create_table(manager, "events", "What happened to each task", events(d), [key]).await?;

        let requests = vec![
            d.name("principal", 128, "Who asked; the scope of the request id"),
            d.id16("request_id", "UUID that the caller gave the request"),
            d.code("kind", "Which command it was"),
            d.id32("digest", "SHA-256 of the request's content"),
            d.json("answer", "The answer as JSON text"),
            d.moment("created_at", "When it was answered"),
        ];
        let key = primary_key(&["principal", "request_id"]);
        create_table(manager, "requests", "Stored answers to administrative commands", requests, [key])
            .await?;

        let lane_commits = vec![
            d.name("lane", 96, "Node and lane"),
            d.bigint("seq", "Number of the lane's last committed batch"),
            d.moment("updated_at", "When that batch ran"),
        ];
        let key = primary_key(&["lane"]);
        let comment = "Tells a lane whether a COMMIT whose answer was lost had happened";
        create_table(manager, "lane_commits", comment, lane_commits, [key]).await?;

        let cluster = vec![
            d.code("id", "Always 1"),
            d.moment("last_seen", "When a node last reached the database; 0 before the first"),
        ];
        let key = primary_key(&["id"]);
        create_table(manager, "cluster", "One row, for all nodes", cluster, [key]).await?;
        let the_row = "INSERT INTO cluster (id, last_seen) SELECT 1, 0 \
                       FROM (SELECT COUNT(*) AS present FROM cluster) AS c WHERE c.present = 0";
        manager.get_connection().execute_unprepared(the_row).await?;
        Ok(())
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

fn receipts(d: Dialect) -> Vec<ColumnDef> {
    vec![
        d.id16("task_id", "The task: tasks.task_id"),
        d.int("epoch", "The attempt's number"),
        d.id16("message_id", "UUID of the message, unique within the attempt"),
        d.code("kind", "1 START, 2 FINISH"),
        d.id32("digest", "SHA-256 of the message's content"),
        d.code("digest_version", "How the digest was computed"),
        d.code("disposition", "1 APPLIED, 2 EVIDENCE"),
        d.code("task_state", "The task's state: as in tasks.state"),
        null(d.code("decision", "What was decided: orbit.v1.Decision; null if nothing was")),
        d.flag("effect_uncertain", "1: the task was in doubt"),
        null(d.moment("next_available_at", "With a retry: earliest next claim")),
        d.moment("committed_at", "Database time of the transaction"),
    ]
}

fn evidence(d: Dialect) -> Vec<ColumnDef> {
    vec![
        d.id16("task_id", "The task: tasks.task_id"),
        d.int("epoch", "The attempt's number"),
        d.code("ordinal", "1 to 16 within the attempt"),
        d.id16("attempt_id", "UUID of the attempt"),
        d.id16("message_id", "UUID of the message"),
        d.code("outcome", "Claimed: 1 SUCCEEDED, 2 FAILED, 3 UNKNOWN, 4 CANCELED"),
        null(d.json("result", "Claimed result as JSON text")),
        null(d.text("error_code", 128, "Claimed error, its code")),
        null(d.long_text("error_message", "Claimed error, text for people")),
        null(d.json("error_details", "Claimed error, details as JSON text")),
        d.moment("received_at", "When it arrived"),
        d.id16("session_id", "UUID of the worker session that sent it"),
        d.name("node_id", 64, "The node that received it"),
    ]
}

fn events(d: Dialect) -> Vec<ColumnDef> {
    let kinds = "1 task.accepted, 2 task.leased, 3 task.started, 4 task.requeued, 5 task.succeeded, 6 task.failed, \
                 7 task.canceled, 8 task.review_required, 9 task.evidence_recorded, 10 task.cancel_requested, \
                 11 task.resolved";
    vec![
        d.id16("task_id", "The task: tasks.task_id"),
        d.int("revision", "The task's revision after the change"),
        zero(d.int("ordinal", "Tells events of one revision apart")),
        d.code("kind", kinds),
        d.moment("at", "Database time of the transaction"),
        d.code("state", "The task's state after it: as in tasks.state"),
        null(d.int("epoch", "The attempt's number, if it concerns one")),
        null(d.code("decision", "What was decided: orbit.v1.Decision")),
        null(d.code("cause", "What caused the decision: as in attempts.cause")),
        null(d.int("delay_ms", "With a retry: the backoff (milliseconds)")),
        null(d.moment("next_available_at", "With a retry: earliest next claim")),
        d.int("attempt_count", "Attempts claimed so far"),
        d.int("max_attempts", "The budget"),
        d.flag("effect_uncertain", "1: the task was in doubt after it"),
        d.name("principal", 128, "Who acted"),
        null(d.id16("session_id", "UUID of the worker session that acted")),
        d.name("node_id", 64, "The node that acted"),
        null(d.text("note", 1024, "A person's reason")),
        null(d.json("evidence_refs", "Where a person's evidence lies: a JSON array of texts")),
    ]
}

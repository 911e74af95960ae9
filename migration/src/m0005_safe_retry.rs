//! Safe retry: doubt becomes a fact of its own, and constraints hold what must never be.

use sea_orm_migration::prelude::*;

use crate::dialect::{Check, Dialect, add_checks, add_column, create_index, refuse_down, zero};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        let doubt = "1: an authorized execution ended unverified, so its effect may have happened";
        add_column(manager, "tasks", zero(d.flag("effect_uncertain", doubt))).await?;
        let retryable = "1: the worker reported this failure as safe to retry";
        add_column(manager, "attempts", zero(d.flag("retryable", retryable))).await?;
        let claimed = "1: the report claims a failure that is safe to retry";
        add_column(manager, "evidence", zero(d.flag("retryable", claimed))).await?;
        create_index(manager, "receipts", "receipts_applied", &["task_id", "epoch", "digest"]).await?;

        // What waits for a person does so because of a doubt: older rows, and the receipts that announced it,
        // say so from now on. Nothing else about them changes.
        for (table, state) in [("tasks", "state"), ("receipts", "task_state")] {
            let sql =
                format!("UPDATE {table} SET effect_uncertain = 1 WHERE {state} = 7 AND effect_uncertain = 0");
            manager.get_connection().execute_unprepared(&sql).await?;
        }

        add_checks(manager, "queues", QUEUES).await?;
        add_checks(manager, "tasks", TASKS).await?;
        add_checks(manager, "attempts", ATTEMPTS).await?;
        add_checks(manager, "leases", LEASES).await?;
        add_checks(manager, "receipts", RECEIPTS).await?;
        add_checks(manager, "evidence", EVIDENCE).await
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

// A CHECK passes when its condition is NULL: nullable columns are only ever asked IS NULL, or compared where
// NULL must pass.

const QUEUES: &[Check] =
    &[("ck_queues_max_running", "max_running >= 0"), ("ck_queues_revision", "revision >= 1")];

const TASKS: &[Check] = &[
    ("ck_tasks_state", "state BETWEEN 1 AND 7"),
    ("ck_tasks_revision", "revision >= 1"),
    ("ck_tasks_max_attempts", "max_attempts BETWEEN 1 AND 1000"),
    ("ck_tasks_granted_attempts", "granted_attempts >= 0"),
    ("ck_tasks_attempt_count", "attempt_count BETWEEN 0 AND max_attempts + granted_attempts"),
    ("ck_tasks_claimed", "state NOT IN (2, 3) OR attempt_count >= 1"),
    ("ck_tasks_terminal_without_doubt", "state NOT IN (4, 5, 6) OR effect_uncertain = 0"),
    ("ck_tasks_review_in_doubt", "state <> 7 OR effect_uncertain = 1"),
    // No automatic attempt follows a doubt of a task that may only be reconciled.
    ("ck_tasks_reconcile_only", "effect_uncertain = 0 OR recovery_safety = 2 OR state = 7"),
    ("ck_tasks_completed_at", "(completed_at IS NOT NULL) = (state IN (4, 5, 6))"),
    ("ck_tasks_available_at", "(available_at IS NOT NULL) = (state = 1)"),
    ("ck_tasks_result", "result IS NULL OR state = 4"),
    (
        "ck_tasks_error",
        "state = 5 OR (error_code IS NULL AND error_message IS NULL AND error_details IS NULL)",
    ),
    ("ck_tasks_start_before", "start_before IS NULL OR start_before <= deadline_at"),
    ("ck_tasks_deadline_at", "deadline_at > created_at"),
    ("ck_tasks_delays", "initial_delay_ms >= 1 AND initial_delay_ms <= max_delay_ms"),
    ("ck_tasks_timeouts", "attempt_timeout_ms >= 1 AND task_timeout_ms >= 1"),
    ("ck_tasks_recovery_safety", "recovery_safety IN (1, 2)"),
    ("ck_tasks_cancel", "(cancel_requested_at IS NULL) = (cancel_requested_by IS NULL)"),
    ("ck_tasks_cancel_reason", "cancel_reason IS NULL OR cancel_requested_at IS NOT NULL"),
    // A cancel ends at once what is not running.
    ("ck_tasks_cancel_ends_wait", "state NOT IN (1, 2) OR cancel_requested_at IS NULL"),
];

const ATTEMPTS: &[Check] = &[
    ("ck_attempts_state", "state BETWEEN 3 AND 7"),
    ("ck_attempts_epoch", "epoch >= 1"),
    ("ck_attempts_retryable", "retryable = 0 OR state = 4"),
    ("ck_attempts_result", "result IS NULL OR state = 3"),
    (
        "ck_attempts_error",
        "state IN (4, 5, 7) OR (error_code IS NULL AND error_message IS NULL AND error_details IS NULL)",
    ),
    ("ck_attempts_failed_with_error", "state <> 4 OR error_code IS NOT NULL"),
    ("ck_attempts_started_at", "state = 7 OR (started_at IS NULL) = (state = 6)"),
    ("ck_attempts_ended_at", "ended_at >= leased_at"),
    ("ck_attempts_delay_ms", "delay_ms IS NULL OR delay_ms >= 1"),
];

const LEASES: &[Check] = &[("ck_leases_epoch", "epoch >= 1"), ("ck_leases_cap_at", "lease_until <= cap_at")];

const RECEIPTS: &[Check] = &[
    ("ck_receipts_kind", "kind IN (1, 2)"),
    ("ck_receipts_disposition", "disposition IN (1, 2)"),
    ("ck_receipts_start_applied", "kind <> 1 OR disposition = 1"),
    ("ck_receipts_next_available_at", "next_available_at IS NULL OR task_state = 1"),
    ("ck_receipts_terminal_without_doubt", "task_state NOT IN (4, 5, 6) OR effect_uncertain = 0"),
    ("ck_receipts_review_in_doubt", "task_state <> 7 OR effect_uncertain = 1"),
];

const EVIDENCE: &[Check] = &[
    ("ck_evidence_ordinal", "ordinal BETWEEN 1 AND 16"),
    ("ck_evidence_retryable", "retryable = 0 OR outcome = 2"),
    ("ck_evidence_result", "result IS NULL OR outcome = 1"),
];

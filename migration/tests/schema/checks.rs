//! Every CHECK refuses its impossible row.

use std::collections::BTreeSet;

use migration::migrate;

use crate::databases::TestDatabase;
use crate::rows::{
    CANCELED, FAILED, LEASED, NEEDS_REVIEW, RUNNING, Row, SUCCEEDED, WAITING, attempt, evidence, lease,
    queue, receipt, task_now,
};

#[tokio::test]
async fn every_valid_row_is_accepted() {
    let mut valid =
        vec![queue(), lease(), lease().with("started_at", "NULL"), lease().with("cap_at", "7001")];
    valid.extend((WAITING..=NEEDS_REVIEW).map(task_now));
    // An idempotent task keeps its doubt through retries.
    for state in [WAITING, LEASED, RUNNING] {
        valid.push(task_now(state).with("recovery_safety", "2").with("effect_uncertain", "1"));
    }
    let canceled =
        |row: Row| row.with("cancel_requested_at", "1800").with("cancel_requested_by", "'operator'");
    for state in [RUNNING, SUCCEEDED, FAILED, CANCELED, NEEDS_REVIEW] {
        valid.push(canceled(task_now(state)));
        valid.push(canceled(task_now(state)).with("cancel_reason", "'no longer wanted'"));
    }
    valid.extend([
        task_now(SUCCEEDED).with("result", "'{}'"),
        task_now(FAILED).with("error_code", "NULL"),
        task_now(FAILED).with("error_message", "'declined'").with("error_details", "'{}'"),
        task_now(CANCELED).with("attempt_count", "0"),
        task_now(FAILED).with("attempt_count", "5").with("granted_attempts", "2"),
        task_now(WAITING).with("max_attempts", "1000"),
        task_now(WAITING).with("max_attempts", "1"),
        task_now(WAITING).with("start_before", "NULL"),
        task_now(WAITING).with("start_before", "9000"),
        task_now(WAITING).with("not_before", "1"),
        task_now(WAITING).with("deadline_at", "1001").with("start_before", "NULL"),
        task_now(WAITING).with("initial_delay_ms", "60000"),
    ]);
    valid.extend((3..=7).map(attempt));
    valid.extend([
        attempt(3).with("result", "'null'"),
        attempt(4).with("retryable", "1").with("delay_ms", "1"),
        attempt(5).with("error_code", "'LOST'"),
        attempt(7).with("error_code", "'STOPPED'"),
        attempt(7).with("started_at", "NULL"),
        attempt(6).with("ended_at", "1500"),
    ]);
    valid.extend([WAITING, LEASED, RUNNING, SUCCEEDED, FAILED, CANCELED].map(receipt));
    valid.extend([
        receipt(NEEDS_REVIEW).with("effect_uncertain", "1"),
        receipt(WAITING).with("effect_uncertain", "1"),
        receipt(RUNNING).with("kind", "1"),
        receipt(SUCCEEDED).with("disposition", "2"),
    ]);
    valid.extend((1..=4).map(evidence));
    valid.extend([
        evidence(1).with("result", "'null'"),
        evidence(2).with("retryable", "1"),
        evidence(3).with("ordinal", "16"),
    ]);

    for database in TestDatabase::each().await {
        migrate(&database.db).await.unwrap();
        for row in &valid {
            database.run(&row.insert()).await;
            database.run(&format!("DELETE FROM {}", row.table)).await;
        }
        database.remove().await;
    }
}

/// The constraint, and a row that breaks it and no other.
fn impossible_rows() -> Vec<(&'static str, Row)> {
    [impossible_tasks(), impossible_policies(), impossible_attempts(), impossible_messages()].concat()
}

fn impossible_tasks() -> Vec<(&'static str, Row)> {
    let waiting = || task_now(WAITING);
    vec![
        ("ck_tasks_state", task_now(0)),
        ("ck_tasks_state", task_now(8)),
        ("ck_tasks_revision", waiting().with("revision", "0")),
        ("ck_tasks_max_attempts", waiting().with("max_attempts", "0")),
        ("ck_tasks_max_attempts", waiting().with("max_attempts", "1001")),
        ("ck_tasks_granted_attempts", waiting().with("granted_attempts", "-1")),
        ("ck_tasks_attempt_count", waiting().with("attempt_count", "4")),
        ("ck_tasks_attempt_count", waiting().with("attempt_count", "-1")),
        ("ck_tasks_attempt_count", waiting().with("attempt_count", "6").with("granted_attempts", "2")),
        ("ck_tasks_claimed", task_now(LEASED).with("attempt_count", "0")),
        ("ck_tasks_claimed", task_now(RUNNING).with("attempt_count", "0")),
        ("ck_tasks_terminal_without_doubt", in_doubt(SUCCEEDED)),
        ("ck_tasks_terminal_without_doubt", in_doubt(FAILED)),
        ("ck_tasks_terminal_without_doubt", in_doubt(CANCELED)),
        ("ck_tasks_review_in_doubt", task_now(NEEDS_REVIEW).with("effect_uncertain", "0")),
        ("ck_tasks_reconcile_only", in_doubt(WAITING).with("recovery_safety", "1")),
        ("ck_tasks_reconcile_only", in_doubt(LEASED).with("recovery_safety", "1")),
        ("ck_tasks_reconcile_only", in_doubt(RUNNING).with("recovery_safety", "1")),
        ("ck_tasks_completed_at", waiting().with("completed_at", "2000")),
        ("ck_tasks_completed_at", task_now(NEEDS_REVIEW).with("completed_at", "2000")),
        ("ck_tasks_completed_at", task_now(SUCCEEDED).with("completed_at", "NULL")),
        ("ck_tasks_completed_at", task_now(FAILED).with("completed_at", "NULL")),
        ("ck_tasks_completed_at", task_now(CANCELED).with("completed_at", "NULL")),
        ("ck_tasks_available_at", waiting().with("available_at", "NULL")),
        ("ck_tasks_available_at", task_now(LEASED).with("available_at", "3000")),
        ("ck_tasks_available_at", task_now(NEEDS_REVIEW).with("available_at", "3000")),
        ("ck_tasks_result", waiting().with("result", "'{}'")),
        ("ck_tasks_result", task_now(NEEDS_REVIEW).with("result", "'{}'")),
        ("ck_tasks_result", task_now(FAILED).with("result", "'{}'")),
        ("ck_tasks_error", waiting().with("error_code", "'X'")),
        ("ck_tasks_error", task_now(SUCCEEDED).with("error_code", "'X'")),
        ("ck_tasks_error", task_now(CANCELED).with("error_message", "'x'")),
        ("ck_tasks_error", task_now(NEEDS_REVIEW).with("error_details", "'{}'")),
    ]
}

fn impossible_policies() -> Vec<(&'static str, Row)> {
    let waiting = || task_now(WAITING);
    let canceled =
        |state| task_now(state).with("cancel_requested_at", "1800").with("cancel_requested_by", "'x'");
    vec![
        ("ck_tasks_start_before", waiting().with("start_before", "9001")),
        ("ck_tasks_deadline_at", waiting().with("deadline_at", "1000").with("start_before", "NULL")),
        ("ck_tasks_delays", waiting().with("initial_delay_ms", "0")),
        ("ck_tasks_delays", waiting().with("initial_delay_ms", "60001")),
        ("ck_tasks_timeouts", waiting().with("attempt_timeout_ms", "0")),
        ("ck_tasks_timeouts", waiting().with("task_timeout_ms", "0")),
        ("ck_tasks_recovery_safety", waiting().with("recovery_safety", "0")),
        ("ck_tasks_recovery_safety", waiting().with("recovery_safety", "3")),
        ("ck_tasks_cancel", canceled(RUNNING).with("cancel_requested_by", "NULL")),
        ("ck_tasks_cancel", canceled(RUNNING).with("cancel_requested_at", "NULL")),
        ("ck_tasks_cancel_reason", task_now(RUNNING).with("cancel_reason", "'why'")),
        ("ck_tasks_cancel_ends_wait", canceled(WAITING)),
        ("ck_tasks_cancel_ends_wait", canceled(LEASED)),
    ]
}

fn in_doubt(state: u8) -> Row {
    task_now(state).with("effect_uncertain", "1").with("recovery_safety", "2")
}

fn impossible_attempts() -> Vec<(&'static str, Row)> {
    vec![
        ("ck_queues_max_running", queue().with("max_running", "-1")),
        ("ck_queues_revision", queue().with("revision", "0")),
        ("ck_attempts_state", attempt(2)),
        ("ck_attempts_state", attempt(8)),
        ("ck_attempts_epoch", attempt(3).with("epoch", "0")),
        ("ck_attempts_retryable", attempt(3).with("retryable", "1")),
        ("ck_attempts_retryable", attempt(5).with("retryable", "1")),
        ("ck_attempts_retryable", attempt(6).with("retryable", "1")),
        ("ck_attempts_retryable", attempt(7).with("retryable", "1")),
        ("ck_attempts_result", attempt(4).with("result", "'{}'")),
        ("ck_attempts_result", attempt(5).with("result", "'{}'")),
        ("ck_attempts_error", attempt(3).with("error_code", "'X'")),
        ("ck_attempts_error", attempt(6).with("error_code", "'X'")),
        ("ck_attempts_error", attempt(3).with("error_message", "'x'")),
        ("ck_attempts_error", attempt(6).with("error_details", "'{}'")),
        ("ck_attempts_failed_with_error", attempt(4).with("error_code", "NULL")),
        ("ck_attempts_started_at", attempt(3).with("started_at", "NULL")),
        ("ck_attempts_started_at", attempt(4).with("started_at", "NULL")),
        ("ck_attempts_started_at", attempt(5).with("started_at", "NULL")),
        ("ck_attempts_started_at", attempt(6).with("started_at", "1600")),
        ("ck_attempts_ended_at", attempt(3).with("ended_at", "1499")),
        ("ck_attempts_delay_ms", attempt(4).with("delay_ms", "0")),
        ("ck_leases_epoch", lease().with("epoch", "0")),
        ("ck_leases_cap_at", lease().with("lease_until", "7001")),
    ]
}

fn impossible_messages() -> Vec<(&'static str, Row)> {
    vec![
        ("ck_receipts_kind", receipt(SUCCEEDED).with("kind", "0")),
        ("ck_receipts_kind", receipt(SUCCEEDED).with("kind", "3")),
        ("ck_receipts_disposition", receipt(SUCCEEDED).with("disposition", "0")),
        ("ck_receipts_disposition", receipt(SUCCEEDED).with("disposition", "3")),
        ("ck_receipts_start_applied", receipt(RUNNING).with("kind", "1").with("disposition", "2")),
        ("ck_receipts_next_available_at", receipt(SUCCEEDED).with("next_available_at", "3000")),
        ("ck_receipts_next_available_at", receipt(RUNNING).with("next_available_at", "3000")),
        ("ck_receipts_terminal_without_doubt", receipt(SUCCEEDED).with("effect_uncertain", "1")),
        ("ck_receipts_terminal_without_doubt", receipt(FAILED).with("effect_uncertain", "1")),
        ("ck_receipts_terminal_without_doubt", receipt(CANCELED).with("effect_uncertain", "1")),
        ("ck_receipts_review_in_doubt", receipt(NEEDS_REVIEW)),
        ("ck_evidence_ordinal", evidence(1).with("ordinal", "0")),
        ("ck_evidence_ordinal", evidence(1).with("ordinal", "17")),
        ("ck_evidence_retryable", evidence(1).with("retryable", "1")),
        ("ck_evidence_retryable", evidence(3).with("retryable", "1")),
        ("ck_evidence_retryable", evidence(4).with("retryable", "1")),
        ("ck_evidence_result", evidence(2).with("result", "'{}'")),
        ("ck_evidence_result", evidence(3).with("result", "'{}'")),
    ]
}

#[tokio::test]
async fn every_check_refuses_its_impossible_row() {
    for database in TestDatabase::each().await {
        migrate(&database.db).await.unwrap();
        for (check, row) in impossible_rows() {
            let sql = row.insert();
            let refusal = database.try_run(&sql).await.expect_err(&sql).to_string();
            assert!(refusal.contains(check), "{sql}\nshould break {check}, but: {refusal}");
        }
        let tried: BTreeSet<String> =
            impossible_rows().iter().map(|(check, _)| (*check).to_owned()).collect();
        assert_eq!(tried, checks(&database).await, "a constraint without an impossible row");
        database.remove().await;
    }
}

/// The names of all constraints that the database knows.
async fn checks(database: &TestDatabase) -> BTreeSet<String> {
    if database.is_mysql() {
        let sql = "SELECT constraint_name FROM information_schema.table_constraints \
                   WHERE table_schema = DATABASE() AND constraint_type = 'CHECK'";
        return database.strings(sql).await.into_iter().collect();
    }
    let definitions = database.strings("SELECT sql FROM sqlite_master WHERE type = 'table'").await.join(" ");
    let words = definitions.split_whitespace();
    words.filter(|word| word.starts_with("ck_")).map(str::to_owned).collect()
}

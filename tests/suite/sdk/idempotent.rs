//! The handler of docs/workers.md that is truly IDEMPOTENT, on a real database: executed twice at once, it books once and
//! reports the same.

use std::time::Duration;

use orbit::{
    proto::{RecoverySafety, TaskState},
    sdk::{Context, Failure, Worker},
};
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, DatabaseConnection, DbBackend, SqlErr, Statement,
    TransactionTrait as _, Value,
};

use super::{LIMIT, attempts, drained, end, start};
use crate::support::{
    eventually, on_every_database,
    rig::{HANDLER, QUEUE},
    server::Server,
};

/// The key first, then the effect, in one transaction; a repeated key returns the original receipt.
async fn charge(bank: &DatabaseConnection, context: &Context, cents: u32) -> Result<String, Failure> {
    let run = |sql: &str, values: Vec<Value>| {
        Statement::from_sql_and_values(bank.get_database_backend(), sql, values)
    };
    let receipt = format!("receipt-of-attempt-{}", context.attempt_number());
    let tx = bank.begin().await?;
    let key = vec![context.task_id().into(), receipt.clone().into()];
    match tx.execute_raw(run("INSERT INTO charges (task_id, receipt) VALUES (?, ?)", key)).await {
        Err(error) if matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))) => {
            tx.rollback().await?;
            let found = run("SELECT receipt FROM charges WHERE task_id = ?", vec![context.task_id().into()]);
            let row = bank.query_one_raw(found).await?.ok_or("the key is gone")?;
            return Ok(row.try_get("", "receipt")?);
        }
        other => other?,
    };
    let debit = "UPDATE accounts SET cents = cents - ? WHERE cents >= ?";
    if tx.execute_raw(run(debit, vec![cents.into(), cents.into()])).await?.rows_affected() == 0 {
        tx.rollback().await?;
        return Err(Failure::permanent("NO_FUNDS"));
    }
    tx.commit().await?;
    Ok(receipt)
}

on_every_database! {
    async fn an_idempotent_handler_executed_twice_at_once_books_once(database: TestDatabase) {
        database.sql("CREATE TABLE charges (task_id VARCHAR(36) NOT NULL PRIMARY KEY, receipt VARCHAR(64) NOT NULL)").await;
        database.sql("CREATE TABLE accounts (cents BIGINT NOT NULL)").await;
        database.sql("INSERT INTO accounts (cents) VALUES (1000)").await;
        let server = Server::start_with(&database, &["--lease-ms", "3000", "--sweep-interval-ms", "50"]).await;
        let server = server.with_queue().await;
        let client = server.client();
        let mut options = ConnectOptions::new(&database.url);
        options.max_connections(4).sqlx_logging(false);
        let bank = sea_orm::Database::connect(options).await.expect("the bank");
        if !database.is_mysql() {
            assert_eq!(bank.get_database_backend(), DbBackend::Sqlite);
            bank.execute_unprepared("PRAGMA busy_timeout = 5000").await.expect("set");
        }
        let the_bank = bank.clone();
        let handler = move |context: Context, cents: u32| {
            let bank = the_bank.clone();
            async move {
                let receipt = charge(&bank, &context, cents).await?;
                if context.attempt_number() == 1 {
                    // It has booked, and everybody gives it up before it can say so.
                    context.lease_lost().await;
                }
                Ok::<_, Failure>(receipt)
            }
        };
        let worker = Worker::builder(&client).queue(QUEUE).handler(HANDLER.0, HANDLER.1, handler);
        let worker = start(worker);
        let submit = client.submit(QUEUE, HANDLER.0, HANDLER.1).payload(&300);
        let submit = submit.recovery_safety(RecoverySafety::Idempotent).max_attempts(10);
        let submitted = submit.initial_delay(Duration::from_millis(20)).send().await.expect("accepted");
        let id = submitted.task.task_id;
        eventually("it has booked", LIMIT, async || {
            (database.number("SELECT COUNT(*) FROM charges").await == 1).then_some(())
        })
        .await;
        database.end_leases().await;

        let task = client.wait(&id, LIMIT).await.expect("settled");
        assert_eq!((task.state(), task.effect_uncertain), (TaskState::Succeeded, false), "{task:?}");
        assert!(task.attempt_count >= 2);
        assert_eq!(task.result, r#""receipt-of-attempt-1""#);
        assert_eq!(database.number("SELECT cents FROM accounts").await, 700);
        // The late attempt says the same, as evidence.
        let report = drained(worker).await;
        assert_eq!((report.confirmed, report.evidence), (report.started, 1));
        assert_eq!(attempts(&client, &id).await[0].evidence[0].result, task.result);
        bank.close().await.expect("closed");
        end(server, database).await;
    }
}

//! Writing down what a transaction changed, in multi-row statements.

use sea_orm::{ConnectionTrait as _, DatabaseTransaction, Statement, Value};

use crate::{
    domain::{
        ids::TaskId,
        task::{OperatorVerdict, StateName, Task},
        time::Moment,
    },
    metric,
};

use super::{
    columns::{
        ATTEMPT_COLUMNS, EVENT_COLUMNS, EVIDENCE_COLUMNS, LEASE_COLUMNS, LEASE_SETS, QUEUE_COLUMNS,
        RECEIPT_COLUMNS, Row, TASK_COLUMNS, TASK_SETS, attempt_row, canceled_attempt, event_row,
        evidence_row, lease_change_row, lease_of, lease_row, queue_row, ready_row, receipt_row,
        task_change_row, task_row,
    },
    dialect::{Dialect, Kind},
    error::{Fault, Inconsistency},
    rows::error_values,
    working_set::{Entry, WorkingSet},
};

/// Rows to write, by table.
#[derive(Default)]
struct Rows {
    new_tasks: Vec<Row>,
    payloads: Vec<Row>,
    changed_tasks: Vec<Row>,
    rare: Vec<Statement>,
    attempts: Vec<Row>,
    ended_leases: Vec<Row>,
    changed_leases: Vec<Row>,
    new_leases: Vec<Row>,
    old_ready: Vec<Row>,
    new_ready: Vec<Row>,
    old_reviews: Vec<Row>,
    new_reviews: Vec<Row>,
    old_cancels: Vec<Row>,
    new_cancels: Vec<Row>,
}

pub(super) struct Saver<'a> {
    pub(super) tx: &'a DatabaseTransaction,
    pub(super) dialect: Dialect,
}

impl Saver<'_> {
    /// Writes everything, or fails; the caller rolls back.
    pub(super) async fn save(&self, ws: &WorkingSet) -> Result<(), Fault> {
        self.queues(ws).await?;
        let mut rows = Rows::default();
        let mut entries: Vec<(&TaskId, &Entry)> = ws.tasks.iter().collect();
        // New keys in one order for everybody, so that two transactions never wait for each other's.
        entries.sort_by(|(a_id, a), (b_id, b)| key_of(a).cmp(&key_of(b)).then(a_id.cmp(b_id)));
        for (_, entry) in entries {
            self.diff(entry, &mut rows);
        }
        rows.attempts.extend(ws.ended.iter().map(|(id, ended)| attempt_row(*id, ended)));
        self.write(rows).await?;
        self.insert("receipts", RECEIPT_COLUMNS, ws.receipts.iter().map(receipt_row).collect()).await?;
        let evidence = ws.evidence.iter().map(|(e, session)| evidence_row(e, *session, &ws.node_id));
        self.insert("evidence", EVIDENCE_COLUMNS, evidence.collect()).await?;
        self.insert("events", EVENT_COLUMNS, ws.events.iter().map(|(id, e)| event_row(*id, e)).collect())
            .await
    }

    async fn write(&self, rows: Rows) -> Result<(), Fault> {
        let id = [("task_id", Kind::Id)];
        self.insert("tasks", TASK_COLUMNS, rows.new_tasks).await?;
        self.insert("payloads", &["task_id", "payload"], rows.payloads).await?;
        let guard = [("task_id", Kind::Id), ("revision", Kind::Int)];
        self.update("tasks", &guard, &TASK_SETS, rows.changed_tasks).await?;
        for statement in rows.rare {
            self.expect("tasks", statement, 1).await?;
        }
        self.insert("attempts", ATTEMPT_COLUMNS, rows.attempts).await?;
        let epoch_guard = [("task_id", Kind::Id), ("epoch", Kind::Int)];
        self.delete("leases", &epoch_guard, rows.ended_leases).await?;
        self.update("leases", &epoch_guard, &LEASE_SETS, rows.changed_leases).await?;
        self.insert("leases", LEASE_COLUMNS, rows.new_leases).await?;
        let ready_key = [("route", Kind::Int), ("available_at", Kind::Int), ("task_id", Kind::Id)];
        self.delete("ready", &ready_key, rows.old_ready).await?;
        self.insert("ready", &["route", "available_at", "task_id", "expires_at"], rows.new_ready).await?;
        self.delete("reviews", &id, rows.old_reviews).await?;
        self.insert("reviews", &["task_id", "queue"], rows.new_reviews).await?;
        self.delete("cancels", &id, rows.old_cancels).await?;
        self.insert("cancels", &["task_id", "attempt_id"], rows.new_cancels).await
    }

    /// The rows of one task: its own if it changed, and those of the hot tables that its state brings and takes.
    fn diff(&self, entry: &Entry, rows: &mut Rows) {
        let (before, after) = (entry.loaded.as_ref(), &entry.task);
        match (&entry.accepted, before) {
            (Some((submission, digest)), _) => {
                rows.new_tasks.push(task_row(after, submission, *digest));
                rows.payloads.push(vec![after.id.0.into(), submission.payload.as_str().into()]);
            }
            (None, Some(before)) if before.revision != after.revision => {
                rows.changed_tasks.push(task_change_row(before, after));
                rows.rare.extend(self.rare_change(before, after));
            }
            (None, _) => {}
        }
        let (old, new) = (before.and_then(ready_row), ready_row(after));
        if old != new {
            rows.old_ready.extend(old.map(|(route, at, _)| vec![route.into(), at.into(), after.id.0.into()]));
            rows.new_ready.extend(new.map(|(route, at, expires)| {
                vec![route.into(), at.into(), after.id.0.into(), expires.into()]
            }));
        }
        match (before.and_then(lease_of), lease_of(after)) {
            (Some((old, _, epoch)), Some((new, _, new_epoch))) if epoch == new_epoch => {
                if old != new || before.map(|b| b.state.name()) != Some(after.state.name()) {
                    rows.changed_leases.push(lease_change_row(after));
                }
            }
            (old, new) => {
                rows.ended_leases.extend(old.map(|(_, _, epoch)| vec![after.id.0.into(), epoch.into()]));
                if new.is_some() {
                    rows.new_leases.extend(lease_row(after));
                }
            }
        }
        let in_review = |t: &Task| t.state.name() == StateName::NeedsReview;
        match (before.is_some_and(in_review), in_review(after)) {
            (false, true) => rows.new_reviews.push(vec![after.id.0.into(), after.route.queue.0.into()]),
            (true, false) => rows.old_reviews.push(vec![after.id.0.into()]),
            (false, false) | (true, true) => {}
        }
        match (before.and_then(canceled_attempt), canceled_attempt(after)) {
            (None, Some(attempt_id)) => rows.new_cancels.push(vec![after.id.0.into(), attempt_id.0.into()]),
            (Some(_), None) => rows.old_cancels.push(vec![after.id.0.into()]),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// Columns that only cancels and operators change.
    fn rare_change(&self, before: &Task, after: &Task) -> Option<Statement> {
        let rare = |t: &Task| {
            (t.cancel.clone(), t.verdict.clone(), t.granted_attempts, t.deadline_at, t.start_before)
        };
        if rare(before) == rare(after) {
            return None;
        }
        let text = |t: Option<&str>| Value::String(t.map(str::to_owned));
        let cancel = after.cancel.as_ref();
        let (result, error) = match &after.verdict {
            Some(OperatorVerdict::Result(result)) => (Some(result.as_str()), None),
            Some(OperatorVerdict::Error(error)) => (None, Some(error)),
            None => (None, None),
        };
        let mut values: Row = vec![
            cancel.map(|c| c.requested_at.micros()).into(),
            text(cancel.map(|c| &*c.requested_by)),
            text(cancel.map(|c| &*c.reason)),
            after.granted_attempts.into(),
            after.deadline_at.micros().into(),
            after.start_before.map(Moment::micros).into(),
            text(result),
        ];
        values.extend(error_values(error));
        values.push(after.id.0.into());
        // The row's own change has been written already: it has its new revision.
        values.push(after.revision.into());
        let sql = "UPDATE tasks SET cancel_requested_at = ?, cancel_requested_by = ?, cancel_reason = ?, \
                   granted_attempts = ?, deadline_at = ?, start_before = ?, result = ?, error_code = ?, \
                   error_message = ?, error_details = ? WHERE task_id = ? AND revision = ?";
        Some(self.dialect.statement(sql, values))
    }

    async fn queues(&self, ws: &WorkingSet) -> Result<(), Fault> {
        for entry in ws.queues.values() {
            let queue = &entry.queue;
            match &entry.loaded {
                None => self.insert("queues", QUEUE_COLUMNS, vec![queue_row(queue)]).await?,
                Some(loaded) if loaded != queue => {
                    let sql = "UPDATE queues SET paused = ?, max_running = ?, revision = ?, updated_at = ? \
                               WHERE id = ? AND revision = ?";
                    let values = vec![
                        queue.paused.into(),
                        queue.max_running.into(),
                        queue.revision.into(),
                        queue.updated_at.micros().into(),
                        queue.no.0.into(),
                        loaded.revision.into(),
                    ];
                    self.expect("queues", self.dialect.statement(sql, values), 1).await?;
                }
                Some(_) => {}
            }
        }
        let rows = ws.new_requests.iter().filter_map(|key| {
            let stored = ws.requests.get(key)?;
            Some(vec![
                (&*key.0).into(),
                key.1.0.into(),
                stored.answer.kind().into(),
                stored.digest.0.to_vec().into(),
                stored.answer.to_json().into(),
                ws.now.micros().into(),
                stored.answer.task_id().map(|id| id.0).into(),
            ])
        });
        let columns = &["principal", "request_id", "kind", "digest", "answer", "created_at", "task_id"];
        self.insert("requests", columns, rows.collect()).await
    }

    async fn insert(&self, table: &'static str, columns: &[&str], rows: Vec<Row>) -> Result<(), Fault> {
        metric::rows_written(table, rows.len());
        for statement in self.dialect.inserts(table, columns, rows) {
            self.tx.execute_raw(statement).await?;
        }
        Ok(())
    }

    async fn update(
        &self,
        table: &'static str,
        keys: &[(&str, Kind)],
        sets: &[(&str, Kind)],
        rows: Vec<Row>,
    ) -> Result<(), Fault> {
        for (statement, count) in self.dialect.updates(table, keys, sets, rows) {
            self.expect(table, statement, count).await?;
        }
        Ok(())
    }

    async fn delete(&self, table: &'static str, keys: &[(&str, Kind)], rows: Vec<Row>) -> Result<(), Fault> {
        for (statement, count) in self.dialect.deletes(table, keys, rows) {
            self.expect(table, statement, count).await?;
        }
        Ok(())
    }

    /// Every write finds exactly the rows that were locked, or something is very wrong.
    async fn expect(&self, table: &'static str, statement: Statement, count: usize) -> Result<(), Fault> {
        let found = self.tx.execute_raw(statement).await?.rows_affected();
        if found == count as u64 {
            metric::rows_written(table, count);
            return Ok(());
        }
        Err(Inconsistency::new(table, "(write)", count, format!("expected so many rows, found {found}"))
            .into())
    }
}

fn key_of(entry: &Entry) -> Option<(&str, &str)> {
    entry.accepted.as_ref().map(|(s, _)| (&*s.principal, s.idempotency_key.as_str()))
}

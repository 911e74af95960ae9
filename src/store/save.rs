//! Writing down what a transaction changed, in multi-row statements.

use sea_orm::{ConnectionTrait as _, DatabaseTransaction, Statement, Value};
use serde_json::json;

use crate::domain::{
    attempt::{AttemptEnd, EndedAttempt, Lease},
    decide::EvidenceRecord,
    digest::{DIGEST_VERSION, Digest},
    event::Event,
    ids::{AttemptId, AttemptRef, SessionId, TaskId},
    queue::Queue,
    receipt::Receipt,
    report::Report,
    submission::Submission,
    task::{OperatorVerdict, State, StateName, Task},
    time::Moment,
};

use super::{
    codes::{Code, attempt_state},
    dialect::{Dialect, Kind, ROWS_MAX},
    error::{Fault, Inconsistency},
    rows::error_values,
    working_set::{Entry, WorkingSet},
};

type Row = Vec<Value>;

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
            ])
        });
        let columns = &["principal", "request_id", "kind", "digest", "answer", "created_at"];
        self.insert("requests", columns, rows.collect()).await
    }

    async fn insert(&self, table: &'static str, columns: &[&str], rows: Vec<Row>) -> Result<(), Fault> {
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
        for rows in chunks(rows) {
            let count = rows.len();
            self.expect(table, self.dialect.update(table, keys, sets, rows), count).await?;
        }
        Ok(())
    }

    async fn delete(&self, table: &'static str, keys: &[(&str, Kind)], rows: Vec<Row>) -> Result<(), Fault> {
        for rows in chunks(rows) {
            let count = rows.len();
            self.expect(table, self.dialect.delete(table, keys, rows), count).await?;
        }
        Ok(())
    }

    /// Every write finds exactly the rows that were locked, or something is very wrong.
    async fn expect(&self, table: &'static str, statement: Statement, count: usize) -> Result<(), Fault> {
        let found = self.tx.execute_raw(statement).await?.rows_affected();
        if found == count as u64 {
            return Ok(());
        }
        Err(Inconsistency::new(table, "(write)", count, format!("expected so many rows, found {found}"))
            .into())
    }
}

fn chunks(rows: Vec<Row>) -> impl Iterator<Item = Vec<Row>> {
    let mut rows = rows.into_iter();
    std::iter::from_fn(move || {
        let chunk: Vec<Row> = rows.by_ref().take(ROWS_MAX).collect();
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn key_of(entry: &Entry) -> Option<(&str, &str)> {
    entry.accepted.as_ref().map(|(s, _)| (&*s.principal, s.idempotency_key.as_str()))
}

/// WAITING ⇔ one row: (route, available_at, expires_at).
fn ready_row(task: &Task) -> Option<(i32, i64, i64)> {
    match task.state {
        State::Waiting { available_at } => {
            Some((task.route.route.0, available_at.micros(), task.expires_at().micros()))
        }
        _ => None,
    }
}

/// RUNNING with a recorded cancel ⇔ one row in `cancels`.
pub(super) fn canceled_attempt(task: &Task) -> Option<AttemptId> {
    let running = matches!(task.state, State::Running { .. }) && task.cancel.is_some();
    task.lease().filter(|_| running).map(|l| l.attempt_id)
}

fn lease_of(task: &Task) -> Option<(&Lease, Option<Moment>, u32)> {
    let started_at = match task.state {
        State::Running { started_at, .. } => Some(started_at),
        _ => None,
    };
    task.lease().map(|lease| (lease, started_at, task.attempt_count))
}

const LEASE_COLUMNS: &[&str] = &[
    "task_id",
    "queue",
    "attempt_id",
    "epoch",
    "principal",
    "session_id",
    "node_id",
    "worker_name",
    "leased_at",
    "lease_until",
    "cap_at",
    "started_at",
];

fn lease_row(task: &Task) -> Option<Row> {
    let (lease, started_at, epoch) = lease_of(task)?;
    let holder = &lease.holder;
    Some(vec![
        task.id.0.into(),
        task.route.queue.0.into(),
        lease.attempt_id.0.into(),
        epoch.into(),
        (&*holder.principal).into(),
        holder.session_id.0.into(),
        (&*holder.node_id).into(),
        (&*holder.worker_name).into(),
        lease.leased_at.micros().into(),
        lease.lease_until.micros().into(),
        lease.cap_at.micros().into(),
        started_at.map(Moment::micros).into(),
    ])
}

const LEASE_SETS: [(&str, Kind); 3] =
    [("lease_until", Kind::Int), ("cap_at", Kind::Int), ("started_at", Kind::Int)];

fn lease_change_row(task: &Task) -> Row {
    let Some((lease, started_at, epoch)) = lease_of(task) else {
        return Vec::new();
    };
    vec![
        task.id.0.into(),
        epoch.into(),
        lease.lease_until.micros().into(),
        lease.cap_at.micros().into(),
        started_at.map(Moment::micros).into(),
    ]
}

const TASK_COLUMNS: &[&str] = &[
    "task_id",
    "route",
    "principal",
    "idempotency_key",
    "digest",
    "digest_version",
    "payload_version",
    "payload_bytes",
    "max_attempts",
    "granted_attempts",
    "initial_delay_ms",
    "max_delay_ms",
    "attempt_timeout_ms",
    "recovery_safety",
    "task_timeout_ms",
    "not_before",
    "start_before",
    "deadline_at",
    "state",
    "revision",
    "attempt_count",
    "available_at",
    "effect_uncertain",
    "created_at",
    "updated_at",
];

fn task_row(task: &Task, submission: &Submission, digest: Digest) -> Row {
    let policy = &task.policy;
    vec![
        task.id.0.into(),
        task.route.route.0.into(),
        (&*submission.principal).into(),
        submission.idempotency_key.as_str().into(),
        digest.0.to_vec().into(),
        DIGEST_VERSION.into(),
        submission.payload_version.as_str().into(),
        task.payload_bytes.into(),
        policy.max_attempts.into(),
        task.granted_attempts.into(),
        policy.initial_delay_ms.into(),
        policy.max_delay_ms.into(),
        policy.attempt_timeout_ms.into(),
        policy.recovery_safety.code().into(),
        i64::from(policy.task_timeout_ms).into(),
        submission.not_before.map(Moment::micros).into(),
        task.start_before.map(Moment::micros).into(),
        task.deadline_at.micros().into(),
        task.state.name().code().into(),
        task.revision.into(),
        task.attempt_count.into(),
        ready_row(task).map(|(_, at, _)| at).into(),
        task.doubt.into(),
        task.created_at.micros().into(),
        task.updated_at.micros().into(),
    ]
}

const TASK_SETS: [(&str, Kind); 8] = [
    ("state", Kind::Int),
    ("revision", Kind::Int),
    ("attempt_count", Kind::Int),
    ("available_at", Kind::Int),
    ("last_decision", Kind::Int),
    ("completed_at", Kind::Int),
    ("effect_uncertain", Kind::Int),
    ("updated_at", Kind::Int),
];

fn task_change_row(before: &Task, after: &Task) -> Row {
    let completed_at = match after.state {
        State::Succeeded { completed_at }
        | State::Failed { completed_at }
        | State::Canceled { completed_at } => Some(completed_at),
        State::Waiting { .. } | State::Leased(_) | State::Running { .. } | State::NeedsReview => None,
    };
    vec![
        after.id.0.into(),
        before.revision.into(),
        after.state.name().code().into(),
        after.revision.into(),
        after.attempt_count.into(),
        ready_row(after).map(|(_, at, _)| at).into(),
        after.last_decision.map(Code::code).into(),
        completed_at.map(Moment::micros).into(),
        i64::from(after.doubt).into(),
        after.updated_at.micros().into(),
    ]
}

const ATTEMPT_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "attempt_id",
    "state",
    "principal",
    "session_id",
    "node_id",
    "worker_name",
    "leased_at",
    "lease_until",
    "started_at",
    "ended_at",
    "decision",
    "cause",
    "delay_ms",
    "retryable",
    "result",
    "error_code",
    "error_message",
    "error_details",
];

fn attempt_row(task_id: TaskId, ended: &EndedAttempt) -> Row {
    let (lease, holder) = (&ended.lease, &ended.lease.holder);
    let (state, retryable, result, error) = match &ended.end {
        AttemptEnd::Succeeded { result } => (attempt_state::SUCCEEDED, false, Some(result), None),
        AttemptEnd::Failed { retryable, error } => (attempt_state::FAILED, *retryable, None, Some(error)),
        AttemptEnd::Unknown { error } => (attempt_state::UNKNOWN, false, None, error.as_ref()),
        AttemptEnd::Unstarted => (attempt_state::UNSTARTED, false, None, None),
        AttemptEnd::Canceled { error } => (attempt_state::CANCELED, false, None, error.as_ref()),
    };
    let mut row: Row = vec![
        task_id.0.into(),
        ended.epoch.into(),
        lease.attempt_id.0.into(),
        state.into(),
        (&*holder.principal).into(),
        holder.session_id.0.into(),
        (&*holder.node_id).into(),
        (&*holder.worker_name).into(),
        lease.leased_at.micros().into(),
        lease.lease_until.micros().into(),
        ended.started_at.map(Moment::micros).into(),
        ended.ended_at.micros().into(),
        ended.decision.code().into(),
        ended.cause.code().into(),
        ended.delay_ms.into(),
        retryable.into(),
        result.map(|r| r.as_str().to_owned()).into(),
    ];
    row.extend(error_values(error));
    row
}

const RECEIPT_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "message_id",
    "kind",
    "digest",
    "digest_version",
    "disposition",
    "task_state",
    "decision",
    "effect_uncertain",
    "next_available_at",
    "committed_at",
];

fn receipt_row((attempt, receipt): &(AttemptRef, Receipt)) -> Row {
    vec![
        attempt.task_id.0.into(),
        attempt.epoch.into(),
        receipt.message_id.0.into(),
        receipt.kind.code().into(),
        receipt.digest.0.to_vec().into(),
        DIGEST_VERSION.into(),
        receipt.disposition.code().into(),
        receipt.task_state.code().into(),
        receipt.decision.map(Code::code).into(),
        receipt.effect_uncertain.into(),
        receipt.next_available_at.map(Moment::micros).into(),
        receipt.committed_at.micros().into(),
    ]
}

const EVIDENCE_COLUMNS: &[&str] = &[
    "task_id",
    "epoch",
    "ordinal",
    "attempt_id",
    "message_id",
    "outcome",
    "retryable",
    "received_at",
    "session_id",
    "node_id",
    "result",
    "error_code",
    "error_message",
    "error_details",
];

fn evidence_row(record: &EvidenceRecord, session_id: SessionId, node_id: &str) -> Row {
    let report = &record.message.report;
    let (retryable, result, error) = match report {
        Report::Succeeded { result } => (false, Some(result), None),
        Report::Failed { retryable, error } => (*retryable, None, Some(error)),
        Report::Unknown { error } | Report::Canceled { error } => (false, None, error.as_ref()),
    };
    let mut row: Row = vec![
        record.attempt.task_id.0.into(),
        record.attempt.epoch.into(),
        record.ordinal.into(),
        record.attempt.attempt_id.0.into(),
        record.message.message_id.0.into(),
        report.outcome().code().into(),
        retryable.into(),
        record.received_at.micros().into(),
        session_id.0.into(),
        node_id.into(),
        result.map(|r| r.as_str().to_owned()).into(),
    ];
    row.extend(error_values(error));
    row
}

const EVENT_COLUMNS: &[&str] = &[
    "task_id",
    "revision",
    "ordinal",
    "kind",
    "at",
    "state",
    "epoch",
    "decision",
    "cause",
    "delay_ms",
    "next_available_at",
    "attempt_count",
    "max_attempts",
    "effect_uncertain",
    "principal",
    "session_id",
    "node_id",
    "note",
    "evidence_refs",
];

fn event_row(task_id: TaskId, event: &Event) -> Row {
    vec![
        task_id.0.into(),
        event.revision.into(),
        event.ordinal.into(),
        event.kind.code().into(),
        event.at.micros().into(),
        event.state.code().into(),
        event.epoch.into(),
        event.decision.map(Code::code).into(),
        event.cause.map(Code::code).into(),
        event.delay_ms.into(),
        event.next_available_at.map(Moment::micros).into(),
        event.attempt_count.into(),
        event.max_attempts.into(),
        event.effect_uncertain.into(),
        (&*event.actor.principal).into(),
        event.actor.session_id.map(|s| s.0).into(),
        (&*event.actor.node_id).into(),
        event.note.clone().into(),
        (!event.references.is_empty()).then(|| json!(event.references).to_string()).into(),
    ]
}

const QUEUE_COLUMNS: &[&str] = &["queue_id", "paused", "max_running", "revision", "created_at", "updated_at"];

fn queue_row(queue: &Queue) -> Row {
    vec![
        queue.queue_id.as_str().into(),
        queue.paused.into(),
        queue.max_running.into(),
        queue.revision.into(),
        queue.created_at.micros().into(),
        queue.updated_at.micros().into(),
    ]
}

//! What is shown to callers. Reads take no locks and may be a moment old, never half of a transaction.

use std::collections::HashMap;

use sea_orm::{ConnectionTrait as _, FromQueryResult, QueryResult, Value};
use uuid::Uuid;

use crate::domain::{
    attempt::{EndedAttempt, Lease},
    ids::{Epoch, RouteNo, SessionId, TaskId},
    queue::Queue,
    report::{Finish, TaskError},
    submission::Submission,
    task::{OperatorVerdict, State, Task},
    time::Moment,
};

use super::{
    database::Database,
    dialect::{Dialect, ROWS_MAX},
    error::{Fault, Inconsistency},
    rows::{
        ATTEMPT_COLUMNS, AttemptRow, Distrust, EVIDENCE_COLUMNS, EvidenceRow, QUEUE_COLUMNS, QueueRow,
        TASK_COLUMNS, TaskRow, task_error,
    },
};

/// Where counting stops.
pub const COUNT_MAX: u32 = 10_000;

/// A task with what its decisions do not need.
#[derive(Clone, Debug)]
pub struct TaskRecord {
    /// The task.
    pub task: Task,
    /// As submitted.
    pub idempotency_key: String,
    /// As submitted.
    pub queue_id: String,
    /// As submitted.
    pub handler: String,
    /// As submitted.
    pub handler_version: String,
    /// As submitted.
    pub payload_version: String,
    /// As submitted.
    pub not_before: Option<Moment>,
    /// Only if asked for.
    pub payload: Option<String>,
    /// Of a SUCCEEDED task, only if asked for.
    pub result: Option<String>,
    /// Of a FAILED task: the error that stands for the failure.
    pub error: Option<TaskError>,
}

impl TaskRecord {
    /// A task as it was just accepted, without texts.
    pub(crate) fn accepted(submission: &Submission, task: Task) -> Self {
        Self {
            task,
            idempotency_key: submission.idempotency_key.clone(),
            queue_id: submission.queue_id.clone(),
            handler: submission.handler.clone(),
            handler_version: submission.handler_version.clone(),
            payload_version: submission.payload_version.clone(),
            not_before: submission.not_before,
            payload: None,
            result: None,
            error: None,
        }
    }
}

/// A page of attempts.
#[derive(Clone, Debug)]
pub struct AttemptPage {
    /// Oldest first.
    pub attempts: Vec<AttemptRecord>,
    /// The epoch after which the next page begins; none at the end.
    pub next: Option<Epoch>,
}

/// An attempt with its evidence.
#[derive(Clone, Debug)]
pub enum AttemptRecord {
    /// The current one.
    Live {
        /// Its epoch.
        epoch: Epoch,
        /// Its lease.
        lease: Lease,
        /// When its start was granted, if it was.
        started_at: Option<Moment>,
        /// Reports without authority.
        evidence: Vec<EvidenceRecord>,
    },
    /// One that ended.
    Ended {
        /// The attempt.
        attempt: EndedAttempt,
        /// Reports without authority.
        evidence: Vec<EvidenceRecord>,
    },
}

/// A report that was kept as evidence.
#[derive(Clone, Debug)]
pub struct EvidenceRecord {
    /// The report.
    pub message: Finish,
    /// When it arrived.
    pub received_at: Moment,
    /// The session that sent it.
    pub session_id: SessionId,
    /// The node that received it.
    pub node_id: String,
}

/// How busy a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Permits held.
    pub running: u32,
    /// Tasks waiting, counted to [`COUNT_MAX`].
    pub waiting: u32,
    /// Whether there are more.
    pub waiting_capped: bool,
    /// How long the oldest due task has been claimable, in milliseconds.
    pub oldest_due_age_ms: u32,
    /// Tasks in NEEDS_REVIEW, counted to [`COUNT_MAX`].
    pub needs_review: u32,
}

/// What a dispatch hands on beside the claimed task.
#[derive(Clone, Debug)]
pub struct DispatchTexts {
    /// The task.
    pub task_id: TaskId,
    /// Its payload.
    pub payload: String,
    /// The version of the payload's schema.
    pub payload_version: String,
}

/// What [`record_sql`] reads beside the task and its lease.
#[derive(FromQueryResult)]
struct MoreRow {
    with_texts: bool,
    idempotency_key: String,
    payload_version: String,
    not_before: Option<i64>,
    payload: Option<String>,
    a_result: Option<String>,
    a_error_code: Option<String>,
    a_error_message: Option<String>,
    a_error_details: Option<String>,
}

/// Reads tasks as [`Database::record`] understands them: each with its lease, and with the attempt that speaks for its
/// end: the last one of a SUCCEEDED task, of a FAILED one the latest that reported an error. In one statement, so that
/// all of it is of one moment, also while retention removes tasks. Large texts only if asked for.
pub(super) fn record_sql(with_texts: bool, force_index: &str) -> String {
    // A list may hold a thousand tasks: what operators gave as results stays away, too.
    let columns = if with_texts {
        TASK_COLUMNS.to_owned()
    } else {
        TASK_COLUMNS.replacen("t.result", "NULL AS result", 1)
    };
    let (flag, payload, result) =
        if with_texts { ("1", "p.payload", "a.result") } else { ("0", "NULL", "NULL") };
    let payload_join = if with_texts { " LEFT JOIN payloads p ON p.task_id = t.task_id" } else { "" };
    format!(
        "SELECT {columns}, {flag} AS with_texts, t.idempotency_key, t.payload_version, t.not_before, \
         {payload} AS payload, {result} AS a_result, a.error_code AS a_error_code, \
         a.error_message AS a_error_message, a.error_details AS a_error_details \
         FROM tasks t{force_index} LEFT JOIN leases l{force_index} ON l.task_id = t.task_id \
         LEFT JOIN attempts a{force_index} ON a.task_id = t.task_id AND a.epoch = CASE t.state \
         WHEN 4 THEN t.attempt_count WHEN 5 THEN (SELECT MAX(x.epoch) FROM attempts x \
         WHERE x.task_id = t.task_id AND x.error_code IS NOT NULL) END{payload_join}"
    )
}

/// The result or error of an ended task: an operator's, else its attempts', else the decision's name.
fn outcome(
    task: &Task,
    with_texts: bool,
    result: Option<String>,
    reported: Option<TaskError>,
) -> Result<(Option<String>, Option<TaskError>), Inconsistency> {
    Ok(match (&task.state, &task.verdict) {
        (State::Succeeded { .. }, Some(OperatorVerdict::Result(result))) => {
            (Some(result.as_str().to_owned()), None)
        }
        (State::Succeeded { .. }, _) if with_texts => {
            let missing = || Inconsistency::new("attempts", "result", task.id, "of a success is missing");
            (Some(result.ok_or_else(missing)?), None)
        }
        (State::Failed { .. }, Some(OperatorVerdict::Error(error))) => (None, Some(error.clone())),
        (State::Failed { .. }, _) => {
            let decision = task.last_decision.map_or("FAILED", crate::domain::decide::Decision::name);
            let unreported = || TaskError { code: decision.into(), message: "".into(), details: None };
            (None, Some(reported.unwrap_or_else(unreported)))
        }
        _ => (None, None),
    })
}

impl Database {
    /// A task, with its payload and result if asked for; none if there is none.
    pub async fn task(&self, id: TaskId, with_texts: bool) -> Result<Option<TaskRecord>, Fault> {
        let sql = format!("{} WHERE t.task_id = ?", record_sql(with_texts, ""));
        match self.one(&sql, vec![id.0.into()]).await? {
            Some(row) => self.record(&row).await.map(Some),
            None => Ok(None),
        }
    }

    /// Those of these tasks that are there, without texts.
    pub async fn known_tasks(&self, tasks: &[TaskId]) -> Result<HashMap<TaskId, TaskRecord>, Fault> {
        let mut found = HashMap::with_capacity(tasks.len());
        for ids in tasks.chunks(ROWS_MAX) {
            let (list, values) = Dialect::in_list(&ids.iter().map(|id| id.0).collect::<Vec<_>>());
            let read = record_sql(false, self.dialect().force_primary());
            let sql = format!("{read} WHERE t.task_id IN {list}");
            let statement = self.dialect().statement(sql, values);
            for row in self.reads_connection().query_all_raw(statement).await? {
                let record = self.record(&row).await?;
                found.insert(record.task.id, record);
            }
        }
        Ok(found)
    }

    /// A task as a row of [`record_sql`] tells of it.
    pub(super) async fn record(&self, row: &QueryResult) -> Result<TaskRecord, Fault> {
        let more = MoreRow::from_query_result(row, "").map_err(Fault::Permanent)?;
        let task = TaskRow::from_query_result(row, "").map_err(Fault::Permanent)?;
        let no = RouteNo(task.route);
        if self.routes().get(no).is_none() {
            self.routes().load(&self.reads_connection(), self.dialect()).await?;
        }
        let info = Distrust::new("tasks", task.task_id).present("route", self.routes().get(no))?;
        let task = task.into_task(info.route)?;
        let reported = task_error(more.a_error_code, more.a_error_message, more.a_error_details);
        let (result, error) = outcome(&task, more.with_texts, more.a_result, reported)?;
        Ok(TaskRecord {
            task,
            idempotency_key: more.idempotency_key,
            queue_id: info.queue_id.to_string(),
            handler: info.handler.to_string(),
            handler_version: info.handler_version.to_string(),
            payload_version: more.payload_version,
            not_before: more.not_before.map(Moment::from_micros),
            payload: more.payload,
            result,
            error,
        })
    }

    /// A page of a task's attempts, oldest first, after an epoch; none if there is no such task. The page ends at `limit`
    /// attempts, or before it passes `bytes_max`, but has at least one.
    pub async fn attempts(
        &self,
        id: TaskId,
        after: Epoch,
        limit: u32,
        bytes_max: usize,
    ) -> Result<Option<AttemptPage>, Fault> {
        let Some(record) = self.task(id, false).await? else {
            return Ok(None);
        };
        let mut attempts = Vec::new();
        let (mut next, mut bytes, mut last) = (None, 0_usize, after);
        // One by one past the first few, so that a page of large results does not load them all.
        'pages: loop {
            let sql = format!(
                "SELECT {ATTEMPT_COLUMNS} FROM attempts WHERE task_id = ? AND epoch > ? ORDER BY epoch LIMIT 3"
            );
            let rows = self.all::<AttemptRow>(&sql, vec![id.0.into(), last.into()]).await?;
            let end = rows.len() < 3;
            for row in rows {
                let attempt = row.into_attempt()?;
                let evidence = self.evidence(id, attempt.epoch).await?;
                bytes += attempt_bytes(&attempt)
                    + evidence.iter().map(|e| e.message.report.bytes() + 200).sum::<usize>();
                if !attempts.is_empty() && (attempts.len() >= limit as usize || bytes > bytes_max) {
                    next = Some(last);
                    break 'pages;
                }
                last = attempt.epoch;
                attempts.push(AttemptRecord::Ended { attempt, evidence });
            }
            if end {
                break;
            }
        }
        if next.is_none() {
            next = self.live_attempt(&record.task, last, limit, bytes_max, bytes, &mut attempts).await?;
        }
        // Retention removes a task in one transaction: if it is still there, all of it was.
        let exists = "SELECT 1 AS present FROM tasks WHERE task_id = ?";
        let whole = self.one(exists, vec![id.0.into()]).await?.is_some();
        Ok(whole.then_some(AttemptPage { attempts, next }))
    }

    /// Adds the current attempt to the last page, or says that it needs one more.
    async fn live_attempt(
        &self,
        task: &Task,
        last: Epoch,
        limit: u32,
        bytes_max: usize,
        bytes: usize,
        attempts: &mut Vec<AttemptRecord>,
    ) -> Result<Option<Epoch>, Fault> {
        let (lease, started_at) = match &task.state {
            State::Leased(lease) => (lease, None),
            State::Running { lease, started_at } => (lease, Some(*started_at)),
            _ => return Ok(None),
        };
        let epoch = task.attempt_count;
        // Ended between the two reads: it is among the attempts, or the next look shows it.
        if epoch <= last {
            return Ok(None);
        }
        let evidence = self.evidence(task.id, epoch).await?;
        let bytes = bytes + evidence.iter().map(|e| e.message.report.bytes() + 200).sum::<usize>();
        if !attempts.is_empty() && (attempts.len() >= limit as usize || bytes > bytes_max) {
            return Ok(Some(last));
        }
        attempts.push(AttemptRecord::Live { epoch, lease: lease.clone(), started_at, evidence });
        Ok(None)
    }

    async fn evidence(&self, id: TaskId, epoch: Epoch) -> Result<Vec<EvidenceRecord>, Fault> {
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS} FROM evidence WHERE task_id = ? AND epoch = ? ORDER BY ordinal"
        );
        let rows = self.all::<EvidenceRow>(&sql, vec![id.0.into(), epoch.into()]).await?;
        Ok(rows.into_iter().map(EvidenceRow::into_record).collect::<Result<_, _>>()?)
    }

    /// Payloads of claimed tasks.
    pub async fn dispatch_texts(&self, ids: &[TaskId]) -> Result<Vec<DispatchTexts>, Fault> {
        let ids: Vec<Uuid> = ids.iter().map(|t| t.0).collect();
        let mut texts = Vec::with_capacity(ids.len());
        for ids in ids.chunks(super::dialect::ROWS_MAX) {
            let (list, values) = super::dialect::Dialect::in_list(ids);
            let sql = format!(
                "SELECT t.task_id, t.payload_version, p.payload FROM tasks t \
                 JOIN payloads p ON p.task_id = t.task_id WHERE t.task_id IN {list}"
            );
            for row in self.rows(&sql, values).await? {
                let text = |c| row.try_get::<String>("", c).map_err(Fault::Permanent);
                texts.push(DispatchTexts {
                    task_id: TaskId(row.try_get("", "task_id").map_err(Fault::Permanent)?),
                    payload: text("payload")?,
                    payload_version: text("payload_version")?,
                });
            }
        }
        Ok(texts)
    }

    /// A queue by name.
    pub async fn queue(&self, queue_id: &str) -> Result<Option<Queue>, Fault> {
        let sql = format!("SELECT {QUEUE_COLUMNS} FROM queues WHERE queue_id = ?");
        let rows = self.all::<QueueRow>(&sql, vec![queue_id.into()]).await?;
        Ok(rows.into_iter().next().map(QueueRow::into_queue).transpose()?)
    }

    /// Queues by name, bytewise, after a name.
    pub async fn queues(&self, after: &str, limit: u32) -> Result<Vec<Queue>, Fault> {
        let sql = format!("SELECT {QUEUE_COLUMNS} FROM queues WHERE queue_id > ? ORDER BY queue_id LIMIT ?");
        let rows = self.all::<QueueRow>(&sql, vec![after.into(), limit.into()]).await?;
        Ok(rows.into_iter().map(QueueRow::into_queue).collect::<Result<_, _>>()?)
    }

    /// How busy a queue is.
    pub async fn queue_stats(&self, queue: &Queue) -> Result<QueueStats, Fault> {
        let no: Value = queue.no.0.into();
        let cap: Value = (COUNT_MAX + 1).into();
        let count = |sql: &'static str, values: Vec<Value>| async move {
            let row = self.one(sql, values).await?;
            let n = row.map(|r| r.try_get::<i64>("", "n")).transpose().map_err(Fault::Permanent)?;
            Ok::<u32, Fault>(n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0))
        };
        let running = count("SELECT COUNT(*) AS n FROM leases WHERE queue = ?", vec![no.clone()]).await?;
        let waiting = count(
            "SELECT COUNT(*) AS n FROM (SELECT 1 FROM ready w JOIN routes r ON r.id = w.route \
             WHERE r.queue = ? LIMIT ?) AS some",
            vec![no.clone(), cap.clone()],
        )
        .await?;
        let needs_review = count(
            "SELECT COUNT(*) AS n FROM (SELECT 1 FROM reviews WHERE queue = ? LIMIT ?) AS some",
            vec![no.clone(), cap],
        )
        .await?;
        Ok(QueueStats {
            running,
            waiting: waiting.min(COUNT_MAX),
            waiting_capped: waiting > COUNT_MAX,
            oldest_due_age_ms: self.oldest_due_age_ms(no).await?,
            needs_review: needs_review.min(COUNT_MAX),
        })
    }

    async fn oldest_due_age_ms(&self, queue: Value) -> Result<u32, Fault> {
        let sql = format!(
            "SELECT (SELECT w.available_at FROM ready w WHERE w.route = r.id ORDER BY w.available_at LIMIT 1) \
             AS due_at, {} AS now FROM routes r WHERE r.queue = ?",
            self.dialect().now()
        );
        let mut age_ms = 0;
        for row in self.rows(&sql, vec![queue]).await? {
            let due_at: Option<i64> = row.try_get("", "due_at").map_err(Fault::Permanent)?;
            let now: i64 = row.try_get("", "now").map_err(Fault::Permanent)?;
            if let Some(due_at) = due_at {
                age_ms = age_ms.max(Moment::from_micros(now).ms_since(Moment::from_micros(due_at)));
            }
        }
        Ok(age_ms)
    }

    async fn one(&self, sql: &str, values: Vec<Value>) -> Result<Option<QueryResult>, Fault> {
        Ok(self.reads_connection().query_one_raw(self.dialect().statement(sql, values)).await?)
    }

    async fn rows(&self, sql: &str, values: Vec<Value>) -> Result<Vec<QueryResult>, Fault> {
        Ok(self.reads_connection().query_all_raw(self.dialect().statement(sql, values)).await?)
    }

    async fn all<R: FromQueryResult>(&self, sql: &str, values: Vec<Value>) -> Result<Vec<R>, Fault> {
        let rows = self.rows(sql, values).await?;
        rows.iter().map(|row| R::from_query_result(row, "").map_err(Fault::Permanent)).collect()
    }
}

fn attempt_bytes(attempt: &EndedAttempt) -> usize {
    use crate::domain::attempt::AttemptEnd::{Canceled, Failed, Succeeded, Unknown, Unstarted};
    let error_bytes =
        |e: &TaskError| e.code.len() + e.message.len() + e.details.as_ref().map_or(0, |d| d.as_str().len());
    500 + match &attempt.end {
        Succeeded { result } => result.as_str().len(),
        Failed { error, .. } => error_bytes(error),
        Unknown { error } | Canceled { error } => error.as_ref().map_or(0, error_bytes),
        Unstarted => 0,
    }
}

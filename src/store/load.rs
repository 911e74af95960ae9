//! Locking and loading what a transaction needs, in one order for everybody: queues, tasks with their leases, then the
//! candidates of claims, which wait for nothing. The time is read last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sea_orm::{ConnectionTrait as _, DatabaseTransaction, FromQueryResult, QueryResult, Statement, Value};
use uuid::Uuid;

use crate::domain::{
    ids::{AttemptId, AttemptRef, Epoch, QueueNo, RequestId, RouteNo, TaskId},
    receipt::ReceiptBook,
    time::Moment,
};

use super::{
    answers::StoredAnswer,
    dialect::{Dialect, ROWS_MAX},
    error::{Fault, Inconsistency},
    routes::Routes,
    rows::{Distrust, QUEUE_COLUMNS, QueueRow, RECEIPT_COLUMNS, ReceiptRow, TASK_COLUMNS, TaskRow, digest},
    working_set::{ClaimQueue, Entry, KeyHit, QueueEntry, StoredRequest, WorkingSet},
};

/// A route that tasks are to be claimed from.
#[derive(Clone, Copy, Debug)]
pub struct ClaimNeed {
    /// The queue of the route.
    pub queue: QueueNo,
    /// How many tasks at most.
    pub limit: u32,
}

/// What the commands of a transaction need.
#[derive(Debug, Default)]
pub struct Needs {
    /// Tasks to lock.
    pub tasks: BTreeSet<TaskId>,
    /// Attempts whose receipts are needed.
    pub attempts: BTreeSet<(TaskId, Epoch, AttemptId)>,
    /// Keys to look up.
    pub keys: BTreeSet<(Arc<str>, String)>,
    /// Routes to claim from.
    pub claims: BTreeMap<RouteNo, ClaimNeed>,
    /// Queues to lock, by name.
    pub queues: BTreeSet<String>,
    /// Requests to look up.
    pub requests: BTreeSet<(Arc<str>, RequestId)>,
    /// Whether leases are judged, so that an outage must be looked for first (S12).
    pub judges_leases: bool,
}

impl Needs {
    /// A message about an attempt: its task locked, its receipts at hand, its lease judged.
    pub fn message(&mut self, attempt: AttemptRef) {
        self.tasks.insert(attempt.task_id);
        self.attempts.insert((attempt.task_id, attempt.epoch, attempt.attempt_id));
        self.judges_leases = true;
    }

    /// Up to `limit` more tasks of a route.
    pub fn claim(&mut self, route: RouteNo, queue: QueueNo, limit: u32) {
        let need = self.claims.entry(route).or_insert(ClaimNeed { queue, limit: 0 });
        need.limit = need.limit.saturating_add(limit);
    }
}

/// Loads a working set.
pub(super) struct Loader<'a> {
    pub(super) tx: &'a DatabaseTransaction,
    pub(super) dialect: Dialect,
    pub(super) routes: &'a Routes,
}

#[derive(FromQueryResult)]
struct KeyRow {
    principal: String,
    idempotency_key: String,
    task_id: Uuid,
    digest: Vec<u8>,
}

#[derive(FromQueryResult)]
struct RequestRow {
    principal: String,
    request_id: Uuid,
    digest: Vec<u8>,
    answer: String,
}

impl Loader<'_> {
    /// Fills the working set, and answers when the nodes were last seen.
    pub(super) async fn load(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<Moment, Fault> {
        self.queues(needs, ws).await?;
        let guarded = self.claim_queues(needs, ws).await?;
        let tasks: Vec<Uuid> = needs.tasks.iter().map(|t| t.0).collect();
        for ids in tasks.chunks(ROWS_MAX) {
            self.tasks(ids, self.dialect.for_update(), ws).await?;
        }
        self.permits(&guarded, ws).await?;
        self.candidates(needs, ws).await?;
        self.receipts(needs, ws).await?;
        self.ended_attempts(needs, ws).await?;
        self.keys(needs, ws).await?;
        self.requests(needs, ws).await?;
        self.time(ws).await
    }

    async fn all<R: FromQueryResult>(&self, sql: String, values: Vec<Value>) -> Result<Vec<R>, Fault> {
        let rows = self.rows(self.dialect.statement(sql, values)).await?;
        rows.iter().map(|row| R::from_query_result(row, "").map_err(Fault::Permanent)).collect()
    }

    async fn rows(&self, statement: Statement) -> Result<Vec<QueryResult>, Fault> {
        Ok(self.tx.query_all_raw(statement).await?)
    }

    async fn queues(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        if needs.queues.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = needs.queues.iter().cloned().collect();
        for names in names.chunks(ROWS_MAX) {
            let (list, values) = Dialect::in_list(names);
            let lock = self.dialect.for_update();
            let sql =
                format!("SELECT {QUEUE_COLUMNS} FROM queues WHERE queue_id IN {list} ORDER BY id{lock}");
            for row in self.all::<QueueRow>(sql, values).await? {
                let queue = row.into_queue()?;
                let entry = QueueEntry { loaded: Some(queue.clone()), queue };
                ws.queues.insert(entry.queue.queue_id.clone(), entry);
            }
        }
        Ok(())
    }

    /// Takes the queues of claims: shared while unlimited, by a write while limited, so that pausing waits for this
    /// transaction or is seen by it, and two claims never count the same permits. Answers the limited ones.
    async fn claim_queues(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<Vec<(QueueNo, u32)>, Fault> {
        let numbers: BTreeSet<QueueNo> = needs.claims.values().map(|c| c.queue).collect();
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let numbers: Vec<i32> = numbers.iter().map(|q| q.0).collect();
        let mut limited = Vec::new();
        for numbers in numbers.chunks(ROWS_MAX) {
            let (list, values) = Dialect::in_list(numbers);
            let guarded = self.guard_limited(&list, &values).await?;
            let lock = self.dialect.for_share();
            let sql = format!("SELECT {QUEUE_COLUMNS} FROM queues WHERE id IN {list} ORDER BY id{lock}");
            let mut seen = Vec::new();
            for row in self.all::<QueueRow>(sql, values).await? {
                seen.push(row.into_queue()?);
            }
            let limits: Vec<_> = seen.iter().filter(|q| q.max_running > 0).collect();
            // A limit that was set between the two statements is only locked shared: others may hold it so, too, and
            // count the same permits. The next claim takes it properly.
            let all_guarded = guarded.is_none_or(|rows| rows == limits.len() as u64);
            if all_guarded {
                limited.extend(limits.iter().map(|q| (q.no, q.max_running)));
            }
            for queue in seen {
                let open = !queue.paused && (all_guarded || queue.max_running == 0);
                ws.claim_queues.insert(queue.no, ClaimQueue { open, free: None });
            }
        }
        Ok(limited)
    }

    /// Takes the limited ones of these queues by a write, and answers how many that were; none where the transaction has
    /// the whole database anyway.
    ///
    /// They are looked for without a lock first: even a write that leaves a row alone waits for those who share it.
    async fn guard_limited(&self, list: &str, values: &[Value]) -> Result<Option<u64>, Fault> {
        if self.dialect == Dialect::Sqlite {
            return Ok(None);
        }
        let which = format!("max_running > 0 AND id IN {list}");
        let sql = format!("SELECT id FROM queues WHERE {which}");
        if self.rows(self.dialect.statement(sql, values.to_vec())).await?.is_empty() {
            return Ok(Some(0));
        }
        let sql = format!("UPDATE queues SET claim_count = claim_count + 1 WHERE {which}");
        let done = self.tx.execute_raw(self.dialect.statement(sql, values.to_vec())).await?;
        Ok(Some(done.rows_affected()))
    }

    /// Counts the permits of limited queues. A new statement after the guard was taken, so that it sees all others'.
    async fn permits(&self, limited: &[(QueueNo, u32)], ws: &mut WorkingSet) -> Result<(), Fault> {
        for (queue, max_running) in limited {
            let sql = "SELECT COUNT(*) AS held FROM leases WHERE queue = ?";
            let rows = self.rows(self.dialect.statement(sql, vec![queue.0.into()])).await?;
            let held =
                rows.first().map_or(Ok(0), |r| r.try_get::<i64>("", "held")).map_err(Fault::Permanent)?;
            let held = u32::try_from(held).unwrap_or(u32::MAX);
            if let Some(seen) = ws.claim_queues.get_mut(queue) {
                seen.free = Some(max_running.saturating_sub(held));
            }
        }
        Ok(())
    }

    async fn tasks(&self, ids: &[Uuid], lock: &str, ws: &mut WorkingSet) -> Result<(), Fault> {
        let (list, values) = Dialect::in_list(ids);
        let primary = self.dialect.force_primary();
        let sql = format!(
            "SELECT {TASK_COLUMNS} FROM tasks t{primary} LEFT JOIN leases l{primary} ON l.task_id = t.task_id \
             WHERE t.task_id IN {list} ORDER BY t.task_id{lock}"
        );
        let rows: Vec<TaskRow> = self.all(sql, values).await?;
        let unknown: Vec<RouteNo> =
            rows.iter().map(|r| RouteNo(r.route)).filter(|r| self.routes.get(*r).is_none()).collect();
        if !unknown.is_empty() {
            self.routes.load(self.tx, self.dialect).await?;
        }
        for row in rows {
            let id = TaskId(row.task_id);
            let route = self.routes.get(RouteNo(row.route)).map(|i| i.route);
            let route = Distrust::new("tasks", id).present("route", route)?;
            ws.tasks.entry(id).or_insert(Entry::loaded(row.into_task(route)?));
        }
        Ok(())
    }

    async fn candidates(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        let mut found: Vec<(RouteNo, Vec<Uuid>)> = Vec::new();
        for (route, need) in &needs.claims {
            let queue = ws.claim_queues.get(&need.queue);
            let room = queue.filter(|q| q.open).map_or(0, |q| q.free.unwrap_or(u32::MAX));
            let limit = need.limit.min(room);
            if limit == 0 {
                continue;
            }
            // Due by the database's clock at this statement; the claim judges again by the time read at the end.
            let sql = format!(
                "SELECT task_id FROM ready{} WHERE route = ? AND available_at <= {} \
                 ORDER BY available_at, task_id LIMIT ?{}",
                self.dialect.force_primary(),
                self.dialect.now(),
                self.dialect.for_update_skip_locked(),
            );
            let rows = self.rows(self.dialect.statement(sql, vec![route.0.into(), limit.into()])).await?;
            let ids: Result<Vec<Uuid>, _> = rows.iter().map(|r| r.try_get("", "task_id")).collect();
            found.push((*route, ids.map_err(Fault::Permanent)?));
        }
        let ids: Vec<Uuid> = found.iter().flat_map(|(_, ids)| ids).copied().collect();
        for ids in ids.chunks(ROWS_MAX) {
            self.tasks(ids, self.dialect.for_update_skip_locked(), ws).await?;
        }
        for (route, ids) in found {
            // Oldest first, taken from the end. What somebody else has locked is left out.
            let mine = ids.into_iter().map(TaskId).filter(|id| ws.tasks.contains_key(id)).rev();
            ws.candidates.insert(route, mine.collect());
        }
        Ok(())
    }

    async fn receipts(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        let keys: BTreeSet<(TaskId, Epoch)> = needs.attempts.iter().map(|(t, e, _)| (*t, *e)).collect();
        let tuples: Vec<Vec<Value>> = keys.iter().map(|(t, e)| vec![t.0.into(), (*e).into()]).collect();
        let mut books: HashMap<(Uuid, i32), Vec<_>> = HashMap::new();
        for tuples in tuples.chunks(ROWS_MAX) {
            let (list, values) = self.dialect.in_tuples(tuples);
            let primary = self.dialect.force_primary();
            let sql =
                format!("SELECT {RECEIPT_COLUMNS} FROM receipts{primary} WHERE (task_id, epoch) IN {list}");
            for row in self.all::<ReceiptRow>(sql, values).await? {
                let key = (row.task_id, row.epoch);
                books.entry(key).or_default().push(row.into_receipt()?);
            }
        }
        for ((task_id, epoch), receipts) in books {
            let epoch = Distrust::new("receipts", task_id).count("epoch", epoch)?;
            if let Some(entry) = ws.tasks.get_mut(&TaskId(task_id)) {
                entry.books.insert(epoch, ReceiptBook::new(receipts));
            }
        }
        Ok(())
    }

    /// Ids of ended attempts, for messages that do not name the current one.
    async fn ended_attempts(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        let is_current = |&(task_id, epoch, attempt_id): &(TaskId, Epoch, AttemptId)| {
            let attempt = AttemptRef { task_id, attempt_id, epoch };
            ws.task(task_id).is_none_or(|t| t.lease_of(attempt).is_some())
        };
        let others: BTreeSet<(TaskId, Epoch)> =
            needs.attempts.iter().filter(|a| !is_current(a)).map(|(t, e, _)| (*t, *e)).collect();
        let tuples: Vec<Vec<Value>> = others.iter().map(|(t, e)| vec![t.0.into(), (*e).into()]).collect();
        for tuples in tuples.chunks(ROWS_MAX) {
            let (list, values) = self.dialect.in_tuples(tuples);
            let sql =
                format!("SELECT task_id, epoch, attempt_id FROM attempts WHERE (task_id, epoch) IN {list}");
            for row in self.rows(self.dialect.statement(sql, values)).await? {
                let get = |c| row.try_get::<Uuid>("", c).map_err(Fault::Permanent);
                let (task_id, attempt_id) = (get("task_id")?, get("attempt_id")?);
                let epoch: i32 = row.try_get("", "epoch").map_err(Fault::Permanent)?;
                let epoch = Distrust::new("attempts", task_id).count("epoch", epoch)?;
                if let Some(entry) = ws.tasks.get_mut(&TaskId(task_id)) {
                    entry.ended.insert(epoch, AttemptId(attempt_id));
                }
            }
        }
        Ok(())
    }

    async fn keys(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        let tuples: Vec<Vec<Value>> =
            needs.keys.iter().map(|(p, k)| vec![(&**p).into(), k.as_str().into()]).collect();
        for tuples in tuples.chunks(ROWS_MAX) {
            let (list, values) = self.dialect.in_tuples(tuples);
            let sql = format!(
                "SELECT principal, idempotency_key, task_id, digest FROM tasks \
                 WHERE (principal, idempotency_key) IN {list}"
            );
            for row in self.all::<KeyRow>(sql, values).await? {
                let digest = digest(&Distrust::new("tasks", row.task_id), row.digest)?;
                let hit = KeyHit { task_id: TaskId(row.task_id), digest };
                ws.keys.insert((row.principal.into(), row.idempotency_key), hit);
            }
        }
        Ok(())
    }

    async fn requests(&self, needs: &Needs, ws: &mut WorkingSet) -> Result<(), Fault> {
        let tuples: Vec<Vec<Value>> =
            needs.requests.iter().map(|(p, r)| vec![(&**p).into(), r.0.into()]).collect();
        for tuples in tuples.chunks(ROWS_MAX) {
            let (list, values) = self.dialect.in_tuples(tuples);
            let sql = format!(
                "SELECT principal, request_id, digest, answer FROM requests \
                 WHERE (principal, request_id) IN {list}"
            );
            for row in self.all::<RequestRow>(sql, values).await? {
                let id = RequestId(row.request_id);
                let answer = StoredAnswer::from_json(&row.answer)
                    .ok_or_else(|| Inconsistency::new("requests", "answer", id, "cannot be read"))?;
                let digest = digest(&Distrust::new("requests", id), row.digest)?;
                ws.requests.insert((row.principal.into(), id), StoredRequest { digest, answer });
            }
        }
        Ok(())
    }

    async fn time(&self, ws: &mut WorkingSet) -> Result<Moment, Fault> {
        let sql = format!("SELECT {} AS now, last_seen FROM cluster WHERE id = 1", self.dialect.now());
        let row = self.tx.query_one_raw(self.dialect.statement(sql, vec![])).await?;
        let row = row.ok_or_else(|| Inconsistency::new("cluster", "id", 1, "is missing"))?;
        let get = |c| row.try_get::<i64>("", c).map(Moment::from_micros).map_err(Fault::Permanent);
        ws.now = get("now")?;
        get("last_seen")
    }
}

//! Looking around without locks: what has lapsed, what is due, what is still held. Whoever acts on it asks again under
//! lock.

use std::sync::Arc;

use sea_orm::ConnectionTrait as _;
use uuid::Uuid;

use crate::domain::{
    ids::{AttemptId, Epoch, RouteNo, TaskId},
    time::Moment,
};

use super::{
    database::Database,
    dialect::{Dialect, ROWS_MAX},
    error::Fault,
    rows::Distrust,
};

/// When a route's next task is due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// The route.
    pub route: RouteNo,
    /// Its earliest `available_at`.
    pub at: Moment,
}

/// A lease as it stands in the database.
#[derive(Clone, Copy, Debug)]
pub struct HeldLease {
    /// The task.
    pub task_id: TaskId,
    /// Its current attempt.
    pub attempt_id: AttemptId,
    /// Its epoch.
    pub epoch: Epoch,
    /// For how long it is valid, in milliseconds; 0 if it has ended.
    pub remaining_ms: u32,
}

impl Database {
    /// Tasks on which time has something to say: leases that ended, waits that cannot end in a claim. Oldest first, at
    /// most `limit` of each kind.
    pub async fn lapsed(&self, limit: u32) -> Result<Vec<TaskId>, Fault> {
        let dialect = self.dialect();
        let mut found = Vec::new();
        for (table, column) in [("leases", "lease_until"), ("ready", "expires_at")] {
            let now = dialect.now();
            let sql =
                format!("SELECT task_id FROM {table} WHERE {column} <= {now} ORDER BY {column} LIMIT ?");
            let rows =
                self.reads_connection().query_all_raw(dialect.statement(sql, vec![limit.into()])).await?;
            for row in rows {
                found.push(TaskId(row.try_get("", "task_id").map_err(Fault::Permanent)?));
            }
        }
        Ok(found)
    }

    /// When each route of open queues has its next task due, and the database's time. One look per route at the head of
    /// its index, whatever the backlog.
    pub async fn due(&self) -> Result<(Vec<Due>, Moment), Fault> {
        let dialect = self.dialect();
        let sql = format!(
            "SELECT r.id AS route, (SELECT w.available_at FROM ready w WHERE w.route = r.id \
             ORDER BY w.available_at LIMIT 1) AS due_at, {} AS now \
             FROM routes r JOIN queues q ON q.id = r.queue WHERE NOT q.paused",
            dialect.now()
        );
        let rows = self.reads_connection().query_all_raw(dialect.statement(sql, vec![])).await?;
        let (mut due, mut now) = (Vec::new(), Moment::from_micros(0));
        for row in rows {
            let get = |c| row.try_get::<Option<i64>>("", c).map_err(Fault::Permanent);
            now = get("now")?.map_or(now, Moment::from_micros);
            let route: i32 = row.try_get("", "route").map_err(Fault::Permanent)?;
            if let Some(at) = get("due_at")? {
                due.push(Due { route: RouteNo(route), at: Moment::from_micros(at) });
            }
        }
        if due.iter().any(|d| self.routes().get(d.route).is_none()) {
            self.routes().load(&self.reads_connection(), dialect).await?;
        }
        Ok((due, now))
    }

    /// The leases of these tasks.
    pub async fn held(&self, tasks: &[TaskId]) -> Result<Vec<HeldLease>, Fault> {
        let dialect = self.dialect();
        let ids: Vec<Uuid> = tasks.iter().map(|t| t.0).collect();
        let mut held = Vec::new();
        for ids in ids.chunks(ROWS_MAX) {
            let (list, values) = Dialect::in_list(ids);
            let sql = format!(
                "SELECT task_id, attempt_id, epoch, lease_until, {} AS now FROM leases WHERE task_id IN {list}",
                dialect.now()
            );
            for row in self.reads_connection().query_all_raw(dialect.statement(sql, values)).await? {
                let id = |c| row.try_get::<Uuid>("", c).map_err(Fault::Permanent);
                let moment = |c| row.try_get::<i64>("", c).map(Moment::from_micros).map_err(Fault::Permanent);
                let task_id = id("task_id")?;
                let epoch: i32 = row.try_get("", "epoch").map_err(Fault::Permanent)?;
                held.push(HeldLease {
                    task_id: TaskId(task_id),
                    attempt_id: AttemptId(id("attempt_id")?),
                    epoch: Distrust::new("leases", task_id).count("epoch", epoch)?,
                    remaining_ms: moment("lease_until")?.ms_since(moment("now")?),
                });
            }
        }
        Ok(held)
    }

    /// Running attempts with a recorded cancel, with its reason. Few at any time.
    pub async fn canceled(&self) -> Result<Vec<(AttemptId, Arc<str>)>, Fault> {
        let sql = "SELECT c.attempt_id, t.cancel_reason FROM cancels c JOIN tasks t ON t.task_id = c.task_id";
        let rows = self.reads_connection().query_all_raw(self.dialect().statement(sql, vec![])).await?;
        let read = |row: &sea_orm::QueryResult| {
            let reason = row.try_get::<Option<String>>("", "cancel_reason")?.unwrap_or_default();
            Ok((AttemptId(row.try_get("", "attempt_id")?), reason.into()))
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(Fault::Permanent)
    }

    /// Removes rows of lanes that ended without a farewell more than a day ago.
    pub async fn forget_old_lanes(&self) -> Result<u64, Fault> {
        let dialect = self.dialect();
        let sql = format!("DELETE FROM lane_commits WHERE updated_at < {} - 86400000000", dialect.now());
        self.write(dialect.statement(sql, vec![])).await
    }
}

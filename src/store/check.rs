//! Looks for rows that contradict each other. There should be none, ever.

use sea_orm::ConnectionTrait as _;
use uuid::Uuid;

use crate::domain::ids::TaskId;

use super::{database::Database, error::Fault};

/// A task whose rows contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// What should be so.
    pub invariant: &'static str,
    /// The task.
    pub task_id: TaskId,
}

/// What should be so, and the tasks for which it is not. Each is one statement, so that it sees one moment.
const INVARIANTS: [(&str, &str); 19] = [
    (
        "a WAITING task has its row in ready, with the same moments",
        "SELECT t.task_id FROM tasks t LEFT JOIN ready w ON w.route = t.route AND w.available_at = t.available_at \
         AND w.task_id = t.task_id WHERE t.state = 1 AND (w.task_id IS NULL OR w.expires_at <> \
         CASE WHEN t.start_before IS NULL THEN t.deadline_at ELSE t.start_before END)",
    ),
    (
        "a row in ready belongs to a WAITING task",
        "SELECT w.task_id FROM ready w LEFT JOIN tasks t ON t.task_id = w.task_id AND t.state = 1 \
         AND t.available_at = w.available_at WHERE t.task_id IS NULL",
    ),
    (
        "a LEASED or RUNNING task has its row in leases, with its epoch, started only if RUNNING",
        "SELECT t.task_id FROM tasks t LEFT JOIN leases l ON l.task_id = t.task_id WHERE t.state IN (2, 3) \
         AND (l.task_id IS NULL OR l.epoch <> t.attempt_count OR (l.started_at IS NULL) = (t.state = 3))",
    ),
    (
        "a row in leases belongs to a LEASED or RUNNING task",
        "SELECT l.task_id FROM leases l LEFT JOIN tasks t ON t.task_id = l.task_id AND t.state IN (2, 3) \
         WHERE t.task_id IS NULL",
    ),
    (
        "a task's permit is held at its own queue",
        "SELECT l.task_id FROM leases l JOIN tasks t ON t.task_id = l.task_id JOIN routes r ON r.id = t.route \
         WHERE r.queue <> l.queue",
    ),
    (
        "a NEEDS_REVIEW task has its row in reviews",
        "SELECT t.task_id FROM tasks t LEFT JOIN reviews v ON v.task_id = t.task_id \
         WHERE t.state = 7 AND v.task_id IS NULL",
    ),
    (
        "a row in reviews belongs to a NEEDS_REVIEW task",
        "SELECT v.task_id FROM reviews v LEFT JOIN tasks t ON t.task_id = v.task_id AND t.state = 7 \
         WHERE t.task_id IS NULL",
    ),
    (
        "a RUNNING task with a recorded cancel has its row in cancels, and no other task has",
        "SELECT t.task_id FROM tasks t LEFT JOIN cancels c ON c.task_id = t.task_id \
         WHERE (t.state = 3 AND t.cancel_requested_at IS NOT NULL) <> (c.task_id IS NOT NULL)",
    ),
    (
        "every revision of a task has its event",
        "SELECT t.task_id FROM tasks t WHERE t.revision <> \
         (SELECT COUNT(*) FROM events e WHERE e.task_id = t.task_id AND e.ordinal = 0)",
    ),
    (
        "every claimed attempt of a task is history or its lease",
        "SELECT t.task_id FROM tasks t WHERE t.attempt_count <> \
         (SELECT COUNT(*) FROM attempts a WHERE a.task_id = t.task_id) + \
         (SELECT COUNT(*) FROM leases l WHERE l.task_id = t.task_id)",
    ),
    (
        "a SUCCEEDED task has a result",
        "SELECT t.task_id FROM tasks t LEFT JOIN attempts a ON a.task_id = t.task_id AND a.epoch = t.attempt_count \
         AND a.state = 3 WHERE t.state = 4 AND t.result IS NULL AND a.result IS NULL",
    ),
    (
        "every task has its payload",
        "SELECT t.task_id FROM tasks t LEFT JOIN payloads p ON p.task_id = t.task_id WHERE p.task_id IS NULL",
    ),
    (
        "a row in payloads belongs to a task",
        "SELECT x.task_id FROM payloads x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a row in attempts belongs to a task",
        "SELECT x.task_id FROM attempts x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a row in receipts belongs to a task",
        "SELECT x.task_id FROM receipts x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a row in evidence belongs to a task",
        "SELECT x.task_id FROM evidence x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a row in events belongs to a task",
        "SELECT x.task_id FROM events x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a row in cancels belongs to a task",
        "SELECT x.task_id FROM cancels x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE t.task_id IS NULL",
    ),
    (
        "a stored answer in requests belongs to a task",
        "SELECT x.task_id FROM requests x LEFT JOIN tasks t ON t.task_id = x.task_id WHERE x.task_id IS NOT NULL AND t.task_id IS NULL",
    ),
];

impl Database {
    /// What is checked, in order.
    pub fn invariants() -> impl Iterator<Item = &'static str> {
        INVARIANTS.iter().map(|(invariant, _)| *invariant)
    }

    /// Tasks for which an invariant of [`Database::invariants`] does not hold, at most `limit`.
    pub async fn broken(&self, invariant: &'static str, limit: u32) -> Result<Vec<Broken>, Fault> {
        let Some((_, sql)) = INVARIANTS.iter().find(|(name, _)| *name == invariant) else {
            return Ok(Vec::new());
        };
        let statement = self.dialect().statement(format!("{sql} LIMIT ?"), vec![limit.into()]);
        let rows = self.reads_connection().query_all_raw(statement).await?;
        let ids = rows.iter().map(|row| row.try_get::<Uuid>("", "task_id"));
        let broken = ids.map(|id| Ok(Broken { invariant, task_id: TaskId(id?) }));
        broken.collect::<Result<_, sea_orm::DbErr>>().map_err(Fault::Permanent)
    }
}

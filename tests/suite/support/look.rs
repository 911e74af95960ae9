//! Looking at what there is, past the engine's answers; and standing in its way.

use std::time::Duration;

use orbit::{
    domain::{
        attempt::EndedAttempt,
        decide::{Cause, Decision},
        event::{Event, EventKind},
        ids::TaskId,
    },
    store::reads::{AttemptRecord, EvidenceRecord},
};

use super::{database::TestDatabase, rig::Rig};
use crate::load_sql::{Load, MIXED, routes};

/// What stands in the tables about all tasks together. Equal before and after means that nothing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture(Vec<(&'static str, i64)>);

impl Picture {
    /// All of it but these parts.
    pub(crate) fn without(&self, parts: &[&str]) -> Vec<(&'static str, i64)> {
        self.0.iter().filter(|(name, _)| !parts.contains(name)).copied().collect()
    }
}

impl TestDatabase {
    /// The database's time, in microseconds, as SQL.
    pub(crate) fn now(&self) -> &'static str {
        if self.is_mysql() {
            "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
        } else {
            "CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER)"
        }
    }

    pub(crate) async fn picture(&self) -> Picture {
        let mut seen = Vec::new();
        for (name, sql) in [
            ("states", "SELECT SUM(state * (1 + created_at % 997)) FROM tasks"),
            ("revisions", "SELECT SUM(revision) FROM tasks"),
            ("claims", "SELECT SUM(attempt_count) FROM tasks"),
            ("doubts", "SELECT SUM(effect_uncertain) FROM tasks"),
            ("available", "SELECT SUM(available_at % 1000000007) FROM tasks"),
            ("updated", "SELECT SUM(updated_at % 1000000007) FROM tasks"),
            ("payloads", "SELECT COUNT(*) FROM payloads"),
            ("ready", "SELECT SUM(available_at % 1000000007) FROM ready"),
            ("leases", "SELECT COUNT(*) FROM leases"),
            ("lease ends", "SELECT SUM(lease_until % 1000000007) FROM leases"),
            ("started", "SELECT COUNT(started_at) FROM leases"),
            ("reviews", "SELECT COUNT(*) FROM reviews"),
            ("cancels", "SELECT COUNT(*) FROM cancels"),
            ("attempts", "SELECT COUNT(*) FROM attempts"),
            ("events", "SELECT COUNT(*) FROM events"),
            ("receipts", "SELECT COUNT(*) FROM receipts"),
            ("evidence", "SELECT COUNT(*) FROM evidence"),
            ("requests", "SELECT COUNT(*) FROM requests"),
        ] {
            let sql = if sql.contains("SUM(") && self.is_mysql() {
                format!("SELECT CAST(({sql}) AS SIGNED)")
            } else {
                sql.to_owned()
            };
            seen.push((name, self.number(&sql).await));
        }
        Picture(seen)
    }

    /// From now on no row can be added to `table`. `condition` may look at the row as NEW.
    pub(crate) async fn refuse_inserts(&self, table: &str, condition: &str) {
        let body = if self.is_mysql() {
            format!(
                "FOR EACH ROW BEGIN IF {condition} THEN \
                 SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by the test'; END IF; END"
            )
        } else {
            format!("WHEN {condition} BEGIN SELECT RAISE(ABORT, 'refused by the test'); END")
        };
        self.sql(&format!("CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} {body}")).await;
    }

    /// Rows can be added again.
    pub(crate) async fn allow_inserts(&self, table: &str) {
        self.sql(&format!("DROP TRIGGER refuse_{table}")).await;
    }

    /// Adds so many tasks in all states, accepted so long ago.
    pub(crate) async fn load(&self, tasks: u64, ago: Duration) {
        for statement in routes() {
            self.sql(&statement).await;
        }
        self.load_more(0, tasks, ago, MIXED).await;
    }

    /// Adds more of them, from this number on.
    pub(crate) async fn load_more(&self, from: u64, tasks: u64, ago: Duration, state: &'static str) {
        let ago = i64::try_from(ago.as_millis()).expect("a number");
        let now_ms = self.number(self.now()).await / 1_000;
        let from_ms = u64::try_from(now_ms - ago).expect("after 1970");
        for statement in (Load { mysql: self.is_mysql(), from_ms, state }).tasks(from, tasks) {
            self.sql(&statement).await;
        }
    }

    /// All leases end now.
    pub(crate) async fn end_leases(&self) {
        self.sql(&format!("UPDATE leases SET lease_until = {}", self.now())).await;
    }
}

impl Rig {
    pub(crate) async fn events(&self, id: TaskId) -> Vec<Event> {
        let page = self.engine.database().events(id, (0, 0), 10_000).await.expect("read").expect("a task");
        page.events
    }

    pub(crate) async fn kinds(&self, id: TaskId) -> Vec<EventKind> {
        self.events(id).await.iter().map(|e| e.kind).collect()
    }

    /// The latest decision in the events, with its cause.
    pub(crate) async fn last_decision(&self, id: TaskId) -> (EventKind, Option<Decision>, Option<Cause>) {
        let events = self.events(id).await;
        let decided = events.iter().rev().find(|e| e.decision.is_some()).expect("a decision");
        (decided.kind, decided.decision, decided.cause)
    }

    pub(crate) async fn attempts(&self, id: TaskId) -> Vec<AttemptRecord> {
        let page = self.engine.database().attempts(id, 0, 10_000, 1 << 30).await.expect("read");
        page.expect("a task").attempts
    }

    pub(crate) async fn ended(&self, id: TaskId) -> Vec<EndedAttempt> {
        let ended = self.attempts(id).await.into_iter().filter_map(|a| match a {
            AttemptRecord::Ended { attempt, .. } => Some(attempt),
            AttemptRecord::Live { .. } => None,
        });
        ended.collect()
    }

    pub(crate) async fn evidence(&self, id: TaskId) -> Vec<EvidenceRecord> {
        let all = self.attempts(id).await.into_iter().flat_map(|a| match a {
            AttemptRecord::Ended { evidence, .. } | AttemptRecord::Live { evidence, .. } => evidence,
        });
        all.collect()
    }
}

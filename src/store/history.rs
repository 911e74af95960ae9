//! A task's events, read.

use std::sync::Arc;

use sea_orm::{ConnectionTrait as _, FromQueryResult};
use uuid::Uuid;

use crate::domain::{
    event::Event,
    ids::{Actor, SessionId, TaskId},
    time::Moment,
};

use super::{
    database::Database,
    error::{Fault, Inconsistency},
    rows::Distrust,
};

/// A page of events.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// Oldest first.
    pub events: Vec<Event>,
    /// The revision and ordinal after which the next page begins; none at the end.
    pub next: Option<(u32, u32)>,
}

#[derive(FromQueryResult)]
struct EventRow {
    revision: i32,
    ordinal: i32,
    kind: i16,
    at: i64,
    state: i16,
    epoch: Option<i32>,
    decision: Option<i16>,
    cause: Option<i16>,
    delay_ms: Option<i32>,
    next_available_at: Option<i64>,
    attempt_count: i32,
    max_attempts: i32,
    effect_uncertain: bool,
    principal: String,
    session_id: Option<Uuid>,
    node_id: String,
    note: Option<String>,
    evidence_refs: Option<String>,
}

impl EventRow {
    fn into_event(self, task_id: TaskId) -> Result<Event, Inconsistency> {
        let row = Distrust::new("events", format!("{task_id} revision {}", self.revision));
        let references: Vec<String> = match &self.evidence_refs {
            Some(text) => serde_json::from_str(text)
                .map_err(|_| Inconsistency::new("events", "evidence_refs", task_id, "cannot be read"))?,
            None => Vec::new(),
        };
        Ok(Event {
            kind: row.code("kind", self.kind)?,
            at: Moment::from_micros(self.at),
            revision: row.count("revision", self.revision)?,
            ordinal: row.count("ordinal", self.ordinal)?,
            state: row.code("state", self.state)?,
            epoch: self.epoch.map(|e| row.count("epoch", e)).transpose()?,
            decision: row.code_opt("decision", self.decision)?,
            cause: row.code_opt("cause", self.cause)?,
            delay_ms: self.delay_ms.map(|d| row.count("delay_ms", d)).transpose()?,
            next_available_at: self.next_available_at.map(Moment::from_micros),
            attempt_count: row.count("attempt_count", self.attempt_count)?,
            max_attempts: row.count("max_attempts", self.max_attempts)?,
            effect_uncertain: self.effect_uncertain,
            actor: Actor {
                principal: Arc::from(self.principal),
                session_id: self.session_id.map(SessionId),
                node_id: self.node_id.into(),
            },
            note: self.note,
            references,
        })
    }
}

impl Database {
    /// A page of a task's events, oldest first, after a revision and ordinal; none if there is no such task.
    pub async fn events(
        &self,
        id: TaskId,
        after: (u32, u32),
        limit: u32,
    ) -> Result<Option<EventPage>, Fault> {
        let sql = "SELECT revision, ordinal, kind, at, state, epoch, decision, cause, delay_ms, next_available_at, \
                   attempt_count, max_attempts, effect_uncertain, principal, session_id, node_id, note, evidence_refs \
                   FROM events WHERE task_id = ? AND (revision > ? OR (revision = ? AND ordinal > ?)) \
                   ORDER BY revision, ordinal LIMIT ?";
        let (revision, ordinal) = after;
        let values = vec![id.0.into(), revision.into(), revision.into(), ordinal.into(), (limit + 1).into()];
        let rows = self.reads_connection().query_all_raw(self.dialect().statement(sql, values)).await?;
        let rows: Result<Vec<EventRow>, _> =
            rows.iter().map(|r| EventRow::from_query_result(r, "")).collect();
        let rows = rows.map_err(Fault::Permanent)?;
        // Every task has its first event; a later page may be empty.
        if rows.is_empty() && self.task(id, false).await?.is_none() {
            return Ok(None);
        }
        let more = rows.len() > limit as usize;
        let events: Result<Vec<Event>, _> =
            rows.into_iter().take(limit as usize).map(|r| r.into_event(id)).collect();
        let events = events?;
        let next = events.last().filter(|_| more).map(|e| (e.revision, e.ordinal));
        Ok(Some(EventPage { events, next }))
    }
}

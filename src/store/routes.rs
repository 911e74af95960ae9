//! Routes: the small numbers that stand for (queue, handler, version). They are never removed, so what was read once is
//! kept.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use sea_orm::{ConnectionTrait, FromQueryResult};

use crate::domain::ids::{QueueNo, Route, RouteNo};

use super::{database::Database, dialect::Dialect, error::Fault};

/// What a route's number stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The numbers.
    pub route: Route,
    /// The queue's name.
    pub queue_id: Arc<str>,
    /// The handler.
    pub handler: Arc<str>,
    /// Its version.
    pub handler_version: Arc<str>,
}

/// All routes known so far.
#[derive(Default)]
pub struct Routes {
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    by_no: HashMap<RouteNo, RouteInfo>,
    /// By queue, handler and version.
    by_name: HashMap<[Arc<str>; 3], Route>,
}

#[derive(FromQueryResult)]
struct RouteRow {
    id: i32,
    queue: i32,
    queue_id: String,
    handler: String,
    handler_version: String,
}

impl Routes {
    /// What a number stands for.
    pub fn get(&self, no: RouteNo) -> Option<RouteInfo> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_no.get(&no).cloned()
    }

    /// All routes known so far.
    pub fn all(&self) -> Vec<RouteInfo> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_no.values().cloned().collect()
    }

    fn find(&self, queue_id: &str, handler: &str, version: &str) -> Option<Route> {
        let key = [queue_id.into(), handler.into(), version.into()];
        self.known.read().unwrap_or_else(PoisonError::into_inner).by_name.get(&key).copied()
    }

    /// Reads all routes.
    pub(super) async fn load(&self, db: &impl ConnectionTrait, dialect: Dialect) -> Result<(), Fault> {
        let sql = "SELECT r.id, r.queue, q.queue_id, r.handler, r.handler_version \
                   FROM routes r JOIN queues q ON q.id = r.queue";
        let rows = db.query_all_raw(dialect.statement(sql, vec![])).await?;
        let rows: Result<Vec<RouteRow>, _> =
            rows.iter().map(|r| RouteRow::from_query_result(r, "")).collect();
        let rows = rows.map_err(Fault::Permanent)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let route = Route { route: RouteNo(row.id), queue: QueueNo(row.queue) };
            let info = RouteInfo {
                route,
                queue_id: row.queue_id.into(),
                handler: row.handler.into(),
                handler_version: row.handler_version.into(),
            };
            let key = [info.queue_id.clone(), info.handler.clone(), info.handler_version.clone()];
            known.by_name.insert(key, route);
            known.by_no.insert(route.route, info);
        }
        Ok(())
    }
}

impl Database {
    /// The route of a queue and a handler, made if it is new; none if there is no such queue.
    pub async fn route(&self, queue_id: &str, handler: &str, version: &str) -> Result<Option<Route>, Fault> {
        if let Some(route) = self.routes().find(queue_id, handler, version) {
            return Ok(Some(route));
        }
        let dialect = self.dialect();
        let sql = format!(
            "INSERT INTO routes (queue, handler, handler_version, created_at) \
             SELECT id, ?, ?, {} FROM queues WHERE queue_id = ?",
            dialect.now()
        );
        let values = vec![handler.into(), version.into(), queue_id.into()];
        match self.write(dialect.statement(sql, values)).await {
            // Somebody else made it meanwhile.
            Ok(_) | Err(Fault::Duplicate(_)) => {}
            Err(fault) => return Err(fault),
        }
        self.routes().load(&self.reads_connection(), dialect).await?;
        Ok(self.routes().find(queue_id, handler, version))
    }
}

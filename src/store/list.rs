//! A page of tasks, newest first, with bounded work (docs/decisions/0005-lists-and-retention.md).

use sea_orm::{ConnectionTrait as _, QueryResult, Value};
use uuid::Uuid;

use crate::domain::{ids::TaskId, report::TaskError, task::StateName, time::Moment};

use super::{
    codes::Code as _,
    database::Database,
    dialect::{Dialect, ROWS_MAX},
    error::Fault,
    reads::{TaskRecord, record_sql},
};

/// How many rows one page looks at, at most: few at first, since most pages are full after that.
const SCAN_ROWS: [u32; 2] = [1_000, 4_000];
/// Up to so many routes are walked each by its own index; with more, the filter is applied to all tasks.
const ROUTES_MAX: usize = 16;
/// How often one page looks at [`ROWS_MAX`] tasks that have not ended, at most.
const OPEN_LOOKS: u32 = 16;
/// While so few tasks wait, all of `ready` is sorted for a page: it is not kept by id, since an index for that would be
/// written twice in the life of every task. With more of them the tasks themselves are walked.
const READY_ROWS_MAX: i64 = 2_000;
/// How many tasks are loaded at once: their errors may be large.
const LOAD_ROWS: usize = 32;

/// Which tasks to list.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Of this queue.
    pub queue_id: Option<String>,
    /// For this handler, whatever its version.
    pub handler: Option<String>,
    /// In one of these states; in any if there is none.
    pub states: Vec<StateName>,
    /// With, or without, a doubt.
    pub effect_uncertain: Option<bool>,
    /// Created then or later.
    pub created_after: Option<Moment>,
    /// Created before then.
    pub created_before: Option<Moment>,
}

/// A page of tasks.
#[derive(Clone, Debug)]
pub struct TaskPage {
    /// Newest first.
    pub tasks: Vec<TaskRecord>,
    /// The next page has tasks before this id; none at the end.
    pub next: Option<TaskId>,
}

/// Where to look.
enum Source {
    /// In the small tables of what has not ended.
    Open(Vec<&'static str>),
    /// Among all tasks, by the primary key.
    All,
    /// Among the tasks of these routes, by the index of each.
    Routes(Vec<i32>),
}

/// A filter, made ready.
struct Search {
    source: Source,
    conditions: String,
    values: Vec<Value>,
    /// Ids lie at or above this one, and below that one.
    ids: (Uuid, Uuid),
}

/// What was found, newest first, and below which id to go on; none at the end.
type Found = (Vec<Uuid>, Option<Uuid>);

impl Database {
    /// A page of tasks, newest first, before an id. It ends at `limit` tasks, or when their errors pass `bytes_max`, or
    /// when enough rows were looked at: then it may have few tasks, or none, and there is a next page all the same.
    pub async fn tasks(
        &self,
        filter: &TaskFilter,
        before: Option<TaskId>,
        limit: u32,
        bytes_max: usize,
    ) -> Result<TaskPage, Fault> {
        let Some(search) = self.search(filter).await? else {
            return Ok(TaskPage { tasks: Vec::new(), next: None });
        };
        let cursor = before.map_or(search.ids.1, |id| id.0.min(search.ids.1));
        let (mut found, mut next) = match &search.source {
            Source::Open(tables) => self.among_open(&search, tables, cursor, limit).await?,
            Source::All => self.walked(&search, &[None], cursor, limit).await?,
            Source::Routes(routes) => {
                let routes: Vec<_> = routes.iter().copied().map(Some).collect();
                self.walked(&search, &routes, cursor, limit).await?
            }
        };
        if found.len() > limit as usize {
            found.truncate(limit as usize);
            next = found.last().copied();
        }
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        let mut batches = found.chunks(LOAD_ROWS);
        while let Some(ids) = batches.next() {
            let loaded = self.load_tasks(&search, ids).await?;
            bytes += loaded.iter().filter_map(|t| t.error.as_ref()).map(error_bytes).sum::<usize>();
            tasks.extend(loaded);
            if bytes > bytes_max && batches.len() > 0 {
                next = ids.last().copied();
                break;
            }
        }
        Ok(TaskPage { tasks, next: next.map(TaskId) })
    }

    /// How to search; none if nothing can be found.
    async fn search(&self, filter: &TaskFilter) -> Result<Option<Search>, Fault> {
        let mut states = filter.states.clone();
        if filter.effect_uncertain == Some(true) {
            // An ended task is never in doubt: only the others need to be looked at.
            if states.is_empty() {
                states = OPEN.to_vec();
            }
            states.retain(|s| OPEN.contains(s));
            if states.is_empty() {
                return Ok(None);
            }
        }
        let routes = match (&filter.queue_id, &filter.handler) {
            (None, None) => None,
            (queue_id, handler) => Some(self.routes_of(queue_id.as_deref(), handler.as_deref()).await?),
        };
        if routes.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        if !states.is_empty() {
            let codes: Vec<String> = states.iter().map(|s| s.code().to_string()).collect();
            conditions.push(format!("t.state IN ({})", codes.join(", ")));
        }
        if let Some(doubt) = filter.effect_uncertain {
            conditions.push("t.effect_uncertain = ?".to_owned());
            values.push(doubt.into());
        }
        for (at, comparison) in [(filter.created_after, ">="), (filter.created_before, "<")] {
            if let Some(at) = at {
                conditions.push(format!("t.created_at {comparison} ?"));
                values.push(at.micros().into());
            }
        }
        let source = match (self.open_tables(&states).await?, &routes) {
            (Some(tables), _) => Source::Open(tables),
            (None, Some(routes)) if routes.len() <= ROUTES_MAX => Source::Routes(routes.clone()),
            (None, _) => Source::All,
        };
        if let (Some(routes), Source::Open(_) | Source::All) = (&routes, &source) {
            let (list, mut numbers) = Dialect::in_list(routes);
            // The sign keeps SQLite from walking the index of routes instead.
            conditions.push(format!("+t.route IN {list}"));
            values.append(&mut numbers);
        }
        let ids = (
            // An id tells to the millisecond when its task was created.
            filter.created_after.map_or(Uuid::nil(), |at| TaskId::first_at(at).0),
            filter.created_before.map_or(Uuid::max(), |at| TaskId::first_at(at.plus_ms(1)).0),
        );
        Ok(Some(Search { source, conditions: conditions.join(" AND "), values, ids }))
    }

    async fn routes_of(&self, queue_id: Option<&str>, handler: Option<&str>) -> Result<Vec<i32>, Fault> {
        let (mut conditions, mut values) = (Vec::new(), Vec::<Value>::new());
        for (column, name) in [("q.queue_id", queue_id), ("r.handler", handler)] {
            if let Some(name) = name {
                conditions.push(format!("{column} = ?"));
                values.push(name.into());
            }
        }
        let sql = format!(
            "SELECT r.id FROM routes r JOIN queues q ON q.id = r.queue WHERE {}",
            conditions.join(" AND ")
        );
        let rows = self.list_rows(sql, values).await?;
        rows.iter().map(|r| r.try_get("", "id").map_err(Fault::Permanent)).collect()
    }

    /// The tables that hold just the tasks in these states, if there are such, and they can be read in the order of ids.
    async fn open_tables(&self, states: &[StateName]) -> Result<Option<Vec<&'static str>>, Fault> {
        if states.is_empty() || !states.iter().all(|s| OPEN.contains(s)) {
            return Ok(None);
        }
        let has = |some: &[StateName]| states.iter().any(|s| some.contains(s));
        let mut tables = Vec::new();
        if has(&[StateName::Waiting]) {
            let sql = "SELECT COUNT(*) AS n FROM (SELECT 1 FROM ready LIMIT ?) AS some";
            let rows = self.list_rows(sql.to_owned(), vec![(READY_ROWS_MAX + 1).into()]).await?;
            let waiting: i64 =
                rows.first().map_or(Ok(0), |r| r.try_get("", "n")).map_err(Fault::Permanent)?;
            if waiting > READY_ROWS_MAX {
                return Ok(None);
            }
            tables.push("ready");
        }
        if has(&[StateName::Leased, StateName::Running]) {
            tables.push("leases");
        }
        if has(&[StateName::NeedsReview]) {
            tables.push("reviews");
        }
        Ok(Some(tables))
    }

    /// Looks at what has not ended. A task is in one of the tables; all are read in one statement, so that one that moves
    /// from one to another is seen.
    async fn among_open(
        &self,
        search: &Search,
        tables: &[&str],
        mut cursor: Uuid,
        limit: u32,
    ) -> Result<Found, Fault> {
        let (mut found, mut end) = (Vec::new(), None);
        for _ in 0..OPEN_LOOKS {
            let candidates = self.open_tasks(search, tables, cursor).await?;
            let (list, mut values) = Dialect::in_list(&candidates);
            values.extend(search.values.iter().cloned());
            let sql = format!(
                "SELECT t.task_id FROM tasks t{} WHERE t.task_id IN {list} AND {} ORDER BY t.task_id DESC",
                self.dialect().force_primary(),
                search.conditions
            );
            if !candidates.is_empty() {
                found.extend(ids(&self.list_rows(sql, values).await?)?);
            }
            end = candidates.last().copied().filter(|_| candidates.len() == ROWS_MAX);
            match end {
                Some(end) if found.len() <= limit as usize => cursor = end,
                _ => break,
            }
        }
        Ok((found, end))
    }

    /// The next ids of what has not ended, [`ROWS_MAX`] at most.
    async fn open_tasks(&self, search: &Search, tables: &[&str], cursor: Uuid) -> Result<Vec<Uuid>, Fault> {
        let rows: Value = u32::try_from(ROWS_MAX).unwrap_or(u32::MAX).into();
        let (mut members, mut values) = (Vec::new(), Vec::<Value>::new());
        for table in tables {
            members.push(format!(
                "SELECT * FROM (SELECT task_id FROM {table} WHERE task_id < ? AND task_id >= ? \
                 ORDER BY task_id DESC LIMIT ?) AS in_{table}"
            ));
            values.extend([cursor.into(), search.ids.0.into(), rows.clone()]);
        }
        let sql = format!("{} ORDER BY task_id DESC LIMIT ?", members.join(" UNION ALL "));
        values.push(rows);
        ids(&self.list_rows(sql, values).await?)
    }

    /// Looks at tasks themselves, of all routes (none) or of some, each by its own index.
    async fn walked(
        &self,
        search: &Search,
        routes: &[Option<i32>],
        mut cursor: Uuid,
        limit: u32,
    ) -> Result<Found, Fault> {
        let (mut found, mut end) = (Vec::new(), None);
        for rows in SCAN_ROWS {
            end = self.scan_end(search, routes, cursor, rows).await?;
            let need = limit + 1 - u32::try_from(found.len()).unwrap_or(limit);
            found.extend(self.hits(search, routes, end.unwrap_or(search.ids.0), cursor, need).await?);
            match end {
                Some(end) if found.len() <= limit as usize => cursor = end,
                _ => break,
            }
        }
        Ok((found, end))
    }

    /// The table with the index that is walked, the condition that keeps to the route, and the order.
    fn walk(&self, route: Option<i32>, values: &mut Vec<Value>) -> (String, &'static str, &'static str) {
        let dialect = self.dialect();
        match route {
            Some(route) => {
                values.push(route.into());
                let table = format!("tasks t{}", dialect.force_index("tasks_route"));
                (table, "t.route = ? AND ", "t.route DESC, t.task_id DESC")
            }
            None => (format!("tasks t{}", dialect.force_primary()), "", "t.task_id DESC"),
        }
    }

    /// Down to which id there are so many rows below `cursor`, of all routes together; none if there are fewer.
    async fn scan_end(
        &self,
        search: &Search,
        routes: &[Option<i32>],
        cursor: Uuid,
        rows: u32,
    ) -> Result<Option<Uuid>, Fault> {
        // Without a condition every row is a hit, and the page's size is the bound.
        if search.conditions.is_empty() {
            return Ok(None);
        }
        let each = rows / u32::try_from(routes.len()).unwrap_or(1).max(1);
        let mut end = None;
        for route in routes {
            let mut values = Vec::new();
            let (walked, only, order) = self.walk(*route, &mut values);
            values.extend([cursor.into(), search.ids.0.into(), each.saturating_sub(1).into()]);
            let sql = format!(
                "SELECT t.task_id FROM {walked} WHERE {only}t.task_id < ? AND t.task_id >= ? \
                 ORDER BY {order} LIMIT 1 OFFSET ?"
            );
            for id in ids(&self.list_rows(sql, values).await?)? {
                end = end.max(Some(id));
            }
        }
        Ok(end)
    }

    /// The tasks that are searched for from `cursor`, which is not among them, down to `low`, which may be.
    async fn hits(
        &self,
        search: &Search,
        routes: &[Option<i32>],
        low: Uuid,
        cursor: Uuid,
        need: u32,
    ) -> Result<Vec<Uuid>, Fault> {
        let (mut members, mut values) = (Vec::new(), Vec::new());
        let mut conditions = String::new();
        if !search.conditions.is_empty() {
            conditions = format!(" AND {}", search.conditions);
        }
        for (i, route) in routes.iter().enumerate() {
            let (walked, only, order) = self.walk(*route, &mut values);
            values.extend([cursor.into(), low.into()]);
            values.extend(search.values.iter().cloned());
            members.push(format!(
                "SELECT * FROM (SELECT t.task_id FROM {walked} \
                 WHERE {only}t.task_id < ? AND t.task_id >= ?{conditions} ORDER BY {order} LIMIT ?) AS m{i}"
            ));
            values.push(need.into());
        }
        let sql = format!("{} ORDER BY task_id DESC LIMIT ?", members.join(" UNION ALL "));
        values.push(need.into());
        ids(&self.list_rows(sql, values).await?)
    }

    /// These tasks, newest first, as far as they are still what is searched for.
    async fn load_tasks(&self, search: &Search, ids: &[Uuid]) -> Result<Vec<TaskRecord>, Fault> {
        let (list, mut values) = Dialect::in_list(ids);
        let mut conditions = String::new();
        if !search.conditions.is_empty() {
            conditions = format!(" AND {}", search.conditions);
            values.extend(search.values.iter().cloned());
        }
        let read = record_sql(false, self.dialect().force_primary());
        let sql = format!("{read} WHERE t.task_id IN {list}{conditions} ORDER BY t.task_id DESC");
        let mut tasks = Vec::with_capacity(ids.len());
        for row in self.list_rows(sql, values).await? {
            tasks.push(self.record(&row).await?);
        }
        Ok(tasks)
    }

    async fn list_rows(&self, sql: String, values: Vec<Value>) -> Result<Vec<QueryResult>, Fault> {
        Ok(self.reads_connection().query_all_raw(self.dialect().statement(sql, values)).await?)
    }
}

/// The states of tasks that are in a hot table.
const OPEN: [StateName; 4] =
    [StateName::Waiting, StateName::Leased, StateName::Running, StateName::NeedsReview];

fn ids(rows: &[QueryResult]) -> Result<Vec<Uuid>, Fault> {
    rows.iter().map(|r| r.try_get("", "task_id").map_err(Fault::Permanent)).collect()
}

fn error_bytes(error: &TaskError) -> usize {
    error.code.len() + error.message.len() + error.details.as_ref().map_or(0, |d| d.as_str().len())
}

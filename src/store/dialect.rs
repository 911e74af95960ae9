//! Every difference between the databases, and the shapes of multi-row statements.
//!
//! Multi-row statements come in few sizes, so that each connection's statement cache holds them all: re-preparing costs
//! a round trip, and on MySQL over TCP far more (see docs/decisions/0003-sql.md).

use std::fmt::Write as _;

use sea_orm::{DbBackend, Statement, Value};

use super::columns::Row;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// MySQL 8 and later.
    MySql,
    /// MariaDB 10.6 and later.
    MariaDb,
    /// SQLite.
    Sqlite,
}

/// The type of a column, as far as a bare parameter must be told it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Sixteen bytes.
    Id,
    /// Any integer.
    Int,
}

/// Sizes of multi-row statements: fine enough that any number of rows takes two or three, and few enough that the server
/// keeps them all prepared.
const BUCKETS: [usize; 18] = [256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 7, 6, 5, 4, 3, 2, 1];

/// So many rows, on average, must be alike for lists of ids to be worth their statements.
const ALIKE_MEAN: usize = 4;

/// The most rows of one statement.
pub(super) const ROWS_MAX: usize = 256;

impl Dialect {
    pub(super) const fn backend(self) -> DbBackend {
        match self {
            Self::MySql | Self::MariaDb => DbBackend::MySql,
            Self::Sqlite => DbBackend::Sqlite,
        }
    }

    pub(super) fn statement(self, sql: impl Into<String>, values: Vec<Value>) -> Statement {
        Statement::from_sql_and_values(self.backend(), sql, values)
    }

    /// The database's time, as microseconds since the epoch.
    pub(super) const fn now(self) -> &'static str {
        match self {
            Self::MySql | Self::MariaDb => {
                "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
            }
            Self::Sqlite => "CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER)",
        }
    }

    pub(super) const fn for_update(self) -> &'static str {
        match self {
            Self::MySql | Self::MariaDb => " FOR UPDATE",
            // The writer holds the whole database.
            Self::Sqlite => "",
        }
    }

    pub(super) const fn for_update_skip_locked(self) -> &'static str {
        match self {
            Self::MySql | Self::MariaDb => " FOR UPDATE SKIP LOCKED",
            Self::Sqlite => "",
        }
    }

    pub(super) const fn for_share(self) -> &'static str {
        match self {
            Self::MySql => " FOR SHARE",
            Self::MariaDb => " LOCK IN SHARE MODE",
            Self::Sqlite => "",
        }
    }

    /// Keeps the optimizer from scanning (and locking) a whole small table.
    pub(super) const fn force_primary(self) -> &'static str {
        match self {
            Self::MySql | Self::MariaDb => " FORCE INDEX (PRIMARY)",
            Self::Sqlite => "",
        }
    }

    /// Keeps the optimizer to one index.
    pub(super) fn force_index(self, name: &str) -> String {
        match self {
            Self::MySql | Self::MariaDb => format!(" FORCE INDEX ({name})"),
            Self::Sqlite => format!(" INDEXED BY {name}"),
        }
    }

    /// The smaller of two expressions.
    pub(super) fn least(self, a: &str, b: &str) -> String {
        match self {
            Self::MySql | Self::MariaDb => format!("LEAST({a}, {b})"),
            Self::Sqlite => format!("MIN({a}, {b})"),
        }
    }

    /// The larger of two expressions.
    pub(super) fn greatest(self, a: &str, b: &str) -> String {
        match self {
            Self::MySql | Self::MariaDb => format!("GREATEST({a}, {b})"),
            Self::Sqlite => format!("MAX({a}, {b})"),
        }
    }

    /// `INSERT INTO table (columns) VALUES …`, as few statements as the sizes allow. Columns that are null in all rows are
    /// left out: every parameter costs.
    pub(super) fn inserts(self, table: &str, columns: &[&str], rows: Vec<Row>) -> Vec<Statement> {
        let given: Vec<bool> =
            (0..columns.len()).map(|i| rows.iter().any(|row| row[i] != row[i].as_null())).collect();
        let names: Vec<&str> =
            columns.iter().zip(&given).filter_map(|(name, g)| g.then_some(*name)).collect();
        let mut statements = Vec::new();
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let size = BUCKETS.into_iter().find(|b| *b <= rows.len()).unwrap_or(1);
            let values = rows.by_ref().take(size).flat_map(|row| row.into_iter().zip(&given));
            let values: Vec<Value> = values.filter_map(|(value, g)| g.then_some(value)).collect();
            let mut sql = format!("INSERT INTO {table} ({}) VALUES ", names.join(", "));
            push_tuples(&mut sql, names.len(), size);
            statements.push(self.statement(sql, values));
        }
        statements
    }

    /// Updates rows by key: `keys` must match, `sets` are assigned. Both are columns of each row, in this order. Answers
    /// the statements, and how many rows each must find.
    pub(super) fn updates(
        self,
        table: &str,
        keys: &[(&str, Kind)],
        sets: &[(&str, Kind)],
        rows: Vec<Row>,
    ) -> Vec<(Statement, usize)> {
        match self.alike(keys, rows) {
            Ok(groups) => groups
                .into_iter()
                .map(|mut group| {
                    // The guards stand behind what is assigned.
                    group.others.rotate_left(keys.len() - 1);
                    let sets = join(sets, ", ", |name| format!("{name} = ?"));
                    group.statement(self, keys, &format!("UPDATE {table}{} SET {sets}", self.force_primary()))
                })
                .collect(),
            Err(rows) => each(rows, |rows| self.update(table, keys, sets, rows)),
        }
    }

    /// Deletes rows by primary key, or by its beginning. Answers as [`Self::updates`].
    pub(super) fn deletes(
        self,
        table: &str,
        keys: &[(&str, Kind)],
        rows: Vec<Row>,
    ) -> Vec<(Statement, usize)> {
        let hint =
            if self == Self::MySql { format!(" /*+ INDEX({table} PRIMARY) */") } else { String::new() };
        let delete = format!("DELETE{hint} FROM {table}");
        match self.alike(keys, rows) {
            Ok(groups) => groups.into_iter().map(|group| group.statement(self, keys, &delete)).collect(),
            Err(rows) => each(rows, |rows| self.delete(table, keys, rows)),
        }
    }

    /// Groups of rows that differ in their task's id alone, as those of commands of one kind do: a list of ids costs a
    /// fraction of a join. If too many rows differ in more, all are given back.
    fn alike(self, keys: &[(&str, Kind)], rows: Vec<Row>) -> Result<Vec<Alike>, Vec<Row>> {
        let id = keys.iter().position(|(name, _)| *name == "task_id");
        // No hint keeps a MariaDB's DELETE to one index.
        let Some(id) = id.filter(|_| self != Self::MariaDb) else {
            return Err(rows);
        };
        let same = |a: &Row, b: &Row| a[..id] == b[..id] && a[id + 1..] == b[id + 1..];
        let groups_max = (rows.len() / ALIKE_MEAN).max(1);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let full = groups.len() == groups_max;
            match groups.iter_mut().find(|g| g.len() < ROWS_MAX && same(&rows[g[0]], row)) {
                Some(group) => group.push(i),
                None if full => return Err(rows),
                None => groups.push(vec![i]),
            }
        }
        let group = |of: &Vec<usize>| {
            let mut others = rows[of[0]].clone();
            others.remove(id);
            Alike { others, ids: of.iter().map(|i| rows[*i][id].clone()).collect() }
        };
        Ok(groups.iter().map(group).collect())
    }

    fn update(self, table: &str, keys: &[(&str, Kind)], sets: &[(&str, Kind)], rows: Vec<Row>) -> Statement {
        let columns: Vec<(&str, Kind)> = keys.iter().chain(sets).copied().collect();
        let matches = join(keys, " AND ", |name| format!("t.{name} = v.k_{name}"));
        let names = |v: &str| -> Vec<String> {
            let keys = keys.iter().map(|(n, _)| format!("{v}k_{n}"));
            keys.chain(sets.iter().map(|(n, _)| format!("{v}s_{n}"))).collect()
        };
        let (size, values) = padded(rows, &columns);
        let sql = match self {
            Self::MySql | Self::MariaDb => format!(
                "UPDATE ({}) AS v STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY) ON {matches} SET {}",
                self.derived_rows(&columns, &names(""), size),
                join(sets, ", ", |name| format!("t.{name} = v.s_{name}")),
            ),
            Self::Sqlite => format!(
                "UPDATE {table} AS t SET {} FROM ({}) AS v WHERE {matches}",
                join(sets, ", ", |name| format!("{name} = v.s_{name}")),
                self.derived_rows(&columns, &names(""), size),
            ),
        };
        self.statement(sql, values)
    }

    /// Deletes rows by primary key, or by its beginning, at most [`ROWS_MAX`].
    pub(super) fn delete(self, table: &str, keys: &[(&str, Kind)], rows: Vec<Row>) -> Statement {
        self.delete_by("PRIMARY", table, keys, rows)
    }

    /// Deletes rows by the key of an index, or by its beginning.
    pub(super) fn delete_by(
        self,
        index: &str,
        table: &str,
        keys: &[(&str, Kind)],
        rows: Vec<Row>,
    ) -> Statement {
        let (size, values) = padded(rows, keys);
        let names: Vec<String> = keys.iter().map(|(n, _)| format!("k_{n}")).collect();
        let sql = match self {
            Self::MySql | Self::MariaDb => format!(
                "DELETE t FROM ({}) AS v STRAIGHT_JOIN {table} AS t FORCE INDEX ({index}) ON {}",
                self.derived_rows(keys, &names, size),
                join(keys, " AND ", |name| format!("t.{name} = v.k_{name}")),
            ),
            Self::Sqlite => {
                let mut sql =
                    format!("DELETE FROM {table} WHERE ({}) IN (VALUES ", join(keys, ", ", str::to_owned));
                push_tuples(&mut sql, keys.len(), size);
                sql.push(')');
                sql
            }
        };
        self.statement(sql, values)
    }

    /// Rows of parameters as a derived table with the given column names.
    fn derived_rows(self, columns: &[(&str, Kind)], names: &[String], size: usize) -> String {
        match self {
            // An uncast parameter in a row constructor is text.
            Self::MySql => {
                let row = join(columns, ", ", |_| String::from("?"));
                let casts: Vec<String> = columns.iter().map(|(_, kind)| kind.cast()).collect();
                debug_assert_eq!(row.matches('?').count(), casts.len());
                let row = format!("ROW({})", casts.join(", "));
                let rows = vec![row; size].join(", ");
                let select: Vec<String> =
                    names.iter().enumerate().map(|(i, n)| format!("column_{i} AS {n}")).collect();
                format!("SELECT {} FROM (VALUES {rows}) AS r", select.join(", "))
            }
            Self::MariaDb | Self::Sqlite => {
                let mut sql = String::new();
                for i in 0..size {
                    let columns: Vec<String> = columns
                        .iter()
                        .zip(names)
                        .map(|((_, kind), n)| {
                            let value = if self == Self::Sqlite { "?".to_owned() } else { kind.cast() };
                            if i == 0 { format!("{value} AS {n}") } else { value }
                        })
                        .collect();
                    let union = if i == 0 { "" } else { " UNION ALL " };
                    // Writing to a String cannot fail.
                    let _ = write!(sql, "{union}SELECT {}", columns.join(", "));
                }
                sql
            }
        }
    }

    /// `(?, ?, …)` for a list of at least `len` values, padded by repeating the last one, which matches nothing twice.
    pub(super) fn in_list<T: Clone + Into<Value>>(values: &[T]) -> (String, Vec<Value>) {
        let size = bucket(values.len());
        let mut list = Vec::with_capacity(size);
        list.extend(values.iter().cloned().map(Into::into));
        if let Some(last) = values.last() {
            list.resize(size.max(1), last.clone().into());
        }
        (format!("({})", vec!["?"; list.len()].join(", ")), list)
    }

    /// `((?, ?), …)` for a list of tuples, padded the same way.
    pub(super) fn in_tuples(self, tuples: &[Vec<Value>]) -> (String, Vec<Value>) {
        let size = bucket(tuples.len());
        let width = tuples.first().map_or(0, Vec::len);
        let mut list: Vec<Value> = tuples.iter().flatten().cloned().collect();
        if let Some(last) = tuples.last() {
            for _ in tuples.len()..size {
                list.extend(last.iter().cloned());
            }
        }
        let mut sql = String::from(if self == Self::Sqlite { "(VALUES " } else { "(" });
        push_tuples(&mut sql, width, size);
        sql.push(')');
        (sql, list)
    }
}

/// Rows that are equal but for the task's id.
struct Alike {
    /// The values of the other keys, and of what is assigned.
    others: Vec<Value>,
    ids: Vec<Value>,
}

impl Alike {
    /// `verb` with the keys as its condition, and how many rows it must find.
    fn statement(self, dialect: Dialect, keys: &[(&str, Kind)], verb: &str) -> (Statement, usize) {
        let (list, ids) = Dialect::in_list(&self.ids);
        let others = keys.iter().filter(|(name, _)| *name != "task_id");
        let guards = others.fold(String::new(), |sql, (name, _)| sql + name + " = ? AND ");
        let mut values = self.others;
        values.extend(ids);
        (dialect.statement(format!("{verb} WHERE {guards}task_id IN {list}"), values), self.ids.len())
    }
}

fn each(rows: Vec<Row>, statement: impl Fn(Vec<Row>) -> Statement) -> Vec<(Statement, usize)> {
    let mut rows = rows.into_iter();
    let mut statements = Vec::new();
    while rows.len() > 0 {
        let chunk: Vec<Row> = rows.by_ref().take(ROWS_MAX).collect();
        let found = chunk.len();
        statements.push((statement(chunk), found));
    }
    statements
}

impl Kind {
    fn cast(self) -> String {
        match self {
            Self::Id => "CAST(? AS BINARY(16))".to_owned(),
            Self::Int => "CAST(? AS SIGNED)".to_owned(),
        }
    }

    fn null(self) -> Value {
        match self {
            Self::Id => Value::Bytes(None),
            Self::Int => Value::BigInt(None),
        }
    }
}

/// The smallest size that holds `len` rows.
fn bucket(len: usize) -> usize {
    BUCKETS.into_iter().rev().find(|b| *b >= len).unwrap_or(len)
}

/// Fills up with rows of nulls, whose keys match nothing.
fn padded(rows: Vec<Row>, columns: &[(&str, Kind)]) -> (usize, Vec<Value>) {
    let size = bucket(rows.len());
    let missing = size - rows.len();
    let nulls = (0..missing).flat_map(|_| columns.iter().map(|(_, kind)| kind.null()));
    (size, rows.into_iter().flatten().chain(nulls).collect())
}

fn push_tuples(sql: &mut String, width: usize, count: usize) {
    let tuple = format!("({})", vec!["?"; width].join(", "));
    for i in 0..count {
        if i > 0 {
            sql.push_str(", ");
        }
        sql.push_str(&tuple);
    }
}

fn join(columns: &[(&str, Kind)], separator: &str, f: impl Fn(&str) -> String) -> String {
    columns.iter().map(|(name, _)| f(name)).collect::<Vec<_>>().join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, Kind); 2] = [("task_id", Kind::Id), ("revision", Kind::Int)];
    const SETS: [(&str, Kind); 1] = [("state", Kind::Int)];

    fn found(dialect: Dialect, rows: Vec<Row>) -> Vec<(bool, usize)> {
        let statements = dialect.updates("tasks", &KEYS, &SETS, rows);
        statements.iter().map(|(s, found)| (s.sql.contains("task_id IN"), *found)).collect()
    }

    fn rows(count: u8, revisions: u8) -> Vec<Row> {
        (0..count).map(|i| vec![vec![i; 16].into(), i64::from(i % revisions).into(), 2.into()]).collect()
    }

    #[test]
    fn rows_alike_become_lists_and_others_a_join() {
        let sqlite = |rows| found(Dialect::Sqlite, rows);
        assert_eq!(sqlite(rows(0, 1)), []);
        assert_eq!(sqlite(rows(1, 1)), [(true, 1)]);
        assert_eq!(sqlite(rows(8, 2)), [(true, 4), (true, 4)]);
        assert_eq!(sqlite(rows(8, 3)), [(false, 8)]);
        let many = [rows(200, 1), rows(100, 1)].concat();
        assert_eq!(sqlite(many.clone()), [(true, 256), (true, 44)]);
        assert_eq!(found(Dialect::MariaDb, many), [(false, 256), (false, 44)]);
    }

    #[test]
    fn guards_stand_between_what_is_assigned_and_the_ids() {
        let (statement, _) = Dialect::MySql.updates("tasks", &KEYS, &SETS, rows(1, 1)).remove(0);
        let sql = "UPDATE tasks FORCE INDEX (PRIMARY) SET state = ? WHERE revision = ? AND task_id IN (?)";
        assert_eq!(statement.sql, sql);
        let values = statement.values.expect("it has some").0;
        assert_eq!(values, [2.into(), 0_i64.into(), Value::from(vec![0_u8; 16])]);
    }

    #[test]
    fn columns_that_are_null_in_all_rows_are_left_out() {
        let rows = vec![
            vec![1.into(), Value::Int(None), Value::Int(None)],
            vec![2.into(), Value::Int(None), 3.into()],
        ];
        let statement = Dialect::MySql.inserts("t", &["a", "b", "c"], rows).remove(0);
        assert_eq!(statement.sql, "INSERT INTO t (a, c) VALUES (?, ?), (?, ?)");
        assert_eq!(
            statement.values.expect("it has some").0,
            [1.into(), Value::Int(None), 2.into(), 3.into()]
        );
    }
}

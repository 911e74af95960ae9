//! Every difference between the databases, and the shapes of multi-row statements.
//!
//! Multi-row statements come in few sizes, so that each connection's statement cache holds them all: re-preparing costs
//! a round trip, and on MySQL over TCP far more (see docs/decisions/0003-sql.md).

use std::fmt::Write as _;

use sea_orm::{DbBackend, Statement, Value};

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

    /// `INSERT INTO table (columns) VALUES …`, as few statements as the sizes allow.
    pub(super) fn inserts(self, table: &str, columns: &[&str], rows: Vec<Vec<Value>>) -> Vec<Statement> {
        let mut statements = Vec::new();
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let size = BUCKETS.into_iter().find(|b| *b <= rows.len()).unwrap_or(1);
            let values: Vec<Value> = rows.by_ref().take(size).flatten().collect();
            let mut sql = format!("INSERT INTO {table} ({}) VALUES ", columns.join(", "));
            push_tuples(&mut sql, columns.len(), size);
            statements.push(self.statement(sql, values));
        }
        statements
    }

    /// Updates rows by key: `keys` must match, `sets` are assigned. Both are columns of each row, in this order.
    pub(super) fn update(
        self,
        table: &str,
        keys: &[(&str, Kind)],
        sets: &[(&str, Kind)],
        rows: Vec<Vec<Value>>,
    ) -> Statement {
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

    /// Deletes rows by primary key, or by its beginning.
    pub(super) fn delete(self, table: &str, keys: &[(&str, Kind)], rows: Vec<Vec<Value>>) -> Statement {
        self.delete_by("PRIMARY", table, keys, rows)
    }

    /// Deletes rows by the key of an index, or by its beginning.
    pub(super) fn delete_by(
        self,
        index: &str,
        table: &str,
        keys: &[(&str, Kind)],
        rows: Vec<Vec<Value>>,
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
fn padded(rows: Vec<Vec<Value>>, columns: &[(&str, Kind)]) -> (usize, Vec<Value>) {
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

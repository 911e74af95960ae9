//! The only place that knows how MySQL (MariaDB too) and SQLite differ.
//!
//! Every step looks first at what exists: MySQL commits each DDL statement by itself, so a migration that was
//! killed in the middle is simply run again.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{DbBackend, Statement};

/// The kind of database that is migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// Column types. Every column is NOT NULL unless it is wrapped in [`null`], and carries a comment on MySQL.
impl Dialect {
    pub(crate) fn of(manager: &SchemaManager<'_>) -> Result<Self, DbErr> {
        match manager.get_database_backend() {
            DbBackend::MySql => Ok(Self::MySql),
            DbBackend::Sqlite => Ok(Self::Sqlite),
            other => Err(DbErr::BackendNotSupported { db: other.as_str(), ctx: "Orbit's schema" }),
        }
    }

    fn column(self, name: &'static str, mysql: String, sqlite: &'static str, comment: &str) -> ColumnDef {
        let kind = match self {
            Self::MySql => mysql,
            Self::Sqlite => sqlite.to_owned(),
        };
        ColumnDef::new(name).custom(Alias::new(kind)).not_null().comment(comment).take()
    }

    /// A short number that the database gives, and the primary key.
    pub(crate) fn serial(self, name: &'static str, comment: &str) -> ColumnDef {
        self.int(name, comment).auto_increment().primary_key().take()
    }

    /// A UUID in network byte order.
    pub(crate) fn id16(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "BINARY(16)".to_owned(), "BLOB", comment)
    }

    /// A SHA-256 digest.
    pub(crate) fn id32(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "BINARY(32)".to_owned(), "BLOB", comment)
    }

    /// A key of at most `length` ASCII characters, compared byte for byte whatever the database's default is.
    pub(crate) fn name(self, name: &'static str, length: u32, comment: &str) -> ColumnDef {
        let mysql = format!("VARCHAR({length}) CHARACTER SET ascii COLLATE ascii_bin");
        self.column(name, mysql, "TEXT", comment)
    }

    /// Free text of at most `length` characters.
    pub(crate) fn text(self, name: &'static str, length: u32, comment: &str) -> ColumnDef {
        let mysql = format!("VARCHAR({length}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
        self.column(name, mysql, "TEXT", comment)
    }

    /// Free text of up to 64 KiB.
    pub(crate) fn long_text(self, name: &'static str, comment: &str) -> ColumnDef {
        let mysql = "TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
        self.column(name, mysql.to_owned(), "TEXT", comment)
    }

    /// JSON text kept byte for byte: the databases' own JSON types would rewrite it.
    pub(crate) fn json(self, name: &'static str, comment: &str) -> ColumnDef {
        let mysql = "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
        self.column(name, mysql.to_owned(), "TEXT", comment)
    }

    /// A moment by the database's clock. Integers mean the same on every engine and do not end in 2038.
    pub(crate) fn moment(self, name: &'static str, comment: &str) -> ColumnDef {
        let comment = format!("{comment} (microseconds since the Unix epoch)");
        self.column(name, "BIGINT".to_owned(), "BIGINT", &comment)
    }

    pub(crate) fn flag(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "TINYINT(1)".to_owned(), "BOOLEAN", comment)
    }

    /// A small number that stands for a word; the comment spells it out.
    pub(crate) fn code(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "SMALLINT".to_owned(), "SMALLINT", comment)
    }

    /// A number below 2^31.
    pub(crate) fn int(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "INT".to_owned(), "INTEGER", comment)
    }

    pub(crate) fn bigint(self, name: &'static str, comment: &str) -> ColumnDef {
        self.column(name, "BIGINT".to_owned(), "BIGINT", comment)
    }
}

/// The column, but nullable.
pub(crate) fn null(mut column: ColumnDef) -> ColumnDef {
    column.null().take()
}

/// The column, 0 where an insert does not name it.
pub(crate) fn zero(mut column: ColumnDef) -> ColumnDef {
    column.default(0).take()
}

pub(crate) fn primary_key(columns: &[&'static str]) -> IndexCreateStatement {
    columns.iter().fold(Index::create().primary().take(), |mut key, column| key.col(*column).take())
}

pub(crate) fn unique_key(name: &'static str, columns: &[&'static str]) -> IndexCreateStatement {
    columns.iter().fold(Index::create().unique().name(name).take(), |mut key, column| key.col(*column).take())
}

/// A CHECK constraint: its name and its condition, in SQL that both dialects understand.
pub(crate) type Check = (&'static str, &'static str);

pub(crate) async fn create_table(
    manager: &SchemaManager<'_>,
    name: &'static str,
    comment: &str,
    columns: Vec<ColumnDef>,
    keys: impl IntoIterator<Item = IndexCreateStatement>,
) -> Result<(), DbErr> {
    let mut table = Table::create().table(name).if_not_exists().comment(comment).take();
    if Dialect::of(manager)? == Dialect::MySql {
        table.engine("InnoDB").character_set("utf8mb4").collate("utf8mb4_bin");
    }
    for column in columns {
        table.col(column);
    }
    for mut key in keys {
        table.index(&mut key);
    }
    manager.create_table(table).await
}

pub(crate) async fn create_index(
    manager: &SchemaManager<'_>,
    table: &'static str,
    name: &'static str,
    columns: &[&'static str],
) -> Result<(), DbErr> {
    if manager.has_index(table, name).await? {
        return Ok(());
    }
    let mut index = Index::create().name(name).table(table).take();
    for column in columns {
        index.col(*column);
    }
    manager.create_index(index).await
}

pub(crate) async fn add_column(
    manager: &SchemaManager<'_>,
    table: &'static str,
    column: ColumnDef,
) -> Result<(), DbErr> {
    if manager.has_column(table, column.get_column_name()).await? {
        return Ok(());
    }
    manager.alter_table(Table::alter().table(table).add_column(column).take()).await
}

/// Adds the constraints that `table` lacks, all at once: on both databases that copies the table.
pub(crate) async fn add_checks(
    manager: &SchemaManager<'_>,
    table: &'static str,
    checks: &[Check],
) -> Result<(), DbErr> {
    match Dialect::of(manager)? {
        Dialect::MySql => alter_with_checks(manager, table, checks).await,
        Dialect::Sqlite => rebuild_with_checks(manager, table, checks).await,
    }
}

async fn alter_with_checks(
    manager: &SchemaManager<'_>,
    table: &'static str,
    checks: &[Check],
) -> Result<(), DbErr> {
    let existing = strings(
        manager,
        "SELECT constraint_name AS value FROM information_schema.table_constraints \
         WHERE table_schema = DATABASE() AND constraint_type = 'CHECK' AND table_name = ?",
        table,
    )
    .await?;
    let missing: Vec<String> = checks
        .iter()
        .filter(|(name, _)| !existing.iter().any(|present| present == name))
        .map(|(name, condition)| format!("ADD CONSTRAINT {name} CHECK ({condition})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let sql = format!("ALTER TABLE {table} {}", missing.join(", "));
    manager.get_connection().execute_unprepared(&sql).await?;
    Ok(())
}

/// SQLite cannot add a CHECK to a table. The table is written anew under the same definition plus the
/// constraints, and takes the old one's place, with its indexes, in one transaction.
async fn rebuild_with_checks(
    manager: &SchemaManager<'_>,
    table: &'static str,
    checks: &[Check],
) -> Result<(), DbErr> {
    let transaction = manager.begin().await?;
    let definition = "SELECT sql AS value FROM sqlite_master WHERE type = 'table' AND name = ?";
    let old = strings(&transaction, definition, table).await?.pop().unwrap_or_default();
    let missing: Vec<String> = checks
        .iter()
        .filter(|(name, _)| !old.contains(&format!("CONSTRAINT {name} CHECK")))
        .map(|(name, condition)| format!("CONSTRAINT {name} CHECK ({condition})"))
        .collect();
    if missing.is_empty() {
        return transaction.commit().await;
    }
    let indexes =
        "SELECT sql AS value FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?";
    let indexes = strings(&transaction, indexes, table).await?;
    let body =
        old.strip_prefix(&format!("CREATE TABLE \"{table}\" (")).and_then(|body| body.rsplit_once(')'));
    let Some((columns, options)) = body else {
        return Err(DbErr::Migration(format!("table {table} is not defined as expected: {old}")));
    };

    let missing = missing.join(", ");
    let swap = [
        format!("CREATE TABLE rebuilt_{table} ({columns}, {missing}){options}"),
        format!("INSERT INTO rebuilt_{table} SELECT * FROM {table}"),
        format!("DROP TABLE {table}"),
        format!("ALTER TABLE rebuilt_{table} RENAME TO {table}"),
    ];
    for sql in swap.iter().chain(&indexes) {
        transaction.get_connection().execute_unprepared(sql).await?;
    }
    transaction.commit().await
}

/// The column `value` of a query with one parameter.
async fn strings(manager: &SchemaManager<'_>, sql: &str, parameter: &str) -> Result<Vec<String>, DbErr> {
    let statement = Statement::from_sql_and_values(manager.get_database_backend(), sql, [parameter.into()]);
    let rows = manager.get_connection().query_all_raw(statement).await?;
    rows.iter().map(|row| row.try_get("", "value")).collect()
}

/// What `down` answers in every migration.
pub(crate) fn refuse_down() -> DbErr {
    DbErr::Migration(
        "Orbit's schema only moves forward: restore a backup to return to an older one".to_owned(),
    )
}

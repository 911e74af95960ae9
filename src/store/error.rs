//! What can go wrong with a database, sorted by what to do about it.

use sea_orm::{
    DbErr, RuntimeErr,
    sqlx::{self, error::DatabaseError as _, mysql::MySqlDatabaseError, sqlite::SqliteError},
};

/// A failed statement.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It passes: roll back, run everything again.
    #[error("transient database fault: {0}")]
    Transient(DbErr),
    /// Somebody else inserted the same unique key first: roll back, run again, and find it.
    #[error("duplicate key")]
    Duplicate(DbErr),
    /// The connection is of no more use, or the server does not take writes: go on with a new one.
    #[error("the database is away: {0}")]
    Away(DbErr),
    /// A row that cannot be.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistency),
    /// It will not pass.
    #[error("database error: {0}")]
    Permanent(DbErr),
}

/// A row that cannot be, or a write that did not find what was locked. Never guessed around.
#[derive(Debug, thiserror::Error)]
#[error("inconsistent row in {table}.{column}: {id}: {why}")]
pub struct Inconsistency {
    /// The table.
    pub table: &'static str,
    /// The column, or the statement.
    pub column: &'static str,
    /// Which row.
    pub id: String,
    /// What is wrong.
    pub why: String,
}

impl Inconsistency {
    /// Names a row.
    pub fn new(
        table: &'static str,
        column: &'static str,
        id: impl std::fmt::Display,
        why: impl Into<String>,
    ) -> Self {
        Self { table, column, id: format!("{id}"), why: why.into() }
    }
}

impl From<DbErr> for Fault {
    fn from(error: DbErr) -> Self {
        match kind_of(&error) {
            Kind::Transient => Self::Transient(error),
            Kind::Duplicate => Self::Duplicate(error),
            Kind::Away => Self::Away(error),
            Kind::Permanent => Self::Permanent(error),
        }
    }
}

enum Kind {
    Transient,
    Duplicate,
    Away,
    Permanent,
}

fn kind_of(error: &DbErr) -> Kind {
    match error {
        DbErr::ConnectionAcquire(_) | DbErr::Conn(_) => Kind::Away,
        DbErr::Exec(RuntimeErr::SqlxError(e)) | DbErr::Query(RuntimeErr::SqlxError(e)) => match e.as_ref() {
            sqlx::Error::Database(e) => {
                if let Some(mysql) = e.try_downcast_ref::<MySqlDatabaseError>() {
                    mysql_kind(mysql.number())
                } else if let Some(sqlite) = e.try_downcast_ref::<SqliteError>() {
                    sqlite_kind(sqlite.code().and_then(|c| c.parse().ok()).unwrap_or(0))
                } else {
                    Kind::Permanent
                }
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Kind::Away,
            _ => Kind::Permanent,
        },
        _ => Kind::Permanent,
    }
}

fn mysql_kind(number: u16) -> Kind {
    match number {
        // Lock wait time-out, deadlock, XA deadlock, NOWAIT, table definition changed, re-prepare.
        1205 | 1213 | 1614 | 3572 | 1412 | 1615 => Kind::Transient,
        1062 | 1586 => Kind::Duplicate,
        // Read-only, offline mode, shutdown in progress, too many connections, unknown command (Galera), lost connection,
        // killed, server gone, group replication hold; a write failed, the disk is full, the table is full.
        1290 | 1792 | 1836 | 3032 | 1053 | 1040 | 1047 | 1152 | 1158 | 1159 | 1160 | 1161 | 1184 | 1317
        | 1927 | 2006 | 2013 | 3024 | 3101 | 3100 | 4031 | 3 | 20 | 1021 | 1026 | 1114 => Kind::Away,
        _ => Kind::Permanent,
    }
}

fn sqlite_kind(code: u32) -> Kind {
    match code & 0xff {
        // BUSY, LOCKED.
        5 | 6 => Kind::Transient,
        // READONLY, IOERR, FULL, CANTOPEN, PROTOCOL.
        8 | 10 | 13 | 14 | 15 => Kind::Away,
        // CONSTRAINT_UNIQUE, CONSTRAINT_PRIMARYKEY.
        19 if code == 2067 || code == 1555 => Kind::Duplicate,
        _ => Kind::Permanent,
    }
}

/// What a failed COMMIT means.
pub(super) enum CommitFault {
    /// It is known not to have committed: run again.
    NotCommitted(Fault),
    /// Nobody knows yet; the lane's row tells.
    Unknown(DbErr),
}

impl From<DbErr> for CommitFault {
    fn from(error: DbErr) -> Self {
        let number = match &error {
            DbErr::Exec(RuntimeErr::SqlxError(e)) | DbErr::Query(RuntimeErr::SqlxError(e)) => {
                match e.as_ref() {
                    sqlx::Error::Database(e) => {
                        e.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        match number {
            Some(1213 | 1205 | 1290 | 3101) => Self::NotCommitted(error.into()),
            // Everything else, SQLite's too, is settled by looking.
            _ => Self::Unknown(error),
        }
    }
}

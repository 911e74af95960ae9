//! Applying migrations from several nodes at once, and telling where a database stands.

use std::time::Duration;

use sea_orm_migration::prelude::{ConnectionTrait, DbErr, MigratorTrait, Query, SchemaManager};
use sea_orm_migration::sea_orm::sqlx::{self, Executor as _, mysql::MySqlPoolOptions};
use sea_orm_migration::sea_orm::{
    DatabaseConnection, DatabaseTransaction, DbBackend, IsolationLevel, RuntimeErr, SqliteTransactionMode,
    SqlxMySqlConnector, Statement, TransactionOptions, TransactionTrait,
};

use crate::Migrator;

/// How long one statement waits for a lock on MySQL (seconds). Short: everybody else who needs the table queues
/// behind a waiting ALTER.
const LOCK_WAIT_SECONDS: u32 = 3;
/// How long the others get between two tries.
const PAUSE: Duration = Duration::from_secs(2);
/// How often a migration that met a lock is tried: about two minutes.
const TRIES: u32 = 24;
/// How long to wait for another node that migrates the same database (seconds).
const OTHER_NODE_SECONDS: u32 = 600;

/// Where a database's schema stands, compared with this build. Steps are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// No migration was applied.
    Empty,
    /// Some of the migrations that this build knows were not applied.
    Older {
        /// How many were applied.
        applied: u32,
        /// How many this build knows.
        known: u32,
    },
    /// Exactly this build's schema.
    Current {
        /// The number of the last step.
        version: u32,
    },
    /// The database has migrations that this build does not know.
    Newer {
        /// How many were applied.
        applied: u32,
        /// How many this build knows.
        known: u32,
    },
}

/// What [`migrate`] did. `from` equals `to` when nothing was left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// How many steps were applied before.
    pub from: u32,
    /// How many are applied now.
    pub to: u32,
}

/// Why a database was not migrated. Running it again is safe after any of these.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The schema was made by a newer build; nothing was changed.
    #[error("the database's schema has {applied} steps, this build knows only {known}: use a newer build")]
    Newer {
        /// How many migrations were applied.
        applied: u32,
        /// How many this build knows.
        known: u32,
    },
    /// There is no such step; nothing was changed.
    #[error("there is no schema step {step}: this build knows {known}")]
    NoSuchStep {
        /// The step that was asked for.
        step: u32,
        /// How many migrations this build knows.
        known: u32,
    },
    /// Another node held the migration lock all the time.
    #[error("another node has been migrating this database for {waited_seconds} s")]
    Busy {
        /// How long this call waited (seconds).
        waited_seconds: u32,
    },
    /// The database refused a statement, or could not be reached.
    #[error(transparent)]
    Database(#[from] DbErr),
}

/// Tells where the schema of `db` stands. Reads only.
///
/// # Errors
/// When the database cannot be read.
pub async fn status(db: &DatabaseConnection) -> Result<SchemaStatus, DbErr> {
    read_status(&SchemaManager::new(db)).await
}

/// Brings the schema of `db` to the newest step of this build, creating it if there is none.
///
/// Safe to call from several nodes at once, and again after any failure. On MySQL it works on a connection of its
/// own, waits up to ten minutes for another node that migrates, and up to two for locks on the tables.
///
/// # Errors
/// See [`MigrateError`].
pub async fn migrate(db: &DatabaseConnection) -> Result<Migrated, MigrateError> {
    migrate_to(db, known()).await
}

/// Like [`migrate`], but stops after step number `step`. A schema that is already further is left alone. For tests
/// of upgrades.
///
/// # Errors
/// See [`MigrateError`].
pub async fn migrate_to(db: &DatabaseConnection, step: u32) -> Result<Migrated, MigrateError> {
    let known = known();
    if step > known {
        return Err(MigrateError::NoSuchStep { step, known });
    }
    match db.get_database_backend() {
        DbBackend::MySql => migrate_mysql(db, step).await,
        DbBackend::Sqlite => migrate_sqlite(db, step).await,
        other => Err(DbErr::BackendNotSupported { db: other.as_str(), ctx: "Orbit's schema" }.into()),
    }
}

/// What the schema is written in, whatever the server's defaults are.
const SESSION: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, \
    completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, \
    default_storage_engine = InnoDB";

/// Works on a connection of its own, inside one (nominal) transaction so that the pool cannot exchange it. It is
/// closed at the end, and also when this future is dropped: with it go the lock and the session's settings.
async fn migrate_mysql(db: &DatabaseConnection, step: u32) -> Result<Migrated, MigrateError> {
    let options = db.get_mysql_connection_pool().connect_options();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection.execute(SESSION).await?;
                connection.execute("SET SESSION TRANSACTION READ WRITE").await.map(|_| ())
            })
        })
        .after_release(|_, _| Box::pin(async { Ok(false) }))
        .connect_with(options.as_ref().clone())
        .await
        .map_err(|error| DbErr::Conn(RuntimeErr::SqlxError(error.into())))?;
    let own = SqlxMySqlConnector::from_sqlx_mysql_pool(pool);
    let connection = own.begin_with_config(Some(IsolationLevel::ReadCommitted), None).await?;
    let migrated = migrate_connection(&connection, step).await;
    match migrated {
        Ok(_) => connection.commit().await?,
        Err(_) => drop(connection),
    }
    own.close().await?;
    migrated
}

async fn migrate_connection(connection: &DatabaseTransaction, step: u32) -> Result<Migrated, MigrateError> {
    let from = applied(read_status(&SchemaManager::new(connection)).await?)?;
    if from >= step {
        return Ok(Migrated { from, to: from });
    }
    take_lock(connection).await?;
    let patience = format!(
        "SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}, innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}"
    );
    connection.execute_unprepared(&patience).await?;
    let mut tries = 1;
    loop {
        match apply(connection, step).await {
            Err(MigrateError::Database(error)) if tries < TRIES && is_passing(&error) => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

/// Takes the lock that keeps nodes apart. It belongs to the connection, and names the database: a server may hold
/// several. On clusters with several writable members it holds on one member only; the steps themselves bear that.
async fn take_lock(connection: &DatabaseTransaction) -> Result<(), MigrateError> {
    let sql = "SELECT GET_LOCK(CONCAT('orbit.', SHA2(DATABASE(), 224)), ?) AS taken";
    let statement = Statement::from_sql_and_values(DbBackend::MySql, sql, [OTHER_NODE_SECONDS.into()]);
    let row = connection.query_one_raw(statement).await?;
    let taken: Option<i64> = row.map(|row| row.try_get("", "taken")).transpose()?.flatten();
    match taken {
        Some(1) => Ok(()),
        _ => Err(MigrateError::Busy { waited_seconds: OTHER_NODE_SECONDS }),
    }
}

/// One transaction that writes from its first statement: the file's lock keeps nodes apart, and a migration that
/// is killed leaves nothing behind.
async fn migrate_sqlite(db: &DatabaseConnection, step: u32) -> Result<Migrated, MigrateError> {
    let from = applied(status(db).await?)?;
    if from >= step {
        return Ok(Migrated { from, to: from });
    }
    let options = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let mut tries = 1;
    let transaction = loop {
        match db.begin_with_options(options).await {
            Err(error) if tries < TRIES && is_passing(&error) => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            other => break other?,
        }
    };
    let migrated = apply(&transaction, step).await?;
    transaction.commit().await?;
    Ok(migrated)
}

/// Applies what is missing, after a look at what another node may have done meanwhile.
async fn apply(connection: &DatabaseTransaction, step: u32) -> Result<Migrated, MigrateError> {
    let from = applied(read_status(&SchemaManager::new(connection)).await?)?;
    if from >= step {
        return Ok(Migrated { from, to: from });
    }
    Migrator::up(connection, Some(step - from)).await?;
    Ok(Migrated { from, to: step })
}

fn applied(status: SchemaStatus) -> Result<u32, MigrateError> {
    match status {
        SchemaStatus::Empty => Ok(0),
        SchemaStatus::Older { applied, .. } => Ok(applied),
        SchemaStatus::Current { version } => Ok(version),
        SchemaStatus::Newer { applied, known } => Err(MigrateError::Newer { applied, known }),
    }
}

async fn read_status(manager: &SchemaManager<'_>) -> Result<SchemaStatus, DbErr> {
    let table = Migrator::migration_table_name();
    if !manager.has_table(table.to_string()).await? {
        return Ok(SchemaStatus::Empty);
    }
    let rows = manager.get_connection().query_all(Query::select().column("version").from(table)).await?;
    let names = rows.iter().map(|row| row.try_get("", "version")).collect::<Result<Vec<String>, _>>()?;
    let migrations = Migrator::migrations();
    let (applied, known) = (count(names.len()), count(migrations.len()));
    let is_known = |name: &String| migrations.iter().any(|migration| migration.name() == name);
    Ok(if !names.iter().all(is_known) {
        SchemaStatus::Newer { applied, known }
    } else if applied == 0 {
        SchemaStatus::Empty
    } else if applied < known {
        SchemaStatus::Older { applied, known }
    } else {
        SchemaStatus::Current { version: known }
    })
}

fn known() -> u32 {
    count(Migrator::migrations().len())
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Whether an error goes away by waiting: somebody else holds a lock, or took the same step at the same time.
fn is_passing(error: &DbErr) -> bool {
    let (DbErr::Exec(RuntimeErr::SqlxError(error))
    | DbErr::Query(RuntimeErr::SqlxError(error))
    | DbErr::Conn(RuntimeErr::SqlxError(error))) = error
    else {
        return false;
    };
    let sqlx::Error::Database(error) = error.as_ref() else {
        return false;
    };
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // Lock wait, deadlock, changed definition; table, column, key, constraint exists; the record of a migration exists.
        return matches!(error.number(), 1205 | 1213 | 1412 | 1050 | 1060 | 1061 | 1062 | 1826 | 3822);
    }
    // SQLITE_BUSY with its extended forms.
    matches!(error.code().as_deref(), Some("5" | "261" | "517"))
}

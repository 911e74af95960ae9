//! Whether the database has the schema that this program needs.

use super::{DatabaseUrl, StartError, error::one_line};
use crate::store::{Access, Broken, Database, DatabaseOptions};

pub use migration::{Migrated, SchemaStatus};

/// Tells where the schema of a database stands. Changes nothing.
pub async fn schema_status(url: &DatabaseUrl) -> Result<SchemaStatus, StartError> {
    let database = Database::open(url.expose(), to_look()).await?;
    let status = read(&database).await;
    database.close().await;
    status
}

/// Brings the schema of a database to this program's version. Safe to run from several nodes at once, and again after
/// any failure.
pub async fn migrate(url: &DatabaseUrl) -> Result<Migrated, StartError> {
    let database = Database::open(url.expose(), DatabaseOptions::default()).await?;
    let migrated = apply(&database).await;
    database.close().await;
    migrated
}

/// Makes sure that the schema is this program's, by migrating if `may_migrate`.
pub(super) async fn prepare(database: &Database, may_migrate: bool) -> Result<(), StartError> {
    if may_migrate {
        let Migrated { from, to } = apply(database).await?;
        if from != to {
            tracing::info!(from, to, "schema migrated");
        }
        return Ok(());
    }
    match read(database).await? {
        SchemaStatus::Current { .. } => Ok(()),
        SchemaStatus::Empty => Err(StartError::SchemaEmpty),
        SchemaStatus::Older { applied, known } => Err(StartError::SchemaOlder { applied, known }),
        SchemaStatus::Newer { applied, known } => Err(StartError::SchemaNewer { applied, known }),
    }
}

/// Looks for rows of a database that contradict each other, also beside a running server. `told` hears of each
/// invariant with the tasks for which it does not hold, at most `limit`.
pub async fn check(
    url: &DatabaseUrl,
    limit: u32,
    mut told: impl FnMut(&'static str, &[Broken]),
) -> Result<(), StartError> {
    let database = Database::open(url.expose(), to_look()).await?;
    let checked = async {
        prepare(&database, false).await?;
        for invariant in Database::invariants() {
            let broken = database.broken(invariant, limit).await;
            told(invariant, &broken.map_err(|fault| StartError::Check(one_line(&fault)))?);
        }
        Ok(())
    };
    let checked = checked.await;
    database.close().await;
    checked
}

fn to_look() -> DatabaseOptions {
    DatabaseOptions { access: Access::Inspect, ..DatabaseOptions::default() }
}

async fn read(database: &Database) -> Result<SchemaStatus, StartError> {
    let status = migration::status(&database.connection()).await;
    status.map_err(|error| StartError::SchemaUnreadable(one_line(&error)))
}

async fn apply(database: &Database) -> Result<Migrated, StartError> {
    match migration::migrate(&database.connection()).await {
        Ok(migrated) => Ok(migrated),
        Err(migration::MigrateError::Newer { applied, known }) => {
            Err(StartError::SchemaNewer { applied, known })
        }
        Err(error) => Err(StartError::Migrate(one_line(&error))),
    }
}

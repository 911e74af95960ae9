//! Orbit's database schema, as forward migrations for MySQL (MariaDB too) and SQLite.
//!
//! [`migrate`] brings a database to the newest step, [`status`] tells where it stands without touching it.
//! Migrations only move forward, and each may be run again after it was killed in the middle.

mod dialect;
mod m0001_queues;
mod m0002_tasks;
mod m0003_attempts;
mod m0004_receipts;
mod m0005_safe_retry;
mod m0006_lists_and_retention;
mod run;

use sea_orm_migration::async_trait::async_trait;
use sea_orm_migration::{DbErr, IntoSchemaManagerConnection, MigrationTrait, MigratorTrait};

pub use run::{MigrateError, Migrated, SchemaStatus, migrate, migrate_to, status};

/// The list of migrations, in order. Use [`migrate`] to apply them: it keeps several nodes apart and has patience
/// with locks, which this type's own methods do not.
#[derive(Clone, Copy, Debug)]
pub struct Migrator;

#[async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m0001_queues::Migration),
            Box::new(m0002_tasks::Migration),
            Box::new(m0003_attempts::Migration),
            Box::new(m0004_receipts::Migration),
            Box::new(m0005_safe_retry::Migration),
            Box::new(m0006_lists_and_retention::Migration),
        ]
    }

    /// Refused: the default would drop every table of the database.
    async fn fresh<'c, C>(_: C) -> Result<(), DbErr>
    where
        C: IntoSchemaManagerConnection<'c>,
    {
        Err(dialect::refuse_down())
    }
}

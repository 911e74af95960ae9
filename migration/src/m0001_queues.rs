//! Queues, and the routes that number each (queue, handler, version).

use sea_orm_migration::prelude::*;

use crate::dialect::{Dialect, create_table, refuse_down, unique_key, zero};

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let d = Dialect::of(manager)?;
        let queues = vec![
            d.serial("id", "Short number of the queue, used by other tables"),
            d.name("queue_id", 128, "The queue's public id"),
            zero(d.flag("paused", "1: no claim commits")),
            zero(d.int("max_running", "Permits over all nodes; 0 is unlimited")),
            zero(d.bigint("claim_count", "Guard: written by each claim while the queue is limited")),
            d.int("revision", "Raised by one with every change of the settings"),
            d.moment("created_at", "When the queue was created"),
            d.moment("updated_at", "When the settings last changed"),
        ];
        let key = unique_key("queues_queue_id", &["queue_id"]);
        create_table(manager, "queues", "Queues", queues, [key]).await?;

        let routes = vec![
            d.serial("id", "Short number of the route, used by other tables"),
            d.int("queue", "The queue: queues.id"),
            d.name("handler", 128, "Which handler runs the tasks"),
            d.name("handler_version", 128, "The handler's version"),
            d.moment("created_at", "When the route was first used"),
        ];
        let key = unique_key("routes_queue_handler", &["queue", "handler", "handler_version"]);
        create_table(manager, "routes", "Each queue, handler and version ever used together", routes, [key])
            .await
    }

    async fn down(&self, _: &SchemaManager) -> Result<(), DbErr> {
        Err(refuse_down())
    }
}

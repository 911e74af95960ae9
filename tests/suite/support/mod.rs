//! What tests stand on: a database, an engine on it, a worker's view of it.

pub(crate) mod blocker;
pub(crate) mod certificates;
pub(crate) mod database;
pub(crate) mod http;
pub(crate) mod look;
pub(crate) mod node;
pub(crate) mod own_server;
pub(crate) mod proxy;
pub(crate) mod rig;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod tcp_proxy;

/// Runs each test on SQLite and on MySQL.
macro_rules! on_every_database {
    ($($(#[$attribute:meta])* async fn $name:ident($database:ident: TestDatabase) $body:block)*) => {
        $(
            $(#[$attribute])*
            async fn $name($database: $crate::support::database::TestDatabase) $body
        )*

        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name($crate::support::database::TestDatabase::sqlite().await).await;
                }
            )*
        }

        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name($crate::support::database::TestDatabase::mysql().await).await;
                }
            )*
        }
    };
}

/// Tests that need a MySQL: two nodes on one database, or a proxy before it.
macro_rules! on_mysql {
    ($($(#[$attribute:meta])* async fn $name:ident() $body:block)*) => {
        $(
            $(#[$attribute])*
            async fn $name() $body
        )*

        mod mysql_only {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::$name().await;
                }
            )*
        }
    };
}

pub(crate) use on_every_database;
pub(crate) use on_mysql;

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Waits until something is so, at most `limit`.
pub(crate) async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

//! An engine that can die: it lives in a runtime of its own, which ends in the middle of whatever it does.

use std::time::Duration;

use orbit::{
    engine::{Engine, EngineOptions},
    store::{Database, DatabaseOptions, OpenError},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

/// A node of its own. Dropping it is no farewell either.
pub(crate) struct Node {
    runtime: Option<Runtime>,
    engine: Engine,
}

impl Node {
    pub(crate) async fn start(url: &str, options: EngineOptions) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let url = url.to_owned();
        let started = runtime.spawn(async move {
            Engine::start(open(&url).await, options).await.unwrap_or_else(|e| panic!("not started: {e}"))
        });
        let engine = started.await.expect("started");
        Self { runtime: Some(runtime), engine }
    }

    /// A handle. On SQLite nobody may keep one beyond the node's death: it holds the file.
    pub(crate) fn engine(&self) -> Engine {
        self.engine.clone()
    }

    /// Leaves something to go on in the node's own runtime, until it dies.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            drop(runtime.spawn(work));
        }
    }

    /// Ends at once, without a farewell. Afterwards nothing of it runs any more.
    pub(crate) async fn kill(mut self) {
        let runtime = self.runtime.take().expect("alive");
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5)))
            .await
            .expect("killed");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A dead node's SQLite file is free as soon as its last handle has gone.
pub(crate) async fn open(url: &str) -> Database {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match Database::open(url, DatabaseOptions::default()).await {
            Ok(database) => return database,
            Err(OpenError::FileInUse(_)) if Instant::now() < deadline => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{url}: {error}"),
        }
    }
}

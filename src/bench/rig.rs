//! Nodes and load, and what happened with them within a window of time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    BenchError, Options, Progress,
    child::Child,
    exposition::Samples,
    load::{LoadConfig, Tally},
    node::{Announcement, NodeConfig},
    usage,
};
use crate::proto::{PauseQueueRequest, queue_service_client::QueueServiceClient};

/// How long what is unfinished may take once nothing more is submitted.
const QUIET_LIMIT: Duration = Duration::from_mins(1);

/// How often a window is looked at.
const STEP: Duration = Duration::from_millis(250);

/// Nodes on one database.
pub(super) struct Nodes {
    children: Vec<Child>,
    pub(super) addresses: Vec<String>,
}

impl Nodes {
    pub(super) async fn start(
        database_url: &str,
        options: &Options,
        queues: &[String],
        count: u32,
    ) -> Result<Self, BenchError> {
        let mut this = Self { children: Vec::new(), addresses: Vec::new() };
        for n in 1..=count {
            let config = NodeConfig {
                database_url: database_url.to_owned(),
                node_id: format!("bench-{n}"),
                queues: queues.to_owned(),
                lanes: options.lanes,
                batch_max: options.batch_max,
            };
            let mut child = Child::start("bench-node", &config).await?;
            this.addresses.push(child.hear::<Announcement>().await?.address);
            this.children.push(child);
        }
        Ok(this)
    }

    /// Pauses a queue.
    pub(super) async fn pause(&self, queue: &str) -> Result<(), BenchError> {
        let address = self.addresses.first().map_or("", String::as_str);
        let client = QueueServiceClient::connect(format!("http://{address}")).await;
        let mut client = client.map_err(BenchError::of("a node is not reached"))?;
        let request =
            PauseQueueRequest { queue_id: queue.to_owned(), request_id: uuid::Uuid::new_v4().to_string() };
        client.pause_queue(request).await.map_err(BenchError::of("a queue could not be paused"))?;
        Ok(())
    }

    async fn samples(&mut self) -> Result<Samples, BenchError> {
        let mut samples = Samples::default();
        for child in &mut self.children {
            samples.add(&child.ask::<String>("metrics").await?);
        }
        Ok(samples)
    }

    fn cpu_s(&self) -> f64 {
        self.children.iter().map(|child| child.usage().cpu_s).sum()
    }

    /// Resident memory of the largest node: now, and at most so far.
    pub(super) fn rss_mib(&self) -> (f64, f64) {
        let largest = |of: fn(&usage::Usage) -> f64| {
            self.children.iter().map(|child| of(&child.usage())).fold(0.0, f64::max)
        };
        (largest(|usage| usage.rss_mib), largest(|usage| usage.peak_rss_mib))
    }

    pub(super) async fn end(self) {
        for child in self.children {
            child.end().await;
        }
    }
}

/// Nodes under load.
pub(super) struct Rig {
    pub(super) nodes: Nodes,
    load: Child,
    database_pid: Option<u32>,
}

/// What happened within a window, or within several.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) tally: Tally,
    pub(super) samples: Samples,
    pub(super) server_cpu_s: f64,
    pub(super) load_cpu_s: f64,
    pub(super) database_cpu_s: Option<f64>,
}

/// Counters at one moment.
struct Mark {
    samples: Samples,
    server_cpu_s: f64,
    load_cpu_s: f64,
    database_cpu_s: Option<f64>,
}

impl Rig {
    pub(super) async fn start(
        nodes: Nodes,
        database_pid: Option<u32>,
        config: &LoadConfig,
    ) -> Result<Self, BenchError> {
        let mut load = Child::start("bench-load", config).await?;
        load.hear::<Tally>().await?;
        Ok(Self { nodes, load, database_pid })
    }

    /// Lets submitters submit.
    pub(super) async fn go(&mut self) -> Result<(), BenchError> {
        self.load.ask::<Tally>("go").await.map(|_| ())
    }

    /// Stops submitters. What they have sent may still be accepted.
    pub(super) async fn stop(&mut self) -> Result<Tally, BenchError> {
        self.load.ask("stop").await
    }

    /// What happened since the last read.
    pub(super) async fn read(&mut self) -> Result<Tally, BenchError> {
        self.load.ask("read").await
    }

    /// Stops submitters, and waits until all that was accepted is finished.
    pub(super) async fn quiet(&mut self) -> Result<(), BenchError> {
        let mut tally = self.stop().await?;
        let until = Instant::now() + QUIET_LIMIT;
        while tally.unfinished > 0 {
            if Instant::now() > until {
                return Err(BenchError::new(format!(
                    "{} accepted tasks do not get finished",
                    tally.unfinished
                )));
            }
            sleep(Duration::from_millis(50)).await;
            tally = self.read().await?;
        }
        Ok(())
    }

    /// What happens within the next `duration`.
    pub(super) async fn window(
        &mut self,
        what: &str,
        duration: Duration,
        progress: &Progress,
    ) -> Result<Window, BenchError> {
        self.window_until(what, duration, progress, |_| false).await
    }

    /// What happens until it is enough, at most within the next `duration`.
    pub(super) async fn window_until(
        &mut self,
        what: &str,
        duration: Duration,
        progress: &Progress,
        enough: impl Fn(&Tally) -> bool,
    ) -> Result<Window, BenchError> {
        let before = self.mark().await?;
        self.read().await?;
        let (mut tally, mut left) = (Tally::default(), duration);
        while !left.is_zero() && !enough(&tally) {
            let step = left.min(STEP);
            progress.wait(what, step).await;
            left -= step;
            tally.add(self.read().await?);
        }
        let after = self.mark().await?;
        Ok(Window {
            tally,
            samples: after.samples.since(&before.samples),
            server_cpu_s: after.server_cpu_s - before.server_cpu_s,
            load_cpu_s: after.load_cpu_s - before.load_cpu_s,
            database_cpu_s: after.database_cpu_s.zip(before.database_cpu_s).map(|(a, b)| a - b),
        })
    }

    async fn mark(&mut self) -> Result<Mark, BenchError> {
        Ok(Mark {
            samples: self.nodes.samples().await?,
            server_cpu_s: self.nodes.cpu_s(),
            load_cpu_s: self.load.usage().cpu_s,
            database_cpu_s: self.database_pid.and_then(usage::of).map(|usage| usage.cpu_s),
        })
    }

    pub(super) async fn end(self) {
        self.load.end().await;
        self.nodes.end().await;
    }
}

impl Window {
    /// Adds another window.
    pub(super) fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        self.samples.merge(&other.samples);
        self.server_cpu_s += other.server_cpu_s;
        self.load_cpu_s += other.load_cpu_s;
        self.database_cpu_s = match (self.database_cpu_s, other.database_cpu_s) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

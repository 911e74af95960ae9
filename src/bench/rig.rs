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

/// How long what is unfinished may take once nothing more is submitted.
const QUIET_LIMIT: Duration = Duration::from_secs(60);

/// Nodes on one database.
pub(super) struct Nodes {
    children: Vec<Child>,
    pub(super) addresses: Vec<String>,
}

impl Nodes {
    pub(super) async fn start(database_url: &str, count: u32, queues: &[String]) -> Result<Self, BenchError> {
        let mut this = Self { children: Vec::new(), addresses: Vec::new() };
        for n in 1..=count {
            let config = NodeConfig {
                database_url: database_url.to_owned(),
                node_id: format!("bench-{n}"),
                queues: queues.to_owned(),
            };
            let mut child = Child::start("bench-node", &config).await?;
            this.addresses.push(child.hear::<Announcement>().await?.address);
            this.children.push(child);
        }
        Ok(this)
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

    /// Stops submitters, and waits until all that was accepted is finished.
    pub(super) async fn quiet(&mut self) -> Result<(), BenchError> {
        let mut tally: Tally = self.load.ask("stop").await?;
        let until = Instant::now() + QUIET_LIMIT;
        while tally.unfinished > 0 {
            if Instant::now() > until {
                return Err(BenchError::new(format!(
                    "{} accepted tasks do not get finished",
                    tally.unfinished
                )));
            }
            sleep(Duration::from_millis(50)).await;
            tally = self.load.ask("read").await?;
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
        let before = self.mark().await?;
        self.load.ask::<Tally>("read").await?;
        progress.wait(what, duration).await;
        let tally = self.load.ask("read").await?;
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
    /// Adds another window. Percentiles are those of the slower one.
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

/// The load that the options ask for.
pub(super) fn load_config(options: &Options, nodes: &Nodes, queues: &[String]) -> LoadConfig {
    LoadConfig {
        addresses: nodes.addresses.clone(),
        run: uuid::Uuid::new_v4().simple().to_string(),
        queues: queues.to_owned(),
        handlers: vec!["bench".to_owned()],
        submitters: options.submitters,
        workers: options.workers,
        slots: options.slots,
        connections: options.connections,
        payload_bytes: options.payload_bytes,
        rate: options.rate,
        unfinished_max: None,
        fail_first: false,
    }
}

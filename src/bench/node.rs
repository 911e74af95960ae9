//! One node in a process of its own, which tells its address and, when asked, its metrics.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    time::interval,
};
use tokio_util::sync::CancellationToken;

use super::BenchError;
use crate::{
    metric,
    server::{DatabaseUrl, Server, ServerConfig},
};

/// How often values that nobody asked for are moved out of the recorder's buffers.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(1);

/// What a node is told first, in one line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NodeConfig {
    pub(super) database_url: String,
    pub(super) node_id: String,
    pub(super) queues: Vec<String>,
    pub(super) lanes: Option<u32>,
    pub(super) batch_max: Option<u32>,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Announcement {
    pub(super) address: String,
}

/// Runs a node as standard input says: the first line configures it, each further one asks for its metrics, the end of
/// it ends the node.
pub async fn run() -> Result<(), BenchError> {
    let recorder = install().map_err(BenchError::of("metrics"))?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let first = lines.next_line().await.map_err(BenchError::of("standard input"))?.unwrap_or_default();
    let config: NodeConfig = serde_json::from_str(&first).map_err(BenchError::of("the configuration"))?;

    let mut server = ServerConfig::new(DatabaseUrl::new(config.database_url));
    server.listen = ([127, 0, 0, 1], 0).into();
    server.engine.node_id = config.node_id;
    server.queues = config.queues;
    if let Some(lanes) = config.lanes.and_then(|n| usize::try_from(n).ok()) {
        server.engine.lanes = lanes;
    }
    if let Some(max) = config.batch_max.and_then(|n| usize::try_from(n).ok()) {
        server.engine.batch_max = max;
    }
    let server = Server::start(server).await.map_err(BenchError::new)?;
    say(&Announcement { address: server.local_addr().to_string() }).await?;

    let shutdown = CancellationToken::new();
    let serving = server.serve(shutdown.clone());
    let answering = async {
        let mut upkeep = interval(UPKEEP_INTERVAL);
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(_)) => say(&recorder.render()).await?,
                    Ok(None) | Err(_) => break,
                },
                _ = upkeep.tick() => recorder.run_upkeep(),
            }
        }
        shutdown.cancel();
        Ok::<_, BenchError>(())
    };
    let (ended, answered) = tokio::join!(serving, answering);
    ended.map_err(BenchError::new)?;
    answered
}

/// Writes one line of JSON.
pub(super) async fn say(what: &impl Serialize) -> Result<(), BenchError> {
    let mut line = serde_json::to_vec(what).map_err(BenchError::of("an answer"))?;
    line.push(b'\n');
    let mut out = tokio::io::stdout();
    out.write_all(&line).await.map_err(BenchError::of("standard output"))?;
    out.flush().await.map_err(BenchError::of("standard output"))
}

/// Records what this process measures from now on.
fn install() -> Result<PrometheusHandle, BuildError> {
    let powers: Vec<f64> = (0..=8).map(|n| f64::from(1_u32 << n)).collect();
    // 50 µs to 26 s, in steps of the square root of two.
    let times: Vec<f64> = (0..=38).map(|n| 50e-6 * 2_f64.powf(f64::from(n) / 2.0)).collect();
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(metric::BATCH_COMMANDS.to_owned()), &powers)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &times)?
        .install_recorder()
}

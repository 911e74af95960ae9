//! Runs a measurement from the making of its database to the removal of it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{
    BenchError, Mode, Options, Progress, Report, ceiling,
    ceiling::Reached,
    place::Place,
    rig::{Nodes, Rig, Window, load_config},
};
use crate::metric;

/// How long the ceiling is measured each time.
const CEILING_TIME: Duration = Duration::from_secs(4);
const QUEUE: &str = "bench";

/// Measures. None if it was cancelled; whatever happens, its databases are removed.
pub async fn run(
    options: &Options,
    progress: &Progress,
    cancel: CancellationToken,
) -> Result<Option<Report>, BenchError> {
    let mut place = Place::open(options.database_url.as_deref()).await?;
    let measured = tokio::select! {
        measured = measure(options, &mut place, progress) => measured.map(Some),
        () = cancel.cancelled() => Ok(None),
    };
    let removed = place.remove().await;
    let report = measured?;
    removed.map(|()| report)
}

async fn measure(options: &Options, place: &mut Place, progress: &Progress) -> Result<Report, BenchError> {
    progress.at("making a database");
    let url = place.make("run").await?;
    let settings = place.settings(&url).await?;
    let mut report = Report::default();
    report.text("mode", "mode", format!("{:?}", options.mode).to_lowercase());
    report.text("database", "database", settings.version);
    report.text("durability", "durability", settings.durability);
    report.warnings.extend(settings.warning);
    match options.mode {
        Mode::Lifecycle => lifecycle(options, place, &url, progress, &mut report).await?,
        Mode::Ceiling => ceilings(options, place, progress, &mut report).await?,
        _ => return Err(BenchError::new("not yet")),
    }
    Ok(report)
}

/// Lifecycles and the ceiling, turn and turn about.
async fn lifecycle(
    options: &Options,
    place: &mut Place,
    url: &str,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), BenchError> {
    let ceiling_url = place.make("ceiling").await?;
    let connections = if place.is_mysql() { 4 } else { 1 };
    let slice = options.measured / options.rounds;
    progress.plan((slice + options.warm_up) * options.rounds + CEILING_TIME * (options.rounds + 1));

    let queues = [QUEUE.to_owned()];
    let nodes = Nodes::start(url, 1, &queues).await?;
    let mut config = load_config(options, &nodes, &queues);
    config.unfinished_max = options.rate.is_none().then_some(options.workers * options.slots * 2);
    let mut rig = Rig::start(nodes, place.pid(), &config).await?;

    let mut ceiling = Reached::default();
    let mut window = Window::default();
    for _ in 0..options.rounds {
        ceiling.add(one_ceiling(&ceiling_url, connections, options, progress).await?);
        rig.go().await?;
        progress.wait("lifecycles, warming up", options.warm_up).await;
        window.add(rig.window("lifecycles", slice, progress).await?);
        rig.quiet().await?;
    }
    ceiling.add(one_ceiling(&ceiling_url, connections, options, progress).await?);
    let (_, peak) = rig.nodes.rss_mib();
    rig.end().await;

    let per_s = per(window.tally.finished, window.tally.seconds);
    report.add("lifecycles_per_s", "lifecycles", per_s, "/s");
    report.add("ceiling_per_s", "ceiling", ceiling.per_s(), "/s");
    report.add("lifecycle_over_ceiling", "lifecycle ÷ ceiling", per_s / ceiling.per_s(), "");
    latencies(report, &window);
    costs(report, &window, peak);
    Ok(())
}

async fn one_ceiling(
    url: &str,
    connections: u32,
    options: &Options,
    progress: &Progress,
) -> Result<Reached, BenchError> {
    let measured = ceiling::measure(url, connections, options.payload_bytes, CEILING_TIME);
    let (reached, ()) = tokio::join!(measured, progress.wait("ceiling", CEILING_TIME));
    reached
}

async fn ceilings(
    options: &Options,
    place: &mut Place,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), BenchError> {
    let url = place.make("ceiling").await?;
    let kinds: &[u32] = if place.is_mysql() { &[1, 4] } else { &[1] };
    progress.plan(CEILING_TIME * 2 * u32::try_from(kinds.len()).unwrap_or(1));
    let mut reached = vec![Reached::default(); kinds.len()];
    for _ in 0..2 {
        for (connections, reached) in kinds.iter().zip(&mut reached) {
            reached.add(one_ceiling(&url, *connections, options, progress).await?);
        }
    }
    for (connections, reached) in kinds.iter().zip(&reached) {
        let key = if *connections == 1 && kinds.len() > 1 { "ceiling_1_per_s" } else { "ceiling_per_s" };
        report.add(key, &format!("ceiling, connections: {connections}"), reached.per_s(), "/s");
    }
    report.add("rows_per_lifecycle", "rows a lifecycle", f64::from(ceiling::ROWS), "");
    Ok(())
}

fn latencies(report: &mut Report, window: &Window) {
    let spreads = [
        ("submit", "submit → answer", window.tally.submit),
        ("start", "submit → start of the handler", window.tally.start),
        ("done", "submit → done", window.tally.done),
    ];
    for (key, label, spread) in spreads {
        for (quantile, value) in
            [("p50", spread.p50_ms), ("p90", spread.p90_ms), ("p99", spread.p99_ms), ("max", spread.max_ms)]
        {
            report.add(&format!("{key}_latency_{quantile}_ms"), &format!("{label}, {quantile}"), value, "ms");
        }
    }
}

/// What it cost, by lifecycle.
#[expect(clippy::cast_precision_loss, reason = "counts of minutes")]
fn costs(report: &mut Report, window: &Window, peak_rss_mib: f64) {
    let (tally, samples) = (&window.tally, &window.samples);
    let lifecycles = (tally.finished as f64).max(1.0);
    let micros = |seconds: f64| seconds * 1e6 / lifecycles;
    if let Some(database) = window.database_cpu_s {
        report.add("database_cpu_us", "CPU a lifecycle, database", micros(database), "µs");
    }
    report.add("server_cpu_us", "CPU a lifecycle, server", micros(window.server_cpu_s), "µs");
    report.add("load_cpu_us", "CPU a lifecycle, load", micros(window.load_cpu_s), "µs");
    report.add(
        "server_cpu_percent",
        "server CPU",
        window.server_cpu_s / tally.seconds * 100.0,
        "% of a core",
    );
    report.add("server_peak_rss_mib", "server memory, most", peak_rss_mib, "MiB");
    let rows = samples.total(metric::ROWS_WRITTEN);
    report.add("rows_per_lifecycle", "rows a lifecycle", rows / lifecycles, "");
    let transactions = samples.count(metric::TRANSACTION);
    report.add("transactions_per_lifecycle", "transactions a lifecycle", transactions / lifecycles, "");
    report.add("transactions_per_s", "transactions", transactions / tally.seconds, "/s");
    report.add("batch_mean", "commands a transaction, mean", samples.mean(metric::BATCH_COMMANDS), "");
    for bucket in samples.buckets(metric::BATCH_COMMANDS) {
        if bucket.up_to.is_finite() {
            let share = bucket.count / transactions.max(1.0) * 100.0;
            report.add(
                &format!("batch_to_{}_percent", bucket.up_to),
                &format!("  transactions of up to {} commands", bucket.up_to),
                share,
                "%",
            );
        }
    }
    for (name, key, label) in [
        (metric::LANE_WAIT, "lane_wait", "wait for a lane"),
        (metric::TRANSACTION, "transaction", "transaction"),
        (metric::COMMIT, "commit", "its COMMIT"),
        (metric::DISPATCH, "dispatch", "due → leased"),
    ] {
        for (quantile, of) in [("p50", 0.5), ("p99", 0.99)] {
            let ms = samples.quantile(name, of) * 1_000.0;
            report.add(&format!("{key}_{quantile}_ms"), &format!("{label}, {quantile}"), ms, "ms");
        }
    }
    if tally.refused > 0 {
        report.warnings.push(format!("{} submits were refused: the server was overloaded", tally.refused));
    }
    if tally.errors > 0 {
        let first = tally.error.clone().unwrap_or_default();
        report.warnings.push(format!("{} things went wrong; the first: {first}", tally.errors));
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of minutes")]
pub(super) fn per(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Reached {
    fn add(&mut self, other: Self) {
        self.lifecycles += other.lifecycles;
        self.seconds += other.seconds;
    }

    fn per_s(&self) -> f64 {
        per(self.lifecycles, self.seconds)
    }
}

//! What windows say, as figures.

use super::{
    BenchError, Report,
    ceiling::Reached,
    load::{Spread, Tally},
    rig::Window,
};
use crate::metric;

/// Percentiles of what is asked for, in that order.
pub(super) fn latencies(report: &mut Report, window: &Window, wanted: &[&str]) -> Result<(), BenchError> {
    let tally = &window.tally;
    for key in wanted {
        let (label, times) = match *key {
            "submit" => ("submit → answer", &tally.submit),
            "start" => ("submit → start of the handler", &tally.start),
            _ => ("submit → done", &tally.done),
        };
        spread(report, &format!("{key}_latency"), label, times.spread()?);
    }
    Ok(())
}

pub(super) fn spread(report: &mut Report, key: &str, label: &str, spread: Spread) {
    let values = [("p50", spread.p50), ("p90", spread.p90), ("p99", spread.p99), ("max", spread.max)];
    for (quantile, value) in values {
        report.add(&format!("{key}_{quantile}_ms"), &format!("{label}, {quantile}"), value, "ms");
    }
}

/// What it cost, by what was done.
#[expect(clippy::cast_precision_loss, reason = "counts of minutes")]
pub(super) fn costs(report: &mut Report, window: &Window, done: u64, peak_rss_mib: f64) {
    let (tally, samples) = (&window.tally, &window.samples);
    let done = (done as f64).max(1.0);
    let micros = |seconds: f64| seconds * 1e6 / done;
    if let Some(database) = window.database_cpu_s {
        report.add("database_cpu_us", "CPU for each, database", micros(database), "µs");
    }
    report.add("server_cpu_us", "CPU for each, server", micros(window.server_cpu_s), "µs");
    report.add("load_cpu_us", "CPU for each, load", micros(window.load_cpu_s), "µs");
    report.add(
        "server_cpu_percent",
        "server CPU",
        window.server_cpu_s / tally.seconds * 100.0,
        "% of a core",
    );
    report.add("server_peak_rss_mib", "server memory, at most", peak_rss_mib, "MiB");
    let rows = samples.total(metric::ROWS_WRITTEN);
    report.add("rows_per_lifecycle", "rows for each", rows / done, "");
    let transactions = samples.count(metric::TRANSACTION);
    report.add("transactions_per_lifecycle", "transactions for each", transactions / done, "");
    report.add("transactions_per_s", "transactions", transactions / tally.seconds, "/s");
    batches(report, window);
    for (name, key, label) in [
        (metric::LANE_WAIT, "lane_wait", "wait for a transaction"),
        (metric::TRANSACTION, "transaction", "transaction"),
        (metric::COMMIT, "transaction_commit", "its COMMIT"),
        (metric::DISPATCH, "dispatch", "due → leased"),
    ] {
        for (quantile, of) in [("p50", 0.5), ("p99", 0.99)] {
            let ms = samples.quantile(name, of) * 1_000.0;
            if ms.is_finite() {
                report.add(&format!("{key}_{quantile}_ms"), &format!("{label}, {quantile}"), ms, "ms");
            }
        }
    }
    doubts(report, tally);
}

/// How many commands the transactions had.
fn batches(report: &mut Report, window: &Window) {
    let samples = &window.samples;
    report.add("batch_mean", "commands of a transaction, mean", samples.mean(metric::BATCH_COMMANDS), "");
    let all = samples.count(metric::BATCH_COMMANDS).max(1.0);
    for bucket in samples.buckets(metric::BATCH_COMMANDS).iter().filter(|bucket| bucket.count > 0.0) {
        let percent = bucket.count / all * 100.0;
        let (key, label) = if bucket.up_to.is_finite() {
            (format!("batch_to_{}_percent", bucket.up_to), format!("  up to {}", bucket.up_to))
        } else {
            ("batch_above_percent".to_owned(), "  more".to_owned())
        };
        report.add(&key, &label, percent, "%");
    }
}

/// What makes a window doubtful.
pub(super) fn doubts(report: &mut Report, tally: &Tally) {
    if tally.refused > 0 {
        report.warnings.push(format!("{} submits were refused: the server was overloaded", tally.refused));
    }
    if tally.errors > 0 {
        let first = tally.error.as_deref().unwrap_or_default();
        report.warnings.push(format!("{} things went wrong; the first: {first}", tally.errors));
    }
}

/// How many a second.
#[expect(clippy::cast_precision_loss, reason = "counts of minutes")]
pub(super) fn per(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

impl Reached {
    pub(super) fn add(&mut self, other: Self) {
        self.tasks += other.tasks;
        self.seconds += other.seconds;
    }

    pub(super) fn per_s(&self) -> f64 {
        per(self.tasks, self.seconds)
    }
}

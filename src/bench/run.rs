//! Runs a measurement from the making of its database to the removal of it.

use tokio_util::sync::CancellationToken;

use super::{BenchError, Mode, Options, Progress, Report, modes, place::Place};

/// Measures. None if it was cancelled; whatever happens, its databases are removed.
pub async fn run(
    options: &Options,
    progress: &Progress,
    cancel: CancellationToken,
) -> Result<Option<Report>, BenchError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Ok(None),
        measured = async {
            match options.pairs {
                Some(pairs) => Box::pin(compare(options, pairs, progress, &cancel)).await,
                None => Box::pin(once(options, progress, &cancel)).await,
            }
        } => measured,
    }
}

async fn once(
    options: &Options,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Option<Report>, BenchError> {
    let mut place = Place::open(options.database_url.as_deref()).await?;
    // Dropping the work ends its processes; then the databases go.
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
    report.text("mode", "mode", options.mode.name());
    report.text("database", "database", settings.version);
    report.text("durability", "durability", settings.durability);
    report.warnings.extend(settings.warning);
    let mut run = modes::Run { options, place, url, progress, report };
    // Boxed: together they would be a future of a size and depth that the compiler refuses.
    match options.mode {
        Mode::Lifecycle => Box::pin(run.lifecycle()).await?,
        Mode::Submit => Box::pin(run.submit()).await?,
        Mode::Batch => Box::pin(run.batch()).await?,
        Mode::Drain => Box::pin(run.drain()).await?,
        Mode::Latency => Box::pin(run.latency()).await?,
        Mode::Idle => Box::pin(run.idle()).await?,
        Mode::Ceiling => Box::pin(run.ceiling()).await?,
    }
    Ok(run.report)
}

/// The same with and without its burden, in turn: the machine's moods meet both.
async fn compare(
    options: &Options,
    pairs: u32,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Option<Report>, BenchError> {
    let (plain, figure) = (options.plain(), options.figure());
    let mut report = Report::default();
    let (mut ratios, mut memory) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        progress.begin(&format!("{pair}/{pairs} plain: "));
        let Some(without) = Box::pin(once(&plain, progress, cancel)).await? else { return Ok(None) };
        progress.begin(&format!("{pair}/{pairs} burdened: "));
        let Some(with) = Box::pin(once(options, progress, cancel)).await? else { return Ok(None) };
        for run in [&without, &with] {
            report.warnings.extend(run.warnings.iter().cloned());
        }
        let of = |run: &Report| run.number(figure).unwrap_or(0.0);
        report.add(&format!("plain_{pair}"), &format!("{figure}, plain, {pair}"), of(&without), "");
        report.add(&format!("burdened_{pair}"), &format!("{figure}, burdened, {pair}"), of(&with), "");
        ratios.push(of(&with) / of(&without));
        let rss = |run: &Report| run.number("server_peak_rss_mib").unwrap_or(0.0);
        memory.push(rss(&with) - rss(&without));
    }
    report.warnings.dedup();
    let (low, middle, high) = spread(&mut ratios);
    report.add("ratio", "burdened ÷ plain, median", middle, "");
    report.add("ratio_min", "  least", low, "");
    report.add("ratio_max", "  most", high, "");
    let (_, middle, _) = spread(&mut memory);
    report.add("server_rss_added_mib", "server memory added, median", middle, "MiB");
    Ok(Some(report))
}

/// The least, the median and the most.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |n: usize| values.get(n).copied().unwrap_or(0.0);
    (
        at(0),
        f64::midpoint(at(values.len().saturating_sub(1) / 2), at(values.len() / 2)),
        at(values.len().saturating_sub(1)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        let (low, middle, high) = spread(&mut [3.0, 1.0, 2.0]);
        assert_eq!([low, middle, high].map(f64::to_bits), [1.0, 2.0, 3.0].map(f64::to_bits));
        assert!((spread(&mut [1.0, 2.0]).1 - 1.5).abs() < 1e-9);
    }
}

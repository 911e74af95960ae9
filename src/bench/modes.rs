//! What each mode does.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    BenchError, Options, Progress, Report, bulk, ceiling,
    ceiling::{Reached, Work},
    figures,
    load::{LoadConfig, histogram},
    place::{Place, Snapshot},
    rig::{Nodes, Rig, Window},
};

/// How long a reference is measured each time.
const REFERENCE_TIME: Duration = Duration::from_secs(4);
/// How often a backlog is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// How long a drain may take until its first tasks are done.
const DRAIN_START_LIMIT: Duration = Duration::from_mins(1);
/// How long new worker streams have to settle.
const SETTLE: Duration = Duration::from_secs(3);
/// How long a first task may take.
const SEED_LIMIT: Duration = Duration::from_secs(30);

const PAUSED: &str = "paused";

/// One measurement.
pub(super) struct Run<'a> {
    pub(super) options: &'a Options,
    pub(super) place: &'a mut Place,
    pub(super) url: String,
    pub(super) progress: &'a Progress,
    pub(super) report: Report,
}

impl Run<'_> {
    /// Lifecycles and the ceiling, in turn; the ceiling is left out where lifecycles are compared with each other.
    pub(super) async fn lifecycle(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let reference = match options.pairs {
            None => Some(self.place.make("ceiling").await?),
            Some(_) => None,
        };
        self.plan(reference.is_some());
        self.burden().await?;
        let mut config = self.load();
        config.unfinished_max = options.rate.is_none().then_some(options.workers * options.slots * 2);
        let mut rig = self.rig(config).await?;
        let snapshot = self.snapshot().await?;

        let (mut reached, mut window) = (Reached::default(), Window::default());
        for _ in 0..options.rounds {
            reached.add(self.reference(reference.as_deref(), Work::Lifecycles).await?);
            window.add(self.round(&mut rig, "lifecycles").await?);
            rig.quiet().await?;
        }
        reached.add(self.reference(reference.as_deref(), Work::Lifecycles).await?);
        let (_, peak) = rig.nodes.rss_mib();
        rig.end().await;
        if let Some(snapshot) = snapshot {
            snapshot.end().await;
        }

        let tally = &window.tally;
        let per_s = figures::per(tally.finished, tally.seconds);
        self.report.add("lifecycles_per_s", "lifecycles", per_s, "/s");
        if reference.is_some() {
            self.report.add("ceiling_per_s", "ceiling", reached.per_s(), "/s");
            self.report.add("lifecycle_over_ceiling", "lifecycle ÷ ceiling", per_s / reached.per_s(), "");
        }
        self.report.add("attempts_per_s", "attempts", figures::per(tally.started, tally.seconds), "/s");
        figures::latencies(&mut self.report, &window, &["submit", "start", "done"])?;
        figures::costs(&mut self.report, &window, tally.finished, peak);
        Ok(())
    }

    /// Submits alone.
    pub(super) async fn submit(&mut self) -> Result<(), BenchError> {
        self.plan(false);
        self.burden().await?;
        let mut config = self.load();
        config.workers = 0;
        let mut rig = self.rig(config).await?;
        let window = self.round(&mut rig, "submits").await?;
        let (_, peak) = rig.nodes.rss_mib();
        rig.end().await;
        let per_s = figures::per(window.tally.submitted, window.tally.seconds);
        self.report.add("submits_per_s", "submits", per_s, "/s");
        figures::latencies(&mut self.report, &window, &["submit"])?;
        figures::costs(&mut self.report, &window, window.tally.submitted, peak);
        Ok(())
    }

    /// Many tasks a call, and the same rows written straight, in turn.
    pub(super) async fn batch(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let reference = self.place.make("reference").await?;
        self.plan(true);
        self.burden().await?;
        let mut config = self.load();
        (config.workers, config.batch) = (0, options.batch);
        config.submitters = config.submitters.min(self.reference_connections());
        let mut rig = self.rig(config).await?;
        let work = Work::Submits(options.batch);
        let (mut reached, mut window) = (Reached::default(), Window::default());
        for _ in 0..options.rounds {
            reached.add(self.reference(Some(&reference), work).await?);
            window.add(self.round(&mut rig, "batches").await?);
            rig.stop().await?;
        }
        reached.add(self.reference(Some(&reference), work).await?);
        let (_, peak) = rig.nodes.rss_mib();
        rig.end().await;
        let per_s = figures::per(window.tally.submitted, window.tally.seconds);
        self.report.add("submits_per_s", "tasks submitted in batches", per_s, "/s");
        self.report.add("reference_per_s", "the same rows written straight", reached.per_s(), "/s");
        self.report.add("batch_over_reference", "batches ÷ straight", per_s / reached.per_s(), "");
        figures::latencies(&mut self.report, &window, &["submit"])?;
        figures::costs(&mut self.report, &window, window.tally.submitted, peak);
        Ok(())
    }

    /// A backlog is worked off. Its first fifth, at most 2,000 tasks, warms up; the last tasks do not fill all slots.
    pub(super) async fn drain(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let waiting = options.burden.waiting;
        self.progress.plan(options.measured);
        self.burden().await?;
        self.copies(&self.load().queues[0].clone(), false, waiting).await?;
        let mut config = self.load();
        config.submitters = 0;
        let attempts = if options.burden.retries { 2 * waiting } else { waiting };
        let (first, last) = ((waiting / 5).min(2_000), attempts * 19 / 20);
        let mut rig = self.rig(config).await?;
        let snapshot = self.snapshot().await?;

        let (mut started, begun) = (0, Instant::now());
        while started < first {
            started += rig.read().await?.started;
            if begun.elapsed() > DRAIN_START_LIMIT {
                return Err(BenchError::new("the backlog is not worked off"));
            }
            sleep(LOOK).await;
        }
        let window = rig
            .window_until("drain", options.measured, self.progress, |tally| started + tally.started >= last)
            .await?;
        let (_, peak) = rig.nodes.rss_mib();
        rig.end().await;
        if let Some(snapshot) = snapshot {
            snapshot.end().await;
        }
        let tally = &window.tally;
        #[expect(clippy::cast_precision_loss, reason = "millions at most")]
        self.report.add("waiting", "tasks waiting at the start", waiting as f64, "");
        self.report.add("drained_per_s", "tasks done", figures::per(tally.finished, tally.seconds), "/s");
        self.report.add("attempts_per_s", "attempts", figures::per(tally.started, tally.seconds), "/s");
        figures::costs(&mut self.report, &window, tally.started, peak);
        Ok(())
    }

    /// A fixed rate, and single commits at the same rate, in turn.
    pub(super) async fn latency(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        let rate = options.rate.unwrap_or(50.0);
        let reference = self.place.make("reference").await?;
        self.plan(true);
        self.burden().await?;
        let mut config = self.load();
        config.rate = Some(rate);
        let mut rig = self.rig(config).await?;
        let (mut commits, mut window) = (histogram()?, Window::default());
        for round in 0..=options.rounds {
            let measured = ceiling::commits(&reference, rate, REFERENCE_TIME, &mut commits);
            let (done, ()) = tokio::join!(measured, self.progress.wait("single commits", REFERENCE_TIME));
            done?;
            if round < options.rounds {
                window.add(self.round(&mut rig, "lifecycles").await?);
                rig.quiet().await?;
            }
        }
        let (_, peak) = rig.nodes.rss_mib();
        rig.end().await;
        let commit = super::load::Spread::of(&commits);
        self.report.add("rate_per_s", "submits", rate, "/s");
        figures::latencies(&mut self.report, &window, &["start", "done", "submit"])?;
        figures::spread(&mut self.report, "commit", "a single durable commit", commit);
        let start = window.tally.start.spread()?;
        let ratio = start.p50 / commit.p50;
        self.report.add("start_over_commit", "start of the handler ÷ single commit, p50", ratio, "");
        figures::costs(&mut self.report, &window, window.tally.finished, peak);
        Ok(())
    }

    /// Workers with nothing to do.
    pub(super) async fn idle(&mut self) -> Result<(), BenchError> {
        let options = self.options;
        self.progress.plan(SETTLE * 2 + options.measured);
        self.burden().await?;
        let nodes = self.nodes().await?;
        self.progress.wait("no workers", SETTLE).await;
        let (before, _) = nodes.rss_mib();
        let mut config = self.load();
        config.submitters = 0;
        config.addresses.clone_from(&nodes.addresses);
        let mut rig = Rig::start(nodes, self.place.pid(), &config).await?;
        self.progress.wait("workers arrive", SETTLE).await;
        let window = rig.window("idle", options.measured, self.progress).await?;
        let (after, peak) = rig.nodes.rss_mib();
        rig.end().await;
        let report = &mut self.report;
        report.add("workers", "idle workers", f64::from(options.workers), "");
        report.add("connections", "connections", f64::from(options.connections), "");
        report.add("server_rss_mib", "server memory", after, "MiB");
        report.add("server_rss_added_mib", "  added by the workers", after - before, "MiB");
        report.add("server_peak_rss_mib", "  at most", peak, "MiB");
        let percent = |seconds: f64| seconds / window.tally.seconds * 100.0;
        report.add("server_cpu_percent", "server CPU", percent(window.server_cpu_s), "% of a core");
        if let Some(database) = window.database_cpu_s {
            report.add("database_cpu_percent", "database CPU", percent(database), "% of a core");
        }
        figures::doubts(report, &window.tally);
        Ok(())
    }

    /// What the database does by itself.
    pub(super) async fn ceiling(&mut self) -> Result<(), BenchError> {
        let kinds: &[u32] = if self.place.is_mysql() { &[1, 4] } else { &[1] };
        let rounds = self.options.rounds;
        self.progress.plan(REFERENCE_TIME * rounds * u32::try_from(kinds.len()).unwrap_or(1));
        let mut reached = vec![Reached::default(); kinds.len()];
        for _ in 0..rounds {
            for (connections, reached) in kinds.iter().zip(&mut reached) {
                reached.add(self.written(&self.url, Work::Lifecycles, *connections).await?);
            }
        }
        for (connections, reached) in kinds.iter().zip(&reached) {
            let key =
                if *connections < self.reference_connections() { "ceiling_1_per_s" } else { "ceiling_per_s" };
            self.report.add(key, &format!("ceiling, connections: {connections}"), reached.per_s(), "/s");
        }
        self.report.add("rows_per_lifecycle", "rows a lifecycle", f64::from(ceiling::ROWS), "");
        Ok(())
    }

    fn plan(&self, reference: bool) {
        let Options { measured, warm_up, rounds, .. } = self.options;
        let references = if reference { REFERENCE_TIME * (rounds + 1) } else { Duration::ZERO };
        self.progress.plan(*measured + *warm_up * *rounds + references);
    }

    /// One connection where one writes at a time, four elsewhere.
    fn reference_connections(&self) -> u32 {
        if self.place.is_mysql() { 4 } else { 1 }
    }

    async fn reference(&self, url: Option<&str>, work: Work) -> Result<Reached, BenchError> {
        match url {
            Some(url) => self.written(url, work, self.reference_connections()).await,
            None => Ok(Reached::default()),
        }
    }

    async fn written(&self, url: &str, work: Work, connections: u32) -> Result<Reached, BenchError> {
        let time = REFERENCE_TIME.min(self.options.measured);
        let measured = ceiling::measure(url, work, connections, self.options.payload_bytes, time);
        let (reached, ()) =
            tokio::join!(measured, self.progress.wait("what the database does by itself", time));
        reached
    }

    /// Warms up, then takes figures.
    async fn round(&self, rig: &mut Rig, what: &str) -> Result<Window, BenchError> {
        rig.go().await?;
        self.progress.wait(&format!("{what}, warming up"), self.options.warm_up).await;
        rig.window(what, self.options.measured / self.options.rounds, self.progress).await
    }

    /// What is there before the figures are taken.
    async fn burden(&mut self) -> Result<(), BenchError> {
        let burden = self.options.burden;
        if burden.finished > 0 {
            let queue = self.load().queues[0].clone();
            self.copies(&queue, true, burden.finished).await?;
        }
        if burden.paused > 0 {
            self.copies(PAUSED, false, burden.paused).await?;
        }
        Ok(())
    }

    /// Very many tasks: Orbit writes the first, which is then copied.
    async fn copies(&self, queue: &str, finished: bool, count: u64) -> Result<(), BenchError> {
        self.progress.at("a first task");
        let nodes = Nodes::start(&self.url, self.options, &[queue.to_owned()], 1).await?;
        let mut config = self.load();
        config.addresses.clone_from(&nodes.addresses);
        config.queues = vec![queue.to_owned()];
        config.handlers.truncate(1);
        (config.submitters, config.workers, config.slots) = (1, u32::from(finished), 1);
        config.fail_first &= !finished;
        // No second one before the first is done, and none at all if it is never done.
        config.unfinished_max = Some(1);
        let first = format!("{}-0", config.run);
        let mut rig = Rig::start(nodes, None, &config).await?;
        rig.go().await?;
        let (mut done, begun) = (0, Instant::now());
        while done == 0 && begun.elapsed() < SEED_LIMIT {
            sleep(LOOK).await;
            let tally = rig.read().await?;
            done = if finished { tally.finished } else { tally.submitted };
        }
        if finished {
            rig.quiet().await?;
        } else if queue == PAUSED {
            rig.nodes.pause(queue).await?;
        }
        rig.end().await;
        bulk::copy(&self.url, &first, count, self.progress).await
    }

    async fn snapshot(&self) -> Result<Option<Snapshot>, BenchError> {
        if self.options.burden.snapshot { Snapshot::take(&self.url).await.map(Some) } else { Ok(None) }
    }

    async fn nodes(&self) -> Result<Nodes, BenchError> {
        Nodes::start(&self.url, self.options, &self.load().queues, self.options.burden.nodes).await
    }

    async fn rig(&self, mut config: LoadConfig) -> Result<Rig, BenchError> {
        let nodes = self.nodes().await?;
        config.addresses.clone_from(&nodes.addresses);
        Rig::start(nodes, self.place.pid(), &config).await
    }

    /// The load that the options ask for.
    fn load(&self) -> LoadConfig {
        let Options { burden, .. } = self.options;
        let names = |name: &str, count: u32| (1..=count).map(|n| format!("{name}-{n}")).collect();
        LoadConfig {
            addresses: Vec::new(),
            run: uuid::Uuid::new_v4().simple().to_string(),
            queues: names("queue", burden.queues),
            handlers: names("handler", burden.handlers),
            submitters: self.options.submitters,
            workers: self.options.workers,
            slots: self.options.slots,
            connections: self.options.connections,
            payload_bytes: self.options.payload_bytes,
            rate: self.options.rate,
            unfinished_max: None,
            batch: 1,
            fail_first: burden.retries,
        }
    }
}

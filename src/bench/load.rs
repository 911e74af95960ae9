//! The load in a process of its own: submitters and workers on the plain generated client, as cheap as they can be,
//! since they share the machine with what they measure.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::{Semaphore, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::task::TaskTracker;
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint},
};

use super::{BenchError, node::say, worker};
use crate::proto::{
    BatchSubmitTasksRequest, RetryPolicy, SubmitTaskRequest, batch_submit_tasks_result::Outcome,
    task_service_client::TaskServiceClient,
};

/// Handler and payload version of every task.
pub(super) const VERSION: &str = "v1";
/// Where the moment of the submit stands in the payload, and how long it is.
const SENT_AT: usize = 9;
const SENT_LEN: usize = 16;
/// A timer is late by up to so much; what is later is the server's doing.
const TIMER_SLACK: Duration = Duration::from_millis(3);

/// What the load is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoadConfig {
    /// Where the nodes listen.
    pub(super) addresses: Vec<String>,
    /// Makes the idempotency keys of this process its own.
    pub(super) run: String,
    pub(super) queues: Vec<String>,
    pub(super) handlers: Vec<String>,
    pub(super) submitters: u32,
    pub(super) workers: u32,
    pub(super) slots: u32,
    /// Connections of the submitters, and of the workers.
    pub(super) connections: u32,
    pub(super) payload_bytes: usize,
    /// Submits a second, by all together; as many as can be if there is none.
    pub(super) rate: Option<f64>,
    /// No further submit while so many tasks are unfinished.
    pub(super) unfinished_max: Option<u32>,
    /// Tasks of one submit: more than one go through BatchSubmitTasks.
    pub(super) batch: u32,
    /// Every first attempt fails and may be retried.
    pub(super) fail_first: bool,
}

/// What happened since the last time it was asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) seconds: f64,
    pub(super) submitted: u64,
    pub(super) started: u64,
    pub(super) finished: u64,
    /// Attempts that failed and are retried, as the configuration wants it.
    pub(super) retried: u64,
    /// Submits that were refused because the server was overloaded.
    pub(super) refused: u64,
    /// Anything else that went wrong, and what it was.
    pub(super) errors: u64,
    pub(super) error: Option<String>,
    /// Accepted and not finished.
    pub(super) unfinished: u64,
    pub(super) submit: Times,
    pub(super) start: Times,
    pub(super) done: Times,
}

/// Durations in microseconds, each with how often it came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times(Vec<(u64, u64)>);

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        let recorded = histogram.iter_recorded();
        Self(recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect())
    }

    pub(super) fn spread(&self) -> Result<Spread, BenchError> {
        let mut histogram = histogram()?;
        for (value, count) in &self.0 {
            histogram.saturating_record_n(*value, *count);
        }
        Ok(Spread::of(&histogram))
    }
}

/// Up to ten minutes, to three digits, in microseconds.
pub(super) fn histogram() -> Result<Histogram<u64>, BenchError> {
    Histogram::new_with_bounds(1, 600_000_000, 3).map_err(BenchError::of("a histogram"))
}

/// A distribution, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "minutes at most, in microseconds")]
        let ms = |micros: u64| micros as f64 / 1_000.0;
        Self {
            p50: ms(histogram.value_at_quantile(0.5)),
            p90: ms(histogram.value_at_quantile(0.9)),
            p99: ms(histogram.value_at_quantile(0.99)),
            max: ms(histogram.max()),
        }
    }
}

/// What all tasks of the load share.
pub(super) struct Load {
    pub(super) config: LoadConfig,
    began: Instant,
    going: watch::Sender<bool>,
    /// Submits that may still be sent.
    room: Semaphore,
    sequence: AtomicU64,
    paced: Mutex<Pace>,
    tally: Mutex<Counts>,
}

/// When the next submit of a fixed rate is due.
struct Pace {
    next: Instant,
}

struct Counts {
    since: Instant,
    tally: Tally,
    submit: Histogram<u64>,
    start: Histogram<u64>,
    done: Histogram<u64>,
    unfinished: u64,
}

/// Runs the load as standard input says: the first line configures it; `go` lets submitters submit, `stop` stops them,
/// `read` asks for what happened since the last one. It ends with the input.
pub async fn run() -> Result<(), BenchError> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let first = lines.next_line().await.map_err(BenchError::of("standard input"))?.unwrap_or_default();
    let config: LoadConfig = serde_json::from_str(&first).map_err(BenchError::of("the configuration"))?;
    let load = Arc::new(Load::new(config)?);
    let tasks = TaskTracker::new();
    let channels = connect(&load.config).await?;
    for n in 0..load.config.workers {
        let (load, channel) = (load.clone(), pick(&channels, n));
        tasks.spawn(async move { worker::run(&load, channel, n).await });
    }
    let channels = connect(&load.config).await?;
    for n in 0..load.config.submitters {
        let (load, channel) = (load.clone(), pick(&channels, n));
        tasks.spawn(async move { load.submit(channel).await });
    }
    load.told(0, |_| ());
    say(&load.read()).await?;
    while let Ok(Some(line)) = lines.next_line().await {
        match line.as_str() {
            "go" => {
                load.pace().next = Instant::now();
                load.going.send_replace(true);
            }
            "stop" => {
                load.going.send_replace(false);
            }
            _ => {}
        }
        say(&load.read()).await?;
    }
    Ok(())
}

/// Connections, spread over the nodes.
async fn connect(config: &LoadConfig) -> Result<Vec<Channel>, BenchError> {
    let mut channels = Vec::new();
    let nodes = u32::try_from(config.addresses.len()).unwrap_or(1);
    for n in 0..config.connections.max(nodes) {
        let address = &config.addresses[n as usize % config.addresses.len()];
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(BenchError::new)?;
        let channel = endpoint.tcp_nodelay(true).connect().await;
        channels.push(channel.map_err(BenchError::of("a node is not reached"))?);
    }
    Ok(channels)
}

fn pick(channels: &[Channel], n: u32) -> Channel {
    channels[n as usize % channels.len()].clone()
}

impl Load {
    fn new(config: LoadConfig) -> Result<Self, BenchError> {
        let room = config.unfinished_max.map_or(Semaphore::MAX_PERMITS, |max| max as usize);
        let now = Instant::now();
        let counts = Counts {
            since: now,
            tally: Tally::default(),
            submit: histogram()?,
            start: histogram()?,
            done: histogram()?,
            unfinished: 0,
        };
        Ok(Self {
            config,
            began: now,
            going: watch::Sender::new(false),
            room: Semaphore::new(room),
            sequence: AtomicU64::new(0),
            paced: Mutex::new(Pace { next: now }),
            tally: Mutex::new(counts),
        })
    }

    /// Microseconds since this process began.
    fn now_us(&self) -> u64 {
        self.at_us(Instant::now())
    }

    fn at_us(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happened since the last read.
    fn read(&self) -> Tally {
        let mut counts = self.counts();
        let now = Instant::now();
        let mut tally = std::mem::take(&mut counts.tally);
        tally.seconds = (now - counts.since).as_secs_f64();
        tally.unfinished = counts.unfinished;
        tally.submit = Times::of(&counts.submit);
        tally.start = Times::of(&counts.start);
        tally.done = Times::of(&counts.done);
        counts.since = now;
        counts.submit.reset();
        counts.start.reset();
        counts.done.reset();
        tally
    }

    /// A handler may begin: its start was granted.
    pub(super) fn started(&self, payload_sent_us: u64) {
        let waited = self.now_us().saturating_sub(payload_sent_us);
        let mut counts = self.counts();
        counts.tally.started += 1;
        counts.start.saturating_record(waited);
    }

    /// A task's success, or a failure that is retried, is recorded.
    pub(super) fn finished(&self, payload_sent_us: u64, retried: bool) {
        let took = self.now_us().saturating_sub(payload_sent_us);
        let mut counts = self.counts();
        if retried {
            counts.tally.retried += 1;
            return;
        }
        counts.tally.finished += 1;
        counts.done.saturating_record(took);
        counts.unfinished = counts.unfinished.saturating_sub(1);
        drop(counts);
        if self.config.unfinished_max.is_some() {
            self.room.add_permits(1);
        }
    }

    /// Something is not as it should be. The first of its kind is told.
    pub(super) fn wrong(&self, what: String) {
        let mut counts = self.counts();
        counts.tally.errors += 1;
        counts.tally.error.get_or_insert(what);
    }

    fn told(&self, submitted: u64, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts();
        counts.tally.submitted += submitted;
        change(&mut counts);
    }

    /// When the payload says it was sent.
    pub(super) fn sent_us(payload: &str) -> u64 {
        payload.get(SENT_AT..SENT_AT + SENT_LEN).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits until a submit may be sent, and tells the moment from which it counts.
    async fn turn(&self, going: &mut watch::Receiver<bool>) -> Option<Instant> {
        going.wait_for(|going| *going).await.ok()?;
        if self.config.unfinished_max.is_some() {
            self.room.acquire().await.ok()?.forget();
        }
        let Some(rate) = self.config.rate else {
            return Some(Instant::now());
        };
        let due = {
            let mut pace = self.pace();
            let due = pace.next;
            pace.next += Duration::from_secs_f64(1.0 / rate);
            due
        };
        sleep_until(due).await;
        let now = Instant::now();
        // Somebody who would have sent then waits since then, whether or not the load kept up.
        Some(if now - due < TIMER_SLACK { now } else { due })
    }

    async fn submit(&self, channel: Channel) {
        let mut client = TaskServiceClient::new(channel);
        let mut going = self.going.subscribe();
        let pad = "x".repeat(self.config.payload_bytes.saturating_sub(SENT_AT + SENT_LEN + 10));
        while let Some(since) = self.turn(&mut going).await {
            let sent = Instant::now();
            match self.send(&mut client, since, &pad).await {
                Ok(accepted) => {
                    let took = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.told(accepted, |counts| {
                        counts.unfinished += accepted;
                        counts.submit.saturating_record(took);
                    });
                }
                Err(status) => {
                    if self.config.unfinished_max.is_some() {
                        self.room.add_permits(1);
                    }
                    if status.code() == Code::ResourceExhausted {
                        self.told(0, |counts| counts.tally.refused += 1);
                    } else {
                        self.wrong(format!("a submit failed: {:?} {}", status.code(), status.message()));
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// One call. Answers how many tasks were accepted.
    async fn send(
        &self,
        client: &mut TaskServiceClient<Channel>,
        since: Instant,
        pad: &str,
    ) -> Result<u64, tonic::Status> {
        let n = self.sequence.fetch_add(self.config.batch.into(), Ordering::Relaxed);
        if self.config.batch <= 1 {
            return client.submit_task(Request::new(self.task(n, since, pad))).await.map(|_| 1);
        }
        let tasks = (n..n + u64::from(self.config.batch)).map(|n| self.task(n, since, pad)).collect();
        let answer = client.batch_submit_tasks(Request::new(BatchSubmitTasksRequest { tasks })).await?;
        let mut accepted = 0;
        for result in answer.into_inner().results {
            match result.outcome {
                Some(Outcome::Submitted(_)) => accepted += 1,
                Some(Outcome::Error(error)) => {
                    self.wrong(format!("a task of a batch failed: {}", error.message));
                }
                None => self.wrong("a task of a batch has no outcome".to_owned()),
            }
        }
        Ok(accepted)
    }

    fn task(&self, n: u64, since: Instant, pad: &str) -> SubmitTaskRequest {
        let of = |names: &[String], n: u64| {
            let count = u64::try_from(names.len().max(1)).unwrap_or(1);
            names.get(usize::try_from(n % count).unwrap_or(0)).cloned().unwrap_or_default()
        };
        let queues = u64::try_from(self.config.queues.len().max(1)).unwrap_or(1);
        SubmitTaskRequest {
            queue_id: of(&self.config.queues, n),
            idempotency_key: format!("{}-{n}", self.config.run),
            handler: of(&self.config.handlers, n / queues),
            handler_version: VERSION.to_owned(),
            payload_version: VERSION.to_owned(),
            payload: format!(r#"{{"sent":"{:016}","pad":"{pad}"}}"#, self.at_us(since)),
            retry: self.config.fail_first.then(|| RetryPolicy {
                max_attempts: Some(2),
                initial_delay_ms: Some(1_000),
                ..RetryPolicy::default()
            }),
            ..SubmitTaskRequest::default()
        }
    }
}

impl Tally {
    /// Adds what another window brought.
    pub(super) fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.submitted += other.submitted;
        self.started += other.started;
        self.finished += other.finished;
        self.retried += other.retried;
        self.refused += other.refused;
        self.errors += other.errors;
        self.error = self.error.take().or(other.error);
        self.unfinished = other.unfinished;
        self.submit.0.extend(other.submit.0);
        self.start.0.extend(other.start.0);
        self.done.0.extend(other.done.0);
    }
}

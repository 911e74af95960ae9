//! What is measured, and how.

use std::time::Duration;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Submit, dispatch, start and finish, each acknowledged after its commit.
    Lifecycle,
    /// Submits alone.
    Submit,
    /// Submits of many tasks in one call.
    Batch,
    /// Workers empty a backlog.
    Drain,
    /// A fixed rate: how long from a submit to the start of its handler, and to its end.
    Latency,
    /// Workers that have nothing to do: memory and CPU.
    Idle,
    /// The same rows written straight, without Orbit.
    Ceiling,
}

impl Mode {
    /// As people type it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Submit => "submit",
            Self::Batch => "batch",
            Self::Drain => "drain",
            Self::Latency => "latency",
            Self::Idle => "idle",
            Self::Ceiling => "ceiling",
        }
    }
}

/// How it is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// What.
    pub mode: Mode,
    /// On which database; a temporary SQLite file if there is none.
    pub database_url: Option<String>,
    /// How long the figures are taken, all rounds together.
    pub measured: Duration,
    /// How long the load runs before that, in each round.
    pub warm_up: Duration,
    /// How often Orbit and its reference take turns.
    pub rounds: u32,
    /// Worker streams.
    pub workers: u32,
    /// Attempts that each worker takes at once.
    pub slots: u32,
    /// Submits under way at once.
    pub submitters: u32,
    /// Connections of all submitters together, and of all workers together.
    pub connections: u32,
    /// Bytes of each payload.
    pub payload_bytes: usize,
    /// Submits a second; as many as can be if there is none.
    pub rate: Option<f64>,
    /// Tasks of one call, for [`Mode::Batch`].
    pub batch: u32,
    /// Transactions that a node runs at once, and commands in each, if not as it likes.
    pub lanes: Option<u32>,
    /// See `lanes`.
    pub batch_max: Option<u32>,
    /// What makes it harder.
    pub burden: Burden,
    /// Compare with the same without the burden, so many times in turn.
    pub pairs: Option<u32>,
}

/// What makes it harder than the plain case.
#[derive(Clone, Copy, Debug)]
pub struct Burden {
    /// Nodes on the database.
    pub nodes: u32,
    /// Queues, all in use.
    pub queues: u32,
    /// Handlers, all in use.
    pub handlers: u32,
    /// Tasks that wait in a paused queue beside.
    pub paused: u64,
    /// Tasks that have succeeded before.
    pub finished: u64,
    /// Tasks that wait at the start, for [`Mode::Drain`].
    pub waiting: u64,
    /// Whether every first attempt fails and is retried.
    pub retries: bool,
    /// Whether somebody else holds a snapshot of the database open.
    pub snapshot: bool,
}

/// What waits at the start of a plain drain.
const WAITING: u64 = 10_000;

impl Default for Burden {
    fn default() -> Self {
        Self {
            nodes: 1,
            queues: 1,
            handlers: 1,
            paused: 0,
            finished: 0,
            waiting: WAITING,
            retries: false,
            snapshot: false,
        }
    }
}

impl Options {
    /// The same without the burden.
    pub(super) fn plain(&self) -> Self {
        let mut plain = self.clone();
        plain.burden = Burden::default();
        if self.burden.retries || self.burden.waiting < WAITING {
            plain.burden.waiting = self.burden.waiting;
        }
        plain
    }

    /// The figure by which two runs are compared.
    pub(super) fn figure(&self) -> &'static str {
        match self.mode {
            // A retried task has two attempts.
            Mode::Lifecycle | Mode::Drain => "attempts_per_s",
            Mode::Submit | Mode::Batch => "submits_per_s",
            Mode::Latency => "start_latency_p50_ms",
            Mode::Idle => "server_cpu_percent",
            Mode::Ceiling => "ceiling_per_s",
        }
    }
}

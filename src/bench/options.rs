//! What is measured, and how.

use std::time::Duration;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Submit, dispatch, start and finish, each acknowledged after its commit.
    Lifecycle,
    /// Submits alone.
    Submit,
    /// Workers empty a backlog.
    Drain,
    /// A fixed rate: how long from a submit to the start of its handler, and to its end.
    Latency,
    /// Workers that have nothing to do: memory and CPU.
    Idle,
    /// The same rows written straight, without Orbit.
    Ceiling,
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
    /// How often the ceiling and Orbit take turns.
    pub rounds: u32,
    /// Worker streams.
    pub workers: u32,
    /// Attempts that each worker takes at once.
    pub slots: u32,
    /// Submits under way at once.
    pub submitters: u32,
    /// Bytes of each payload.
    pub payload_bytes: usize,
    /// Submits a second; as many as can be if there is none.
    pub rate: Option<f64>,
    /// Connections of all submitters together, and of all workers together.
    pub connections: u32,
}

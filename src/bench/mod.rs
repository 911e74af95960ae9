//! `orbit bench`: how fast Orbit is on a database, beside what that database can do by itself.
//!
//! The nodes and the load run in processes of their own, so that their CPU can be told apart; the figures come from the
//! kernel, from the nodes' metrics and from the load's own clock. Every run makes its own database and removes it.

mod bulk;
mod ceiling;
mod child;
mod exposition;
mod figures;
mod load;
mod modes;
mod node;
mod options;
mod place;
mod progress;
mod report;
mod rig;
mod run;
mod usage;
mod worker;

pub use load::run as run_load;
pub use node::run as run_node;
pub use options::{Burden, Mode, Options};
pub use progress::{Progress, Told};
pub use report::{Figure, Report};
pub use run::run;
pub use worker::QUEUES_PER_WORKER;

/// Why a measurement fails, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BenchError(String);

impl BenchError {
    fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }

    /// `what` failed for the reason given.
    fn of<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

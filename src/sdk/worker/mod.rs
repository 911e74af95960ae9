//! Workers: handlers, and the runtime that keeps their attempts alive.

mod answer;
mod attempt;
mod book;
mod builder;
mod context;
mod delivery;
mod driver;
mod failure;
mod handle;
mod handler;
mod lease;
mod link;
mod protocol;
mod pulse;
#[cfg(test)]
mod tests;

pub use builder::{DEFAULT_DRAIN_LIMIT, DEFAULT_RESULT_BYTES_MAX, DEFAULT_SLOTS, WorkerBuilder};
pub use context::{CancelReason, Context};
pub use failure::Failure;
pub use handle::{Report, Worker, WorkerHandle};

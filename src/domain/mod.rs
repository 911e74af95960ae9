//! What Orbit promises, as pure functions over plain values: no clock, no randomness, no I/O.
//!
//! Every function that judges takes the moment it judges at, read from the database's clock after the rows were
//! locked. Identifiers and the rest of the outside world are passed in too, so the same input always gives the same
//! answer.

pub mod attempt;
pub mod backoff;
pub mod decide;
pub mod digest;
pub mod event;
pub mod ids;
pub mod json;
pub mod names;
pub mod policy;
pub mod queue;
pub mod receipt;
pub mod rejection;
pub mod report;
pub mod submission;
pub mod task;
pub mod time;

#[cfg(test)]
pub(crate) mod fixtures;

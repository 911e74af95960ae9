//! The gRPC edge: reads requests, asks the engine, writes answers. It decides nothing and knows no SQL.

mod auth;
pub(crate) mod convert;
mod errors;
mod incoming;
mod page;
mod queue;
mod server;
pub(crate) mod status;
mod task;
mod transport;
mod worker;

pub use server::{Options, ServeError, serve};

//! The SDK against a server that does what a test tells it to.
#![cfg(feature = "server")]

mod authority;
mod client;
mod fake_tasks;
mod fake_worker;
mod proxy;
mod tls;
mod worker;
mod worker_outcomes;
mod worker_streams;

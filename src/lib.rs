//! Orbit, a durable task control plane: it retries only what is known to be safe.

pub mod proto;

#[cfg(feature = "server")]
pub mod domain;

#[cfg(feature = "sdk")]
pub mod sdk;

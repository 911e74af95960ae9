//! Orbit, a durable task control plane: it retries only what is known to be safe.

pub mod proto;

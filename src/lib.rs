//! Orbit, a durable task control plane: it retries only what is known to be safe.

pub mod proto;
#[cfg(feature = "sdk")]
pub mod sdk;

#[cfg(feature = "server")]
pub mod bench;
#[cfg(feature = "server")]
pub mod domain;
#[cfg(feature = "server")]
pub mod engine;
#[cfg(feature = "server")]
pub mod gateway;
#[cfg(feature = "server")]
pub mod metric;
#[cfg(feature = "server")]
pub mod rpc;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod session;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

/// The README's Rust code compiles.
#[cfg(all(doctest, feature = "sdk"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// So does that of the producers' page.
#[cfg(all(doctest, feature = "sdk"))]
#[doc = include_str!("../docs/producers.md")]
mod producers {}

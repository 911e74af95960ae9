//! Producers and workers.
//!
//! [`Client`] submits tasks and looks at them.

mod backoff;
mod call;
mod client;
mod endpoint;
mod error;
mod queues;
mod submit;

pub use client::{Client, ClientBuilder, DEFAULT_CALL_TIMEOUT, DEFAULT_URL};
pub use error::{Error, ErrorKind, FieldViolation};
pub use queues::QueueStatus;
pub use submit::{DEFAULT_PAYLOAD_VERSION, Submit, Submitted};

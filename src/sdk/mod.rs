//! Producers and workers.
//!
//! A producer has a [`Client`]: it submits tasks and looks at them. A worker author writes handlers and gives them to a
//! [`Worker`], which does everything else: start authorization, lease renewal, reconnects, reports that are sent until
//! they are confirmed, drain.

mod backoff;
mod batch;
mod call;
mod client;
mod endpoint;
mod error;
mod operate;
mod queues;
mod shutdown;
mod submit;
mod worker;

pub use client::{Client, ClientBuilder, DEFAULT_CALL_TIMEOUT, DEFAULT_URL};
pub use error::{Error, ErrorKind, FieldViolation};
pub use operate::Operated;
pub use queues::QueueStatus;
pub use shutdown::shutdown_signal;
pub use submit::{DEFAULT_PAYLOAD_VERSION, Submit, Submitted};
pub use worker::{
    CancelReason, Context, DEFAULT_DRAIN_LIMIT, DEFAULT_RESULT_BYTES_MAX, DEFAULT_SLOTS, Failure, Report,
    Worker, WorkerBuilder, WorkerHandle,
};

//! Why a caller gets no answer, or a refusal.

use std::time::Duration;

use uuid::Uuid;

use crate::{domain::rejection::Rejection, store::Fault};

use super::RETRY_AFTER;

/// Why the engine refuses, or has no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The command is refused; nothing changed.
    Rejected(Rejection),
    /// Too much waits already. Only submits are refused so.
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The database is away; nothing changed.
    DatabaseUnavailable {
        /// When to try again.
        retry_after: Duration,
    },
    /// It may or may not have been done: the same command sent again finds out.
    OutcomeUnknown,
    /// The node is about to end.
    Draining {
        /// When to try again.
        retry_after: Duration,
    },
    /// A bug, or a row that cannot be. It stands in the log under this id.
    Inconsistent {
        /// The id.
        incident: Uuid,
    },
}

impl From<Rejection> for Failure {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Transient(_) | Fault::Duplicate(_) | Fault::Away(_) => {
                Self::DatabaseUnavailable { retry_after: RETRY_AFTER }
            }
            Fault::Inconsistent(_) | Fault::Permanent(_) => {
                let incident = Uuid::new_v4();
                tracing::error!(%incident, %fault, "incident {incident}: {fault}");
                Self::Inconsistent { incident }
            }
        }
    }
}

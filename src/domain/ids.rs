//! Identifiers. Each has its own type, so that one cannot be passed for another.

use std::{fmt, sync::Arc};

use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta] $name:ident;)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    )*};
}

uuid_id! {
    /// A task, UUIDv7: ordered by acceptance, the key a handler uses for business idempotency.
    TaskId;
    /// One attempt of a task.
    AttemptId;
    /// One start or finish message, made by the worker, unique within the attempt.
    MessageId;
    /// One worker stream, made by the server.
    SessionId;
    /// One write to a queue, or by an operator, made by the caller.
    RequestId;
}

/// The fencing number of an attempt: 1, 2, 3 … within its task.
pub type Epoch = u32;

/// The stored number of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueNo(pub i32);

/// The stored number of a (queue, handler, version).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteNo(pub i32);

/// Where a task waits: its queue and the handler that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The queue, the handler and its version.
    pub route: RouteNo,
    /// The queue alone.
    pub queue: QueueNo,
}

/// Names one attempt of one task, as messages do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttemptRef {
    /// The task.
    pub task_id: TaskId,
    /// The attempt.
    pub attempt_id: AttemptId,
    /// The attempt's epoch.
    pub epoch: Epoch,
}

/// Who caused a change, for its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Stable name of the caller; [`NODE_PRINCIPAL`] when Orbit acts by itself.
    pub principal: Arc<str>,
    /// The worker stream, if one was involved.
    pub session_id: Option<SessionId>,
    /// The node that took the decision.
    pub node_id: Arc<str>,
}

/// The principal of everybody as long as no credentials exist.
pub const LOCAL_PRINCIPAL: &str = "local";

/// The principal of what Orbit does by itself, such as reclaiming a lease.
pub const NODE_PRINCIPAL: &str = "orbit";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_prints_hyphenated_and_in_small_letters() {
        let id = TaskId(Uuid::from_u128(0xABCD_0000_0000_7000_8000_0000_0000_0001));
        assert_eq!(id.to_string(), "abcd0000-0000-7000-8000-000000000001");
    }
}

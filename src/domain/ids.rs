//! Identifiers. Each has its own type, so that one cannot be passed for another.

use std::{fmt, sync::Arc};

use uuid::Uuid;

use super::time::Moment;

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

impl TaskId {
    /// The id of a task that is accepted at that moment: its time is the database's, like that of everything else, and
    /// what is random about it comes from `random`, a UUIDv7.
    pub fn accepted_at(at: Moment, random: Uuid) -> Self {
        const RANDOM_BITS: u32 = 80;
        let rest = random.as_u128() & ((1 << RANDOM_BITS) - 1);
        Self(Uuid::from_u128(Self::first_at(at).0.as_u128() | rest))
    }

    /// The least id of that moment's millisecond.
    pub fn first_at(at: Moment) -> Self {
        let ms = u128::try_from(at.micros() / 1_000).unwrap_or(0).min((1 << 48) - 1);
        Self(Uuid::from_u128(ms << 80))
    }
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

    #[test]
    fn a_tasks_id_tells_when_it_was_accepted_to_the_millisecond() {
        let random = Uuid::from_u128(0xFFFF_FFFF_FFFF_7123_8456_789A_BCDE_F012);
        let id = TaskId::accepted_at(Moment::from_micros(0x0190_F5C2_7B1E * 1_000 + 999), random);
        assert_eq!(id.to_string(), "0190f5c2-7b1e-7123-8456-789abcdef012");
        let first = |ms: i64| TaskId::first_at(Moment::from_micros(ms * 1_000));
        assert!(first(0x0190_F5C2_7B1E) < id && id < first(0x0190_F5C2_7B1F));
        assert_eq!(TaskId::first_at(Moment::from_micros(-1)), TaskId(Uuid::nil()));
    }
}

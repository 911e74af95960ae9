//! How enums are stored: as the numbers of the contract, where it has them.

use crate::domain::{
    decide::{Cause, Decision},
    event::EventKind,
    policy::RecoverySafety,
    receipt::Disposition,
    report::{MessageKind, Outcome},
    task::StateName,
};

/// An enum with a stored number.
pub(super) trait Code: Sized + Copy + 'static {
    /// All values with their numbers.
    const ALL: &'static [(Self, i64)];

    /// The stored number.
    fn code(self) -> i64;

    /// The value of a stored number.
    fn from_code(code: i64) -> Option<Self> {
        Self::ALL.iter().find(|(_, c)| *c == code).map(|(value, _)| *value)
    }
}

macro_rules! codes {
    ($($name:ident { $($variant:ident = $code:literal),* $(,)? })*) => {$(
        impl Code for $name {
            const ALL: &'static [(Self, i64)] = &[$((Self::$variant, $code)),*];

            fn code(self) -> i64 {
                match self { $(Self::$variant => $code),* }
            }
        }
    )*};
}

codes! {
    StateName {
        Waiting = 1, Leased = 2, Running = 3, Succeeded = 4, Failed = 5, Canceled = 6, NeedsReview = 7,
    }
    Outcome { Succeeded = 1, Failed = 2, Unknown = 3, Canceled = 4 }
    RecoverySafety { ReconcileOnly = 1, Idempotent = 2 }
    Disposition { Applied = 1, Evidence = 2 }
    MessageKind { Start = 1, Finish = 2 }
    Decision {
        Succeeded = 1, CancelConfirmed = 2, CancelRequested = 3, NonRetryableFailure = 4,
        ReconciliationRequired = 5, AttemptLimit = 6, DeadlineExceeded = 7, StartDeadlineExceeded = 8,
        RetryableFailure = 9, IdempotentUnknown = 10, UnstartedLeaseExpired = 11, ResolvedByOperator = 12,
    }
    Cause {
        Reported = 1, LeaseExpired = 2, AttemptTimeout = 3, TaskDeadline = 4, StartDeadline = 5, Cancel = 6,
        Operator = 7,
    }
    EventKind {
        Accepted = 1, Leased = 2, Started = 3, Requeued = 4, Succeeded = 5, Failed = 6, Canceled = 7,
        ReviewRequired = 8, EvidenceRecorded = 9, CancelRequested = 10, Resolved = 11,
    }
}

/// States of ended attempts.
pub(super) mod attempt_state {
    pub(in crate::store) const SUCCEEDED: i64 = 3;
    pub(in crate::store) const FAILED: i64 = 4;
    pub(in crate::store) const UNKNOWN: i64 = 5;
    pub(in crate::store) const UNSTARTED: i64 = 6;
    pub(in crate::store) const CANCELED: i64 = 7;
}

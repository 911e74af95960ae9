//! The decision table (S5–S7): where the end of an attempt leads.

use crate::domain::{attempt::AttemptEnd, decide::Decision, policy::RecoverySafety, time::Moment};

/// How an attempt ended, as far as the table cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Success, reported with authority.
    Succeeded,
    /// Failure, reported with authority.
    Failed {
        /// Whether it is safe to retry.
        retryable: bool,
    },
    /// The effect is unknown: reported so, or lease or time ran out after the start.
    Unknown,
    /// The lease ran out before the start: nothing happened.
    Unstarted,
    /// The worker stopped because of a cancel, and says so.
    Canceled,
}

impl Ending {
    /// The ending without its data. What was cancelled before its start was not confirmed by anybody.
    pub fn of(end: &AttemptEnd, started_at: Option<Moment>) -> Self {
        match end {
            AttemptEnd::Succeeded { .. } => Self::Succeeded,
            AttemptEnd::Failed { retryable, .. } => Self::Failed { retryable: *retryable },
            AttemptEnd::Unknown { .. } => Self::Unknown,
            AttemptEnd::Unstarted => Self::Unstarted,
            AttemptEnd::Canceled { .. } if started_at.is_none() => Self::Unstarted,
            AttemptEnd::Canceled { .. } => Self::Canceled,
        }
    }
}

/// All that the table looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How the attempt ended.
    pub ending: Ending,
    /// The frozen guarantee.
    pub safety: RecoverySafety,
    /// Whether an earlier execution ended unverified.
    pub doubt: bool,
    /// Attempts claimed so far, this one included.
    pub attempts: u32,
    /// Attempts that may be claimed in all.
    pub attempt_limit: u32,
    /// Whether a cancel is recorded.
    pub canceled: bool,
    /// When the next attempt could be claimed: now plus the backoff.
    pub retry_at: Moment,
    /// The task's deadline.
    pub deadline_at: Moment,
    /// The latest start, if there is one.
    pub start_before: Option<Moment>,
}

/// Where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Next {
    /// SUCCEEDED.
    Succeeded,
    /// WAITING for the backoff.
    Retry,
    /// FAILED.
    Failed,
    /// CANCELED.
    Canceled,
    /// NEEDS_REVIEW.
    NeedsReview,
}

/// The table's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// Where it leads.
    pub next: Next,
    /// Why.
    pub decision: Decision,
    /// The doubt afterwards.
    pub doubt: bool,
}

/// The decision table.
pub fn verdict(facts: &Facts) -> Verdict {
    let doubt = match facts.ending {
        Ending::Succeeded => false,
        Ending::Unknown => true,
        // Neither a failure nor an unstarted attempt says anything about what an earlier one did.
        Ending::Failed { .. } | Ending::Unstarted | Ending::Canceled => facts.doubt,
    };
    let end_in =
        |next, decision| Verdict { next: if doubt { Next::NeedsReview } else { next }, decision, doubt };
    let retry = match facts.ending {
        Ending::Succeeded => return end_in(Next::Succeeded, Decision::Succeeded),
        Ending::Canceled => return end_in(Next::Canceled, Decision::CancelConfirmed),
        _ if facts.canceled => return end_in(Next::Canceled, Decision::CancelRequested),
        Ending::Failed { retryable: false } => return end_in(Next::Failed, Decision::NonRetryableFailure),
        Ending::Failed { retryable: true } => Decision::RetryableFailure,
        Ending::Unknown => Decision::IdempotentUnknown,
        Ending::Unstarted => Decision::UnstartedLeaseExpired,
    };
    match retry_refusal(facts, doubt) {
        Some(decision) => end_in(Next::Failed, decision),
        None => Verdict { next: Next::Retry, decision: retry, doubt },
    }
}

/// Why there is no retry, or that there may be one. Equal to a limit is too late.
fn retry_refusal(facts: &Facts, doubt: bool) -> Option<Decision> {
    if doubt && facts.safety == RecoverySafety::ReconcileOnly {
        Some(Decision::ReconciliationRequired)
    } else if facts.attempts >= facts.attempt_limit {
        Some(Decision::AttemptLimit)
    } else if facts.retry_at >= facts.deadline_at {
        Some(Decision::DeadlineExceeded)
    } else if facts.start_before.is_some_and(|s| facts.retry_at >= s) {
        Some(Decision::StartDeadlineExceeded)
    } else {
        None
    }
}

//! A task and its state. Each state carries its own data, so that what cannot be cannot be written down.

use std::sync::Arc;

use super::{
    attempt::Lease,
    decide::Decision,
    ids::{AttemptRef, Epoch, Route, TaskId},
    json::JsonText,
    policy::{Policy, RecoverySafety},
    report::TaskError,
    time::Moment,
};

/// A task as the decisions see it. What they do not need (key, payload, versions) stays in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Where it waits.
    pub route: Route,
    /// Frozen at acceptance.
    pub policy: Policy,
    /// Attempts added by operators.
    pub granted_attempts: u32,
    /// When it was accepted.
    pub created_at: Moment,
    /// When it last changed.
    pub updated_at: Moment,
    /// Nothing starts at or after it; leases end there.
    pub deadline_at: Moment,
    /// No attempt is claimed or started at or after it.
    pub start_before: Option<Moment>,
    /// The size of its payload, for flow control.
    pub payload_bytes: u32,
    /// Where it is in its life.
    pub state: State,
    /// Raised by one with every change.
    pub revision: u32,
    /// Attempts claimed so far, which is also the latest epoch.
    pub attempt_count: u32,
    /// Whether an authorized execution ended unverified (`effect_uncertain`).
    pub doubt: bool,
    /// The recorded cancel.
    pub cancel: Option<CancelRecord>,
    /// The decision that led to the present state.
    pub last_decision: Option<Decision>,
    /// The result or error that an operator gave; a worker's stays with its attempt.
    pub verdict: Option<OperatorVerdict>,
}

/// Where a task is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Waits to be claimed.
    Waiting {
        /// The earliest next claim.
        available_at: Moment,
    },
    /// Claimed, not authorized to start.
    Leased(Lease),
    /// Authorized to start.
    Running {
        /// The attempt's lease.
        lease: Lease,
        /// When the start was granted.
        started_at: Moment,
    },
    /// Ended well.
    Succeeded {
        /// When.
        completed_at: Moment,
    },
    /// Ended badly, without doubt.
    Failed {
        /// When.
        completed_at: Moment,
    },
    /// Ended by a cancel, without doubt.
    Canceled {
        /// When.
        completed_at: Moment,
    },
    /// In doubt, until a person resolves it.
    NeedsReview,
}

/// The name of a state, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants of State, documented there")]
pub enum StateName {
    Waiting,
    Leased,
    Running,
    Succeeded,
    Failed,
    Canceled,
    NeedsReview,
}

impl StateName {
    /// All states in which nothing more happens to a task by itself.
    pub const SETTLED: [Self; 4] = [Self::Succeeded, Self::Failed, Self::Canceled, Self::NeedsReview];

    /// Whether nothing more happens to a task by itself: it has ended, or waits for a person.
    pub fn is_settled(self) -> bool {
        Self::SETTLED.contains(&self)
    }
}

impl State {
    /// Its name.
    pub const fn name(&self) -> StateName {
        match self {
            Self::Waiting { .. } => StateName::Waiting,
            Self::Leased(_) => StateName::Leased,
            Self::Running { .. } => StateName::Running,
            Self::Succeeded { .. } => StateName::Succeeded,
            Self::Failed { .. } => StateName::Failed,
            Self::Canceled { .. } => StateName::Canceled,
            Self::NeedsReview => StateName::NeedsReview,
        }
    }
}

/// A recorded wish to cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelRecord {
    /// When it was recorded.
    pub requested_at: Moment,
    /// The principal that asked.
    pub requested_by: Arc<str>,
    /// Its reason, as given; may be empty.
    pub reason: Arc<str>,
}

/// What an operator found out about a task in review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorVerdict {
    /// The effect happened and returned this.
    Result(JsonText),
    /// It did not happen, for this reason.
    Error(TaskError),
}

/// A lease as of now, beside an answer to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// Whether the attempt still has the right to act.
    pub valid: bool,
    /// For how long, in milliseconds; 0 if it has not.
    pub remaining_ms: u32,
    /// Whether a cancel is recorded.
    pub cancel_requested: bool,
}

impl Task {
    /// How many attempts may be claimed in all.
    pub const fn attempt_limit(&self) -> u32 {
        self.policy.max_attempts.saturating_add(self.granted_attempts)
    }

    /// The moment at which a waiting task can no longer be claimed: min(deadline, `start_before`).
    pub fn expires_at(&self) -> Moment {
        self.start_before.map_or(self.deadline_at, |s| s.min(self.deadline_at))
    }

    /// Whether nothing may be retried automatically any more.
    pub fn blocks_retry(&self) -> bool {
        self.doubt && self.policy.recovery_safety == RecoverySafety::ReconcileOnly
    }

    /// The lease of the current attempt, running or not.
    pub const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Leased(lease) | State::Running { lease, .. } => Some(lease),
            State::Waiting { .. }
            | State::Succeeded { .. }
            | State::Failed { .. }
            | State::Canceled { .. }
            | State::NeedsReview => None,
        }
    }

    /// The current attempt's lease, if this names it.
    pub fn lease_of(&self, attempt: AttemptRef) -> Option<&Lease> {
        let current: Epoch = self.attempt_count;
        self.lease().filter(|l| l.attempt_id == attempt.attempt_id && current == attempt.epoch)
    }

    /// The lease of an attempt as of `now`. Equal to `lease_until` is too late.
    pub fn lease_status(&self, attempt: AttemptRef, now: Moment) -> LeaseStatus {
        let valid = self.lease_of(attempt).filter(|l| now < l.lease_until);
        LeaseStatus {
            valid: valid.is_some(),
            remaining_ms: valid.map_or(0, |l| l.lease_until.ms_since(now)),
            cancel_requested: self.cancel.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{
        NOW, START_WINDOW_MS, around, attempt_id, attempt_ref, canceled, doubted, ended, idempotent,
        in_review, leased, running, waiting,
    };

    #[test]
    fn each_state_has_its_name() {
        let [succeeded, failed, canceled] = ended();
        let named = [
            (waiting(), StateName::Waiting),
            (leased(), StateName::Leased),
            (running(), StateName::Running),
            (succeeded, StateName::Succeeded),
            (failed, StateName::Failed),
            (canceled, StateName::Canceled),
            (in_review(), StateName::NeedsReview),
        ];
        for (task, name) in named {
            assert_eq!(task.state.name(), name);
        }
    }

    #[test]
    fn granted_attempts_add_to_the_limit_without_overflow() {
        let limit = |granted_attempts| Task { granted_attempts, ..waiting() }.attempt_limit();
        assert_eq!((limit(0), limit(2), limit(u32::MAX)), (3, 5, u32::MAX));
    }

    #[test]
    fn a_wait_expires_at_the_earlier_of_deadline_and_start_before() {
        let deadline = waiting().deadline_at;
        let expires_at = |start_before| Task { start_before, ..waiting() }.expires_at();
        assert_eq!(expires_at(None), deadline);
        let [before, at, after] = around(deadline);
        assert_eq!([before, at, after].map(|s| expires_at(Some(s))), [before, deadline, deadline]);
    }

    #[test]
    fn only_a_doubt_under_reconcile_only_blocks_a_retry() {
        let task = waiting();
        assert!(doubted(&task).blocks_retry());
        assert!(!task.blocks_retry());
        assert!(!idempotent(&task).blocks_retry());
        assert!(!doubted(&idempotent(&task)).blocks_retry());
    }

    #[test]
    fn only_leased_and_running_tasks_have_a_lease() {
        for task in [leased(), running()] {
            assert_eq!(task.lease().map(|l| l.attempt_id), Some(attempt_id(1)));
        }
        for task in [waiting(), in_review()].into_iter().chain(ended()) {
            assert_eq!(task.lease(), None, "{:?}", task.state);
            assert_eq!(task.lease_of(attempt_ref(task.attempt_count)), None);
        }
    }

    #[test]
    fn a_lease_belongs_to_one_attempt_and_one_epoch() {
        let current = attempt_ref(1);
        for task in [leased(), running()] {
            assert_eq!(task.lease_of(current), task.lease());
            for other in [
                AttemptRef { epoch: 0, ..current },
                AttemptRef { epoch: 2, ..current },
                AttemptRef { attempt_id: attempt_id(2), ..current },
            ] {
                assert_eq!(task.lease_of(other), None, "{other:?}");
                assert!(!task.lease_status(other, NOW).valid);
            }
        }
    }

    #[test]
    fn a_lease_is_valid_until_its_end_and_equal_is_too_late() {
        let task = leased();
        let end = NOW.plus_ms(START_WINDOW_MS);
        let status = |now| {
            let LeaseStatus { valid, remaining_ms, .. } = task.lease_status(attempt_ref(1), now);
            (valid, remaining_ms)
        };
        assert_eq!(status(NOW), (true, START_WINDOW_MS));
        assert_eq!(around(end).map(status), [(true, 0), (false, 0), (false, 0)]);
        let [before, ..] = around(NOW.plus_ms(START_WINDOW_MS - 1));
        assert_eq!(status(before), (true, 1));
    }

    #[test]
    fn a_lease_status_tells_of_a_cancel() {
        assert!(!running().lease_status(attempt_ref(1), NOW).cancel_requested);
        assert!(canceled(&running()).lease_status(attempt_ref(1), NOW).cancel_requested);
        assert!(canceled(&leased()).lease_status(attempt_ref(1), NOW).cancel_requested);
    }
}

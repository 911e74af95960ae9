//! The enums of the contract.

use crate::{
    domain::{
        decide::Decision, policy::RecoverySafety, receipt::Disposition, report::Outcome, task::StateName,
    },
    proto,
};

pub(crate) const fn state_name(state: StateName) -> proto::TaskState {
    match state {
        StateName::Waiting => proto::TaskState::Waiting,
        StateName::Leased => proto::TaskState::Leased,
        StateName::Running => proto::TaskState::Running,
        StateName::Succeeded => proto::TaskState::Succeeded,
        StateName::Failed => proto::TaskState::Failed,
        StateName::Canceled => proto::TaskState::Canceled,
        StateName::NeedsReview => proto::TaskState::NeedsReview,
    }
}

/// No decision is UNSPECIFIED.
pub(crate) const fn decision(decision: Option<Decision>) -> proto::Decision {
    let Some(decision) = decision else {
        return proto::Decision::Unspecified;
    };
    match decision {
        Decision::Succeeded => proto::Decision::Succeeded,
        Decision::CancelConfirmed => proto::Decision::CancelConfirmed,
        Decision::CancelRequested => proto::Decision::CancelRequested,
        Decision::NonRetryableFailure => proto::Decision::NonRetryableFailure,
        Decision::ReconciliationRequired => proto::Decision::ReconciliationRequired,
        Decision::AttemptLimit => proto::Decision::AttemptLimit,
        Decision::DeadlineExceeded => proto::Decision::DeadlineExceeded,
        Decision::StartDeadlineExceeded => proto::Decision::StartDeadlineExceeded,
        Decision::RetryableFailure => proto::Decision::RetryableFailure,
        Decision::IdempotentUnknown => proto::Decision::IdempotentUnknown,
        Decision::UnstartedLeaseExpired => proto::Decision::UnstartedLeaseExpired,
        Decision::ResolvedByOperator => proto::Decision::ResolvedByOperator,
    }
}

pub(crate) const fn recovery_safety(safety: RecoverySafety) -> proto::RecoverySafety {
    match safety {
        RecoverySafety::ReconcileOnly => proto::RecoverySafety::ReconcileOnly,
        RecoverySafety::Idempotent => proto::RecoverySafety::Idempotent,
    }
}

pub(crate) const fn disposition(disposition: Disposition) -> proto::Disposition {
    match disposition {
        Disposition::Applied => proto::Disposition::Applied,
        Disposition::Evidence => proto::Disposition::Evidence,
    }
}

pub(super) const fn outcome(outcome: Outcome) -> proto::Outcome {
    match outcome {
        Outcome::Succeeded => proto::Outcome::Succeeded,
        Outcome::Failed => proto::Outcome::Failed,
        Outcome::Unknown => proto::Outcome::Unknown,
        Outcome::Canceled => proto::Outcome::Canceled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_have_the_names_of_the_contract() {
        for number in 1..=12 {
            let named = proto::Decision::try_from(number).expect("a decision");
            let same = [
                Decision::Succeeded,
                Decision::CancelConfirmed,
                Decision::CancelRequested,
                Decision::NonRetryableFailure,
                Decision::ReconciliationRequired,
                Decision::AttemptLimit,
                Decision::DeadlineExceeded,
                Decision::StartDeadlineExceeded,
                Decision::RetryableFailure,
                Decision::IdempotentUnknown,
                Decision::UnstartedLeaseExpired,
                Decision::ResolvedByOperator,
            ]
            .into_iter()
            .find(|d| decision(Some(*d)) == named)
            .expect("one for each");
            assert_eq!(named.as_str_name(), format!("DECISION_{}", same.name()));
        }
        assert_eq!(decision(None), proto::Decision::Unspecified);
    }
}

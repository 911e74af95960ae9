//! Renewing the lease of a running attempt.

use crate::domain::{
    attempt::Lease,
    ids::AttemptRef,
    task::{State, Task},
    time::Moment,
};

/// The task with a renewed lease, or nothing if there is nothing to renew: an unstarted lease is never renewed, an
/// expired one neither, reclaimed or not (S11). A renewal is no change: revision and events stay as they are (S3).
pub fn renew(task: &Task, attempt: AttemptRef, lease_ms: u32, now: Moment) -> Option<Task> {
    let State::Running { started_at, .. } = task.state else {
        return None;
    };
    let lease = task.lease_of(attempt).filter(|l| now < l.lease_until)?;
    let lease_until = now.plus_ms(lease_ms).min(lease.cap_at).max(lease.lease_until);
    let lease = Lease { lease_until, ..lease.clone() };
    Some(Task { state: State::Running { lease, started_at }, ..task.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{
        LEASE_MS, NOW, around, attempt_id, attempt_ref, canceled, ended, in_review, leased, running, waiting,
    };

    fn renew_at(task: &Task, now: Moment) -> Option<Task> {
        renew(task, attempt_ref(1), LEASE_MS, now)
    }

    #[test]
    fn a_renewal_moves_the_lease_end_and_nothing_else() {
        let task = running();
        let now = NOW.plus_ms(20_000);
        let renewed = renew_at(&task, now).expect("renewed");
        let lease = task.lease().expect("a lease");
        let lease = Lease { lease_until: now.plus_ms(LEASE_MS), ..lease.clone() };
        assert_eq!(renewed, Task { state: State::Running { lease, started_at: NOW }, ..task });
    }

    #[test]
    fn renewals_end_at_the_attempts_time_counted_from_its_start() {
        let cap = NOW.plus_ms(running().policy.attempt_timeout_ms);
        let (mut task, mut now) = (running(), NOW);
        for _ in 0..20 {
            now = now.plus_ms(LEASE_MS / 3);
            let Some(renewed) = renew_at(&task, now) else { break };
            let lease = renewed.lease().expect("a lease");
            assert_eq!((lease.lease_until, lease.cap_at), (now.plus_ms(LEASE_MS).min(cap), cap));
            task = renewed;
        }
        assert_eq!(now, cap, "the renewal at the cap is the first that is refused");
    }

    #[test]
    fn a_renewal_never_shortens_a_lease() {
        // As after an outage, or a change of the server's setting.
        let task = running();
        let renewed = renew(&task, attempt_ref(1), 1_000, NOW).expect("renewed");
        assert_eq!(renewed, task);
    }

    #[test]
    fn an_expired_lease_is_not_renewed_and_equal_is_too_late() {
        let [before, at, after] = around(NOW.plus_ms(LEASE_MS)).map(|now| renew_at(&running(), now));
        assert!(before.is_some());
        assert_eq!((at, after), (None, None));
    }

    #[test]
    fn only_the_current_attempt_of_the_current_epoch_is_renewed() {
        let current = attempt_ref(1);
        for other in [
            AttemptRef { epoch: 0, ..current },
            AttemptRef { epoch: 2, ..current },
            AttemptRef { attempt_id: attempt_id(2), ..current },
        ] {
            assert_eq!(renew(&running(), other, LEASE_MS, NOW), None, "{other:?}");
        }
    }

    #[test]
    fn what_does_not_run_is_not_renewed() {
        for task in [waiting(), leased(), in_review()].into_iter().chain(ended()) {
            assert_eq!(renew_at(&task, NOW), None, "{:?}", task.state);
        }
    }

    #[test]
    fn a_recorded_cancel_does_not_stop_renewals() {
        assert!(renew_at(&canceled(&running()), NOW).is_some_and(|t| t.cancel.is_some()));
    }
}

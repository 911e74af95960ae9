//! Claiming a waiting task for a worker.

use crate::domain::{
    attempt::{Holder, Lease},
    event::EventKind,
    ids::{Actor, AttemptId},
    task::{State, Task},
    time::Moment,
};

use super::{Transition, change};

/// Why a candidate is not claimed. It stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimRefusal {
    /// It is not waiting (any more).
    NotWaiting,
    /// Its time has not come.
    NotDue,
    /// Its deadline or `start_before` has passed, which the sweep will see.
    Expired,
    /// Its budget is spent, or its doubt forbids another attempt.
    NotAllowed,
}

/// Claims a task (S10). It spends one attempt of the budget, whether the worker will start or not. An unstarted lease
/// lasts `start_window_ms`, at most to the deadline and `start_before`, and is never renewed (S11).
pub fn claim(
    task: &Task,
    attempt_id: AttemptId,
    holder: &Holder,
    start_window_ms: u32,
    now: Moment,
    actor: &Actor,
) -> Result<Transition, ClaimRefusal> {
    let State::Waiting { available_at } = task.state else {
        return Err(ClaimRefusal::NotWaiting);
    };
    if now < available_at {
        return Err(ClaimRefusal::NotDue);
    }
    if now >= task.expires_at() {
        return Err(ClaimRefusal::Expired);
    }
    if task.attempt_count >= task.attempt_limit() || task.blocks_retry() || task.cancel.is_some() {
        return Err(ClaimRefusal::NotAllowed);
    }
    let cap_at = task.expires_at();
    let lease = Lease {
        attempt_id,
        holder: holder.clone(),
        leased_at: now,
        lease_until: now.plus_ms(start_window_ms).min(cap_at),
        cap_at,
    };
    let task = Task { attempt_count: task.attempt_count + 1, ..task.clone() };
    Ok(change(&task, State::Leased(lease), now, EventKind::Leased, actor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        fixtures::{NOW, actor, around, attempt_id, canceled, holder, waiting},
        policy::RecoverySafety,
    };

    fn claim_at(task: &Task, now: Moment) -> Result<Transition, ClaimRefusal> {
        claim(task, attempt_id(1), &holder(), 15_000, now, &actor())
    }

    #[test]
    fn a_claim_spends_one_attempt_and_takes_the_next_epoch() {
        let claimed = claim_at(&waiting(), NOW).expect("claimed");
        assert_eq!((claimed.task.attempt_count, claimed.task.revision), (1, waiting().revision + 1));
        assert_eq!((claimed.event.kind, claimed.event.epoch), (EventKind::Leased, Some(1)));
        assert_eq!(claimed.task.lease().map(|l| l.lease_until), Some(NOW.plus_ms(15_000)));
    }

    #[test]
    fn the_unstarted_lease_ends_with_start_before_and_the_deadline() {
        let soon = Task { start_before: Some(NOW.plus_ms(10)), ..waiting() };
        assert_eq!(
            claim_at(&soon, NOW).expect("claimed").task.lease().map(|l| l.lease_until),
            soon.start_before
        );
        let soon = Task { deadline_at: NOW.plus_ms(20), ..waiting() };
        let lease_until = claim_at(&soon, NOW).expect("claimed").task.lease().map(|l| l.lease_until);
        assert_eq!(lease_until, Some(soon.deadline_at));
    }

    #[test]
    fn every_condition_is_checked_again() {
        let task = waiting();
        let before_due = Moment::from_micros(NOW.micros() - 1);
        assert_eq!(claim_at(&task, before_due), Err(ClaimRefusal::NotDue));
        assert_eq!(claim_at(&task, task.deadline_at), Err(ClaimRefusal::Expired));
        let soon = Task { start_before: Some(NOW), ..waiting() };
        assert_eq!(claim_at(&soon, NOW), Err(ClaimRefusal::Expired));
        let spent = Task { attempt_count: task.attempt_limit(), ..waiting() };
        assert_eq!(claim_at(&spent, NOW), Err(ClaimRefusal::NotAllowed));
        let granted = Task { granted_attempts: 1, ..spent };
        assert!(claim_at(&granted, NOW).is_ok());
        let done = Task { state: State::Succeeded { completed_at: NOW }, ..waiting() };
        assert_eq!(claim_at(&done, NOW), Err(ClaimRefusal::NotWaiting));
        let doubted = Task { doubt: true, ..waiting() };
        assert_eq!(claim_at(&doubted, NOW), Err(ClaimRefusal::NotAllowed));
        let mut idempotent = doubted;
        idempotent.policy.recovery_safety = RecoverySafety::Idempotent;
        assert!(claim_at(&idempotent, NOW).is_ok_and(|c| c.task.doubt));
    }

    #[test]
    fn a_wait_is_claimed_from_its_moment_on_and_not_at_its_limits() {
        let task = Task { state: State::Waiting { available_at: NOW.plus_ms(5) }, ..waiting() };
        let claimed = around(NOW.plus_ms(5)).map(|now| claim_at(&task, now).map(|_| ()));
        assert_eq!(claimed, [Err(ClaimRefusal::NotDue), Ok(()), Ok(())]);
        let limit = NOW.plus_ms(9);
        for task in [
            Task { deadline_at: limit, ..waiting() },
            Task { start_before: Some(limit), ..waiting() },
            Task { start_before: Some(limit.plus_ms(1)), deadline_at: limit, ..waiting() },
        ] {
            let claimed = around(limit).map(|now| claim_at(&task, now).map(|_| ()));
            assert_eq!(claimed, [Ok(()), Err(ClaimRefusal::Expired), Err(ClaimRefusal::Expired)]);
        }
    }

    #[test]
    fn a_recorded_cancel_blocks_every_later_attempt() {
        // As if the task had gone on waiting: the cancel is checked by itself.
        let task = Task { cancel: canceled(&waiting()).cancel, ..waiting() };
        assert_eq!(claim_at(&task, NOW), Err(ClaimRefusal::NotAllowed));
    }

    #[test]
    fn the_last_attempt_of_the_budget_is_claimed() {
        let task = waiting();
        let last = Task { attempt_count: task.attempt_limit() - 1, ..waiting() };
        let claimed = claim_at(&last, NOW).expect("claimed");
        assert_eq!((claimed.task.attempt_count, claimed.event.epoch), (3, Some(3)));
        let over = Task { attempt_count: task.attempt_limit() + 1, ..task };
        assert_eq!(claim_at(&over, NOW), Err(ClaimRefusal::NotAllowed));
    }

    #[test]
    fn a_lease_says_whose_it_is_and_what_caps_it() {
        let task = waiting();
        let now = NOW.plus_ms(3);
        let claimed = claim_at(&task, now).expect("claimed");
        let lease = Lease {
            attempt_id: attempt_id(1),
            holder: holder(),
            leased_at: now,
            lease_until: now.plus_ms(15_000),
            cap_at: task.deadline_at,
        };
        assert_eq!(claimed.task.state, State::Leased(lease));
        assert_eq!((claimed.task.updated_at, claimed.ended), (now, None));
    }
}

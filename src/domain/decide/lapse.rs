//! What time alone does to a task.

use crate::domain::{
    attempt::{AttemptEnd, Lease},
    event::EventKind,
    ids::Actor,
    task::{State, Task},
    time::Moment,
};

use super::{Cause, Decision, Transition, change, end_attempt};

/// Reclaims an attempt whose lease has ended, or ends the wait of a task that can no longer be claimed. Nothing if
/// neither is so: whatever the caller believed when it asked, only the locked task and `now` count.
pub fn lapse(task: &Task, now: Moment, actor: &Actor) -> Option<Transition> {
    match &task.state {
        State::Waiting { .. } if now >= task.expires_at() => Some(end_wait(task, now, actor)),
        State::Leased(lease) if now >= lease.lease_until => {
            let cause = lease_cause(task, lease, Cause::StartDeadline);
            Some(end_attempt(task, lease, None, AttemptEnd::Unstarted, cause, now, actor))
        }
        State::Running { lease, started_at } if now >= lease.lease_until => {
            let cause = lease_cause(task, lease, Cause::AttemptTimeout);
            let end = AttemptEnd::Unknown { error: None };
            Some(end_attempt(task, lease, Some(*started_at), end, cause, now, actor))
        }
        State::Waiting { .. }
        | State::Leased(_)
        | State::Running { .. }
        | State::Succeeded { .. }
        | State::Failed { .. }
        | State::Canceled { .. }
        | State::NeedsReview => None,
    }
}

/// Which limit ended the lease, however late it is reclaimed: `at_cap` if it ran to its cap and that was not the
/// deadline.
fn lease_cause(task: &Task, lease: &Lease, at_cap: Cause) -> Cause {
    if lease.lease_until >= task.deadline_at {
        Cause::TaskDeadline
    } else if lease.lease_until >= lease.cap_at {
        at_cap
    } else {
        Cause::LeaseExpired
    }
}

fn end_wait(task: &Task, now: Moment, actor: &Actor) -> Transition {
    let (decision, cause) = if now >= task.deadline_at {
        (Decision::DeadlineExceeded, Cause::TaskDeadline)
    } else {
        (Decision::StartDeadlineExceeded, Cause::StartDeadline)
    };
    let (state, kind) = if task.doubt {
        (State::NeedsReview, EventKind::ReviewRequired)
    } else {
        (State::Failed { completed_at: now }, EventKind::Failed)
    };
    let task = Task { last_decision: Some(decision), ..task.clone() };
    let mut transition = change(&task, state, now, kind, actor);
    transition.event.decision = Some(decision);
    transition.event.cause = Some(cause);
    transition
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        backoff,
        fixtures::{
            LEASE_MS, NOW, START_WINDOW_MS, actor, around, attempt_id, canceled, doubted, ended, idempotent,
            in_review, leased, leased_from, running, running_from, waiting,
        },
        task::StateName,
    };

    fn lapse_at(task: &Task, now: Moment) -> Transition {
        lapse(task, now, &actor()).expect("it has lapsed")
    }

    fn led_to(task: &Task, now: Moment) -> (StateName, bool, Decision, Cause) {
        let Transition { task, event, .. } = lapse_at(task, now);
        assert_eq!(task.last_decision, event.decision);
        let (Some(decision), Some(cause)) = (event.decision, event.cause) else { panic!("{event:?}") };
        (task.state.name(), task.doubt, decision, cause)
    }

    #[test]
    fn nothing_lapses_before_its_limit_and_everything_at_it() {
        let soon = Some(NOW.plus_ms(7));
        let table = [
            (waiting(), waiting().deadline_at),
            (Task { start_before: soon, ..waiting() }, NOW.plus_ms(7)),
            (leased(), NOW.plus_ms(START_WINDOW_MS)),
            (leased_from(&Task { start_before: soon, ..waiting() }), NOW.plus_ms(7)),
            (running(), NOW.plus_ms(LEASE_MS)),
            (running_from(&leased_from(&Task { start_before: soon, ..waiting() })), NOW.plus_ms(LEASE_MS)),
        ];
        for (task, limit) in table {
            let lapsed = around(limit).map(|now| lapse(&task, now, &actor()).is_some());
            assert_eq!(lapsed, [false, true, true], "{:?}", task.state);
        }
    }

    #[test]
    fn what_has_ended_or_waits_for_a_person_never_lapses() {
        let far = Moment::from_micros(i64::MAX);
        for task in ended().into_iter().chain([in_review(), canceled(&in_review())]) {
            assert_eq!(lapse(&task, far, &actor()), None, "{:?}", task.state);
        }
    }

    #[test]
    fn a_wait_ends_with_the_limit_that_passed() {
        use Decision::{DeadlineExceeded, StartDeadlineExceeded};
        use StateName::{Failed, NeedsReview};
        let deadline = waiting().deadline_at;
        let soon = Task { start_before: Some(NOW.plus_ms(7)), ..waiting() };
        let by_deadline = (Failed, false, DeadlineExceeded, Cause::TaskDeadline);
        let by_start = (Failed, false, StartDeadlineExceeded, Cause::StartDeadline);
        assert_eq!(led_to(&waiting(), deadline), by_deadline);
        assert_eq!(led_to(&soon, NOW.plus_ms(7)), by_start);
        assert_eq!(around(deadline).map(|now| led_to(&soon, now)), [by_start, by_deadline, by_deadline]);
        assert_eq!(
            led_to(&doubted(&waiting()), deadline),
            (NeedsReview, true, DeadlineExceeded, Cause::TaskDeadline)
        );

        let Transition { task, event, ended } = lapse_at(&waiting(), deadline);
        assert_eq!((&task.state, ended), (&State::Failed { completed_at: deadline }, None));
        assert_eq!((event.kind, event.revision, event.epoch), (EventKind::Failed, 2, None));
        assert_eq!(lapse_at(&doubted(&waiting()), deadline).event.kind, EventKind::ReviewRequired);
    }

    #[test]
    fn an_unstarted_attempt_waits_for_its_retry_and_keeps_the_doubt_as_it_was() {
        let end = NOW.plus_ms(START_WINDOW_MS);
        let retried = Decision::UnstartedLeaseExpired;
        for (task, doubt) in [(leased(), false), (doubted(&idempotent(&leased())), true)] {
            assert_eq!(led_to(&task, end), (StateName::Waiting, doubt, retried, Cause::LeaseExpired));
        }
        let spent = leased_from(&Task { attempt_count: 2, ..waiting() });
        let limit = Decision::AttemptLimit;
        assert_eq!(led_to(&spent, end), (StateName::Failed, false, limit, Cause::LeaseExpired));
        assert_eq!(led_to(&doubted(&idempotent(&spent)), end).0, StateName::NeedsReview);
    }

    #[test]
    fn a_started_attempt_ends_in_doubt_and_only_an_idempotent_one_is_retried() {
        let end = NOW.plus_ms(LEASE_MS);
        let lost = Cause::LeaseExpired;
        let reconcile = Decision::ReconciliationRequired;
        assert_eq!(led_to(&running(), end), (StateName::NeedsReview, true, reconcile, lost));
        let retried = Decision::IdempotentUnknown;
        assert_eq!(led_to(&idempotent(&running()), end), (StateName::Waiting, true, retried, lost));
        let by_cancel = (StateName::NeedsReview, true, Decision::CancelRequested, lost);
        assert_eq!(led_to(&canceled(&running()), end), by_cancel);
        assert_eq!(led_to(&canceled(&idempotent(&running())), end), by_cancel);
    }

    #[test]
    fn a_retry_waits_for_its_backoff_from_the_moment_of_the_reclaim() {
        let now = NOW.plus_ms(LEASE_MS + 123);
        let task = idempotent(&running());
        let Transition { task: after, event, ended } = lapse_at(&task, now);
        let delay_ms = backoff::delay_ms(&task.policy, 1, attempt_id(1));
        let available_at = now.plus_ms(delay_ms);
        assert_eq!(after.state, State::Waiting { available_at });
        assert_eq!((after.revision, after.updated_at, after.attempt_count), (4, now, 1));
        assert_eq!(
            (event.kind, event.delay_ms, event.next_available_at, event.epoch),
            (EventKind::Requeued, Some(delay_ms), Some(available_at), Some(1))
        );
        let ended = ended.expect("its attempt");
        assert_eq!((ended.epoch, ended.started_at, ended.ended_at), (1, Some(NOW), now));
        assert_eq!((ended.end, ended.delay_ms), (AttemptEnd::Unknown { error: None }, Some(delay_ms)));
        assert_eq!((ended.decision, ended.cause), (Decision::IdempotentUnknown, Cause::LeaseExpired));
        assert_eq!(Some(&ended.lease), task.lease());
    }

    #[test]
    fn the_backoff_grows_with_the_epoch() {
        let second = running_from(&leased_from(&Task { attempt_count: 1, ..idempotent(&waiting()) }));
        let delay_ms = lapse_at(&second, NOW.plus_ms(LEASE_MS)).event.delay_ms;
        assert_eq!(delay_ms, Some(backoff::delay_ms(&second.policy, 2, attempt_id(2))));
        assert!(delay_ms >= Some(1_000), "half of twice the initial delay");
    }

    #[test]
    fn an_unstarted_attempt_is_history_without_a_start() {
        let ended = lapse_at(&leased(), NOW.plus_ms(START_WINDOW_MS)).ended.expect("its attempt");
        assert_eq!((ended.started_at, ended.end), (None, AttemptEnd::Unstarted));
    }

    #[test]
    fn the_cause_is_the_limit_that_ended_the_lease() {
        let at = |ms| NOW.plus_ms(ms);
        let leased_until = |deadline_ms, start_before: Option<u32>| {
            let start_before = start_before.map(at);
            leased_from(&Task { deadline_at: at(deadline_ms), start_before, ..waiting() })
        };
        let running_for = |attempt_timeout_ms, deadline_ms| {
            let mut task = Task { deadline_at: at(deadline_ms), ..leased() };
            task.policy.attempt_timeout_ms = attempt_timeout_ms;
            running_from(&task)
        };
        let table = [
            (leased_until(90_000, None), START_WINDOW_MS, Cause::LeaseExpired),
            (leased_until(90_000, Some(5)), 5, Cause::StartDeadline),
            (leased_until(5, Some(5)), 5, Cause::TaskDeadline),
            (leased_until(5, None), 5, Cause::TaskDeadline),
            (running_for(300_000, 900_000), LEASE_MS, Cause::LeaseExpired),
            (running_for(100, 900_000), 100, Cause::AttemptTimeout),
            (running_for(100, 100), 100, Cause::TaskDeadline),
            (running_for(300_000, 100), 100, Cause::TaskDeadline),
        ];
        for (task, ms, cause) in table {
            let ended = lapse_at(&task, at(ms)).ended.expect("its attempt");
            assert_eq!(ended.cause, cause, "{:?}", task.state);
        }
    }

    #[test]
    fn a_late_reclaim_tells_the_same_cause() {
        let [by_lease, by_timeout] = [LEASE_MS + 1, 100].map(|attempt_timeout_ms| {
            let mut task = leased();
            task.policy.attempt_timeout_ms = attempt_timeout_ms;
            running_from(&task)
        });
        for late in [by_lease.deadline_at, NOW.plus_ms(LEASE_MS + 1)] {
            for (task, cause) in [(&by_lease, Cause::LeaseExpired), (&by_timeout, Cause::AttemptTimeout)] {
                assert_eq!(lapse_at(task, late).ended.map(|e| e.cause), Some(cause));
            }
            let unstarted = lapse_at(&leased(), late).ended.map(|e| e.cause);
            assert_eq!(unstarted, Some(Cause::LeaseExpired));
        }
    }
}

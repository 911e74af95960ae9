//! Authorizing a start: after it the effect may have happened.

use crate::domain::{
    attempt::Lease,
    event::EventKind,
    ids::Actor,
    receipt::{Receipt, ReceiptBook},
    rejection::{Rejection, TimeLimit},
    report::{MessageKind, Start},
    task::{State, Task},
    time::Moment,
};

use super::{Known, Transition, change};

/// What a start leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAnswer {
    /// It is authorized now.
    Granted(Box<Transition>, Receipt),
    /// It was authorized by this very message before.
    Replay(Receipt),
}

/// Authorizes a start under a valid lease, once. A granted lease lasts `lease_ms`, at most the attempt's time and the
/// deadline (S11). Pause is not looked at: a paused queue lets claimed work go on (S10).
pub fn start(
    task: &Task,
    known: Known,
    book: &ReceiptBook,
    message: &Start,
    lease_ms: u32,
    now: Moment,
    actor: &Actor,
) -> Result<StartAnswer, Rejection> {
    let attempt_id = message.attempt.attempt_id;
    known.or_not_found(message.attempt)?;
    let digest = message.digest();
    if let Some(receipt) = book.replay(message.message_id, digest)? {
        return Ok(StartAnswer::Replay(receipt.clone()));
    }
    // Before the cancel: of an attempt that another process runs nobody may believe that it never started (S15).
    let lease = task.lease_of(message.attempt);
    let runs = lease.is_some() && matches!(task.state, State::Running { .. });
    if runs || book.applied(digest).is_some() {
        return Err(Rejection::AlreadyStarted(attempt_id));
    }
    if task.cancel.is_some() {
        return Err(Rejection::CancelRequested(task.id));
    }
    let Some(lease) = lease else {
        return Err(Rejection::LeaseLost(attempt_id));
    };
    if now >= task.deadline_at {
        return Err(Rejection::DeadlineExceeded { task_id: task.id, limit: TimeLimit::Deadline });
    }
    if task.start_before.is_some_and(|s| now >= s) {
        return Err(Rejection::DeadlineExceeded { task_id: task.id, limit: TimeLimit::StartBefore });
    }
    if now >= lease.lease_until {
        return Err(Rejection::LeaseLost(attempt_id));
    }
    let cap_at = now.plus_ms(task.policy.attempt_timeout_ms).min(task.deadline_at);
    let lease = Lease { lease_until: now.plus_ms(lease_ms).min(cap_at), cap_at, ..lease.clone() };
    let state = State::Running { lease, started_at: now };
    let transition = change(task, state, now, EventKind::Started, actor);
    let receipt = Receipt::applied(message.message_id, MessageKind::Start, digest, &transition.task, None);
    Ok(StartAnswer::Granted(Box::new(transition), receipt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        fixtures::{
            LEASE_MS, NOW, START_WINDOW_MS, actor, around, attempt_id, attempt_ref, canceled, doubted, ended,
            idempotent, in_review, leased, leased_from, message_id, running, waiting,
        },
        ids::AttemptRef,
        receipt::Disposition,
        task::StateName,
    };

    fn message(id: u128) -> Start {
        Start { message_id: message_id(id), attempt: attempt_ref(1) }
    }

    fn start_with(
        task: &Task,
        book: &ReceiptBook,
        message: &Start,
        now: Moment,
    ) -> Result<StartAnswer, Rejection> {
        start(task, Known::Yes, book, message, LEASE_MS, now, &actor())
    }

    fn start_at(task: &Task, now: Moment) -> Result<StartAnswer, Rejection> {
        start_with(task, &ReceiptBook::default(), &message(1), now)
    }

    fn granted(answer: Result<StartAnswer, Rejection>) -> (Transition, Receipt) {
        match answer {
            Ok(StartAnswer::Granted(transition, receipt)) => (*transition, receipt),
            other => panic!("not granted: {other:?}"),
        }
    }

    fn lost() -> Result<StartAnswer, Rejection> {
        Err(Rejection::LeaseLost(attempt_id(1)))
    }

    #[test]
    fn a_granted_start_runs_with_its_event_and_its_receipt() {
        let task = leased();
        let now = NOW.plus_ms(10);
        let (Transition { task: after, event, ended }, receipt) = granted(start_at(&task, now));
        assert!(matches!(after.state, State::Running { started_at, .. } if started_at == now));
        assert_eq!((after.revision, after.updated_at, after.attempt_count), (task.revision + 1, now, 1));
        assert_eq!(
            (event.kind, event.epoch, event.at, event.decision, ended),
            (EventKind::Started, Some(1), now, None, None)
        );
        let digest = message(1).digest();
        assert_eq!(receipt, Receipt::applied(message_id(1), MessageKind::Start, digest, &after, None));
        assert_eq!(
            (receipt.disposition, receipt.task_state, receipt.committed_at),
            (Disposition::Applied, StateName::Running, now)
        );
    }

    #[test]
    fn a_started_lease_ends_with_its_term_the_attempts_time_or_the_deadline() {
        let limits = |attempt_timeout_ms, deadline_ms| {
            let mut task = leased();
            task.policy.attempt_timeout_ms = attempt_timeout_ms;
            task.deadline_at = NOW.plus_ms(deadline_ms);
            let (transition, _) = granted(start_at(&task, NOW));
            let lease = transition.task.lease().expect("a lease").clone();
            (lease.lease_until.ms_since(NOW), lease.cap_at.ms_since(NOW))
        };
        assert_eq!(limits(300_000, 400_000), (LEASE_MS, 300_000));
        assert_eq!(limits(50_000, 400_000), (50_000, 50_000));
        assert_eq!(limits(300_000, 40_000), (40_000, 40_000));
        assert_eq!(limits(300_000, 200_000), (LEASE_MS, 200_000));
    }

    #[test]
    fn start_before_does_not_end_a_started_lease() {
        let task = leased_from(&Task { start_before: Some(NOW.plus_ms(1_000)), ..waiting() });
        let (transition, _) = granted(start_at(&task, NOW));
        assert_eq!(transition.task.lease().map(|l| l.lease_until), Some(NOW.plus_ms(LEASE_MS)));
    }

    #[test]
    fn equal_to_the_lease_end_the_deadline_or_start_before_is_too_late() {
        let limit = NOW.plus_ms(10);
        let too_late = |limit| Err(Rejection::DeadlineExceeded { task_id: leased().id, limit });
        let lease_end = Moment::from_micros(NOW.plus_ms(START_WINDOW_MS).micros());
        // As if the lease outlived these limits: they are checked again by themselves (S10).
        let table = [
            (leased(), lease_end, lost()),
            (Task { deadline_at: limit, ..leased() }, limit, too_late(TimeLimit::Deadline)),
            (Task { start_before: Some(limit), ..leased() }, limit, too_late(TimeLimit::StartBefore)),
        ];
        for (task, limit, refusal) in table {
            let [before, at, after] = around(limit).map(|now| start_at(&task, now));
            assert!(matches!(before, Ok(StartAnswer::Granted(..))), "{before:?}");
            assert_eq!(at, refusal);
            assert_eq!(after, refusal);
        }
    }

    #[test]
    fn only_the_current_attempt_of_the_current_epoch_may_start() {
        let second = leased_from(&Task { attempt_count: 1, ..waiting() });
        assert_eq!(start_at(&second, NOW), lost());
        let current = AttemptRef { epoch: 1, ..attempt_ref(2) };
        let message = Start { attempt: current, ..message(1) };
        let refused = start_with(&second, &ReceiptBook::default(), &message, NOW);
        assert_eq!(refused, Err(Rejection::LeaseLost(attempt_id(2))));
        let current = Start { attempt: attempt_ref(2), ..message };
        granted(start_with(&second, &ReceiptBook::default(), &current, NOW));
    }

    #[test]
    fn a_task_that_is_not_leased_starts_nothing() {
        for task in [waiting(), in_review()].into_iter().chain(ended()) {
            assert_eq!(start_at(&task, NOW), lost(), "{:?}", task.state);
        }
    }

    #[test]
    fn an_attempt_that_the_task_never_had_is_not_found() {
        let answer =
            start(&leased(), Known::No, &ReceiptBook::default(), &message(1), LEASE_MS, NOW, &actor());
        let AttemptRef { task_id, attempt_id, .. } = attempt_ref(1);
        assert_eq!(answer, Err(Rejection::AttemptNotFound { task_id, attempt_id }));
    }

    #[test]
    fn a_cancel_forbids_the_start() {
        let refused = Err(Rejection::CancelRequested(leased().id));
        assert_eq!(start_at(&canceled(&leased()), NOW), refused);
        // As if the lease had outlived the cancel: it is checked by itself.
        let still_leased = Task { state: leased().state, ..canceled(&leased()) };
        assert_eq!(start_at(&still_leased, NOW), refused);
    }

    #[test]
    fn the_same_start_gets_its_receipt_whatever_became_of_the_task() {
        let (transition, receipt) = granted(start_at(&leased(), NOW));
        let book = ReceiptBook::new(vec![receipt.clone()]);
        let running = transition.task;
        let long_after = NOW.plus_ms(1_000_000_000);
        let [succeeded, ..] = ended();
        for task in [&running, &canceled(&running), &in_review(), &succeeded, &waiting()] {
            let answer = start_with(task, &book, &message(1), long_after);
            assert_eq!(answer, Ok(StartAnswer::Replay(receipt.clone())));
        }
    }

    #[test]
    fn the_same_id_with_other_content_is_a_conflict() {
        let (transition, receipt) = granted(start_at(&leased(), NOW));
        let book = ReceiptBook::new(vec![receipt]);
        let other = Start { attempt: AttemptRef { epoch: 2, ..attempt_ref(1) }, ..message(1) };
        let answer = start_with(&transition.task, &book, &other, NOW);
        assert!(
            matches!(answer, Err(Rejection::IdempotencyConflict { field: "message_id", .. })),
            "{answer:?}"
        );
    }

    #[test]
    fn another_process_does_not_start_a_started_attempt() {
        let started = Err(Rejection::AlreadyStarted(attempt_id(1)));
        let (transition, receipt) = granted(start_at(&leased(), NOW));
        let book = ReceiptBook::new(vec![receipt]);
        assert_eq!(start_with(&transition.task, &book, &message(2), NOW), started);
        // The state alone says so too, with or without its receipt, and a cancel makes no difference: whoever is told of
        // the cancel only might report that nothing happened.
        assert_eq!(start_at(&running(), NOW), started);
        assert_eq!(start_at(&canceled(&running()), NOW), started);
        assert_eq!(start_with(&canceled(&in_review()), &book, &message(2), NOW), started);
        // And long after the attempt ended, and another one waits or runs.
        let retried = leased_from(&Task { attempt_count: 1, ..waiting() });
        for task in [&in_review(), &waiting(), &retried] {
            assert_eq!(start_with(task, &book, &message(2), NOW), started);
        }
    }

    #[test]
    fn an_earlier_doubt_stays_through_a_start() {
        let task = doubted(&idempotent(&leased()));
        let (transition, receipt) = granted(start_at(&task, NOW));
        assert!(transition.task.doubt && transition.event.effect_uncertain && receipt.effect_uncertain);
    }
}

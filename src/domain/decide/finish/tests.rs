use super::*;
use crate::domain::{
    backoff,
    decide::{Decision, lapse},
    fixtures::{
        LEASE_MS, NOW, actor, around, attempt_id, attempt_ref, canceled, doubted, ended, error, idempotent,
        in_review, leased, leased_from, message_id, running, running_from, waiting,
    },
    json::JsonText,
    receipt::Disposition,
    task::StateName,
};

fn message(id: u128, report: Report) -> Finish {
    Finish { message_id: message_id(id), attempt: attempt_ref(1), report }
}

fn succeeded() -> Report {
    Report::Succeeded { result: JsonText::stored("[1]".into()) }
}

fn failed(retryable: bool) -> Report {
    Report::Failed { retryable, error: error("X") }
}

fn unknown() -> Report {
    Report::Unknown { error: Some(error("X")) }
}

fn stopped() -> Report {
    Report::Canceled { error: Some(error("X")) }
}

fn finish_with(
    task: &Task,
    book: &ReceiptBook,
    message: &Finish,
    now: Moment,
) -> Result<FinishAnswer, Rejection> {
    finish(task, Known::Yes, book, message, now, &actor())
}

fn finish_at(task: &Task, report: Report, now: Moment) -> Result<FinishAnswer, Rejection> {
    finish_with(task, &ReceiptBook::default(), &message(1, report), now)
}

fn applied(answer: Result<FinishAnswer, Rejection>) -> (Transition, Receipt) {
    match answer {
        Ok(FinishAnswer::Applied(transition, receipt)) => (*transition, receipt),
        other => panic!("not applied: {other:?}"),
    }
}

fn evidence(answer: Result<FinishAnswer, Rejection>) -> (EvidenceRecord, Event, Receipt) {
    match answer {
        Ok(FinishAnswer::Evidence(record, event, receipt)) => (*record, *event, receipt),
        other => panic!("no evidence: {other:?}"),
    }
}

#[test]
fn each_report_with_authority_leads_where_the_table_says() {
    use Decision::{
        AttemptLimit, CancelConfirmed, CancelRequested, IdempotentUnknown, NonRetryableFailure,
        ReconciliationRequired, RetryableFailure, Succeeded,
    };
    use StateName as S;
    let task = running();
    let spent = running_from(&leased_from(&Task { attempt_count: 2, ..waiting() }));
    let doubt = doubted(&idempotent(&task));
    let stop = canceled(&task);
    let table = [
        (&task, succeeded(), S::Succeeded, Succeeded, false),
        (&doubt, succeeded(), S::Succeeded, Succeeded, false),
        (&stop, succeeded(), S::Succeeded, Succeeded, false),
        (&task, failed(false), S::Failed, NonRetryableFailure, false),
        (&doubt, failed(false), S::NeedsReview, NonRetryableFailure, true),
        (&task, failed(true), S::Waiting, RetryableFailure, false),
        (&doubt, failed(true), S::Waiting, RetryableFailure, true),
        (&doubted(&task), failed(true), S::NeedsReview, ReconciliationRequired, true),
        (&spent, failed(true), S::Failed, AttemptLimit, false),
        (&task, unknown(), S::NeedsReview, ReconciliationRequired, true),
        (&idempotent(&task), unknown(), S::Waiting, IdempotentUnknown, true),
        (&stop, unknown(), S::NeedsReview, CancelRequested, true),
        (&canceled(&doubt), unknown(), S::NeedsReview, CancelRequested, true),
        (&stop, failed(true), S::Canceled, CancelRequested, false),
        (&stop, failed(false), S::Canceled, CancelRequested, false),
        (&canceled(&doubt), failed(true), S::NeedsReview, CancelRequested, true),
        (&stop, stopped(), S::Canceled, CancelConfirmed, false),
        (&canceled(&doubt), stopped(), S::NeedsReview, CancelConfirmed, true),
    ];
    for (task, report, state, decision, doubt) in table {
        let attempt = attempt_ref(task.attempt_count);
        let message = Finish { attempt, ..message(1, report) };
        let (transition, receipt) = applied(finish_with(task, &ReceiptBook::default(), &message, NOW));
        let after = &transition.task;
        assert_eq!(
            (after.state.name(), after.last_decision, after.doubt),
            (state, Some(decision), doubt),
            "{message:?}"
        );
        assert_eq!(
            (receipt.task_state, receipt.decision, receipt.effect_uncertain),
            (state, Some(decision), doubt)
        );
        let ended = transition.ended.expect("its attempt");
        assert_eq!((ended.decision, ended.cause, ended.started_at), (decision, Cause::Reported, Some(NOW)));
    }
}

#[test]
fn the_attempt_keeps_its_result_and_error_and_the_task_its_event() {
    let table = [
        (succeeded(), AttemptEnd::Succeeded { result: JsonText::stored("[1]".into()) }),
        (failed(true), AttemptEnd::Failed { retryable: true, error: error("X") }),
        (failed(false), AttemptEnd::Failed { retryable: false, error: error("X") }),
        (unknown(), AttemptEnd::Unknown { error: Some(error("X")) }),
        (stopped(), AttemptEnd::Canceled { error: Some(error("X")) }),
    ];
    let task = canceled(&running());
    let now = NOW.plus_ms(9);
    for (report, end) in table {
        let (transition, receipt) = applied(finish_at(&task, report, now));
        let (after, event) = (transition.task, transition.event);
        let ended = transition.ended.expect("its attempt");
        assert_eq!((ended.end, ended.epoch, ended.ended_at), (end, 1, now));
        assert_eq!(Some(&ended.lease), task.lease());
        assert_eq!((after.revision, after.updated_at, after.verdict), (task.revision + 1, now, None));
        assert_eq!((event.cause, event.decision), (Some(Cause::Reported), after.last_decision));
        assert_eq!((receipt.committed_at, receipt.disposition), (now, Disposition::Applied));
    }
}

#[test]
fn a_retry_says_when_in_the_state_the_event_the_receipt_and_the_history() {
    let now = NOW.plus_ms(9);
    let (transition, receipt) = applied(finish_at(&running(), failed(true), now));
    let delay_ms = backoff::delay_ms(&running().policy, 1, attempt_id(1));
    let available_at = now.plus_ms(delay_ms);
    assert_eq!(transition.task.state, State::Waiting { available_at });
    assert_eq!(transition.event.kind, EventKind::Requeued);
    assert_eq!(transition.event.next_available_at, Some(available_at));
    assert_eq!(transition.event.delay_ms, Some(delay_ms));
    assert_eq!(receipt.next_available_at, Some(available_at));
    assert_eq!(transition.ended.and_then(|e| e.delay_ms), Some(delay_ms));

    let (transition, receipt) = applied(finish_at(&running(), failed(false), now));
    assert_eq!((transition.event.delay_ms, receipt.next_available_at), (None, None));
    assert_eq!(transition.ended.and_then(|e| e.delay_ms), None);
}

#[test]
fn a_retry_must_lie_strictly_before_the_deadline_and_start_before() {
    let delay_ms = backoff::delay_ms(&running().policy, 1, attempt_id(1));
    let retry_at = NOW.plus_ms(delay_ms);
    let decision = |task: &Task| applied(finish_at(task, failed(true), NOW)).0.task.last_decision;
    let by_deadline = around(retry_at).map(|deadline_at| decision(&Task { deadline_at, ..running() }));
    let (late, retried) = (Some(Decision::DeadlineExceeded), Some(Decision::RetryableFailure));
    assert_eq!(by_deadline, [late, late, retried]);
    let by_start = around(retry_at).map(|s| decision(&Task { start_before: Some(s), ..running() }));
    let late = Some(Decision::StartDeadlineExceeded);
    assert_eq!(by_start, [late, late, retried]);
}

#[test]
fn attempts_that_a_person_granted_count_for_a_retry() {
    let spent = Task { attempt_count: 2, ..waiting() };
    let decision = |granted_attempts| {
        let task = running_from(&leased_from(&Task { granted_attempts, ..spent.clone() }));
        let message = Finish { attempt: attempt_ref(3), ..message(1, failed(true)) };
        applied(finish_with(&task, &ReceiptBook::default(), &message, NOW)).0.task.last_decision
    };
    assert_eq!(decision(0), Some(Decision::AttemptLimit));
    assert_eq!(decision(1), Some(Decision::RetryableFailure));
}

#[test]
fn a_report_at_the_lease_end_is_too_late() {
    let [before, at, after] =
        around(NOW.plus_ms(LEASE_MS)).map(|now| finish_at(&running(), succeeded(), now));
    applied(before);
    evidence(at);
    evidence(after);
}

#[test]
fn without_authority_a_report_is_evidence_and_changes_nothing() {
    let second = running_from(&leased_from(&Task { attempt_count: 1, ..waiting() }));
    let [done, failed_task, canceled_task] = ended();
    for task in [leased(), waiting(), in_review(), second, done, failed_task, canceled_task] {
        for report in [succeeded(), failed(true), unknown()] {
            let (record, event, receipt) = evidence(finish_at(&task, report.clone(), NOW));
            let expected = EvidenceRecord {
                attempt: attempt_ref(1),
                ordinal: 1,
                message: message(1, report),
                received_at: NOW,
            };
            assert_eq!(record, expected);
            assert_eq!(
                (event.kind, event.revision, event.epoch, event.ordinal),
                (EventKind::EvidenceRecorded, task.revision, Some(1), 1)
            );
            assert_eq!((event.state, event.effect_uncertain), (task.state.name(), task.doubt));
            assert_eq!((event.decision, event.cause), (None, None));
            assert_eq!(
                (receipt.disposition, receipt.task_state, receipt.decision, receipt.effect_uncertain),
                (Disposition::Evidence, task.state.name(), None, task.doubt)
            );
            assert_eq!((receipt.kind, receipt.committed_at), (MessageKind::Finish, NOW));
            assert_eq!(receipt.next_available_at, None);
        }
    }
}

#[test]
fn an_old_epoch_or_another_attempt_has_no_authority() {
    let second = running_from(&leased_from(&Task { attempt_count: 1, ..waiting() }));
    let current = attempt_ref(2);
    for attempt in [
        AttemptRef { epoch: 1, ..current },
        AttemptRef { epoch: 3, ..current },
        AttemptRef { attempt_id: attempt_id(1), ..current },
    ] {
        let message = Finish { attempt, ..message(1, succeeded()) };
        evidence(finish_with(&second, &ReceiptBook::default(), &message, NOW));
    }
    let message = Finish { attempt: current, ..message(1, succeeded()) };
    applied(finish_with(&second, &ReceiptBook::default(), &message, NOW));
}

#[test]
fn a_late_success_clears_no_doubt() {
    let late = finish_at(&in_review(), succeeded(), NOW.plus_ms(LEASE_MS));
    let (_, event, receipt) = evidence(late);
    assert!(event.effect_uncertain && receipt.effect_uncertain);
}

#[test]
fn an_attempt_that_the_task_never_had_is_not_found() {
    let answer =
        finish(&running(), Known::No, &ReceiptBook::default(), &message(1, succeeded()), NOW, &actor());
    let AttemptRef { task_id, attempt_id, .. } = attempt_ref(1);
    assert_eq!(answer, Err(Rejection::AttemptNotFound { task_id, attempt_id }));
}

#[test]
fn canceled_without_a_recorded_cancel_is_refused_with_or_without_authority() {
    let refused = Err(Rejection::CancelNotRequested(running().id));
    for task in [running(), leased(), in_review(), waiting()] {
        assert_eq!(finish_at(&task, stopped(), NOW), refused);
    }
    applied(finish_at(&canceled(&running()), stopped(), NOW));
    evidence(finish_at(&canceled(&in_review()), stopped(), NOW));
}

#[test]
fn the_same_message_gets_its_receipt_whatever_became_of_the_task() {
    let (transition, receipt) = applied(finish_at(&running(), failed(true), NOW));
    let book = ReceiptBook::new(vec![receipt.clone()]);
    let long_after = NOW.plus_ms(1_000_000);
    let third = Task { attempt_count: 2, ..waiting() };
    for task in [transition.task, running(), running_from(&leased_from(&third)), in_review()] {
        let answer = finish_with(&task, &book, &message(1, failed(true)), long_after);
        assert_eq!(answer, Ok(FinishAnswer::Replay(receipt.clone())));
    }
}

#[test]
fn evidence_sent_again_gets_its_receipt_even_once_it_would_be_applied() {
    let (_, _, receipt) = evidence(finish_at(&leased(), succeeded(), NOW));
    let book = ReceiptBook::new(vec![receipt.clone()]);
    let again = finish_with(&running(), &book, &message(1, succeeded()), NOW);
    assert_eq!(again, Ok(FinishAnswer::Replay(receipt)));
}

#[test]
fn the_same_id_with_other_content_is_a_conflict_even_if_only_retryable_differs() {
    let (transition, receipt) = applied(finish_at(&running(), failed(true), NOW));
    let book = ReceiptBook::new(vec![receipt]);
    for report in [failed(false), succeeded(), unknown(), stopped()] {
        let answer = finish_with(&transition.task, &book, &message(1, report), NOW);
        assert!(
            matches!(answer, Err(Rejection::IdempotencyConflict { field: "message_id", .. })),
            "{answer:?}"
        );
    }
}

#[test]
fn early_evidence_is_applied_under_a_new_id_once_the_attempt_runs() {
    let (_, _, early) = evidence(finish_at(&leased(), succeeded(), NOW));
    let mut book = ReceiptBook::new(vec![early]);
    let (transition, receipt) = applied(finish_with(&running(), &book, &message(2, succeeded()), NOW));
    book.add(receipt.clone());
    // And from then on the applied receipt is given for it, never the evidence's.
    let answer = finish_with(&transition.task, &book, &message(3, succeeded()), NOW.plus_ms(1));
    let receipt = Receipt { message_id: message_id(3), ..receipt };
    assert_eq!(answer, Ok(FinishAnswer::Alias { receipt, store: true }));
}

#[test]
fn the_applied_result_under_a_new_id_gets_its_receipt_even_long_after() {
    let (_, receipt) = applied(finish_at(&running(), failed(true), NOW));
    let mut book = ReceiptBook::new(vec![receipt.clone()]);
    let second = running_from(&leased_from(&Task { attempt_count: 1, ..waiting() }));
    let alias = |book: &ReceiptBook| match finish_with(
        &second,
        book,
        &message(999, failed(true)),
        NOW.plus_ms(1_000_000),
    ) {
        Ok(FinishAnswer::Alias { receipt, store }) => (receipt, store),
        other => panic!("no alias: {other:?}"),
    };
    let expected = Receipt { message_id: message_id(999), ..receipt.clone() };
    assert_eq!(alias(&book), (expected.clone(), true));
    for n in 2..=64 {
        book.add(Receipt { message_id: message_id(n), ..receipt.clone() });
    }
    assert_eq!(alias(&book), (expected, false), "the answer is the same, and no more rows are kept");
}

#[test]
fn another_result_after_the_applied_one_is_evidence() {
    let (transition, receipt) = applied(finish_at(&running(), failed(true), NOW));
    let book = ReceiptBook::new(vec![receipt]);
    for report in [failed(false), succeeded(), unknown()] {
        evidence(finish_with(&transition.task, &book, &message(2, report), NOW));
    }
}

#[test]
fn sixteen_reports_are_kept_as_evidence_and_no_more() {
    let task = leased();
    let mut book = ReceiptBook::default();
    for n in 1..=16 {
        let report = Report::Unknown { error: Some(error(&n.to_string())) };
        let (record, _, receipt) = evidence(finish_with(&task, &book, &message(n.into(), report), NOW));
        assert_eq!(record.ordinal, n);
        book.add(receipt);
    }
    let one_more = finish_with(&task, &book, &message(17, succeeded()), NOW);
    assert_eq!(one_more, Err(Rejection::EvidenceLimit(attempt_id(1))));
    // What is kept is still answered, and authority needs no place.
    let again = Report::Unknown { error: Some(error("16")) };
    let again = finish_with(&task, &book, &message(16, again), NOW);
    assert!(matches!(again, Ok(FinishAnswer::Replay(_))), "{again:?}");
    applied(finish_with(&running(), &book, &message(17, succeeded()), NOW));
}

#[test]
fn evidence_events_of_one_revision_have_places_of_their_own() {
    let places: std::collections::BTreeSet<u32> =
        (1..=3).flat_map(|epoch| (1..=EVIDENCE_MAX).map(move |n| evidence_event_ordinal(epoch, n))).collect();
    assert_eq!(places, (1..=48).collect(), "one each, and none is the change's own 0");
}

#[test]
fn of_a_report_and_a_reclaim_at_one_moment_exactly_one_takes_the_attempt() {
    for now in around(NOW.plus_ms(LEASE_MS)) {
        let reclaimed = lapse(&running(), now, &actor()).is_some();
        let reported = matches!(finish_at(&running(), succeeded(), now), Ok(FinishAnswer::Applied(..)));
        assert!(reclaimed != reported, "{now:?}");
    }
}

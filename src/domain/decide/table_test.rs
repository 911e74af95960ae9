//! The whole decision table against the promises' own words, and printed into `docs/decisions-table.md`.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::{Decision, Ending, Facts, Next, Verdict, verdict};
use crate::domain::{policy::RecoverySafety, time::Moment};

const RETRY_AT: Moment = Moment::from_micros(1_000_000);
const LATER: Moment = Moment::from_micros(1_000_001);

const ENDINGS: [(Ending, &str); 6] = [
    (Ending::Succeeded, "SUCCEEDED"),
    (Ending::Failed { retryable: false }, "FAILED"),
    (Ending::Failed { retryable: true }, "FAILED, retryable"),
    (Ending::Unknown, "UNKNOWN, or lease lost after start"),
    (Ending::Unstarted, "lease lost before start, or cancelled before it"),
    (Ending::Canceled, "CANCELED by the worker"),
];
const SAFETIES: [RecoverySafety; 2] = [RecoverySafety::ReconcileOnly, RecoverySafety::Idempotent];
const BOOLS: [bool; 2] = [false, true];
/// A limit that allows the retry, and one that is equal to its moment, which is too late.
const LIMITS: [Moment; 2] = [LATER, RETRY_AT];

/// All combinations.
fn all() -> Vec<Facts> {
    let mut all = Vec::new();
    for (ending, _) in ENDINGS {
        for canceled in BOOLS {
            for doubt in BOOLS {
                for safety in SAFETIES {
                    for attempts in [1, 2] {
                        for deadline_at in LIMITS {
                            for start_before in [None, Some(LATER), Some(RETRY_AT)] {
                                all.push(Facts {
                                    ending,
                                    safety,
                                    doubt,
                                    attempts,
                                    attempt_limit: 2,
                                    canceled,
                                    retry_at: RETRY_AT,
                                    deadline_at,
                                    start_before,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// The promises (S5, S7, §10), read line by line and written down without looking at the code.
fn promised(f: &Facts) -> (Next, Decision, bool) {
    let reconcile = f.safety == RecoverySafety::ReconcileOnly;
    let doubt = match f.ending {
        Ending::Succeeded => false,
        Ending::Unknown => true,
        _ => f.doubt,
    };
    let budget = f.attempts < f.attempt_limit;
    let in_time = f.retry_at < f.deadline_at;
    let may_start = f.start_before.is_none_or(|s| f.retry_at < s);
    let may_retry = budget && !f.canceled && !(doubt && reconcile) && in_time && may_start;

    let decision = if f.ending == Ending::Succeeded {
        Decision::Succeeded
    } else if f.ending == Ending::Canceled {
        Decision::CancelConfirmed
    } else if f.canceled {
        Decision::CancelRequested
    } else if f.ending == (Ending::Failed { retryable: false }) {
        Decision::NonRetryableFailure
    } else if doubt && reconcile {
        Decision::ReconciliationRequired
    } else if !budget {
        Decision::AttemptLimit
    } else if !in_time {
        Decision::DeadlineExceeded
    } else if !may_start {
        Decision::StartDeadlineExceeded
    } else {
        match f.ending {
            Ending::Failed { .. } => Decision::RetryableFailure,
            Ending::Unknown => Decision::IdempotentUnknown,
            _ => Decision::UnstartedLeaseExpired,
        }
    };
    let or_review = |next| if doubt { Next::NeedsReview } else { next };
    let next = match f.ending {
        Ending::Succeeded => Next::Succeeded,
        Ending::Canceled => or_review(Next::Canceled),
        _ if f.canceled => or_review(Next::Canceled),
        Ending::Failed { retryable: false } => or_review(Next::Failed),
        _ if may_retry => Next::Retry,
        _ => or_review(Next::Failed),
    };
    (next, decision, doubt)
}

#[test]
fn every_row_is_as_promised() {
    let rows = all();
    assert_eq!(rows.len(), 6 * 2 * 2 * 2 * 2 * 2 * 3);
    for facts in rows {
        let Verdict { next, decision, doubt } = verdict(&facts);
        assert_eq!((next, decision, doubt), promised(&facts), "{facts:?}");
    }
}

#[test]
fn the_printed_table_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/decisions-table.md");
    let table = print();
    if std::env::var_os("ORBIT_UPDATE_DOCS").is_some() {
        std::fs::write(path, &table).expect("written");
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == table,
        "{path} is not current; write it with ORBIT_UPDATE_DOCS=1 cargo test the_printed_table"
    );
}

fn print() -> String {
    let mut text = String::from(
        "# The decision table\n\n\
         What the end of an attempt leads to. Printed and checked by the test `the_printed_table_is_current`.\n\n\
         *Budget*: whether attempts are left. *Deadline*, *start_before*: whether the next claim, after the backoff, \
         would be strictly before it; equal is too late. *Doubt*: whether an execution ended unverified, before and \
         after. A column says *any* where it makes no difference.\n\n\
         | ending | cancel | doubt before | safety | budget | deadline | start_before | leads to | decision | doubt after |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let rows = all();
    // The last three columns make twelve combinations.
    for block in rows.chunks(12) {
        let verdicts: Vec<Verdict> = block.iter().map(verdict).collect();
        let same = verdicts.windows(2).all(|w| w.first() == w.last());
        for (facts, verdict) in block.iter().zip(&verdicts).take(if same { 1 } else { 12 }) {
            let ending = ENDINGS.iter().find(|(e, _)| *e == facts.ending).map_or("", |(_, name)| name);
            let yes = |b: bool| if b { "yes" } else { "no" };
            let any = |text: &'static str| if same { "any" } else { text };
            let start = match facts.start_before {
                None => "none",
                Some(s) if RETRY_AT < s => "in time",
                Some(_) => "too late",
            };
            writeln!(
                text,
                "| {ending} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                yes(facts.canceled),
                yes(facts.doubt),
                match facts.safety {
                    RecoverySafety::ReconcileOnly => "RECONCILE_ONLY",
                    RecoverySafety::Idempotent => "IDEMPOTENT",
                },
                any(if facts.attempts < facts.attempt_limit { "left" } else { "spent" }),
                any(if RETRY_AT < facts.deadline_at { "in time" } else { "too late" }),
                any(start),
                match verdict.next {
                    Next::Succeeded => "SUCCEEDED",
                    Next::Retry => "WAITING",
                    Next::Failed => "FAILED",
                    Next::Canceled => "CANCELED",
                    Next::NeedsReview => "NEEDS_REVIEW",
                },
                verdict.decision.name(),
                yes(verdict.doubt),
            )
            .expect("a String takes everything");
        }
    }
    text
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let endings = prop::sample::select(ENDINGS.map(|(e, _)| e).to_vec());
    let moments = 0_i64..5;
    (
        endings,
        prop::sample::select(SAFETIES.to_vec()),
        any::<(bool, bool)>(),
        (1_u32..5, 1_u32..5),
        (moments.clone(), moments.clone(), prop::option::of(moments)),
    )
        .prop_map(
            |(ending, safety, (doubt, canceled), (attempts, attempt_limit), (retry, deadline, start))| {
                Facts {
                    ending,
                    safety,
                    doubt,
                    attempts,
                    attempt_limit,
                    canceled,
                    retry_at: Moment::from_micros(retry),
                    deadline_at: Moment::from_micros(deadline),
                    start_before: start.map(Moment::from_micros),
                }
            },
        )
}

proptest! {
    #[test]
    fn a_retry_keeps_every_limit(facts in any_facts()) {
        let Verdict { next, doubt, .. } = verdict(&facts);
        if next == Next::Retry {
            prop_assert!(facts.attempts < facts.attempt_limit);
            prop_assert!(facts.retry_at < facts.deadline_at);
            prop_assert!(facts.start_before.is_none_or(|s| facts.retry_at < s));
            prop_assert!(!facts.canceled);
            prop_assert!(!(doubt && facts.safety == RecoverySafety::ReconcileOnly));
        }
    }

    #[test]
    fn only_success_clears_a_doubt(facts in any_facts()) {
        let Verdict { next, doubt, .. } = verdict(&facts);
        if facts.doubt {
            prop_assert_eq!(doubt, facts.ending != Ending::Succeeded);
        }
        prop_assert_eq!(doubt && next != Next::Retry, next == Next::NeedsReview);
        prop_assert_eq!(next == Next::Succeeded, facts.ending == Ending::Succeeded);
    }
}

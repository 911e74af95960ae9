//! The protocol between workers, nodes and the database, explored to the last state.
//!
//! The tests of single decisions show that each is right for the task that it is given. This model shows that together
//! they keep the promises whatever the network, the processes and the clock do in between. [stateright] takes every
//! step that is possible in every state that can be reached, and judges each of them.
//!
//! **What is real.** The database of the model holds a real task and real receipts; every transaction calls the
//! functions of `orbit::domain::decide` that the product calls. What is modelled is only what surrounds them.
//!
//! **What is modelled.**
//!
//! - *One task*, `RECONCILE_ONLY` or `IDEMPOTENT`, with one attempt or two. More tasks would not meet: each decision
//!   looks at one.
//! - *Time* is a handful of ticks, just enough for a first attempt that is renewed and still runs out of its own time,
//!   and a second one that meets the deadline. Time may pass between any two steps.
//! - *The network* keeps every start and finish that was ever sent. Each may arrive at any time, in any order, again
//!   and again, or never: so messages are lost, repeated, delayed and reordered without bound. Their number is bounded,
//!   since each worker handles an attempt once, and sends its start under one id and its report under two. An answer is
//!   read or lost; one that is late is the same as a repeated message whose answer is read. Renewals arrive at any
//!   time, of any attempt that ever started.
//! - *Two workers*, which may both be given the same attempt. A worker runs the handler after it has read that its own
//!   start was granted, and perhaps long after its lease is over. The handler succeeds, fails before the effect (safe
//!   to retry or for good), ends unknown after the effect, or stops because of a cancel. A worker may crash at any
//!   time and forget everything; once it has sent its report, forgetting makes no difference.
//! - *Two reclaimers* (of one node or of two), which read a candidate, and act on it later.
//! - *A cancel*, at any time.
//!
//! **What is judged.** `laws` lists what must hold. The laws do not believe the database: `world::Truth` notes what
//! really happened (which handler ran, which effect came about) and what was promised to whom, and they compare. Each
//! step that breaks a law is noted in the state after it, where the checker finds it. Beside the laws stands what must
//! be reachable, and for each run a number of states below which the model has lost something.
//!
//! **What makes it small.** To the checker two states are the same if nothing will ever tell them apart: moments,
//! revisions and reasons that are only written down are compared by the laws of the step that writes them and then
//! left out of the state's hash.
//!
//! **Whether it would notice.** `bugs` replaces one step by a wrong one at a time, and the checker must find the laws
//! that it breaks; the test prints a path to each. A path ends where the first law is broken.
//!
//! Left out: reports that precede their start (no worker of this model sends one), people who resolve a task (a new
//! budget and a new deadline make it a new task to this protocol), outages of the database (`last_seen` moves leases,
//! not decisions), and what one transaction does inside the database.

mod bugs;
mod laws;
mod protocol;
mod world;

use orbit::domain::policy::RecoverySafety::{self, Idempotent, ReconcileOnly};
use stateright::{Checker, HasDiscoveries, Model};

use bugs::Bug;
use protocol::Protocol;

/// As many cores as a machine of the CI has.
const THREADS: usize = 2;

fn once(safety: RecoverySafety) -> Protocol {
    Protocol {
        safety,
        max_attempts: 1,
        start_before: None,
        deadline: 4,
        renames: true,
        cancel: true,
        bug: None,
    }
}

/// The deadline leaves room for an attempt that uses all its time and one that is cut short.
fn twice(safety: RecoverySafety) -> Protocol {
    Protocol { max_attempts: 2, deadline: 5, cancel: false, ..once(safety) }
}

/// Explores all there is.
fn holds(protocol: Protocol, states_min: usize) {
    let name = format!("{protocol:?}");
    let checker = protocol.checker().threads(THREADS).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states, {} steps deep", checker.max_depth());
    checker.assert_properties();
    assert!(
        states >= states_min,
        "only {states} states, less than {states_min}: the model has lost something"
    );
}

/// Explores until the bug has broken each of these laws.
fn catches(bug: Bug, protocol: Protocol, laws: &[&'static str]) {
    let all = HasDiscoveries::AllOf(laws.iter().copied().collect());
    let protocol = Protocol { bug: Some(bug), ..protocol };
    let checker = protocol.checker().threads(THREADS).finish_when(all).spawn_bfs().join();
    for law in laws {
        let path = checker.discovery(law).unwrap_or_else(|| panic!("{bug:?} goes unnoticed by: {law}"));
        println!("{bug:?} breaks \"{law}\":");
        path.into_actions().iter().for_each(|action| println!("  {action:?}"));
    }
}

#[test]
fn one_attempt_reconcile_only() {
    holds(once(ReconcileOnly), 4_000);
}

#[test]
fn one_attempt_idempotent() {
    holds(once(Idempotent), 4_000);
}

#[test]
fn two_attempts_reconcile_only() {
    holds(twice(ReconcileOnly), 35_000);
}

#[test]
fn two_attempts_idempotent() {
    holds(twice(Idempotent), 160_000);
}

#[test]
fn two_attempts_and_a_cancel_reconcile_only() {
    holds(Protocol { cancel: true, renames: false, ..twice(ReconcileOnly) }, 25_000);
}

#[test]
fn two_attempts_and_a_cancel_idempotent() {
    holds(Protocol { cancel: true, renames: false, ..twice(Idempotent) }, 100_000);
}

#[test]
fn two_attempts_and_a_latest_start_reconcile_only() {
    holds(Protocol { start_before: Some(4), renames: false, ..twice(ReconcileOnly) }, 12_000);
}

#[test]
fn two_attempts_and_a_latest_start_idempotent() {
    holds(Protocol { start_before: Some(4), renames: false, ..twice(Idempotent) }, 45_000);
}

#[test]
fn a_start_without_an_epoch_check_is_caught() {
    catches(Bug::AnyEpochStarts, twice(ReconcileOnly), &[laws::AUTHORITY]);
}

#[test]
fn a_finish_without_an_epoch_check_is_caught() {
    catches(Bug::AnyEpochFinishes, twice(Idempotent), &[laws::REPORTS, laws::TRUE_SUCCESS]);
}

#[test]
fn a_reclaim_without_an_epoch_check_is_caught() {
    catches(Bug::AnyEpochReclaimed, twice(ReconcileOnly), &[laws::AUTHORITY]);
}

#[test]
fn a_reclaim_of_a_stale_copy_is_caught() {
    catches(Bug::StaleReclaim, twice(ReconcileOnly), &[laws::ENDS_ONCE, laws::FINAL, laws::REVISIONS]);
}

#[test]
fn a_lost_lease_taken_for_a_safe_failure_is_caught() {
    catches(Bug::LostLeaseIsSafe, twice(ReconcileOnly), &[laws::ONE_EFFECT, laws::DOUBT_SET]);
}

#[test]
fn running_before_the_start_is_acknowledged_is_caught() {
    catches(Bug::EarlyRun, twice(ReconcileOnly), &[laws::ONE_EFFECT]);
}

#[test]
fn a_second_process_that_is_let_in_is_caught() {
    catches(Bug::StartsTwice, once(Idempotent), &[laws::ONE_RUN]);
}

#[test]
fn reports_without_receipts_are_caught() {
    catches(Bug::NoReceipts, once(ReconcileOnly), &[laws::RECEIPTS]);
}

#[test]
fn a_doubt_cleared_by_a_failure_is_caught() {
    catches(Bug::FailureClearsDoubt, twice(Idempotent), &[laws::DOUBT_KEPT, laws::DOUBT_SET]);
}

#[test]
fn a_start_after_the_lease_is_caught() {
    catches(Bug::LateStart, once(ReconcileOnly), &[laws::GRANTS]);
}

#[test]
fn a_report_after_the_lease_is_caught() {
    catches(Bug::LateReport, once(ReconcileOnly), &[laws::REPORTS, laws::TRUE_SUCCESS]);
}

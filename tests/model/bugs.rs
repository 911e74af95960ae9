//! The three decisions that messages and reclaimers lead to, right or with one thing wrong. The wrong variants live
//! here and nowhere else: they show that the laws would notice.

use orbit::domain::{
    decide::{self, FinishAnswer, StartAnswer, Transition},
    ids::AttemptRef,
    receipt::ReceiptBook,
    rejection::Rejection,
    task::{State, Task},
    time::Moment,
};

use super::{
    protocol::Protocol,
    world::{Db, HandlerEnd, Look, Message, actor, attempt_ref, moment},
};

/// One thing that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A start is judged for whatever attempt is current.
    AnyEpochStarts,
    /// A report is judged for whatever attempt is current.
    AnyEpochFinishes,
    /// A reclaimer ends whatever attempt is current, since it saw that one had lapsed.
    AnyEpochReclaimed,
    /// A reclaimer judges, and writes back, the copy that it read before.
    StaleReclaim,
    /// A reclaimer takes a started attempt for one that never started.
    LostLeaseIsSafe,
    /// The handler runs as soon as the start is sent.
    EarlyRun,
    /// A start under another id is answered as a finish would be: by the receipt of the one that was applied.
    StartsTwice,
    /// No receipts are looked at: a repeated report is judged anew.
    NoReceipts,
    /// A failure is taken for proof that nothing happened.
    FailureClearsDoubt,
    /// A start is granted even after the lease's end, as long as nobody reclaimed it.
    LateStart,
    /// A report counts even after the lease's end, as long as nobody reclaimed it.
    LateReport,
}

/// Judges a start.
pub(crate) fn start(
    protocol: &Protocol,
    db: &Db,
    message: Message,
    lease_ms: u32,
    now: Moment,
) -> Result<StartAnswer, Rejection> {
    let attempt = judged_attempt(protocol, Bug::AnyEpochStarts, db, message);
    let (known, book) = (db.knows(attempt.epoch), db.book(message.epoch));
    let start = message.start(attempt);
    let now = match db.task.lease() {
        Some(lease) if protocol.has(Bug::LateStart) => lease.leased_at,
        _ => now,
    };
    match decide::start(&db.task, known, &book, &start, lease_ms, now, &actor()) {
        Err(Rejection::AlreadyStarted(_)) if protocol.has(Bug::StartsTwice) => {
            let applied = book.applied(start.digest()).cloned();
            applied.map(StartAnswer::Replay).ok_or(Rejection::LeaseLost(attempt.attempt_id))
        }
        answer => answer,
    }
}

/// Judges a report.
pub(crate) fn finish(
    protocol: &Protocol,
    db: &Db,
    message: Message,
    ending: HandlerEnd,
    now: Moment,
) -> Result<FinishAnswer, Rejection> {
    let attempt = judged_attempt(protocol, Bug::AnyEpochFinishes, db, message);
    let known = db.knows(attempt.epoch);
    let book = if protocol.has(Bug::NoReceipts) { ReceiptBook::default() } else { db.book(message.epoch) };
    let now = if protocol.has(Bug::LateReport) { moment(0) } else { now };
    let is_failure = matches!(ending, HandlerEnd::FailedBefore | HandlerEnd::FailedForGood);
    let doubt = db.task.doubt && !(protocol.has(Bug::FailureClearsDoubt) && is_failure);
    let task = Task { doubt, ..db.task.clone() };
    decide::finish(&task, known, &book, &message.finish(ending, attempt), now, &actor())
}

/// Judges what a reclaimer has seen.
pub(crate) fn reclaim(protocol: &Protocol, task: &Task, look: &Look, now: Moment) -> Option<Transition> {
    let task = look.copy.as_deref().unwrap_or(task);
    match task.lease() {
        Some(lease) if protocol.has(Bug::AnyEpochReclaimed) => {
            decide::lapse(task, lease.lease_until.max(now), &actor())
        }
        Some(lease) if protocol.has(Bug::LostLeaseIsSafe) => {
            let task = Task { state: State::Leased(lease.clone()), ..task.clone() };
            decide::lapse(&task, now, &actor())
        }
        _ => decide::lapse(task, now, &actor()),
    }
}

fn judged_attempt(protocol: &Protocol, bug: Bug, db: &Db, message: Message) -> AttemptRef {
    if protocol.has(bug) && db.task.lease().is_some() { db.current() } else { attempt_ref(message.epoch) }
}

//! What must hold in every step, and what must be reachable so that the rest is not empty talk.

use orbit::domain::{
    decide::lapse,
    event::EventKind,
    ids::Epoch,
    policy::RecoverySafety,
    receipt::Disposition,
    task::{State, StateName, Task},
};
use stateright::Property;

use super::{
    protocol::{Action, Protocol, Trace},
    world::{Body, HandlerEnd, Run, Worker, World, actor},
};

/// The disposition of a message that took effect.
pub(crate) const APPLIED: Disposition = Disposition::Applied;

/// A step under judgement.
pub(crate) struct Step<'a> {
    /// The protocol.
    pub(crate) protocol: &'a Protocol,
    /// The state before it.
    pub(crate) before: &'a World,
    /// The state after it.
    pub(crate) after: &'a World,
    /// The step.
    pub(crate) action: Action,
    /// What it did besides.
    pub(crate) trace: &'a Trace,
}

/// Declares the laws: a constant with the name of each, the judgement of all, and a property that reads its outcome.
macro_rules! laws {
    ($($(#[$doc:meta])* $constant:ident = $name:literal: $holds:path;)*) => {
        $($(#[$doc])* pub(crate) const $constant: &str = $name;)*

        /// The laws that a step breaks.
        pub(crate) fn broken(step: &Step<'_>) -> Vec<&'static str> {
            let mut broken = Vec::new();
            $(if !$holds(step) { broken.push($constant); })*
            broken
        }

        fn always() -> Vec<Property<Protocol>> {
            vec![$(Property::always($constant, |_, w: &World| !w.truth.broken.contains(&$constant))),*]
        }
    };
}

laws! {
    /// S5: claiming spends the budget.
    BUDGET = "attempts never exceed max_attempts": within_budget;
    /// §1: a lease that was promised is kept, and there is one at a time.
    AUTHORITY = "whoever was promised a lease holds it, and at most one does": one_authority;
    /// S10, S11: what is over stays over.
    GRANTS = "only a valid lease is started or renewed": granted_in_time;
    /// S16: a report without authority changes nothing.
    REPORTS = "only a report with authority is applied": applied_with_authority;
    /// S15: one process runs an attempt.
    ONE_RUN = "an attempt is executed at most once": one_run_per_attempt;
    /// The promise itself.
    ONE_EFFECT = "RECONCILE_ONLY is executed again only after a safe failure without effect": one_effect;
    /// §1: what ends unverified leaves a doubt.
    DOUBT_SET = "an effect that nobody verified leaves a doubt": doubt_is_set;
    /// §1: what clears it.
    DOUBT_KEPT = "only an authoritative success clears a doubt": doubt_is_kept;
    /// S2: who may be in doubt.
    DOUBT_PLACED = "ended tasks are never in doubt, reviewed ones always": doubt_is_placed;
    /// S5: no retry in doubt.
    NO_RETRY = "RECONCILE_ONLY in doubt waits for a person": no_retry_in_doubt;
    /// S2: an end is an end.
    FINAL = "an ended task never changes": final_states;
    /// S16: a success is true.
    TRUE_SUCCESS = "SUCCEEDED means that an attempt with authority reported a real effect": true_success;
    /// S13: the same message gets the same answer.
    RECEIPTS = "an answer that was stored is given again, and never changes": receipts_last;
    /// S3: every change is told once.
    REVISIONS = "every change raises the revision by one and writes its event": revisions;
    /// S21: reclaiming twice happens once.
    ENDS_ONCE = "an attempt ends once": ends_once;
    /// S24: nothing begins after a cancel.
    CANCELED = "after a cancel nothing is claimed or started": cancel_blocks;
    /// Nothing waits for ever.
    NOT_STUCK = "at its deadline a task has ended or can be reclaimed": not_stuck;
}

/// All properties.
pub(crate) fn properties(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = always();
    properties.extend([
        Property::sometimes("a task succeeds", |_, w| name(w) == StateName::Succeeded),
        Property::sometimes("a task fails", |_, w| name(w) == StateName::Failed),
        Property::sometimes("a task needs review", |_, w| name(w) == StateName::NeedsReview),
        Property::sometimes("a report is kept as evidence", |_, w| has_evidence(w)),
        Property::sometimes("a process may still run an attempt that ended", |_, w: &World| {
            w.workers.iter().any(|p| matches!(p, Worker::Authorized(e) if w.db.ended.contains(e)))
        }),
    ]);
    if protocol.max_attempts > 1 {
        properties.extend([
            Property::sometimes("a task is retried", |_, w: &World| w.db.task.attempt_count == 2),
            Property::sometimes("a retry succeeds", |_, w: &World| {
                w.db.task.attempt_count == 2 && name(w) == StateName::Succeeded
            }),
        ]);
    }
    if protocol.max_attempts > 1 && protocol.safety == RecoverySafety::Idempotent {
        properties.extend([
            Property::sometimes("a retry runs in doubt", |_, w: &World| {
                w.db.task.doubt && name(w) == StateName::Running
            }),
            Property::sometimes("an IDEMPOTENT effect happens twice", |_, w: &World| {
                w.truth.runs.iter().filter(|r| r.effect).count() == 2
            }),
        ]);
    }
    if protocol.renames {
        properties.push(Property::sometimes("a result is known under two ids", |_, w| has_alias(w)));
    }
    if protocol.cancel {
        properties.push(Property::sometimes("a task is canceled", |_, w| name(w) == StateName::Canceled));
    }
    properties
}

fn name(world: &World) -> StateName {
    world.db.task.state.name()
}

fn has_evidence(world: &World) -> bool {
    world.db.receipts.iter().flatten().any(|r| r.disposition == Disposition::Evidence)
}

fn has_alias(world: &World) -> bool {
    world.db.receipts.iter().any(|receipts| {
        let applied = |r: &&_| matches!(r, orbit::domain::receipt::Receipt { disposition: APPLIED, .. });
        receipts.iter().filter(applied).count() > 2
    })
}

fn has_ended(task: &Task) -> bool {
    matches!(task.state, State::Succeeded { .. } | State::Failed { .. } | State::Canceled { .. })
}

fn within_budget(step: &Step<'_>) -> bool {
    let claims = u32::try_from(step.after.truth.promises.len()).unwrap_or(u32::MAX);
    claims == step.after.db.task.attempt_count && claims <= step.protocol.max_attempts
}

fn one_authority(step: &Step<'_>) -> bool {
    let world = step.after;
    let mut open = (1..).zip(&world.truth.promises).filter(|(_, p)| p.is_open(world.now()));
    let Some((epoch, promise)) = open.next() else { return true };
    let current: Epoch = world.db.task.attempt_count;
    let kept = world.db.task.lease().is_some_and(|l| current == epoch && l.lease_until >= promise.until);
    kept && open.next().is_none()
}

fn granted_in_time(step: &Step<'_>) -> bool {
    let epoch = match step.action {
        Action::Deliver { message, .. } if message.body == Body::Start && step.trace.fresh => message.epoch,
        Action::Renew { epoch } => epoch,
        _ => return true,
    };
    step.before.promise(epoch).is_some_and(|p| p.is_open(step.before.now()))
}

fn applied_with_authority(step: &Step<'_>) -> bool {
    match (step.action, step.trace.receipt.as_ref()) {
        (Action::Deliver { message, .. }, Some(receipt))
            if step.trace.fresh && message.body != Body::Start && receipt.disposition == APPLIED =>
        {
            step.before.has_authority(message.epoch)
        }
        _ => true,
    }
}

fn one_run_per_attempt(step: &Step<'_>) -> bool {
    let runs = &step.after.truth.runs;
    (1..=step.protocol.max_attempts).all(|epoch| runs.iter().filter(|r| r.epoch == epoch).count() <= 1)
}

fn one_effect(step: &Step<'_>) -> bool {
    let runs = &step.after.truth.runs;
    step.protocol.safety == RecoverySafety::Idempotent
        || runs.iter().rev().skip(1).all(|r| r.safe && !r.effect)
}

fn doubt_is_set(step: &Step<'_>) -> bool {
    let task = &step.after.db.task;
    let is_current = |epoch: Epoch| task.lease().is_some() && epoch == task.attempt_count;
    let unverified = |r: &Run| r.effect && !is_current(r.epoch);
    task.doubt || step.after.truth.verified || !step.after.truth.runs.iter().any(unverified)
}

fn doubt_is_kept(step: &Step<'_>) -> bool {
    !step.before.db.task.doubt || step.after.db.task.doubt || succeeded_now(step)
}

/// Whether the step is the arrival of a success with authority.
fn succeeded_now(step: &Step<'_>) -> bool {
    matches!(
        step.action,
        Action::Deliver { message, .. }
            if matches!(message.body, Body::Finish { ending: HandlerEnd::Succeeded, .. })
                && step.before.has_authority(message.epoch)
    )
}

fn doubt_is_placed(step: &Step<'_>) -> bool {
    let task = &step.after.db.task;
    !(has_ended(task) && task.doubt) && (task.state != State::NeedsReview || task.doubt)
}

fn no_retry_in_doubt(step: &Step<'_>) -> bool {
    let task = &step.after.db.task;
    !task.doubt || step.protocol.safety == RecoverySafety::Idempotent || task.state == State::NeedsReview
}

fn final_states(step: &Step<'_>) -> bool {
    !has_ended(&step.before.db.task) || step.before.db.task == step.after.db.task
}

fn true_success(step: &Step<'_>) -> bool {
    (name(step.after) == StateName::Succeeded) == step.after.truth.verified
}

fn receipts_last(step: &Step<'_>) -> bool {
    let (before, after) = (&step.before.db, &step.after.db);
    let given_again = match (step.action, &step.trace.receipt) {
        (Action::Deliver { message, .. }, given) => match (before.receipt(message), given) {
            (Some(stored), given) => !step.trace.fresh && given.as_ref() == Some(stored),
            // S14: what another id is answered with took effect.
            (None, Some(given)) => step.trace.fresh || given.disposition == APPLIED,
            (None, None) => true,
        },
        _ => true,
    };
    let kept = before.receipts.iter().zip(&after.receipts).all(|(b, a)| b.iter().all(|r| a.contains(r)));
    // They are ordered by message.
    let stored_once =
        after.receipts.iter().all(|r| r.is_sorted_by(|one, next| one.message_id < next.message_id));
    given_again && kept && stored_once
}

fn revisions(step: &Step<'_>) -> bool {
    let (before, after) = (&step.before.db.task, &step.after.db.task);
    let is_renewal = matches!(step.action, Action::Renew { .. });
    match &step.trace.event {
        Some(event) if event.kind != EventKind::EvidenceRecorded => {
            after.revision == before.revision + 1 && event.revision == after.revision && !is_renewal
        }
        Some(event) => after == before && event.revision == after.revision,
        None => after.revision == before.revision && (after == before || is_renewal),
    }
}

fn ends_once(step: &Step<'_>) -> bool {
    let ended = &step.after.db.ended;
    ended.iter().enumerate().all(|(i, epoch)| !ended[..i].contains(epoch))
}

fn cancel_blocks(step: &Step<'_>) -> bool {
    let begun = |w: &World| {
        let started = w.truth.promises.iter().filter(|p| p.started).count();
        (w.truth.promises.len(), started)
    };
    step.before.db.task.cancel.is_none() || begun(step.before) == begun(step.after)
}

fn not_stuck(step: &Step<'_>) -> bool {
    let (task, now) = (&step.after.db.task, step.after.now());
    let is_over = has_ended(task) || task.state == State::NeedsReview;
    now < task.deadline_at || is_over || lapse(task, now, &actor()).is_some()
}

//! Random walks through a task's life: what holds after every step, whatever the steps were.

use proptest::prelude::*;

use super::{
    FinishAnswer, Known, Resolution, ResolvedTo, StartAnswer, Transition, cancel, claim, finish, lapse,
    renew, resolve, start,
};
use crate::domain::{
    event::EventKind,
    fixtures::{NOW, actor, attempt_id, error, holder, message_id, waiting},
    ids::AttemptRef,
    json::JsonText,
    policy::RecoverySafety,
    receipt::ReceiptBook,
    report::{Finish, Report, Start},
    task::{State, StateName, Task},
    time::Moment,
};

#[derive(Clone, Debug)]
enum Step {
    Pass(u32),
    Claim,
    /// Of the attempt this many epochs ago.
    Start(u32),
    Renew(u32),
    Finish(u32, Report),
    Lapse,
    Cancel,
    Resolve(bool, ResolvedTo),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ago = || prop_oneof![9 => Just(0_u32), 1 => Just(1_u32)];
    let report = prop_oneof![
        Just(Report::Succeeded { result: JsonText::null() }),
        any::<bool>().prop_map(|retryable| Report::Failed { retryable, error: error("X") }),
        any::<bool>().prop_map(|retryable| Report::Failed { retryable, error: error("X") }),
        Just(Report::Unknown { error: None }),
        Just(Report::Canceled { error: None }),
    ];
    let outcome = prop_oneof![
        Just(ResolvedTo::Canceled),
        (0_u32..3, 1_u32..200, prop::option::of(0_i64..200_000)).prop_map(
            |(granted_attempts, task_timeout_ms, start_before)| ResolvedTo::Retry {
                granted_attempts,
                task_timeout_ms,
                start_before: start_before.map(|micros| Moment::from_micros(NOW.micros() + micros)),
            }
        ),
    ];
    let step = prop_oneof![
        4 => (0_u32..30).prop_map(Step::Pass),
        6 => Just(Step::Claim),
        6 => ago().prop_map(Step::Start),
        2 => ago().prop_map(Step::Renew),
        4 => (ago(), report).prop_map(|(ago, report)| Step::Finish(ago, report)),
        4 => Just(Step::Lapse),
        1 => Just(Step::Cancel),
        2 => (any::<bool>(), outcome).prop_map(|(verified, outcome)| Step::Resolve(verified, outcome)),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a step does to the task.
enum Taken {
    Nothing,
    Renewed(Box<Task>),
    Changed(Box<Transition>),
}

fn take(task: &Task, step: &Step, id: u128, now: Moment) -> Taken {
    let attempt = |ago: u32| {
        let epoch = task.attempt_count.saturating_sub(ago);
        AttemptRef { task_id: task.id, attempt_id: attempt_id(epoch.into()), epoch }
    };
    let (book, actor) = (ReceiptBook::default(), actor());
    let changed = match step {
        Step::Pass(_) => None,
        Step::Claim => {
            let next = attempt_id(u128::from(task.attempt_count) + 1);
            claim(task, next, &holder(), 20, now, &actor).ok()
        }
        Step::Start(ago) => {
            let message = Start { message_id: message_id(id), attempt: attempt(*ago) };
            match start(task, Known::Yes, &book, &message, 20, now, &actor) {
                Ok(StartAnswer::Granted(transition, _)) => Some(*transition),
                _ => None,
            }
        }
        Step::Renew(ago) => match renew(task, attempt(*ago), 20, now) {
            Some(renewed) => return Taken::Renewed(Box::new(renewed)),
            None => None,
        },
        Step::Finish(ago, report) => {
            let message =
                Finish { message_id: message_id(id), attempt: attempt(*ago), report: report.clone() };
            match finish(task, Known::Yes, &book, &message, now, &actor) {
                Ok(FinishAnswer::Applied(transition, _)) => Some(*transition),
                _ => None,
            }
        }
        Step::Lapse => lapse(task, now, &actor),
        Step::Cancel => cancel(task, "", now, &actor),
        Step::Resolve(effect_verified, outcome) => {
            let resolution = Resolution {
                expected_revision: task.revision,
                effect_verified: *effect_verified,
                reason: String::new(),
                evidence: vec![],
                outcome: outcome.clone(),
            };
            resolve(task, &resolution, now, &actor).ok()
        }
    };
    changed.map_or(Taken::Nothing, |transition| Taken::Changed(Box::new(transition)))
}

fn is_terminal(task: &Task) -> bool {
    matches!(task.state.name(), StateName::Succeeded | StateName::Failed | StateName::Canceled)
}

/// What holds of every task at every moment.
fn check_task(task: &Task) {
    match &task.state {
        State::NeedsReview => assert!(task.doubt),
        State::Waiting { .. } | State::Leased(_) => assert!(!task.blocks_retry() && task.cancel.is_none()),
        State::Running { started_at, lease } => {
            let time = task.policy.attempt_timeout_ms;
            assert!(!task.blocks_retry() && lease.cap_at <= started_at.plus_ms(time));
        }
        State::Succeeded { .. } | State::Failed { .. } | State::Canceled { .. } => assert!(!task.doubt),
    }
    assert!(task.attempt_count <= task.attempt_limit());
    if let Some(lease) = task.lease() {
        assert!(lease.lease_until <= lease.cap_at && lease.cap_at <= task.deadline_at);
    }
}

/// What holds of every change.
fn check_change(before: &Task, transition: &Transition, now: Moment) {
    let Transition { task: after, event, ended } = transition;
    assert!(!is_terminal(before), "nothing leaves an end");
    assert_eq!((after.revision, after.updated_at), (before.revision + 1, now));
    assert_eq!((event.revision, event.at, event.ordinal), (after.revision, now, 0));
    assert_eq!((event.state, event.effect_uncertain), (after.state.name(), after.doubt));
    assert_eq!((event.attempt_count, event.max_attempts), (after.attempt_count, after.attempt_limit()));
    assert_eq!((after.policy, after.created_at, after.id), (before.policy, before.created_at, before.id));
    let claimed = event.kind == EventKind::Leased;
    assert_eq!(after.attempt_count, before.attempt_count + u32::from(claimed));
    assert!(claimed || before.lease().is_some() || after.lease().is_none(), "a claim alone takes a permit");
    let released = before.lease().is_some() && after.lease().is_none();
    assert_eq!(ended.is_some(), released, "an attempt ends once, and gives its permit back once");
    if before.doubt && !after.doubt {
        assert!(matches!(event.kind, EventKind::Succeeded | EventKind::Resolved));
    }
    if event.kind == EventKind::Requeued {
        assert!(event.next_available_at.is_some_and(|at| now < at && at < after.expires_at()));
    }
    let left_review = before.state == State::NeedsReview && after.state != State::NeedsReview;
    assert_eq!(left_review, event.kind == EventKind::Resolved, "only a person leaves review");
}

proptest! {
    #[test]
    fn every_step_of_every_life_keeps_the_promises(
        steps in steps(),
        max_attempts in 1_u32..5,
        idempotent: bool,
        timeouts in (10_u32..60, 50_u32..400),
        start_before in prop::option::of(20_u32..200),
    ) {
        let mut task = waiting();
        task.policy.max_attempts = max_attempts;
        task.policy.initial_delay_ms = 8;
        (task.policy.attempt_timeout_ms, task.policy.task_timeout_ms) = timeouts;
        task.deadline_at = NOW.plus_ms(timeouts.1);
        task.start_before = start_before.map(|ms| NOW.plus_ms(ms.min(timeouts.1)));
        if idempotent {
            task.policy.recovery_safety = RecoverySafety::Idempotent;
        }
        let mut now = NOW;
        for (id, step) in (1_u128..).zip(&steps) {
            if let Step::Pass(ms) = step {
                now = now.plus_ms(*ms);
            }
            match take(&task, step, id, now) {
                Taken::Nothing => {}
                Taken::Changed(transition) => {
                    check_change(&task, &transition, now);
                    task = transition.task;
                }
                Taken::Renewed(renewed) => {
                    let lease_until = |t: &Task| t.lease().map(|l| l.lease_until);
                    prop_assert!(lease_until(&renewed) >= lease_until(&task));
                    prop_assert_eq!(renewed.revision, task.revision);
                    task = *renewed;
                }
            }
            check_task(&task);
        }
    }
}

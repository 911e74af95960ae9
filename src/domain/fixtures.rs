//! Values for tests.

use uuid::Uuid;

use super::{
    attempt::Holder,
    decide::{self, Acceptance, Known, StartAnswer},
    ids::{
        Actor, AttemptId, AttemptRef, LOCAL_PRINCIPAL, MessageId, QueueNo, Route, RouteNo, SessionId, TaskId,
    },
    json::JsonText,
    policy::{PolicyRequest, RecoverySafety},
    receipt::ReceiptBook,
    report::{Start, TaskError},
    submission::Submission,
    task::{State, Task},
    time::Moment,
};

pub(crate) const NOW: Moment = Moment::from_micros(1_700_000_000_000_000);

/// How long an unstarted lease lasts, in these tests.
pub(crate) const START_WINDOW_MS: u32 = 15_000;
/// How long a started or renewed lease lasts, in these tests.
pub(crate) const LEASE_MS: u32 = 60_000;

/// A microsecond before a moment, the moment, and a microsecond after it.
pub(crate) fn around(limit: Moment) -> [Moment; 3] {
    [-1, 0, 1].map(|micros| Moment::from_micros(limit.micros() + micros))
}

pub(crate) fn submission() -> Submission {
    Submission {
        principal: LOCAL_PRINCIPAL.into(),
        idempotency_key: "key-1".into(),
        queue_id: "default".into(),
        handler: "text.normalize".into(),
        handler_version: "v1".into(),
        payload_version: "v1".into(),
        payload: JsonText::stored(r#"{"text":"  safe retry  "}"#.into()),
        policy: PolicyRequest { max_attempts: Some(3), ..Default::default() }.freeze().expect("valid"),
        not_before: None,
        start_before: None,
    }
}

pub(crate) fn acceptance() -> Acceptance {
    Acceptance { task_id: TaskId(Uuid::from_u128(1)), route: Route { route: RouteNo(1), queue: QueueNo(1) } }
}

pub(crate) fn actor() -> Actor {
    Actor { principal: LOCAL_PRINCIPAL.into(), session_id: None, node_id: "node-1".into() }
}

pub(crate) fn waiting() -> Task {
    super::decide::accept(&submission(), &acceptance(), NOW, &actor()).expect("a valid submission").task
}

/// Claimed at `NOW`: attempt 1, epoch 1.
pub(crate) fn leased() -> Task {
    leased_from(&waiting())
}

/// A waiting task, claimed at `NOW` under the next epoch, which is also the attempt's id.
pub(crate) fn leased_from(task: &Task) -> Task {
    let id = attempt_id(u128::from(task.attempt_count) + 1);
    decide::claim(task, id, &holder(), START_WINDOW_MS, NOW, &actor()).expect("can be claimed").task
}

/// Claimed and started at `NOW`: attempt 1, epoch 1.
pub(crate) fn running() -> Task {
    running_from(&leased())
}

/// A leased task, started at `NOW`.
pub(crate) fn running_from(task: &Task) -> Task {
    let start = Start { message_id: message_id(100), attempt: attempt_ref(task.attempt_count) };
    let book = ReceiptBook::default();
    match decide::start(task, Known::Yes, &book, &start, LEASE_MS, NOW, &actor()) {
        Ok(StartAnswer::Granted(transition, _)) => transition.task,
        other => panic!("cannot be started: {other:?}"),
    }
}

/// In review, after one attempt that nobody heard of again.
pub(crate) fn in_review() -> Task {
    let task = running();
    let lease_end = task.lease().expect("a lease").lease_until;
    decide::lapse(&task, lease_end, &actor()).expect("the lease has ended").task
}

/// One task in each state that has ended.
pub(crate) fn ended() -> [Task; 3] {
    let completed_at = NOW;
    [State::Succeeded { completed_at }, State::Failed { completed_at }, State::Canceled { completed_at }]
        .map(|state| Task { state, ..waiting() })
}

/// The same task, cancelled at `NOW`.
pub(crate) fn canceled(task: &Task) -> Task {
    decide::cancel(task, "", NOW, &actor()).expect("can be cancelled").task
}

/// The same task, in doubt.
pub(crate) fn doubted(task: &Task) -> Task {
    Task { doubt: true, ..task.clone() }
}

/// The same task, IDEMPOTENT.
pub(crate) fn idempotent(task: &Task) -> Task {
    let mut task = task.clone();
    task.policy.recovery_safety = RecoverySafety::Idempotent;
    task
}

pub(crate) fn holder() -> Holder {
    Holder {
        principal: LOCAL_PRINCIPAL.into(),
        session_id: SessionId(Uuid::from_u128(5)),
        node_id: "node-1".into(),
        worker_name: "worker-1".into(),
    }
}

pub(crate) fn attempt_id(n: u128) -> AttemptId {
    AttemptId(Uuid::from_u128(n))
}

pub(crate) fn message_id(n: u128) -> MessageId {
    MessageId(Uuid::from_u128(n))
}

/// The attempt of an epoch; its id is the epoch's.
pub(crate) fn attempt_ref(epoch: u32) -> AttemptRef {
    AttemptRef { task_id: acceptance().task_id, attempt_id: attempt_id(epoch.into()), epoch }
}

pub(crate) fn error(code: &str) -> TaskError {
    TaskError { code: code.into(), message: "".into(), details: None }
}

//! Values for tests.

use uuid::Uuid;

use super::{
    attempt::Holder,
    decide::Acceptance,
    ids::{
        Actor, AttemptId, AttemptRef, LOCAL_PRINCIPAL, MessageId, QueueNo, Route, RouteNo, SessionId, TaskId,
    },
    json::JsonText,
    policy::PolicyRequest,
    report::TaskError,
    submission::Submission,
    task::Task,
    time::Moment,
};

pub(crate) const NOW: Moment = Moment::from_micros(1_700_000_000_000_000);

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

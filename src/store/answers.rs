//! Stored answers to writes with a `request_id`, as JSON.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::{
    ids::{QueueNo, TaskId},
    queue::Queue,
    receipt::OperatorReceipt,
    time::Moment,
};

use super::codes::Code;

/// A stored answer.
#[derive(Clone, Debug)]
pub enum StoredAnswer {
    /// The queue as it was made or changed. Its number is not told to anyone and not kept.
    Queue(Queue),
    /// What became of the task.
    Task(OperatorReceipt),
}

impl StoredAnswer {
    /// The stored number of its kind.
    pub(super) fn kind(&self) -> i16 {
        match self {
            Self::Queue(_) => 1,
            Self::Task(_) => 2,
        }
    }

    /// The task it is about, if it is about one.
    pub(super) fn task_id(&self) -> Option<TaskId> {
        match self {
            Self::Queue(_) => None,
            Self::Task(receipt) => Some(receipt.task_id),
        }
    }

    pub(super) fn to_json(&self) -> String {
        match self {
            Self::Queue(queue) => json!({
                "queue_id": queue.queue_id,
                "paused": queue.paused,
                "max_running": queue.max_running,
                "revision": queue.revision,
                "created_at": queue.created_at.micros(),
                "updated_at": queue.updated_at.micros(),
            }),
            Self::Task(receipt) => json!({
                "task_id": receipt.task_id.to_string(),
                "changed": receipt.changed,
                "task_state": receipt.task_state.code(),
                "revision": receipt.revision,
                "decision": receipt.decision.map(Code::code),
                "effect_uncertain": receipt.effect_uncertain,
                "committed_at": receipt.committed_at.micros(),
            }),
        }
        .to_string()
    }

    /// None if it is not one of ours.
    pub(super) fn from_json(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |name: &str| u32::try_from(value.get(name)?.as_u64()?).ok();
        let flag = |name: &str| value.get(name)?.as_bool();
        let text = |name: &str| value.get(name)?.as_str();
        let moment = |name: &str| value.get(name)?.as_i64().map(Moment::from_micros);
        if value.get("task_id").is_some() {
            return Some(Self::Task(OperatorReceipt {
                task_id: TaskId(Uuid::try_parse(text("task_id")?).ok()?),
                changed: flag("changed")?,
                task_state: Code::from_code(value.get("task_state")?.as_i64()?)?,
                revision: number("revision")?,
                decision: match value.get("decision")? {
                    Value::Null => None,
                    code => Some(Code::from_code(code.as_i64()?)?),
                },
                effect_uncertain: flag("effect_uncertain")?,
                committed_at: moment("committed_at")?,
            }));
        }
        Some(Self::Queue(Queue {
            no: QueueNo(0),
            queue_id: text("queue_id")?.to_owned(),
            paused: flag("paused")?,
            max_running: number("max_running")?,
            revision: number("revision")?,
            created_at: moment("created_at")?,
            updated_at: moment("updated_at")?,
        }))
    }
}

//! What one state of the model consists of: the database, the network, the processes, and what really happened.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use orbit::domain::{
    attempt::Holder,
    decide::{Known, Transition},
    event::Event,
    ids::{Actor, AttemptId, AttemptRef, Epoch, LOCAL_PRINCIPAL, MessageId, SessionId, TaskId},
    json::JsonText,
    receipt::{Receipt, ReceiptBook},
    report::{Finish, Report, Start, TaskError},
    task::{State, Task},
    time::Moment,
};
use uuid::Uuid;

/// How many workers there are.
pub(crate) const WORKERS: usize = 2;
/// How many looks of reclaimers may be under way.
pub(crate) const RECLAIMERS: usize = 2;

/// One state.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    /// The database's clock, in ticks.
    pub(crate) tick: u8,
    /// All that is stored. It changes in whole transactions.
    pub(crate) db: Arc<Db>,
    /// Every message that was ever sent, in order. Any of them may arrive at any time, any number of times, or never.
    pub(crate) sent: Vec<Message>,
    /// The workers.
    pub(crate) workers: [Worker; WORKERS],
    /// Reclaimers that have seen a candidate and have not acted on it yet.
    pub(crate) looks: Vec<Look>,
    /// What really happened, which no process knows.
    pub(crate) truth: Truth,
}

/// The database: one task and what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Db {
    /// The task's row.
    pub(crate) task: Task,
    /// The receipts of each attempt, by epoch, each list ordered by message.
    pub(crate) receipts: Vec<Vec<Receipt>>,
    /// The epochs of the attempts that ended, in the order in which they were written.
    pub(crate) ended: Vec<Epoch>,
}

/// One start or finish. Sent again it is the same message, with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Message {
    /// The attempt.
    pub(crate) epoch: Epoch,
    /// The sender.
    pub(crate) worker: usize,
    /// What it says.
    pub(crate) body: Body,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Body {
    /// May the handler run?
    Start,
    /// The handler ended so.
    Finish {
        /// How.
        ending: HandlerEnd,
        /// The same result may be sent under a second id.
        copy: u8,
    },
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HandlerEnd {
    /// The effect happened, and the handler knows.
    Succeeded,
    /// It failed before the effect: safe to retry.
    FailedBefore,
    /// It failed before the effect, for good.
    FailedForGood,
    /// The effect happened, and the handler does not know.
    Unknown,
    /// It stopped before the effect, because of a cancel.
    Stopped,
}

/// What a worker process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Worker {
    /// Nothing: it has done its work and sent its report, or was refused, or crashed and forgot.
    Idle,
    /// It was given an attempt and has sent its start.
    Asked(Epoch),
    /// It has read the answer: it may run the handler, now or much later.
    Authorized(Epoch),
}

/// A candidate that a reclaimer has read without a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// A copy of the task as it was: kept only by a reclaimer that is wrong.
    pub(crate) copy: Option<Arc<Task>>,
}

/// What really happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    /// What was promised to each attempt, by epoch.
    pub(crate) promises: Vec<Promise>,
    /// Every execution of the handler, in order.
    pub(crate) runs: Vec<Run>,
    /// A success was reported with authority, by the process that had brought about the effect.
    pub(crate) verified: bool,
    /// The laws that a step has broken.
    pub(crate) broken: Vec<&'static str>,
}

/// What an attempt was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// The lease lasts until then, exclusive.
    pub(crate) until: Moment,
    /// Its start was granted.
    pub(crate) started: bool,
    /// It gave the lease back: by a report, or it was cancelled before its start.
    pub(crate) returned: bool,
}

/// One execution of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// The attempt.
    pub(crate) epoch: Epoch,
    /// The process.
    pub(crate) worker: usize,
    /// Whether the effect happened.
    pub(crate) effect: bool,
    /// Its failure, reported with authority, was called safe to retry.
    pub(crate) safe: bool,
}

impl World {
    /// What the database's clock reads.
    pub(crate) fn now(&self) -> Moment {
        moment(self.tick)
    }

    /// Puts a message on the network.
    pub(crate) fn send(&mut self, message: Message) {
        if let Err(at) = self.sent.binary_search(&message) {
            self.sent.insert(at, message);
        }
    }

    /// Whether an attempt has authority, going by what it was promised alone.
    pub(crate) fn has_authority(&self, epoch: Epoch) -> bool {
        self.promise(epoch).is_some_and(|p| p.started && p.is_open(self.now()))
    }

    /// What an attempt was promised.
    pub(crate) fn promise(&self, epoch: Epoch) -> Option<&Promise> {
        self.truth.promises.get(index(epoch))
    }
}

impl Promise {
    /// Whether it still binds.
    pub(crate) fn is_open(&self, now: Moment) -> bool {
        !self.returned && now < self.until
    }
}

impl Db {
    /// Writes a transition.
    pub(crate) fn apply(&mut self, transition: Transition) -> Event {
        self.task = transition.task;
        self.ended.extend(transition.ended.map(|e| e.epoch));
        let attempts = self.receipts.len().max(index(self.task.attempt_count + 1));
        self.receipts.resize(attempts, Vec::new());
        transition.event
    }

    /// Whether the task ever had this attempt.
    pub(crate) fn knows(&self, epoch: Epoch) -> Known {
        if index(epoch) < self.receipts.len() { Known::Yes } else { Known::No }
    }

    /// The receipts of an attempt.
    pub(crate) fn book(&self, epoch: Epoch) -> ReceiptBook {
        ReceiptBook::new(self.receipts.get(index(epoch)).cloned().unwrap_or_default())
    }

    /// The stored answer to a message.
    pub(crate) fn receipt(&self, message: Message) -> Option<&Receipt> {
        self.receipts.get(index(message.epoch))?.iter().find(|r| r.message_id == message.id())
    }

    /// Stores an answer.
    pub(crate) fn store(&mut self, epoch: Epoch, receipt: Receipt) {
        if let Some(receipts) = self.receipts.get_mut(index(epoch)) {
            let at = receipts.partition_point(|r| r.message_id < receipt.message_id);
            receipts.insert(at, receipt);
        }
    }

    /// The attempt that is current.
    pub(crate) fn current(&self) -> AttemptRef {
        attempt_ref(self.task.attempt_count)
    }
}

impl Message {
    /// The id that its sender gave it.
    pub(crate) fn id(self) -> MessageId {
        let body = match self.body {
            Body::Start => 0,
            Body::Finish { ending, copy } => 1 + 2 * (ending as u128) + u128::from(copy),
        };
        MessageId(Uuid::from_u128(u128::from(self.epoch) << 16 | (self.worker as u128) << 8 | body))
    }

    /// The message as a start of `attempt`.
    pub(crate) fn start(self, attempt: AttemptRef) -> Start {
        Start { message_id: self.id(), attempt }
    }

    /// The message as a finish of `attempt`.
    pub(crate) fn finish(self, ending: HandlerEnd, attempt: AttemptRef) -> Finish {
        let error = || TaskError { code: "E".into(), message: "".into(), details: None };
        let report = match ending {
            HandlerEnd::Succeeded => Report::Succeeded { result: JsonText::null() },
            HandlerEnd::FailedBefore => Report::Failed { retryable: true, error: error() },
            HandlerEnd::FailedForGood => Report::Failed { retryable: false, error: error() },
            HandlerEnd::Unknown => Report::Unknown { error: None },
            HandlerEnd::Stopped => Report::Canceled { error: None },
        };
        Finish { message_id: self.id(), attempt, report }
    }
}

impl HandlerEnd {
    /// Whether the effect happened.
    pub(crate) fn has_effect(self) -> bool {
        matches!(self, Self::Succeeded | Self::Unknown)
    }
}

/// A tick as a moment. Ticks are milliseconds, the smallest step that policies know.
pub(crate) fn moment(tick: u8) -> Moment {
    Moment::from_micros(0).plus_ms(tick.into())
}

/// Names the attempt of an epoch.
pub(crate) fn attempt_ref(epoch: Epoch) -> AttemptRef {
    let task_id = TaskId(Uuid::from_u128(1));
    AttemptRef { task_id, attempt_id: AttemptId(Uuid::from_u128(epoch.into())), epoch }
}

/// Who is written into leases.
pub(crate) fn holder() -> Holder {
    let session_id = SessionId(Uuid::from_u128(1));
    Holder {
        principal: LOCAL_PRINCIPAL.into(),
        session_id,
        node_id: "node".into(),
        worker_name: "worker".into(),
    }
}

/// Who is written into events.
pub(crate) fn actor() -> Actor {
    Actor { principal: LOCAL_PRINCIPAL.into(), session_id: None, node_id: "node".into() }
}

/// Where an epoch's things stand in a list.
pub(crate) fn index(epoch: Epoch) -> usize {
    usize::try_from(epoch).unwrap_or(usize::MAX).saturating_sub(1)
}

// Two states are the same to the checker if they agree in everything that a decision, a process or a law will ever look
// at. Left out is what is only written and read back: when things happened, why, and at which revision (each step's
// laws have compared those with the step before), and what is over, such as the end of an expired lease.
impl Hash for World {
    fn hash<H: Hasher>(&self, to: &mut H) {
        let now = self.now();
        (self.tick, &self.sent, &self.workers, &self.truth.runs).hash(to);
        (self.truth.verified, &self.truth.broken).hash(to);
        for promise in &self.truth.promises {
            (promise.started, promise.is_open(now).then_some(promise.until)).hash(to);
        }
        hash_task(&self.db.task, now, to);
        self.db.ended.hash(to);
        for receipts in &self.db.receipts {
            receipts.len().hash(to);
            for receipt in receipts {
                (receipt.message_id, receipt.disposition).hash(to);
            }
        }
        self.looks.len().hash(to);
        for copy in self.looks.iter().filter_map(|l| l.copy.as_ref()) {
            hash_task(copy, now, to);
            copy.revision.hash(to);
        }
    }
}

fn hash_task(task: &Task, now: Moment, to: &mut impl Hasher) {
    (task.state.name(), task.attempt_count, task.doubt, task.cancel.is_some()).hash(to);
    if let State::Waiting { available_at } = task.state {
        available_at.hash(to);
    }
    if let Some(lease) = task.lease().filter(|l| now < l.lease_until) {
        (lease.attempt_id, lease.lease_until, lease.cap_at).hash(to);
    }
}

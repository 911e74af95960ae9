//! What one transaction has locked and loaded, and what it will write.
//!
//! Commands change it one after another through a few verbs. A refused command must not have changed it, so commands
//! decide first and write down last.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use crate::domain::{
    attempt::EndedAttempt,
    decide::{EvidenceRecord, Known, Transition},
    digest::Digest,
    event::Event,
    ids::{Actor, AttemptId, AttemptRef, Epoch, QueueNo, RequestId, RouteNo, SessionId, TaskId},
    queue::Queue,
    receipt::{Receipt, ReceiptBook},
    submission::Submission,
    task::{State, Task},
    time::Moment,
};

use super::{answers::StoredAnswer, columns::canceled_attempt};

/// A locked task and what is known about its attempts.
pub(super) struct Entry {
    /// As it was loaded; none for a task accepted in this transaction.
    pub(super) loaded: Option<Task>,
    /// As it stands now.
    pub(super) task: Task,
    /// What a new task was accepted from.
    pub(super) accepted: Option<(Arc<Submission>, Digest)>,
    /// Ids of ended attempts, of the epochs that messages name.
    pub(super) ended: HashMap<Epoch, AttemptId>,
    /// Receipts, of the epochs that messages name.
    pub(super) books: HashMap<Epoch, ReceiptBook>,
}

impl Entry {
    pub(super) fn loaded(task: Task) -> Self {
        Self {
            loaded: Some(task.clone()),
            task,
            accepted: None,
            ended: HashMap::new(),
            books: HashMap::new(),
        }
    }
}

/// What a key was used for before.
#[derive(Clone, Copy, Debug)]
pub struct KeyHit {
    /// The task it made.
    pub task_id: TaskId,
    /// The content it came with.
    pub digest: Digest,
}

/// The stored answer to a write with a `request_id`.
#[derive(Clone, Debug)]
pub struct StoredRequest {
    /// The content it came with.
    pub digest: Digest,
    /// The answer.
    pub answer: StoredAnswer,
}

/// A queue that claims look at.
pub(super) struct ClaimQueue {
    pub(super) open: bool,
    /// Permits left; none if unlimited.
    pub(super) free: Option<u32>,
}

pub(super) struct QueueEntry {
    pub(super) loaded: Option<Queue>,
    pub(super) queue: Queue,
}

/// What a commit means to others, told after it.
#[derive(Debug, Default)]
pub struct Wakes {
    /// Tasks became claimable on these routes, from that moment on.
    pub ready: Vec<(RouteNo, Moment)>,
    /// Permits of these queues are free again.
    pub freed: Vec<QueueNo>,
    /// These queues changed: they may be open again, or give more permits.
    pub queues: Vec<QueueNo>,
    /// These attempts ended.
    pub ended: Vec<AttemptId>,
    /// Nothing more happens to these tasks by itself.
    pub settled: Vec<TaskId>,
    /// Cancels were recorded for these running attempts.
    pub canceled: Vec<(AttemptId, Arc<str>)>,
    /// The database's time of the transaction.
    pub now: Option<Moment>,
}

/// See the module.
pub struct WorkingSet {
    pub(super) now: Moment,
    pub(super) node_id: Arc<str>,
    pub(super) tasks: HashMap<TaskId, Entry>,
    pub(super) keys: HashMap<(Arc<str>, String), KeyHit>,
    pub(super) claim_queues: HashMap<QueueNo, ClaimQueue>,
    pub(super) candidates: HashMap<RouteNo, Vec<TaskId>>,
    /// Tasks accepted in this transaction that can be claimed at once, oldest first.
    fresh: HashMap<RouteNo, VecDeque<TaskId>>,
    pub(super) queues: HashMap<String, QueueEntry>,
    pub(super) requests: HashMap<(Arc<str>, RequestId), StoredRequest>,
    pub(super) new_requests: Vec<(Arc<str>, RequestId)>,
    pub(super) events: Vec<(TaskId, Event)>,
    pub(super) ended: Vec<(TaskId, EndedAttempt)>,
    pub(super) receipts: Vec<(AttemptRef, Receipt)>,
    pub(super) evidence: Vec<(EvidenceRecord, SessionId)>,
}

impl WorkingSet {
    pub(super) fn new(node_id: Arc<str>) -> Self {
        Self {
            now: Moment::from_micros(0),
            node_id,
            tasks: HashMap::new(),
            keys: HashMap::new(),
            claim_queues: HashMap::new(),
            candidates: HashMap::new(),
            fresh: HashMap::new(),
            queues: HashMap::new(),
            requests: HashMap::new(),
            new_requests: Vec::new(),
            events: Vec::new(),
            ended: Vec::new(),
            receipts: Vec::new(),
            evidence: Vec::new(),
        }
    }

    /// The database's time, read after everything was locked.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Who causes a change.
    pub fn actor(&self, principal: &Arc<str>, session_id: Option<SessionId>) -> Actor {
        Actor { principal: principal.clone(), session_id, node_id: self.node_id.clone() }
    }

    /// A locked task.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(|e| &e.task)
    }

    /// Whether the task ever had this attempt.
    pub fn knows(&self, attempt: AttemptRef) -> Known {
        let Some(entry) = self.tasks.get(&attempt.task_id) else {
            return Known::No;
        };
        let current = entry.task.lease_of(attempt).is_some();
        let ended = entry.ended.get(&attempt.epoch) == Some(&attempt.attempt_id);
        if current || ended { Known::Yes } else { Known::No }
    }

    /// The receipts of an attempt.
    pub fn book(&self, attempt: AttemptRef) -> ReceiptBook {
        let entry = self.tasks.get(&attempt.task_id);
        entry.and_then(|e| e.books.get(&attempt.epoch)).cloned().unwrap_or_default()
    }

    /// Writes a change of a locked task down.
    pub fn apply(&mut self, transition: Transition) {
        let Transition { task, event, ended } = transition;
        let id = task.id;
        self.events.push((id, event));
        let Some(entry) = self.tasks.get_mut(&id) else {
            return;
        };
        entry.task = task;
        if let Some(ended) = ended {
            entry.ended.insert(ended.epoch, ended.lease.attempt_id);
            self.ended.push((id, ended));
        }
    }

    /// Writes a renewed lease down, which is no change of the task.
    pub fn renewed(&mut self, task: Task) {
        if let Some(entry) = self.tasks.get_mut(&task.id) {
            entry.task = task;
        }
    }

    /// Stores a receipt.
    pub fn store_receipt(&mut self, attempt: AttemptRef, receipt: Receipt) {
        if let Some(entry) = self.tasks.get_mut(&attempt.task_id) {
            entry.books.entry(attempt.epoch).or_default().add(receipt.clone());
        }
        self.receipts.push((attempt, receipt));
    }

    /// Stores a report without authority, with its event.
    pub fn store_evidence(&mut self, record: EvidenceRecord, event: Event, session_id: SessionId) {
        self.events.push((record.attempt.task_id, event));
        self.evidence.push((record, session_id));
    }

    /// What a key was used for, in the database or earlier in this transaction.
    pub fn key(&self, principal: &Arc<str>, key: &str) -> Option<KeyHit> {
        self.keys.get(&(principal.clone(), key.to_owned())).copied()
    }

    /// Adds an accepted task.
    pub fn accept(&mut self, submission: Arc<Submission>, digest: Digest, transition: Transition) {
        let Transition { task, event, .. } = transition;
        let id = task.id;
        let key = (submission.principal.clone(), submission.idempotency_key.clone());
        self.keys.insert(key, KeyHit { task_id: id, digest });
        self.events.push((id, event));
        if matches!(task.state, State::Waiting { available_at } if available_at <= self.now) {
            self.fresh.entry(task.route.route).or_default().push_back(id);
        }
        let accepted = Some((submission, digest));
        let entry = Entry { loaded: None, task, accepted, ended: HashMap::new(), books: HashMap::new() };
        self.tasks.insert(id, entry);
    }

    /// What a task was accepted from, if that was in this transaction.
    pub fn submission(&self, id: TaskId) -> Option<Arc<Submission>> {
        let accepted = self.tasks.get(&id)?.accepted.as_ref();
        accepted.map(|(submission, _)| submission.clone())
    }

    /// Whether a queue that claims look at is paused, or has no permit left.
    pub fn gives_nothing(&self, queue: QueueNo) -> bool {
        self.claim_queues.get(&queue).is_none_or(|q| !q.open || q.free == Some(0))
    }

    /// Takes the next candidate of a route: locked, waiting and due when it was looked for, or accepted in this very
    /// transaction. None if there is no more, or the queue is paused or has no permit left.
    pub fn next_candidate(&mut self, route: RouteNo, queue: QueueNo) -> Option<Task> {
        if self.gives_nothing(queue) {
            return None;
        }
        let waited = self.candidates.get_mut(&route).and_then(Vec::pop);
        let id = waited.or_else(|| self.fresh.get_mut(&route)?.pop_front())?;
        self.tasks.get(&id).map(|e| e.task.clone())
    }

    /// Counts a permit that a claim took.
    pub fn permit_taken(&mut self, queue: QueueNo) {
        if let Some(free) = self.claim_queues.get_mut(&queue).and_then(|q| q.free.as_mut()) {
            *free = free.saturating_sub(1);
        }
    }

    /// A locked queue, by name.
    pub fn queue(&self, queue_id: &str) -> Option<&Queue> {
        self.queues.get(queue_id).map(|e| &e.queue)
    }

    /// Writes a new or changed queue down.
    pub fn put_queue(&mut self, queue: Queue) {
        if let Some(seen) = self.claim_queues.get_mut(&queue.no) {
            // Claims of this very transaction come after it: they wait for the next, which counts anew.
            seen.open = false;
        }
        match self.queues.get_mut(&queue.queue_id) {
            Some(entry) => entry.queue = queue,
            None => {
                self.queues.insert(queue.queue_id.clone(), QueueEntry { loaded: None, queue });
            }
        }
    }

    /// The stored answer to a request.
    pub fn request(&self, principal: &Arc<str>, request_id: RequestId) -> Option<&StoredRequest> {
        self.requests.get(&(principal.clone(), request_id))
    }

    /// Stores the answer to a request.
    pub fn store_request(&mut self, principal: &Arc<str>, request_id: RequestId, stored: StoredRequest) {
        let key = (principal.clone(), request_id);
        self.new_requests.push(key.clone());
        self.requests.insert(key, stored);
    }

    /// What this transaction means to others once it is committed.
    pub(super) fn wakes(&self) -> Wakes {
        let mut wakes = Wakes { now: Some(self.now), ..Wakes::default() };
        for entry in self.tasks.values() {
            let before = entry.loaded.as_ref();
            if let State::Waiting { available_at } = entry.task.state
                && before.is_none_or(|b| b.revision != entry.task.revision)
            {
                wakes.ready.push((entry.task.route.route, available_at));
            }
            if entry.task.state.name().is_settled() && before.is_none_or(|b| !b.state.name().is_settled()) {
                wakes.settled.push(entry.task.id);
            }
            if before.and_then(canceled_attempt).is_none() {
                let reason = entry.task.cancel.as_ref().map(|c| c.reason.clone()).unwrap_or_default();
                wakes.canceled.extend(canceled_attempt(&entry.task).map(|attempt_id| (attempt_id, reason)));
            }
            if before.is_some_and(|b| b.lease().is_some()) && entry.task.lease().is_none() {
                wakes.freed.push(entry.task.route.queue);
            }
        }
        wakes.ended.extend(self.ended.iter().map(|(_, e)| e.lease.attempt_id));
        let changed = self.queues.values().filter(|e| e.loaded.as_ref() != Some(&e.queue));
        wakes.queues.extend(changed.map(|e| e.queue.no));
        wakes.freed.sort_unstable();
        wakes.freed.dedup();
        wakes
    }
}

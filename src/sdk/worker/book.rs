//! The attempts in a worker's hands, with the indexes over them: which message waits for an answer, and when which
//! attempt needs attention.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    mem,
};

use tokio::time::Instant;

use super::attempt::{Attempt, Next, Run, Settled};
use crate::proto::{AttemptRef, LeaseStatus, WorkerRequest, worker_request::Message};

/// What has happened since the worker began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) started: u64,
    pub(crate) confirmed: u64,
    /// Of the confirmed.
    pub(crate) evidence: u64,
    pub(crate) refused: u64,
}

#[derive(Debug)]
pub(crate) struct Book {
    pages: HashMap<String, Page>,
    /// Attempts by the id of the message that has no answer yet.
    waiting: HashMap<String, String>,
    timers: BTreeSet<(Instant, String)>,
    seen: Seen,
    /// Frames to send, oldest first. Emptied when the stream breaks: what still matters is sent again.
    pub(crate) outbound: VecDeque<WorkerRequest>,
    runs: Vec<Run>,
    counts: Counts,
    connected: bool,
    /// How many attempts take a slot.
    occupied: usize,
}

#[derive(Debug)]
struct Page {
    attempt: Attempt,
    /// Its entries in `waiting` and `timers`.
    message_id: Option<String>,
    timer: Option<Instant>,
}

impl Book {
    /// `seen_max`: how many attempt ids are remembered, finished ones included.
    pub(crate) fn new(seen_max: usize) -> Self {
        Self {
            pages: HashMap::new(),
            waiting: HashMap::new(),
            timers: BTreeSet::new(),
            seen: Seen::new(seen_max),
            outbound: VecDeque::new(),
            runs: Vec::new(),
            counts: Counts::default(),
            connected: false,
            occupied: 0,
        }
    }

    /// Takes an attempt up and sends its start. False if this process has had it before: it must not run twice.
    pub(crate) fn open(&mut self, attempt: Attempt, now: Instant) -> bool {
        let id = attempt.id.attempt_id.clone();
        if !self.seen.insert(&id) {
            return false;
        }
        self.occupied += 1;
        self.pages.insert(id.clone(), Page { attempt, message_id: None, timer: None });
        self.apply(&id, now, |_| Next::Send);
        true
    }

    /// The attempt whose message waits for this answer.
    pub(crate) fn waiting_for(&self, message_id: &str) -> Option<String> {
        self.waiting.get(message_id).cloned()
    }

    /// Lets an event act on an attempt and does what follows. Attempts that are settled already are left alone.
    pub(crate) fn apply(&mut self, id: &str, now: Instant, event: impl FnOnce(&mut Attempt) -> Next) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let was_started = page.attempt.is_started();
        let was_occupying = page.attempt.occupies_a_slot();
        let next = event(&mut page.attempt);
        match next {
            Next::Settled(settled) => return self.close(id, settled),
            Next::Run(run) => self.runs.push(*run),
            Next::Send if self.connected => self.outbound.extend(page.attempt.message(now)),
            // Without a stream a message goes out with the next one.
            Next::Wait | Next::Send => {}
        }
        self.counts.started += u64::from(!was_started && page.attempt.is_started());
        self.occupied -= usize::from(was_occupying && !page.attempt.occupies_a_slot());
        self.index(id);
    }

    /// The stream is open: everything without an answer goes out on it.
    pub(crate) fn connect(&mut self, now: Instant) {
        self.connected = true;
        self.outbound.clear();
        for id in self.ids() {
            self.apply(&id, now, |_| Next::Send);
        }
    }

    /// The stream is gone; the attempts go on.
    pub(crate) fn disconnect(&mut self, now: Instant) {
        self.connected = false;
        self.outbound.clear();
        for id in self.ids() {
            self.apply(&id, now, |attempt| {
                attempt.lease.forget_questions();
                Next::Wait
            });
        }
    }

    /// Attempts that may still have a right to act, at most `max`, noted as asked about at `now`.
    pub(crate) fn ask_held(&mut self, max: usize, now: Instant) -> Vec<AttemptRef> {
        self.ask(max, now, |_| true)
    }

    /// Attempts whose leases have to be renewed, noted as asked about at `now`.
    pub(crate) fn ask_renewable(&mut self, now: Instant) -> Vec<AttemptRef> {
        self.ask(usize::MAX, now, Attempt::is_started)
    }

    fn ask(&mut self, max: usize, now: Instant, which: impl Fn(&Attempt) -> bool) -> Vec<AttemptRef> {
        let attempts = self.pages.values_mut().map(|page| &mut page.attempt);
        attempts
            .filter(|attempt| !attempt.lease.is_lost() && which(attempt))
            .take(max)
            .map(|attempt| {
                attempt.lease.asked(now);
                attempt.id.clone()
            })
            .collect()
    }

    /// Takes in what the server says about a lease.
    pub(crate) fn learn(&mut self, attempt: &AttemptRef, lease: LeaseStatus, now: Instant) {
        self.apply(&attempt.attempt_id, now, |attempt| {
            attempt.learn(lease);
            Next::Wait
        });
    }

    pub(crate) fn on_time(&mut self, now: Instant) {
        while let Some((_, id)) = self.timers.first().filter(|(due, _)| *due <= now).cloned() {
            // What still waits to be written is not worth writing twice.
            let written = self.outbound.is_empty();
            self.apply(&id, now, |attempt| attempt.on_time(written, now));
        }
    }

    pub(crate) fn next_time(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    pub(crate) fn push(&mut self, message: Message) {
        if self.connected {
            self.outbound.push_back(WorkerRequest { message: Some(message) });
        }
    }

    pub(crate) fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.pages.values().map(|page| &page.attempt)
    }

    /// How many attempts are starting or running.
    pub(crate) fn occupied(&self) -> usize {
        self.occupied
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn take_runs(&mut self) -> Vec<Run> {
        mem::take(&mut self.runs)
    }

    fn ids(&self) -> Vec<String> {
        self.pages.keys().cloned().collect()
    }

    fn close(&mut self, id: &str, settled: Settled) {
        match settled {
            Settled::NotStarted => {}
            Settled::Confirmed { evidence } => {
                self.counts.confirmed += 1;
                self.counts.evidence += u64::from(evidence);
            }
            Settled::Refused => self.counts.refused += 1,
        }
        if let Some(page) = self.pages.remove(id) {
            self.occupied -= usize::from(page.attempt.occupies_a_slot());
            if let Some(message_id) = page.message_id {
                self.waiting.remove(&message_id);
            }
            if let Some(due) = page.timer {
                self.timers.remove(&(due, id.to_owned()));
            }
        }
    }

    /// Makes the indexes say what the attempt says.
    fn index(&mut self, id: &str) {
        let Some(page) = self.pages.get_mut(id) else {
            return;
        };
        let message_id = page.attempt.message_id();
        if page.message_id.as_deref() != message_id {
            let message_id = message_id.map(str::to_owned);
            self.waiting.extend(message_id.clone().map(|message_id| (message_id, id.to_owned())));
            if let Some(old) = mem::replace(&mut page.message_id, message_id) {
                self.waiting.remove(&old);
            }
        }
        let timer = page.attempt.due(self.connected);
        if page.timer != timer {
            self.timers.extend(timer.map(|due| (due, id.to_owned())));
            if let Some(old) = mem::replace(&mut page.timer, timer) {
                self.timers.remove(&(old, id.to_owned()));
            }
        }
    }
}

/// Ids of attempts this process has had, oldest forgotten first. Beyond it the start's authorization still protects:
/// a second start under another message id is refused.
#[derive(Debug)]
struct Seen {
    ids: HashSet<String>,
    order: VecDeque<String>,
    max: usize,
}

impl Seen {
    fn new(max: usize) -> Self {
        Self { ids: HashSet::new(), order: VecDeque::new(), max }
    }

    /// True if it is new.
    fn insert(&mut self, id: &str) -> bool {
        if !self.ids.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

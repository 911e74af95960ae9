//! What waits for a lane, by class: messages of workers first, then work of the node itself, then submits.
//!
//! Only submits are ever refused: an overload must not keep workers from reporting.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{
    Failure,
    command::{Class, Command, Job, LaneJob},
};

/// Submits that wait for one lane.
const SUBMITS_MAX: usize = 8 * 1024;
/// Bytes that wait for one lane.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// The answer to a command, after its commit.
pub(super) type Answer<R> = oneshot::Receiver<Result<R, Failure>>;

/// What waits for one lane.
pub(super) struct LaneQueue {
    waiting: Mutex<Waiting>,
    wake: Notify,
    batch: BatchMax,
}

/// The most of one transaction.
#[derive(Clone, Copy)]
pub(super) struct BatchMax {
    pub(super) commands: usize,
    /// Bytes of payloads and results.
    pub(super) bytes: usize,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Box<dyn LaneJob>>,
    work: VecDeque<Box<dyn LaneJob>>,
    submits: VecDeque<Box<dyn LaneJob>>,
    bytes: usize,
    /// Something may be claimable.
    nudged: bool,
    /// The lane has nothing to do.
    idle: bool,
    closed: bool,
}

impl LaneQueue {
    pub(super) fn new(batch: BatchMax) -> Self {
        Self { waiting: Mutex::default(), wake: Notify::new(), batch }
    }

    /// Adds a command; its answer arrives at the receiver after the commit.
    pub(super) fn push<C: Command>(&self, command: C) -> Result<Answer<C::Reply>, Failure> {
        let (job, answer) = Job::new(command);
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(Failure::Draining { retry_after: Duration::from_secs(1) });
        }
        let bytes = job.bytes();
        match C::CLASS {
            Class::Message => waiting.messages.push_back(Box::new(job)),
            Class::Work => waiting.work.push_back(Box::new(job)),
            Class::Submit => {
                if waiting.submits.len() >= SUBMITS_MAX || waiting.bytes + bytes > BYTES_MAX {
                    return Err(Failure::Overloaded { retry_after: Duration::from_millis(200) });
                }
                waiting.submits.push_back(Box::new(job));
            }
        }
        waiting.bytes += bytes;
        drop(waiting);
        self.wake.notify_one();
        Ok(answer)
    }

    /// Whether the lane waits for commands.
    pub(super) fn is_idle(&self) -> bool {
        self.lock().idle
    }

    /// Lets the lane look for something to claim, though no command waits.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.wake.notify_one();
    }

    /// Takes what waits, up to a transaction's size; waits until there is something, or until it is nudged, when there may
    /// be nothing. None once it is closed and empty.
    ///
    /// Messages come first, so that what they make claimable is seen by claims of the same transaction.
    pub(super) async fn take(&self) -> Option<Vec<Box<dyn LaneJob>>> {
        loop {
            let woken = self.wake.notified();
            {
                let mut waiting = self.lock();
                let batch = waiting.take_batch(self.batch);
                let nudged = std::mem::take(&mut waiting.nudged);
                waiting.idle = !nudged && batch.is_empty();
                if !waiting.idle {
                    return Some(batch);
                }
                if waiting.closed {
                    return None;
                }
            }
            woken.await;
        }
    }

    /// Takes no more commands. What waits is still done.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take_batch(&mut self, max: BatchMax) -> Vec<Box<dyn LaneJob>> {
        loop {
            let (mut batch, mut room) = (Vec::new(), max);
            for jobs in [&mut self.messages, &mut self.work, &mut self.submits] {
                take_from(jobs, &mut batch, &mut room);
            }
            if batch.is_empty() {
                return batch;
            }
            let taken: usize = batch.iter().map(|j| j.bytes()).sum();
            self.bytes = self.bytes.saturating_sub(taken);
            // Whoever gave up waiting will ask again: nobody was promised anything.
            batch.retain(|job| !job.is_abandoned());
            if !batch.is_empty() {
                return batch;
            }
        }
    }
}

fn take_from(jobs: &mut VecDeque<Box<dyn LaneJob>>, batch: &mut Vec<Box<dyn LaneJob>>, room: &mut BatchMax) {
    while let Some(job) = jobs.front() {
        // The first always fits, or it would wait for ever.
        let fits = job.bytes() <= room.bytes || batch.is_empty();
        if room.commands == 0 || !fits {
            break;
        }
        room.commands -= 1;
        room.bytes = room.bytes.saturating_sub(job.bytes());
        batch.extend(jobs.pop_front());
    }
}

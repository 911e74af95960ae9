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

/// Commands of one transaction.
pub(super) const BATCH_COMMANDS_MAX: usize = 256;
/// Submits that wait for one lane.
const SUBMITS_MAX: usize = 8 * 1024;
/// Bytes that wait for one lane.
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// What waits for one lane.
pub(super) struct LaneQueue {
    waiting: Mutex<Waiting>,
    wake: Notify,
    /// Bytes of payloads and results of one transaction.
    batch_bytes_max: usize,
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
    pub(super) fn new(batch_bytes_max: usize) -> Self {
        Self { waiting: Mutex::default(), wake: Notify::new(), batch_bytes_max }
    }

    /// Adds a command; its answer arrives at the receiver after the commit.
    pub(super) fn push<C: Command>(
        &self,
        command: C,
    ) -> Result<oneshot::Receiver<Result<C::Reply, Failure>>, Failure> {
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
                let batch = waiting.take_batch(self.batch_bytes_max);
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
    fn take_batch(&mut self, bytes_max: usize) -> Vec<Box<dyn LaneJob>> {
        let (mut room, mut bytes_room) = (BATCH_COMMANDS_MAX, bytes_max);
        let mut batch = take_from(&mut self.messages, &mut room, &mut bytes_room);
        let work = take_from(&mut self.work, &mut room, &mut bytes_room);
        batch.extend(take_from(&mut self.submits, &mut room, &mut bytes_room));
        batch.extend(work);
        let taken: usize = batch.iter().map(|j| j.bytes()).sum();
        self.bytes = self.bytes.saturating_sub(taken);
        // Whoever gave up waiting will ask again: nobody was promised anything.
        batch.retain(|job| !job.is_abandoned());
        if batch.is_empty() && room < BATCH_COMMANDS_MAX {
            return self.take_batch(bytes_max);
        }
        batch
    }
}

fn take_from(
    jobs: &mut VecDeque<Box<dyn LaneJob>>,
    room: &mut usize,
    bytes_room: &mut usize,
) -> Vec<Box<dyn LaneJob>> {
    let mut taken = Vec::new();
    while let Some(job) = jobs.front() {
        // The first always fits, or it would wait for ever.
        let fits = job.bytes() <= *bytes_room || *room == BATCH_COMMANDS_MAX;
        if *room == 0 || !fits {
            break;
        }
        *room -= 1;
        *bytes_room = bytes_room.saturating_sub(job.bytes());
        taken.extend(jobs.pop_front());
    }
    taken
}

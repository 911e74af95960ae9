//! The worker's side of the stream as a state machine: frames, endings and the clock go in; frames to send and
//! handlers to call come out. It does no input or output itself, so that every order of events can be tested.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    attempt::{Attempt, Phase, Run},
    book::{Book, Counts},
    failure::Ending,
};
use crate::proto::{
    CommandResult, Dispatch, Drain, Hello, Renew, RenewedLease, Welcome, WorkerRequest,
    worker_request::Message, worker_response::Message as Answer,
};

/// Limits of the contract: attempts named in one hello, and in one renewal.
const HELD_MAX: usize = 10_000;
const RENEW_MAX: usize = 1_000;
/// A server that asked for renewals without a pause would be served no faster than this.
const RENEW_EVERY_MIN: Duration = Duration::from_millis(20);
/// How soon a renewal that was not decided is sent again, at most.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// While this many frames wait to be written, renewals are left out: the stream stands still, and the next one has
/// everything sent again anyhow.
const OUTBOUND_MAX: usize = 4_096;
/// How many attempt ids are remembered, at least.
const SEEN_MIN: usize = 8_192;

#[derive(Debug)]
pub(crate) struct Protocol {
    /// What the worker declares of itself; `max_in_flight` are its slots.
    declaration: Hello,
    book: Book,
    draining: bool,
    renew_every: Duration,
    renew_at: Option<Instant>,
}

/// What is not finished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// Starts without an answer.
    pub(crate) starting: u64,
    /// Handlers at work.
    pub(crate) running: u64,
    /// Reports without a receipt.
    pub(crate) reporting: u64,
}

impl Protocol {
    pub(crate) fn new(declaration: Hello) -> Self {
        let slots = slots(&declaration);
        Self {
            declaration,
            book: Book::new(SEEN_MIN.max(slots.saturating_mul(4))),
            draining: false,
            renew_every: RENEW_AGAIN,
            renew_at: None,
        }
    }

    /// The first frame of a new stream, naming everything that may still have a right to act.
    pub(crate) fn hello(&mut self, now: Instant) -> Hello {
        let held = self.book.ask_held(HELD_MAX, now);
        // A draining worker has no room beyond what it holds; a frozen handler may make it hold more than its slots.
        let room = if self.draining { held.len().max(1) } else { slots(&self.declaration).max(held.len()) };
        let max_in_flight = u32::try_from(room).unwrap_or(u32::MAX);
        Hello { held, max_in_flight, ..self.declaration.clone() }
    }

    /// The stream is open.
    pub(crate) fn on_welcome(&mut self, welcome: &Welcome, now: Instant) {
        self.renew_every = Duration::from_millis(welcome.renew_every_ms.into()).max(RENEW_EVERY_MIN);
        // At once: the welcome renewed nothing, and the outage may have used most of a term.
        self.renew_at = Some(now);
        self.on_leases(&welcome.held, now);
        self.book.connect(now);
        if self.draining {
            self.book.push(Message::Drain(Drain {}));
        }
    }

    /// The stream is gone; the attempts go on.
    pub(crate) fn on_disconnect(&mut self, now: Instant) {
        self.renew_at = None;
        self.book.disconnect(now);
    }

    pub(crate) fn on_frame(&mut self, frame: Answer, now: Instant) {
        match frame {
            Answer::Dispatch(dispatch) => self.on_dispatch(dispatch, now),
            Answer::CommandResult(result) => self.on_command_result(&result, now),
            Answer::Renewed(renewed) => self.on_leases(&renewed.leases, now),
            Answer::Cancel(cancel) => self.book.apply(&cancel.attempt_id, now, Attempt::on_cancel),
            // The connection's own affairs.
            Answer::Welcome(_) | Answer::GoAway(_) | Answer::Pong(_) => {}
        }
    }

    /// The handler of an attempt has ended.
    pub(crate) fn on_ended(&mut self, attempt_id: &str, ending: Ending, now: Instant) {
        self.book.apply(attempt_id, now, |attempt| attempt.end(ending, now));
    }

    /// Sends what is due, and tells handlers what only the clock tells.
    pub(crate) fn on_time(&mut self, now: Instant) {
        self.book.on_time(now);
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = Some(now + self.renew_every);
            if self.book.outbound.len() < OUTBOUND_MAX {
                let leases = self.book.ask_renewable(now);
                for leases in leases.chunks(RENEW_MAX) {
                    self.book.push(Message::Renew(Renew { leases: leases.to_vec() }));
                }
            }
        }
    }

    /// When [`on_time`](Self::on_time) has something to do.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        [self.book.next_time(), self.renew_at].into_iter().flatten().min()
    }

    /// Takes no more work; what was dispatched is still run.
    pub(crate) fn drain(&mut self) {
        if !std::mem::replace(&mut self.draining, true) {
            self.book.push(Message::Drain(Drain {}));
        }
    }

    /// Whether a stream is of any use: a draining worker needs one only for messages without an answer and for leases
    /// that may live. The server ends a drained one while handlers are at work whose leases are lost.
    pub(crate) fn wants_stream(&self) -> bool {
        !self.draining || self.book.attempts().any(Attempt::needs_stream)
    }

    /// How long being without a stream may last at most, if the worker can help it. After an outage the leases that
    /// lived before it get one new term: time enough to renew them once, if one comes back early in it.
    pub(crate) fn patience(&self) -> Duration {
        let held = self.book.attempts().any(|attempt| !attempt.lease.is_lost());
        if held { self.renew_every } else { Duration::MAX }
    }

    /// Whether nothing more is to be done or confirmed.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining && self.book.is_empty()
    }

    pub(crate) fn outbound(&mut self) -> &mut VecDeque<WorkerRequest> {
        &mut self.book.outbound
    }

    pub(crate) fn take_runs(&mut self) -> Vec<Run> {
        self.book.take_runs()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.book.counts()
    }

    pub(crate) fn unfinished(&self) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for attempt in self.book.attempts() {
            match attempt.phase {
                Phase::Starting(_) => unfinished.starting += 1,
                Phase::Running => unfinished.running += 1,
                Phase::Reporting(_) => unfinished.reporting += 1,
            }
        }
        unfinished
    }

    fn on_dispatch(&mut self, dispatch: Dispatch, now: Instant) {
        let declared = self.declaration.handlers.iter().any(|declared| {
            declared.handler == dispatch.handler && declared.handler_version == dispatch.handler_version
        });
        // The server frees a slot when it commits a finish or gives a lease up, and we may hear of that later than of
        // the next dispatch. Twice the slots covers that; beyond it the server does not count.
        let room = self.book.occupied() < slots(&self.declaration).saturating_mul(2);
        let (task_id, epoch) = (dispatch.task_id.clone(), dispatch.epoch);
        if !declared || !room {
            tracing::warn!(task_id, epoch, declared, room, "left an attempt that was not asked for");
            return;
        }
        if !self.book.open(Attempt::dispatched(dispatch, now), now) {
            tracing::debug!(task_id, epoch, "the attempt was dispatched twice; once is enough");
        }
    }

    fn on_command_result(&mut self, result: &CommandResult, now: Instant) {
        if result.message_id.is_empty() {
            let problem = result.status.as_ref().map(|status| status.message.as_str());
            tracing::debug!(problem, "a renewal was not decided");
            let soon = now + RENEW_AGAIN.min(self.renew_every);
            self.renew_at = self.renew_at.map(|at| at.min(soon));
            return;
        }
        let Some(id) = self.book.waiting_for(&result.message_id) else {
            // The same message may have been sent, and so answered, more than once.
            tracing::debug!(message_id = result.message_id, "an answer that nothing waits for");
            return;
        };
        self.book.apply(&id, now, |attempt| attempt.on_answer(result, now));
    }

    fn on_leases(&mut self, leases: &[RenewedLease], now: Instant) {
        for renewed in leases {
            if let (Some(attempt), Some(lease)) = (&renewed.attempt, renewed.lease) {
                self.book.learn(attempt, lease, now);
            }
        }
    }
}

fn slots(declaration: &Hello) -> usize {
    usize::try_from(declaration.max_in_flight).unwrap_or(usize::MAX)
}

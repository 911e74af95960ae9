//! One attempt in a worker's hands: what it waits for, and the message that has no answer yet.

use std::{mem, time::Duration};

use tokio::time::Instant;
use uuid::Uuid;

use super::{
    answer::{self, Again, Answer},
    context::{CancelReason, Context, LeaseSignal, Signals},
    delivery::Delivery,
    failure::Ending,
    lease::Lease,
};
use crate::{
    proto::{
        AttemptRef, CommandResult, Dispatch, Disposition, Finish, LeaseStatus, Start, WorkerRequest,
        worker_request::Message,
    },
    sdk::error::Error,
};

#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptRef,
    pub(crate) phase: Phase,
    pub(crate) lease: Lease,
    signals: Signals,
    /// When the handler's time is over: set when the start is granted.
    deadline: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// Dispatched; `start` has no answer yet, so the handler must not run.
    Starting(Starting),
    /// The start was granted and the handler runs.
    Running,
    /// The handler has ended; `finish` has no receipt yet.
    Reporting(Reporting),
}

/// What follows from an event.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing for now.
    Wait,
    /// The message that has no answer goes out, now or with the next stream.
    Send,
    /// The handler is called.
    Run(Box<Run>),
    /// The worker has nothing more to do with the attempt.
    Settled(Settled),
}

/// A handler to call.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) attempt_id: String,
    pub(crate) context: Context,
    pub(crate) payload: String,
}

/// How the worker's part of an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The start was refused: the handler was not called.
    NotStarted,
    /// The report has a receipt; as evidence, it changed nothing.
    Confirmed { evidence: bool },
    /// The report will never have a receipt.
    Refused,
}

#[derive(Debug)]
pub(crate) struct Starting {
    start: Start,
    dispatch: Box<Dispatch>,
    dispatched_at: Instant,
    first_sent_at: Instant,
    last_sent_at: Instant,
    delivery: Delivery,
}

#[derive(Debug)]
pub(crate) struct Reporting {
    finish: Finish,
    delivery: Delivery,
    /// Whether the same result was sent again under a new id, after EVIDENCE under a valid lease.
    repeated: bool,
    /// Whether the refused result was replaced by UNKNOWN.
    downgraded: bool,
}

impl Attempt {
    pub(crate) fn dispatched(dispatch: Dispatch, now: Instant) -> Self {
        let id = AttemptRef {
            task_id: dispatch.task_id.clone(),
            attempt_id: dispatch.attempt_id.clone(),
            epoch: dispatch.epoch,
        };
        let start = Start {
            message_id: Uuid::new_v4().to_string(),
            task_id: id.task_id.clone(),
            attempt_id: id.attempt_id.clone(),
            epoch: id.epoch,
        };
        let phase = Phase::Starting(Starting {
            start,
            dispatch: Box::new(dispatch),
            dispatched_at: now,
            first_sent_at: now,
            last_sent_at: now,
            delivery: Delivery::new(now),
        });
        Self { id, phase, lease: Lease::new(), signals: Signals::new(), deadline: None }
    }

    /// The handler has ended, or never will begin: from here on only the report matters.
    pub(crate) fn end(&mut self, ending: Ending, now: Instant) -> Next {
        let finish = self.finish(ending);
        let delivery = Delivery::new(now);
        self.phase = Phase::Reporting(Reporting { finish, delivery, repeated: false, downgraded: false });
        Next::Send
    }

    fn finish(&self, ending: Ending) -> Finish {
        Finish {
            message_id: Uuid::new_v4().to_string(),
            task_id: self.id.task_id.clone(),
            attempt_id: self.id.attempt_id.clone(),
            epoch: self.id.epoch,
            outcome: ending.outcome.into(),
            retryable: ending.retryable,
            result: ending.result,
            error: ending.error,
        }
    }

    /// The server's answer to the message that waits for one.
    pub(crate) fn on_answer(&mut self, result: &CommandResult, now: Instant) -> Next {
        match self.phase {
            Phase::Starting(_) => self.on_start_answer(result, now),
            Phase::Running => Next::Wait,
            Phase::Reporting(_) => self.on_finish_answer(result, now),
        }
    }

    fn on_start_answer(&mut self, result: &CommandResult, now: Instant) -> Next {
        let Phase::Starting(starting) = &mut self.phase else {
            return Next::Wait;
        };
        let (task_id, epoch) = (&self.id.task_id, self.id.epoch);
        match answer::read(result) {
            Answer::Accepted(_) => self.on_granted(result.lease, result.replayed, now),
            Answer::Again(again) if starting.delivery.postpone(now, &again) => Next::Wait,
            Answer::Again(Again { error, .. }) => {
                tracing::error!(task_id, epoch, %error, "the start was never decided");
                self.end(Ending::never_ran("the start was never decided"), now)
            }
            Answer::Gone(error) | Answer::Refused(error) => {
                tracing::info!(task_id, epoch, %error, "the start was refused");
                Next::Settled(Settled::NotStarted)
            }
        }
    }

    fn on_finish_answer(&mut self, result: &CommandResult, now: Instant) -> Next {
        let Phase::Reporting(reporting) = &mut self.phase else {
            return Next::Wait;
        };
        let (task_id, epoch) = (&self.id.task_id, self.id.epoch);
        match answer::read(result) {
            Answer::Accepted(receipt) => {
                let evidence = receipt.disposition() != Disposition::Applied;
                if evidence && result.lease.is_some_and(|lease| lease.valid) && !reporting.repeated {
                    // It has authority by now: the same result under a new id is applied.
                    reporting.repeated = true;
                    reporting.finish.message_id = Uuid::new_v4().to_string();
                    return Next::Send;
                }
                Next::Settled(Settled::Confirmed { evidence })
            }
            Answer::Again(again) if reporting.delivery.postpone(now, &again) => Next::Wait,
            Answer::Again(Again { error, .. }) => {
                tracing::error!(task_id, epoch, %error, "the report was never decided");
                Next::Settled(Settled::Refused)
            }
            Answer::Gone(error) => {
                tracing::warn!(task_id, epoch, %error, "the report came to nothing");
                Next::Settled(Settled::Refused)
            }
            Answer::Refused(error) => {
                tracing::warn!(task_id, epoch, outcome = ?reporting.finish.outcome(), %error, "the report was refused");
                self.downgrade(&error, now)
            }
        }
    }

    /// The start is authorized; whether the handler is still called depends on the lease as of now.
    fn on_granted(&mut self, lease: Option<LeaseStatus>, replayed: bool, now: Instant) -> Next {
        if lease.is_some_and(|lease| !lease.valid) {
            // The answer came too late, and somebody else may have the task. Nothing happened here: worth telling.
            return self.end(Ending::never_ran("the lease had ended before the handler was called"), now);
        }
        if lease.is_some_and(|lease| lease.cancel_requested) {
            return self.end(Ending::canceled_before_run(), now);
        }
        match mem::replace(&mut self.phase, Phase::Running) {
            Phase::Starting(starting) => {
                let deadline = starting.deadline(replayed);
                let mut dispatch = *starting.dispatch;
                let payload = mem::take(&mut dispatch.payload);
                let context = self.signals.context(dispatch, deadline);
                self.deadline = Some(deadline);
                if let Some(lease) = lease {
                    self.learn(lease);
                }
                Next::Run(Box::new(Run { attempt_id: self.id.attempt_id.clone(), context, payload }))
            }
            other => {
                self.phase = other;
                Next::Wait
            }
        }
    }

    /// The report was refused: only "unknown" is left to say, once.
    fn downgrade(&mut self, error: &Error, now: Instant) -> Next {
        let finish = self.finish(Ending::refused(error.reason(), error.message()));
        match &mut self.phase {
            Phase::Reporting(reporting) if !reporting.downgraded => {
                let repeated = reporting.repeated;
                *reporting = Reporting { finish, delivery: Delivery::new(now), repeated, downgraded: true };
                Next::Send
            }
            Phase::Starting(_) | Phase::Running | Phase::Reporting(_) => Next::Settled(Settled::Refused),
        }
    }

    /// A cancel was recorded.
    pub(crate) fn on_cancel(&mut self) -> Next {
        // Before the start the server refuses it; after the end there is nothing to stop.
        if matches!(self.phase, Phase::Running) {
            self.signals.cancel(CancelReason::Requested);
        }
        Next::Wait
    }

    /// The message without an answer, noted as sent at `now`.
    pub(crate) fn message(&mut self, now: Instant) -> Option<WorkerRequest> {
        let message = match &mut self.phase {
            Phase::Starting(starting) => {
                starting.last_sent_at = now;
                starting.delivery.sent(now);
                self.lease.asked(now);
                Message::Start(starting.start.clone())
            }
            Phase::Running => return None,
            Phase::Reporting(reporting) => {
                reporting.delivery.sent(now);
                Message::Finish(reporting.finish.clone())
            }
        };
        Some(WorkerRequest { message: Some(message) })
    }

    /// The id of the message without an answer.
    pub(crate) fn message_id(&self) -> Option<&str> {
        match &self.phase {
            Phase::Starting(starting) => Some(&starting.start.message_id),
            Phase::Running => None,
            Phase::Reporting(reporting) => Some(&reporting.finish.message_id),
        }
    }

    /// Whether its start was granted.
    pub(crate) fn is_started(&self) -> bool {
        !matches!(self.phase, Phase::Starting(_))
    }

    /// Whether the handler is, or is about to be, at work.
    pub(crate) fn occupies_a_slot(&self) -> bool {
        match self.phase {
            Phase::Starting(_) | Phase::Running => true,
            Phase::Reporting(_) => false,
        }
    }

    /// Whether anything about it depends on the server: a message without an answer, or a lease that may live.
    pub(crate) fn needs_stream(&self) -> bool {
        match self.phase {
            Phase::Starting(_) | Phase::Reporting(_) => true,
            Phase::Running => !self.lease.is_lost(),
        }
    }

    /// Takes in what the server says about the lease.
    pub(crate) fn learn(&mut self, status: LeaseStatus) {
        if !self.is_started() {
            // The start's own answer decides.
            return;
        }
        let signal = self.lease.answered(status);
        self.signals.lease(signal);
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if signal == LeaseSignal::Lost {
            if !self.signals.is_cancelled() {
                tracing::warn!(task_id = self.id.task_id, epoch = self.id.epoch, "the lease is lost");
            }
            self.signals.cancel(CancelReason::LeaseLost);
        } else if status.cancel_requested {
            self.signals.cancel(CancelReason::Requested);
        }
    }

    /// When something is to be done about it without any message; messages are only due on a stream.
    pub(crate) fn due(&self, connected: bool) -> Option<Instant> {
        match &self.phase {
            Phase::Starting(starting) => Some(starting.delivery.due).filter(|_| connected),
            Phase::Reporting(reporting) => Some(reporting.delivery.due).filter(|_| connected),
            Phase::Running => {
                let deadline = self.deadline.filter(|_| !self.signals.is_cancelled());
                [deadline, self.lease.confirmed_until()].into_iter().flatten().min()
            }
        }
    }

    /// Does what is due. `written`: whether everything handed out for sending has left the worker.
    pub(crate) fn on_time(&mut self, written: bool, now: Instant) -> Next {
        match &mut self.phase {
            Phase::Starting(Starting { delivery, .. }) | Phase::Reporting(Reporting { delivery, .. }) => {
                delivery.sent(now);
                return if written { Next::Send } else { Next::Wait };
            }
            Phase::Running => {}
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) && !self.signals.is_cancelled() {
            tracing::warn!(task_id = self.id.task_id, epoch = self.id.epoch, "the attempt's time is over");
            self.signals.cancel(CancelReason::TimedOut);
        }
        if self.lease.lapse(now) {
            tracing::warn!(task_id = self.id.task_id, epoch = self.id.epoch, "the lease is unconfirmed");
            self.signals.lease(LeaseSignal::Unconfirmed);
        }
        Next::Wait
    }
}

impl Starting {
    /// When the handler's time is over, counted from the message that was granted.
    fn deadline(&self, replayed: bool) -> Instant {
        let sent_at = if replayed { self.first_sent_at } else { self.last_sent_at };
        let attempt = sent_at + Duration::from_millis(self.dispatch.attempt_timeout_ms.into());
        let task = self.dispatched_at + Duration::from_millis(self.dispatch.deadline_ms.into());
        attempt.min(task)
    }
}

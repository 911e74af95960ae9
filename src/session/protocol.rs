//! What is said on a worker stream, and when: a state machine without I/O.
//!
//! It is fed what happened and answers with what to do about it, in order. Who drives it asks it first what it wants to
//! be fed next, so that a worker cannot make it pile up work.

use prost::Message as _;

use crate::{
    domain::{ids::AttemptId, rejection::Rejection, task::LeaseStatus},
    engine::{Failure, MessageReply, SeatEvent},
    proto::{self, WorkerRequest, worker_request::Message},
    rpc::convert::{self, BadHello},
};

use super::{
    exchange::{Answer, Command, End, Input, Joined, Output, RenewTicket, SeatNote, Terms, Ticket},
    frames::{self, Introduction},
};

/// How much may be with the engine at once, in units: one a command, and one more for each [`UNIT_BYTES`] of it. Past
/// it nothing more is read, so a worker that floods is slowed down and holds little memory.
const UNITS_MAX: usize = 256;
/// See [`UNITS_MAX`].
const UNIT_BYTES: usize = 16 * 1024;

/// When to come back to a node that shuts down, in milliseconds.
const RECONNECT_AFTER_MS: u32 = 1_000;

/// Where a session is in its life.
enum Phase {
    /// Waits for the hello.
    Greeting,
    /// Waits for the engine to take the worker in.
    Joining {
        /// What the worker holds, as it wrote it.
        named: Vec<proto::AttemptRef>,
        /// Whether the server began to shut down meanwhile.
        stopping: bool,
    },
    /// Works.
    Serving(Stay),
    /// Has ended.
    Ended,
}

/// Whether a session stays.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// It does.
    Open,
    /// It gets no more work, and ends when nothing is in flight.
    Draining,
    /// The worker can say nothing more; it ends when all is answered.
    Unheard,
}

/// One session.
pub(super) struct Protocol {
    terms: Terms,
    phase: Phase,
    /// Commands with the engine.
    commands: usize,
    /// What they weigh.
    units: usize,
}

impl Protocol {
    pub(super) const fn new(terms: Terms) -> Self {
        Self { terms, phase: Phase::Greeting, commands: 0, units: 0 }
    }

    /// Whether the hello is still to come.
    pub(super) const fn awaits_hello(&self) -> bool {
        matches!(self.phase, Phase::Greeting)
    }

    /// Whether frames are to be read.
    pub(super) const fn wants_frames(&self) -> bool {
        match self.phase {
            Phase::Greeting => true,
            // What a worker says after its hello waits for the welcome.
            Phase::Joining { .. } | Phase::Serving(Stay::Unheard) | Phase::Ended => false,
            Phase::Serving(Stay::Open | Stay::Draining) => self.units < UNITS_MAX,
        }
    }

    /// Whether attempts and cancels are to be taken from the dispatcher. A worker that drains still gets what was claimed
    /// for it.
    pub(super) const fn wants_work(&self) -> bool {
        matches!(self.phase, Phase::Serving(Stay::Open | Stay::Draining))
    }

    /// Whether it is to be told when nothing is in flight.
    pub(super) const fn awaits_idle(&self) -> bool {
        matches!(self.phase, Phase::Serving(Stay::Draining)) && self.commands == 0
    }

    /// Takes what happened, and says what to do, in order.
    pub(super) fn step(&mut self, input: Input) -> Vec<Output> {
        if matches!(self.phase, Phase::Ended) {
            return vec![];
        }
        match input {
            Input::Frame(frame) => self.frame(frame),
            Input::FramesEnded => self.frames_ended(),
            Input::Joined(joined) => self.joined(joined),
            Input::Answered(answer) => self.answered(answer),
            Input::Seat(SeatEvent::Dispatch(dispatch)) => vec![Output::Send(frames::dispatch(*dispatch))],
            Input::Seat(SeatEvent::Canceled { attempt_id, reason }) => {
                vec![Output::Send(frames::cancel(attempt_id, &reason))]
            }
            Input::Idle if self.awaits_idle() => self.end(End::Done),
            Input::HelloOverdue if self.awaits_hello() => self.end(End::HelloRequired),
            Input::Idle | Input::HelloOverdue => vec![],
            Input::ReaderStalled => self.end(End::ReaderStalled),
            Input::Stopping => self.stopping(),
            Input::Ending => self.end(End::Draining),
        }
    }

    fn end(&mut self, end: End) -> Vec<Output> {
        self.phase = Phase::Ended;
        vec![Output::End(end)]
    }

    fn frame(&mut self, frame: WorkerRequest) -> Vec<Output> {
        match self.phase {
            Phase::Greeting => self.greeting(frame),
            Phase::Serving(_) => self.message(frame),
            // Not asked for.
            Phase::Joining { .. } | Phase::Ended => vec![],
        }
    }

    fn greeting(&mut self, frame: WorkerRequest) -> Vec<Output> {
        let Some(Message::Hello(message)) = frame.message else {
            return self.end(End::HelloRequired);
        };
        match convert::hello(&message) {
            Ok(hello) => {
                self.phase = Phase::Joining { named: message.held, stopping: false };
                vec![Output::Join(hello)]
            }
            Err(BadHello::FeatureRequired(feature)) => self.end(End::FeatureRequired(feature)),
            Err(BadHello::Invalid(rejection)) => self.end(End::BadHello(rejection)),
        }
    }

    fn joined(&mut self, joined: Result<Joined, Failure>) -> Vec<Output> {
        let Phase::Joining { named, stopping } = &mut self.phase else {
            return vec![];
        };
        let (named, stopping) = (std::mem::take(named), *stopping);
        match joined {
            Ok(joined) => {
                self.phase = Phase::Serving(Stay::Open);
                let introduction = Introduction {
                    session_id: self.terms.session_id.to_string(),
                    node_id: &self.terms.node_id,
                    lease_ms: self.terms.lease_ms,
                    unknown_queue_ids: joined.unknown_queue_ids,
                };
                let mut outputs = vec![Output::Send(frames::welcome(introduction, named, &joined.held))];
                if stopping {
                    outputs.extend(self.stopping());
                }
                outputs
            }
            Err(failure) => self.end(End::NotTakenIn(failure)),
        }
    }

    fn message(&mut self, frame: WorkerRequest) -> Vec<Output> {
        let units = 1 + frame.encoded_len() / UNIT_BYTES;
        let refused =
            |message_id: &str, rejection| vec![Output::Send(frames::refused(message_id, &rejection))];
        match frame.message {
            Some(Message::Start(message)) => match convert::start(&message) {
                Ok(start) => {
                    let ticket = self.ticket(message.message_id, start.attempt.attempt_id, units);
                    vec![Output::Run(Command::Start(ticket, start))]
                }
                Err(rejection) => refused(&message.message_id, rejection),
            },
            Some(Message::Finish(message)) => match convert::finish(&message, self.terms.result_bytes_max) {
                Ok(finish) => {
                    let ticket = self.ticket(message.message_id, finish.attempt.attempt_id, units);
                    vec![Output::Run(Command::Finish(ticket, finish))]
                }
                Err(rejection) => refused(&message.message_id, rejection),
            },
            Some(Message::Renew(message)) => match convert::renew(&message) {
                Ok(attempts) => {
                    self.take_up(units);
                    let ticket = RenewTicket {
                        named: message.leases,
                        attempt_ids: attempts.iter().map(|a| a.attempt_id).collect(),
                        units,
                    };
                    vec![Output::Run(Command::Renew(ticket, attempts))]
                }
                Err(rejection) => refused("", rejection),
            },
            Some(Message::Drain(proto::Drain {})) => self.drain(),
            Some(Message::Ping(ping)) => vec![Output::Send(frames::pong(ping.sequence))],
            Some(Message::Hello(_)) => {
                let what = "came before: there is one on a stream, as its first message";
                self.end(End::BadHello(Rejection::field("hello", what)))
            }
            None => {
                let what = "is none that this server knows";
                refused("", Rejection::field("message", what))
            }
        }
    }

    fn ticket(&mut self, message_id: String, attempt_id: AttemptId, units: usize) -> Ticket {
        self.take_up(units);
        Ticket { message_id, attempt_id, units }
    }

    const fn take_up(&mut self, units: usize) {
        self.commands += 1;
        self.units += units;
    }

    const fn put_down(&mut self, units: usize) {
        self.commands = self.commands.saturating_sub(1);
        self.units = self.units.saturating_sub(units);
    }

    fn answered(&mut self, answer: Answer) -> Vec<Output> {
        let mut outputs = match answer {
            Answer::Start(ticket, result) => self.message_answered(ticket, result, SeatNote::Started),
            Answer::Finish(ticket, result) => self.message_answered(ticket, result, SeatNote::Renewed),
            Answer::Renew(ticket, result) => self.renew_answered(ticket, result),
        };
        if matches!(self.phase, Phase::Serving(Stay::Unheard)) && self.commands == 0 {
            outputs.extend(self.end(End::Done));
        }
        outputs
    }

    /// Notes what the answer says of the lease, before the worker learns of it: a worker that finishes is sure to find
    /// its slot free.
    fn message_answered(
        &mut self,
        ticket: Ticket,
        result: Result<MessageReply, Failure>,
        granted: fn(AttemptId, LeaseStatus) -> SeatNote,
    ) -> Vec<Output> {
        self.put_down(ticket.units);
        let lease = result.as_ref().ok().and_then(|r| Some((r.lease?, r.result.is_ok())));
        let note = lease.and_then(|(lease, accepted)| match (lease.valid, accepted) {
            (false, _) => Some(SeatNote::Released(ticket.attempt_id)),
            (true, true) => Some(granted(ticket.attempt_id, lease)),
            (true, false) => None,
        });
        let note = note.map(Output::Note);
        let frame = Output::Send(frames::replied(ticket.message_id, result));
        note.into_iter().chain([frame]).collect()
    }

    fn renew_answered(
        &mut self,
        ticket: RenewTicket,
        result: Result<Vec<LeaseStatus>, Failure>,
    ) -> Vec<Output> {
        self.put_down(ticket.units);
        match result {
            Ok(statuses) => {
                let notes = ticket.attempt_ids.into_iter().zip(&statuses).map(|(id, lease)| {
                    Output::Note(if lease.valid {
                        SeatNote::Renewed(id, *lease)
                    } else {
                        SeatNote::Released(id)
                    })
                });
                let frame = Output::Send(frames::renewed(ticket.named, &statuses));
                notes.chain([frame]).collect()
            }
            Err(failure) => vec![Output::Send(frames::not_renewed(&failure))],
        }
    }

    fn drain(&mut self) -> Vec<Output> {
        match self.phase {
            Phase::Serving(Stay::Open) => {
                self.phase = Phase::Serving(Stay::Draining);
                vec![Output::Note(SeatNote::Drain)]
            }
            Phase::Greeting
            | Phase::Joining { .. }
            | Phase::Serving(Stay::Draining | Stay::Unheard)
            | Phase::Ended => vec![],
        }
    }

    fn frames_ended(&mut self) -> Vec<Output> {
        match self.phase {
            Phase::Greeting => self.end(End::HelloRequired),
            Phase::Serving(_) if self.commands == 0 => self.end(End::Done),
            Phase::Serving(_) => {
                self.phase = Phase::Serving(Stay::Unheard);
                vec![Output::Note(SeatNote::Drain)]
            }
            Phase::Joining { .. } | Phase::Ended => vec![],
        }
    }

    fn stopping(&mut self) -> Vec<Output> {
        match &mut self.phase {
            Phase::Greeting => self.end(End::Draining),
            Phase::Joining { stopping, .. } => {
                *stopping = true;
                vec![]
            }
            Phase::Serving(_) => {
                let mut outputs = vec![Output::Send(frames::go_away(RECONNECT_AFTER_MS))];
                outputs.extend(self.drain());
                outputs
            }
            Phase::Ended => vec![],
        }
    }
}

#[cfg(test)]
mod tests;

//! What goes into and comes out of the protocol.

use std::sync::Arc;

use crate::{
    domain::{
        ids::{AttemptId, AttemptRef, SessionId},
        rejection::Rejection,
        report::{Finish, Start},
        task::LeaseStatus,
    },
    engine::{Failure, MessageReply, SeatEvent},
    proto::{self, WorkerRequest, WorkerResponse},
    rpc::convert::Hello,
};

/// What does not change over the life of a session.
pub(super) struct Terms {
    /// Names the session.
    pub(super) session_id: SessionId,
    /// The node that serves it.
    pub(super) node_id: Arc<str>,
    /// How long a granted or renewed lease lasts, in milliseconds.
    pub(super) lease_ms: u32,
    /// The largest result, in bytes.
    pub(super) result_bytes_max: usize,
}

/// What happened.
pub(super) enum Input {
    /// The worker sent a frame.
    Frame(WorkerRequest),
    /// The worker will send no more frames, though it may still read.
    FramesEnded,
    /// The engine took the worker in, or did not.
    Joined(Result<Joined, Failure>),
    /// The engine answered a command.
    Answered(Answer),
    /// The engine hands over an attempt, or tells of a cancel.
    Seat(SeatEvent),
    /// Nothing is in flight at the dispatcher.
    Idle,
    /// The hello took too long.
    HelloOverdue,
    /// The worker has not read for too long.
    ReaderStalled,
    /// The server is about to shut down.
    Stopping,
    /// The server waits no longer.
    Ending,
}

/// What to do about it.
pub(super) enum Output {
    /// Send a frame.
    Send(WorkerResponse),
    /// Look at what the worker holds, and take a seat for it; tell with [`Input::Joined`].
    Join(Hello),
    /// Hand a command to the engine, after those before it; tell with [`Input::Answered`].
    Run(Command),
    /// Tell the dispatcher.
    Note(SeatNote),
    /// End the stream; nothing follows.
    End(End),
}

/// How a worker was taken in.
pub(super) struct Joined {
    /// What it holds, in its order, as of now.
    pub(super) held: Vec<LeaseStatus>,
    /// Queues that do not exist yet.
    pub(super) unknown_queue_ids: Vec<String>,
}

/// A command, with the ticket under which its answer comes back.
#[derive(Debug)]
pub(super) enum Command {
    /// Asks whether an attempt may run.
    Start(Ticket, Start),
    /// Reports how an attempt ended.
    Finish(Ticket, Finish),
    /// Renews leases.
    Renew(RenewTicket, Vec<AttemptRef>),
}

/// The engine's answer to a command.
pub(super) enum Answer {
    /// To a start.
    Start(Ticket, Result<MessageReply, Failure>),
    /// To a finish.
    Finish(Ticket, Result<MessageReply, Failure>),
    /// To a renewal, in the order asked.
    Renew(RenewTicket, Result<Vec<LeaseStatus>, Failure>),
}

/// What is kept of a start or a finish until its answer.
#[derive(Debug)]
pub(super) struct Ticket {
    /// As the worker wrote it.
    pub(super) message_id: String,
    pub(super) attempt_id: AttemptId,
    /// Its weight, see the protocol.
    pub(super) units: usize,
}

/// What is kept of a renewal until its answer.
#[derive(Debug)]
pub(super) struct RenewTicket {
    /// As the worker wrote them.
    pub(super) named: Vec<proto::AttemptRef>,
    pub(super) attempt_ids: Vec<AttemptId>,
    /// Its weight, see the protocol.
    pub(super) units: usize,
}

/// What the dispatcher needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatNote {
    /// The start was granted: the attempt no longer counts as unstarted.
    Started(AttemptId, LeaseStatus),
    /// The lease runs on.
    Renewed(AttemptId, LeaseStatus),
    /// The attempt ended or its lease is lost: its slot is free.
    Released(AttemptId),
    /// Dispatch nothing more.
    Drain,
}

/// Why a stream ends.
pub(super) enum End {
    /// All is said.
    Done,
    /// No hello came, or something else came first.
    HelloRequired,
    /// The hello was bad.
    BadHello(Rejection),
    /// The worker lacks a feature that safety needs.
    FeatureRequired(&'static str),
    /// The engine did not take the worker in.
    NotTakenIn(Failure),
    /// The worker does not read.
    ReaderStalled,
    /// The server shuts down.
    Draining,
}

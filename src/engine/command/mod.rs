//! Commands: one file each. A command says what it needs locked, and changes the working set by a decision of the domain.

mod cancel;
mod claim;
mod finish;
mod lapse;
mod queue;
mod renew;
mod request;
mod resolve;
mod start;
mod submit;

use tokio::{sync::oneshot, time::Instant};

pub(super) use cancel::CancelTask;
pub(super) use claim::{Ask, Claim, Claimed, Claims};
pub(super) use finish::FinishAttempt;
pub(super) use lapse::{Lapse, Lapsed};
pub(super) use queue::{ChangeQueue, CreateQueue};
pub(super) use renew::Renew;
pub(super) use resolve::ResolveTask;
pub use start::MessageReply;
pub(super) use start::StartAttempt;
pub(super) use submit::Submit;
pub use submit::Submitted;

use crate::{
    domain::{ids::RouteNo, rejection::Rejection},
    store::{Needs, WorkingSet},
};

use super::Failure;

/// Which commands go first, and which may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// From workers, and from operators: never refused.
    Message,
    /// From the node itself: reclaims.
    Work,
    /// New work: refused when too much waits.
    Submit,
}

/// Something that changes state.
pub(crate) trait Command: Send + 'static {
    /// Its answer.
    type Reply: Send + 'static;
    /// Its class.
    const CLASS: Class;

    /// Bytes of text it carries.
    fn bytes(&self) -> usize {
        0
    }

    /// The route on which it brings a task that can be claimed at once.
    fn brings(&self) -> Option<RouteNo> {
        None
    }

    /// Says what it needs.
    fn needs(&self, needs: &mut Needs);

    /// Does it. It may run several times, each time on a fresh working set; the last time counts. A refusal leaves the
    /// working set as it was.
    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Self::Reply, Rejection>;
}

/// A command on its way through a lane.
pub(super) struct Job<C: Command> {
    command: C,
    answer: Option<Result<C::Reply, Rejection>>,
    since: Instant,
    reply: oneshot::Sender<Result<C::Reply, Failure>>,
}

impl<C: Command> Job<C> {
    pub(super) fn new(command: C) -> (Self, oneshot::Receiver<Result<C::Reply, Failure>>) {
        let (reply, receiver) = oneshot::channel();
        (Self { command, answer: None, since: Instant::now(), reply }, receiver)
    }
}

/// A [`Job`] of any command.
pub(super) trait LaneJob: Send {
    fn bytes(&self) -> usize;
    /// Since when it waits for its transaction; none if it did not.
    fn since(&self) -> Option<Instant> {
        None
    }
    fn brings(&self) -> Option<RouteNo> {
        None
    }
    fn is_abandoned(&self) -> bool {
        false
    }
    fn needs(&self, needs: &mut Needs);
    fn apply(&mut self, ws: &mut WorkingSet);
    fn deliver(self: Box<Self>);
    fn fail(self: Box<Self>, failure: Failure);
}

impl<C: Command> LaneJob for Job<C> {
    fn bytes(&self) -> usize {
        self.command.bytes()
    }

    fn since(&self) -> Option<Instant> {
        Some(self.since)
    }

    fn brings(&self) -> Option<RouteNo> {
        self.command.brings()
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn needs(&self, needs: &mut Needs) {
        self.command.needs(needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) {
        self.answer = Some(self.command.apply(ws));
    }

    fn deliver(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // Nobody may be waiting any more.
            let _ = self.reply.send(answer.map_err(Failure::Rejected));
        }
    }

    fn fail(self: Box<Self>, failure: Failure) {
        let _ = self.reply.send(Err(failure));
    }
}

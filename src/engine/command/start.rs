use crate::{
    domain::{
        decide::{StartAnswer, start},
        ids::AttemptRef,
        receipt::Receipt,
        rejection::Rejection,
        report::Start,
        task::LeaseStatus,
    },
    engine::Session,
    store::{Needs, WorkingSet},
};

use super::{Class, Command};

/// Asks whether an attempt may run.
pub(crate) struct StartAttempt {
    /// The message.
    pub(crate) message: Start,
    /// Who sent it.
    pub(crate) session: Session,
    /// How long the granted lease lasts.
    pub(crate) lease_ms: u32,
}

/// The answer to a start or finish.
#[derive(Clone, Debug)]
pub struct MessageReply {
    /// The receipt and whether it had been stored before, or the refusal.
    pub result: Result<(Receipt, bool), Rejection>,
    /// The lease as of now; none if there is no such task.
    pub lease: Option<LeaseStatus>,
}

impl MessageReply {
    pub(super) fn new(
        ws: &WorkingSet,
        attempt: AttemptRef,
        result: Result<(Receipt, bool), Rejection>,
    ) -> Self {
        let lease = ws.task(attempt.task_id).map(|t| t.lease_status(attempt, ws.now()));
        Self { result, lease }
    }
}

impl Command for StartAttempt {
    type Reply = MessageReply;
    const CLASS: Class = Class::Message;

    fn needs(&self, needs: &mut Needs) {
        needs.message(self.message.attempt);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<MessageReply, Rejection> {
        let result = self.decide(ws);
        Ok(MessageReply::new(ws, self.message.attempt, result))
    }
}

impl StartAttempt {
    fn decide(&self, ws: &mut WorkingSet) -> Result<(Receipt, bool), Rejection> {
        let attempt = self.message.attempt;
        let task = ws.task(attempt.task_id).ok_or(Rejection::TaskNotFound(attempt.task_id))?;
        let actor = ws.actor(&self.session.principal, Some(self.session.session_id));
        let (known, book, now) = (ws.knows(attempt), ws.book(attempt), ws.now());
        match start(task, known, &book, &self.message, self.lease_ms, now, &actor)? {
            StartAnswer::Replay(receipt) => Ok((receipt, true)),
            StartAnswer::Granted(transition, receipt) => {
                ws.apply(*transition);
                ws.store_receipt(attempt, receipt.clone());
                Ok((receipt, false))
            }
        }
    }
}

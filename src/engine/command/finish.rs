use crate::{
    domain::{
        decide::{FinishAnswer, finish},
        receipt::Receipt,
        rejection::Rejection,
        report::Finish,
    },
    engine::Session,
    store::{Needs, WorkingSet},
};

use super::{Class, Command, MessageReply};

/// Takes a report.
pub(crate) struct FinishAttempt {
    /// The message.
    pub(crate) message: Finish,
    /// Who sent it.
    pub(crate) session: Session,
}

impl Command for FinishAttempt {
    type Reply = MessageReply;
    const CLASS: Class = Class::Message;

    fn bytes(&self) -> usize {
        self.message.report.bytes()
    }

    fn needs(&self, needs: &mut Needs) {
        needs.message(self.message.attempt);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<MessageReply, Rejection> {
        let result = self.decide(ws);
        Ok(MessageReply::new(ws, self.message.attempt, result))
    }
}

impl FinishAttempt {
    fn decide(&self, ws: &mut WorkingSet) -> Result<(Receipt, bool), Rejection> {
        let attempt = self.message.attempt;
        let task = ws.task(attempt.task_id).ok_or(Rejection::TaskNotFound(attempt.task_id))?;
        let actor = ws.actor(&self.session.principal, Some(self.session.session_id));
        let (known, book, now) = (ws.knows(attempt), ws.book(attempt), ws.now());
        let (receipt, replayed, store) = match finish(task, known, &book, &self.message, now, &actor)? {
            FinishAnswer::Replay(receipt) => (receipt, true, false),
            FinishAnswer::Alias { receipt, store } => (receipt, true, store),
            FinishAnswer::Applied(transition, receipt) => {
                ws.apply(*transition);
                (receipt, false, true)
            }
            FinishAnswer::Evidence(record, event, receipt) => {
                ws.store_evidence(*record, *event, self.session.session_id);
                (receipt, false, true)
            }
        };
        if store {
            ws.store_receipt(attempt, receipt.clone());
        }
        Ok((receipt, replayed))
    }
}

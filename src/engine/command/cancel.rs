use crate::{
    domain::{decide::cancel, digest::Digester, ids::TaskId, receipt::OperatorReceipt, rejection::Rejection},
    engine::Request,
    store::{Needs, StoredAnswer, WorkingSet},
};

use super::{Class, Command, request};

/// Cancels a task, durably.
pub(crate) struct CancelTask {
    /// The task.
    pub(crate) task_id: TaskId,
    /// For people; may be empty.
    pub(crate) reason: String,
    /// Who asks.
    pub(crate) request: Request,
}

impl Command for CancelTask {
    type Reply = OperatorReceipt;
    const CLASS: Class = Class::Message;

    fn needs(&self, needs: &mut Needs) {
        needs.tasks.insert(self.task_id);
        request::needs(&self.request, needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<OperatorReceipt, Rejection> {
        let digest =
            Digester::new().number(1, 5).text(2, &self.task_id.to_string()).text(3, &self.reason).finish();
        if let Some(StoredAnswer::Task(receipt)) = request::replayed(&self.request, digest, ws)? {
            return Ok(receipt);
        }
        let task = ws.task(self.task_id).ok_or(Rejection::TaskNotFound(self.task_id))?;
        let transition = cancel(task, &self.reason, ws.now(), &ws.actor(&self.request.principal, None));
        let receipt = match transition {
            Some(transition) => {
                let receipt = OperatorReceipt::of(&transition.task, true, ws.now());
                ws.apply(transition);
                receipt
            }
            // It has ended, or a cancel is recorded already: its state is the answer.
            None => OperatorReceipt::of(task, false, ws.now()),
        };
        request::store(&self.request, digest, StoredAnswer::Task(receipt), ws);
        Ok(receipt)
    }
}

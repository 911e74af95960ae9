use crate::{
    domain::{
        decide::{Resolution, ResolvedTo, resolve},
        digest::{Digest, Digester},
        ids::TaskId,
        receipt::OperatorReceipt,
        rejection::Rejection,
        time::Moment,
    },
    engine::Request,
    store::{Needs, StoredAnswer, WorkingSet},
};

use super::{Class, Command, request};

/// Resolves a task in review.
pub(crate) struct ResolveTask {
    /// The task.
    pub(crate) task_id: TaskId,
    /// What the person found out and wants.
    pub(crate) resolution: Resolution,
    /// Who asks.
    pub(crate) request: Request,
}

impl Command for ResolveTask {
    type Reply = OperatorReceipt;
    const CLASS: Class = Class::Message;

    fn bytes(&self) -> usize {
        match &self.resolution.outcome {
            ResolvedTo::Succeeded { result } => result.as_str().len(),
            ResolvedTo::Failed { .. } | ResolvedTo::Canceled | ResolvedTo::Retry { .. } => 0,
        }
    }

    fn needs(&self, needs: &mut Needs) {
        needs.tasks.insert(self.task_id);
        request::needs(&self.request, needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<OperatorReceipt, Rejection> {
        let digest = self.digest();
        if let Some(StoredAnswer::Task(receipt)) = request::replayed(&self.request, digest, ws)? {
            return Ok(receipt);
        }
        let task = ws.task(self.task_id).ok_or(Rejection::TaskNotFound(self.task_id))?;
        let actor = ws.actor(&self.request.principal, None);
        let transition = resolve(task, &self.resolution, ws.now(), &actor)?;
        let receipt = OperatorReceipt::of(&transition.task, true, ws.now());
        ws.apply(transition);
        request::store(&self.request, digest, StoredAnswer::Task(receipt), ws);
        Ok(receipt)
    }
}

impl ResolveTask {
    fn digest(&self) -> Digest {
        let Resolution { expected_revision, effect_verified, reason, evidence, outcome } = &self.resolution;
        let pairs = Digester::new()
            .number(1, 6)
            .text(2, &self.task_id.to_string())
            .number(3, (*expected_revision).into())
            .number(4, i64::from(*effect_verified))
            .text(5, reason);
        let pairs = evidence.iter().fold(pairs, |p, e| p.text(6, e));
        match outcome {
            ResolvedTo::Succeeded { result } => pairs.text(7, result.as_str()),
            ResolvedTo::Failed { error } => {
                let details = error.details.as_ref().map_or("", |d| d.as_str());
                pairs.text(8, &error.code).text(9, &error.message).text(10, details)
            }
            ResolvedTo::Canceled => pairs.number(11, 1),
            ResolvedTo::Retry { granted_attempts, task_timeout_ms, start_before } => pairs
                .number(12, (*granted_attempts).into())
                .number(13, (*task_timeout_ms).into())
                .number(14, start_before.map_or(0, Moment::micros)),
        }
        .finish()
    }
}

use std::sync::Arc;

use uuid::Uuid;

use crate::{
    domain::{
        decide::{Acceptance, accept},
        digest::Digest,
        ids::{Route, RouteNo, TaskId},
        rejection::Rejection,
        submission::Submission,
    },
    store::{Needs, WorkingSet, reads::TaskRecord},
};

use super::{Class, Command};

/// Accepts a task.
pub(crate) struct Submit {
    submission: Arc<Submission>,
    digest: Digest,
    /// A UUIDv7. The time in it gives way to that of the acceptance.
    random: Uuid,
    admission: Result<Route, Rejection>,
}

/// What a key stands for.
#[derive(Clone, Debug)]
pub enum Submitted {
    /// A task accepted now, as it was committed, without texts.
    Accepted(Box<TaskRecord>),
    /// A task that had been accepted before.
    Replayed(TaskId),
}

impl Submitted {
    /// The task's id.
    pub fn task_id(&self) -> TaskId {
        match self {
            Self::Accepted(record) => record.task.id,
            Self::Replayed(task_id) => *task_id,
        }
    }

    /// The task, if it had been accepted before.
    pub const fn replay(&self) -> Option<TaskId> {
        match self {
            Self::Accepted(_) => None,
            Self::Replayed(task_id) => Some(*task_id),
        }
    }

    /// Whether it had been accepted before.
    pub const fn replayed(&self) -> bool {
        matches!(self, Self::Replayed(_))
    }
}

impl Submit {
    /// `admission` says where a new task waits, or what stands against one.
    pub(crate) fn new(submission: Submission, admission: Result<Route, Rejection>) -> Self {
        let digest = submission.digest();
        Self { submission: Arc::new(submission), digest, random: Uuid::now_v7(), admission }
    }
}

impl Command for Submit {
    type Reply = Submitted;
    const CLASS: Class = Class::Submit;

    fn bytes(&self) -> usize {
        self.submission.payload.as_str().len() + 1_000
    }

    fn brings(&self) -> Option<RouteNo> {
        let route = self.admission.as_ref().ok().filter(|_| self.submission.not_before.is_none());
        route.map(|route| route.route)
    }

    fn needs(&self, needs: &mut Needs) {
        needs.keys.insert((self.submission.principal.clone(), self.submission.idempotency_key.clone()));
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Submitted, Rejection> {
        let submission = &self.submission;
        // Before every check that depends on time or configuration, so that a re-send always finds its task (S19).
        if let Some(hit) = ws.key(&submission.principal, &submission.idempotency_key) {
            if hit.digest == self.digest {
                return Ok(Submitted::Replayed(hit.task_id));
            }
            let value = submission.idempotency_key.clone();
            return Err(Rejection::IdempotencyConflict { field: "idempotency_key", value });
        }
        let task_id = TaskId::accepted_at(ws.now(), self.random);
        let acceptance = Acceptance { task_id, route: self.admission.clone()? };
        let transition = accept(submission, &acceptance, ws.now(), &ws.actor(&submission.principal, None))?;
        let record = TaskRecord::accepted(submission, transition.task.clone());
        ws.accept(submission.clone(), self.digest, transition);
        Ok(Submitted::Accepted(Box::new(record)))
    }
}

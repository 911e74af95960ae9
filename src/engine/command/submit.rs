use uuid::Uuid;

use crate::{
    domain::{
        decide::{Acceptance, accept},
        digest::Digest,
        ids::{Route, TaskId},
        rejection::Rejection,
        submission::Submission,
    },
    store::{Needs, WorkingSet},
};

use super::{Class, Command};

/// Accepts a task.
pub(crate) struct Submit {
    submission: Submission,
    digest: Digest,
    /// A UUIDv7. The time in it gives way to that of the acceptance.
    random: Uuid,
    admission: Result<Route, Rejection>,
}

/// The accepted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id.
    pub task_id: TaskId,
    /// Whether it had been accepted before.
    pub replayed: bool,
}

impl Submit {
    /// `admission` says where a new task waits, or what stands against one.
    pub(crate) fn new(submission: Submission, admission: Result<Route, Rejection>) -> Self {
        let digest = submission.digest();
        Self { submission, digest, random: Uuid::now_v7(), admission }
    }
}

impl Command for Submit {
    type Reply = Submitted;
    const CLASS: Class = Class::Submit;

    fn bytes(&self) -> usize {
        self.submission.payload.as_str().len() + 1_000
    }

    fn needs(&self, needs: &mut Needs) {
        needs.keys.insert((self.submission.principal.clone(), self.submission.idempotency_key.clone()));
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Submitted, Rejection> {
        let submission = &self.submission;
        // Before every check that depends on time or configuration, so that a re-send always finds its task (S19).
        if let Some(hit) = ws.key(&submission.principal, &submission.idempotency_key) {
            if hit.digest == self.digest {
                return Ok(Submitted { task_id: hit.task_id, replayed: true });
            }
            let value = submission.idempotency_key.clone();
            return Err(Rejection::IdempotencyConflict { field: "idempotency_key", value });
        }
        let task_id = TaskId::accepted_at(ws.now(), self.random);
        let acceptance = Acceptance { task_id, route: self.admission.clone()? };
        let transition = accept(submission, &acceptance, ws.now(), &ws.actor(&submission.principal, None))?;
        ws.accept(submission.clone(), self.digest, transition);
        Ok(Submitted { task_id, replayed: false })
    }
}

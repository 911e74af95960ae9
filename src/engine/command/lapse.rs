use std::sync::Arc;

use crate::{
    domain::{
        decide::lapse,
        ids::{NODE_PRINCIPAL, TaskId},
        rejection::Rejection,
    },
    store::{Needs, WorkingSet},
};

use super::{Class, Command};

/// Does what time alone does to a task: reclaims a lease that ended, or ends a wait that cannot end in a claim.
pub(in crate::engine) struct Lapse {
    pub(in crate::engine) task_id: TaskId,
}

/// What it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Lapsed {
    /// It changed the task.
    Changed,
    /// There was nothing to do (any more).
    Nothing,
}

impl Command for Lapse {
    type Reply = Lapsed;
    const CLASS: Class = Class::Work;

    fn needs(&self, needs: &mut Needs) {
        needs.tasks.insert(self.task_id);
        needs.judges_leases = true;
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Lapsed, Rejection> {
        let actor = ws.actor(&Arc::from(NODE_PRINCIPAL), None);
        let Some(transition) = ws.task(self.task_id).and_then(|t| lapse(t, ws.now(), &actor)) else {
            return Ok(Lapsed::Nothing);
        };
        ws.apply(transition);
        Ok(Lapsed::Changed)
    }
}

use crate::{
    domain::{decide::renew, ids::AttemptRef, rejection::Rejection, task::LeaseStatus},
    store::{Needs, WorkingSet},
};

use super::{Class, Command};

/// Renews leases of one lane, and tells of each as of now, in the order asked.
pub(crate) struct Renew {
    /// The attempts.
    pub(crate) attempts: Vec<AttemptRef>,
    /// How long a renewed lease lasts.
    pub(crate) lease_ms: u32,
}

impl Command for Renew {
    type Reply = Vec<LeaseStatus>;
    const CLASS: Class = Class::Message;

    fn needs(&self, needs: &mut Needs) {
        needs.tasks.extend(self.attempts.iter().map(|a| a.task_id));
        needs.judges_leases = true;
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Vec<LeaseStatus>, Rejection> {
        let now = ws.now();
        let gone = LeaseStatus { valid: false, remaining_ms: 0, cancel_requested: false };
        let mut statuses = Vec::with_capacity(self.attempts.len());
        for attempt in &self.attempts {
            if let Some(renewed) =
                ws.task(attempt.task_id).and_then(|t| renew(t, *attempt, self.lease_ms, now))
            {
                ws.renewed(renewed);
            }
            statuses.push(ws.task(attempt.task_id).map_or(gone, |t| t.lease_status(*attempt, now)));
        }
        Ok(statuses)
    }
}

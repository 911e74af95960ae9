use crate::{
    domain::{
        digest::Digester,
        ids::QueueNo,
        queue::{Queue, QueueChange},
        rejection::Rejection,
    },
    engine::Request,
    store::{Needs, StoredAnswer, WorkingSet},
};

use super::{Class, Command, request};

/// Makes a queue.
pub(crate) struct CreateQueue {
    /// Its name.
    pub(crate) queue_id: String,
    /// Permits; 0 means unlimited.
    pub(crate) max_running: u32,
    /// Who asks.
    pub(crate) request: Request,
}

/// Changes a queue.
pub(crate) struct ChangeQueue {
    /// Its name.
    pub(crate) queue_id: String,
    /// How.
    pub(crate) change: QueueChange,
    /// The revision that the change is based on.
    pub(crate) expected_revision: Option<u32>,
    /// Who asks.
    pub(crate) request: Request,
}

impl Command for CreateQueue {
    type Reply = Queue;
    const CLASS: Class = Class::Message;

    fn needs(&self, needs: &mut Needs) {
        needs.queues.insert(self.queue_id.clone());
        request::needs(&self.request, needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Queue, Rejection> {
        let digest =
            Digester::new().number(1, 1).text(2, &self.queue_id).number(3, self.max_running.into()).finish();
        if let Some(StoredAnswer::Queue(answer)) = request::replayed(&self.request, digest, ws)? {
            return Ok(answer);
        }
        if ws.queue(&self.queue_id).is_some() {
            return Err(Rejection::QueueExists(self.queue_id.clone()));
        }
        let queue = Queue {
            // The database numbers it.
            no: QueueNo(0),
            queue_id: self.queue_id.clone(),
            paused: false,
            max_running: self.max_running,
            revision: 1,
            created_at: ws.now(),
            updated_at: ws.now(),
        };
        ws.put_queue(queue.clone());
        request::store(&self.request, digest, StoredAnswer::Queue(queue.clone()), ws);
        Ok(queue)
    }
}

impl Command for ChangeQueue {
    type Reply = Queue;
    const CLASS: Class = Class::Message;

    fn needs(&self, needs: &mut Needs) {
        needs.queues.insert(self.queue_id.clone());
        request::needs(&self.request, needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) -> Result<Queue, Rejection> {
        let (kind, value) = match self.change {
            QueueChange::Pause => (2, 0),
            QueueChange::Resume => (3, 0),
            QueueChange::SetMaxRunning { max_running } => (4, max_running),
        };
        let expected = self.expected_revision.map_or(-1, i64::from);
        let digest = Digester::new()
            .number(1, kind)
            .text(2, &self.queue_id)
            .number(3, value.into())
            .number(4, expected)
            .finish();
        if let Some(StoredAnswer::Queue(answer)) = request::replayed(&self.request, digest, ws)? {
            return Ok(answer);
        }
        let queue =
            ws.queue(&self.queue_id).ok_or_else(|| Rejection::QueueNotFound(self.queue_id.clone()))?;
        if let Some(expected) = self.expected_revision.filter(|e| *e != queue.revision) {
            return Err(Rejection::RevisionMismatch { expected, actual: queue.revision });
        }
        let queue = queue.changed(self.change, ws.now());
        ws.put_queue(queue.clone());
        request::store(&self.request, digest, StoredAnswer::Queue(queue.clone()), ws);
        Ok(queue)
    }
}

//! Stored answers to start and finish, and what they say about a message that comes again (S13–S16).

use super::{
    decide::Decision,
    digest::Digest,
    ids::{MessageId, TaskId},
    rejection::Rejection,
    report::MessageKind,
    task::{StateName, Task},
    time::Moment,
};

/// Whether a message took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// It had authority.
    Applied,
    /// It had none: it is kept, and changes nothing.
    Evidence,
}

/// The stored answer to one message, as of its commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The message.
    pub message_id: MessageId,
    /// What it was.
    pub kind: MessageKind,
    /// Its content.
    pub digest: Digest,
    /// What became of it.
    pub disposition: Disposition,
    /// The task's state then.
    pub task_state: StateName,
    /// What was decided; none for a start or evidence.
    pub decision: Option<Decision>,
    /// The task's doubt then.
    pub effect_uncertain: bool,
    /// With a retry: its earliest claim.
    pub next_available_at: Option<Moment>,
    /// When it was decided.
    pub committed_at: Moment,
}

/// The most evidence that is kept of one attempt.
pub const EVIDENCE_MAX: u32 = 16;

/// The most receipts of one attempt under which new aliases are stored. Past it an alias gets the same answer and
/// leaves no row, so that no worker can grow the table by inventing message ids.
const ALIASES_KEPT_MAX: usize = 64;

/// All receipts of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptBook {
    receipts: Vec<Receipt>,
}

impl ReceiptBook {
    /// The stored receipts, in any order.
    pub fn new(receipts: Vec<Receipt>) -> Self {
        Self { receipts }
    }

    /// The receipt of a message that came before; a conflict if it came with other content.
    pub fn replay(&self, message_id: MessageId, digest: Digest) -> Result<Option<&Receipt>, Rejection> {
        match self.receipts.iter().find(|r| r.message_id == message_id) {
            Some(receipt) if receipt.digest == digest => Ok(Some(receipt)),
            Some(_) => {
                Err(Rejection::IdempotencyConflict { field: "message_id", value: message_id.to_string() })
            }
            None => Ok(None),
        }
    }

    /// The receipt of the same content that was applied under another id. Evidence never counts.
    pub fn applied(&self, digest: Digest) -> Option<&Receipt> {
        self.receipts.iter().find(|r| r.digest == digest && r.disposition == Disposition::Applied)
    }

    /// How many reports were kept as evidence.
    pub fn evidence_count(&self) -> u32 {
        let evidence = |r: &&Receipt| r.disposition == Disposition::Evidence;
        u32::try_from(self.receipts.iter().filter(evidence).count()).unwrap_or(u32::MAX)
    }

    /// Whether one more alias is stored.
    pub fn keeps_alias(&self) -> bool {
        self.receipts.len() < ALIASES_KEPT_MAX
    }

    /// Adds a receipt.
    pub fn add(&mut self, receipt: Receipt) {
        self.receipts.push(receipt);
    }
}

impl Receipt {
    /// A receipt of a message that was applied and led to `task`.
    pub fn applied(
        message_id: MessageId,
        kind: MessageKind,
        digest: Digest,
        task: &Task,
        decision: Option<Decision>,
    ) -> Self {
        let next_available_at = match task.state {
            super::task::State::Waiting { available_at } => Some(available_at),
            _ => None,
        };
        Self {
            disposition: Disposition::Applied,
            next_available_at,
            decision,
            ..Self::evidence(message_id, kind, digest, task, task.updated_at)
        }
    }

    /// A receipt of a report that was kept as evidence at `now`, beside an unchanged `task`.
    pub fn evidence(
        message_id: MessageId,
        kind: MessageKind,
        digest: Digest,
        task: &Task,
        now: Moment,
    ) -> Self {
        Self {
            message_id,
            kind,
            digest,
            disposition: Disposition::Evidence,
            task_state: task.state.name(),
            decision: None,
            effect_uncertain: task.doubt,
            next_available_at: None,
            committed_at: now,
        }
    }
}

/// The stored answer to a cancel or a resolution, as of its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorReceipt {
    /// The task.
    pub task_id: TaskId,
    /// Whether it changed anything.
    pub changed: bool,
    /// The task's state then.
    pub task_state: StateName,
    /// Its revision then.
    pub revision: u32,
    /// Its latest decision then.
    pub decision: Option<Decision>,
    /// Its doubt then.
    pub effect_uncertain: bool,
    /// When it was decided, by the database's clock.
    pub committed_at: Moment,
}

impl OperatorReceipt {
    /// Tells of `task` as it stands at `now`.
    pub fn of(task: &Task, changed: bool, now: Moment) -> Self {
        Self {
            task_id: task.id,
            changed,
            task_state: task.state.name(),
            revision: task.revision,
            decision: task.last_decision,
            effect_uncertain: task.doubt,
            committed_at: now,
        }
    }
}

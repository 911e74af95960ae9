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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::{NOW, attempt_ref, doubted, leased, message_id, running, waiting};
    use crate::domain::report::Start;

    fn digest(epoch: u32) -> Digest {
        Start { message_id: message_id(0), attempt: attempt_ref(epoch) }.digest()
    }

    fn receipt(id: u128, content: u32, disposition: Disposition) -> Receipt {
        let evidence =
            Receipt::evidence(message_id(id), MessageKind::Finish, digest(content), &running(), NOW);
        Receipt { disposition, ..evidence }
    }

    fn book(receipts: &[(u128, u32, Disposition)]) -> ReceiptBook {
        ReceiptBook::new(receipts.iter().map(|(id, content, d)| receipt(*id, *content, *d)).collect())
    }

    #[test]
    fn the_same_message_gets_its_own_receipt_and_other_content_is_a_conflict() {
        let book = book(&[(1, 1, Disposition::Evidence), (2, 1, Disposition::Applied)]);
        for (id, disposition) in [(1, Disposition::Evidence), (2, Disposition::Applied)] {
            let found = book.replay(message_id(id), digest(1)).expect("no conflict");
            assert_eq!(found, Some(&receipt(id, 1, disposition)));
            let conflict =
                Rejection::IdempotencyConflict { field: "message_id", value: message_id(id).to_string() };
            assert_eq!(book.replay(message_id(id), digest(2)), Err(conflict));
        }
        assert_eq!(book.replay(message_id(3), digest(1)), Ok(None));
    }

    #[test]
    fn only_an_applied_receipt_of_the_same_content_is_found_under_another_id() {
        let evidence = book(&[(1, 1, Disposition::Evidence)]);
        assert_eq!(evidence.applied(digest(1)), None);
        let both = book(&[(1, 1, Disposition::Evidence), (2, 1, Disposition::Applied)]);
        assert_eq!(both.applied(digest(1)), Some(&receipt(2, 1, Disposition::Applied)));
        assert_eq!(both.applied(digest(2)), None);
    }

    #[test]
    fn only_evidence_counts_as_evidence() {
        let mut book = book(&[(1, 1, Disposition::Applied), (2, 2, Disposition::Evidence)]);
        assert_eq!((ReceiptBook::default().evidence_count(), book.evidence_count()), (0, 1));
        book.add(receipt(3, 3, Disposition::Evidence));
        book.add(receipt(4, 4, Disposition::Applied));
        assert_eq!(book.evidence_count(), 2);
        assert_eq!(book.replay(message_id(3), digest(3)), Ok(Some(&receipt(3, 3, Disposition::Evidence))));
    }

    #[test]
    fn aliases_are_kept_below_sixty_four_receipts() {
        let of = |n: u128| ReceiptBook::new((0..n).map(|id| receipt(id, 1, Disposition::Applied)).collect());
        assert_eq!([0, 63, 64, 65].map(|n| of(n).keeps_alias()), [true, true, false, false]);
    }

    #[test]
    fn a_receipt_says_what_became_of_the_message_as_of_its_commit() {
        let later = NOW.plus_ms(5);
        let task = Task { updated_at: later, ..doubted(&waiting()) };
        let (id, kind, decision) = (message_id(1), MessageKind::Finish, Some(Decision::RetryableFailure));
        let applied = Receipt {
            message_id: id,
            kind,
            digest: digest(1),
            disposition: Disposition::Applied,
            task_state: StateName::Waiting,
            decision,
            effect_uncertain: true,
            next_available_at: Some(NOW),
            committed_at: later,
        };
        assert_eq!(Receipt::applied(id, kind, digest(1), &task, decision), applied);
        let evidence = Receipt {
            disposition: Disposition::Evidence,
            decision: None,
            next_available_at: None,
            committed_at: NOW,
            ..applied
        };
        assert_eq!(Receipt::evidence(id, kind, digest(1), &task, NOW), evidence);
        let of_leased = Receipt::applied(id, kind, digest(1), &leased(), None);
        assert_eq!(
            (of_leased.next_available_at, of_leased.task_state, of_leased.effect_uncertain),
            (None, StateName::Leased, false)
        );
    }

    #[test]
    fn an_operators_receipt_tells_of_the_task_as_it_stands() {
        let task = Task { last_decision: Some(Decision::AttemptLimit), ..doubted(&running()) };
        let expected = OperatorReceipt {
            task_id: task.id,
            changed: true,
            task_state: StateName::Running,
            revision: 3,
            decision: Some(Decision::AttemptLimit),
            effect_uncertain: true,
            committed_at: NOW.plus_ms(1),
        };
        assert_eq!(OperatorReceipt::of(&task, true, NOW.plus_ms(1)), expected);
        assert!(!OperatorReceipt::of(&task, false, NOW).changed);
    }
}

//! What a worker may believe about a lease, by its own monotonic clock.

use std::time::Duration;

use tokio::time::Instant;

use super::context::LeaseSignal;
use crate::proto::LeaseStatus;

/// What is taken off each term, as a fraction of it: the clocks of two machines do not run alike.
const MARGIN_FRACTION: u32 = 10;
const MARGIN_MAX: Duration = Duration::from_secs(1);

/// The lease of one attempt. The server alone can say that it is lost; the clock only that it is unconfirmed.
#[derive(Debug)]
pub(crate) struct Lease {
    confirmed_until: Option<Instant>,
    /// When the oldest question that is still unanswered was sent. The answer's term is counted from there, so that
    /// no delay on the way can lengthen it.
    asked_at: Option<Instant>,
    lost: bool,
}

impl Lease {
    pub(crate) fn new() -> Self {
        Self { confirmed_until: None, asked_at: None, lost: false }
    }

    /// A start or renewal is on its way.
    pub(crate) fn asked(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// The answers to what was asked before will not arrive any more.
    pub(crate) fn forget_questions(&mut self) {
        self.asked_at = None;
    }

    /// The server answered. Returns what the handler has to know.
    pub(crate) fn answered(&mut self, status: LeaseStatus) -> LeaseSignal {
        if self.lost || !status.valid {
            // For good: an expired lease cannot be renewed.
            self.lost = true;
            return LeaseSignal::Lost;
        }
        if let Some(asked_at) = self.asked_at.take() {
            let term = Duration::from_millis(status.remaining_ms.into());
            let margin = (term / MARGIN_FRACTION).min(MARGIN_MAX);
            let until = asked_at + term.saturating_sub(margin);
            self.confirmed_until = self.confirmed_until.max(Some(until));
        }
        LeaseSignal::Confirmed
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// When the lease becomes unconfirmed unless it is renewed; `None` once that has been noticed, or it is lost.
    pub(crate) fn confirmed_until(&self) -> Option<Instant> {
        self.confirmed_until.filter(|_| !self.lost)
    }

    /// Notices that the term passed. True once for each time.
    pub(crate) fn lapse(&mut self, now: Instant) -> bool {
        let lapsed = self.confirmed_until().is_some_and(|until| until <= now);
        if lapsed {
            self.confirmed_until = None;
        }
        lapsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(remaining_ms: u32) -> LeaseStatus {
        LeaseStatus { valid: true, remaining_ms, cancel_requested: false }
    }

    #[test]
    fn a_term_counts_from_the_oldest_unanswered_question_less_a_margin() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut lease = Lease::new();
        lease.asked(at(0));
        lease.asked(at(300));
        assert_eq!(lease.answered(valid(1_000)), LeaseSignal::Confirmed);
        assert_eq!(lease.confirmed_until(), Some(at(900)));
        // The second answer has no question left: it lengthens nothing.
        lease.answered(valid(1_000));
        assert_eq!(lease.confirmed_until(), Some(at(900)));
        assert!(!lease.lapse(at(899)));
        assert!(lease.lapse(at(900)));
        assert!(!lease.lapse(at(901)));
    }

    #[test]
    fn a_lost_lease_stays_lost() {
        let mut lease = Lease::new();
        assert_eq!(lease.answered(LeaseStatus::default()), LeaseSignal::Lost);
        lease.asked(Instant::now());
        assert_eq!(lease.answered(valid(1_000)), LeaseSignal::Lost);
        assert_eq!(lease.confirmed_until(), None);
    }
}

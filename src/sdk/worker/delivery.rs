//! When a message that has no answer yet is sent again.

use std::time::Duration;

use tokio::time::Instant;

use super::answer::Again;
use crate::sdk::backoff::Backoff;

/// How long an answer may stay out on a living stream before the message is sent again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const RESEND_DELAY_FIRST: Duration = Duration::from_millis(100);
const RESEND_DELAY_LIMIT: Duration = Duration::from_secs(5);
/// How many answers that waiting may not cure are waited out: about a minute.
const SUSPICIOUS_ANSWERS_MAX: u32 = 12;

/// When a message is sent again.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) due: Instant,
    backoff: Option<Backoff>,
    suspicious: u32,
}

impl Delivery {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now + ANSWER_TIMEOUT, backoff: None, suspicious: 0 }
    }

    /// The message was written to the stream.
    pub(crate) fn sent(&mut self, now: Instant) {
        self.due = now + ANSWER_TIMEOUT;
    }

    /// The server asks for the same message again. False when that has gone on for too long.
    pub(crate) fn postpone(&mut self, now: Instant, again: &Again) -> bool {
        self.suspicious += u32::from(again.suspicious);
        let backoff =
            self.backoff.get_or_insert_with(|| Backoff::new(RESEND_DELAY_FIRST, RESEND_DELAY_LIMIT));
        self.due = now + backoff.next_delay().max(again.after.unwrap_or_default());
        self.suspicious <= SUSPICIOUS_ANSWERS_MAX
    }
}

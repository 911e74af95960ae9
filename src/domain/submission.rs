//! What a producer submits.

use std::sync::Arc;

use super::{
    digest::{Digest, Digester},
    json::JsonText,
    policy::{
        ATTEMPT_TIMEOUT_MS_DEFAULT, INITIAL_DELAY_MS_DEFAULT, MAX_ATTEMPTS_DEFAULT, MAX_DELAY_MS_DEFAULT,
        Policy, RecoverySafety, TASK_TIMEOUT_MS_DEFAULT,
    },
    time::Moment,
};

/// The largest payload or result unless the server is configured otherwise, in bytes.
pub const PAYLOAD_BYTES_MAX_DEFAULT: usize = 1024 * 1024;

/// A task to accept, checked field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Whose key it is.
    pub principal: Arc<str>,
    /// The producer's name for the operation.
    pub idempotency_key: String,
    /// The queue's name.
    pub queue_id: String,
    /// The handler.
    pub handler: String,
    /// Its version.
    pub handler_version: String,
    /// The version of the payload's schema.
    pub payload_version: String,
    /// The payload.
    pub payload: JsonText,
    /// The policy.
    pub policy: Policy,
    /// The earliest first claim.
    pub not_before: Option<Moment>,
    /// No attempt is claimed or started at or after it.
    pub start_before: Option<Moment>,
}

impl Submission {
    /// The digest of its content: every field but the key.
    pub fn digest(&self) -> Digest {
        let policy = &self.policy;
        let max_delay_default = MAX_DELAY_MS_DEFAULT.max(policy.initial_delay_ms);
        let idempotent = policy.recovery_safety == RecoverySafety::Idempotent;
        let pairs = Digester::new()
            .text(1, &self.queue_id)
            .text(3, &self.handler)
            .text(4, &self.handler_version)
            .text(5, &self.payload_version)
            .text_unless(6, self.payload.as_str(), "null")
            // Field 7 is `retry`: its own fields follow it as 71, 72 …
            .number_unless(71, policy.max_attempts.into(), MAX_ATTEMPTS_DEFAULT.into())
            .number_unless(72, policy.initial_delay_ms.into(), INITIAL_DELAY_MS_DEFAULT.into())
            .number_unless(73, policy.max_delay_ms.into(), max_delay_default.into())
            .number_unless(74, policy.attempt_timeout_ms.into(), ATTEMPT_TIMEOUT_MS_DEFAULT.into())
            .number_unless(8, i64::from(idempotent), 0)
            .number_unless(9, policy.task_timeout_ms.into(), TASK_TIMEOUT_MS_DEFAULT.into());
        let pairs = self.not_before.into_iter().fold(pairs, |p, at| p.number(10, at.micros()));
        self.start_before.into_iter().fold(pairs, |p, at| p.number(11, at.micros())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::submission;

    #[test]
    fn the_key_and_the_principal_are_no_part_of_the_content() {
        let one = submission();
        let other = Submission { idempotency_key: "other".into(), principal: "other".into(), ..one.clone() };
        assert_eq!(one.digest(), other.digest());
    }

    #[test]
    fn every_other_field_is_part_of_the_content() {
        let base = submission();
        let mut digests = vec![base.digest()];
        let mut change = |f: &dyn Fn(&mut Submission)| {
            let mut changed = base.clone();
            f(&mut changed);
            digests.push(changed.digest());
        };
        change(&|s| s.queue_id = "other".into());
        change(&|s| s.handler = "other".into());
        change(&|s| s.handler_version = "other".into());
        change(&|s| s.payload_version = "other".into());
        change(&|s| s.payload = JsonText::stored("[]".into()));
        change(&|s| s.payload = JsonText::stored("[ ]".into()));
        change(&|s| s.policy.max_attempts = 2);
        change(&|s| s.policy.initial_delay_ms = 2);
        change(&|s| s.policy.max_delay_ms = 70_000);
        change(&|s| s.policy.attempt_timeout_ms = 200);
        change(&|s| s.policy.recovery_safety = RecoverySafety::Idempotent);
        change(&|s| s.policy.task_timeout_ms = 200);
        change(&|s| s.not_before = Some(Moment::from_micros(1)));
        change(&|s| s.start_before = Some(Moment::from_micros(1)));
        let distinct: std::collections::HashSet<_> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len());
    }

    #[test]
    fn neighbouring_fields_do_not_run_into_each_other() {
        let base = submission();
        let one = Submission { handler: "ab".into(), handler_version: "c".into(), ..base.clone() };
        let other = Submission { handler: "a".into(), handler_version: "bc".into(), ..base };
        assert_ne!(one.digest(), other.digest());
    }

    #[test]
    fn the_digest_vector_is_pinned() {
        insta::assert_compact_debug_snapshot!(submission().digest(), @"7c753cd879fcc0a748552b87b51b3e6dac821ad10dfb62a725744e72be63fffd");
    }
}

//! How long a task waits before it may be claimed again (S8).

use sha2::{Digest as _, Sha256};

use super::{
    ids::{AttemptId, Epoch},
    policy::Policy,
};

/// The longest wait after the `epoch`-th claim, in milliseconds: min(initial × 2^(epoch−1), max).
pub fn base_ms(policy: &Policy, epoch: Epoch) -> u32 {
    let mut base = policy.initial_delay_ms;
    for _ in 1..epoch {
        // Compared before doubling, so that no number of attempts overflows.
        if base > policy.max_delay_ms / 2 {
            return policy.max_delay_ms;
        }
        base *= 2;
    }
    base.min(policy.max_delay_ms)
}

/// The wait after an attempt, in milliseconds: between half of the base, rounded up, and all of it, the same whenever
/// it is computed for the same attempt.
///
/// `half + u64_be(SHA-256(attempt_id)[0..8]) mod (base − half + 1)`
pub fn delay_ms(policy: &Policy, epoch: Epoch, attempt_id: AttemptId) -> u32 {
    let base = base_ms(policy, epoch);
    let half = base.div_ceil(2);
    let hash = Sha256::digest(attempt_id.0.as_bytes());
    let first_eight = hash.iter().take(8).fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let spread = u64::from(base - half) + 1;
    let jitter = first_eight % spread;
    // Below `spread`, which fits.
    half + u32::try_from(jitter).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::policy::PolicyRequest;

    fn policy(initial_delay_ms: u32, max_delay_ms: u32) -> Policy {
        PolicyRequest {
            initial_delay_ms: Some(initial_delay_ms),
            max_delay_ms: Some(max_delay_ms),
            ..Default::default()
        }
        .freeze()
        .expect("a valid policy")
    }

    fn attempt(n: u128) -> AttemptId {
        AttemptId(Uuid::from_u128(n))
    }

    #[test]
    fn the_base_doubles_up_to_its_cap() {
        let policy = policy(500, 2_000);
        let bases: Vec<u32> = (1..=5).map(|n| base_ms(&policy, n)).collect();
        assert_eq!(bases, [500, 1_000, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn the_doubling_is_exact_below_an_odd_cap() {
        let policy = policy(1, 7);
        assert_eq!([1, 2, 3, 4, 5].map(|n| base_ms(&policy, n)), [1, 2, 4, 7, 7]);
        let policy = self::policy(3, 7);
        assert_eq!([1, 2, 3].map(|n| base_ms(&policy, n)), [3, 6, 7]);
    }

    #[test]
    fn whatever_the_policy_nothing_overflows_and_the_cap_holds() {
        let wide = Policy { max_delay_ms: u32::MAX, ..policy(1, 1) };
        assert_eq!([32, 33, 34].map(|n| base_ms(&wide, n)), [1 << 31, u32::MAX, u32::MAX]);
        let below = Policy { max_delay_ms: 500, ..policy(1_000, 1_000) };
        assert_eq!([1, 2].map(|n| base_ms(&below, n)), [500, 500]);
    }

    #[test]
    fn a_thousand_doublings_do_not_overflow() {
        let policy = policy(86_400_000, 604_800_000);
        assert_eq!(base_ms(&policy, 1_000), 604_800_000);
        let tiny = self::policy(1, 604_800_000);
        assert_eq!(
            (base_ms(&tiny, 30), base_ms(&tiny, 31), base_ms(&tiny, 2_000)),
            (1 << 29, 604_800_000, 604_800_000)
        );
    }

    #[test]
    fn one_millisecond_stays_one_millisecond() {
        let policy = policy(1, 1);
        assert!((0..100).all(|n| delay_ms(&policy, 1, attempt(n)) == 1));
    }

    #[test]
    fn delays_of_256_attempts_spread_over_the_upper_half() {
        let policy = policy(1_000, 1_000);
        let delays: std::collections::BTreeSet<u32> =
            (0..256).map(|n| delay_ms(&policy, 1, attempt(n))).collect();
        assert!(delays.iter().all(|d| (500..=1_000).contains(d)));
        assert!(delays.len() > 180, "{} distinct delays", delays.len());
        assert!(delays.first() < Some(&520) && delays.last() > Some(&980), "{delays:?}");
    }

    #[test]
    fn the_same_attempt_always_waits_the_same() {
        // A pinned vector: SHA-256 of the sixteen id bytes, first eight bytes, modulo 501.
        let policy = policy(1_000, 1_000);
        let id = AttemptId(Uuid::from_u128(0x0123_4567_89ab_7def_8123_4567_89ab_cdef));
        assert_eq!(delay_ms(&policy, 1, id), delay_ms(&policy, 1, id));
        assert_eq!(delay_ms(&policy, 1, id), PINNED_DELAY_MS);
    }

    const PINNED_DELAY_MS: u32 = 638;

    proptest! {
        #[test]
        fn every_delay_lies_between_half_and_all_of_its_base(
            initial in 1_u32..=86_400_000, factor in 1_u32..=7, epoch in 1_u32..=2_000, id: u128,
        ) {
            let policy = policy(initial, (initial.saturating_mul(factor)).min(604_800_000));
            let base = base_ms(&policy, epoch);
            let delay = delay_ms(&policy, epoch, attempt(id));
            prop_assert!(base >= policy.initial_delay_ms && base <= policy.max_delay_ms);
            prop_assert!(delay >= base.div_ceil(2) && delay <= base);
        }
    }
}

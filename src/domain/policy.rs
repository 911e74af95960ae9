//! The policy that a task is accepted with, frozen from then on (S4).

use super::rejection::FieldProblem;

/// What the handler guarantees about being run more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoverySafety {
    /// After an execution with unknown effect nothing is retried automatically.
    ReconcileOnly,
    /// The handler is idempotent across processes, attempts, concurrency and late execution.
    Idempotent,
}

/// How often, how fast and how long a task is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many attempts may be claimed.
    pub max_attempts: u32,
    /// Backoff after the first attempt, in milliseconds.
    pub initial_delay_ms: u32,
    /// Where the doubling of the backoff stops, in milliseconds.
    pub max_delay_ms: u32,
    /// How long one attempt may run, in milliseconds from its granted start.
    pub attempt_timeout_ms: u32,
    /// Whether an execution with unknown effect may be repeated.
    pub recovery_safety: RecoverySafety,
    /// Time from acceptance to the deadline, in milliseconds.
    pub task_timeout_ms: u32,
}

/// A policy as a producer states it: what is absent gets its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyRequest {
    /// 1 to 1,000; default 1.
    pub max_attempts: Option<u32>,
    /// 1 to 86,400,000; default 1,000.
    pub initial_delay_ms: Option<u32>,
    /// The initial delay to 604,800,000; default the larger of 60,000 and the initial delay.
    pub max_delay_ms: Option<u32>,
    /// 100 to 86,400,000; default 300,000.
    pub attempt_timeout_ms: Option<u32>,
    /// Default RECONCILE_ONLY.
    pub recovery_safety: Option<RecoverySafety>,
    /// 100 to 2,592,000,000; default 86,400,000.
    pub task_timeout_ms: Option<u32>,
}

/// Attempts when the producer does not say.
pub const MAX_ATTEMPTS_DEFAULT: u32 = 1;
/// Backoff after the first attempt when the producer does not say, in milliseconds.
pub const INITIAL_DELAY_MS_DEFAULT: u32 = 1_000;
/// The cap of the backoff when the producer does not say (never below the initial delay), in milliseconds.
pub const MAX_DELAY_MS_DEFAULT: u32 = 60_000;
/// One attempt's time when the producer does not say, in milliseconds.
pub const ATTEMPT_TIMEOUT_MS_DEFAULT: u32 = 300_000;
/// The task's time when the producer does not say, in milliseconds.
pub const TASK_TIMEOUT_MS_DEFAULT: u32 = 86_400_000;

const DAY_MS: u32 = 86_400_000;

impl PolicyRequest {
    /// Freezes the policy, or names every field that is out of range. An explicit 0 is out of range, never
    /// "unlimited".
    pub fn freeze(&self) -> Result<Policy, Vec<FieldProblem>> {
        let mut problems = Vec::new();
        let mut range = |field: &'static str, value: Option<u32>, default: u32, min: u32, max: u32| {
            let value = value.unwrap_or(default);
            if !(min..=max).contains(&value) {
                problems.push(FieldProblem::new(field, format!("is {value}; must be {min} to {max}")));
            }
            value
        };
        let max_attempts = range("retry.max_attempts", self.max_attempts, MAX_ATTEMPTS_DEFAULT, 1, 1_000);
        let initial_delay_ms =
            range("retry.initial_delay_ms", self.initial_delay_ms, INITIAL_DELAY_MS_DEFAULT, 1, DAY_MS);
        let max_delay_default = MAX_DELAY_MS_DEFAULT.max(initial_delay_ms);
        let max_delay_ms = range(
            "retry.max_delay_ms",
            self.max_delay_ms,
            max_delay_default.min(7 * DAY_MS),
            initial_delay_ms.clamp(1, DAY_MS),
            7 * DAY_MS,
        );
        let attempt_timeout_ms = range(
            "retry.attempt_timeout_ms",
            self.attempt_timeout_ms,
            ATTEMPT_TIMEOUT_MS_DEFAULT,
            100,
            DAY_MS,
        );
        let task_timeout_ms =
            range("task_timeout_ms", self.task_timeout_ms, TASK_TIMEOUT_MS_DEFAULT, 100, 30 * DAY_MS);
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Policy {
            max_attempts,
            initial_delay_ms,
            max_delay_ms,
            attempt_timeout_ms,
            recovery_safety: self.recovery_safety.unwrap_or(RecoverySafety::ReconcileOnly),
            task_timeout_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(request: PolicyRequest) -> Vec<&'static str> {
        request.freeze().map_or_else(|p| p.iter().map(|p| p.field).collect(), |_| vec![])
    }

    #[test]
    fn absent_fields_get_their_defaults() {
        let policy = PolicyRequest::default().freeze().expect("all defaults are in range");
        assert_eq!(
            policy,
            Policy {
                max_attempts: 1,
                initial_delay_ms: 1_000,
                max_delay_ms: 60_000,
                attempt_timeout_ms: 300_000,
                recovery_safety: RecoverySafety::ReconcileOnly,
                task_timeout_ms: 86_400_000,
            }
        );
        let slow = PolicyRequest { initial_delay_ms: Some(70_000), ..Default::default() };
        assert_eq!(slow.freeze().map(|p| p.max_delay_ms), Ok(70_000));
    }

    #[test]
    fn an_explicit_zero_is_out_of_range_and_all_bad_fields_are_named() {
        let zeros = PolicyRequest {
            max_attempts: Some(0),
            initial_delay_ms: Some(0),
            max_delay_ms: Some(0),
            attempt_timeout_ms: Some(0),
            recovery_safety: None,
            task_timeout_ms: Some(0),
        };
        assert_eq!(
            fields(zeros),
            [
                "retry.max_attempts",
                "retry.initial_delay_ms",
                "retry.max_delay_ms",
                "retry.attempt_timeout_ms",
                "task_timeout_ms"
            ]
        );
    }

    #[test]
    fn limits_are_inclusive() {
        let at = |max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, task_timeout_ms| {
            PolicyRequest {
                max_attempts: Some(max_attempts),
                initial_delay_ms: Some(initial_delay_ms),
                max_delay_ms: Some(max_delay_ms),
                attempt_timeout_ms: Some(attempt_timeout_ms),
                recovery_safety: None,
                task_timeout_ms: Some(task_timeout_ms),
            }
        };
        assert!(fields(at(1, 1, 1, 100, 100)).is_empty());
        assert!(fields(at(1_000, 86_400_000, 604_800_000, 86_400_000, 2_592_000_000)).is_empty());
        assert_eq!(fields(at(1_001, 86_400_001, 604_800_001, 86_400_001, 2_592_000_001)).len(), 5);
        assert_eq!(fields(at(1, 2, 1, 100, 100)), ["retry.max_delay_ms"]);
        assert_eq!(fields(at(1, 1, 1, 99, 99)), ["retry.attempt_timeout_ms", "task_timeout_ms"]);
    }

    #[test]
    fn a_bad_initial_delay_is_named_alone_and_not_the_default_that_follows_it() {
        for bad in [0, 86_400_001, 604_800_001, u32::MAX] {
            let request = PolicyRequest { initial_delay_ms: Some(bad), ..Default::default() };
            assert_eq!(fields(request), ["retry.initial_delay_ms"], "{bad}");
        }
    }
}

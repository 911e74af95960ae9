//! Renewing the lease of a running attempt.

use crate::domain::{
    attempt::Lease,
    ids::AttemptRef,
    task::{State, Task},
    time::Moment,
};

/// The task with a renewed lease, or nothing if there is nothing to renew: an unstarted lease is never renewed, an
/// expired one neither, reclaimed or not (S11). A renewal is no change: revision and events stay as they are (S3).
pub fn renew(task: &Task, attempt: AttemptRef, lease_ms: u32, now: Moment) -> Option<Task> {
    let State::Running { started_at, .. } = task.state else {
        return None;
    };
    let lease = task.lease_of(attempt).filter(|l| now < l.lease_until)?;
    let lease_until = now.plus_ms(lease_ms).min(lease.cap_at).max(lease.lease_until);
    let lease = Lease { lease_until, ..lease.clone() };
    Some(Task { state: State::Running { lease, started_at }, ..task.clone() })
}

//! Who waits for a task to be settled: told by the commits of this node, and by one shared look at what other nodes did.
//!
//! A waiter is registered before its caller looks at the task. So either the look finds the task settled, or the commit
//! that settles it finds the waiter.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use crate::domain::ids::TaskId;

use super::Engine;

/// How often all tasks that are waited for are looked at. Other nodes' commits are promised to be seen within 300 ms.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// All waiters of the node.
#[derive(Default)]
pub(super) struct Waiters {
    /// The bell of each task that is waited for, and how many wait.
    board: Mutex<HashMap<TaskId, (Arc<Bell>, usize)>>,
    /// Somebody waits.
    began: Notify,
}

/// Rings for all who wait for one task.
#[derive(Default)]
struct Bell {
    rung: Notify,
}

/// A place among those who wait for a task. Dropping it costs and keeps nothing.
pub struct Waiter {
    waiters: Arc<Waiters>,
    task_id: TaskId,
    bell: Arc<Bell>,
}

impl Waiters {
    pub(super) fn register(self: &Arc<Self>, task_id: TaskId) -> Waiter {
        let mut board = self.lock();
        let (bell, count) = board.entry(task_id).or_default();
        *count += 1;
        let bell = Arc::clone(bell);
        drop(board);
        self.began.notify_one();
        Waiter { waiters: Arc::clone(self), task_id, bell }
    }

    /// Tells those who wait for these tasks to look.
    pub(super) fn settled(&self, tasks: &[TaskId]) {
        if tasks.is_empty() {
            return;
        }
        let board = self.lock();
        for (bell, _) in tasks.iter().filter_map(|id| board.get(id)) {
            bell.rung.notify_waiters();
        }
    }

    fn ids(&self) -> Vec<TaskId> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, (Arc<Bell>, usize)>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Resolves when the task may be settled. Take it before looking: from then on no bell is missed.
    pub fn rung(&self) -> impl Future<Output = ()> + Send + '_ {
        // `notify_waiters` reaches a future from its making on, polled or not.
        self.bell.rung.notified()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut board = self.waiters.lock();
        if let Some((_, count)) = board.get_mut(&self.task_id) {
            *count -= 1;
            if *count == 0 {
                board.remove(&self.task_id);
            }
        }
    }
}

/// Looks at what other nodes did, while anybody waits.
pub(super) async fn run(engine: Engine) {
    let waiters = &engine.inner.waiters;
    loop {
        let ids = waiters.ids();
        let next = async {
            if ids.is_empty() {
                waiters.began.notified().await;
            }
            sleep(LOOK_INTERVAL).await;
        };
        tokio::select! {
            () = engine.inner.stop.cancelled() => break,
            () = next => {}
        }
        let ids = waiters.ids();
        if ids.is_empty() {
            continue;
        }
        match engine.inner.database.settled(&ids).await {
            Ok(settled) => waiters.settled(&settled),
            Err(fault) => tracing::debug!(%fault, "tasks that are waited for not looked at"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;
    use uuid::Uuid;

    use super::*;

    const A: TaskId = TaskId(Uuid::from_u128(1));
    const B: TaskId = TaskId(Uuid::from_u128(2));

    #[tokio::test]
    async fn a_bell_between_the_look_and_the_wait_is_heard_by_all_who_wait_for_that_task() {
        let waiters = Arc::new(Waiters::default());
        let (one, two, other) = (waiters.register(A), waiters.register(A), waiters.register(B));
        let (first, second, third) = (one.rung(), two.rung(), other.rung());
        waiters.settled(&[A]);
        let soon = Duration::from_millis(50);
        assert!(timeout(soon, first).await.is_ok() && timeout(soon, second).await.is_ok());
        assert!(timeout(soon, third).await.is_err());
    }

    #[test]
    fn who_leaves_leaves_nothing() {
        let waiters = Arc::new(Waiters::default());
        let (one, two) = (waiters.register(A), waiters.register(A));
        drop(one);
        assert_eq!(waiters.ids(), [A]);
        drop(two);
        assert_eq!(waiters.ids(), []);
        waiters.settled(&[A]);
    }
}

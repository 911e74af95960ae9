//! WaitTask.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::Status;

use crate::{
    domain::{ids::TaskId, rejection::Rejection},
    proto::{self, TaskState, TaskView},
};

use super::{super::status::status, Fields, Tasks, read_view};

/// How long a wait lasts when the caller does not say.
const WAIT_MS_DEFAULT: u32 = 30_000;
/// The longest wait.
const WAIT_MS_MAX: u32 = 60_000;

impl Tasks {
    /// Returns the task once it is settled, or as it is when the wait, or the server, ends.
    pub(super) async fn wait(
        &self,
        task_id: TaskId,
        wait: Duration,
        view: TaskView,
    ) -> Result<proto::Task, Status> {
        let deadline = Instant::now() + wait;
        let waiter = self.engine.waiter(task_id);
        let mut over = wait.is_zero();
        loop {
            // Before the look, so that no commit falls between the two.
            let rung = waiter.rung();
            let Some(task) = self.read(task_id, view).await? else {
                return Err(status(&Rejection::TaskNotFound(task_id)));
            };
            if over || is_settled(task.state()) {
                return Ok(task);
            }
            tokio::select! {
                () = rung => {}
                () = sleep_until(deadline) => over = true,
                () = self.shutdown.cancelled() => over = true,
            }
        }
    }
}

const fn is_settled(state: TaskState) -> bool {
    match state {
        TaskState::Succeeded | TaskState::Failed | TaskState::Canceled | TaskState::NeedsReview => true,
        TaskState::Unspecified | TaskState::Waiting | TaskState::Leased | TaskState::Running => false,
    }
}

/// Which task, how long, and how much of it to show.
pub(super) fn read(request: &proto::WaitTaskRequest) -> Result<(TaskId, Duration, TaskView), Rejection> {
    let mut fields = Fields::default();
    let id = fields.id("task_id", &request.task_id).map(TaskId);
    let wait_ms = request.wait_ms.unwrap_or(WAIT_MS_DEFAULT);
    if wait_ms > WAIT_MS_MAX {
        fields.bad("wait_ms", format!("is {wait_ms}; must be 0 to {WAIT_MS_MAX}"));
    }
    let view = read_view(&mut fields, request.view);
    let (id, view) = fields.finish(id.zip(view))?;
    Ok((id, Duration::from_millis(wait_ms.into()), view))
}

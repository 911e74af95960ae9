//! What operators do to tasks, and the trail that everybody leaves.

use uuid::Uuid;

use super::{
    client::{Client, tasks},
    error::Error,
};
use crate::proto::{
    CancelTaskRequest, CancelTaskResponse, ListTaskEventsRequest, ListTaskEventsResponse, ListTasksRequest,
    ListTasksResponse, OperatorReceipt, ResolveTaskRequest, ResolveTaskResponse, Task, TaskEvent,
};

const EVENTS_PAGE_SIZE: i32 = 1_000;

/// What a cancel or a resolution did.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
/// let first = client.cancel(&submitted.task.task_id, "not wanted").await?;
/// assert!(first.receipt.changed && first.task.completed_at.is_some());
/// // It has ended: there is nothing left to cancel.
/// assert!(!client.cancel(&submitted.task.task_id, "not wanted").await?.receipt.changed);
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Operated {
    /// As of its commit.
    pub receipt: OperatorReceipt,
    /// The task as of the answer, without payload and result.
    pub task: Task,
}

impl Client {
    /// Records that the task is not wanted any more; every later attempt is blocked. `reason` is for people and for
    /// the worker, at most 1,024 characters, and may be empty.
    ///
    /// A task that has ended stays as it is: the receipt's `changed` is false. Reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use orbit::proto::TaskState;
    ///
    /// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
    /// let canceled = client.cancel(&submitted.task.task_id, "the customer withdrew").await?;
    /// assert_eq!(canceled.task.state(), TaskState::Canceled);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(&self, task_id: &str, reason: &str) -> Result<Operated, Error> {
        let request = CancelTaskRequest {
            task_id: task_id.to_owned(),
            reason: reason.to_owned(),
            request_id: Uuid::new_v4().to_string(),
        };
        let CancelTaskResponse { receipt, task } = self
            .caller()
            .call("CancelTask", &request, |transport, request| async move {
                tasks(transport).cancel_task(request).await
            })
            .await?;
        operated("CancelTask", receipt, task)
    }

    /// Takes a task out of review, by a person who has looked. An empty `request_id` is filled in; give one to be able
    /// to send the same resolution again yourself.
    ///
    /// Reasons `TASK_NOT_FOUND`, `ILLEGAL_STATE`, `REVISION_MISMATCH`, `CANCEL_REQUESTED`, `IDEMPOTENCY_CONFLICT`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// use orbit::proto::{ResolveCanceled, ResolveTaskRequest, resolve_task_request::Outcome};
    ///
    /// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
    /// let request = ResolveTaskRequest {
    ///     task_id: submitted.task.task_id,
    ///     expected_revision: submitted.task.revision,
    ///     effect_verified: true,
    ///     reason: "found in the books".to_owned(),
    ///     outcome: Some(Outcome::Canceled(ResolveCanceled {})),
    ///     ..ResolveTaskRequest::default()
    /// };
    /// // It waits for a worker, not for a person.
    /// assert_eq!(client.resolve(request).await.unwrap_err().reason(), Some("ILLEGAL_STATE"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resolve(&self, mut request: ResolveTaskRequest) -> Result<Operated, Error> {
        if request.request_id.is_empty() {
            request.request_id = Uuid::new_v4().to_string();
        }
        let ResolveTaskResponse { receipt, task } = self
            .caller()
            .call("ResolveTask", &request, |transport, request| async move {
                tasks(transport).resolve_task(request).await
            })
            .await?;
        operated("ResolveTask", receipt, task)
    }

    /// One page of tasks, newest first, without payloads and results. A page may be short, or empty, before the end: go
    /// on with its `next_page_token`, and the same filters, until that is empty.
    pub async fn list_page(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        self.caller()
            .call("ListTasks", &request, |transport, request| async move {
                tasks(transport).list_tasks(request).await
            })
            .await
    }

    /// Every change of the task, oldest first, with the evidence between them. Reason `TASK_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let submitted = client.submit("default", "text.normalize", "v1").send().await?;
    /// let events = client.events(&submitted.task.task_id).await?;
    /// assert_eq!(events[0].r#type, "task.accepted");
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn events(&self, task_id: &str) -> Result<Vec<TaskEvent>, Error> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListTaskEventsRequest {
                task_id: task_id.to_owned(),
                page_size: EVENTS_PAGE_SIZE,
                page_token,
            };
            let ListTaskEventsResponse { events, next_page_token } = self
                .caller()
                .call("ListTaskEvents", &request, |transport, request| async move {
                    tasks(transport).list_task_events(request).await
                })
                .await?;
            all.extend(events);
            if next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = next_page_token;
        }
    }
}

fn operated(rpc: &str, receipt: Option<OperatorReceipt>, task: Option<Task>) -> Result<Operated, Error> {
    match (receipt, task) {
        (Some(receipt), Some(task)) => Ok(Operated { receipt, task }),
        _ => Err(Error::protocol(format!("{rpc} was answered without a receipt or a task"))),
    }
}

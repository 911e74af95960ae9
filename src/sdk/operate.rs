//! What people do to tasks: look at what happened, cancel, resolve.

use uuid::Uuid;

use super::{
    client::{Client, tasks},
    error::Error,
};
use crate::proto::{
    CancelTaskRequest, CancelTaskResponse, ListTaskEventsRequest, ResolveTaskRequest, ResolveTaskResponse,
    TaskEvent,
};

const EVENTS_PAGE_SIZE: i32 = 1_000;

impl Client {
    /// Every change of the task, oldest first, and the evidence recorded between them. Reason `TASK_NOT_FOUND`.
    pub async fn events(&self, task_id: &str) -> Result<Vec<TaskEvent>, Error> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = ListTaskEventsRequest {
                task_id: task_id.to_owned(),
                page_size: EVENTS_PAGE_SIZE,
                page_token,
            };
            let page = self
                .caller()
                .call("ListTaskEvents", &request, |transport, request| async move {
                    tasks(transport).list_task_events(request).await
                })
                .await?;
            all.extend(page.events);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
    }

    /// Records durably that the task is not wanted any more. The answer says whether that changed anything; a running
    /// attempt is told, and its success still completes the task. Reason `TASK_NOT_FOUND`.
    ///
    /// A call that is sent again keeps its request id, so it is recorded once.
    pub async fn cancel(&self, task_id: &str, reason: &str) -> Result<CancelTaskResponse, Error> {
        let request = CancelTaskRequest {
            task_id: task_id.to_owned(),
            reason: reason.to_owned(),
            request_id: Uuid::new_v4().to_string(),
        };
        self.caller()
            .call("CancelTask", &request, |transport, request| async move {
                tasks(transport).cancel_task(request).await
            })
            .await
    }

    /// Resolves a task in `NEEDS_REVIEW`; see `ResolveTaskRequest` for what is required. An empty request id is filled in.
    /// Reasons `TASK_NOT_FOUND`, `ILLEGAL_STATE`, `REVISION_MISMATCH`, `CANCEL_REQUESTED`.
    pub async fn resolve(&self, mut request: ResolveTaskRequest) -> Result<ResolveTaskResponse, Error> {
        if request.request_id.is_empty() {
            request.request_id = Uuid::new_v4().to_string();
        }
        self.caller()
            .call("ResolveTask", &request, |transport, request| async move {
                tasks(transport).resolve_task(request).await
            })
            .await
    }
}

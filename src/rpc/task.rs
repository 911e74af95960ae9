//! TaskService: submit, look, wait, read the history.

mod batch;
mod list;
mod wait;

use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    domain::{ids::TaskId, names, policy::TASK_TIMEOUT_MS_DEFAULT, rejection::Rejection},
    engine::{self, Engine, Failure, Submitted},
    proto::{self, TaskView, task_service_server::TaskService},
    store::reads::TaskRecord,
};

use super::{
    auth, convert,
    convert::Fields,
    page::{self, AttemptPlace},
    status::status,
};

/// The most bytes of attempts in one answer, so that clients with the usual limit of 4 MiB can read it.
const PAGE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// What each attempt of a page costs beside itself: its field's number and its length, in bytes.
const ITEM_OVERHEAD_BYTES: usize = 8;

/// The service.
pub(super) struct Tasks {
    engine: Engine,
    /// Ends what waits.
    shutdown: CancellationToken,
}

impl Tasks {
    pub(super) const fn new(engine: Engine, shutdown: CancellationToken) -> Self {
        Self { engine, shutdown }
    }

    async fn read(&self, task_id: TaskId, view: TaskView) -> Result<Option<proto::Task>, Status> {
        let full = view == TaskView::Full;
        let record = self.engine.database().task(task_id, full).await;
        let task = record.map_err(|f| status(&Failure::from(f)))?.map(convert::task);
        // The result may have been read along; only the view says what is shown.
        Ok(task.map(|task| if full { task } else { basic(task) }))
    }

    /// A task that was there a moment ago. If its retention ended meanwhile, it is as if it had ended before.
    async fn present(&self, task_id: TaskId) -> Result<proto::Task, Status> {
        let task = self.read(task_id, TaskView::Basic).await?;
        task.ok_or_else(|| status(&Rejection::TaskNotFound(task_id)))
    }
}

#[tonic::async_trait]
impl TaskService for Tasks {
    async fn submit_task(
        &self,
        request: Request<proto::SubmitTaskRequest>,
    ) -> Result<Response<proto::SubmitTaskResponse>, Status> {
        let principal = auth::principal(&request);
        let submission = convert::submission(request.into_inner(), principal).map_err(|r| status(&r))?;
        let answer = match self.engine.submit(submission).await.map_err(|f| status(&f))? {
            Submitted::Accepted(record) => submitted_as(Some(*record), false),
            Submitted::Replayed(task_id) => {
                let record = self.engine.database().task(task_id, false).await;
                submitted_as(record.map_err(|f| status(&Failure::from(f)))?, true)
            }
        };
        answer.map(Response::new)
    }

    async fn batch_submit_tasks(
        &self,
        request: Request<proto::BatchSubmitTasksRequest>,
    ) -> Result<Response<proto::BatchSubmitTasksResponse>, Status> {
        let principal = auth::principal(&request);
        let tasks = batch::tasks(request.into_inner()).map_err(|r| status(&r))?;
        let read = tasks.into_iter().map(|task| convert::submission(task, principal.clone()));
        let (submissions, refused) = batch::split(read);
        let submitted = self.engine.submit_all(submissions).await;
        // All together: a batch that is sent again may consist of nothing else.
        let replayed: Vec<TaskId> = submitted.iter().flatten().filter_map(Submitted::replay).collect();
        let known = self.engine.database().known_tasks(&replayed).await;
        let known = known.map_err(|f| status(&Failure::from(f)))?;
        let submitted = submitted.into_iter().map(|answer| match answer.map_err(|f| status(&f))? {
            Submitted::Accepted(record) => submitted_as(Some(*record), false),
            Submitted::Replayed(task_id) => submitted_as(known.get(&task_id).cloned(), true),
        });
        let answers = batch::join(submitted, refused);
        Ok(Response::new(batch::response(answers)))
    }

    async fn get_task(
        &self,
        request: Request<proto::GetTaskRequest>,
    ) -> Result<Response<proto::GetTaskResponse>, Status> {
        let (task_id, view) = get_task(&request.into_inner()).map_err(|r| status(&r))?;
        match self.read(task_id, view).await? {
            Some(task) => Ok(Response::new(proto::GetTaskResponse { task: Some(task) })),
            None => Err(status(&Rejection::TaskNotFound(task_id))),
        }
    }

    async fn lookup_task(
        &self,
        request: Request<proto::LookupTaskRequest>,
    ) -> Result<Response<proto::LookupTaskResponse>, Status> {
        let principal = auth::principal(&request);
        let key = request.into_inner().idempotency_key;
        let mut fields = Fields::default();
        fields.check("idempotency_key", names::check_key(&key));
        fields.finish(Some(())).map_err(|r| status(&r))?;
        let found = self.engine.database().task_of_key(&principal, &key).await;
        let task = match found.map_err(|f| status(&Failure::from(f)))? {
            Some(task_id) => self.read(task_id, TaskView::Basic).await?,
            None => None,
        };
        match task {
            Some(task) => Ok(Response::new(proto::LookupTaskResponse { task: Some(task) })),
            None => Err(status(&Rejection::KeyNotFound(key))),
        }
    }

    async fn list_tasks(
        &self,
        request: Request<proto::ListTasksRequest>,
    ) -> Result<Response<proto::ListTasksResponse>, Status> {
        self.list(request.into_inner()).await.map(Response::new)
    }

    async fn wait_task(
        &self,
        request: Request<proto::WaitTaskRequest>,
    ) -> Result<Response<proto::WaitTaskResponse>, Status> {
        let (task_id, wait, view) = wait::read(&request.into_inner()).map_err(|r| status(&r))?;
        let task = self.wait(task_id, wait, view).await?;
        Ok(Response::new(proto::WaitTaskResponse { task: Some(task) }))
    }

    async fn list_attempts(
        &self,
        request: Request<proto::ListAttemptsRequest>,
    ) -> Result<Response<proto::ListAttemptsResponse>, Status> {
        let (task_id, size, place) = list_attempts(&request.into_inner()).map_err(|r| status(&r))?;
        let page = self
            .engine
            .database()
            .attempts(task_id, place.after, size, PAGE_BYTES_MAX)
            .await
            .map_err(|f| status(&Failure::from(f)))?
            .ok_or_else(|| status(&Rejection::TaskNotFound(task_id)))?;
        let attempts = page.attempts.into_iter().map(convert::attempt).collect();
        let (attempts, cut) = cut(attempts, place.evidence, PAGE_BYTES_MAX);
        let next = cut.or_else(|| page.next.map(|after| AttemptPlace { after, evidence: 0 }));
        Ok(Response::new(proto::ListAttemptsResponse {
            attempts,
            next_page_token: next.map_or_else(String::new, |place| page::after_attempt(task_id, place)),
        }))
    }

    async fn list_task_events(
        &self,
        request: Request<proto::ListTaskEventsRequest>,
    ) -> Result<Response<proto::ListTaskEventsResponse>, Status> {
        let (task_id, size, after) = list_events(&request.into_inner()).map_err(|r| status(&r))?;
        let page = self.engine.database().events(task_id, after, size).await;
        let page = page
            .map_err(|f| status(&Failure::from(f)))?
            .ok_or_else(|| status(&Rejection::TaskNotFound(task_id)))?;
        let next = page.next.map_or_else(String::new, |place| page::after_event(task_id, place));
        Ok(Response::new(proto::ListTaskEventsResponse {
            events: page.events.into_iter().map(convert::event).collect(),
            next_page_token: next,
        }))
    }

    async fn cancel_task(
        &self,
        request: Request<proto::CancelTaskRequest>,
    ) -> Result<Response<proto::CancelTaskResponse>, Status> {
        let principal = auth::principal(&request);
        let request = request.into_inner();
        let (task_id, request_id) = convert::cancel(&request).map_err(|r| status(&r))?;
        let by = engine::Request { principal, request_id };
        let receipt = self.engine.cancel_task(task_id, request.reason, by).await;
        let receipt = receipt.map_err(|f| status(&f))?;
        Ok(Response::new(proto::CancelTaskResponse {
            receipt: Some(convert::operator_receipt(&receipt)),
            task: Some(self.present(task_id).await?),
        }))
    }

    async fn resolve_task(
        &self,
        request: Request<proto::ResolveTaskRequest>,
    ) -> Result<Response<proto::ResolveTaskResponse>, Status> {
        let principal = auth::principal(&request);
        let request = request.into_inner();
        // A retry's new deadline defaults to the task's own time, which is frozen.
        let task_timeout_ms = match uuid::Uuid::try_parse(&request.task_id) {
            Ok(id) => self.read(TaskId(id), TaskView::Basic).await?.map(|t| t.task_timeout_ms),
            Err(_) => None,
        };
        let bytes_max = self.engine.text_bytes_max();
        let read = convert::resolve(request, bytes_max, task_timeout_ms.unwrap_or(TASK_TIMEOUT_MS_DEFAULT));
        let (task_id, request_id, resolution) = read.map_err(|r| status(&r))?;
        let by = engine::Request { principal, request_id };
        let receipt = self.engine.resolve_task(task_id, resolution, by).await.map_err(|f| status(&f))?;
        Ok(Response::new(proto::ResolveTaskResponse {
            receipt: Some(convert::operator_receipt(&receipt)),
            task: Some(self.present(task_id).await?),
        }))
    }
}

fn submitted_as(record: Option<TaskRecord>, replayed: bool) -> Result<proto::SubmitTaskResponse, Status> {
    let task = record.map(|record| basic(convert::task(record)));
    // Its retention ended just now: only sending again tells what is true.
    let task = task.ok_or_else(|| status(&Failure::OutcomeUnknown))?;
    Ok(proto::SubmitTaskResponse { task: Some(task), replayed })
}

fn list_events(request: &proto::ListTaskEventsRequest) -> Result<(TaskId, u32, (u32, u32)), Rejection> {
    let mut fields = Fields::default();
    let id = fields.id("task_id", &request.task_id).map(TaskId);
    let size = fields.page_size(request.page_size);
    let place = id.and_then(|id| fields.read("page_token", page::event_of(id, &request.page_token)));
    let (id, place) = fields.finish(id.zip(place))?;
    Ok((id, size, place))
}

fn get_task(request: &proto::GetTaskRequest) -> Result<(TaskId, TaskView), Rejection> {
    let mut fields = Fields::default();
    let id = fields.id("task_id", &request.task_id);
    let view = read_view(&mut fields, request.view);
    let (id, view) = fields.finish(id.zip(view))?;
    Ok((TaskId(id), view))
}

fn read_view(fields: &mut Fields, view: i32) -> Option<TaskView> {
    let unknown = |_| format!("is {view}, which this server does not know: BASIC or FULL");
    fields.read("view", TaskView::try_from(view).map_err(unknown))
}

fn list_attempts(request: &proto::ListAttemptsRequest) -> Result<(TaskId, u32, AttemptPlace), Rejection> {
    let mut fields = Fields::default();
    let id = fields.id("task_id", &request.task_id).map(TaskId);
    let size = fields.page_size(request.page_size);
    // Without an id nobody can tell whose token it is.
    let place = id.and_then(|id| fields.read("page_token", page::attempt_of(id, &request.page_token)));
    let (id, place) = fields.finish(id.zip(place))?;
    Ok((id, size, place))
}

fn basic(task: proto::Task) -> proto::Task {
    proto::Task { payload: String::new(), result: String::new(), ..task }
}

/// Cuts a page so that it has at most so many bytes, but shows something. `skipped` pieces of evidence of the first
/// attempt were shown before.
///
/// An attempt that is too large by itself is shown with as much of its evidence as fits, and again on the next page with
/// more.
fn cut(
    attempts: Vec<proto::Attempt>,
    skipped: u32,
    bytes_max: usize,
) -> (Vec<proto::Attempt>, Option<AttemptPlace>) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    let mut skip = usize::try_from(skipped).unwrap_or(usize::MAX);
    for mut attempt in attempts {
        attempt.evidence.drain(..skip.min(attempt.evidence.len()));
        bytes += attempt.encoded_len() + ITEM_OVERHEAD_BYTES;
        if bytes <= bytes_max {
            page.push(attempt);
            skip = 0;
            continue;
        }
        let after = attempt.epoch.saturating_sub(1);
        if !page.is_empty() {
            return (page, Some(AttemptPlace { after, evidence: 0 }));
        }
        let all = attempt.evidence.len();
        while bytes > bytes_max && attempt.evidence.len() > 1 {
            let dropped = attempt.evidence.pop().map_or(0, |e| e.encoded_len());
            bytes = bytes.saturating_sub(dropped);
        }
        let shown = u32::try_from(skip + attempt.evidence.len()).unwrap_or(u32::MAX);
        let rest = attempt.evidence.len() < all;
        page.push(attempt);
        if rest {
            let evidence = shown;
            return (page, Some(AttemptPlace { after, evidence }));
        }
        skip = 0;
    }
    (page, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(epoch: u32, result_bytes: usize, evidence_bytes: &[usize]) -> proto::Attempt {
        let evidence = |(i, bytes): (usize, &usize)| proto::Evidence {
            message_id: i.to_string(),
            result: "e".repeat(*bytes),
            ..Default::default()
        };
        proto::Attempt {
            epoch,
            result: "r".repeat(result_bytes),
            evidence: evidence_bytes.iter().enumerate().map(evidence).collect(),
            ..Default::default()
        }
    }

    fn shown(page: &[proto::Attempt]) -> Vec<(u32, Vec<&str>)> {
        let ids = |a: &'_ proto::Attempt| a.evidence.len();
        page.iter()
            .map(|a| {
                let mut names = Vec::with_capacity(ids(a));
                names.extend(a.evidence.iter().map(|e| e.message_id.as_str()));
                (a.epoch, names)
            })
            .collect()
    }

    #[test]
    fn a_page_ends_before_it_is_too_large() {
        let attempts: Vec<_> = (1..=5).map(|epoch| attempt(epoch, 400, &[])).collect();
        let (page, next) = cut(attempts.clone(), 0, 1_000);
        assert_eq!(shown(&page), [(1, vec![]), (2, vec![])]);
        assert_eq!(next, Some(AttemptPlace { after: 2, evidence: 0 }));
        let (page, next) = cut(attempts, 0, 10_000);
        assert_eq!((page.len(), next), (5, None));
    }

    #[test]
    fn an_attempt_that_is_too_large_comes_again_until_all_its_evidence_was_shown() {
        let attempts = || vec![attempt(7, 100, &[400; 5]), attempt(8, 100, &[])];
        let mut skipped = 0;
        let mut pages = Vec::new();
        loop {
            let (page, next) = cut(attempts(), skipped, 1_000);
            assert!(page.iter().map(prost::Message::encoded_len).sum::<usize>() <= 1_000);
            pages.push(
                shown(&page).iter().map(|(epoch, names)| (*epoch, names.join(","))).collect::<Vec<_>>(),
            );
            match next {
                Some(place) if place.after == 6 => skipped = place.evidence,
                other => break assert_eq!(other, None),
            }
        }
        let named = |epoch: u32, names: &str| (epoch, names.to_owned());
        assert_eq!(pages, [vec![named(7, "0,1")], vec![named(7, "2,3")], vec![named(7, "4"), named(8, "")]]);
    }

    #[test]
    fn what_cannot_be_cut_is_shown_whole() {
        let (page, next) = cut(vec![attempt(1, 5_000, &[1]), attempt(2, 1, &[])], 0, 1_000);
        assert_eq!(shown(&page), [(1, vec!["0"])]);
        assert_eq!(next, Some(AttemptPlace { after: 1, evidence: 0 }));
    }

    #[test]
    fn requests_name_all_their_bad_fields() {
        let bad = |r: Result<(), Rejection>| match r {
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            _ => vec![],
        };
        let request = proto::GetTaskRequest { task_id: "x".into(), view: 9 };
        assert_eq!(bad(get_task(&request).map(drop)), ["task_id", "view"]);
        let mut request = proto::ListAttemptsRequest {
            task_id: TaskId(uuid::Uuid::nil()).to_string(),
            page_size: -1,
            page_token: "x".into(),
        };
        assert_eq!(bad(list_attempts(&request).map(drop)), ["page_size", "page_token"]);
        request.task_id.clear();
        assert_eq!(bad(list_attempts(&request).map(drop)), ["task_id", "page_size"]);
    }
}

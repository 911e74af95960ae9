//! QueueService: make, show and change queues.

use tonic::{Request, Response, Status};

use crate::{
    domain::{
        ids::RequestId,
        names,
        queue::{MAX_RUNNING_MAX, Queue, QueueChange},
        rejection::Rejection,
    },
    engine::{self, Engine, Failure},
    proto::{self, queue_service_server::QueueService},
};

use super::{auth, convert, convert::Fields, page, status::status};

/// The service.
pub(super) struct Queues {
    engine: Engine,
}

impl Queues {
    pub(super) const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    async fn change<T>(
        &self,
        request: &Request<T>,
        wanted: Result<Change, Rejection>,
    ) -> Result<proto::Queue, Status> {
        let wanted = wanted.map_err(|r| status(&r))?;
        let by = engine::Request { principal: auth::principal(request), request_id: wanted.request_id };
        let changed =
            self.engine.change_queue(wanted.queue_id, wanted.what, wanted.expected_revision, by).await;
        changed.map(convert::queue).map_err(|f| status(&f))
    }
}

#[tonic::async_trait]
impl QueueService for Queues {
    async fn create_queue(
        &self,
        request: Request<proto::CreateQueueRequest>,
    ) -> Result<Response<proto::CreateQueueResponse>, Status> {
        let request_id = create(request.get_ref()).map_err(|r| status(&r))?;
        let by = engine::Request { principal: auth::principal(&request), request_id };
        let proto::CreateQueueRequest { queue_id, max_running, .. } = request.into_inner();
        let created = self.engine.create_queue(queue_id, max_running, by).await;
        let queue = created.map(convert::queue).map_err(|f| status(&f))?;
        Ok(Response::new(proto::CreateQueueResponse { queue: Some(queue) }))
    }

    async fn get_queue(
        &self,
        request: Request<proto::GetQueueRequest>,
    ) -> Result<Response<proto::GetQueueResponse>, Status> {
        let queue_id = named(request.into_inner().queue_id).map_err(|r| status(&r))?;
        let reads = self.engine.database();
        let Some(queue) = reads.queue(&queue_id).await.map_err(|f| status(&Failure::from(f)))? else {
            return Err(status(&Rejection::QueueNotFound(queue_id)));
        };
        let stats = reads.queue_stats(&queue).await.map_err(|f| status(&Failure::from(f)))?;
        Ok(Response::new(proto::GetQueueResponse {
            queue: Some(convert::queue(queue)),
            stats: Some(convert::queue_stats(&stats)),
            served_here: self.engine.served(&queue_id).into_iter().map(convert::served_handler).collect(),
        }))
    }

    async fn list_queues(
        &self,
        request: Request<proto::ListQueuesRequest>,
    ) -> Result<Response<proto::ListQueuesResponse>, Status> {
        let (size, after) = list(request.get_ref()).map_err(|r| status(&r))?;
        // One more than asked for tells whether another page follows.
        let queues = self.engine.database().queues(&after, size + 1).await;
        let (queues, next_page_token) = page_of(queues.map_err(|f| status(&Failure::from(f)))?, size);
        Ok(Response::new(proto::ListQueuesResponse {
            queues: queues.into_iter().map(convert::queue).collect(),
            next_page_token,
        }))
    }

    async fn update_queue(
        &self,
        request: Request<proto::UpdateQueueRequest>,
    ) -> Result<Response<proto::UpdateQueueResponse>, Status> {
        let queue = self.change(&request, update(request.get_ref())).await?;
        Ok(Response::new(proto::UpdateQueueResponse { queue: Some(queue) }))
    }

    async fn pause_queue(
        &self,
        request: Request<proto::PauseQueueRequest>,
    ) -> Result<Response<proto::PauseQueueResponse>, Status> {
        let proto::PauseQueueRequest { queue_id, request_id } = request.get_ref();
        let wanted = switch(queue_id, request_id, QueueChange::Pause);
        let queue = self.change(&request, wanted).await?;
        Ok(Response::new(proto::PauseQueueResponse { queue: Some(queue) }))
    }

    async fn resume_queue(
        &self,
        request: Request<proto::ResumeQueueRequest>,
    ) -> Result<Response<proto::ResumeQueueResponse>, Status> {
        let proto::ResumeQueueRequest { queue_id, request_id } = request.get_ref();
        let wanted = switch(queue_id, request_id, QueueChange::Resume);
        let queue = self.change(&request, wanted).await?;
        Ok(Response::new(proto::ResumeQueueResponse { queue: Some(queue) }))
    }
}

/// A change that somebody asked for, well formed.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    queue_id: String,
    what: QueueChange,
    expected_revision: Option<u32>,
    request_id: RequestId,
}

fn named(queue_id: String) -> Result<String, Rejection> {
    let mut fields = Fields::default();
    fields.check("queue_id", names::check_queue_id(&queue_id));
    fields.finish(Some(queue_id))
}

fn create(request: &proto::CreateQueueRequest) -> Result<RequestId, Rejection> {
    let mut fields = Fields::default();
    fields.check("queue_id", names::check_queue_id(&request.queue_id));
    check_max_running(&mut fields, request.max_running);
    let request_id = fields.id("request_id", &request.request_id).map(RequestId);
    fields.finish(request_id)
}

fn update(request: &proto::UpdateQueueRequest) -> Result<Change, Rejection> {
    let mut fields = Fields::default();
    fields.check("queue_id", names::check_queue_id(&request.queue_id));
    match request.max_running {
        Some(max_running) => check_max_running(&mut fields, max_running),
        None => fields.bad("max_running", "is required; 0 means unlimited"),
    }
    let request_id = fields.id("request_id", &request.request_id).map(RequestId);
    let (max_running, request_id) = fields.finish(request.max_running.zip(request_id))?;
    Ok(Change {
        queue_id: request.queue_id.clone(),
        what: QueueChange::SetMaxRunning { max_running },
        expected_revision: request.expected_revision,
        request_id,
    })
}

fn switch(queue_id: &str, request_id: &str, what: QueueChange) -> Result<Change, Rejection> {
    let mut fields = Fields::default();
    fields.check("queue_id", names::check_queue_id(queue_id));
    let request_id = fields.id("request_id", request_id).map(RequestId);
    Ok(Change {
        queue_id: queue_id.to_owned(),
        what,
        expected_revision: None,
        request_id: fields.finish(request_id)?,
    })
}

fn list(request: &proto::ListQueuesRequest) -> Result<(u32, String), Rejection> {
    let mut fields = Fields::default();
    let size = fields.page_size(request.page_size);
    let after = fields.read("page_token", page::queue_of(&request.page_token));
    fields.finish(after.map(|after| (size, after)))
}

fn check_max_running(fields: &mut Fields, max_running: u32) {
    if max_running > MAX_RUNNING_MAX {
        let what = format!("is {max_running}; must be 0 (unlimited) to {MAX_RUNNING_MAX}");
        fields.bad("max_running", what);
    }
}

/// A page of so many queues, and the token of the next if there are more.
fn page_of(mut queues: Vec<Queue>, size: u32) -> (Vec<Queue>, String) {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let more = queues.len() > size;
    queues.truncate(size);
    let next = match queues.last() {
        Some(last) if more => page::after_queue(&last.queue_id),
        _ => String::new(),
    };
    (queues, next)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::{fixtures::NOW, ids::QueueNo};

    fn bad<T>(r: Result<T, Rejection>) -> Vec<&'static str> {
        match r {
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn writes_need_a_name_a_limit_in_range_and_a_request_id() {
        let request = proto::CreateQueueRequest {
            queue_id: "/".into(),
            max_running: 1_000_001,
            request_id: String::new(),
        };
        assert_eq!(bad(create(&request)), ["queue_id", "max_running", "request_id"]);
        let request = proto::UpdateQueueRequest::default();
        assert_eq!(bad(update(&request)), ["queue_id", "max_running", "request_id"]);
        assert_eq!(bad(switch("a", "x", QueueChange::Pause)), ["request_id"]);
        assert_eq!(bad(named("é".into())), ["queue_id"]);
    }

    #[test]
    fn a_good_change_arrives_whole() {
        let request = proto::UpdateQueueRequest {
            queue_id: "a".into(),
            max_running: Some(1_000_000),
            expected_revision: Some(3),
            request_id: Uuid::from_u128(4).to_string(),
        };
        let change = Change {
            queue_id: "a".into(),
            what: QueueChange::SetMaxRunning { max_running: 1_000_000 },
            expected_revision: Some(3),
            request_id: RequestId(Uuid::from_u128(4)),
        };
        assert_eq!(update(&request), Ok(change));
    }

    #[test]
    fn an_empty_token_is_the_only_sign_of_the_end() {
        let queues = |n: i32| {
            let queue = |i: i32| Queue {
                no: QueueNo(i),
                queue_id: format!("q{i}"),
                paused: false,
                max_running: 0,
                revision: 1,
                created_at: NOW,
                updated_at: NOW,
            };
            (0..n).map(queue).collect::<Vec<_>>()
        };
        let (page, next) = page_of(queues(3), 2);
        assert_eq!((page.len(), page::queue_of(&next)), (2, Ok("q1".to_owned())));
        let (page, next) = page_of(queues(2), 2);
        assert_eq!((page.len(), next.as_str()), (2, ""));
        assert_eq!(page_of(vec![], 2).1, "");
    }
}

//! ListTasks.

use prost::Message as _;
use tonic::Status;

use crate::{
    domain::{ids::TaskId, names, rejection::Rejection, task::StateName},
    engine::Failure,
    proto::{self, TaskState},
    store::TaskFilter,
};

use super::{
    super::{convert, page, status::status},
    Fields, ITEM_OVERHEAD_BYTES, PAGE_BYTES_MAX, Tasks,
};

/// A list that is asked for.
#[derive(Debug)]
struct List {
    filter: TaskFilter,
    /// Stands for the filters within page tokens.
    filters: u64,
    size: u32,
    before: Option<TaskId>,
}

impl Tasks {
    pub(super) async fn list(
        &self,
        request: proto::ListTasksRequest,
    ) -> Result<proto::ListTasksResponse, Status> {
        let List { filter, filters, size, before } = read(request).map_err(|r| status(&r))?;
        let page = self.engine.database().tasks(&filter, before, size, PAGE_BYTES_MAX).await;
        let page = page.map_err(|f| status(&Failure::from(f)))?;
        let (mut tasks, mut bytes, mut next) = (Vec::with_capacity(page.tasks.len()), 0, page.next);
        let mut last = None;
        for record in page.tasks {
            let id = record.task.id;
            let task = convert::task(record);
            bytes += task.encoded_len() + ITEM_OVERHEAD_BYTES;
            if bytes > PAGE_BYTES_MAX && last.is_some() {
                next = last;
                break;
            }
            last = Some(id);
            tasks.push(task);
        }
        let next_page_token = next.map_or_else(String::new, |id| page::before_task(filters, id));
        Ok(proto::ListTasksResponse { tasks, next_page_token })
    }
}

fn read(mut request: proto::ListTasksRequest) -> Result<List, Rejection> {
    let mut fields = Fields::default();
    let named = |name: &String| (!name.is_empty()).then(|| name.clone());
    let (queue_id, handler) = (named(&request.queue_id), named(&request.handler));
    fields.check("queue_id", queue_id.as_deref().map_or(Ok(()), names::check_queue_id));
    request.states.sort_unstable();
    request.states.dedup();
    let states = request.states.iter().filter_map(|number| fields.read("states", state(*number))).collect();
    fields.check("handler", handler.as_deref().map_or(Ok(()), names::check_handler));
    let created_after = fields.moment("created_after", request.created_after);
    let created_before = fields.moment("created_before", request.created_before);
    if created_before.is_some() && created_before <= created_after {
        fields.bad("created_before", "must be later than created_after");
    }
    let size = fields.page_size(request.page_size);
    let token = std::mem::take(&mut request.page_token);
    request.page_size = 0;
    let filters = fingerprint(&request.encode_to_vec());
    let before = fields.read("page_token", page::task_of(filters, &token));
    let effect_uncertain = request.effect_uncertain;
    let filter = TaskFilter { queue_id, handler, states, effect_uncertain, created_after, created_before };
    fields.finish(before).map(|before| List { filter, filters, size, before })
}

fn state(number: i32) -> Result<StateName, String> {
    let state = TaskState::try_from(number).ok().and_then(|state| match state {
        TaskState::Unspecified => None,
        TaskState::Waiting => Some(StateName::Waiting),
        TaskState::Leased => Some(StateName::Leased),
        TaskState::Running => Some(StateName::Running),
        TaskState::Succeeded => Some(StateName::Succeeded),
        TaskState::Failed => Some(StateName::Failed),
        TaskState::Canceled => Some(StateName::Canceled),
        TaskState::NeedsReview => Some(StateName::NeedsReview),
    });
    state.ok_or_else(|| format!("has {number}, which is no state of a task that this server knows"))
}

/// FNV-1a: the same on every node, and nobody gains by a collision.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn bad(request: proto::ListTasksRequest) -> Vec<&'static str> {
        match read(request) {
            Err(Rejection::Invalid(problems)) => problems.iter().map(|p| p.field).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_bad_fields_are_named() {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let request = proto::ListTasksRequest {
            queue_id: "a b".to_owned(),
            states: vec![0, 8, 4],
            handler: "!".to_owned(),
            created_after: at(5),
            created_before: at(5),
            page_size: -1,
            page_token: "x".to_owned(),
            ..Default::default()
        };
        assert_eq!(
            bad(request),
            ["queue_id", "states", "states", "handler", "created_before", "page_size", "page_token"]
        );
    }

    #[test]
    fn a_token_goes_with_its_filters_whatever_their_order_and_the_pages_size() {
        let request =
            |states: &[i32]| proto::ListTasksRequest { states: states.to_vec(), ..Default::default() };
        let List { filters, .. } = read(request(&[1, 4])).expect("valid");
        let page_token = page::before_task(filters, TaskId(uuid::Uuid::max()));
        let again = proto::ListTasksRequest { page_token, page_size: 9, ..request(&[4, 1, 4]) };
        assert!(read(again.clone()).expect("valid").before.is_some());
        assert_eq!(bad(proto::ListTasksRequest { states: vec![1], ..again }), ["page_token"]);
    }
}

//! Page tokens: where the next page begins, opaque to callers.
//!
//! A token is the hexadecimal text of its version, the kind of list, and the place. Anybody could make one, and nobody
//! gains by it: a token only says where to go on in what its sender may read anyway.

use std::fmt::Write as _;

use uuid::Uuid;

use crate::domain::{
    ids::{Epoch, TaskId},
    names,
};

const VERSION: u8 = 1;
const QUEUES: u8 = 1;
const ATTEMPTS: u8 = 2;
const EVENTS: u8 = 3;
const TASKS: u8 = 4;

/// What is wrong with a token that is not ours.
const BAD: &str =
    "is not a next_page_token of this call: send it as it was answered, or none for the first page";

/// The list of queues goes on after this name.
pub(crate) fn after_queue(queue_id: &str) -> String {
    encode(QUEUES, queue_id.as_bytes())
}

/// Where a list of queues goes on; an empty name for the first page.
pub(crate) fn queue_of(token: &str) -> Result<String, String> {
    if token.is_empty() {
        return Ok(String::new());
    }
    let bytes = decode(QUEUES, token).ok_or(BAD)?;
    let name = String::from_utf8(bytes).map_err(|_| BAD)?;
    names::check_queue_id(&name).map_err(|_| BAD)?;
    Ok(name)
}

/// Where a list of attempts goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptPlace {
    /// After this epoch.
    pub(crate) after: Epoch,
    /// After so many pieces of evidence of the attempt that follows: it was too large for one page.
    pub(crate) evidence: u32,
}

/// The list of a task's attempts goes on here.
pub(crate) fn after_attempt(task_id: TaskId, place: AttemptPlace) -> String {
    let mut bytes = task_id.0.as_bytes().to_vec();
    bytes.extend(place.after.to_be_bytes());
    bytes.extend(place.evidence.to_be_bytes());
    encode(ATTEMPTS, &bytes)
}

/// Where a list of this task's attempts goes on.
pub(crate) fn attempt_of(task_id: TaskId, token: &str) -> Result<AttemptPlace, String> {
    if token.is_empty() {
        return Ok(AttemptPlace::default());
    }
    let (after, evidence) = read_place(ATTEMPTS, task_id, token)?;
    Ok(AttemptPlace { after, evidence })
}

/// A place in a list that belongs to a task: two numbers.
fn read_place(kind: u8, task_id: TaskId, token: &str) -> Result<(u32, u32), String> {
    let read = |bytes: &[u8]| {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (first, rest) = rest.split_first_chunk::<4>()?;
        let (second, rest) = rest.split_first_chunk::<4>()?;
        let ours = rest.is_empty() && Uuid::from_bytes(*id) == task_id.0;
        ours.then(|| (u32::from_be_bytes(*first), u32::from_be_bytes(*second)))
    };
    decode(kind, token).and_then(|bytes| read(&bytes)).ok_or_else(|| BAD.to_owned())
}

/// The list of a task's events goes on after this revision and ordinal.
pub(crate) fn after_event(task_id: TaskId, (revision, ordinal): (u32, u32)) -> String {
    let mut bytes = task_id.0.as_bytes().to_vec();
    bytes.extend(revision.to_be_bytes());
    bytes.extend(ordinal.to_be_bytes());
    encode(EVENTS, &bytes)
}

/// Where a list of this task's events goes on.
pub(crate) fn event_of(task_id: TaskId, token: &str) -> Result<(u32, u32), String> {
    if token.is_empty() {
        return Ok((0, 0));
    }
    read_place(EVENTS, task_id, token)
}

/// The list of tasks with these filters goes on before this id.
pub(crate) fn before_task(filters: u64, task_id: TaskId) -> String {
    let mut bytes = filters.to_be_bytes().to_vec();
    bytes.extend(task_id.0.as_bytes());
    encode(TASKS, &bytes)
}

/// Before which id the list of tasks with these filters goes on; none for the first page.
pub(crate) fn task_of(filters: u64, token: &str) -> Result<Option<TaskId>, String> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = decode(TASKS, token).ok_or(BAD)?;
    let (theirs, id) = bytes.split_first_chunk::<8>().ok_or(BAD)?;
    let id = Uuid::from_slice(id).map_err(|_| BAD)?;
    if u64::from_be_bytes(*theirs) != filters {
        return Err("belongs to a list with other filters: keep them from page to page".to_owned());
    }
    Ok(Some(TaskId(id)))
}

fn encode(kind: u8, place: &[u8]) -> String {
    let bytes = [VERSION, kind];
    bytes.iter().chain(place).fold(String::with_capacity(4 + 2 * place.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn decode(kind: u8, token: &str) -> Option<Vec<u8>> {
    let digit = |c: &u8| char::from(*c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let bytes: Option<Vec<u8>> = token
        .as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect();
    let bytes = bytes?;
    bytes.strip_prefix(&[VERSION, kind]).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId(Uuid::from_u128(7));

    #[test]
    fn a_token_leads_where_it_came_from() {
        assert_eq!(queue_of(&after_queue("a.b-c")), Ok("a.b-c".to_owned()));
        assert_eq!(queue_of(""), Ok(String::new()));
        let place = AttemptPlace { after: u32::MAX, evidence: 3 };
        assert_eq!(attempt_of(TASK, &after_attempt(TASK, place)), Ok(place));
        assert_eq!(attempt_of(TASK, ""), Ok(AttemptPlace::default()));
        assert_eq!(task_of(9, &before_task(9, TASK)), Ok(Some(TASK)));
        assert_eq!(task_of(9, ""), Ok(None));
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        let queues = after_queue("abc");
        let attempts = after_attempt(TASK, AttemptPlace::default());
        for bad in
            ["x", "0", "0101+f", "01é", "0101", "020161", "0101ff", &queues[..queues.len() - 1], &attempts]
        {
            assert!(queue_of(bad).is_err(), "{bad}");
        }
        let tasks = before_task(9, TASK);
        for bad in ["0104", &tasks[..tasks.len() - 2], &format!("{tasks}00"), &queues] {
            assert!(task_of(9, bad).is_err(), "{bad}");
        }
        assert!(task_of(8, &tasks).is_err_and(|why| why.contains("other filters")));
        let other_task = after_attempt(TaskId(Uuid::from_u128(8)), AttemptPlace::default());
        for bad in ["0102", &attempts[..attempts.len() - 2], &format!("{attempts}00"), &other_task, &queues] {
            assert!(attempt_of(TASK, bad).is_err(), "{bad}");
        }
    }
}

//! The frames that Orbit sends.

use crate::{
    domain::{ids::AttemptId, rejection::Rejection, task::LeaseStatus},
    engine::{Dispatch, Failure, MessageReply},
    proto::{self, WorkerResponse, worker_response::Message},
    rpc::{convert, status::rpc_status},
};

/// The longest id of a bad message that is sent back, in characters. Ids that could be right are far shorter.
const ECHO_CHARS_MAX: usize = 128;

/// How a stream introduces itself to its worker.
pub(super) struct Introduction<'a> {
    pub(super) session_id: String,
    pub(super) node_id: &'a str,
    pub(super) lease_ms: u32,
    pub(super) unknown_queue_ids: Vec<String>,
}

pub(super) fn welcome(
    introduction: Introduction<'_>,
    named: Vec<proto::AttemptRef>,
    held: &[LeaseStatus],
) -> WorkerResponse {
    frame(Message::Welcome(proto::Welcome {
        session_id: introduction.session_id,
        node_id: introduction.node_id.to_owned(),
        lease_ms: introduction.lease_ms,
        renew_every_ms: (introduction.lease_ms / 3).max(1),
        features: vec![convert::SAFE_RETRY.to_owned()],
        held: leases(named, held),
        unknown_queue_ids: introduction.unknown_queue_ids,
    }))
}

pub(super) fn dispatch(dispatch: Dispatch) -> WorkerResponse {
    frame(Message::Dispatch(convert::dispatch(dispatch)))
}

pub(super) fn cancel(attempt_id: AttemptId, reason: &str) -> WorkerResponse {
    let (attempt_id, reason) = (attempt_id.to_string(), reason.to_owned());
    frame(Message::Cancel(proto::CancelAttempt { attempt_id, reason }))
}

pub(super) fn renewed(named: Vec<proto::AttemptRef>, statuses: &[LeaseStatus]) -> WorkerResponse {
    frame(Message::Renewed(proto::Renewed { leases: leases(named, statuses) }))
}

/// The answer to a start or a finish that reached the engine.
pub(super) fn replied(message_id: String, result: Result<MessageReply, Failure>) -> WorkerResponse {
    let mut answer = proto::CommandResult { message_id, ..Default::default() };
    match result {
        Ok(reply) => {
            answer.lease = reply.lease.map(convert::lease_status);
            match reply.result {
                Ok((receipt, replayed)) => {
                    answer.status = Some(tonic_types::Status::default());
                    answer.receipt = Some(convert::receipt(&receipt));
                    answer.replayed = replayed;
                }
                Err(rejection) => answer.status = Some(rpc_status(&rejection)),
            }
        }
        Err(failure) => answer.status = Some(rpc_status(&failure)),
    }
    frame(Message::CommandResult(answer))
}

/// The answer to a message that did not reach the engine; a renewal has no id.
pub(super) fn refused(message_id: &str, rejection: &Rejection) -> WorkerResponse {
    command_result(message_id.chars().take(ECHO_CHARS_MAX).collect(), rpc_status(rejection))
}

/// The answer to a renewal of which the engine cannot tell what became.
pub(super) fn not_renewed(failure: &Failure) -> WorkerResponse {
    command_result(String::new(), rpc_status(failure))
}

pub(super) fn go_away(reconnect_after_ms: u32) -> WorkerResponse {
    frame(Message::GoAway(proto::GoAway {
        reason: "this node is shutting down: finish what you hold, here or on a new stream".to_owned(),
        reconnect_after_ms,
    }))
}

pub(super) fn pong(sequence: u64) -> WorkerResponse {
    frame(Message::Pong(proto::Pong { sequence }))
}

fn command_result(message_id: String, status: tonic_types::Status) -> WorkerResponse {
    frame(Message::CommandResult(proto::CommandResult {
        message_id,
        status: Some(status),
        ..Default::default()
    }))
}

fn leases(named: Vec<proto::AttemptRef>, statuses: &[LeaseStatus]) -> Vec<proto::RenewedLease> {
    named
        .into_iter()
        .zip(statuses)
        .map(|(attempt, status)| proto::RenewedLease {
            attempt: Some(attempt),
            lease: Some(convert::lease_status(*status)),
        })
        .collect()
}

const fn frame(message: Message) -> WorkerResponse {
    WorkerResponse { message: Some(message) }
}

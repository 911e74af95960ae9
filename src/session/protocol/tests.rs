//! Each test feeds what happened and looks at all that follows; nothing more may follow.

mod leaving;
mod messages;
mod opening;

use std::time::Duration;

use super::*;
use crate::{
    domain::{
        fixtures::{NOW, attempt_id, attempt_ref, message_id},
        ids::{AttemptRef, QueueNo, Route, RouteNo, SessionId},
        policy::RecoverySafety,
        receipt::{Disposition, Receipt},
        report::{Finish, MessageKind, Report, Start},
        task::StateName,
    },
    engine::Dispatch,
    proto::{WorkerResponse, worker_response},
    store::RouteInfo,
};

const VALID: LeaseStatus = LeaseStatus { valid: true, remaining_ms: 7, cancel_requested: false };
const LOST: LeaseStatus = LeaseStatus { valid: false, remaining_ms: 0, cancel_requested: true };

fn frame(message: Message) -> Input {
    Input::Frame(WorkerRequest { message: Some(message) })
}

fn named(epoch: u32) -> proto::AttemptRef {
    let attempt = attempt_ref(epoch);
    proto::AttemptRef {
        // Ids are answered as they were written.
        task_id: attempt.task_id.to_string().to_uppercase(),
        attempt_id: attempt.attempt_id.to_string(),
        epoch,
    }
}

fn hello_message() -> proto::Hello {
    proto::Hello {
        worker_name: "worker-1".into(),
        queue_ids: vec!["a".into(), "b".into()],
        handlers: vec![proto::HandlerVersion { handler: "h".into(), handler_version: "1".into() }],
        max_in_flight: 4,
        features: vec!["safe-retry/1".into()],
        held: vec![named(1), named(2)],
    }
}

fn hello() -> Input {
    frame(Message::Hello(hello_message()))
}

fn joined() -> Input {
    Input::Joined(Ok(Joined { held: vec![VALID, LOST], unknown_queue_ids: vec!["b".into()] }))
}

fn ping(sequence: u64) -> Input {
    frame(Message::Ping(proto::Ping { sequence }))
}

fn drain() -> Input {
    frame(Message::Drain(proto::Drain {}))
}

fn start_frame(epoch: u32, message: u128) -> Input {
    let proto::AttemptRef { task_id, attempt_id, .. } = named(epoch);
    frame(Message::Start(proto::Start {
        message_id: message_id(message).to_string(),
        task_id,
        attempt_id,
        epoch,
    }))
}

fn finish_message(epoch: u32, message: u128, result: String) -> proto::Finish {
    let proto::AttemptRef { task_id, attempt_id, .. } = named(epoch);
    proto::Finish {
        message_id: message_id(message).to_string(),
        task_id,
        attempt_id,
        epoch,
        outcome: proto::Outcome::Succeeded.into(),
        result,
        ..Default::default()
    }
}

fn finish_frame(epoch: u32, message: u128) -> Input {
    frame(Message::Finish(finish_message(epoch, message, String::new())))
}

fn renew_frame(leases: Vec<proto::AttemptRef>) -> Input {
    frame(Message::Renew(proto::Renew { leases }))
}

fn dispatch() -> Input {
    Input::Seat(SeatEvent::Dispatch(Box::new(Dispatch {
        attempt: attempt_ref(3),
        max_attempts: 5,
        lease: Duration::from_micros(14_999_999),
        claimed_at: tokio::time::Instant::now(),
        route: RouteInfo {
            route: Route { route: RouteNo(1), queue: QueueNo(1) },
            queue_id: "a".into(),
            handler: "h".into(),
            handler_version: "1".into(),
        },
        payload_version: "2".into(),
        payload: "[ 1 ]".into(),
        recovery_safety: RecoverySafety::Idempotent,
        effect_uncertain: true,
        deadline: Duration::from_hours(24 * 365),
        attempt_timeout_ms: 9,
    })))
}

fn protocol() -> Protocol {
    Protocol::new(Terms {
        session_id: SessionId(uuid::Uuid::from_u128(9)),
        node_id: "node-1".into(),
        lease_ms: 60_000,
        result_bytes_max: 40 * 1024,
    })
}

fn serving() -> Protocol {
    let mut protocol = protocol();
    protocol.step(hello());
    protocol.step(joined());
    protocol
}

fn reply(result: Result<bool, Rejection>, lease: Option<LeaseStatus>) -> MessageReply {
    let receipt = Receipt {
        message_id: message_id(1),
        kind: MessageKind::Start,
        digest: Start { message_id: message_id(1), attempt: attempt_ref(1) }.digest(),
        disposition: Disposition::Applied,
        task_state: StateName::Running,
        decision: None,
        effect_uncertain: false,
        next_available_at: None,
        committed_at: NOW,
    };
    MessageReply { result: result.map(|replayed| (receipt, replayed)), lease }
}

fn one(mut outputs: Vec<Output>) -> Output {
    let output = outputs.pop().expect("an output");
    assert!(outputs.is_empty(), "one output only");
    output
}

fn sent(output: &Output) -> &worker_response::Message {
    match output {
        Output::Send(WorkerResponse { message: Some(message) }) => message,
        _ => panic!("a frame"),
    }
}

fn result(output: &Output) -> &proto::CommandResult {
    match sent(output) {
        worker_response::Message::CommandResult(result) => result,
        other => panic!("{other:?}"),
    }
}

fn ended(outputs: Vec<Output>) -> End {
    match one(outputs) {
        Output::End(end) => end,
        _ => panic!("the end"),
    }
}

fn run(outputs: Vec<Output>) -> Command {
    match one(outputs) {
        Output::Run(command) => command,
        _ => panic!("a command"),
    }
}

/// Sends a start and answers it.
fn started(protocol: &mut Protocol, answer: Result<MessageReply, Failure>) -> Vec<Output> {
    let Command::Start(ticket, start) = run(protocol.step(start_frame(1, 5))) else {
        panic!("a start");
    };
    assert_eq!(start, Start { message_id: message_id(5), attempt: attempt_ref(1) });
    protocol.step(Input::Answered(Answer::Start(ticket, answer)))
}

/// Sends a finish and answers it.
fn finished(protocol: &mut Protocol, answer: Result<MessageReply, Failure>) -> Vec<Output> {
    let Command::Finish(ticket, finish) = run(protocol.step(finish_frame(1, 6))) else {
        panic!("a finish");
    };
    let result = crate::domain::json::JsonText::null();
    assert_eq!(
        finish,
        Finish { message_id: message_id(6), attempt: attempt_ref(1), report: Report::Succeeded { result } }
    );
    protocol.step(Input::Answered(Answer::Finish(ticket, answer)))
}

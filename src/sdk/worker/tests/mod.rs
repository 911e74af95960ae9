//! The protocol, fed with frames, endings and moments.

mod lease;
mod order;
mod report;
mod start;

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;
use tonic::Code;
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{attempt::Run, book::Counts, failure::Ending, protocol::Protocol};
use crate::proto::{
    AttemptRef, CommandResult, Dispatch, Disposition, Finish, HandlerVersion, Hello, LeaseStatus, Receipt,
    Renewed, RenewedLease, Start, Welcome, worker_request::Message, worker_response::Message as Answer,
};

const VALID: LeaseStatus = LeaseStatus { valid: true, remaining_ms: 3_000, cancel_requested: false };
const LOST: LeaseStatus = LeaseStatus { valid: false, remaining_ms: 0, cancel_requested: false };

/// A protocol with a clock that moves when told to.
struct Worker {
    protocol: Protocol,
    now: Instant,
    renew_every_ms: u32,
    runs: HashMap<String, Run>,
    /// How often each attempt was run.
    ran: HashMap<String, u32>,
}

impl Worker {
    /// With two slots, connected.
    fn connected() -> Self {
        let handlers = vec![HandlerVersion { handler: "h".to_owned(), handler_version: "v1".to_owned() }];
        let hello = Hello { handlers, max_in_flight: 2, ..Hello::default() };
        let protocol = Protocol::new(hello);
        let mut worker = Self {
            protocol,
            now: Instant::now(),
            renew_every_ms: 1_000,
            runs: HashMap::new(),
            ran: HashMap::new(),
        };
        worker.connect(Vec::new());
        worker.pass(0);
        worker
    }

    fn connect(&mut self, held: Vec<RenewedLease>) -> Hello {
        let hello = self.protocol.hello(self.now);
        let welcome =
            Welcome { lease_ms: 3_000, renew_every_ms: self.renew_every_ms, held, ..Welcome::default() };
        self.protocol.on_welcome(&welcome, self.now);
        hello
    }

    fn reconnect(&mut self) -> Hello {
        self.protocol.on_disconnect(self.now);
        self.connect(Vec::new())
    }

    fn dispatch(&mut self, id: &str) {
        let dispatch = Dispatch {
            attempt_id: id.to_owned(),
            task_id: format!("task-{id}"),
            epoch: 1,
            handler: "h".to_owned(),
            handler_version: "v1".to_owned(),
            payload: "1".to_owned(),
            deadline_ms: 3_600_000,
            attempt_timeout_ms: 60_000,
            ..Dispatch::default()
        };
        self.protocol.on_frame(Answer::Dispatch(dispatch), self.now);
    }

    /// Everything the worker wants to send, leaving renewals out; takes up what is to be run.
    fn sent(&mut self) -> Vec<Message> {
        for run in self.protocol.take_runs() {
            *self.ran.entry(run.attempt_id.clone()).or_default() += 1;
            self.runs.insert(run.attempt_id.clone(), run);
        }
        let messages = self.protocol.outbound().drain(..).filter_map(|request| request.message);
        messages.filter(|message| !matches!(message, Message::Renew(_))).collect()
    }

    fn renewed(&mut self) -> Vec<usize> {
        let messages = self.protocol.outbound().drain(..).filter_map(|request| request.message);
        let renewals = messages.filter_map(|message| match message {
            Message::Renew(renew) => Some(renew.leases.len()),
            _ => None,
        });
        renewals.collect()
    }

    fn start(&mut self) -> Start {
        match self.sent().as_slice() {
            [Message::Start(start)] => start.clone(),
            other => panic!("a start was expected, not {other:?}"),
        }
    }

    fn finish(&mut self) -> Finish {
        match self.sent().as_slice() {
            [Message::Finish(finish)] => finish.clone(),
            other => panic!("a finish was expected, not {other:?}"),
        }
    }

    fn answer(&mut self, message_id: &str, disposition: Disposition, lease: LeaseStatus) {
        let receipt = Receipt { disposition: disposition.into(), ..Receipt::default() };
        self.result(CommandResult {
            message_id: message_id.to_owned(),
            status: Some(tonic_types::Status::default()),
            receipt: Some(receipt),
            lease: Some(lease),
            ..CommandResult::default()
        });
    }

    fn refuse(&mut self, message_id: &str, code: Code, details: ErrorDetails) {
        let status = tonic::Status::with_error_details(code, "refused", details);
        let status = prost::Message::decode(status.details()).unwrap();
        self.result(CommandResult {
            message_id: message_id.to_owned(),
            status: Some(status),
            ..CommandResult::default()
        });
    }

    fn result(&mut self, result: CommandResult) {
        self.protocol.on_frame(Answer::CommandResult(result), self.now);
    }

    /// Dispatched, started and running.
    fn running(&mut self, id: &str) -> &Run {
        self.dispatch(id);
        let start = self.start();
        self.answer(&start.message_id, Disposition::Applied, VALID);
        assert_eq!(self.sent(), []);
        &self.runs[id]
    }

    fn end(&mut self, id: &str) {
        self.protocol.on_ended(id, Ending::of_result("1".to_owned(), 8), self.now);
    }

    /// Dispatched, run, and waiting for the receipt.
    fn reporting(&mut self, id: &str) -> Finish {
        self.running(id);
        self.end(id);
        self.finish()
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        self.protocol.on_time(self.now);
    }

    fn lease(&mut self, id: &str, status: LeaseStatus) {
        let leases = vec![held(id, status)];
        self.protocol.on_frame(Answer::Renewed(Renewed { leases }), self.now);
    }

    fn counts(&self) -> (u64, u64, u64, u64) {
        let Counts { started, confirmed, evidence, refused } = self.protocol.counts();
        (started, confirmed, evidence, refused)
    }
}

fn reason(reason: &str) -> ErrorDetails {
    ErrorDetails::with_error_info(reason, "orbit", HashMap::new())
}

fn held(id: &str, status: LeaseStatus) -> RenewedLease {
    let attempt = AttemptRef { task_id: format!("task-{id}"), attempt_id: id.to_owned(), epoch: 1 };
    RenewedLease { attempt: Some(attempt), lease: Some(status) }
}

//! A worker of the load: one stream, and handlers that are done at once.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::load::{Load, VERSION};
use crate::proto::{
    CommandResult, Dispatch, Finish, HandlerVersion, Hello, Outcome, Start, TaskError, WorkerRequest,
    WorkerResponse, worker_request::Message as Say, worker_response::Message as Hear,
    worker_service_client::WorkerServiceClient,
};

/// What ids of messages begin with. The rest is the slot, which is unique within the attempt.
const START: &str = "00000001-0000-4000-8000-";
const FINISH: &str = "00000002-0000-4000-8000-";

/// Queues that one worker may take work from. With more, each worker takes its share.
pub const QUEUES_PER_WORKER: u32 = 100;

/// One attempt in a slot.
#[derive(Default)]
struct Slot {
    attempt: Option<Held>,
    start: String,
    finish: String,
}

struct Held {
    task_id: String,
    attempt_id: String,
    epoch: u32,
    sent_us: u64,
    fails: bool,
}

struct Worker<'a> {
    load: &'a Load,
    slots: Vec<Slot>,
    free: Vec<usize>,
    say: mpsc::Sender<WorkerRequest>,
}

/// Works until the stream ends.
pub(super) async fn run(load: &Load, channel: Channel, n: u32) {
    let slots = load.config.slots;
    // Each slot has one message under way at most.
    let (say, messages) = mpsc::channel(slots as usize + 8);
    let hello = Hello {
        worker_name: format!("bench-{n}"),
        queue_ids: share(&load.config.queues, n),
        handlers: load
            .config
            .handlers
            .iter()
            .map(|handler| HandlerVersion { handler: handler.clone(), handler_version: VERSION.to_owned() })
            .collect(),
        max_in_flight: slots,
        features: vec!["safe-retry/1".to_owned()],
        held: Vec::new(),
    };
    let slot = |n: u32| Slot {
        attempt: None,
        start: format!("{START}{n:012x}"),
        finish: format!("{FINISH}{n:012x}"),
    };
    let mut worker =
        Worker { load, slots: (0..slots).map(slot).collect(), free: (0..slots as usize).collect(), say };
    worker.say(Say::Hello(hello));
    let mut client = WorkerServiceClient::new(channel);
    let ended = match client.worker(ReceiverStream::new(messages)).await {
        Ok(stream) => worker.work(stream.into_inner()).await,
        Err(status) => Some(status),
    };
    if let Some(status) = ended {
        load.wrong(format!("a worker's stream ended: {:?} {}", status.code(), status.message()));
    }
}

/// The queues of the worker with that number.
fn share(queues: &[String], n: u32) -> Vec<String> {
    let of_one = QUEUES_PER_WORKER as usize;
    let shares = queues.len().div_ceil(of_one).max(1);
    queues.iter().skip(n as usize % shares).step_by(shares).cloned().collect()
}

impl Worker<'_> {
    async fn work(&mut self, mut stream: Streaming<WorkerResponse>) -> Option<tonic::Status> {
        loop {
            match stream.message().await {
                Ok(Some(WorkerResponse { message: Some(message) })) => self.hear(message),
                Ok(Some(WorkerResponse { message: None })) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    fn hear(&mut self, message: Hear) {
        match message {
            Hear::Dispatch(dispatch) => self.begin(dispatch),
            Hear::CommandResult(result) => self.go_on(&result),
            Hear::Welcome(_) | Hear::Renewed(_) | Hear::Cancel(_) | Hear::GoAway(_) | Hear::Pong(_) => {}
        }
    }

    fn begin(&mut self, dispatch: Dispatch) {
        let Some(slot) = self.free.pop() else {
            self.load.wrong("more attempts were dispatched than slots were free".to_owned());
            return;
        };
        let held = Held {
            sent_us: Load::sent_us(&dispatch.payload),
            task_id: dispatch.task_id,
            attempt_id: dispatch.attempt_id,
            epoch: dispatch.epoch,
            fails: self.load.config.fail_first && dispatch.attempt_number == 1,
        };
        let start = Start {
            message_id: self.slots[slot].start.clone(),
            task_id: held.task_id.clone(),
            attempt_id: held.attempt_id.clone(),
            epoch: held.epoch,
        };
        self.slots[slot].attempt = Some(held);
        self.say(Say::Start(start));
    }

    fn go_on(&mut self, result: &CommandResult) {
        let number = result.message_id.get(START.len()..).and_then(|n| usize::from_str_radix(n, 16).ok());
        let Some((number, slot)) = number.and_then(|n| self.slots.get_mut(n).map(|slot| (n, slot))) else {
            self.load.wrong(format!("an answer to no message of ours: {}", result.message_id));
            return;
        };
        let granted = result.status.as_ref().is_none_or(|status| status.code == 0);
        let Some(held) = slot.attempt.take() else { return };
        if !granted {
            let why = result.status.as_ref().map(|status| status.message.clone()).unwrap_or_default();
            self.load.wrong(format!("a start or a finish was refused: {why}"));
            self.free.push(number);
        } else if result.message_id.starts_with(START) {
            self.load.started(held.sent_us);
            let finish = Finish {
                message_id: slot.finish.clone(),
                task_id: held.task_id.clone(),
                attempt_id: held.attempt_id.clone(),
                epoch: held.epoch,
                outcome: if held.fails { Outcome::Failed } else { Outcome::Succeeded }.into(),
                retryable: held.fails,
                result: if held.fails { String::new() } else { "{}".to_owned() },
                error: held.fails.then(|| TaskError { code: "BENCH".to_owned(), ..TaskError::default() }),
            };
            slot.attempt = Some(held);
            self.say(Say::Finish(finish));
        } else {
            self.load.finished(held.sent_us, held.fails);
            self.free.push(number);
        }
    }

    fn say(&self, message: Say) {
        if self.say.try_send(WorkerRequest { message: Some(message) }).is_err() {
            self.load.wrong("a worker's stream takes no messages".to_owned());
        }
    }
}

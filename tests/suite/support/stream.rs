//! A worker stream by hand, over the network: each frame is the test's own.

use std::{collections::VecDeque, time::Duration};

use orbit::proto::{
    AttemptRef, CommandResult, Dispatch, Disposition, Finish, HandlerVersion, Hello, Outcome, Renew, Renewed,
    Start, TaskError, Welcome, WorkerRequest, WorkerResponse, worker_request::Message as Ask,
    worker_response::Message as Told, worker_service_client::WorkerServiceClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};
use uuid::Uuid;

use super::rig::{HANDLER, QUEUE};

const LIMIT: Duration = Duration::from_secs(10);
/// Frames that may wait to be sent.
const FRAMES_MAX: usize = 64;
pub(crate) const FEATURE: &str = "safe-retry/1";

/// One open stream.
pub(crate) struct Stream {
    frames: mpsc::Sender<WorkerRequest>,
    told: Streaming<WorkerResponse>,
    /// Read, and not asked for yet.
    read: VecDeque<Told>,
    pub(crate) welcome: Welcome,
}

/// A hello for the test's queue and handler.
pub(crate) fn hello(slots: u32) -> Hello {
    Hello {
        worker_name: "by-hand".to_owned(),
        queue_ids: vec![QUEUE.to_owned()],
        handlers: vec![HandlerVersion {
            handler: HANDLER.0.to_owned(),
            handler_version: HANDLER.1.to_owned(),
        }],
        max_in_flight: slots,
        features: vec![FEATURE.to_owned()],
        held: Vec::new(),
    }
}

impl Stream {
    /// Opens a stream that takes so many attempts at once.
    pub(crate) async fn open(channel: Channel, slots: u32) -> Self {
        Self::open_with(channel, hello(slots)).await.expect("a stream")
    }

    pub(crate) async fn open_with(channel: Channel, hello: Hello) -> Result<Self, Status> {
        let (frames, receiver) = mpsc::channel(FRAMES_MAX);
        frames.send(WorkerRequest { message: Some(Ask::Hello(hello)) }).await.expect("room");
        let mut client = WorkerServiceClient::new(channel);
        let opening = client.worker(ReceiverStream::new(receiver));
        let told = timeout(LIMIT, opening).await.expect("an answer in time")?.into_inner();
        let mut stream = Self { frames, told, read: VecDeque::new(), welcome: Welcome::default() };
        match stream.next().await? {
            Some(Told::Welcome(welcome)) => stream.welcome = welcome,
            other => panic!("no welcome: {other:?}"),
        }
        Ok(stream)
    }

    pub(crate) async fn send(&self, message: Ask) {
        let frame = WorkerRequest { message: Some(message) };
        timeout(LIMIT, self.frames.send(frame)).await.expect("the server reads").expect("the stream is open");
    }

    /// Whether a frame could be handed to the connection within that time.
    pub(crate) async fn try_send(&self, message: Ask, limit: Duration) -> bool {
        let frame = WorkerRequest { message: Some(message) };
        matches!(timeout(limit, self.frames.send(frame)).await, Ok(Ok(())))
    }

    /// The next frame; none when the stream has ended well.
    pub(crate) async fn next(&mut self) -> Result<Option<Told>, Status> {
        if let Some(told) = self.read.pop_front() {
            return Ok(Some(told));
        }
        self.receive(LIMIT).await
    }

    /// The next frame from the connection.
    async fn receive(&mut self, limit: Duration) -> Result<Option<Told>, Status> {
        let frame = timeout(limit, self.told.message()).await.expect("a frame in time")?;
        Ok(frame.map(|frame| frame.message.expect("a message")))
    }

    /// The next frame that `pick` takes; the others stay for later.
    async fn find<T>(&mut self, mut pick: impl FnMut(&Told) -> Option<T>) -> T {
        for i in 0..self.read.len() {
            if let Some(found) = pick(&self.read[i]) {
                self.read.remove(i);
                return found;
            }
        }
        loop {
            let told = self.receive(LIMIT).await.expect("the stream works").expect("the stream is open");
            if let Some(found) = pick(&told) {
                return found;
            }
            self.read.push_back(told);
        }
    }

    pub(crate) async fn dispatch(&mut self) -> Dispatch {
        self.find(|told| if let Told::Dispatch(dispatch) = told { Some(dispatch.clone()) } else { None })
            .await
    }

    /// Holds that no attempt arrives for a while.
    pub(crate) async fn nothing_for(&mut self, while_: Duration) {
        let dispatch = timeout(while_, self.dispatch()).await;
        assert!(dispatch.is_err(), "an unexpected {dispatch:?}");
    }

    /// The answer to a message.
    pub(crate) async fn answer(&mut self, message_id: &str) -> CommandResult {
        self.find(|told| match told {
            Told::CommandResult(result) if result.message_id == message_id => Some(result.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn renew(&mut self, attempts: Vec<AttemptRef>) -> Renewed {
        self.send(Ask::Renew(Renew { leases: attempts })).await;
        self.find(|told| if let Told::Renewed(renewed) = told { Some(renewed.clone()) } else { None }).await
    }

    /// The attempt of the next cancel, with its reason.
    pub(crate) async fn canceled(&mut self) -> (String, String) {
        self.find(|told| match told {
            Told::Cancel(cancel) => Some((cancel.attempt_id.clone(), cancel.reason.clone())),
            _ => None,
        })
        .await
    }

    /// Waits until the server asks to go elsewhere.
    pub(crate) async fn go_away(&mut self) {
        self.find(|told| matches!(told, Told::GoAway(_)).then_some(())).await;
    }

    /// Sends a start and waits for its answer.
    pub(crate) async fn start(&mut self, attempt: &AttemptRef) -> CommandResult {
        let start = start(attempt);
        self.send(Ask::Start(start.clone())).await;
        self.answer(&start.message_id).await
    }

    /// Sends a finish and waits for its answer.
    pub(crate) async fn finish(&mut self, finish: &Finish) -> CommandResult {
        self.send(Ask::Finish(finish.clone())).await;
        self.answer(&finish.message_id).await
    }

    /// Starts an attempt and reports its success, with the payload as result.
    pub(crate) async fn run(&mut self, dispatch: &Dispatch) {
        let attempt = attempt_of(dispatch);
        hold_applied(&self.start(&attempt).await);
        hold_applied(&self.finish(&succeeded(&attempt, &dispatch.payload)).await);
    }
}

pub(crate) fn attempt_of(dispatch: &Dispatch) -> AttemptRef {
    AttemptRef {
        task_id: dispatch.task_id.clone(),
        attempt_id: dispatch.attempt_id.clone(),
        epoch: dispatch.epoch,
    }
}

pub(crate) fn new_id() -> String {
    Uuid::new_v4().to_string()
}

pub(crate) fn start(attempt: &AttemptRef) -> Start {
    Start {
        message_id: new_id(),
        task_id: attempt.task_id.clone(),
        attempt_id: attempt.attempt_id.clone(),
        epoch: attempt.epoch,
    }
}

/// A report of an attempt.
pub(crate) fn finish(attempt: &AttemptRef, outcome: Outcome) -> Finish {
    Finish {
        message_id: new_id(),
        task_id: attempt.task_id.clone(),
        attempt_id: attempt.attempt_id.clone(),
        epoch: attempt.epoch,
        outcome: outcome.into(),
        ..Finish::default()
    }
}

pub(crate) fn succeeded(attempt: &AttemptRef, result: &str) -> Finish {
    Finish { result: result.to_owned(), ..finish(attempt, Outcome::Succeeded) }
}

pub(crate) fn failed(attempt: &AttemptRef, code: &str) -> Finish {
    let error = TaskError { code: code.to_owned(), ..TaskError::default() };
    Finish { error: Some(error), ..finish(attempt, Outcome::Failed) }
}

pub(crate) fn disposition(result: &CommandResult) -> Disposition {
    let receipt = result.receipt.as_ref().unwrap_or_else(|| panic!("no receipt: {result:?}"));
    receipt.disposition()
}

pub(crate) fn hold_applied(result: &CommandResult) {
    assert_eq!(disposition(result), Disposition::Applied, "{result:?}");
}

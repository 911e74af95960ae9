//! The worker's protocol, frame by frame, for authors of workers in other languages. The Rust SDK does all of this, and
//! more of it at once; here it is spelled out for one task. `proto/orbit/v1/worker.proto` is the reference.
//!
//! ```sh
//! cargo run --example worker_protocol -- --embedded
//! cargo run --example worker_protocol -- http://127.0.0.1:7070
//! ```
//!
//! Each frame is written to standard error as it goes (`→`) and comes (`←`); one line at the end says how the task ended.

mod support;

use std::{process::ExitCode, time::Duration};

use orbit::{
    proto::{
        AttemptRef, CommandResult, Dispatch, Disposition, Drain, Finish, HandlerVersion, Hello, Outcome,
        Ping, Renew, Start, WorkerRequest, WorkerResponse, worker_request::Message as Ask,
        worker_response::Message as Told, worker_service_client::WorkerServiceClient,
    },
    sdk::Client,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};
use uuid::Uuid;

const HANDLER: (&str, &str) = ("text.normalize", "v1");
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    support::run(walk).await
}

async fn walk(url: &str) -> support::Outcome<()> {
    // A task to work on.
    let client = Client::builder().url(url).call_timeout(LIMIT).build()?;
    let queue = format!("protocol-{}", Uuid::new_v4());
    client.create_queue(&queue, 0).await?;
    let submit = client.submit(&queue, HANDLER.0, HANDLER.1).payload_json(r#"{"text":"  hello  "}"#);
    let task_id = submit.send().await?.task.task_id;

    // 1. One stream for the whole worker. `hello` comes first: who I am, what I take, how much of it at once, and what I
    //    can do. "safe-retry/1" is required: it promises that I wait for start authorization and send reports again
    //    until they are answered.
    let mut stream = Stream::open(url, hello(&queue, Vec::new())).await?;

    // 2. A dispatch is an offer under a short lease (`lease_ms` from now), not yet the right to run. Count terms on a
    //    monotonic clock of your own; the database's moments are not comparable with it.
    let dispatch = stream.dispatch().await?;
    let attempt = AttemptRef {
        task_id: dispatch.task_id.clone(),
        attempt_id: dispatch.attempt_id.clone(),
        epoch: dispatch.epoch,
    };

    // 3. Ask for the start. Every start and finish has a message id that I choose and keep: if the answer does not come,
    //    I send the very same message again, here or on another stream, and get the very same receipt. Only when the
    //    answer has status 0 *and* the lease is valid may the handler run. A refusal (LEASE_LOST, CANCEL_REQUESTED,
    //    ALREADY_STARTED …) means: leave it alone.
    let start = Start {
        message_id: Uuid::new_v4().to_string(),
        task_id: attempt.task_id.clone(),
        attempt_id: attempt.attempt_id.clone(),
        epoch: attempt.epoch,
    };
    stream.send(Ask::Start(start.clone())).await?;
    let granted = stream.answer(&start.message_id).await?;
    if !accepted(&granted) || !granted.lease.is_some_and(|lease| lease.valid) {
        return Err(format!("the start was refused: {granted:?}").into());
    }

    // 4. While the handler runs: renew every `renew_every_ms` of the welcome, all leases in one frame, from something
    //    that a busy handler cannot hold up. `valid: false` means that the attempt may be somebody else's by now: stop
    //    what can be stopped, and report all the same. `cancel_requested` means: stop if you can.
    stream.send(Ask::Renew(Renew { leases: vec![attempt.clone()] })).await?;
    if !stream.renewed().await? {
        return Err("the lease was lost".into());
    }
    //    And ping: a connection may be dead without anybody saying so. No pong for some seconds: leave it.
    stream.send(Ask::Ping(Ping { sequence: 1 })).await?;
    stream.pong(1).await?;
    let result = normalize(&dispatch);

    // 5. Report. SUCCEEDED, or FAILED when nothing happened (`retryable` if trying again makes sense), or CANCELED after
    //    a cancel, and UNKNOWN for everything else: a time-out, a crash of the handler, an exception you did not expect.
    let finish = Finish {
        message_id: Uuid::new_v4().to_string(),
        task_id: attempt.task_id.clone(),
        attempt_id: attempt.attempt_id.clone(),
        epoch: attempt.epoch,
        outcome: Outcome::Succeeded.into(),
        result,
        ..Finish::default()
    };
    stream.send(Ask::Finish(finish.clone())).await?;

    // 6. The connection breaks before the answer is read. That takes nothing away: neither the lease nor what was
    //    committed. Come back with a jittered backoff, to any node, and name in `held` what you still hold.
    drop(stream);
    let mut stream = Stream::open(url, hello(&queue, vec![attempt.clone()])).await?;

    // 7. What has no answer yet is sent again, unchanged. Had the first one arrived, the answer is its receipt, marked as
    //    replayed; had it not, it is decided now. Either way the handler is not called again.
    stream.send(Ask::Finish(finish.clone())).await?;
    let confirmed = stream.answer(&finish.message_id).await?;
    let receipt = confirmed.receipt.ok_or_else(|| format!("no receipt: {confirmed:?}"))?;
    //    EVIDENCE would say: kept, and it changed nothing, since the lease was not valid. If the answer also says that
    //    the lease *is* valid, the report overtook its start: send the same result once more, under a new id.
    if receipt.disposition() != Disposition::Applied {
        return Err(format!("the report changed nothing: {confirmed:?}").into());
    }

    // 8. Leave: `drain` stops further dispatches, and the server ends the stream when nothing is in flight. What was
    //    dispatched before it arrived is still to be run.
    stream.send(Ask::Drain(Drain {})).await?;
    stream.ended().await?;

    let task = client.get(&task_id).await?;
    let state = task.state().as_str_name().trim_start_matches("TASK_STATE_").to_owned();
    println!("task={task_id} state={state} attempts={} result={}", task.attempt_count, task.result);
    Ok(())
}

fn hello(queue: &str, held: Vec<AttemptRef>) -> Hello {
    Hello {
        worker_name: "by-hand".to_owned(),
        queue_ids: vec![queue.to_owned()],
        handlers: vec![HandlerVersion {
            handler: HANDLER.0.to_owned(),
            handler_version: HANDLER.1.to_owned(),
        }],
        max_in_flight: 1,
        features: vec!["safe-retry/1".to_owned()],
        held,
    }
}

/// The handler: JSON text in, JSON text out.
fn normalize(dispatch: &Dispatch) -> String {
    dispatch.payload.replace("  ", "").to_uppercase().replace("TEXT", "text")
}

/// Status 0: decided and committed. UNAVAILABLE would mean: send the same message again.
fn accepted(result: &CommandResult) -> bool {
    result.status.as_ref().is_none_or(|status| status.code == 0)
}

/// One stream, with its frames on standard error.
struct Stream {
    frames: mpsc::Sender<WorkerRequest>,
    answers: Streaming<WorkerResponse>,
}

impl Stream {
    async fn open(url: &str, hello: Hello) -> support::Outcome<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
        let (frames, requests) = mpsc::channel(16);
        eprintln!("→ {hello:?}");
        frames.send(WorkerRequest { message: Some(Ask::Hello(hello)) }).await?;
        let answers =
            WorkerServiceClient::new(channel).worker(ReceiverStream::new(requests)).await?.into_inner();
        let mut stream = Self { frames, answers };
        match stream.next().await? {
            Some(Told::Welcome(_)) => Ok(stream),
            other => Err(format!("a welcome was expected, not {other:?}").into()),
        }
    }

    async fn send(&self, message: Ask) -> support::Outcome<()> {
        eprintln!("→ {message:?}");
        Ok(self.frames.send(WorkerRequest { message: Some(message) }).await?)
    }

    /// The next frame; none when the server has ended the stream well. Frames of a kind that one does not know are to be
    /// left alone: the protocol grows.
    async fn next(&mut self) -> support::Outcome<Option<Told>> {
        let frame = timeout(LIMIT, self.answers.message()).await??.and_then(|frame| frame.message);
        if let Some(frame) = &frame {
            eprintln!("← {frame:?}");
        }
        Ok(frame)
    }

    /// The next frame that `pick` takes. A real worker handles each frame as it comes: they are not in any order.
    async fn find<T>(&mut self, pick: impl Fn(Told) -> Option<T>) -> support::Outcome<T> {
        while let Some(frame) = self.next().await? {
            if let Some(found) = pick(frame) {
                return Ok(found);
            }
        }
        Err("the stream ended".into())
    }

    async fn dispatch(&mut self) -> support::Outcome<Dispatch> {
        self.find(|told| if let Told::Dispatch(dispatch) = told { Some(dispatch) } else { None }).await
    }

    async fn answer(&mut self, message_id: &str) -> support::Outcome<CommandResult> {
        self.find(|told| match told {
            Told::CommandResult(result) if result.message_id == message_id => Some(result),
            _ => None,
        })
        .await
    }

    /// Whether all leases of the renewal are valid.
    async fn renewed(&mut self) -> support::Outcome<bool> {
        self.find(|told| match told {
            Told::Renewed(renewed) => {
                Some(renewed.leases.iter().all(|renewed| renewed.lease.is_some_and(|lease| lease.valid)))
            }
            _ => None,
        })
        .await
    }

    async fn pong(&mut self, sequence: u64) -> support::Outcome<()> {
        self.find(|told| match told {
            Told::Pong(pong) if pong.sequence >= sequence => Some(()),
            _ => None,
        })
        .await
    }

    async fn ended(&mut self) -> support::Outcome<()> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

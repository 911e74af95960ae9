//! The connection under the protocol: where to connect, when to try again, and whether anybody is still there.

use std::{collections::VecDeque, future::pending, mem, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use super::{protocol::Protocol, pulse::Pulse};
use crate::{
    proto::{
        GoAway, Hello, Welcome, WorkerRequest, WorkerResponse, worker_request::Message,
        worker_response::Message as Answer, worker_service_client::WorkerServiceClient,
    },
    sdk::{
        backoff::Backoff,
        endpoint::{Endpoints, MESSAGE_BYTES_MAX},
        error::{Error, ErrorKind},
    },
};

/// The one feature of the contract: start authorization is waited for, and reports are sent again.
pub(crate) const SAFE_RETRY: &str = "safe-retry/1";

/// How long connecting, hello and welcome may take together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_DELAY_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_LIMIT: Duration = Duration::from_secs(2);
/// A stream that lived this long was a good one: the next try need not wait as for a row of failures.
const GOOD_STREAM: Duration = Duration::from_secs(5);
/// The longest that a server may ask to stay away.
const AWAY_MAX: Duration = Duration::from_mins(1);
/// How long the server may take to end its half of the stream when the worker has ended its own.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Frames between the protocol and the connection.
const OUTBOUND_CAPACITY: usize = 64;

/// What the connection tells the protocol.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A stream is open.
    Up(Welcome),
    /// A frame arrived.
    Frame(Answer),
    /// The stream is gone, or could not be opened; the next try is scheduled.
    Down,
    /// The server refuses this worker: trying again would not help.
    Refused(Error),
}

/// Keeps one stream to one of the addresses.
pub(crate) struct Link {
    endpoints: Arc<Endpoints>,
    /// The address that is or will be used.
    index: usize,
    /// Until when each address asked to be left alone.
    away_until: Vec<Instant>,
    /// After streams that could not be opened; ends with a welcome.
    opening: Backoff,
    /// After streams that broke; ends with one that lasted, so that a server which welcomes and drops is not stormed.
    breaking: Backoff,
    /// Whether the log knows that there is no stream.
    complained: bool,
    state: State,
}

enum State {
    Waiting { until: Instant },
    Opening(BoxFuture<'static, Result<(Stream, Welcome), Error>>),
    Open(Box<Stream>),
}

struct Stream {
    outbound: mpsc::Sender<WorkerRequest>,
    inbound: Streaming<WorkerResponse>,
    pulse: Pulse,
    opened_at: Instant,
    writable: bool,
    /// When to leave, after a `go_away` with nowhere else to go.
    leave_at: Option<Instant>,
}

impl Link {
    pub(crate) fn new(endpoints: Arc<Endpoints>) -> Self {
        let now = Instant::now();
        Self {
            away_until: vec![now; endpoints.len()],
            endpoints,
            index: 0,
            opening: Backoff::new(RECONNECT_DELAY_FIRST, RECONNECT_DELAY_LIMIT),
            breaking: Backoff::new(RECONNECT_DELAY_FIRST, RECONNECT_DELAY_LIMIT),
            complained: false,
            state: State::Waiting { until: now },
        }
    }

    /// The next event. Writes what the protocol has to send while a stream is open, and opens one with its hello.
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self, protocol: &mut Protocol) -> LinkEvent {
        loop {
            match &mut self.state {
                State::Waiting { until } => {
                    sleep_until(*until).await;
                    if !protocol.wants_stream() {
                        // Asked again with the next event that changes anything.
                        return pending().await;
                    }
                    let hello = protocol.hello(Instant::now());
                    self.state = State::Opening(open(Arc::clone(&self.endpoints), self.index, hello).boxed());
                }
                State::Opening(opening) => match opening.await {
                    Ok((stream, welcome)) => {
                        self.state = State::Open(Box::new(stream));
                        self.opening.reset();
                        self.complained = false;
                        return LinkEvent::Up(welcome);
                    }
                    Err(error) => return self.lost(Some(error), protocol),
                },
                State::Open(stream) => match stream.next(protocol.outbound()).await {
                    Ok(Answer::GoAway(go_away)) => {
                        if self.go_away(&go_away) {
                            return self.lost(None, protocol);
                        }
                    }
                    Ok(frame) => return LinkEvent::Frame(frame),
                    Err(error) => return self.lost(error, protocol),
                },
            }
        }
    }

    /// Whether a stream is open, or being opened: the server may be giving it work.
    pub(crate) fn has_stream(&self) -> bool {
        matches!(self.state, State::Open(_) | State::Opening(_))
    }

    /// Ends the stream from this side, and gives the server a moment to see it.
    pub(crate) async fn close(self) {
        if let State::Open(stream) = self.state {
            let Stream { outbound, mut inbound, .. } = *stream;
            drop(outbound);
            let ended = async { while let Ok(Some(_)) = inbound.message().await {} };
            let _ = timeout(CLOSE_TIMEOUT, ended).await;
        }
    }

    /// True if the stream is to be left at once, because there is another address.
    fn go_away(&mut self, go_away: &GoAway) -> bool {
        let away = Duration::from_millis(go_away.reconnect_after_ms.into()).min(AWAY_MAX);
        let until = Instant::now() + away;
        tracing::info!(
            address = self.endpoints.name(self.index),
            reason = go_away.reason,
            ?away,
            "asked to go away"
        );
        if let Some(away_until) = self.away_until.get_mut(self.index) {
            *away_until = until;
        }
        if self.endpoints.len() > 1 {
            return true;
        }
        // The same address may be another node by then. Until then, what is held can be finished here.
        if let State::Open(stream) = &mut self.state {
            stream.leave_at = Some(until);
        }
        false
    }

    /// Schedules the next try, at the next address. Leases that are held do not wait longer than the protocol's patience.
    fn lost(&mut self, error: Option<Error>, protocol: &Protocol) -> LinkEvent {
        let patience = protocol.patience();
        let address = self.endpoints.name(self.index);
        if let Some(error) = error.as_ref().filter(|error| is_final(error)) {
            tracing::error!(address, %error, "the server refuses this worker");
            self.state = State::Waiting { until: Instant::now() };
            return LinkEvent::Refused(error.clone());
        }
        let now = Instant::now();
        let delay = match &self.state {
            State::Open(stream) => {
                if now.duration_since(stream.opened_at) >= GOOD_STREAM {
                    self.breaking.reset();
                }
                self.breaking.next_delay()
            }
            State::Waiting { .. } | State::Opening(_) => self.opening.next_delay(),
        };
        let mut until = now + delay.min(patience);
        let count = self.away_until.len().max(1);
        let candidates = (1..=count).map(|step| (self.index + step) % count);
        let away = |index: &usize| self.away_until.get(*index).copied().unwrap_or(now);
        // The next one that may be asked; `min_by_key` takes the first of equals.
        if let Some(index) = candidates.min_by_key(|index| away(index).max(now)) {
            // Leases that are held outrank the wish to be left alone.
            until = until.max(away(&index).min(now + patience.min(AWAY_MAX)));
            self.index = index;
        }
        self.state = State::Waiting { until };
        let error = error.map_or_else(|| "moving on".to_owned(), |error| error.to_string());
        let again_in = until.duration_since(now);
        if !protocol.wants_stream() {
            tracing::debug!(address, error, "the stream has ended, and no other is wanted");
        } else if mem::replace(&mut self.complained, true) {
            tracing::debug!(address, error, ?again_in, "still no stream");
        } else {
            tracing::warn!(address, error, ?again_in, "the worker has no stream");
        }
        LinkEvent::Down
    }
}

/// Refusals that stay, whatever is tried.
fn is_final(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Config => true,
        ErrorKind::Server => matches!(
            error.code(),
            Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::FailedPrecondition
        ),
        ErrorKind::Serialization | ErrorKind::Transport | ErrorKind::Timeout | ErrorKind::Protocol => false,
    }
}

async fn open(endpoints: Arc<Endpoints>, index: usize, hello: Hello) -> Result<(Stream, Welcome), Error> {
    match timeout(OPEN_TIMEOUT, open_unbounded(endpoints, index, hello)).await {
        Ok(opened) => opened,
        Err(_) => Err(Error::timeout(format!("no stream within {} s", OPEN_TIMEOUT.as_secs()), None)),
    }
}

async fn open_unbounded(
    endpoints: Arc<Endpoints>,
    index: usize,
    hello: Hello,
) -> Result<(Stream, Welcome), Error> {
    // A connection of its own: the one before may be the reason why its stream was given up.
    let transport = endpoints.channel(index)?;
    let (outbound, requests) = mpsc::channel(OUTBOUND_CAPACITY);
    // Before the call: the server may hold its headers back until it has seen the hello.
    let hello = WorkerRequest { message: Some(Message::Hello(hello)) };
    outbound.try_send(hello).map_err(|_| Error::protocol("the hello could not be queued"))?;
    let mut client = WorkerServiceClient::new(transport)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut inbound = client.worker(ReceiverStream::new(requests)).await?.into_inner();
    match inbound.message().await?.and_then(|response| response.message) {
        Some(Answer::Welcome(welcome)) => {
            if !welcome.features.iter().any(|feature| feature == SAFE_RETRY) {
                // Fail closed: without it a start's acceptance would mean nothing.
                return Err(Error::config(format!("the server does not know {SAFE_RETRY}")));
            }
            let name = endpoints.name(index);
            tracing::info!(
                address = name,
                session_id = welcome.session_id,
                node_id = welcome.node_id,
                "stream open"
            );
            if !welcome.unknown_queue_ids.is_empty() {
                tracing::warn!(queues = ?welcome.unknown_queue_ids, "these queues do not exist yet");
            }
            let now = Instant::now();
            let pulse = Pulse::new(now, Duration::from_millis(welcome.renew_every_ms.into()));
            Ok((Stream { outbound, inbound, pulse, opened_at: now, writable: true, leave_at: None }, welcome))
        }
        Some(_) => Err(Error::protocol("the hello was not answered by a welcome")),
        None => Err(Error::protocol("the stream ended before the welcome")),
    }
}

impl Stream {
    /// The next frame that is not the connection's own. An `Err(None)` when it is time to leave.
    async fn next(&mut self, outbound: &mut VecDeque<WorkerRequest>) -> Result<Answer, Option<Error>> {
        loop {
            let pulse_at = self.pulse.next_time();
            let leave_at = self.leave_at;
            tokio::select! {
                biased;
                // First, so that no flood of frames keeps a renewal from being sent. It is bounded: the server's
                // flow control closes the channel for a while, and answers are read meanwhile.
                permit = self.outbound.reserve(), if self.writable && !outbound.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(request) = outbound.pop_front() {
                            permit.send(request);
                        }
                    }
                    // The call is over; its status arrives as a frame.
                    Err(_) => self.writable = false,
                },
                // Before the pulse: after a pause of the whole process they prove that the stream lives.
                frame = self.inbound.message() => {
                    let frame = frame.map_err(|status| Some(Error::from(status)))?;
                    let frame = frame.ok_or_else(|| Some(Error::protocol("the server ended the stream")))?;
                    let now = Instant::now();
                    self.pulse.frame(now);
                    match frame.message {
                        Some(Answer::Pong(pong)) => self.pulse.pong(pong.sequence),
                        Some(message) => return Ok(message),
                        // A message that this version does not know.
                        None => {}
                    }
                }
                () = sleep_until(pulse_at) => {
                    let now = Instant::now();
                    if self.pulse.is_deaf(now) {
                        return Err(Some(Error::timeout("the server does not answer pings", None)));
                    }
                    if let Some(ping) = self.pulse.ping(now) {
                        outbound.push_front(WorkerRequest { message: Some(Message::Ping(ping)) });
                    }
                }
                () = async { match leave_at { Some(at) => sleep_until(at).await, None => pending().await } } => {
                    return Err(None);
                }
            }
        }
    }
}

//! Drives one session: reads frames, runs commands, takes dispatches, and does what the protocol says.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use futures_util::{
    FutureExt as _, Stream, StreamExt as _,
    future::{self, BoxFuture},
    stream::FuturesUnordered,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tonic::{Code, Status};
use uuid::Uuid;

use crate::{
    domain::ids::SessionId,
    engine::{Engine, Failure, Seat, SeatEvent, SeatRequest, Session},
    proto::WorkerRequest,
    rpc::{
        convert::{Hello, RENEW_LEASES_MAX},
        status::{ErrorReply, explained, status},
    },
};

use super::{
    Sessions,
    exchange::{Answer, Command, End, Input, Joined, Output, SeatNote, Terms},
    outbox::Outbox,
    protocol::Protocol,
};

/// How long a new stream may wait with its hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long a worker may let frames wait without reading any.
const STALL_LIMIT: Duration = Duration::from_secs(20);
/// When a worker may try again that came during a shutdown.
const DRAINING_RETRY_AFTER: Duration = Duration::from_secs(1);

/// One worker stream.
pub(super) struct Connection {
    engine: Engine,
    principal: Arc<str>,
    session_id: SessionId,
    /// Known from the hello on.
    session: Option<Session>,
    sessions: Sessions,
    /// Whether the protocol knows that the server stops.
    told_to_stop: bool,
    protocol: Protocol,
    outbox: Outbox,
    /// What the engine is asked and has not answered.
    calls: FuturesUnordered<BoxFuture<'static, Called>>,
    seat: Option<Seat>,
    seat_events: Option<mpsc::Receiver<SeatEvent>>,
    hello_until: Instant,
}

/// What the engine answered.
enum Called {
    Joined(Result<Place, Failure>),
    Answered(Answer),
}

/// A worker's place at the dispatcher.
struct Place {
    seat: Seat,
    events: mpsc::Receiver<SeatEvent>,
    joined: Joined,
}

/// What woke the session up.
enum Event {
    Input(Input),
    Called(Called),
    /// A frame could not be read, or the stream broke.
    Broken(Status),
    /// Only to look again.
    Nothing,
}

impl Connection {
    pub(super) fn new(engine: Engine, principal: Arc<str>, outbox: Outbox, sessions: Sessions) -> Self {
        let session_id = SessionId(Uuid::new_v4());
        let protocol = Protocol::new(Terms {
            session_id,
            node_id: Arc::clone(engine.node_id()),
            lease_ms: engine.options().lease_ms(),
            result_bytes_max: engine.text_bytes_max(),
        });
        Self {
            engine,
            principal,
            session_id,
            session: None,
            sessions,
            told_to_stop: false,
            protocol,
            outbox,
            calls: FuturesUnordered::new(),
            seat: None,
            seat_events: None,
            hello_until: Instant::now() + HELLO_LIMIT,
        }
    }

    /// Serves until the stream ends. What the worker holds keeps its leases; what the engine was asked goes on there.
    pub(super) async fn run<S>(mut self, mut frames: S)
    where
        S: Stream<Item = Result<WorkerRequest, Status>> + Unpin,
    {
        while !self.outbox.is_abandoned() {
            let input = match self.next(&mut frames).await {
                Event::Input(input) => input,
                Event::Called(Called::Answered(answer)) => Input::Answered(answer),
                Event::Called(Called::Joined(place)) => Input::Joined(place.map(|place| self.sit(place))),
                Event::Broken(status) => {
                    tracing::debug!(session_id = %self.session_id, code = ?status.code(), "worker stream broke");
                    return self.outbox.finish(Err(explained(&status)));
                }
                Event::Nothing => continue,
            };
            for output in self.protocol.step(input) {
                match output {
                    Output::Send(frame) => self.outbox.push(frame),
                    Output::Join(hello) => {
                        let session = self.introduce(&hello);
                        let call = join(self.engine.clone(), session, hello).map(Called::Joined);
                        self.call(call.boxed()).await;
                    }
                    Output::Run(command) => {
                        if let Some(session) = self.session.clone() {
                            let call = execute(self.engine.clone(), session, command).map(Called::Answered);
                            self.call(call.boxed()).await;
                        }
                    }
                    Output::Note(note) => self.note(note),
                    Output::End(end) => return self.end(end),
                }
            }
        }
    }

    /// Waits for the next thing that the protocol wants to know of. What ends the session comes first, then what makes
    /// room, then what fills it.
    async fn next<S>(&mut self, frames: &mut S) -> Event
    where
        S: Stream<Item = Result<WorkerRequest, Status>> + Unpin,
    {
        let room = self.outbox.has_room();
        let wants_work = room && self.protocol.wants_work();
        let wants_frames = room && self.protocol.wants_frames();
        let awaits_idle = self.protocol.awaits_idle();
        let hello_until = self.protocol.awaits_hello().then_some(self.hello_until);
        let stalls_at = self.outbox.waits_since().map(|since| since + STALL_LIMIT);
        tokio::select! {
            biased;
            () = self.sessions.ending.cancelled() => Event::Input(Input::Ending),
            () = self.sessions.stopping.cancelled(), if !self.told_to_stop => {
                self.told_to_stop = true;
                Event::Input(Input::Stopping)
            }
            () = self.outbox.changed() => Event::Nothing,
            () = until(stalls_at) => self.stalled(),
            () = until(hello_until) => Event::Input(Input::HelloOverdue),
            // Answers are taken in any case: a call that nobody waits for any more would keep its place at the engine.
            // There are as many as the protocol lets in.
            Some(called) = self.calls.next() => Event::Called(called),
            Some(event) = seat_event(self.seat_events.as_mut()), if wants_work => {
                Event::Input(Input::Seat(event))
            }
            () = idle(self.seat.as_ref()), if awaits_idle => Event::Input(Input::Idle),
            frame = frames.next(), if wants_frames => match frame {
                Some(Ok(frame)) => Event::Input(Input::Frame(frame)),
                Some(Err(status)) => Event::Broken(status),
                None => Event::Input(Input::FramesEnded),
            },
        }
    }

    /// Whether the reader really stalls: it may have read since the wait for it began.
    fn stalled(&self) -> Event {
        match self.outbox.waits_since() {
            Some(since) if since.elapsed() >= STALL_LIMIT => Event::Input(Input::ReaderStalled),
            _ => Event::Nothing,
        }
    }

    fn introduce(&mut self, hello: &Hello) -> Session {
        let session = Session {
            principal: Arc::clone(&self.principal),
            session_id: self.session_id,
            worker_name: hello.worker_name.as_str().into(),
        };
        self.session = Some(session.clone());
        session
    }

    fn sit(&mut self, place: Place) -> Joined {
        self.seat = Some(place.seat);
        self.seat_events = Some(place.events);
        if let Some(session) = &self.session {
            let (session_id, worker_name) = (session.session_id, &session.worker_name);
            tracing::info!(%session_id, %worker_name, "worker {worker_name} came");
        }
        place.joined
    }

    /// Begins a call. It is polled at once, so that calls reach the engine in the order of their frames.
    async fn call(&mut self, mut call: BoxFuture<'static, Called>) {
        let first = poll_fn(|cx| Poll::Ready(call.poll_unpin(cx))).await;
        self.calls.push(match first {
            Poll::Ready(called) => future::ready(called).boxed(),
            Poll::Pending => call,
        });
    }

    fn note(&self, note: SeatNote) {
        let Some(seat) = &self.seat else { return };
        match note {
            SeatNote::Started(attempt_id, lease) => seat.started(attempt_id, lease),
            SeatNote::Renewed(attempt_id, lease) => seat.renewed(attempt_id, lease),
            SeatNote::Released(attempt_id) => seat.released(attempt_id),
            SeatNote::Drain => seat.drain(),
        }
    }

    fn end(&self, end: End) {
        let session_id = self.session_id;
        if matches!(end, End::ReaderStalled) {
            tracing::warn!(%session_id, "worker reads nothing for {STALL_LIMIT:?}: its stream is ended");
            return self.outbox.abort(reader_stalled());
        }
        let ended = end_status(end).map_or(Ok(()), Err);
        tracing::debug!(%session_id, code = ?ended.as_ref().map_err(Status::code), "worker stream ends");
        self.outbox.finish(ended);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.seat.is_some() {
            tracing::info!(session_id = %self.session_id, "worker left");
        }
        // However the session ends, its reader must not wait for more.
        let message = "the session ended unexpectedly: connect again";
        let unexpected = ErrorReply::new(Code::Unavailable, "INTERNAL", message);
        self.outbox.finish(Err(unexpected.into_status()));
    }
}

/// Looks at what the worker says it holds, then takes a seat for it, with the slots of what it really holds taken.
async fn join(engine: Engine, session: Session, hello: Hello) -> Result<Place, Failure> {
    let mut statuses = Vec::with_capacity(hello.held.len());
    for some in hello.held.chunks(RENEW_LEASES_MAX) {
        statuses.extend(engine.renew(some).await?);
    }
    let named = hello.held.iter().copied().zip(statuses.iter().copied());
    let mut held: Vec<_> = named.filter(|(_, lease)| lease.valid).collect();
    held.sort_unstable_by_key(|(a, _)| a.attempt_id);
    held.dedup_by_key(|(a, _)| a.attempt_id);
    let request = SeatRequest {
        session,
        queue_ids: hello.queue_ids,
        handlers: hello.handlers,
        max_in_flight: hello.max_in_flight,
        held,
    };
    let (seat, events) = engine.take_seat(request).await?;
    let unknown_queue_ids = seat.unknown_queue_ids().to_vec();
    Ok(Place { seat, events, joined: Joined { held: statuses, unknown_queue_ids } })
}

async fn execute(engine: Engine, session: Session, command: Command) -> Answer {
    match command {
        Command::Start(ticket, start) => Answer::Start(ticket, engine.start_attempt(start, &session).await),
        Command::Finish(ticket, finish) => {
            Answer::Finish(ticket, engine.finish_attempt(finish, &session).await)
        }
        Command::Renew(ticket, attempts) => Answer::Renew(ticket, engine.renew(&attempts).await),
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => future::pending().await,
    }
}

async fn seat_event(events: Option<&mut mpsc::Receiver<SeatEvent>>) -> Option<SeatEvent> {
    match events {
        Some(events) => events.recv().await,
        None => None,
    }
}

async fn idle(seat: Option<&Seat>) {
    match seat {
        Some(seat) => seat.idle().await,
        None => future::pending().await,
    }
}

/// The status that a stream ends with, if not well.
fn end_status(end: End) -> Option<Status> {
    Some(match end {
        End::Done => return None,
        End::HelloRequired => {
            let message = format!("the first message must be hello, within {HELLO_LIMIT:?}");
            ErrorReply::new(Code::FailedPrecondition, "HELLO_REQUIRED", message).into_status()
        }
        End::BadHello(rejection) => status(&rejection),
        End::FeatureRequired(feature) => {
            let message = format!("the worker must support {feature} and say so in its hello");
            ErrorReply::new(Code::FailedPrecondition, "FEATURE_REQUIRED", message)
                .about("feature", feature.to_owned())
                .into_status()
        }
        End::NotTakenIn(failure) => status(&failure),
        End::ReaderStalled => reader_stalled(),
        End::Draining => ErrorReply::draining(DRAINING_RETRY_AFTER).into_status(),
    })
}

fn reader_stalled() -> Status {
    let message = format!("nothing was read from the stream for {STALL_LIMIT:?}: read, then connect again");
    ErrorReply::new(Code::ResourceExhausted, "STREAM_STALLED", message).into_status()
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::domain::rejection::Rejection;

    #[test]
    fn a_stream_ends_with_a_status_that_says_why() {
        let invalid = Rejection::field("hello", "is bad");
        for (end, code, reason) in [
            (End::HelloRequired, Code::FailedPrecondition, "HELLO_REQUIRED"),
            (End::BadHello(invalid), Code::InvalidArgument, "INVALID_ARGUMENT"),
            (End::FeatureRequired("safe-retry/1"), Code::FailedPrecondition, "FEATURE_REQUIRED"),
            (End::NotTakenIn(Failure::OutcomeUnknown), Code::Unavailable, "OUTCOME_UNKNOWN"),
            (End::ReaderStalled, Code::ResourceExhausted, "STREAM_STALLED"),
            (End::Draining, Code::Unavailable, "DRAINING"),
        ] {
            let status = end_status(end).expect("not well");
            let told = status.get_details_error_info().map(|i| i.reason);
            assert_eq!((status.code(), told.as_deref()), (code, Some(reason)));
        }
        assert!(end_status(End::Done).is_none());
    }
}

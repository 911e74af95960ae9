//! What a worker has not read yet.
//!
//! Not a channel, for two reasons: it knows since when its reader has taken nothing, and it can drop what a stalled
//! reader will never take. The transport keeps the reading half for as long as the connection lives.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use futures_util::Stream;
use prost::Message as _;
use tokio::{sync::Notify, time::Instant};
use tonic::Status;

use crate::proto::{WorkerResponse, worker_response::Message};

/// With so many frames waiting nothing is read or claimed for the worker. Answers to what was read before still fit.
const FRAMES_MAX: usize = 64;
/// The same, in bytes.
const BYTES_MAX: usize = 1024 * 1024;

/// The writing half.
pub(super) struct Outbox {
    shared: Arc<Shared>,
}

/// The reading half: the frames in order, then the status that the stream ended with, if not well.
pub struct OutboxStream {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Told when there is room again, and when the reader goes.
    changed: Notify,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Waiting>,
    bytes: usize,
    /// Since when the first frame waits without any having been taken.
    waits_since: Option<Instant>,
    reader: Option<Waker>,
    end: Option<Result<(), Status>>,
    abandoned: bool,
}

struct Waiting {
    frame: WorkerResponse,
    bytes: usize,
    since: Instant,
}

/// Makes the two halves.
pub(super) fn outbox() -> (Outbox, OutboxStream) {
    let shared = Arc::<Shared>::default();
    (Outbox { shared: Arc::clone(&shared) }, OutboxStream { shared })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No step below can leave the state half changed, so a panic elsewhere does no harm to it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outbox {
    /// Adds a frame. Whoever makes frames without being asked looks for room first.
    pub(super) fn push(&self, frame: WorkerResponse) {
        let mut state = self.shared.lock();
        if state.abandoned || state.end.is_some() {
            return;
        }
        let (bytes, since) = (frame.encoded_len(), Instant::now());
        state.bytes += bytes;
        state.waits_since.get_or_insert(since);
        state.frames.push_back(Waiting { frame, bytes, since });
        wake(state);
    }

    /// Whether more may be made.
    pub(super) fn has_room(&self) -> bool {
        self.shared.lock().has_room()
    }

    /// Ends the stream after what waits.
    pub(super) fn finish(&self, end: Result<(), Status>) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(end);
        wake(state);
    }

    /// Ends the stream and drops what waits.
    pub(super) fn abort(&self, end: Status) {
        let mut state = self.shared.lock();
        state.clear();
        state.end = Some(Err(end));
        wake(state);
    }

    /// Since when a frame waits and none is taken.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.shared.lock().waits_since
    }

    /// Whether the reader is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.shared.lock().abandoned
    }

    /// Waits until there is room again or the reader goes. Nothing is missed between two waits.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.frames.len() < FRAMES_MAX && self.bytes < BYTES_MAX
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
        self.waits_since = None;
    }

    fn take(&mut self) -> Option<WorkerResponse> {
        let waiting = self.frames.pop_front()?;
        let now = Instant::now();
        self.bytes = self.bytes.saturating_sub(waiting.bytes);
        self.waits_since = (!self.frames.is_empty()).then_some(now);
        let waited_ms = now.saturating_duration_since(waiting.since).as_millis();
        Some(aged(waiting.frame, u32::try_from(waited_ms).unwrap_or(u32::MAX)))
    }
}

/// A frame as of now: the times that a dispatch tells run from when it leaves.
fn aged(mut frame: WorkerResponse, waited_ms: u32) -> WorkerResponse {
    if let Some(Message::Dispatch(dispatch)) = &mut frame.message {
        dispatch.lease_ms = dispatch.lease_ms.saturating_sub(waited_ms);
        dispatch.deadline_ms = dispatch.deadline_ms.saturating_sub(waited_ms);
    }
    frame
}

impl Stream for OutboxStream {
    type Item = Result<WorkerResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.shared.lock();
        let had_room = state.has_room();
        if let Some(frame) = state.take() {
            if !had_room && state.has_room() {
                self.shared.changed.notify_one();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(end) = &mut state.end else {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        // The status is told once.
        match std::mem::replace(end, Ok(())) {
            Ok(()) => Poll::Ready(None),
            Err(status) => Poll::Ready(Some(Err(status))),
        }
    }
}

impl Drop for OutboxStream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.abandoned = true;
        state.clear();
        drop(state);
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;
    use crate::{proto, session::frames};

    fn dispatch(payload_bytes: usize) -> WorkerResponse {
        WorkerResponse {
            message: Some(Message::Dispatch(proto::Dispatch {
                lease_ms: 5_000,
                deadline_ms: 1_000,
                payload: "x".repeat(payload_bytes),
                ..Default::default()
            })),
        }
    }

    #[tokio::test]
    async fn frames_come_in_order_and_then_the_end() {
        let (outbox, mut stream) = outbox();
        outbox.push(frames::pong(1));
        outbox.push(frames::pong(2));
        outbox.finish(Err(Status::unavailable("bye")));
        outbox.push(frames::pong(3));
        assert_eq!(stream.next().await.map(Result::ok), Some(Some(frames::pong(1))));
        assert_eq!(stream.next().await.map(Result::ok), Some(Some(frames::pong(2))));
        let end = stream.next().await.map(|r| r.map_err(|s| s.code()));
        assert_eq!(end, Some(Err(tonic::Code::Unavailable)));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn room_ends_with_frames_or_bytes_and_comes_back_with_each_taken() {
        let (outbox, mut stream) = outbox();
        for _ in 0..FRAMES_MAX {
            assert!(outbox.has_room());
            outbox.push(frames::pong(1));
        }
        assert!(!outbox.has_room());
        stream.next().await;
        outbox.changed().await;
        assert!(outbox.has_room());
        while stream.next().now_or_never().is_some() {}
        outbox.push(dispatch(BYTES_MAX));
        assert!(!outbox.has_room());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_counts_from_the_last_frame_taken() {
        let (outbox, mut stream) = outbox();
        assert_eq!(outbox.waits_since(), None);
        let begin = Instant::now();
        outbox.push(frames::pong(1));
        tokio::time::advance(Duration::from_secs(3)).await;
        outbox.push(frames::pong(2));
        assert_eq!(outbox.waits_since(), Some(begin));
        stream.next().await;
        assert_eq!(outbox.waits_since(), Some(begin + Duration::from_secs(3)));
        stream.next().await;
        assert_eq!(outbox.waits_since(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dispatch_that_waited_tells_the_time_that_is_left() {
        let (outbox, mut stream) = outbox();
        outbox.push(dispatch(0));
        tokio::time::advance(Duration::from_millis(1_200)).await;
        let Some(Ok(WorkerResponse { message: Some(Message::Dispatch(dispatch)) })) = stream.next().await
        else {
            panic!("a dispatch");
        };
        assert_eq!((dispatch.lease_ms, dispatch.deadline_ms), (3_800, 0));
    }

    #[tokio::test]
    async fn a_stalled_reader_leaves_nothing_behind() {
        let (outbox, mut stream) = outbox();
        outbox.push(dispatch(BYTES_MAX));
        outbox.abort(Status::resource_exhausted("stalled"));
        assert!(outbox.has_room());
        assert!(matches!(stream.next().await, Some(Err(_))));
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_reader_that_goes_is_noticed() {
        let (outbox, stream) = outbox();
        outbox.push(frames::pong(1));
        drop(stream);
        outbox.changed().await;
        assert!(outbox.is_abandoned());
        outbox.push(frames::pong(2));
        assert_eq!(outbox.waits_since(), None);
    }
}

//! The loop that joins protocol, connection and handlers. It runs on a thread of its own, so that no handler,
//! whatever it does to the threads of its runtime, can keep a lease from being renewed.

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt as _,
    future::{BoxFuture, FutureExt as _, OptionFuture},
    stream::FuturesUnordered,
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::JoinError,
    time::{Instant, sleep_until},
};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::{
    Report,
    attempt::Run,
    failure::Ending,
    handler::Handlers,
    link::{Link, LinkEvent},
    protocol::Protocol,
};
use crate::{
    proto::Hello,
    sdk::{endpoint::Endpoints, error::Error},
};

/// How long the server may take to end the stream of a worker that has drained. Until it does, an attempt that it claimed
/// at the same moment may still be on its way, and would have to wait for the end of its lease.
const FAREWELL_LIMIT: Duration = Duration::from_secs(5);

/// What the owner of a worker wants from it. When the owner is gone, the worker stops at once.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Control {
    Work,
    /// Take no more work; stop when everything is confirmed, and at this moment anyhow.
    Drain {
        until: Instant,
    },
}

pub(crate) struct Driver {
    protocol: Protocol,
    link: Link,
    handlers: Arc<Handlers>,
    /// Where handlers run: the runtime of the worker's owner.
    runtime: Handle,
    tracker: TaskTracker,
    running: FuturesUnordered<BoxFuture<'static, (String, Result<Ending, JoinError>)>>,
    control: watch::Receiver<Control>,
}

impl Driver {
    pub(crate) fn new(
        declaration: Hello,
        endpoints: Arc<Endpoints>,
        handlers: Arc<Handlers>,
        runtime: Handle,
        control: watch::Receiver<Control>,
    ) -> Self {
        Self {
            protocol: Protocol::new(declaration),
            link: Link::new(endpoints),
            handlers,
            runtime,
            tracker: TaskTracker::new(),
            running: FuturesUnordered::new(),
            control,
        }
    }

    /// Works until drained, stopped or refused.
    pub(crate) async fn run(mut self) -> Result<Report, Error> {
        let mut drain_until: Option<Instant> = None;
        let mut farewell_until: Option<Instant> = None;
        loop {
            for run in self.protocol.take_runs() {
                self.call(run);
            }
            if !self.protocol.is_drained() {
                farewell_until = None;
            } else if self.link.has_stream() && farewell_until.is_none_or(|until| Instant::now() < until) {
                farewell_until.get_or_insert_with(|| Instant::now() + FAREWELL_LIMIT);
            } else {
                self.link.close().await;
                return Ok(report(&self.protocol));
            }
            let timer = OptionFuture::from(self.protocol.next_time().map(sleep_until));
            let limit = OptionFuture::from(drain_until.map(sleep_until));
            let farewell = OptionFuture::from(farewell_until.map(sleep_until));
            tokio::select! {
                changed = self.control.changed() => match (changed, *self.control.borrow_and_update()) {
                    (Ok(()), Control::Work) => {}
                    (Ok(()), Control::Drain { until }) => {
                        drain_until = Some(until);
                        self.protocol.drain();
                    }
                    (Err(_), _) => return Ok(report(&self.protocol)),
                },
                event = self.link.next(&mut self.protocol) => {
                    let now = Instant::now();
                    match event {
                        LinkEvent::Up(welcome) => self.protocol.on_welcome(&welcome, now),
                        LinkEvent::Frame(frame) => self.protocol.on_frame(frame, now),
                        LinkEvent::Down => self.protocol.on_disconnect(now),
                        LinkEvent::Refused(error) => return Err(error),
                    }
                }
                Some((attempt_id, joined)) = self.running.next() => {
                    let ending = joined.unwrap_or_else(ending_of_lost_task);
                    self.protocol.on_ended(&attempt_id, ending, Instant::now());
                }
                Some(()) = timer => self.protocol.on_time(Instant::now()),
                Some(()) = farewell => {}
                Some(()) = limit => {
                    let report = report(&self.protocol);
                    if !report.drained {
                        tracing::warn!(?report, "the drain's time is over");
                    }
                    return Ok(report);
                }
            }
        }
    }

    /// Calls the handler, as a task of its own.
    fn call(&mut self, run: Run) {
        let Run { attempt_id, context, payload } = run;
        let span = tracing::info_span!(
            "attempt",
            task_id = context.task_id(),
            epoch = context.epoch(),
            handler = context.handler()
        );
        let Some(handler) = self.handlers.get(context.handler(), context.handler_version()).cloned() else {
            // Only what is declared is started, so this cannot happen; and if it did, nothing ran.
            let ending = Ending::never_ran("the worker has no such handler");
            return self.protocol.on_ended(&attempt_id, ending, Instant::now());
        };
        let task = async move { handler(context, payload).await }.instrument(span);
        let task = self.tracker.spawn_on(task, &self.runtime);
        self.running.push(task.map(|joined| (attempt_id, joined)).boxed());
    }
}

/// The handler panicked, or its task was aborted: what it had done by then is not known.
fn ending_of_lost_task(error: JoinError) -> Ending {
    let Ok(panic) = error.try_into_panic() else {
        return Ending::unknown("HANDLER_ABORTED", "the handler's task was aborted".to_owned());
    };
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    let text = text
        .map_or_else(|| "the handler panicked".to_owned(), |text| format!("the handler panicked: {text}"));
    Ending::unknown("HANDLER_PANICKED", text)
}

fn report(protocol: &Protocol) -> Report {
    let counts = protocol.counts();
    let unfinished = protocol.unfinished();
    Report {
        drained: protocol.is_drained(),
        started: counts.started,
        confirmed: counts.confirmed,
        running: unfinished.running,
        evidence: counts.evidence,
        refused: counts.refused,
        unconfirmed: unfinished.reporting,
    }
}

//! A lane: takes all that waits, runs it as one transaction, answers after the commit.
//!
//! There is no timer: under load the next transaction is what arrived during the last commit, and a lonely command runs
//! at once.

use std::{pin::Pin, sync::Arc};

use metrics::{Histogram, histogram};
use tokio::time::{Instant, timeout};

use crate::{
    metric,
    store::{BatchError, KEEP_EVERY, LaneConnection, Needs},
};

use super::{
    Failure, RETRY_AFTER, command::LaneJob, dispatcher::Dispatcher, queue::LaneQueue, seats::Seats,
    waiters::Waiters,
};

pub(super) struct Lane {
    connection: LaneConnection,
    queue: Arc<LaneQueue>,
    dispatcher: Arc<Dispatcher>,
    seats: Arc<Seats>,
    waiters: Arc<Waiters>,
    wait: Histogram,
    batch: Histogram,
}

impl Lane {
    pub(super) fn new(
        connection: LaneConnection,
        queue: Arc<LaneQueue>,
        dispatcher: Arc<Dispatcher>,
        seats: Arc<Seats>,
        waiters: Arc<Waiters>,
    ) -> Self {
        let (wait, batch) = (histogram!(metric::LANE_WAIT), histogram!(metric::BATCH_COMMANDS));
        Self { connection, queue, dispatcher, seats, waiters, wait, batch }
    }

    pub(super) async fn run(mut self) {
        while let Some(mut jobs) = self.next().await {
            jobs.extend(self.dispatcher.claim_after(&jobs));
            if jobs.is_empty() {
                self.connection.keep().await;
                continue;
            }
            self.measure(&jobs);
            self.run_batch(jobs).await;
            // Nothing more of this lane begins before it is known how the last commit ended.
            self.connection.settled().await;
        }
        self.connection.close().await;
    }

    /// What waits, or nothing after a while.
    async fn next(&self) -> Option<Vec<Box<dyn LaneJob>>> {
        timeout(KEEP_EVERY, self.queue.take()).await.unwrap_or_else(|_| Some(Vec::new()))
    }

    fn measure(&self, jobs: &[Box<dyn LaneJob>]) {
        let now = Instant::now();
        for since in jobs.iter().filter_map(|job| job.since()) {
            self.wait.record(now.saturating_duration_since(since));
        }
        #[expect(clippy::cast_precision_loss, reason = "a transaction has few commands")]
        self.batch.record(jobs.len() as f64);
    }

    /// Runs commands as one transaction. If it fails for a cause that will not pass, halves of it are run, so that one bad
    /// command fails alone.
    fn run_batch(
        &mut self,
        mut jobs: Vec<Box<dyn LaneJob>>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let mut needs = Needs::default();
            for job in &jobs {
                job.needs(&mut needs);
            }
            let outcome =
                self.connection.run(&needs, |ws| jobs.iter_mut().for_each(|job| job.apply(ws))).await;
            match outcome {
                Ok(((), wakes)) => {
                    for job in jobs {
                        job.deliver();
                    }
                    self.seats.committed(&wakes);
                    self.waiters.settled(&wakes.settled);
                }
                Err(BatchError::Unavailable) => {
                    fail(jobs, &Failure::DatabaseUnavailable { retry_after: RETRY_AFTER });
                }
                Err(BatchError::OutcomeUnknown) => fail(jobs, &Failure::OutcomeUnknown),
                Err(BatchError::Failed(fault)) if jobs.len() == 1 => fail(jobs, &fault.into()),
                Err(BatchError::Failed(fault)) => {
                    tracing::warn!(%fault, commands = jobs.len(), "a transaction failed; its halves are run alone");
                    let rest = jobs.split_off(jobs.len() / 2);
                    self.run_batch(jobs).await;
                    self.connection.settled().await;
                    self.run_batch(rest).await;
                }
            }
        })
    }
}

fn fail(jobs: Vec<Box<dyn LaneJob>>, failure: &Failure) {
    for job in jobs {
        job.fail(failure.clone());
    }
}

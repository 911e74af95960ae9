//! The engine: everything that changes state is a command, and commands go through lanes.
//!
//! ```text
//! rpc / session / reaper ──command──▶ lane ──▶ lock & load ──▶ decide ──▶ save ──▶ commit ──▶ answers, wake-ups
//! ```

mod claims;
mod command;
mod dispatch;
mod dispatcher;
mod failure;
mod heartbeat;
mod lane;
mod options;
mod queue;
mod reaper;
mod retention;
mod seats;
mod slots;
mod waiters;

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use dispatch::{Dispatch, SeatEvent, SeatRequest};
pub use failure::Failure;
pub use options::EngineOptions;
pub use reaper::Swept;
pub use seats::{Seat, ServedHandler};
pub use waiters::Waiter;

use crate::{
    domain::{
        decide::Resolution,
        ids::{AttemptRef, RequestId, SessionId, TaskId},
        queue::{Queue, QueueChange},
        receipt::OperatorReceipt,
        rejection::Rejection,
        report::{Finish, Start},
        submission::Submission,
        task::LeaseStatus,
    },
    store::{Database, Fault, LaneConnection},
};

use command::{
    CancelTask, ChangeQueue, Command, CreateQueue, FinishAttempt, Renew, ResolveTask, StartAttempt, Submit,
};
pub use command::{MessageReply, Submitted};
use dispatcher::Dispatcher;
use lane::Lane;
use queue::{Answer, BatchMax, LaneQueue};
use seats::Seats;
use waiters::Waiters;

/// How long a caller waits for its answer before it is told to ask again.
const REPLY_LIMIT: Duration = Duration::from_secs(9);
/// What callers are told to wait while the database is away.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// One worker session, as leases and events name it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Whose worker it is.
    pub principal: Arc<str>,
    /// The stream.
    pub session_id: SessionId,
    /// The worker's label.
    pub worker_name: Arc<str>,
}

/// Who asks for a write to a queue, and under which id.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks.
    pub principal: Arc<str>,
    /// Made by the caller, so that a re-sent request is safe.
    pub request_id: RequestId,
}

/// The running engine. A cheap handle.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    options: EngineOptions,
    node_id: Arc<str>,
    lanes: Vec<Arc<LaneQueue>>,
    dispatcher: Arc<Dispatcher>,
    seats: Arc<Seats>,
    waiters: Arc<Waiters>,
    healthy: watch::Receiver<bool>,
    draining: AtomicBool,
    /// Ends the services that make new work: dispatcher, reaper, heartbeat.
    stop: CancellationToken,
    services: TaskTracker,
    lane_tasks: TaskTracker,
    /// A part has panicked.
    broken: CancellationToken,
}

impl Engine {
    /// Starts the lanes and the background services on a database whose schema is current.
    pub async fn start(database: Database, options: EngineOptions) -> Result<Self, Fault> {
        let node_id: Arc<str> = options.node_id.clone().into();
        let seats = Arc::new(Seats::new(database.clone()));
        let terms = options.lease_terms();
        // Before anything is judged: an outage of all nodes ends now.
        database.heartbeat(terms).await?;
        let (lanes, lane_tasks) = (Vec::new(), TaskTracker::new());
        let (healthy_tx, healthy) = watch::channel(true);
        let services = TaskTracker::new();
        let dispatcher = Arc::new(Dispatcher::new(
            database.clone(),
            seats.clone(),
            node_id.clone(),
            options.start_window_ms(),
            services.clone(),
        ));
        let mut inner = Inner {
            database,
            options,
            node_id,
            lanes,
            dispatcher,
            seats,
            waiters: Arc::default(),
            healthy,
            draining: AtomicBool::new(false),
            stop: CancellationToken::new(),
            services,
            lane_tasks,
            broken: CancellationToken::new(),
        };
        let process = uuid::Uuid::new_v4().simple();
        let bytes = inner.database.statement_bytes_max();
        let batch = BatchMax { commands: inner.options.batch_max.max(1), bytes };
        for n in 0..inner.options.lane_count(&inner.database) {
            let name = format!("{process}/{n}");
            let connection =
                LaneConnection::open(inner.database.clone(), inner.node_id.clone(), terms, name).await?;
            let queue = Arc::new(LaneQueue::new(batch));
            inner.lanes.push(queue.clone());
            let lane = Lane::new(
                connection,
                queue,
                inner.dispatcher.clone(),
                inner.seats.clone(),
                inner.waiters.clone(),
            );
            spawn(&inner.lane_tasks, &inner.broken, lane.run());
        }
        let engine = Self { inner: Arc::new(inner) };
        let (services, broken) = (&engine.inner.services, &engine.inner.broken);
        spawn(services, broken, heartbeat::run(engine.clone(), healthy_tx));
        spawn(services, broken, dispatcher::run(engine.clone()));
        spawn(services, broken, reaper::run(engine.clone()));
        spawn(services, broken, retention::run(engine.clone()));
        spawn(services, broken, slots::run(engine.clone()));
        spawn(services, broken, waiters::run(engine.clone()));
        Ok(engine)
    }

    /// Stops making work, finishes what is under way, closes the database.
    pub async fn shutdown(&self) {
        self.drain();
        self.inner.stop.cancel();
        self.inner.services.close();
        self.inner.services.wait().await;
        for lane in &self.inner.lanes {
            lane.close();
        }
        self.inner.lane_tasks.close();
        self.inner.lane_tasks.wait().await;
        self.inner.database.close().await;
    }

    /// Takes no more submits and claims nothing more; what workers hold goes on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
        self.inner.seats.drain_all();
    }

    /// Returns once a part of the engine has panicked: the node does not do all of its work any more, and must end.
    pub async fn broken(&self) {
        self.inner.broken.cancelled().await;
    }

    /// Whether [`Engine::broken`] would return.
    pub fn is_broken(&self) -> bool {
        self.inner.broken.is_cancelled()
    }

    /// This node's name.
    pub fn node_id(&self) -> &Arc<str> {
        &self.inner.node_id
    }

    /// How the engine was started.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// The largest payload or result, in bytes: as configured, and so that one statement can carry it.
    pub fn text_bytes_max(&self) -> usize {
        self.inner.options.payload_bytes_max.min(self.inner.database.statement_bytes_max())
    }

    /// The database, for reads.
    pub fn database(&self) -> &Database {
        &self.inner.database
    }

    /// Whether the database answers and takes writes.
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.inner.healthy.clone()
    }

    /// Accepts a task, or finds the one that this key made before.
    pub async fn submit(&self, submission: Submission) -> Result<Submitted, Failure> {
        let (lane, submit) = self.admit(submission).await?;
        self.send(lane, submit).await
    }

    /// The same for many, each by itself; of two with the same key the first comes first.
    pub async fn submit_all(&self, submissions: Vec<Submission>) -> Vec<Result<Submitted, Failure>> {
        let admitted = join_all(submissions.into_iter().map(|submission| self.admit(submission))).await;
        let queued: Vec<_> =
            admitted.into_iter().map(|admitted| admitted.and_then(|(lane, s)| self.queue(lane, s))).collect();
        join_all(queued.into_iter().map(|answer| async { answered(answer?).await })).await
    }

    /// Finds out where a new task would wait and what stands against it, and which lane decides.
    async fn admit(&self, submission: Submission) -> Result<(usize, Submit), Failure> {
        if self.inner.draining.load(Ordering::Relaxed) {
            return Err(Failure::Draining { retry_after: Duration::from_secs(1) });
        }
        if !*self.inner.healthy.borrow() {
            return Err(Failure::DatabaseUnavailable { retry_after: RETRY_AFTER });
        }
        let database = self.database();
        let route =
            database.route(&submission.queue_id, &submission.handler, &submission.handler_version).await?;
        // What stands against a new task is judged only if the key is new (S19).
        let admission = submission
            .payload
            .check_size("payload", self.text_bytes_max())
            .and_then(|()| route.ok_or_else(|| Rejection::QueueNotFound(submission.queue_id.clone())));
        let mut hasher = DefaultHasher::new();
        (&submission.principal, &submission.idempotency_key).hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % self.inner.lanes.len() as u64).unwrap_or(0);
        Ok((lane, Submit::new(submission, admission)))
    }

    /// Asks whether an attempt may run.
    pub async fn start_attempt(&self, message: Start, session: &Session) -> Result<MessageReply, Failure> {
        let lane = self.lane_of(message.attempt.task_id);
        let lease_ms = self.inner.options.lease_ms();
        self.send(lane, StartAttempt { message, session: session.clone(), lease_ms }).await
    }

    /// Takes a report.
    pub async fn finish_attempt(&self, message: Finish, session: &Session) -> Result<MessageReply, Failure> {
        let lane = self.lane_of(message.attempt.task_id);
        self.send(lane, FinishAttempt { message, session: session.clone() }).await
    }

    /// Renews the leases that are running and valid, and tells of each as of now, in the order asked. An unstarted lease
    /// is told of, and not extended.
    pub async fn renew(&self, attempts: &[AttemptRef]) -> Result<Vec<LeaseStatus>, Failure> {
        let lease_ms = self.inner.options.lease_ms();
        let gone = LeaseStatus { valid: false, remaining_ms: 0, cancel_requested: false };
        let mut statuses = vec![gone; attempts.len()];
        let answers = (0..self.inner.lanes.len()).map(|lane| {
            let mine: Vec<(usize, AttemptRef)> = attempts
                .iter()
                .copied()
                .enumerate()
                .filter(|(_, a)| self.lane_of(a.task_id) == lane)
                .collect();
            async move {
                if mine.is_empty() {
                    return Ok(Vec::new());
                }
                let renew = Renew { attempts: mine.iter().map(|(_, a)| *a).collect(), lease_ms };
                let answers = self.send(lane, renew).await?;
                Ok::<_, Failure>(mine.into_iter().map(|(i, _)| i).zip(answers).collect())
            }
        });
        for (i, status) in futures_util::future::try_join_all(answers).await?.into_iter().flatten() {
            if let Some(slot) = statuses.get_mut(i) {
                *slot = status;
            }
        }
        Ok(statuses)
    }

    /// Makes a queue.
    pub async fn create_queue(
        &self,
        queue_id: String,
        max_running: u32,
        request: Request,
    ) -> Result<Queue, Failure> {
        self.send(0, CreateQueue { queue_id, max_running, request }).await
    }

    /// Changes a queue.
    pub async fn change_queue(
        &self,
        queue_id: String,
        change: QueueChange,
        expected_revision: Option<u32>,
        request: Request,
    ) -> Result<Queue, Failure> {
        self.send(0, ChangeQueue { queue_id, change, expected_revision, request }).await
    }

    /// Cancels a task.
    pub async fn cancel_task(
        &self,
        task_id: TaskId,
        reason: String,
        request: Request,
    ) -> Result<OperatorReceipt, Failure> {
        self.send(self.lane_of(task_id), CancelTask { task_id, reason, request }).await
    }

    /// Resolves a task in review.
    pub async fn resolve_task(
        &self,
        task_id: TaskId,
        resolution: Resolution,
        request: Request,
    ) -> Result<OperatorReceipt, Failure> {
        self.send(self.lane_of(task_id), ResolveTask { task_id, resolution, request }).await
    }

    /// Takes a seat at the dispatcher: from now on attempts arrive at it, each claimed and committed.
    pub async fn take_seat(
        &self,
        request: SeatRequest,
    ) -> Result<(Seat, mpsc::Receiver<SeatEvent>), Failure> {
        Ok(self.inner.seats.clone().take(request).await?)
    }

    /// What the sessions at this node serve for a queue, by name.
    pub fn served(&self, queue_id: &str) -> Vec<ServedHandler> {
        self.inner.seats.served(queue_id)
    }

    /// Registers for the moment at which nothing more happens to a task by itself. Look at the task after that.
    pub fn waiter(&self, task_id: TaskId) -> Waiter {
        self.inner.waiters.register(task_id)
    }

    /// Sweeps once: reclaims what has lapsed. Several nodes may do so at once.
    pub async fn sweep(&self) -> Result<Swept, Failure> {
        reaper::run_once(self).await
    }

    /// Removes all tasks that ended so long ago or longer, and tells how many they were. Several nodes may do so at once.
    pub async fn remove_finished(&self, keep: Duration) -> Result<u64, Failure> {
        retention::run_once(self, keep).await
    }

    fn lane_of(&self, task_id: TaskId) -> usize {
        // The tail of a UUIDv7 is random.
        usize::from(task_id.0.as_bytes()[15]) % self.inner.lanes.len()
    }

    /// Sends a command into a lane and waits for its answer. The command goes on if the caller does not wait.
    async fn send<C: Command>(&self, lane: usize, command: C) -> Result<C::Reply, Failure> {
        answered(self.queue(lane, command)?).await
    }

    fn queue<C: Command>(&self, lane: usize, command: C) -> Result<Answer<C::Reply>, Failure> {
        match self.inner.lanes.get(lane) {
            Some(queue) => queue.push(command),
            None => Err(Failure::Draining { retry_after: RETRY_AFTER }),
        }
    }
}

/// Runs a part of the engine. If it panics the engine is broken: the others would go on without what it does.
fn spawn(tasks: &TaskTracker, broken: &CancellationToken, part: impl Future<Output = ()> + Send + 'static) {
    let broken = broken.clone().drop_guard();
    tasks.spawn(async move {
        part.await;
        broken.disarm();
    });
}

async fn answered<R>(answer: Answer<R>) -> Result<R, Failure> {
    match timeout(REPLY_LIMIT, answer).await {
        Ok(Ok(reply)) => reply,
        // The lane ended, or is too slow: nobody knows.
        Ok(Err(_)) | Err(_) => Err(Failure::OutcomeUnknown),
    }
}

#[cfg(test)]
impl Engine {
    /// Lets a part of it panic.
    pub(crate) fn break_down(&self) {
        spawn(&self.inner.services, &self.inner.broken, async {
            panic!("a part breaks down, as the test wants it")
        });
    }
}

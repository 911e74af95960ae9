//! Claims due tasks for sessions with room, and hands them over after the commit.
//!
//! Every transaction of a lane claims along what it can, so that a new task may go to a worker in the transaction that
//! accepts it. When no command comes, lanes are nudged: by commits, by due times and by free slots. Only what other nodes
//! accepted is polled for.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::TaskTracker;

use crate::{
    domain::ids::{RouteNo, TaskId},
    metric,
    store::{Database, Needs, RouteInfo, WorkingSet},
};

use super::{
    Engine, Failure,
    claims::Named,
    command::{Claim, Claimed, Claims, LaneJob},
    dispatch::Dispatch,
    seats::Seats,
};

/// How often a payload is asked for before the lease is left to run out.
const PAYLOAD_TRIES: u32 = 5;

/// Claims for the seats of a node.
pub(super) struct Dispatcher {
    database: Database,
    seats: Arc<Seats>,
    node_id: Arc<str>,
    start_window_ms: u32,
    tasks: TaskTracker,
}

/// A claim on its way through a lane.
struct ClaimJob {
    dispatcher: Arc<Dispatcher>,
    claim: Claim,
    named: Named,
    claims: Claims,
}

/// Nudges the lanes whenever there may be something to claim.
pub(super) async fn run(engine: Engine) {
    let poll_interval = engine.inner.options.poll_interval;
    let mut poll_at = Instant::now();
    let seats = engine.inner.seats.clone();
    while !engine.inner.stop.is_cancelled() {
        if Instant::now() >= poll_at {
            poll(&engine).await;
            poll_at = Instant::now() + poll_interval;
        }
        // Registered before looking: a wake-up between the look and the wait is not lost.
        let woken = seats.woken();
        let idle = engine.inner.lanes.iter().find(|lane| lane.is_idle());
        // One that is busy looks after its commit.
        if let Some(lane) = idle.or(engine.inner.lanes.first()) {
            lane.nudge();
        }
        let due = seats.next_due().map_or(poll_interval, |w| w.min(poll_interval));
        tokio::select! {
            () = woken => {}
            () = sleep(due.max(Duration::from_micros(200))) => {}
            () = sleep_until(poll_at) => {}
            () = engine.inner.stop.cancelled() => {}
        }
    }
}

/// One probe for everything, and only if somebody could take something.
async fn poll(engine: &Engine) {
    if !engine.inner.seats.has_room() {
        return;
    }
    match engine.inner.database.due().await {
        Ok((due, now)) => engine.inner.seats.probed(&due, now),
        Err(fault) => tracing::debug!(%fault, "due work not looked for"),
    }
}

impl Dispatcher {
    pub(super) const fn new(
        database: Database,
        seats: Arc<Seats>,
        node_id: Arc<str>,
        start_window_ms: u32,
        tasks: TaskTracker,
    ) -> Self {
        Self { database, seats, node_id, start_window_ms, tasks }
    }

    /// A claim to be run after these jobs in the same transaction: of what they bring, and of what is due anyway. None if
    /// there is nothing to claim or nobody to take it.
    pub(super) fn claim_after(self: &Arc<Self>, jobs: &[Box<dyn LaneJob>]) -> Option<Box<dyn LaneJob>> {
        let mut coming: HashMap<RouteNo, u32> = HashMap::new();
        for route in jobs.iter().filter_map(|job| job.brings()) {
            *coming.entry(route).or_default() += 1;
        }
        let (asks, named) = self.seats.asks(&coming, &self.node_id)?;
        let claim = Claim { asks, start_window_ms: self.start_window_ms };
        Some(Box::new(ClaimJob { dispatcher: self.clone(), claim, named, claims: Claims::default() }))
    }

    async fn hand_over(&self, claimed: Vec<Claimed>, claimed_at: Instant) {
        let ids: Vec<TaskId> = claimed.iter().map(|c| c.task.id).collect();
        let mut texts = None;
        for _ in 0..PAYLOAD_TRIES {
            match self.database.dispatch_texts(&ids).await {
                Ok(found) => {
                    texts = Some(found);
                    break;
                }
                Err(fault) => {
                    tracing::debug!(%fault, "payloads not read");
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
        let Some(texts) = texts else {
            tracing::warn!(tasks = ids.len(), "payloads could not be read; the leases are left to run out");
            return;
        };
        let mut texts: HashMap<TaskId, _> =
            texts.into_iter().map(|t| (t.task_id, (t.payload_version, t.payload))).collect();
        for one in claimed {
            let texts = texts.remove(&one.task.id);
            self.dispatch(&one, texts, claimed_at);
        }
    }

    fn dispatch(&self, claimed: &Claimed, texts: Option<(String, String)>, claimed_at: Instant) {
        let route = self.database.routes().get(claimed.task.route.route);
        let (Some(texts), Some(route)) = (texts, route) else {
            tracing::error!(task_id = %claimed.task.id, "a claimed task has no payload or no route");
            return;
        };
        if let Some(dispatch) = dispatch(claimed, route, texts, claimed_at) {
            self.seats.hand_over(claimed.session_id, dispatch);
        }
    }
}

impl LaneJob for ClaimJob {
    fn bytes(&self) -> usize {
        0
    }

    fn needs(&self, needs: &mut Needs) {
        self.claim.needs(needs);
    }

    fn apply(&mut self, ws: &mut WorkingSet) {
        self.claims = self.claim.apply(ws);
    }

    fn deliver(self: Box<Self>) {
        let claimed_at = Instant::now();
        let Self { dispatcher, claim, named, claims } = *self;
        dispatcher.seats.claimed(&claim.asks, &claims, &named);
        for one in &claims.claimed {
            metric::took(metric::DISPATCH, one.waited);
        }
        let mut unread = Vec::new();
        for one in claims.claimed {
            match &one.accepted {
                Some(accepted) => {
                    let texts = (accepted.payload_version.clone(), accepted.payload.as_str().to_owned());
                    dispatcher.dispatch(&one, Some(texts), claimed_at);
                }
                None => unread.push(one),
            }
        }
        if !unread.is_empty() {
            // In a task of its own: the lane does not wait for the payloads.
            let tasks = dispatcher.tasks.clone();
            tasks.spawn(async move { dispatcher.hand_over(unread, claimed_at).await });
        }
    }

    /// If it was committed all the same, its leases run out unstarted: nothing was dispatched.
    fn fail(self: Box<Self>, failure: Failure) {
        tracing::debug!(?failure, "claim failed");
        let tasks = self.dispatcher.tasks.clone();
        tasks.spawn(async move {
            // Until then its slots stay set aside, so that it is not tried again at once.
            sleep(Duration::from_millis(100)).await;
            self.dispatcher.seats.claimed(&self.claim.asks, &Claims::default(), &self.named);
        });
    }
}

fn dispatch(
    claimed: &Claimed,
    route: RouteInfo,
    (payload_version, payload): (String, String),
    claimed_at: Instant,
) -> Option<Dispatch> {
    let task = &claimed.task;
    let lease = task.lease()?;
    let ms =
        |until: crate::domain::time::Moment| Duration::from_millis(until.ms_since(lease.leased_at).into());
    Some(Dispatch {
        attempt: claimed.attempt(),
        max_attempts: task.attempt_limit(),
        lease: ms(lease.lease_until),
        deadline: ms(task.deadline_at),
        claimed_at,
        route,
        payload_version,
        payload,
        recovery_safety: task.policy.recovery_safety,
        effect_uncertain: task.doubt,
        attempt_timeout_ms: task.policy.attempt_timeout_ms,
    })
}

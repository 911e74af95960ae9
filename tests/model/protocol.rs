//! The steps of the protocol, as a model that stateright can explore.

use std::sync::Arc;

use orbit::domain::{
    decide::{Acceptance, FinishAnswer, StartAnswer, accept, cancel, claim, lapse, renew},
    event::Event,
    ids::{Epoch, LOCAL_PRINCIPAL, QueueNo, Route, RouteNo},
    json::JsonText,
    policy::{Policy, RecoverySafety},
    receipt::Receipt,
    submission::Submission,
    task::{State, StateName},
};
use stateright::{Model, Property};

use super::{
    bugs::{self, Bug},
    laws::{self, Step},
    world::{
        Body, Db, HandlerEnd, Look, Message, Promise, RECLAIMERS, Run, Truth, WORKERS, Worker, World, actor,
        attempt_ref, holder, index, moment,
    },
};

/// An unstarted lease, in ticks.
const START_WINDOW: u32 = 1;
/// A running lease: one renewal fits before the attempt's time is over.
const LEASE: u32 = 2;
const ATTEMPT_TIMEOUT: u32 = 3;
const BACKOFF: u32 = 1;

/// What one run of the checker explores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    /// The task's policy.
    pub(crate) safety: RecoverySafety,
    /// The task's budget.
    pub(crate) max_attempts: u32,
    /// The task's latest start.
    pub(crate) start_before: Option<u8>,
    /// The moment of its deadline.
    pub(crate) deadline: u8,
    /// Whether workers send each report under two ids.
    pub(crate) renames: bool,
    /// Whether somebody may cancel.
    pub(crate) cancel: bool,
    /// What is wrong.
    pub(crate) bug: Option<Bug>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time goes on.
    Tick,
    /// The task is claimed.
    Claim,
    /// A worker is given the newest attempt, and sends its start. Two may be given the same one.
    Take {
        /// Which worker.
        worker: usize,
    },
    /// A message arrives, be it for the first time or again.
    Deliver {
        /// Which message.
        message: Message,
        /// Whether the answer reaches the worker, and lets it run.
        heard: bool,
    },
    /// An authorized worker runs the handler and sends its report.
    Run {
        /// Which worker.
        worker: usize,
        /// How the handler ends.
        ending: HandlerEnd,
    },
    /// A renewal arrives: of any attempt that ever started, at any time.
    Renew {
        /// Which attempt.
        epoch: Epoch,
    },
    /// A worker crashes and forgets.
    Crash {
        /// Which worker.
        worker: usize,
    },
    /// A reclaimer reads, without a lock, that the task has lapsed.
    Look,
    /// A reclaimer acts on what it read.
    Reclaim {
        /// Which look.
        look: usize,
    },
    /// Somebody cancels.
    Cancel,
}

/// What a step did that its before and after do not show.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// The event that it wrote.
    pub(crate) event: Option<Event>,
    /// The receipt that it answered with.
    pub(crate) receipt: Option<Receipt>,
    /// Whether that was decided in this step, and not replayed.
    pub(crate) fresh: bool,
}

impl Protocol {
    /// Whether the bug is there.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn accepted(&self) -> World {
        let submission = Submission {
            principal: LOCAL_PRINCIPAL.into(),
            idempotency_key: "key".into(),
            queue_id: "queue".into(),
            handler: "handler".into(),
            handler_version: "v1".into(),
            payload_version: "v1".into(),
            payload: JsonText::null(),
            // Not frozen from a request: these times are shorter than what a producer may ask for. No decision looks
            // at their size, only at their order.
            policy: Policy {
                max_attempts: self.max_attempts,
                initial_delay_ms: BACKOFF,
                max_delay_ms: BACKOFF,
                attempt_timeout_ms: ATTEMPT_TIMEOUT,
                recovery_safety: self.safety,
                task_timeout_ms: self.deadline.into(),
            },
            not_before: None,
            start_before: self.start_before.map(moment),
        };
        let route = Route { route: RouteNo(1), queue: QueueNo(1) };
        let acceptance = Acceptance { task_id: attempt_ref(1).task_id, route };
        let accepted = accept(&submission, &acceptance, moment(0), &actor()).expect("a valid submission");
        World {
            tick: 0,
            db: Arc::new(Db { task: accepted.task, receipts: Vec::new(), ended: Vec::new() }),
            sent: Vec::new(),
            workers: [Worker::Idle; WORKERS],
            looks: Vec::new(),
            truth: Truth::default(),
        }
    }

    /// Takes a step; none if it changes nothing.
    fn step(&self, before: &World, action: Action) -> Option<(World, Trace)> {
        let mut world = before.clone();
        let now = before.now();
        let mut trace = Trace::default();
        match action {
            Action::Tick => world.tick += 1,
            Action::Claim => {
                let db = Arc::make_mut(&mut world.db);
                let next = attempt_ref(db.task.attempt_count + 1);
                let claimed =
                    claim(&db.task, next.attempt_id, &holder(), START_WINDOW, now, &actor()).ok()?;
                trace.event = Some(db.apply(claimed));
                let until = db.task.lease()?.lease_until;
                world.truth.promises.push(Promise { until, started: false, returned: false });
            }
            Action::Take { worker } => {
                let epoch = before.db.task.attempt_count;
                world.workers[worker] = Worker::Asked(epoch);
                world.send(Message { epoch, worker, body: Body::Start });
            }
            Action::Deliver { message, heard } => {
                trace = self.deliver(&mut world, message);
                if heard {
                    // Whether the lease is still valid it does not ask: the worst that a worker may do.
                    trace.receipt.as_ref()?;
                    world.workers[message.worker] = Worker::Authorized(message.epoch);
                }
            }
            Action::Run { worker, ending } => {
                let (Worker::Asked(epoch) | Worker::Authorized(epoch)) = before.workers[worker] else {
                    return None;
                };
                world.truth.runs.push(Run { epoch, worker, effect: ending.has_effect(), safe: false });
                world.workers[worker] = Worker::Idle;
                for copy in 0..=u8::from(self.renames) {
                    world.send(Message { epoch, worker, body: Body::Finish { ending, copy } });
                }
            }
            Action::Renew { epoch } => {
                let task = renew(&before.db.task, attempt_ref(epoch), LEASE, now)?;
                world.truth.promises[index(epoch)].until = task.lease()?.lease_until;
                Arc::make_mut(&mut world.db).task = task;
            }
            Action::Crash { worker } => world.workers[worker] = Worker::Idle,
            Action::Look => {
                let copy = self.has(Bug::StaleReclaim).then(|| Arc::new(before.db.task.clone()));
                world.looks.push(Look { copy });
            }
            Action::Reclaim { look } => {
                let look = world.looks.remove(look);
                if let Some(transition) = bugs::reclaim(self, &before.db.task, &look, now) {
                    trace.event = Some(Arc::make_mut(&mut world.db).apply(transition));
                }
            }
            Action::Cancel => {
                let db = Arc::make_mut(&mut world.db);
                trace.event = Some(db.apply(cancel(&db.task, "", now, &actor())?));
                if before.db.task.state.name() == StateName::Leased {
                    world.truth.promises[index(before.db.task.attempt_count)].returned = true;
                }
            }
        }
        Some((world, trace))
    }

    /// The transaction that a message leads to.
    fn deliver(&self, world: &mut World, message: Message) -> Trace {
        let now = world.now();
        let has_authority = world.has_authority(message.epoch);
        let mut trace = Trace::default();
        let write = |db: &mut Arc<Db>, transition| Some(Arc::make_mut(db).apply(transition));
        let db = &mut world.db;
        let (receipt, event, stored) = match message.body {
            Body::Start => match bugs::start(self, db, message, LEASE, now) {
                Err(_) => return trace,
                Ok(StartAnswer::Replay(receipt)) => (receipt, None, false),
                Ok(StartAnswer::Granted(transition, receipt)) => (receipt, write(db, *transition), true),
            },
            Body::Finish { ending, .. } => match bugs::finish(self, db, message, ending, now) {
                Err(_) => return trace,
                Ok(FinishAnswer::Replay(receipt)) => (receipt, None, false),
                Ok(FinishAnswer::Alias { receipt, store }) => (receipt, None, store),
                Ok(FinishAnswer::Applied(transition, receipt)) => (receipt, write(db, *transition), true),
                Ok(FinishAnswer::Evidence(_, event, receipt)) => (receipt, Some(*event), true),
            },
        };
        if stored {
            Arc::make_mut(db).store(message.epoch, receipt.clone());
        }
        trace.fresh = event.is_some();
        let applied = trace.fresh && receipt.disposition == laws::APPLIED;
        if let (true, Some(promise)) = (applied, world.truth.promises.get_mut(index(message.epoch))) {
            match message.body {
                Body::Start => {
                    promise.started = true;
                    promise.until = db.task.lease().map_or(now, |l| l.lease_until);
                }
                Body::Finish { ending, .. } => {
                    promise.returned = true;
                    let own = |r: &&mut Run| r.epoch == message.epoch && r.worker == message.worker;
                    if let (true, Some(run)) = (has_authority, world.truth.runs.iter_mut().find(own)) {
                        run.safe = ending == HandlerEnd::FailedBefore;
                        world.truth.verified |= ending == HandlerEnd::Succeeded && run.effect;
                    }
                }
            }
        }
        (trace.event, trace.receipt) = (event, Some(receipt));
        trace
    }

    fn worker_actions(&self, world: &World, worker: usize, actions: &mut Vec<Action>) {
        let epoch = world.db.task.attempt_count;
        match world.workers[worker] {
            Worker::Idle => {
                // Workers differ only by name: the first to be given anything is the first.
                let is_next = worker == 0 || world.sent.iter().any(|m| m.worker < worker);
                let asked = world.sent.contains(&Message { epoch, worker, body: Body::Start });
                if epoch > 0 && is_next && !asked {
                    actions.push(Action::Take { worker });
                }
                return;
            }
            Worker::Asked(_) if !self.has(Bug::EarlyRun) => {}
            Worker::Asked(_) | Worker::Authorized(_) => {
                use HandlerEnd::{FailedBefore, FailedForGood, Stopped, Succeeded, Unknown};
                for ending in [Succeeded, FailedBefore, FailedForGood, Unknown] {
                    actions.push(Action::Run { worker, ending });
                }
                if world.db.task.cancel.is_some() {
                    actions.push(Action::Run { worker, ending: Stopped });
                }
            }
        }
        actions.push(Action::Crash { worker });
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.accepted()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.truth.broken.is_empty() {
            return;
        }
        let task = &world.db.task;
        if world.tick < self.deadline {
            actions.push(Action::Tick);
        }
        if matches!(task.state, State::Waiting { .. }) {
            actions.push(Action::Claim);
        }
        for worker in 0..WORKERS {
            self.worker_actions(world, worker, actions);
        }
        for &message in &world.sent {
            actions.push(Action::Deliver { message, heard: false });
            // An answer matters to a worker only if it lets it run. Any other makes it stop, as if it crashed.
            if message.body == Body::Start && world.workers[message.worker] == Worker::Asked(message.epoch) {
                actions.push(Action::Deliver { message, heard: true });
            }
        }
        let started = (1..).zip(&world.truth.promises).filter(|(_, p)| p.started);
        actions.extend(started.map(|(epoch, _)| Action::Renew { epoch }));
        if world.looks.len() < RECLAIMERS && lapse(task, world.now(), &actor()).is_some() {
            actions.push(Action::Look);
        }
        // Equal looks are one.
        let is_first = |&look: &usize| !world.looks[..look].contains(&world.looks[look]);
        let looks = (0..world.looks.len()).filter(is_first);
        actions.extend(looks.map(|look| Action::Reclaim { look }));
        if self.cancel && task.cancel.is_none() {
            actions.push(Action::Cancel);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let (mut after, trace) = self.step(before, action)?;
        let step = Step { protocol: self, before, after: &after, action, trace: &trace };
        after.truth.broken = laws::broken(&step);
        (after != *before).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        laws::properties(self)
    }
}

//! Where worker sessions sit: what each serves, holds and has room for, and the way an attempt takes to it.

mod seat;
mod served;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    domain::{
        ids::{AttemptId, AttemptRef, Route, RouteNo, SessionId},
        time::Moment,
    },
    store::{Database, Due, Fault, HeldLease, RouteInfo, Wakes},
};

pub use served::ServedHandler;

use super::{
    Session,
    claims::{DueBoard, MANY, Named, Rota},
    command::{Ask, Claimed, Claims},
    dispatch::{Dispatch, SeatEvent, SeatRequest},
};

/// Attempts that one session may hold unstarted: a slow reader must not burn other people's budgets.
const UNSTARTED_MAX: u32 = 64;
/// Bytes of payload of unstarted attempts, those being claimed included, after which no further one is claimed. Each
/// claim may go beyond its share by one of the largest: with [`CLAIMS_MAX`] of them the promised 4 MiB hold.
const UNSTARTED_BYTES: usize = 2 * 1024 * 1024;
/// Claims under way for one session.
const CLAIMS_MAX: u32 = 2;
/// The share of each.
const CLAIM_BYTES: usize = UNSTARTED_BYTES / CLAIMS_MAX as usize;
/// What may wait for a session to listen.
const EVENTS_MAX: usize = 2 * UNSTARTED_MAX as usize;
/// After a lease should have ended, how long to wait before looking: reclaiming takes a moment.
const LOOK_AFTER: Duration = Duration::from_millis(500);

/// A session's seat. Dropping it leaves: nothing more is claimed for it; what it holds keeps its leases.
pub struct Seat {
    seats: Arc<Seats>,
    session_id: SessionId,
    unknown_queue_ids: Vec<String>,
    freed: Arc<Notify>,
}

/// All seats of the node.
pub(super) struct Seats {
    database: Database,
    board: Mutex<Board>,
    wake: Notify,
}

#[derive(Default)]
struct Board {
    seats: HashMap<SessionId, Sitting>,
    holders: HashMap<AttemptId, SessionId>,
    rota: Rota,
    /// Routes that every seat was asked about.
    asked_about: HashSet<RouteNo>,
    due: DueBoard,
    closed: bool,
}

struct Sitting {
    session: Session,
    queue_ids: HashSet<String>,
    handlers: HashSet<(String, String)>,
    known_routes: HashSet<RouteNo>,
    max_in_flight: u32,
    held: HashMap<AttemptId, Held>,
    /// What claims under way may bring.
    asked: Asked,
    draining: bool,
    sender: mpsc::Sender<SeatEvent>,
    freed: Arc<Notify>,
}

#[derive(Default)]
struct Asked {
    claims: u32,
    slots: u32,
    bytes: usize,
}

struct Held {
    attempt: AttemptRef,
    payload_bytes: usize,
    started: bool,
    cancel_told: bool,
    look_at: Instant,
}

impl Sitting {
    fn unstarted(&self) -> u32 {
        u32::try_from(self.held.values().filter(|h| !h.started).count()).unwrap_or(u32::MAX)
    }

    fn bytes_left(&self) -> usize {
        let unstarted: usize = self.held.values().filter(|h| !h.started).map(|h| h.payload_bytes).sum();
        UNSTARTED_BYTES.saturating_sub(unstarted).saturating_sub(self.asked.bytes)
    }

    /// How many more attempts it can take.
    fn room(&self) -> u32 {
        if self.draining || self.asked.claims == CLAIMS_MAX || self.bytes_left() == 0 {
            return 0;
        }
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let slots = self.max_in_flight.saturating_sub(held);
        let unstarted = UNSTARTED_MAX.saturating_sub(self.unstarted());
        slots.min(unstarted).saturating_sub(self.asked.slots)
    }

    /// Sets so many slots aside for a claim. Answers the bytes that go with them.
    fn ask(&mut self, slots: u32) -> usize {
        let bytes = self.bytes_left().min(CLAIM_BYTES);
        self.asked.claims += 1;
        self.asked.slots += slots;
        self.asked.bytes += bytes;
        bytes
    }

    /// The claim is over.
    fn answered(&mut self, ask: &Ask) {
        self.asked.claims = self.asked.claims.saturating_sub(1);
        self.asked.slots = self.asked.slots.saturating_sub(ask.slots);
        self.asked.bytes = self.asked.bytes.saturating_sub(ask.bytes);
    }

    fn serves(&self, info: &RouteInfo) -> bool {
        self.queue_ids.contains(&*info.queue_id)
            && self.handlers.contains(&(info.handler.to_string(), info.handler_version.to_string()))
    }
}

impl Seats {
    pub(super) fn new(database: Database) -> Self {
        Self { database, board: Mutex::default(), wake: Notify::new() }
    }

    pub(super) async fn take(
        self: Arc<Self>,
        request: SeatRequest,
    ) -> Result<(Seat, mpsc::Receiver<SeatEvent>), Fault> {
        let mut unknown_queue_ids = Vec::new();
        for queue_id in &request.queue_ids {
            if self.database.queue(queue_id).await?.is_none() {
                unknown_queue_ids.push(queue_id.clone());
            }
        }
        // Room for all that may be unstarted and more, so that handing over never waits.
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let freed = Arc::new(Notify::new());
        let session_id = request.session.session_id;
        let held = request.held.into_iter().map(|(attempt, lease)| {
            let held = Held {
                attempt,
                payload_bytes: 0,
                started: true,
                cancel_told: lease.cancel_requested,
                look_at: look_at(lease.remaining_ms),
            };
            (attempt.attempt_id, held)
        });
        let sitting = Sitting {
            session: request.session,
            queue_ids: request.queue_ids.into_iter().collect(),
            handlers: request.handlers.into_iter().collect(),
            known_routes: HashSet::new(),
            max_in_flight: request.max_in_flight,
            held: held.collect(),
            asked: Asked::default(),
            draining: false,
            sender,
            freed: freed.clone(),
        };
        let mut board = self.lock();
        let draining = board.closed;
        board.holders.extend(sitting.held.keys().map(|a| (*a, session_id)));
        board.seats.insert(session_id, Sitting { draining, ..sitting });
        let all = self.database.routes().all();
        board.ask_about(&all);
        board.assign(session_id, &all);
        let routes: Vec<RouteNo> = board
            .seats
            .get(&session_id)
            .map(|s| s.known_routes.iter().copied().collect())
            .unwrap_or_default();
        // They may have had something all along, with nobody to take it.
        for route in routes {
            board.due.name(route, Moment::from_micros(0), MANY);
        }
        drop(board);
        self.wake.notify_one();
        Ok((Seat { seats: self, session_id, unknown_queue_ids, freed }, events))
    }

    /// Hears of a commit: what became claimable, which permits are free, which attempts ended.
    pub(super) fn committed(&self, wakes: &Wakes) {
        let mut board = self.lock();
        if let Some(now) = wakes.now {
            board.due.tick(now);
        }
        if wakes.ready.iter().any(|(route, _)| !board.asked_about.contains(route)) {
            board.ask_about(&self.database.routes().all());
        }
        for (route, at) in &wakes.ready {
            board.due.name(*route, *at, 1);
        }
        for queue in &wakes.queues {
            for route in board.rota.routes_of(*queue) {
                board.due.name(route, Moment::from_micros(0), MANY);
            }
        }
        for queue in &wakes.freed {
            let Board { due, rota, .. } = &mut *board;
            due.freed(*queue, |route| rota.queue_of(route) == Some(*queue));
        }
        for attempt_id in &wakes.ended {
            board.release(*attempt_id);
        }
        drop(board);
        self.canceled(&wakes.canceled);
        self.wake.notify_one();
    }

    /// Hears what a probe of the database found.
    pub(super) fn probed(&self, due: &[Due], now: Moment) {
        let mut board = self.lock();
        board.due.tick(now);
        if due.iter().any(|d| !board.asked_about.contains(&d.route)) {
            board.ask_about(&self.database.routes().all());
        }
        for d in due {
            board.due.name(d.route, d.at, MANY);
        }
    }

    /// Everything may have changed.
    pub(super) fn look_again(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// What to claim now, for whom: from routes that have something, and from those that are about to get so many more
    /// tasks. None if there is nothing to claim or nobody to take it.
    pub(super) fn asks(
        &self,
        coming: &HashMap<RouteNo, u32>,
        node_id: &Arc<str>,
    ) -> Option<(Vec<Ask>, Named)> {
        let mut board = self.lock();
        let mut due = board.due.due_now();
        for (route, tasks) in coming {
            due.entry(*route).or_default().expect(*tasks);
        }
        let Board { seats, rota, .. } = &mut *board;
        let shares = rota.shares(&due, |s| seats.get(&s).map_or(0, Sitting::room));
        let mut asks = Vec::with_capacity(shares.len());
        for share in shares {
            let Some(sitting) = seats.get_mut(&share.session_id) else {
                continue;
            };
            asks.push(Ask {
                holder: crate::domain::attempt::Holder {
                    principal: sitting.session.principal.clone(),
                    session_id: share.session_id,
                    node_id: node_id.clone(),
                    worker_name: sitting.session.worker_name.clone(),
                },
                routes: share.routes,
                slots: share.slots,
                bytes: sitting.ask(share.slots),
                to: sitting.sender.clone(),
            });
        }
        (!asks.is_empty()).then_some((asks, due))
    }

    /// How long nothing is due that anybody here serves; none if that is not known.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let mut board = self.lock();
        let Board { due, rota, .. } = &mut *board;
        due.wait(|route| rota.serves(route))
    }

    /// Whether any session could take something.
    pub(super) fn has_room(&self) -> bool {
        self.lock().seats.values().any(|s| s.room() > 0)
    }

    /// Takes the answer to a claim: slots are held from now on.
    pub(super) fn claimed(&self, asks: &[Ask], claims: &Claims, named: &Named) {
        let mut board = self.lock();
        for ask in asks {
            if let Some(sitting) = board.seats.get_mut(&ask.holder.session_id) {
                sitting.answered(ask);
                sitting.freed.notify_one();
            }
        }
        for one in &claims.claimed {
            let attempt = one.attempt();
            let remaining_ms = one.task.lease().map_or(0, |l| l.lease_until.ms_since(l.leased_at));
            let Some(sitting) = board.seats.get_mut(&one.session_id) else {
                continue;
            };
            let held = Held {
                attempt,
                payload_bytes: one.task.payload_bytes as usize,
                started: false,
                cancel_told: false,
                look_at: look_at(remaining_ms),
            };
            sitting.held.insert(one.attempt_id, held);
            board.holders.insert(one.attempt_id, one.session_id);
            if one.accepted.is_none() {
                board.due.claimed(one.task.route.route, 1);
            }
        }
        for route in &claims.exhausted {
            board.due.exhausted(*route, named);
        }
        for route in &claims.blocked {
            board.due.blocked(*route, named);
        }
        drop(board);
        // What was set aside and not used may be of use to others.
        self.wake.notify_one();
    }

    /// Hands an attempt over. If its session has gone, the lease runs out.
    pub(super) fn hand_over(&self, session_id: SessionId, dispatch: Dispatch) {
        let sender = self.lock().seats.get(&session_id).map(|s| s.sender.clone());
        let event = SeatEvent::Dispatch(Box::new(dispatch));
        if sender.is_none_or(|s| s.try_send(event).is_err()) {
            tracing::debug!(%session_id, "a session left before its dispatch");
        }
    }

    /// Whether any session holds anything.
    pub(super) fn holds_any(&self) -> bool {
        !self.lock().holders.is_empty()
    }

    /// Tells the sessions that hold these attempts of the cancels, once.
    pub(super) fn canceled(&self, canceled: &[(AttemptId, Arc<str>)]) {
        let mut board = self.lock();
        let Board { seats, holders, .. } = &mut *board;
        for (attempt_id, reason) in canceled {
            let Some(sitting) = holders.get(attempt_id).and_then(|s| seats.get_mut(s)) else { continue };
            let Some(held) = sitting.held.get_mut(attempt_id).filter(|h| !h.cancel_told) else { continue };
            let event = SeatEvent::Canceled { attempt_id: *attempt_id, reason: reason.clone() };
            // A session that does not listen is told at its next renewal, and by the next look.
            held.cancel_told = sitting.sender.try_send(event).is_ok();
        }
    }

    /// Attempts whose leases should have ended a while ago.
    pub(super) fn overdue(&self) -> Vec<AttemptRef> {
        let now = Instant::now();
        let board = self.lock();
        let held = board.seats.values().flat_map(|s| s.held.values());
        held.filter(|h| h.look_at <= now).map(|h| h.attempt).collect()
    }

    /// Compares them with the leases there are.
    pub(super) fn reconcile(&self, overdue: &[AttemptRef], leases: &[HeldLease]) {
        let current: HashMap<AttemptId, u32> =
            leases.iter().map(|l| (l.attempt_id, l.remaining_ms)).collect();
        let mut board = self.lock();
        for attempt in overdue {
            match current.get(&attempt.attempt_id) {
                Some(remaining_ms) => board.look_later(attempt.attempt_id, *remaining_ms),
                None => board.release(attempt.attempt_id),
            }
        }
        drop(board);
        self.wake.notify_one();
    }

    /// Nobody gets anything more.
    pub(super) fn drain_all(&self) {
        let mut board = self.lock();
        board.closed = true;
        board.seats.values_mut().for_each(|s| s.draining = true);
    }

    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
    /// Gives new routes to the seats that serve them. Each route is compared with all seats once.
    fn ask_about(&mut self, routes: &[RouteInfo]) {
        let new: Vec<RouteInfo> =
            routes.iter().filter(|i| self.asked_about.insert(i.route.route)).cloned().collect();
        if new.is_empty() {
            return;
        }
        let sessions: Vec<SessionId> = self.seats.keys().copied().collect();
        for session_id in sessions {
            self.assign(session_id, &new);
        }
    }

    /// Gives a seat those of these routes that it serves.
    fn assign(&mut self, session_id: SessionId, routes: &[RouteInfo]) {
        let Some(sitting) = self.seats.get_mut(&session_id) else { return };
        for info in routes {
            if sitting.serves(info) && sitting.known_routes.insert(info.route.route) {
                let route: Route = info.route;
                self.rota.add(session_id, route);
            }
        }
    }

    fn release(&mut self, attempt_id: AttemptId) {
        let Some(session_id) = self.holders.remove(&attempt_id) else {
            return;
        };
        if let Some(sitting) = self.seats.get_mut(&session_id) {
            sitting.held.remove(&attempt_id);
            sitting.freed.notify_one();
        }
    }

    fn look_later(&mut self, attempt_id: AttemptId, remaining_ms: u32) {
        let session = self.holders.get(&attempt_id);
        if let Some(held) =
            session.and_then(|s| self.seats.get_mut(s)).and_then(|s| s.held.get_mut(&attempt_id))
        {
            held.look_at = look_at(remaining_ms);
        }
    }
}

impl Claimed {
    /// Names the attempt.
    pub(super) fn attempt(&self) -> AttemptRef {
        AttemptRef { task_id: self.task.id, attempt_id: self.attempt_id, epoch: self.task.attempt_count }
    }
}

fn look_at(remaining_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(remaining_ms.into()) + LOOK_AFTER
}

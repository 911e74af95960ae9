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
    claims::{DueBoard, Named, Rota},
    command::{Ask, Claimed},
    dispatch::{Dispatch, SeatEvent, SeatRequest},
};

/// Attempts that one session may hold unstarted: a slow reader must not burn other people's budgets.
const UNSTARTED_MAX: u32 = 64;
/// Bytes of payload of unstarted attempts after which no further one is claimed. With one more of the largest, the
/// promised 4 MiB hold.
const UNSTARTED_BYTES: usize = 3 * 1024 * 1024;
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
    /// Slots and bytes of claims under way.
    asked: u32,
    draining: bool,
    sender: mpsc::Sender<SeatEvent>,
    freed: Arc<Notify>,
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

    fn unstarted_bytes(&self) -> usize {
        self.held.values().filter(|h| !h.started).map(|h| h.payload_bytes).sum()
    }

    fn room(&self) -> u32 {
        if self.draining || self.asked > 0 || self.unstarted_bytes() >= UNSTARTED_BYTES {
            return 0;
        }
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        let slots = self.max_in_flight.saturating_sub(held);
        slots.min(UNSTARTED_MAX.saturating_sub(self.unstarted()))
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
            asked: 0,
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
            board.due.name(route, Moment::from_micros(0));
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
            board.due.name(*route, *at);
        }
        for queue in &wakes.queues {
            for route in board.rota.routes_of(*queue) {
                board.due.name(route, Moment::from_micros(0));
            }
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
            board.due.name(d.route, d.at);
        }
    }

    /// Everything may have changed.
    pub(super) fn look_again(&self) {
        self.wake.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// What to claim now, for whom; and how long nothing is due if there is nothing.
    pub(super) fn asks(&self, node_id: &Arc<str>) -> Result<(Vec<Ask>, Named), Option<Duration>> {
        let mut board = self.lock();
        let due = board.due.due_now();
        let Board { seats, rota, .. } = &mut *board;
        let shares = rota.shares(&due, |s| seats.get(&s).map_or(0, Sitting::room));
        let mut asks = Vec::with_capacity(shares.len());
        for share in shares {
            let Some(sitting) = seats.get_mut(&share.session_id) else {
                continue;
            };
            let slots = sitting.room();
            sitting.asked = slots;
            asks.push(Ask {
                holder: crate::domain::attempt::Holder {
                    principal: sitting.session.principal.clone(),
                    session_id: share.session_id,
                    node_id: node_id.clone(),
                    worker_name: sitting.session.worker_name.clone(),
                },
                routes: share.routes,
                slots,
                bytes: UNSTARTED_BYTES.saturating_sub(sitting.unstarted_bytes()),
                to: sitting.sender.clone(),
            });
        }
        if asks.is_empty() {
            return Err(board.due.wait(|route| board.rota.serves(route)));
        }
        Ok((asks, due))
    }

    /// Whether any session could take something.
    pub(super) fn has_room(&self) -> bool {
        self.lock().seats.values().any(|s| s.room() > 0)
    }

    /// Takes the answer to a claim: slots are held from now on.
    pub(super) fn claimed(&self, asks: &[Ask], claimed: &[Claimed], exhausted: &[RouteNo], named: &Named) {
        let mut board = self.lock();
        for ask in asks {
            if let Some(sitting) = board.seats.get_mut(&ask.holder.session_id) {
                sitting.asked = 0;
                sitting.freed.notify_one();
            }
        }
        for one in claimed {
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
        }
        for route in exhausted {
            board.due.exhausted(*route, named);
        }
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

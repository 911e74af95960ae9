//! Who gets what: which sessions have room, and which routes may have something for them.
//!
//! Pure bookkeeping under the lock of [`super::seats`]. A route that may have something to claim stands on the board until a
//! claim comes back short, unless it was named anew meanwhile; moments to come are kept beside it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::domain::{
    ids::{QueueNo, Route, RouteNo, SessionId},
    time::Moment,
};

/// Sessions asked for at once.
const ASKS_MAX: usize = 64;
/// Tasks claimed at once.
const CLAIM_MAX: u32 = 256;

/// When routes may have something, by an estimate of the database's clock. The database judges; this only decides when to
/// ask.
#[derive(Default)]
pub(super) struct DueBoard {
    /// Routes that may have something now, and how often each was named.
    now: Named,
    /// Moments from which routes will have something.
    later: BTreeSet<(Moment, RouteNo)>,
    clock: Option<(Moment, Instant)>,
}

/// Moments kept. What is left out is found by the next poll.
const LATER_MAX: usize = 100_000;

/// How often each route had been named when a claim was sent.
pub(super) type Named = HashMap<RouteNo, u64>;

impl DueBoard {
    /// Takes the database's time as just read.
    pub(super) fn tick(&mut self, now: Moment) {
        // Messages may overtake each other: the estimate never goes back.
        if self.now().is_none_or(|estimate| now > estimate) {
            self.clock = Some((now, Instant::now()));
        }
    }

    /// The database's time by estimate: at most what it is.
    fn now(&self) -> Option<Moment> {
        self.clock.map(|(at, read)| {
            let elapsed_us = i64::try_from(read.elapsed().as_micros()).unwrap_or(i64::MAX);
            Moment::from_micros(at.micros().saturating_add(elapsed_us))
        })
    }

    /// A route has something from `at` on.
    pub(super) fn name(&mut self, route: RouteNo, at: Moment) {
        if self.now().is_none_or(|now| at <= now) {
            *self.now.entry(route).or_insert(0) += 1;
        } else if self.later.len() < LATER_MAX {
            self.later.insert((at, route));
        }
    }

    /// Claims came back short: nothing more there for now, unless it was named since.
    pub(super) fn exhausted(&mut self, route: RouteNo, named: &Named) {
        if self.now.get(&route) == named.get(&route) {
            self.now.remove(&route);
        }
    }

    /// Routes that may have something now.
    pub(super) fn due_now(&mut self) -> Named {
        let Some(now) = self.now() else { return Named::new() };
        while let Some((_, route)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.pop_first();
            *self.now.entry(route).or_insert(0) += 1;
        }
        self.now.clone()
    }

    /// How long until the next of these routes may have something.
    pub(super) fn wait(&self, served: impl Fn(RouteNo) -> bool) -> Option<Duration> {
        let now = self.now()?;
        let (next, _) = self.later.iter().find(|(_, route)| served(*route))?;
        Some(Duration::from_micros(u64::try_from(next.micros() - now.micros()).unwrap_or(0)))
    }
}

/// The sessions that serve each route, in turn.
#[derive(Default)]
pub(super) struct Rota {
    serving: HashMap<RouteNo, Serving>,
}

struct Serving {
    queue: QueueNo,
    sessions: VecDeque<SessionId>,
}

/// What one session is asked for.
pub(super) struct Share {
    pub(super) session_id: SessionId,
    pub(super) routes: Vec<Route>,
}

impl Rota {
    pub(super) fn add(&mut self, session_id: SessionId, route: Route) {
        let serving = self
            .serving
            .entry(route.route)
            .or_insert_with(|| Serving { queue: route.queue, sessions: VecDeque::new() });
        serving.sessions.push_back(session_id);
    }

    pub(super) fn remove(&mut self, session_id: SessionId) {
        for serving in self.serving.values_mut() {
            serving.sessions.retain(|s| *s != session_id);
        }
        self.serving.retain(|_, s| !s.sessions.is_empty());
    }

    pub(super) fn serves(&self, route: RouteNo) -> bool {
        self.serving.contains_key(&route)
    }

    pub(super) fn routes_of(&self, queue: QueueNo) -> Vec<RouteNo> {
        self.serving.iter().filter(|(_, s)| s.queue == queue).map(|(route, _)| *route).collect()
    }

    /// Chooses sessions for the due routes, those who waited longest first, up to a claim's size. `room` tells how many
    /// more attempts a session can take.
    pub(super) fn shares(&mut self, due: &Named, room: impl Fn(SessionId) -> u32) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let mut at: HashMap<SessionId, usize> = HashMap::new();
        for route in due.keys() {
            let Some(serving) = self.serving.get_mut(route) else {
                continue;
            };
            let mut wanted = 0;
            // Whoever is asked first gets the only task there is: next time that is another one.
            let first = serving.sessions.front().copied();
            for _ in 0..serving.sessions.len() {
                if wanted >= CLAIM_MAX {
                    break;
                }
                let Some(session_id) = serving.sessions.front().copied() else {
                    break;
                };
                let free = room(session_id);
                if free > 0 {
                    let share = match at.get(&session_id) {
                        Some(i) => shares.get_mut(*i),
                        None if shares.len() < ASKS_MAX => {
                            at.insert(session_id, shares.len());
                            shares.push(Share { session_id, routes: Vec::new() });
                            shares.last_mut()
                        }
                        None => break,
                    };
                    if let Some(share) = share {
                        share.routes.push(Route { route: *route, queue: serving.queue });
                        wanted += free;
                    }
                }
                serving.sessions.rotate_left(1);
            }
            if serving.sessions.front().copied() == first {
                serving.sessions.rotate_left(1);
            }
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: RouteNo = RouteNo(1);

    fn board() -> DueBoard {
        let mut board = DueBoard::default();
        board.tick(Moment::from_micros(1_000_000));
        board
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_with_room_come_first_in_turn() {
        let mut rota = Rota { serving: HashMap::new() };
        let sessions: Vec<_> = (0..3).map(|_| SessionId(uuid::Uuid::now_v7())).collect();
        for session_id in &sessions {
            rota.add(*session_id, Route { route: ROUTE, queue: QueueNo(1) });
        }
        let mut board = board();
        board.name(ROUTE, Moment::from_micros(0));
        let due = board.due_now();
        let firsts: Vec<_> = (0..6).map(|_| rota.shares(&due, |_| 10)[0].session_id).collect();
        assert_eq!(firsts[..3], sessions);
        assert_eq!(firsts[3..], sessions);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_claim_forgets_what_was_due_and_keeps_what_will_be() {
        let mut board = board();
        board.name(ROUTE, Moment::from_micros(1_500_000));
        board.name(ROUTE, Moment::from_micros(1_000_000));
        let named = board.due_now();
        assert!(named.contains_key(&ROUTE));
        board.exhausted(ROUTE, &named);
        assert!(board.due_now().is_empty());
        assert_eq!(board.wait(|_| true), Some(Duration::from_millis(500)));
        assert_eq!(board.wait(|_| false), None);
        tokio::time::advance(Duration::from_millis(500)).await;
        assert!(board.due_now().contains_key(&ROUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_named_while_a_claim_is_under_way_stays() {
        let mut board = board();
        board.name(ROUTE, Moment::from_micros(0));
        let named = board.due_now();
        board.name(ROUTE, Moment::from_micros(0));
        board.exhausted(ROUTE, &named);
        assert!(board.due_now().contains_key(&ROUTE));
    }
}

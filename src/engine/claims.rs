//! Who gets what: which sessions have room, and which routes may have something for them.
//!
//! Pure bookkeeping under the lock of [`super::seats`]. A route that may have something to claim stands on the board until a
//! claim comes back short, unless it was named anew meanwhile; moments to come are kept beside it.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
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
/// Nobody knows how many tasks: more than a claim takes.
pub(super) const MANY: u32 = u32::MAX;

/// When routes may have something, by an estimate of the database's clock. The database judges; this only decides when to
/// ask.
#[derive(Default)]
pub(super) struct DueBoard {
    /// Routes that may have something now.
    now: Named,
    /// Moments from which routes will have something.
    later: BTreeSet<(Moment, RouteNo)>,
    /// Routes that had something when their queue had no permit left, or was paused. Empty for a queue that once was so.
    blocked: HashMap<QueueNo, HashSet<RouteNo>>,
    clock: Option<(Moment, Instant)>,
}

/// Moments kept. What is left out is found by the next poll.
const LATER_MAX: usize = 100_000;

/// What routes were said to have when a claim was sent.
pub(super) type Named = HashMap<RouteNo, Said>;

/// What a route was said to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// How often something was said.
    times: u64,
    /// An estimate of how many tasks it has.
    tasks: u32,
}

impl Said {
    /// So many are about to come.
    pub(super) fn expect(&mut self, tasks: u32) {
        self.tasks = self.tasks.saturating_add(tasks);
    }

    fn add(&mut self, tasks: u32) {
        self.times += 1;
        self.tasks = self.tasks.saturating_add(tasks);
    }
}

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

    /// A route has so many tasks from `at` on.
    pub(super) fn name(&mut self, route: RouteNo, at: Moment, tasks: u32) {
        if self.now().is_none_or(|now| at <= now) {
            self.now.entry(route).or_default().add(tasks);
        } else if self.later.len() < LATER_MAX {
            self.later.insert((at, route));
        }
    }

    /// So many tasks were claimed.
    pub(super) fn claimed(&mut self, route: RouteNo, tasks: u32) {
        if let Some(said) = self.now.get_mut(&route).filter(|said| said.tasks != MANY) {
            // It stays on the board until a claim comes back short: the estimate may be wrong.
            said.tasks = said.tasks.saturating_sub(tasks).max(1);
        }
    }

    /// Claims came back short: nothing more there for now, unless it was named since. Answers whether it was not.
    pub(super) fn exhausted(&mut self, route: RouteNo, named: &Named) -> bool {
        let times = |named: &Named| named.get(&route).map_or(0, |said| said.times);
        let known = times(&self.now) == times(named);
        if known {
            self.now.remove(&route);
        }
        known
    }

    /// Claims were held up by the queue: nothing more there until it gives permits again.
    pub(super) fn blocked(&mut self, route: Route, named: &Named) {
        let known = self.exhausted(route.route, named);
        let blocked = self.blocked.entry(route.queue).or_default();
        if known {
            blocked.insert(route.route);
        }
    }

    /// A queue gives permits again. `is_its` tells its routes.
    pub(super) fn freed(&mut self, queue: QueueNo, is_its: impl Fn(RouteNo) -> bool) {
        let Some(blocked) = self.blocked.get_mut(&queue) else { return };
        for route in blocked.drain() {
            self.now.entry(route).or_default().add(MANY);
        }
        // A claim under way may have counted before.
        for (_, said) in self.now.iter_mut().filter(|(route, _)| is_its(**route)) {
            said.times += 1;
        }
    }

    /// What routes may have now.
    pub(super) fn due_now(&mut self) -> Named {
        self.advance();
        self.now.clone()
    }

    /// Moments that have come.
    fn advance(&mut self) {
        let Some(now) = self.now() else { return };
        while let Some((_, route)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.pop_first();
            self.now.entry(route).or_default().add(MANY);
        }
    }

    /// How long until the next of these routes may have something.
    pub(super) fn wait(&mut self, served: impl Fn(RouteNo) -> bool) -> Option<Duration> {
        self.advance();
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
    /// How many more attempts it could take.
    room: u32,
    /// How many it is to take.
    pub(super) slots: u32,
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

    pub(super) fn queue_of(&self, route: RouteNo) -> Option<QueueNo> {
        self.serving.get(&route).map(|serving| serving.queue)
    }

    pub(super) fn routes_of(&self, queue: QueueNo) -> Vec<RouteNo> {
        self.serving.iter().filter(|(_, s)| s.queue == queue).map(|(route, _)| *route).collect()
    }

    /// Chooses sessions for the due routes, those who waited longest first, and gives them slots as each route wants, up
    /// to a claim's size. `room` tells how many more attempts a session can take.
    pub(super) fn shares(&mut self, due: &Named, room: impl Fn(SessionId) -> u32) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        let mut at: HashMap<SessionId, usize> = HashMap::new();
        for (route, said) in due {
            let Some(serving) = self.serving.get_mut(route) else {
                continue;
            };
            let wanted = said.tasks.min(CLAIM_MAX);
            let mut chosen = Vec::new();
            let first = serving.sessions.front().copied();
            for _ in 0..serving.sessions.len() {
                let Some(session_id) = serving.sessions.front().copied() else {
                    break;
                };
                if chosen.len() >= wanted as usize {
                    break;
                }
                let place = at.get(&session_id).copied();
                if place.is_none() && shares.len() == ASKS_MAX {
                    break;
                }
                let place = place.unwrap_or_else(|| {
                    let room = room(session_id);
                    shares.push(Share { session_id, routes: Vec::new(), room, slots: 0 });
                    at.insert(session_id, shares.len() - 1);
                    shares.len() - 1
                });
                if let Some(share) = shares.get_mut(place).filter(|s| s.slots < s.room) {
                    share.routes.push(Route { route: *route, queue: serving.queue });
                    chosen.push(place);
                }
                serving.sessions.rotate_left(1);
            }
            if serving.sessions.front().copied() == first {
                // All were asked, and there may be one task only, for the first: next time that is another one.
                serving.sessions.rotate_left(1);
            }
            spread(wanted, &chosen, &mut shares);
        }
        shares.retain(|share| share.slots > 0);
        shares
    }
}

/// Gives so many slots to the chosen shares, turn and turn about, as far as each has room.
fn spread(mut wanted: u32, chosen: &[usize], shares: &mut [Share]) {
    let mut open = chosen.to_vec();
    while wanted > 0 && !open.is_empty() {
        let each = (wanted / u32::try_from(open.len()).unwrap_or(u32::MAX)).max(1);
        open.retain(|place| {
            let Some(share) = shares.get_mut(*place) else { return false };
            let given = each.min(wanted).min(share.room - share.slots);
            share.slots += given;
            wanted -= given;
            share.slots < share.room
        });
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
    async fn a_short_claim_forgets_what_was_due_and_keeps_what_will_be() {
        let mut board = board();
        board.name(ROUTE, Moment::from_micros(1_500_000), 1);
        board.name(ROUTE, Moment::from_micros(1_000_000), 1);
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
    async fn a_blocked_route_comes_back_when_its_queue_gives_permits_even_during_a_claim() {
        let mut board = board();
        let route = Route { route: ROUTE, queue: QueueNo(1) };
        board.name(ROUTE, Moment::from_micros(0), 1);
        let named = board.due_now();
        board.blocked(route, &named);
        assert!(board.due_now().is_empty());
        board.freed(QueueNo(2), |_| false);
        assert!(board.due_now().is_empty());
        board.freed(QueueNo(1), |_| true);
        let named = board.due_now();
        assert!(named.contains_key(&ROUTE));
        board.freed(QueueNo(1), |_| true);
        board.blocked(route, &named);
        assert!(board.due_now().contains_key(&ROUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_named_while_a_claim_is_under_way_stays() {
        let mut board = board();
        board.name(ROUTE, Moment::from_micros(0), 1);
        let named = board.due_now();
        board.name(ROUTE, Moment::from_micros(0), 1);
        board.exhausted(ROUTE, &named);
        assert!(board.due_now().contains_key(&ROUTE));
    }

    fn shares(rooms: &[u32], wanted: u32) -> Vec<u32> {
        let mut rota = Rota::default();
        let ids: Vec<_> = rooms.iter().map(|_| SessionId(uuid::Uuid::new_v4())).collect();
        for id in &ids {
            rota.add(*id, Route { route: ROUTE, queue: QueueNo(1) });
        }
        let room = |id| ids.iter().position(|i| *i == id).map_or(0, |at| rooms[at]);
        let due = Named::from([(ROUTE, Said { times: 1, tasks: wanted })]);
        let shares = rota.shares(&due, room);
        ids.iter().map(|id| shares.iter().find(|s| s.session_id == *id).map_or(0, |s| s.slots)).collect()
    }

    #[test]
    fn slots_are_asked_for_as_they_are_wanted_and_spread_over_sessions() {
        assert_eq!(shares(&[64, 64, 64, 64], 10), [3, 3, 2, 2]);
        assert_eq!(shares(&[1, 64, 0, 2], 10), [1, 7, 0, 2]);
        assert_eq!(shares(&[64, 64], 1), [1, 0]);
        assert_eq!(shares(&[2, 3], MANY), [2, 3]);
        assert_eq!(shares(&[200, 200, 200], MANY), [86, 85, 85]);
        assert_eq!(shares(&[0, 0], MANY), [0, 0]);
    }

    #[test]
    fn whoever_comes_first_is_another_one_each_time() {
        for wanted in [1, MANY] {
            let mut rota = Rota::default();
            let ids: Vec<_> = (0..3).map(|_| SessionId(uuid::Uuid::now_v7())).collect();
            for id in &ids {
                rota.add(*id, Route { route: ROUTE, queue: QueueNo(1) });
            }
            let due = Named::from([(ROUTE, Said { times: 1, tasks: wanted })]);
            let firsts: Vec<_> = (0..6).map(|_| rota.shares(&due, |_| 10)[0].session_id).collect();
            assert_eq!((&firsts[..3], &firsts[3..]), (&ids[..], &ids[..]), "{wanted}");
        }
    }
}

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use uuid::Uuid;

use crate::{
    domain::{
        attempt::Holder,
        decide::claim,
        ids::{AttemptId, Route, RouteNo, SessionId},
        submission::Submission,
        task::{State, Task},
    },
    engine::SeatEvent,
    store::{Needs, WorkingSet},
};

/// Claims tasks for several sessions at once, turn and turn about.
pub(in crate::engine) struct Claim {
    /// Who wants what.
    pub(in crate::engine) asks: Vec<Ask>,
    /// How long an unstarted lease lasts.
    pub(in crate::engine) start_window_ms: u32,
}

/// What one session wants.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Ask {
    /// Who holds what is claimed.
    pub(in crate::engine) holder: Holder,
    /// From where, all of them due.
    pub(in crate::engine) routes: Vec<Route>,
    /// How many.
    pub(in crate::engine) slots: u32,
    /// No further one once so many bytes of payload were claimed.
    pub(in crate::engine) bytes: usize,
    /// The way to the session, closed once it has left.
    pub(in crate::engine) to: mpsc::Sender<SeatEvent>,
}

/// A claimed task.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Claimed {
    /// For whom.
    pub(in crate::engine) session_id: SessionId,
    /// The attempt.
    pub(in crate::engine) attempt_id: AttemptId,
    /// The task, LEASED.
    pub(in crate::engine) task: Task,
    /// How long it had been due.
    pub(in crate::engine) waited: Duration,
    /// What it was accepted from, if that was in the same transaction.
    pub(in crate::engine) accepted: Option<Arc<Submission>>,
}

/// What a claim brought.
#[derive(Debug, Default)]
pub(in crate::engine) struct Claims {
    /// What was claimed.
    pub(in crate::engine) claimed: Vec<Claimed>,
    /// The routes that had no more to give.
    pub(in crate::engine) exhausted: Vec<RouteNo>,
    /// The routes whose queues give nothing more: paused, or without a permit left.
    pub(in crate::engine) blocked: Vec<Route>,
}

impl Claim {
    /// Says what it needs.
    pub(in crate::engine) fn needs(&self, needs: &mut Needs) {
        for ask in &self.asks {
            for route in &ask.routes {
                needs.claim(route.route, route.queue, ask.slots);
            }
        }
    }

    /// Claims what waited, then what was accepted before it in the same transaction.
    pub(in crate::engine) fn apply(&self, ws: &mut WorkingSet) -> Claims {
        let mut claims = Claims::default();
        // Whoever left while this waited for its turn, or for the database, would only burn a task's budget.
        let mut open: Vec<Ask> = self.asks.iter().filter(|ask| !ask.to.is_closed()).cloned().collect();
        // One task for each session in turn, so that work spreads.
        while !open.is_empty() {
            open.retain_mut(|ask| {
                let Some(one) = claim_one(ask, self.start_window_ms, ws, &mut claims) else {
                    return false;
                };
                ask.slots -= 1;
                ask.bytes = ask.bytes.saturating_sub(one.task.payload_bytes as usize);
                claims.claimed.push(one);
                ask.slots > 0 && ask.bytes > 0
            });
        }
        claims
    }
}

fn claim_one(
    ask: &mut Ask,
    start_window_ms: u32,
    ws: &mut WorkingSet,
    claims: &mut Claims,
) -> Option<Claimed> {
    let actor = ws.actor(&ask.holder.principal, Some(ask.holder.session_id));
    while let Some(route) = ask.routes.first().copied() {
        let Some(task) = ws.next_candidate(route.route, route.queue) else {
            if ws.gives_nothing(route.queue) {
                claims.blocked.push(route);
            } else {
                claims.exhausted.push(route.route);
            }
            ask.routes.remove(0);
            continue;
        };
        let attempt_id = AttemptId(Uuid::now_v7());
        // Looked for before the time was read and judged again now; what is refused stays as it is.
        let Ok(transition) = claim(&task, attempt_id, &ask.holder, start_window_ms, ws.now(), &actor) else {
            continue;
        };
        let waited = match task.state {
            State::Waiting { available_at } => ws.now().duration_since(available_at),
            _ => Duration::ZERO,
        };
        let (task, accepted) = (transition.task.clone(), ws.submission(transition.task.id));
        ws.apply(transition);
        ws.permit_taken(route.queue);
        // The next one from another route, if there is one.
        ask.routes.rotate_left(1);
        return Some(Claimed { session_id: ask.holder.session_id, attempt_id, task, accepted, waited });
    }
    None
}

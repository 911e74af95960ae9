//! Claims due tasks for sessions with room, and hands them over after the commit.
//!
//! Woken by commits, by due times and by free slots; polls only for what other nodes accepted.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use crate::{domain::ids::TaskId, metric, store::RouteInfo};

use super::{
    Engine,
    command::{Ask, Claim, Claimed},
    dispatch::Dispatch,
};

/// How often a payload is asked for before the lease is left to run out.
const PAYLOAD_TRIES: u32 = 5;

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
        match seats.asks(&engine.inner.node_id) {
            Ok((asks, named)) => claim(&engine, asks, named).await,
            Err(wait) => {
                let due = wait.map_or(poll_interval, |w| w.min(poll_interval));
                tokio::select! {
                    () = woken => {}
                    () = sleep(due.max(Duration::from_micros(200))) => {}
                    () = sleep_until(poll_at) => {}
                    () = engine.inner.stop.cancelled() => {}
                }
            }
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

async fn claim(engine: &Engine, asks: Vec<Ask>, named: super::claims::Named) {
    let seats = &engine.inner.seats;
    let start_window_ms = engine.inner.options.start_window_ms();
    let answer = engine.send(0, Claim { asks: asks.clone(), start_window_ms }).await;
    let claimed_at = Instant::now();
    match answer {
        Ok((claimed, exhausted)) => {
            seats.claimed(&asks, &claimed, &exhausted, &named);
            for one in &claimed {
                metric::took(metric::DISPATCH, one.waited);
            }
            if !claimed.is_empty() {
                // In a task of its own: the next claim does not wait for the payloads.
                let engine = engine.clone();
                let services = engine.inner.services.clone();
                services.spawn(async move { hand_over(&engine, claimed, claimed_at).await });
            }
        }
        Err(failure) => {
            // If it was committed all the same, its leases run out unstarted: nothing was dispatched.
            seats.claimed(&asks, &[], &[], &named);
            tracing::debug!(?failure, "claim failed");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn hand_over(engine: &Engine, claimed: Vec<Claimed>, claimed_at: Instant) {
    let ids: Vec<TaskId> = claimed.iter().map(|c| c.task.id).collect();
    let mut texts = None;
    for _ in 0..PAYLOAD_TRIES {
        match engine.inner.database.dispatch_texts(&ids).await {
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
    let mut texts: std::collections::HashMap<TaskId, _> =
        texts.into_iter().map(|t| (t.task_id, (t.payload_version, t.payload))).collect();
    for one in claimed {
        let (Some(texts), Some(route)) =
            (texts.remove(&one.task.id), engine.inner.database.routes().get(one.task.route.route))
        else {
            tracing::error!(task_id = %one.task.id, "a claimed task has no payload or no route");
            continue;
        };
        if let Some(dispatch) = dispatch(&one, route, texts, claimed_at) {
            engine.inner.seats.hand_over(one.session_id, dispatch);
        }
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

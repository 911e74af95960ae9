//! Notes that this node is here, and watches whether the database is (S12).

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::store::LastSeen;

use super::Engine;

/// Without an answer for so long, the database counts as away.
const AWAY_AFTER: Duration = Duration::from_millis(1_500);

pub(super) async fn run(engine: Engine, healthy: watch::Sender<bool>) {
    let terms = engine.inner.options.lease_terms();
    let mut answered = Instant::now();
    loop {
        match timeout(AWAY_AFTER, engine.inner.database.heartbeat(terms)).await {
            Ok(Ok(LastSeen::Recent | LastSeen::Extended(_))) => {
                answered = Instant::now();
            }
            Ok(Err(fault)) => tracing::debug!(%fault, "heartbeat failed"),
            Err(_) => {
                tracing::debug!("heartbeat timed out");
                engine.inner.database.renew_connections().await;
            }
        }
        let answers = answered.elapsed() < AWAY_AFTER;
        let serves = answers && !engine.inner.database.refuses_writes();
        if change(&healthy, serves) {
            if serves {
                tracing::info!("the database serves again");
                // What became due or changed hands meanwhile.
                engine.inner.seats.look_again();
            } else {
                tracing::warn!(answers, "the database takes no writes; submits are refused until it does");
            }
        }
        tokio::select! {
            () = engine.inner.stop.cancelled() => break,
            () = sleep(terms.heartbeat()) => {}
        }
    }
    change(&healthy, false);
}

/// Tells those who watch, if it is new to them. Answers whether it was.
fn change(healthy: &watch::Sender<bool>, now: bool) -> bool {
    healthy.send_if_modified(|before| std::mem::replace(before, now) != now)
}

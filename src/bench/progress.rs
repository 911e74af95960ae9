//! Telling how far a measurement is.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

/// How often it is told.
const TICK: Duration = Duration::from_millis(200);

/// Hears what is done now, and which part of all is done (0 to 1).
pub type Told = Box<dyn Fn(&str, f64) + Send + Sync>;

/// Tells how far a measurement is, by the time that it has planned.
pub struct Progress {
    told: Told,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    planned_s: f64,
    done_s: f64,
    /// Said before everything.
    prefix: String,
}

impl Progress {
    /// Tells `told`.
    pub fn new(told: Told) -> Self {
        Self { told, state: Mutex::default() }
    }

    /// Begins anew, with something to say before everything.
    pub(super) fn begin(&self, prefix: &str) {
        *self.state() = State { prefix: prefix.to_owned(), ..State::default() };
    }

    /// How long it will take, about.
    pub(super) fn plan(&self, duration: Duration) {
        self.state().planned_s += duration.as_secs_f64();
    }

    /// Tells that something is done, which takes no time worth counting.
    pub(super) fn at(&self, what: &str) {
        self.done(what, Duration::ZERO);
    }

    /// Lets so much time pass.
    pub(super) async fn wait(&self, what: &str, duration: Duration) {
        let mut left = duration;
        while !left.is_zero() {
            let step = left.min(TICK);
            sleep(step).await;
            left -= step;
            self.done(what, step);
        }
    }

    fn done(&self, what: &str, time: Duration) {
        let mut state = self.state();
        state.done_s += time.as_secs_f64();
        let part = if state.planned_s > 0.0 { (state.done_s / state.planned_s).min(1.0) } else { 0.0 };
        let text = format!("{}{what}", state.prefix);
        drop(state);
        (self.told)(&text, part);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

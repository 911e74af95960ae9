//! Telling how far a measurement is.

use std::{
    sync::{Mutex, PoisonError},
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
    /// Seconds planned, and done.
    seconds: Mutex<(f64, f64)>,
}

impl Progress {
    /// Tells `told`.
    pub fn new(told: Told) -> Self {
        Self { told, seconds: Mutex::default() }
    }

    /// How long it will take, about.
    pub(super) fn plan(&self, duration: Duration) {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner).0 += duration.as_secs_f64();
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
        let mut seconds = self.seconds.lock().unwrap_or_else(PoisonError::into_inner);
        seconds.1 += time.as_secs_f64();
        let (planned, done) = *seconds;
        drop(seconds);
        (self.told)(what, if planned > 0.0 { (done / planned).min(1.0) } else { 0.0 });
    }
}

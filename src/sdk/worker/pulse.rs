//! Whether anybody is still at the other end of a stream: numbered pings, and how long their pongs stay out.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::proto::Ping;

/// How often to ask, at most and at least: half as often as leases are renewed, so that under short leases a dead stream
/// is noticed while they live.
const PING_EVERY_MAX: Duration = Duration::from_secs(5);
const PING_EVERY_MIN: Duration = Duration::from_secs(1);
/// Without any frame for so many ping intervals, an unanswered ping means a dead stream.
const SILENCE_PINGS: u32 = 2;
/// A ping unanswered for so many intervals means a stream that carries nothing from here to there, even while frames
/// arrive.
const PONG_PINGS: u32 = 6;

#[derive(Debug)]
pub(crate) struct Pulse {
    ping_every: Duration,
    next_ping: Instant,
    last_frame: Instant,
    sequence: u64,
    /// Pings without a pong, oldest first; at most [`PONG_PINGS`] before the stream is given up.
    unanswered: VecDeque<(u64, Instant)>,
}

impl Pulse {
    /// For a stream whose leases are renewed that often.
    pub(crate) fn new(now: Instant, renew_every: Duration) -> Self {
        let ping_every = (renew_every / 2).clamp(PING_EVERY_MIN, PING_EVERY_MAX);
        let next_ping = now + ping_every;
        Self { ping_every, next_ping, last_frame: now, sequence: 0, unanswered: VecDeque::new() }
    }

    /// A frame of any kind arrived.
    pub(crate) fn frame(&mut self, now: Instant) {
        self.last_frame = now;
    }

    /// A pong answers its ping and those before it.
    pub(crate) fn pong(&mut self, sequence: u64) {
        while self.unanswered.pop_front_if(|(number, _)| *number <= sequence).is_some() {}
    }

    /// When to look again.
    pub(crate) fn next_time(&self) -> Instant {
        self.deaf_at().map_or(self.next_ping, |deaf_at| deaf_at.min(self.next_ping))
    }

    /// The next ping, if it is time.
    pub(crate) fn ping(&mut self, now: Instant) -> Option<Ping> {
        if now < self.next_ping {
            return None;
        }
        self.next_ping = now + self.ping_every;
        self.sequence += 1;
        self.unanswered.push_back((self.sequence, now));
        Some(Ping { sequence: self.sequence })
    }

    pub(crate) fn is_deaf(&self, now: Instant) -> bool {
        self.deaf_at().is_some_and(|deaf_at| deaf_at <= now)
    }

    fn deaf_at(&self) -> Option<Instant> {
        let (_, asked_at) = self.unanswered.front()?;
        let silent = (*asked_at + self.ping_every).max(self.last_frame + self.ping_every * SILENCE_PINGS);
        Some(silent.min(*asked_at + self.ping_every * PONG_PINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_deaf_after_ten_silent_seconds_or_thirty_without_a_pong() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut pulse = Pulse::new(start, Duration::from_secs(20));
        assert_eq!(pulse.next_time(), at(5));
        assert_eq!(pulse.ping(at(4)), None);
        assert_eq!(pulse.ping(at(5)), Some(Ping { sequence: 1 }));
        assert!(!pulse.is_deaf(at(9)));
        assert!(pulse.is_deaf(at(10)));

        // Frames arrive, pongs do not.
        for second in 6..35 {
            pulse.frame(at(second));
            pulse.ping(at(second));
            assert!(!pulse.is_deaf(at(second)), "{second}");
        }
        assert!(pulse.is_deaf(at(35)));
        pulse.pong(6);
        assert!(pulse.unanswered.is_empty());
        assert!(!pulse.is_deaf(at(35)));
    }

    #[test]
    fn under_short_leases_a_dead_stream_is_noticed_while_they_live() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pulse = Pulse::new(start, Duration::from_secs(3));
        assert_eq!(pulse.ping(at(1_499)), None);
        assert!(pulse.ping(at(1_500)).is_some());
        assert!(!pulse.is_deaf(at(2_999)));
        assert!(pulse.is_deaf(at(3_000)));
        // Never more often than once a second: an answer may take a moment.
        assert_eq!(Pulse::new(start, Duration::from_millis(20)).next_time(), at(1_000));
    }
}

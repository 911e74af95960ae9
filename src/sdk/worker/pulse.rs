//! Whether anybody is still at the other end of a stream: numbered pings, and how long their pongs stay out.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::proto::Ping;

const PING_EVERY: Duration = Duration::from_secs(5);
/// Without any frame for so long, an unanswered ping means a dead stream.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// An unanswered ping means a stream that carries nothing from here to there, even while frames arrive.
const PONG_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Pulse {
    next_ping: Instant,
    last_frame: Instant,
    sequence: u64,
    /// Pings without a pong, oldest first; at most `PONG_MAX / PING_EVERY` before the stream is given up.
    unanswered: VecDeque<(u64, Instant)>,
}

impl Pulse {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next_ping: now + PING_EVERY, last_frame: now, sequence: 0, unanswered: VecDeque::new() }
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
        self.next_ping = now + PING_EVERY;
        self.sequence += 1;
        self.unanswered.push_back((self.sequence, now));
        Some(Ping { sequence: self.sequence })
    }

    pub(crate) fn is_deaf(&self, now: Instant) -> bool {
        self.deaf_at().is_some_and(|deaf_at| deaf_at <= now)
    }

    fn deaf_at(&self) -> Option<Instant> {
        let (_, asked_at) = self.unanswered.front()?;
        let silent = (*asked_at + PING_EVERY).max(self.last_frame + SILENCE_MAX);
        Some(silent.min(*asked_at + PONG_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_deaf_after_ten_silent_seconds_or_thirty_without_a_pong() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut pulse = Pulse::new(start);
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
}

//! What a session does at its seat.

use crate::domain::{ids::AttemptId, task::LeaseStatus};

use super::Seat;

impl Seat {
    /// Queues of the request that do not exist yet. They are served once they do.
    pub fn unknown_queue_ids(&self) -> &[String] {
        &self.unknown_queue_ids
    }

    /// A start was granted: the attempt no longer counts as unstarted.
    pub fn started(&self, attempt_id: AttemptId, lease: LeaseStatus) {
        let mut board = self.seats.lock();
        if let Some(held) = board.seats.get_mut(&self.session_id).and_then(|s| s.held.get_mut(&attempt_id)) {
            held.started = true;
        }
        board.look_later(attempt_id, lease.remaining_ms);
        drop(board);
        self.seats.wake.notify_one();
    }

    /// A lease was renewed.
    pub fn renewed(&self, attempt_id: AttemptId, lease: LeaseStatus) {
        self.seats.lock().look_later(attempt_id, lease.remaining_ms);
    }

    /// An attempt ended, or its lease is lost: its slot is free.
    pub fn released(&self, attempt_id: AttemptId) {
        let mut board = self.seats.lock();
        // Only its own: a worker that names somebody else's attempt frees nothing.
        if board.holders.get(&attempt_id) == Some(&self.session_id) {
            board.release(attempt_id);
        }
        drop(board);
        self.seats.wake.notify_one();
    }

    /// Takes nothing more.
    pub fn drain(&self) {
        if let Some(sitting) = self.seats.lock().seats.get_mut(&self.session_id) {
            sitting.draining = true;
        }
    }

    /// Attempts it holds, those on their way included.
    pub fn in_flight(&self) -> usize {
        let board = self.seats.lock();
        board.seats.get(&self.session_id).map_or(0, |s| s.held.len() + s.asked.slots as usize)
    }

    /// Resolves when it holds nothing, after [`Seat::drain`].
    pub async fn idle(&self) {
        loop {
            let freed = self.freed.notified();
            if self.in_flight() == 0 {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut board = self.seats.lock();
        if let Some(sitting) = board.seats.remove(&self.session_id) {
            sitting.held.keys().for_each(|attempt_id| {
                // A resumed attempt may sit elsewhere by now.
                if board.holders.get(attempt_id) == Some(&self.session_id) {
                    board.holders.remove(attempt_id);
                }
            });
        }
        board.rota.remove(self.session_id);
    }
}

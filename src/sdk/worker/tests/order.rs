//! Any order of events.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{VALID, Worker};
use crate::proto::{Disposition, worker_request::Message};

proptest! {
    /// Whatever happens in whatever order: no attempt runs twice, none without an accepted start, no message changes
    /// its content while it has no answer, and in the end everything started is confirmed.
    #[test]
    fn no_order_of_events_runs_an_attempt_twice(steps in prop::collection::vec((0_u8..8, 0_u8..3), 1..120)) {
        let mut worker = Worker::connected();
        let mut unanswered: HashMap<String, Message> = HashMap::new();
        let mut granted: HashMap<String, u32> = HashMap::new();
        for (step, which) in steps.into_iter().chain([(6, 0)]).chain((0..200).map(|step| (step % 6, 0))) {
            let id = ["a", "b", "c"][usize::from(which)];
            match step {
                0 => worker.dispatch(id),
                1 => worker.pass(u64::from(which) * 4_000),
                2 => {
                    if let Some((message_id, message)) = unanswered.iter().next().map(|(id, m)| (id.clone(), m.clone())) {
                        unanswered.remove(&message_id);
                        if let Message::Start(start) = &message {
                            *granted.entry(start.attempt_id.clone()).or_default() += 1;
                        }
                        worker.answer(&message_id, Disposition::Applied, VALID);
                        worker.sent();
                    }
                }
                3 => {
                    if let Some(id) = worker.runs.keys().next().cloned() {
                        worker.runs.remove(&id);
                        worker.end(&id);
                    }
                }
                4 | 5 => {}
                6 => drop(worker.reconnect()),
                _ => worker.protocol.on_disconnect(worker.now),
            }
            for message in worker.sent() {
                let id = match &message {
                    Message::Start(start) => start.message_id.clone(),
                    Message::Finish(finish) => finish.message_id.clone(),
                    _ => continue,
                };
                let before = unanswered.insert(id, message.clone());
                prop_assert!(before.is_none_or(|before| before == message));
            }
            for (id, times) in &worker.ran {
                prop_assert!(*times == 1 && granted.contains_key(id));
            }
        }
        worker.protocol.drain();
        prop_assert!(worker.protocol.is_drained(), "{:?}", worker.protocol.unfinished());
        let (started, confirmed, ..) = worker.counts();
        prop_assert_eq!(started, confirmed);
    }
}

//! Reads a worker's introduction.

use std::{collections::HashSet, hash::Hash};

use crate::{
    domain::{ids::AttemptRef, names, rejection::Rejection},
    proto,
};

use super::{Fields, report::attempt_refs};

/// The worker waits for start authorization and re-sends reports. Safety needs it.
pub(crate) const SAFE_RETRY: &str = "safe-retry/1";

const QUEUES_MAX: usize = 100;
const HANDLERS_MAX: usize = 1_000;
const MAX_IN_FLIGHT_MAX: u32 = 10_000;
const HELD_MAX: usize = 10_000;

/// A worker that introduced itself well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Its label.
    pub(crate) worker_name: String,
    /// The queues it takes work from, each once.
    pub(crate) queue_ids: Vec<String>,
    /// The handlers it runs, with their versions, each once.
    pub(crate) handlers: Vec<(String, String)>,
    /// How many attempts it takes at once.
    pub(crate) max_in_flight: u32,
    /// What it says it still runs, in its order.
    pub(crate) held: Vec<AttemptRef>,
}

/// Why a worker is not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadHello {
    /// It lacks a feature that safety needs.
    FeatureRequired(&'static str),
    /// Its introduction has bad fields.
    Invalid(Rejection),
}

/// Reads a hello. What is missing for safety comes before what is wrong in detail: a worker that lacks it may mean
/// something else by the rest.
pub(crate) fn hello(message: &proto::Hello) -> Result<Hello, BadHello> {
    if !message.features.iter().any(|f| f == SAFE_RETRY) {
        return Err(BadHello::FeatureRequired(SAFE_RETRY));
    }
    read(message).map_err(BadHello::Invalid)
}

fn read(message: &proto::Hello) -> Result<Hello, Rejection> {
    let mut fields = Fields::default();
    fields.check("worker_name", names::check_label(&message.worker_name));
    if count(&mut fields, "queue_ids", message.queue_ids.len(), 1..=QUEUES_MAX) {
        let each = message.queue_ids.iter().enumerate();
        fields.check("queue_ids", first_bad(each.map(|(i, q)| (i, "", names::check_queue_id(q)))));
    }
    if count(&mut fields, "handlers", message.handlers.len(), 1..=HANDLERS_MAX) {
        let each = message.handlers.iter().enumerate().flat_map(|(i, h)| {
            [
                (i, ".handler", names::check_handler(&h.handler)),
                (i, ".handler_version", names::check_handler(&h.handler_version)),
            ]
        });
        fields.check("handlers", first_bad(each));
    }
    if !(1..=MAX_IN_FLIGHT_MAX).contains(&message.max_in_flight) {
        let what = format!("is {}; must be 1 to {MAX_IN_FLIGHT_MAX}", message.max_in_flight);
        fields.bad("max_in_flight", what);
    }
    let held = if count(&mut fields, "held", message.held.len(), 0..=HELD_MAX) {
        attempt_refs(&mut fields, "held", &message.held)
    } else {
        None
    };
    let held = fields.finish(held)?;
    let handlers = message.handlers.iter().cloned();
    Ok(Hello {
        worker_name: message.worker_name.clone(),
        queue_ids: each_once(message.queue_ids.iter().cloned()),
        handlers: each_once(handlers.map(|h| (h.handler, h.handler_version))),
        max_in_flight: message.max_in_flight,
        held,
    })
}

/// Whether a list has as many items as it may have.
fn count(
    fields: &mut Fields,
    field: &'static str,
    len: usize,
    allowed: std::ops::RangeInclusive<usize>,
) -> bool {
    let good = allowed.contains(&len);
    if !good {
        let (min, max) = allowed.into_inner();
        fields.bad(field, format!("has {len} items; must have {min} to {max}"));
    }
    good
}

fn first_bad(
    mut checked: impl Iterator<Item = (usize, &'static str, Result<(), String>)>,
) -> Result<(), String> {
    checked.try_for_each(|(i, name, result)| result.map_err(|what| format!("[{i}]{name} {what}")))
}

fn each_once<T: Clone + Eq + Hash>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    items.filter(|item| seen.insert(item.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::fixtures::attempt_ref;

    fn message() -> proto::Hello {
        let handler = |version: &str| proto::HandlerVersion {
            handler: "text/normalize".into(),
            handler_version: version.into(),
        };
        proto::Hello {
            worker_name: "Wörker 1".into(),
            queue_ids: vec!["b".into(), "a".into(), "b".into()],
            handlers: vec![handler("1"), handler("2"), handler("1")],
            max_in_flight: 4,
            features: vec!["other/1".into(), SAFE_RETRY.into()],
            held: vec![proto::AttemptRef {
                task_id: attempt_ref(1).task_id.to_string(),
                attempt_id: attempt_ref(1).attempt_id.to_string(),
                epoch: 1,
            }],
        }
    }

    fn bad_fields(change: impl FnOnce(&mut proto::Hello)) -> Vec<&'static str> {
        let mut message = message();
        change(&mut message);
        match hello(&message) {
            Err(BadHello::Invalid(Rejection::Invalid(problems))) => {
                problems.iter().map(|p| p.field).collect()
            }
            _ => vec![],
        }
    }

    #[test]
    fn names_are_taken_once_and_unknown_features_are_no_harm() {
        let hello = hello(&message()).expect("a good one");
        assert_eq!(hello.queue_ids, ["b", "a"]);
        assert_eq!(hello.handlers.len(), 2);
        assert_eq!((hello.max_in_flight, hello.held), (4, vec![attempt_ref(1)]));
    }

    #[test]
    fn a_worker_without_safe_retry_is_not_taken_in() {
        let message = proto::Hello { features: vec!["safe-retry/2".into()], ..Default::default() };
        assert_eq!(hello(&message), Err(BadHello::FeatureRequired(SAFE_RETRY)));
    }

    #[test]
    fn all_bad_fields_are_named_at_once() {
        let all = bad_fields(|m| {
            *m = proto::Hello {
                features: m.features.clone(),
                held: vec![proto::AttemptRef::default()],
                ..Default::default()
            }
        });
        assert_eq!(all, ["worker_name", "queue_ids", "handlers", "max_in_flight", "held"]);
    }

    #[test]
    fn each_field_has_its_limits() {
        let name = |n: usize| format!("q{n}");
        assert!(bad_fields(|m| m.queue_ids = (0..100).map(name).collect()).is_empty());
        assert_eq!(bad_fields(|m| m.queue_ids = (0..101).map(name).collect()), ["queue_ids"]);
        assert_eq!(bad_fields(|m| m.queue_ids.push("a b".into())), ["queue_ids"]);
        assert!(bad_fields(|m| m.handlers = vec![m.handlers[0].clone(); 1_000]).is_empty());
        assert_eq!(bad_fields(|m| m.handlers = vec![m.handlers[0].clone(); 1_001]), ["handlers"]);
        assert_eq!(bad_fields(|m| m.handlers[1].handler_version.clear()), ["handlers"]);
        assert!(bad_fields(|m| m.max_in_flight = 10_000).is_empty());
        assert_eq!(bad_fields(|m| m.max_in_flight = 10_001), ["max_in_flight"]);
        assert_eq!(bad_fields(|m| m.max_in_flight = 0), ["max_in_flight"]);
        assert!(bad_fields(|m| m.held = vec![m.held[0].clone(); 10_000]).is_empty());
        assert_eq!(bad_fields(|m| m.held = vec![m.held[0].clone(); 10_001]), ["held"]);
        assert_eq!(bad_fields(|m| m.held[0].epoch = 0), ["held"]);
        assert_eq!(bad_fields(|m| m.worker_name = "w\n".into()), ["worker_name"]);
        assert_eq!(bad_fields(|m| m.worker_name = "w".repeat(129)), ["worker_name"]);
    }
}

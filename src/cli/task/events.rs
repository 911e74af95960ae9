//! `orbit task events` and `orbit task explain`: what happened, as rows and in words.

use orbit::proto::{
    Cause, Decision, Queue, QueueStats, RecoverySafety, ServedHandler, Task, TaskEvent, TaskState,
};

use super::super::{
    json::Json,
    table::Table,
    text::harmless,
    value::{Name as _, duration, moment_json, moment_short, yes_no},
};

pub(super) fn events_table(events: &[TaskEvent]) -> String {
    let mut table = Table::new(&[
        "REVISION", "AT", "EVENT", "STATE", "ATTEMPT", "DECISION", "CAUSE", "DELAY", "BY", "NOTE",
    ]);
    for event in events {
        let number = |n: u32| if n == 0 { String::new() } else { n.to_string() };
        table.row(&[
            event.revision.to_string(),
            moment_short(event.occurred_at.as_ref()),
            event.r#type.clone(),
            event.task_state().name().to_owned(),
            number(event.epoch),
            event.decision().name().to_owned(),
            event.cause().name().to_owned(),
            if event.delay_ms == 0 { String::new() } else { duration(event.delay_ms) },
            event.principal.clone(),
            event.note.clone(),
        ]);
    }
    table.print()
}

/// One event, for people who watch.
pub(super) fn event_line(event: &TaskEvent) -> String {
    let mut words = vec![moment_short(event.occurred_at.as_ref()), event.r#type.clone()];
    let mut add = |what: &str, value: String| {
        if !value.is_empty() {
            words.push(format!("{what}{value}"));
        }
    };
    add("state ", event.task_state().name().to_owned());
    add("attempt ", if event.epoch == 0 { String::new() } else { event.epoch.to_string() });
    add("decision ", event.decision().name().to_owned());
    add("cause ", event.cause().name().to_owned());
    add("again from ", moment_short(event.next_available_at.as_ref().filter(|_| event.delay_ms > 0)));
    add("", if event.effect_uncertain { "in doubt".to_owned() } else { String::new() });
    add("by ", event.principal.clone());
    add("note: ", event.note.clone());
    format!("{}\n", harmless(&words.join("  ")))
}

pub(super) fn events_json(events: &[TaskEvent]) -> String {
    let events = events.iter().map(event_json).collect();
    Json::Object(vec![("events", Json::List(events))]).print()
}

pub(super) fn event_json(event: &TaskEvent) -> Json {
    Json::Object(vec![
        ("type", event.r#type.as_str().into()),
        ("revision", event.revision.into()),
        ("occurred_at", moment_json(event.occurred_at.as_ref())),
        ("task_state", Json::text_or_null(event.task_state().name())),
        ("epoch", event.epoch.into()),
        ("decision", Json::text_or_null(event.decision().name())),
        ("cause", Json::text_or_null(event.cause().name())),
        ("delay_ms", event.delay_ms.into()),
        ("next_available_at", moment_json(event.next_available_at.as_ref())),
        ("attempt_count", event.attempt_count.into()),
        ("max_attempts", event.max_attempts.into()),
        ("effect_uncertain", event.effect_uncertain.into()),
        ("principal", event.principal.as_str().into()),
        ("session_id", Json::text_or_null(&event.session_id)),
        ("node_id", event.node_id.as_str().into()),
        ("note", Json::text_or_null(&event.note)),
        ("evidence_refs", Json::List(event.evidence_refs.iter().map(|r| r.as_str().into()).collect())),
    ])
}

/// Why a task is where it is, what it waits for, what happens next.
pub(in crate::cli) fn explanation(
    task: &Task,
    events: &[TaskEvent],
    queue: &Queue,
    stats: &QueueStats,
    served_here: &[ServedHandler],
) -> String {
    let mut lines = vec![format!("Task {} is {}.", task.task_id, task.state().name())];
    let last = events.iter().rev().find(|e| e.decision() != Decision::Unspecified);
    if let Some(event) = last {
        lines.push(format!(
            "At {} {}{}.",
            moment_short(event.occurred_at.as_ref()),
            because(event.decision()),
            caused_by(event.cause())
        ));
    }
    if let Some(cancel) = &task.cancel {
        let reason = if cancel.reason.is_empty() { String::new() } else { format!(": {}", cancel.reason) };
        lines.push(format!("{} asked for a cancel{reason}.", cancel.requested_by));
    }
    let note = last.filter(|e| e.decision() == Decision::ResolvedByOperator);
    lines.extend(note.map(|e| format!("{} wrote: {}.", e.principal, e.note)));
    if task.effect_uncertain {
        lines.push("An execution ended without anybody knowing whether it had its effect.".to_owned());
    }
    lines.push(next(task));
    if task.state() == TaskState::Waiting {
        lines.extend(held_up(queue, stats));
        lines.push(served(task, served_here));
    }
    let evidence = events.iter().filter(|e| e.r#type == "task.evidence_recorded").count();
    if evidence > 0 {
        lines.push(format!(
            "{evidence} reports came without authority and changed nothing: `orbit task attempts --json` shows them."
        ));
    }
    let lines: Vec<String> = lines.iter().map(|line| harmless(line)).collect();
    format!("{}\n", lines.join("\n"))
}

/// What keeps all tasks of a queue from being claimed.
fn held_up(queue: &Queue, stats: &QueueStats) -> Option<String> {
    let running = stats.running;
    if queue.paused {
        Some(format!("The queue is paused: `orbit queue resume {}` lets it go on.", queue.queue_id))
    } else if queue.max_running > 0 && running >= queue.max_running {
        Some(format!("The queue is full: {running} of at most {} attempts are under way.", queue.max_running))
    } else {
        None
    }
}

/// Whether anybody could take the task. Only this node's sessions can be told.
fn served(task: &Task, served_here: &[ServedHandler]) -> String {
    let (handler, version) = (&task.handler, &task.handler_version);
    let of_handler = || served_here.iter().filter(|served| served.handler == *handler);
    if let Some(served) = of_handler().find(|served| served.handler_version == *version) {
        let sessions = if served.sessions == 1 { " worker session serves" } else { " worker sessions serve" };
        return format!("At the node that answered, {}{sessions} {handler} {version}.", served.sessions);
    }
    let others: Vec<&str> = of_handler().map(|served| served.handler_version.as_str()).collect();
    let others = if others.is_empty() { String::new() } else { format!(" (but {})", others.join(", ")) };
    format!(
        "At the node that answered, no worker session serves {handler} {version}{others}; those at other nodes are not seen \
         from there."
    )
}

fn because(decision: Decision) -> &'static str {
    match decision {
        Decision::Unspecified => "nothing was decided",
        Decision::Succeeded => "an attempt succeeded",
        Decision::CancelConfirmed => "it was cancelled, and the worker confirmed that it stopped",
        Decision::CancelRequested => "it was cancelled",
        Decision::NonRetryableFailure => "an attempt failed in a way that must not be retried",
        Decision::ReconciliationRequired => {
            "it was not retried: an effect is in doubt, and the task is RECONCILE_ONLY"
        }
        Decision::AttemptLimit => "it was not retried: all its attempts are spent",
        Decision::DeadlineExceeded => "it was not tried again: its deadline leaves no time",
        Decision::StartDeadlineExceeded => "it was not tried again: its start_before leaves no time",
        Decision::RetryableFailure => "an attempt failed in a way that is safe to retry",
        Decision::IdempotentUnknown => {
            "an attempt ended with unknown effect; the task is IDEMPOTENT, so it may run again"
        }
        Decision::UnstartedLeaseExpired => "an attempt was claimed and never started, so nothing happened",
        Decision::ResolvedByOperator => "an operator resolved it",
    }
}

fn caused_by(cause: Cause) -> &'static str {
    match cause {
        Cause::Unspecified | Cause::Reported | Cause::Cancel | Cause::Operator => "",
        Cause::LeaseExpired => " (its lease ended: no renewal came in time)",
        Cause::AttemptTimeout => " (the attempt ran longer than attempt_timeout_ms)",
        Cause::TaskDeadline => " (the task's deadline passed)",
        Cause::StartDeadline => " (start_before passed)",
    }
}

fn next(task: &Task) -> String {
    let limit = task.retry.unwrap_or_default().max_attempts().saturating_add(task.granted_attempts);
    let attempts = format!("{} of {limit} attempts are spent", task.attempt_count);
    let deadline = moment_short(task.deadline_at.as_ref());
    match task.state() {
        TaskState::Waiting => format!(
            "It waits for a worker of {} {} on queue {}, from {} on; {attempts}; it fails at {deadline} if none comes.",
            task.handler,
            task.handler_version,
            task.queue_id,
            moment_short(task.available_at.as_ref()),
        ),
        TaskState::Leased => format!("A worker has it and has not started it yet; {attempts}."),
        TaskState::Running => format!(
            "A worker runs it{}; {attempts}; the deadline is {deadline}.",
            if task.cancel.is_some() { " and was told that it is cancelled" } else { "" }
        ),
        TaskState::NeedsReview => {
            let unverified = match task.recovery_safety() {
                RecoverySafety::Idempotent => " An unverified retry is allowed: it is IDEMPOTENT.",
                RecoverySafety::Unspecified | RecoverySafety::ReconcileOnly => "",
            };
            format!(
                "Nothing happens by itself. Verify at the resource whether the effect happened, then \
                 `orbit task resolve {} --revision {} --reason … --effect-verified succeeded|failed|canceled|retry`.{unverified}",
                task.task_id, task.revision
            )
        }
        TaskState::Succeeded | TaskState::Failed | TaskState::Canceled | TaskState::Unspecified => {
            let error = task.error.as_ref().map(|e| format!(" with {}", e.code)).unwrap_or_default();
            let ended = moment_short(task.completed_at.as_ref());
            format!("It ended at {ended}{error}; in doubt: {}.", yes_no(task.effect_uncertain))
        }
    }
}

use orbit::proto::{
    AttemptState, Cancel, Cause, Decision, Outcome, Queue, QueueStats, RecoverySafety, TaskEvent, TaskState,
};
use prost_types::Timestamp;

use super::{
    super::{
        events::{event_json, event_line, events_table, explanation},
        list::tasks_table,
    },
    *,
};

const PAYLOAD: &str = r#"{"n":9007199254740993,"e":1E2,"d":0.10,"d":1}"#;

fn at(seconds: i64, micros: i32) -> Timestamp {
    Timestamp { seconds: 1_893_456_000 + seconds, nanos: micros * 1_000 }
}

fn rejection() -> TaskError {
    TaskError {
        code: "TEMPORARY_REJECTION".to_owned(),
        message: "not\nnow \u{1b}[31m".to_owned(),
        details: r#"{"wait":1E1}"#.to_owned(),
    }
}

fn waiting() -> Task {
    Task {
        task_id: "01db4f7a-0000-7000-8000-000000000001".to_owned(),
        queue_id: "default".to_owned(),
        idempotency_key: "hello-1".to_owned(),
        handler: "text.normalize".to_owned(),
        handler_version: "v1".to_owned(),
        payload_version: "v2".to_owned(),
        payload: PAYLOAD.to_owned(),
        retry: Some(RetryPolicy {
            max_attempts: Some(3),
            initial_delay_ms: Some(500),
            max_delay_ms: Some(2_000),
            attempt_timeout_ms: Some(300_000),
        }),
        recovery_safety: RecoverySafety::ReconcileOnly.into(),
        task_timeout_ms: 86_400_000,
        not_before: Some(at(0, 0)),
        state: TaskState::Waiting.into(),
        revision: 4,
        attempt_count: 1,
        available_at: Some(at(2, 250_123)),
        deadline_at: Some(at(86_400, 0)),
        created_at: Some(at(0, 123_456)),
        updated_at: Some(at(1, 0)),
        last_decision: Decision::RetryableFailure.into(),
        granted_attempts: 1,
        ..Task::default()
    }
}

fn attempts() -> Vec<Attempt> {
    let evidence = Evidence {
        message_id: "6f1f4f5e-0000-4000-8000-000000000001".to_owned(),
        outcome: Outcome::Succeeded.into(),
        result: PAYLOAD.to_owned(),
        received_at: Some(at(3, 0)),
        session_id: "s-1".to_owned(),
        node_id: "node-1".to_owned(),
        ..Evidence::default()
    };
    let failed = Attempt {
        attempt_id: "a-1".to_owned(),
        number: 1,
        epoch: 1,
        state: AttemptState::Failed.into(),
        retryable: true,
        worker_name: "wörker".to_owned(),
        node_id: "node-1".to_owned(),
        leased_at: Some(at(0, 200_000)),
        lease_until: Some(at(60, 0)),
        started_at: Some(at(0, 201_000)),
        ended_at: Some(at(1, 0)),
        error: Some(rejection()),
        decision: Decision::RetryableFailure.into(),
        delay_ms: 431,
        evidence: vec![evidence],
        session_id: "s-1".to_owned(),
        ..Attempt::default()
    };
    let running = Attempt {
        attempt_id: "a-2".to_owned(),
        number: 2,
        epoch: 2,
        state: AttemptState::Running.into(),
        worker_name: "w".to_owned(),
        node_id: "node-1".to_owned(),
        leased_at: Some(at(2, 300_000)),
        lease_until: Some(at(62, 0)),
        started_at: Some(at(2, 301_000)),
        session_id: "s-1".to_owned(),
        ..Attempt::default()
    };
    vec![failed, running]
}

#[test]
fn a_waiting_task_for_people() {
    insta::assert_snapshot!(task_text(&waiting()));
}

#[test]
fn a_failed_task_for_people() {
    let task = Task {
        state: TaskState::Failed.into(),
        available_at: None,
        completed_at: Some(at(9, 0)),
        error: Some(rejection()),
        last_decision: Decision::CancelRequested.into(),
        cancel: Some(Cancel {
            requested_at: Some(at(8, 0)),
            requested_by: "local".to_owned(),
            reason: "no longer wanted".to_owned(),
        }),
        ..waiting()
    };
    insta::assert_snapshot!(task_text(&task));
}

#[test]
fn a_task_for_scripts_keeps_its_texts_byte_for_byte() {
    let task = Task {
        state: TaskState::Succeeded.into(),
        available_at: None,
        completed_at: Some(at(9, 0)),
        result: format!(" {PAYLOAD}\n"),
        ..waiting()
    };
    let text = task_json(&task).print();
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    assert!(text.contains(&format!("\"payload\": {PAYLOAD},")), "{text}");
    assert!(text.contains(&format!("\"result\":  {PAYLOAD}\n,")), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_list_for_people_and_for_scripts() {
    let failed = Task {
        state: TaskState::Failed.into(),
        not_before: None,
        available_at: None,
        completed_at: Some(at(9, 0)),
        error: Some(rejection()),
        ..waiting()
    };
    let some = tasks_table(std::slice::from_ref(&failed));
    let limited = tasks_table(&[waiting(), failed.clone()]);
    let lines = [waiting(), failed].map(|task| basic_task_json(&task).line());
    assert!(lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{lines:?}");
    insta::assert_snapshot!(format!("{some}\n{limited}\n{}", lines.concat()));
}

#[test]
fn what_happened_as_a_table_as_lines_and_in_words() {
    let event = |kind: &str, revision, state: TaskState| TaskEvent {
        r#type: kind.to_owned(),
        revision,
        occurred_at: Some(at(i64::from(revision), 0)),
        task_state: state.into(),
        attempt_count: 1,
        max_attempts: 3,
        principal: "local".to_owned(),
        node_id: "node-1".to_owned(),
        ..TaskEvent::default()
    };
    let requeued = TaskEvent {
        epoch: 1,
        decision: Decision::RetryableFailure.into(),
        cause: Cause::Reported.into(),
        delay_ms: 431,
        next_available_at: Some(at(2, 250_123)),
        ..event("task.requeued", 4, TaskState::Waiting)
    };
    let resolved = TaskEvent {
        decision: Decision::ResolvedByOperator.into(),
        cause: Cause::Operator.into(),
        effect_uncertain: true,
        note: "looked\nat \u{202e}it".to_owned(),
        evidence_refs: vec!["https://ledger/991".to_owned()],
        ..event("task.resolved", 5, TaskState::Waiting)
    };
    let events = [event("task.accepted", 1, TaskState::Waiting), requeued, resolved];
    let lines: String = events.iter().map(event_line).collect();
    let json: String = events.iter().map(|event| event_json(event).line()).collect();
    let queue = Queue { queue_id: "default".to_owned(), paused: true, ..Queue::default() };
    let words = explanation(&waiting(), &events, &queue, &QueueStats::default(), &[]);
    insta::assert_snapshot!(format!("{}\n{lines}\n{json}\n{words}", events_table(&events)));
}

#[test]
fn attempts_for_people() {
    insta::assert_snapshot!(attempts_table(&attempts()));
}

#[test]
fn attempts_for_scripts() {
    let text = attempts_json(&attempts());
    assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
    insta::assert_snapshot!(text);
}

//! One valid row for each table, and for each state of a task and of an attempt, to be changed by tests.

/// A row to insert, its values as SQL literals that both dialects understand.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) table: &'static str,
    values: Vec<(&'static str, String)>,
}

impl Row {
    fn new(table: &'static str, values: &[(&'static str, &str)]) -> Self {
        let values = values.iter().map(|(column, literal)| (*column, (*literal).to_owned())).collect();
        Self { table, values }
    }

    /// The same row with another value in one column.
    pub(crate) fn with(mut self, column: &'static str, literal: &str) -> Self {
        self.values.retain(|(name, _)| *name != column);
        self.values.push((column, literal.to_owned()));
        self
    }

    pub(crate) fn insert(&self) -> String {
        let (columns, literals): (Vec<&str>, Vec<&str>) =
            self.values.iter().map(|(column, literal)| (*column, literal.as_str())).unzip();
        format!("INSERT INTO {} ({}) VALUES ({})", self.table, columns.join(", "), literals.join(", "))
    }
}

/// Sixteen bytes that end in `number`.
pub(crate) fn id(number: u8) -> String {
    format!("X'0190a0b0c0d07e8f900000000000{number:04x}'")
}

const DIGEST: &str = "X'00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff'";

pub(crate) const WAITING: u8 = 1;
pub(crate) const LEASED: u8 = 2;
pub(crate) const RUNNING: u8 = 3;
pub(crate) const SUCCEEDED: u8 = 4;
pub(crate) const FAILED: u8 = 5;
pub(crate) const CANCELED: u8 = 6;
pub(crate) const NEEDS_REVIEW: u8 = 7;

pub(crate) fn queue() -> Row {
    Row::new(
        "queues",
        &[
            ("queue_id", "'orders'"),
            ("max_running", "10"),
            ("revision", "1"),
            ("created_at", "1000"),
            ("updated_at", "1000"),
        ],
    )
}

pub(crate) fn route() -> Row {
    Row::new(
        "routes",
        &[("queue", "1"), ("handler", "'charge'"), ("handler_version", "'v1'"), ("created_at", "1000")],
    )
}

/// A task as the platform before safe retry knew it, without a column for doubt.
pub(crate) fn task(state: u8) -> Row {
    let row = Row::new(
        "tasks",
        &[
            ("task_id", &id(state)),
            ("route", "1"),
            ("principal", "'producer'"),
            ("idempotency_key", &format!("'key-{state}'")),
            ("digest", DIGEST),
            ("digest_version", "1"),
            ("payload_version", "'v1'"),
            ("payload_bytes", "2"),
            ("max_attempts", "3"),
            ("initial_delay_ms", "1000"),
            ("max_delay_ms", "60000"),
            ("attempt_timeout_ms", "300000"),
            ("recovery_safety", "1"),
            ("task_timeout_ms", "2592000000"),
            ("start_before", "8000"),
            ("deadline_at", "9000"),
            ("state", &state.to_string()),
            ("revision", "4"),
            ("attempt_count", "1"),
            ("created_at", "1000"),
            ("updated_at", "2000"),
        ],
    );
    match state {
        WAITING => row.with("available_at", "3000").with("attempt_count", "0"),
        SUCCEEDED | CANCELED => row.with("completed_at", "2000"),
        FAILED => row.with("completed_at", "2000").with("error_code", "'CARD_DECLINED'"),
        _ => row,
    }
}

/// A task as of today.
pub(crate) fn task_now(state: u8) -> Row {
    task(state).with("effect_uncertain", if state == NEEDS_REVIEW { "1" } else { "0" })
}

pub(crate) fn payload() -> Row {
    Row::new("payloads", &[("task_id", &id(1)), ("payload", "'{\"a\": 1.10}'")])
}

pub(crate) fn ready() -> Row {
    Row::new(
        "ready",
        &[("route", "1"), ("available_at", "3000"), ("task_id", &id(1)), ("expires_at", "8000")],
    )
}

/// An ended attempt: 3 SUCCEEDED, 4 FAILED, 5 UNKNOWN, 6 UNSTARTED, 7 CANCELED.
pub(crate) fn attempt(state: u8) -> Row {
    let row = Row::new(
        "attempts",
        &[
            ("task_id", &id(state)),
            ("epoch", "1"),
            ("attempt_id", &id(99)),
            ("state", &state.to_string()),
            ("principal", "'worker'"),
            ("session_id", &id(77)),
            ("node_id", "'node-1'"),
            ("worker_name", "'w\u{fc}rker 1'"),
            ("leased_at", "1500"),
            ("lease_until", "7000"),
            ("started_at", "1600"),
            ("ended_at", "2000"),
            ("decision", "1"),
            ("cause", "1"),
        ],
    );
    match state {
        4 => row.with("error_code", "'CARD_DECLINED'"),
        6 => row.with("started_at", "NULL"),
        _ => row,
    }
}

pub(crate) fn lease() -> Row {
    Row::new(
        "leases",
        &[
            ("task_id", &id(RUNNING)),
            ("queue", "1"),
            ("attempt_id", &id(99)),
            ("epoch", "1"),
            ("principal", "'worker'"),
            ("session_id", &id(77)),
            ("node_id", "'node-1'"),
            ("worker_name", "'worker 1'"),
            ("leased_at", "1500"),
            ("lease_until", "7000"),
            ("cap_at", "7000"),
            ("started_at", "1600"),
        ],
    )
}

pub(crate) fn review() -> Row {
    Row::new("reviews", &[("task_id", &id(NEEDS_REVIEW)), ("queue", "1")])
}

/// A running task whose worker is to be told of a cancel.
pub(crate) fn cancel() -> Row {
    Row::new("cancels", &[("task_id", &id(RUNNING)), ("attempt_id", &id(1))])
}

/// The receipt of a finish that led to `task_state`, as the platform before safe retry wrote it.
pub(crate) fn receipt(task_state: u8) -> Row {
    let row = Row::new(
        "receipts",
        &[
            ("task_id", &id(task_state)),
            ("epoch", "1"),
            ("message_id", &id(55)),
            ("kind", "2"),
            ("digest", DIGEST),
            ("digest_version", "1"),
            ("disposition", "1"),
            ("task_state", &task_state.to_string()),
            ("decision", "1"),
            ("effect_uncertain", "0"),
            ("committed_at", "2000"),
        ],
    );
    if task_state == WAITING { row.with("next_available_at", "3000") } else { row }
}

/// Evidence: 1 SUCCEEDED, 2 FAILED, 3 UNKNOWN, 4 CANCELED.
pub(crate) fn evidence(outcome: u8) -> Row {
    Row::new(
        "evidence",
        &[
            ("task_id", &id(outcome)),
            ("epoch", "1"),
            ("ordinal", "1"),
            ("attempt_id", &id(99)),
            ("message_id", &id(55)),
            ("outcome", &outcome.to_string()),
            ("received_at", "2500"),
            ("session_id", &id(77)),
            ("node_id", "'node-1'"),
        ],
    )
}

pub(crate) fn event() -> Row {
    Row::new(
        "events",
        &[
            ("task_id", &id(1)),
            ("revision", "1"),
            ("kind", "1"),
            ("at", "1000"),
            ("state", "1"),
            ("attempt_count", "0"),
            ("max_attempts", "3"),
            ("effect_uncertain", "0"),
            ("principal", "'producer'"),
            ("node_id", "'node-1'"),
        ],
    )
}

pub(crate) fn lane_commit() -> Row {
    Row::new("lane_commits", &[("lane", "'node-1/0'"), ("seq", "9000000000"), ("updated_at", "1000")])
}

pub(crate) fn request() -> Row {
    Row::new(
        "requests",
        &[
            ("principal", "'operator'"),
            ("request_id", &id(33)),
            ("kind", "1"),
            ("digest", DIGEST),
            ("answer", "'{}'"),
            ("created_at", "1000"),
        ],
    )
}

/// Rows in every state, as the platform before safe retry could hold them.
pub(crate) fn before_safe_retry() -> Vec<Row> {
    let mut rows =
        vec![queue(), route(), payload(), ready(), lease(), review(), event(), lane_commit(), request()];
    rows.extend((WAITING..=NEEDS_REVIEW).map(task));
    rows.extend((3..=7).map(attempt));
    rows.extend((WAITING..=NEEDS_REVIEW).map(receipt));
    rows.extend((1..=4).map(evidence));
    rows
}

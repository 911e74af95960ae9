//! SQL that fills a database with tasks in every state, all of them as Orbit itself would have left them:
//! `orbit check` finds nothing. It runs inside the database, so that a million tasks take minutes.

use std::fmt::Write as _;

/// Queues `load-0` to `load-9`, each with the handlers `handler-0` to `handler-3`.
pub(crate) const QUEUES: u64 = 10;
pub(crate) const HANDLERS: u64 = 4;

/// Where numbers of queues and routes begin, away from those that exist.
const FIRST_NO: u64 = 1_000;

/// What to fill.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) mysql: bool,
    /// When the first task was created, in milliseconds since the epoch; ten tasks follow in each millisecond.
    pub(crate) from_ms: u64,
    /// The state of task number `n`, as SQL: [`MIXED`], or a number for all.
    pub(crate) state: &'static str,
}

/// The key of task number `n`.
pub(crate) fn key(n: u64) -> String {
    format!("load-{n}")
}

/// The state of task number `n`, as stored. Of a thousand: 1 WAITING, 1 NEEDS_REVIEW, 10 FAILED, 5 CANCELED, and of
/// five thousand 1 RUNNING; the others have succeeded.
pub(crate) const MIXED: &str = "CASE WHEN n % 1000 = 0 THEN 1 WHEN n % 1000 = 1 THEN 7 WHEN n % 1000 < 12 THEN 5 \
                     WHEN n % 1000 < 17 THEN 6 WHEN n % 5000 = 17 THEN 3 ELSE 4 END";

/// Queues and routes.
pub(crate) fn routes() -> Vec<String> {
    let mut queues = String::from(
        "INSERT INTO queues (id, queue_id, paused, max_running, revision, created_at, updated_at) VALUES ",
    );
    let mut routes =
        String::from("INSERT INTO routes (id, queue, handler, handler_version, created_at) VALUES ");
    for n in 0..QUEUES {
        let comma = if n > 0 { ", " } else { "" };
        let no = FIRST_NO + n;
        // Writing to a String cannot fail. Paused: nobody runs what waits.
        let _ = write!(queues, "{comma}({no}, 'load-{n}', 1, 0, 1, 1, 1)");
    }
    for n in 0..QUEUES * HANDLERS {
        let comma = if n > 0 { ", " } else { "" };
        let (no, queue, handler) = (FIRST_NO + n, FIRST_NO + n % QUEUES, n / QUEUES);
        let _ = write!(routes, "{comma}({no}, {queue}, 'handler-{handler}', 'v1', 1)");
    }
    vec![queues, routes]
}

impl Load {
    /// Tasks number `from` to below `from + count`, at most 10,000 of them, with all that belongs to them.
    pub(crate) fn tasks(self, from: u64, count: u64) -> Vec<String> {
        let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                      UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
        let (hex, tenth, key) = if self.mysql {
            ("CONCAT(LPAD(HEX(ms), 12, '0'), '70008000', LPAD(HEX(n), 12, '0'))", "DIV", "CONCAT('load-', n)")
        } else {
            ("printf('%012X70008000%012X', ms, n)", "/", "'load-' || n")
        };
        let numbers = format!(
            "SELECT {from} + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n \
             FROM {digits} a, {digits} b, {digits} c, {digits} e"
        );
        let numbers = format!("SELECT n FROM ({numbers}) AS some WHERE n < {from} + {count}");
        let timed = format!("SELECT n, {} + n {tenth} 10 AS ms FROM ({numbers}) AS n", self.from_ms);
        let named = format!(
            "SELECT n, ms * 1000 AS at, {FIRST_NO} + n % {} AS route, {FIRST_NO} + n % {QUEUES} AS queue, {key} AS k, \
             {hex} AS h, {} AS state FROM ({timed}) AS ms ORDER BY n",
            QUEUES * HANDLERS,
            self.state
        );
        let source = format!("({named}) AS x");
        self.statements().map(|statement| statement.replace("{x}", &source)).collect()
    }

    fn statements(self) -> impl Iterator<Item = String> {
        let hex = |parts: &[&str]| {
            if self.mysql {
                format!("UNHEX(CONCAT({}))", parts.join(", "))
            } else {
                format!("unhex({})", parts.join(" || "))
            }
        };
        let (id, digest) = (hex(&["h"]), hex(&["h", "h"]));
        // Differs from the id in its version.
        let other = "REPLACE(h, '70008000', '70018000')";
        let other = if self.mysql { format!("UNHEX({other})") } else { format!("unhex({other})") };
        // Revision, of which tasks, kind, state, attempts, decision, cause.
        let events = [
            (1, "state >= 0", 1, 1, 0, "NULL", "NULL"),
            (2, "state NOT IN (1, 6)", 2, 2, 1, "NULL", "NULL"),
            (3, "state NOT IN (1, 6)", 3, 3, 1, "NULL", "NULL"),
            (2, "state = 6", 7, 6, 0, "3", "6"),
            (4, "state = 4", 5, 4, 1, "1", "1"),
            (4, "state = 5", 6, 5, 1, "4", "1"),
            (4, "state = 7", 8, 7, 1, "5", "1"),
        ];
        let events = events.map(|(revision, which, kind, state, attempts, decision, cause)| {
            let doubt = u8::from(state == 7);
            format!(
                "INSERT INTO events (task_id, revision, ordinal, kind, at, state, epoch, decision, cause, attempt_count, \
                 max_attempts, effect_uncertain, principal, node_id) SELECT {id}, {revision}, 0, {kind}, \
                 at + {revision} * 1000, {state}, NULLIF({attempts}, 0), {decision}, {cause}, {attempts}, 1, {doubt}, \
                 'local', 'loader' FROM {{x}} WHERE {which}"
            )
        });
        let receipt = |message: &str, kind: u8, which: &str| {
            let (state, decision, doubt) = if kind == 1 {
                ("3", "NULL", "0")
            } else {
                (
                    "state",
                    "CASE state WHEN 4 THEN 1 WHEN 5 THEN 4 ELSE 5 END",
                    "CASE state WHEN 7 THEN 1 ELSE 0 END",
                )
            };
            format!(
                "INSERT INTO receipts (task_id, epoch, message_id, kind, digest, digest_version, disposition, task_state, \
                 decision, effect_uncertain, committed_at) SELECT {id}, 1, {message}, {kind}, {digest}, 1, 1, {state}, \
                 {decision}, {doubt}, at + 3000 FROM {{x}} WHERE {which}"
            )
        };
        let mut statements = vec![
            format!(
                "INSERT INTO tasks (task_id, route, principal, idempotency_key, digest, digest_version, payload_version, \
                 payload_bytes, max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, recovery_safety, \
                 task_timeout_ms, deadline_at, state, revision, attempt_count, available_at, last_decision, \
                 cancel_requested_at, cancel_requested_by, completed_at, created_at, updated_at, effect_uncertain) \
                 SELECT {id}, route, 'local', k, {digest}, 1, 'v1', 9, 1, 1000, 60000, 300000, 1, 86400000, \
                 at + 86400000000, state, CASE state WHEN 1 THEN 1 WHEN 6 THEN 2 WHEN 3 THEN 3 ELSE 4 END, \
                 CASE WHEN state IN (1, 6) THEN 0 ELSE 1 END, CASE state WHEN 1 THEN at END, \
                 CASE state WHEN 4 THEN 1 WHEN 5 THEN 4 WHEN 6 THEN 3 WHEN 7 THEN 5 END, \
                 CASE state WHEN 6 THEN at + 2000 END, CASE state WHEN 6 THEN 'local' END, \
                 CASE WHEN state IN (4, 5, 6) THEN at + 4000 END, at, at + 4000, CASE state WHEN 7 THEN 1 ELSE 0 END \
                 FROM {{x}}"
            ),
            format!("INSERT INTO payloads (task_id, payload) SELECT {id}, '{{\"n\": 1}}' FROM {{x}}"),
            format!(
                "INSERT INTO ready (route, available_at, task_id, expires_at) SELECT route, at, {id}, \
                 at + 86400000000 FROM {{x}} WHERE state = 1"
            ),
            format!(
                "INSERT INTO leases (task_id, queue, attempt_id, epoch, principal, session_id, node_id, worker_name, \
                 leased_at, lease_until, cap_at, started_at) SELECT {id}, queue, {other}, 1, 'local', {other}, 'loader', \
                 'loader', at + 1000, at + 86400000000, at + 86400000000, at + 2000 FROM {{x}} WHERE state = 3"
            ),
            format!("INSERT INTO reviews (task_id, queue) SELECT {id}, queue FROM {{x}} WHERE state = 7"),
            format!(
                "INSERT INTO attempts (task_id, epoch, attempt_id, state, principal, session_id, node_id, worker_name, \
                 leased_at, lease_until, started_at, ended_at, result, error_code, error_message, decision, cause) \
                 SELECT {id}, 1, {other}, CASE state WHEN 4 THEN 3 WHEN 5 THEN 4 ELSE 5 END, 'local', {other}, 'loader', \
                 'loader', at + 1000, at + 60000000, at + 2000, at + 4000, CASE state WHEN 4 THEN '{{\"n\": 2}}' END, \
                 CASE state WHEN 5 THEN 'REFUSED' END, CASE state WHEN 5 THEN 'not today' END, \
                 CASE state WHEN 4 THEN 1 WHEN 5 THEN 4 ELSE 5 END, 1 FROM {{x}} WHERE state IN (4, 5, 7)"
            ),
            receipt(&id, 1, "state NOT IN (1, 6)"),
            receipt(&other, 2, "state IN (4, 5, 7)"),
        ];
        statements.extend(events);
        statements.into_iter()
    }
}

//! MySQL servers whose defaults are not the usual ones (T3 and its kind): the same promises, whatever an administrator
//! set. Each test starts a server of its own.

use orbit::proto::{
    CreateQueueRequest, RetryPolicy, SubmitTaskRequest, TaskState, queue_service_client::QueueServiceClient,
};
use tonic::Code;

use crate::support::{
    database::TestDatabase,
    on_mysql,
    own_server::OwnServer,
    rig::{HANDLER, QUEUE},
    server::{Server, submit_request},
    stream::{Stream, attempt_of, failed, hello, hold_applied, new_id, succeeded},
};

/// Told apart byte by byte.
const KEYS: [&str; 12] =
    ["Order-A", "order-a", "ORDER-A", "k", "K", "k_", "k%", "k\\", "k'", "k\"", "0", "00"];
/// Neither keys nor names.
const REFUSED: [&str; 6] = ["é", "ß", "k ", " k", "k\u{0}", "ｋ"];
const TEXT: &str = "{\"é\": \"ß 😀 \\\\ \\u0000 '\",  \"n\":18446744073709551616}";

/// The whole of it on a server with these options and settings: schema, keys, names, texts, retries, two nodes.
async fn works_on(options: &[&str], settings: &[&str]) {
    let mysql = OwnServer::start(options);
    let database = TestDatabase::empty_mysql_at(&mysql.url).await;
    for setting in settings {
        database.sql(&format!("SET GLOBAL {setting}")).await;
    }
    let one = Server::start_on(&database.url, &["--migrate"]).await.with_queue().await;
    let two = Server::start_on(&database.url, &[]).await;

    let mut ids = Vec::new();
    for key in KEYS {
        let request = SubmitTaskRequest { idempotency_key: key.to_owned(), ..submit_request(TEXT) };
        let first = one.tasks().submit_task(request.clone()).await.expect("accepted").into_inner();
        assert!(!first.replayed, "{key:?}");
        let again = two.tasks().submit_task(request).await.expect("found").into_inner();
        let id = first.task.expect("a task").task_id;
        assert_eq!((again.replayed, &again.task.expect("a task").task_id), (true, &id), "{key:?}");
        ids.push(id);
    }
    for key in REFUSED {
        let request = SubmitTaskRequest { idempotency_key: key.to_owned(), ..submit_request("1") };
        let refused = one.tasks().submit_task(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{key:?}");
    }
    // What looks like the queue or the handler is another.
    let queue_id = QUEUE.to_uppercase();
    let missing = SubmitTaskRequest { queue_id: queue_id.clone(), ..submit_request("1") };
    assert_eq!(one.tasks().submit_task(missing).await.expect_err("no queue").code(), Code::NotFound);
    let create =
        CreateQueueRequest { queue_id: queue_id.clone(), request_id: new_id(), ..Default::default() };
    QueueServiceClient::new(one.channel()).create_queue(create).await.expect("another queue");
    for other in [
        SubmitTaskRequest { queue_id, ..submit_request("1") },
        SubmitTaskRequest { handler: HANDLER.0.to_uppercase(), ..submit_request("1") },
    ] {
        one.tasks().submit_task(other).await.expect("accepted");
    }

    let mut worker = Stream::open(two.channel(), 1).await;
    for _ in KEYS {
        let dispatch = worker.dispatch().await;
        assert_eq!(dispatch.payload, TEXT);
        ids.retain(|id| *id != dispatch.task_id);
        worker.run(&dispatch).await;
    }
    assert!(ids.is_empty());
    worker.nothing_for(std::time::Duration::from_millis(400)).await;

    // A retry, and a repeated message at the other node.
    let retry = RetryPolicy {
        max_attempts: Some(2),
        initial_delay_ms: Some(20),
        max_delay_ms: Some(20),
        ..RetryPolicy::default()
    };
    let request = SubmitTaskRequest { retry: Some(retry), ..submit_request(TEXT) };
    let id =
        one.tasks().submit_task(request).await.expect("accepted").into_inner().task.expect("a task").task_id;
    let first = attempt_of(&worker.dispatch().await);
    hold_applied(&worker.start(&first).await);
    let report = orbit::proto::Finish { retryable: true, ..failed(&first, "BUSY") };
    let applied = worker.finish(&report).await;
    assert_eq!(
        applied.receipt.as_ref().map(orbit::proto::Receipt::task_state),
        Some(TaskState::Waiting),
        "{applied:?}"
    );
    // Serves another queue, so that it does not take the retry.
    let other = orbit::proto::Hello { queue_ids: vec![QUEUE.to_uppercase()], ..hello(1) };
    let mut elsewhere = Stream::open_with(one.channel(), other).await.expect("a stream");
    let again = elsewhere.finish(&report).await;
    assert_eq!((again.receipt, again.replayed), (applied.receipt, true));
    drop(elsewhere);
    let second = attempt_of(&worker.dispatch().await);
    assert_eq!((&second.task_id, second.epoch), (&id, 2));
    hold_applied(&worker.start(&second).await);
    hold_applied(&worker.finish(&succeeded(&second, TEXT)).await);
    drop(worker);

    for server in [one, two] {
        assert_eq!(server.complaints(), Vec::<String>::new());
        server.stop().await;
    }
    database.check_invariants().await;
    database.drop().await;
}

on_mysql! {
async fn t3_a_server_that_compares_latin_letters_loosely() {
    let latin = ["--character-set-server=latin1", "--collation-server=latin1_swedish_ci"];
    works_on(&[&latin[..], &["--lower-case-table-names=1"]].concat(), &[]).await;
}

async fn t3_a_server_that_compares_all_letters_loosely() {
    works_on(&["--collation-server=utf8mb4_general_ci", "--default-storage-engine=MyISAM"], &[]).await;
}

async fn a_server_with_another_dialect_and_another_clock() {
    let mode = "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,\
                NO_UNSIGNED_SUBTRACTION";
    works_on(&[mode, "--default-time-zone=-11:30"], &[]).await;
}

async fn a_server_whose_sessions_do_not_commit_by_themselves() {
    works_on(&["--autocommit=0", "--completion-type=CHAIN", "--transaction-isolation=SERIALIZABLE"], &[])
        .await;
}

// What the other tests cannot show, since Orbit's statements do well without: each session is as it should be.
async fn sessions_are_what_they_should_be_whatever_the_server_is() {
    let mysql = OwnServer::start(&["--sql-mode=", "--default-time-zone=-11:30", "--autocommit=0",
        "--completion-type=CHAIN", "--transaction-isolation=SERIALIZABLE"]);
    let database = TestDatabase::empty_mysql_at(&mysql.url).await;
    for setting in ["unique_checks = 0", "sql_auto_is_null = 1", "sql_select_limit = 1", "sql_safe_updates = 1",
        "transaction_read_only = 1", "innodb_lock_wait_timeout = 50", "lock_wait_timeout = 50"] {
        database.sql(&format!("SET GLOBAL {setting}")).await;
    }
    let server = Server::start_on(&database.url, &["--migrate"]).await.with_queue().await;
    server.tasks().submit_task(submit_request("1")).await.expect("accepted");
    // The driver's own setting, which Orbit's sessions replace.
    let by_the_test = "SELECT thread_id FROM performance_schema.variables_by_thread \
                       WHERE variable_name = 'sql_mode' AND variable_value LIKE '%PIPES_AS_CONCAT%'";
    for (name, value) in [
        ("sql_mode", "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"),
        ("time_zone", "+00:00"),
        ("autocommit", "ON"),
        ("completion_type", "NO_CHAIN"),
        ("unique_checks", "ON"),
        ("sql_safe_updates", "OFF"),
        ("sql_auto_is_null", "OFF"),
        ("sql_select_limit", "18446744073709551615"),
        ("innodb_lock_wait_timeout", "3"),
        ("lock_wait_timeout", "3"),
        ("transaction_isolation", "READ-COMMITTED"),
        ("transaction_read_only", "OFF"),
        ("wait_timeout", "10 or 60"),
    ] {
        let sessions = |condition: &str| format!(
            "SELECT COUNT(*) FROM performance_schema.threads t \
             JOIN performance_schema.variables_by_thread v ON v.thread_id = t.thread_id \
             WHERE t.processlist_db = DATABASE() AND t.thread_id NOT IN ({by_the_test}) \
             AND v.variable_name = '{name}' AND {condition}"
        );
        assert!(database.number(&sessions("1 = 1")).await >= 2, "{name}");
        let other = format!("(v.variable_value = '' OR INSTR('{value}', v.variable_value) = 0)");
        assert_eq!(database.number(&sessions(&other)).await, 0, "{name}");
    }
    server.stop().await;
    database.drop().await;
}

async fn a_server_whose_sessions_may_do_little() {
    let settings = ["unique_checks = 0", "sql_auto_is_null = 1", "sql_select_limit = 1", "sql_safe_updates = 1",
        "transaction_read_only = 1"];
    works_on(&["--sql-require-primary-key=ON", "--transaction-isolation=READ-UNCOMMITTED"], &settings).await;
}
}

//! What operators type, against a server: `orbit task list|watch|resubmit`, `orbit review`, `--keep-finished`.

use std::{
    collections::BTreeSet,
    process::{Output, Stdio},
    time::Duration,
};

use orbit::{
    proto::{Task, TaskState},
    sdk::Worker,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::support::{
    database::TestDatabase,
    eventually, on_every_database,
    rig::{HANDLER, QUEUE},
    server::{Server, submit_request},
};

const LIMIT: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_hours(1);

fn orbit(server: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.args(args).env("ORBIT_URL", server.url()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end, with this on its standard input.
async fn run(server: &Server, args: &[&str], input: &str) -> Output {
    let mut child = orbit(server, args).spawn().expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).await.expect("written");
    drop(stdin);
    timeout(LIMIT, child.wait_with_output()).await.expect("in time").expect("ended")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// What it printed; it must have succeeded.
async fn printed(server: &Server, args: &[&str]) -> String {
    let output = run(server, args, "").await;
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What it said instead.
async fn refused(server: &Server, args: &[&str]) -> String {
    let output = run(server, args, "").await;
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// One JSON object a line.
fn objects(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

async fn one_of(server: &Server, state: &str) -> String {
    let listed = printed(server, &["task", "list", "--state", state, "--limit", "1", "--json"]).await;
    objects(&listed)[0]["task_id"].as_str().expect("an id").to_owned()
}

async fn get(server: &Server, id: &str) -> Task {
    server.client().get(id).await.expect("a task")
}

async fn interrupt(child: &Child) {
    let pid = child.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.expect("sent").success());
}

on_every_database! {
    async fn a_list_shows_what_fits_for_people_and_for_scripts(database: TestDatabase) {
        database.load(1_000, HOUR).await;
        let server = Server::start(&database).await.with_queue().await;
        let all = objects(&printed(&server, &["task", "list", "--limit", "5000", "--json"]).await);
        let ids: BTreeSet<_> = all.iter().map(|t| t["task_id"].to_string()).collect();
        assert_eq!((all.len(), ids.len()), (1_000, 1_000));
        assert!(all.iter().all(|t| t.get("not_before").is_some() && t.get("start_before").is_some()));
        assert!(all.iter().all(|t| t.get("payload").is_none() && t.get("result").is_none()));

        let failed = printed(&server, &["task", "list", "--state", "failed", "--state", "CANCELED", "--limit", "9"]).await;
        let lines: Vec<_> = failed.lines().collect();
        assert_eq!(lines.len(), 11, "{failed}");
        assert!(lines[0].starts_with("TASK") && !lines[0].contains("NOT BEFORE"), "{failed}");
        assert!(lines[9].contains("FAILED") || lines[9].contains("CANCELED"), "{failed}");
        assert!(lines[10].contains("--limit"), "{failed}");

        let at = moment_in(&database, 3_600).await;
        let submitted = printed(&server, &["task", "submit", "--handler", "h", "--not-before", &at]).await;
        assert!(submitted.contains("not before") && submitted.contains(&at[..19]), "{submitted}");
        let waiting = printed(&server, &["task", "list", "--queue", QUEUE, "--handler", "h"]).await;
        assert!(waiting.contains("NOT BEFORE") && waiting.contains(&at[..19]), "{waiting}");

        assert_eq!(run(&server, &["task", "list", "--state", "LOST"], "").await.status.code(), Some(2));
        assert!(refused(&server, &["task", "list", "--queue", "a b"]).await.contains("queue_id"));
        server.stop().await;
        database.drop().await;
    }

    async fn only_what_failed_or_was_canceled_is_submitted_again(database: TestDatabase) {
        database.load(1_000, HOUR).await;
        let server = Server::start(&database).await;
        for (state, key) in [("FAILED", "again/1"), ("CANCELED", "again/2")] {
            let old = get(&server, &one_of(&server, state).await).await;
            let args = ["task", "resubmit", &old.task_id, "--key", key, "--json"];
            let made = &objects(&printed(&server, &args).await.replace('\n', " "))[0];
            assert_eq!(made["replayed"], false);
            let new = get(&server, made["task"]["task_id"].as_str().expect("an id")).await;
            assert_eq!(new.state(), TaskState::Waiting);
            assert_eq!(
                (&new.queue_id, &new.handler, &new.payload, new.retry, new.idempotency_key.as_str()),
                (&old.queue_id, &old.handler, &old.payload, old.retry, key)
            );
            let again = &objects(&printed(&server, &args).await.replace('\n', " "))[0];
            assert_eq!((&again["replayed"], &again["task"]["task_id"]), (&true.into(), &made["task"]["task_id"]));
            assert_eq!(get(&server, &old.task_id).await, old);
            let its_own = ["task", "resubmit", &old.task_id, "--key", &old.idempotency_key];
            assert!(refused(&server, &its_own).await.contains("another"));
        }
        for state in ["SUCCEEDED", "WAITING", "NEEDS_REVIEW"] {
            let id = one_of(&server, state).await;
            let why = refused(&server, &["task", "resubmit", &id, "--key", "again/3"]).await;
            assert!(why.contains(state) && why.contains(&id), "{why}");
        }
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn a_review_walks_from_task_to_task(database: TestDatabase) {
        database.load(5_000, HOUR).await;
        let server = Server::start(&database).await;
        let listed = objects(&printed(&server, &["review", "--json"]).await);
        let mut ids: Vec<_> = listed.iter().map(|t| t["task_id"].as_str().expect("an id").to_owned()).collect();
        assert_eq!(ids.len(), 5);
        let table = printed(&server, &["review", "--queue", "load-1"]).await;
        assert!(ids.iter().all(|id| table.contains(id.as_str())), "{table}");
        // Who has waited longest comes first.
        ids.sort();

        let answers = "s\ny\n{\"receipt\": 991}\nin the ledger\nhttps://ledger/991\ny\n\
                       f\nn\n\
                       f\ny\n\nNOT_BOOKED\nthe bank has nothing\n\nlooked\n\ny\n\
                       r\ny\n2000\n2\nnot there\n\nn\n\
                       q\n";
        let output = run(&server, &["review", "--interactive"], answers).await;
        let told = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(told.contains("1 of 5 that need review") && told.contains("resolved: SUCCEEDED"), "{told}");
        let mut states = Vec::new();
        for id in &ids {
            states.push(get(&server, id).await.state());
        }
        let later = TaskState::NeedsReview;
        assert_eq!(states, [TaskState::Succeeded, later, TaskState::Failed, later, later], "{told}");
        assert_eq!(get(&server, &ids[0]).await.result, "{\"receipt\": 991}");
        let events = server.client().events(&ids[0]).await.expect("events");
        let last = events.last().expect("one");
        assert_eq!((last.note.as_str(), &last.evidence_refs[..]), ("in the ledger", &["https://ledger/991".to_owned()][..]));
        let error = get(&server, &ids[2]).await.error.expect("an error");
        assert_eq!((error.code.as_str(), error.message.as_str()), ("NOT_BOOKED", "the bank has nothing"));

        // The input ends in the middle of a task: nothing is sent.
        let output = run(&server, &["review", "--interactive"], "s\ny\n1\nbecause\n").await;
        assert!(output.status.success());
        assert_eq!(get(&server, &ids[1]).await.state(), TaskState::NeedsReview);
        // Ctrl-C while it asks.
        let mut child = orbit(&server, &["review", "--interactive"]).spawn().expect("started");
        // Waiting for the child would close it.
        let stdin = child.stdin.take();
        let mut shown = BufReader::new(child.stdout.take().expect("piped")).split(b'?');
        timeout(LIMIT, shown.next_segment()).await.expect("in time").expect("read").expect("a question");
        interrupt(&child).await;
        let ended = timeout(LIMIT, child.wait()).await.expect("in time").expect("ended");
        assert_eq!(ended.code(), Some(130));
        drop(stdin);
        assert_eq!(objects(&printed(&server, &["review", "--json"]).await).len(), 3);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn a_watch_shows_each_change_once_and_ends_with_the_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let request = submit_request("1");
        let id = server.tasks().submit_task(request).await.expect("accepted").into_inner().task.expect("a task").task_id;
        let mut child = orbit(&server, &["task", "watch", &id, "--json"]).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = timeout(LIMIT, lines.next_line()).await.expect("in time").expect("read").expect("a line");
        assert_eq!(objects(&first)[0]["type"], "task.accepted");
        printed(&server, &["task", "cancel", &id]).await;
        let second = timeout(LIMIT, lines.next_line()).await.expect("in time").expect("read").expect("a line");
        assert_eq!(objects(&second)[0]["type"], "task.canceled");
        assert_eq!(lines.next_line().await.expect("read"), None);
        assert_eq!(child.wait().await.expect("ended").code(), Some(4));

        let request = submit_request("2");
        let id = server.tasks().submit_task(request).await.expect("accepted").into_inner().task.expect("a task").task_id;
        let mut child = orbit(&server, &["task", "watch", &id]).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let first = timeout(LIMIT, lines.next_line()).await.expect("in time").expect("read").expect("a line");
        assert!(first.contains("task.accepted"), "{first}");
        interrupt(&child).await;
        assert_eq!(timeout(LIMIT, child.wait()).await.expect("in time").expect("ended").code(), Some(6));
        assert_eq!(get(&server, &id).await.state(), TaskState::Waiting);
        let absent = "01900000-0000-7000-8000-000000000000";
        assert!(refused(&server, &["task", "watch", absent]).await.contains(absent));
        server.stop().await;
        database.drop().await;
    }

    async fn explain_tells_whether_this_node_has_a_worker_for_a_waiting_task(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        printed(&server, &["queue", "pause", QUEUE]).await;
        let request = submit_request("1");
        let id = server.tasks().submit_task(request).await.expect("accepted").into_inner().task.expect("a task").task_id;
        let words = printed(&server, &["task", "explain", &id]).await;
        let expected = format!("no worker session serves {} {}", HANDLER.0, HANDLER.1);
        assert!(words.contains(&expected) && words.contains("other nodes are not seen"), "{words}");

        let worker = |version: &str| {
            Worker::builder(&server.client())
                .queue(QUEUE)
                .raw_handler(HANDLER.0, version, |_, payload: String| std::future::ready(Ok(payload)))
                .build()
                .expect("a worker")
                .start()
                .expect("started")
        };
        let other = worker("v9");
        eventually("the other version is told of", LIMIT, async || {
            printed(&server, &["task", "explain", &id]).await.contains("(but v9)").then_some(())
        })
        .await;
        let right = worker(HANDLER.1);
        eventually("the worker is told of", LIMIT, async || {
            let words = printed(&server, &["task", "explain", &id]).await;
            words.contains(&format!("1 worker session serves {} {}", HANDLER.0, HANDLER.1)).then_some(())
        })
        .await;
        let queue = printed(&server, &["queue", "get", QUEUE]).await;
        assert!(queue.contains(&format!("{} v1 (1 session), {} v9 (1 session)", HANDLER.0, HANDLER.0)), "{queue}");
        for worker in [other, right] {
            worker.drain(LIMIT).await.expect("ended");
        }
        server.stop().await;
        database.drop().await;
    }

    async fn a_server_that_is_told_to_keep_finished_tasks_for_a_minute_removes_older_ones(database: TestDatabase) {
        database.load(1_000, HOUR).await;
        let server = Server::start_with(&database, &["--keep-finished", "1m"]).await;
        let (done, doubtful) = (one_of(&server, "SUCCEEDED").await, one_of(&server, "NEEDS_REVIEW").await);
        eventually("all that ended is removed", Duration::from_secs(40), async || {
            let ended = database.number("SELECT COUNT(*) FROM tasks WHERE state IN (4, 5, 6)").await;
            (ended == 0).then_some(())
        })
        .await;
        for command in ["get", "attempts", "events", "explain", "wait", "watch"] {
            assert!(refused(&server, &["task", command, &done]).await.contains("TASK_NOT_FOUND"), "{command}");
        }
        assert_eq!(get(&server, &doubtful).await.state(), TaskState::NeedsReview);
        assert!(!server.complaints().iter().any(|line| line.contains("retention")), "{:?}", server.complaints());
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

/// So many seconds from now by the database's clock, in RFC 3339.
async fn moment_in(database: &TestDatabase, seconds: i64) -> String {
    let at = database.number(database.now()).await / 1_000_000 + seconds;
    prost_types::Timestamp { seconds: at, nanos: 0 }.to_string()
}

//! Submits: T2, T3, T14, T15, T16 (T6 and T13 stand in `storage`, T7 with the texts, T12 with the limits of the wire).

use std::time::Duration;

use futures_util::future::join_all;
use orbit::{
    domain::{
        ids::TaskId, json::JsonText, names::check_key, rejection::Rejection, report::Finish,
        submission::Submission, task::StateName,
    },
    engine::{Engine, Failure},
};
use tokio::time::{Instant, sleep};

use crate::support::{blocker::Blocker, node::Node, on_every_database, rig::*};

fn with_payload(submission: &Submission, payload: &str) -> Submission {
    Submission { payload: JsonText::stored(payload.to_owned()), ..submission.clone() }
}

fn is_conflict(failure: &Failure) -> bool {
    matches!(failure, Failure::Rejected(Rejection::IdempotencyConflict { field: "idempotency_key", .. }))
}

/// A second node where there can be one, else the same again.
async fn second(rig: &Rig) -> Engine {
    if rig.database.is_mysql() {
        Engine::start(rig.database.open().await, options()).await.expect("started")
    } else {
        rig.engine.clone()
    }
}

async fn end(rig: Rig, second: Engine) {
    if rig.database.is_mysql() {
        second.shutdown().await;
    }
    drop(second);
    rig.end().await;
}

on_every_database! {
    // Racers that insert and read back: no deadlock, no loser that does not see the winner.
    async fn t2_identical_submits_make_one_task_and_other_payloads_conflict(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let other = second(&rig).await;
        let rounds = if rig.database.is_mysql() { 30 } else { 10 };
        for round in 0..rounds {
            let one = submission();
            let two = with_payload(&one, "{\"another\":true}");
            let mixed = round % 2 == 1;
            let began = Instant::now();
            let answers = join_all((0..64).map(|n| {
                let engine = if n % 2 == 0 { &rig.engine } else { &other };
                engine.submit(if mixed && n % 4 < 2 { two.clone() } else { one.clone() })
            }))
            .await;
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            let ids: Vec<TaskId> = answers.iter().filter_map(|a| Some(a.as_ref().ok()?.task_id())).collect();
            assert_eq!(ids.len(), if mixed { 32 } else { 64 });
            assert!(ids.iter().all(|id| *id == ids[0]));
            assert_eq!(answers.iter().filter(|a| a.as_ref().is_ok_and(|s| !s.replayed())).count(), 1);
            for failure in answers.iter().filter_map(|a| a.as_ref().err()) {
                assert!(is_conflict(failure), "{failure:?}");
            }
            assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks").await, round + 1);
        }
        end(rig, other).await;
    }

    // The kind of T2: what the racers make beside the task, its route. Nobody has it yet.
    async fn t2_the_first_submits_of_a_handler_at_once_make_one_route(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let other = second(&rig).await;
        for round in 0..10 {
            let answers = join_all((0..32).map(|n| {
                let engine = if n % 2 == 0 { &rig.engine } else { &other };
                engine.submit(Submission { handler: format!("handler-{round}"), ..submission() })
            }))
            .await;
            assert!(answers.iter().all(Result::is_ok), "{answers:?}");
            assert_eq!(rig.database.number("SELECT COUNT(*) FROM routes").await, round + 1);
        }
        assert_eq!(rig.database.number("SELECT COUNT(*) FROM ready").await, 320);
        end(rig, other).await;
    }

    async fn t3_keys_and_names_are_told_apart_byte_by_byte(database: TestDatabase) {
        for refused in ["é", "ß", "e\u{301}", "k ", " k", "k\0", "k\t", ""] {
            assert!(check_key(refused).is_err(), "{refused:?}");
        }
        let rig = Rig::new(database, options()).await;
        let keys = ["Order-A", "order-a", "ORDER-A", "k", "K", "k_", "k%", "k-", "0", "00", "0e0", "\\", "'", "?"];
        let mut ids = Vec::new();
        for key in keys {
            check_key(key).expect("allowed");
            let submission = Submission { idempotency_key: key.to_owned(), ..submission() };
            let submission = with_payload(&submission, &format!("[{}]", ids.len()));
            let accepted = rig.engine.submit(submission.clone()).await.expect("accepted");
            assert!(!accepted.replayed(), "{key:?}");
            assert!(rig.engine.submit(submission).await.expect("found").replayed());
            ids.push(accepted.task_id());
        }
        for (n, (id, key)) in ids.iter().zip(keys).enumerate() {
            let record = rig.task(*id).await;
            assert_eq!((record.idempotency_key.as_str(), record.payload), (key, Some(format!("[{n}]"))));
        }
        // A queue and a handler are not what looks like them.
        let mut worker = rig.worker(64).await;
        for _ in keys {
            worker.next().await;
        }
        rig.engine.create_queue("Default".to_owned(), 0, request()).await.expect("another queue");
        for (queue, handler) in [("Default", HANDLER.0), (QUEUE, "Text.Normalize"), (QUEUE, "text.NORMALIZE")] {
            rig.submit(|s| {
                queue.clone_into(&mut s.queue_id);
                handler.clone_into(&mut s.handler);
            }).await;
        }
        worker.nothing_for(Duration::from_millis(400)).await;
        let missing = Submission { queue_id: "DEFAULT".to_owned(), ..submission() };
        let refused = rejection(rig.engine.submit(missing).await);
        assert_eq!(refused, Rejection::QueueNotFound("DEFAULT".to_owned()));
        rig.end().await;
    }

    async fn t14_a_payload_keeps_its_bytes_and_other_spacing_is_other_content(database: TestDatabase) {
        let text = "{\"zeta\": 1,  \"alpha\":2 , \"n\":18446744073709551616, \"d\":1.10, \"zeta\":\"\\u00e9é\"}";
        let one = with_payload(&submission(), text);
        let node = Node::start(&database.url, options()).await;
        let engine = node.engine();
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        let id = engine.submit(one.clone()).await.expect("accepted").task_id();
        drop(engine);
        node.kill().await;
        let engine = Engine::start(crate::support::node::open(&database.url).await, options()).await;
        let rig = Rig { engine: engine.expect("started"), database };
        let again = rig.engine.submit(one.clone()).await.expect("found");
        assert_eq!((again.task_id(), again.replayed()), (id, true));
        assert_eq!(rig.task(id).await.payload.as_deref(), Some(text));
        let spaced = with_payload(&one, &text.replace(":2 ", ":2"));
        assert!(is_conflict(&rig.engine.submit(spaced).await.expect_err("a conflict")));
        let mut worker = rig.worker(1).await;
        let dispatch = worker.next().await;
        assert_eq!(dispatch.payload, text);
        worker.start(dispatch.attempt).await;
        let result = orbit::domain::report::Report::Succeeded { result: JsonText::stored(text.to_owned()) };
        worker.finish(dispatch.attempt, result).await;
        assert_eq!(rig.task(id).await.result.as_deref(), Some(text));
        rig.end().await;
    }

    // While the first is still open nobody is told its answer, and nobody is let past it.
    async fn t15_while_the_first_submit_is_open_others_wait_and_then_conflict(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let other = second(&rig).await;
        rig.submit(|_| {}).await;
        other.submit(submission()).await.expect("the route is known there too");
        let one = submission();
        let two = with_payload(&one, "{\"another\":true}");
        // On MySQL a submit now stops after its task was inserted and before its commit.
        let blocker = Blocker::new(&rig.database, "LOCK TABLES events WRITE", "UNLOCK TABLES").await;
        let first = async { rig.engine.submit(one.clone()).await };
        let others = async {
            // The first has begun; whichever content wins, the others conflict.
            sleep(Duration::from_millis(200)).await;
            join_all((0..10).map(|_| other.submit(two.clone()))).await
        };
        let release = async {
            sleep(Duration::from_millis(900)).await;
            let sql = "SELECT COUNT(*) FROM tasks";
            assert_eq!(rig.database.number(sql).await, 2, "nothing is committed yet");
            blocker.release().await;
        };
        let (first, others, ()) = tokio::join!(first, others, release);
        let winner = first.expect("accepted");
        for answer in others {
            assert!(is_conflict(&answer.expect_err("a conflict")));
        }
        let again = other.submit(one).await.expect("found");
        assert_eq!((again.task_id(), again.replayed(), winner.replayed()), (winner.task_id(), true, false));
        end(rig, other).await;
    }

    async fn t15_of_two_contents_of_one_message_at_once_one_wins(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let other = second(&rig).await;
        let mut worker = rig.worker(64).await;
        for _ in 0..20 {
            rig.submit(slow_retry).await;
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
            let message_id = message_id();
            let answers = join_all((0..10).map(|n| {
                let engine = if n % 4 < 2 { &rig.engine } else { &other };
                let message = Finish { message_id, attempt, report: failed(n % 2 == 0) };
                engine.finish_attempt(message, &worker.session)
            }))
            .await;
            let results: Vec<_> = answers.into_iter().map(|a| a.expect("an answer").result).collect();
            let state = rig.task(attempt.task_id).await.task.state.name();
            for (n, result) in results.iter().enumerate() {
                let wanted = if n % 2 == 0 { StateName::Waiting } else { StateName::Failed };
                match result {
                    Ok((receipt, _)) => assert_eq!((receipt.task_state, state), (wanted, wanted)),
                    Err(Rejection::IdempotencyConflict { .. }) => assert_ne!(state, wanted),
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert_eq!(results.iter().filter(|r| matches!(r, Ok((_, false)))).count(), 1);
        }
        end(rig, other).await;
    }

    // The kind of T15: an operator's request. Neither is the other's answer.
    async fn t15_of_two_contents_of_one_request_at_once_one_wins(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let other = second(&rig).await;
        for _ in 0..20 {
            let (id, request) = (rig.submit(|_| {}).await, request());
            let answers = join_all((0..10).map(|n| {
                let engine = if n % 4 < 2 { &rig.engine } else { &other };
                engine.cancel_task(id, format!("reason {}", n % 2), request.clone())
            }))
            .await;
            let won = |of: usize| answers.iter().skip(of).step_by(2).filter(|a| a.is_ok()).count();
            assert!(matches!((won(0), won(1)), (5, 0) | (0, 5)), "{answers:?}");
            for failure in answers.iter().filter_map(|a| a.as_ref().err()) {
                let Failure::Rejected(Rejection::IdempotencyConflict { field, .. }) = failure else {
                    panic!("{failure:?}")
                };
                assert_eq!(*field, "request_id");
            }
        }
        end(rig, other).await;
    }

    async fn t16_nothing_is_forgotten_by_a_restart_or_an_end(database: TestDatabase) {
        let node = Node::start(&database.url, options()).await;
        let engine = node.engine();
        engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        let one = submission();
        let id = engine.submit(one.clone()).await.expect("accepted").task_id();
        let mut worker = TestWorker::sit(&engine, 1).await;
        let first = worker.next().await.attempt;
        worker.start(first).await;
        let failed_id = message_id();
        let failure = worker.finish_as(first, failed_id, failed(true)).await.expect("applied").0;
        let (second, success) = worker.run(succeeded()).await;
        drop((engine, worker));
        node.kill().await;

        let engine = Engine::start(crate::support::node::open(&database.url).await, options()).await;
        let rig = Rig { engine: engine.expect("started"), database };
        let before = rig.database.picture().await;
        let again = rig.engine.submit(one).await.expect("found");
        assert_eq!((again.task_id(), again.replayed()), (id, true));
        let worker = rig.worker(0).await;
        assert_eq!(worker.finish_as(first, failed_id, failed(true)).await, Ok((failure.clone(), true)));
        assert_eq!(failure.task_state, StateName::Waiting, "an old receipt says what was so then");
        assert_eq!(worker.finish_as(second, success.message_id, succeeded()).await, Ok((success, true)));
        assert_eq!(rig.database.picture().await, before);
        let renamed = worker.finish_as(first, message_id(), failed(true)).await.expect("known").0;
        assert_eq!(renamed.committed_at, failure.committed_at);
        assert_eq!(rig.task(id).await.task.attempt_count, 2);
        rig.end().await;
    }
}

//! ListTasks: what fits, each once, with bounded work.

use std::collections::BTreeSet;

use orbit::{
    domain::{
        ids::TaskId,
        task::StateName::{self, Canceled, Failed, Leased, NeedsReview, Running, Succeeded, Waiting},
    },
    proto::{ListTasksRequest, Task},
    store::{TaskFilter, TaskPage},
};
use prost::Message as _;

use crate::support::{database::TestDatabase, on_every_database, rig::*, server::Server};

const PAGE_BYTES: usize = 3 * 1024 * 1024;

async fn page(rig: &Rig, filter: &TaskFilter, before: Option<TaskId>, limit: u32) -> TaskPage {
    rig.engine.database().tasks(filter, before, limit, PAGE_BYTES).await.expect("a page")
}

/// All pages of a list.
async fn all(rig: &Rig, filter: &TaskFilter, limit: u32) -> Vec<TaskId> {
    let (mut ids, mut before) = (Vec::new(), None);
    loop {
        let page = page(rig, filter, before, limit).await;
        assert!(page.tasks.len() <= limit as usize);
        ids.extend(page.tasks.iter().map(|t| t.task.id));
        match page.next {
            Some(next) => before = Some(next),
            None => return ids,
        }
    }
}

/// Adds `count` ended tasks of the first route, created a millisecond after each other, the first at `from_ms`.
async fn fill(database: &TestDatabase, count: u32, from_ms: u64, state: u8, error: &str) {
    let digits = "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 \
                  UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let n = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d";
    let id = if database.is_mysql() {
        format!("UNHEX(CONCAT(LPAD(HEX({from_ms} + x.n), 12, '0'), '70008000000000000000'))")
    } else {
        format!("unhex(printf('%012x70008000000000000000', {from_ms} + x.n))")
    };
    let key = if database.is_mysql() { "CONCAT('fill-', x.n, '-', ?)" } else { "'fill-' || x.n || '-' || ?" };
    let key = key.replace('?', &from_ms.to_string());
    let at = format!("({from_ms} + x.n) * 1000");
    let error = if error.is_empty() { "NULL, NULL, NULL".to_owned() } else { format!("'X', '', '{error}'") };
    let sql = format!(
        "INSERT INTO tasks (task_id, route, principal, idempotency_key, digest, digest_version, payload_version, \
         payload_bytes, max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, recovery_safety, \
         task_timeout_ms, deadline_at, state, revision, attempt_count, completed_at, created_at, updated_at, \
         error_code, error_message, error_details) \
         SELECT {id}, 1, 'local', {key}, {id}, 1, 'v1', 4, 1, 1000, 60000, 300000, 1, 86400000, {at} + 86400000000, \
         {state}, 4, 1, {at}, {at}, {at}, {error} \
         FROM (SELECT {n} AS n FROM {digits} a, {digits} b, {digits} c, {digits} e, {digits} f, {digits} g \
         WHERE {n} < {count}) AS x"
    );
    assert_eq!(database.sql(&sql).await, u64::from(count));
}

/// Tasks in every state, in two queues, for two handlers.
async fn one_of_each(rig: &Rig) -> Vec<TaskId> {
    rig.engine.create_queue("other".to_owned(), 0, request()).await.expect("a queue");
    let mut worker = rig.worker(8).await;
    let mut ids = Vec::new();
    for report in [succeeded(), failed(false), unknown(), unknown()] {
        ids.push(rig.submit(|_| {}).await);
        worker.run(report).await;
    }
    // An idempotent task in doubt waits again.
    ids.push(
        rig.submit(|s| {
            idempotent(s);
            slow_retry(s);
        })
        .await,
    );
    worker.run(unknown()).await;
    ids.push(rig.submit(|_| {}).await);
    worker.next().await;
    ids.push(rig.submit(|_| {}).await);
    let running = worker.next().await;
    worker.start(running.attempt).await;
    for (queue, handler) in [("default", "h"), ("other", "h"), ("other", "i"), ("other", "h")] {
        ids.push(
            rig.submit(|s| {
                s.queue_id = queue.to_owned();
                s.handler = handler.to_owned();
            })
            .await,
        );
    }
    let last = *ids.last().expect("some");
    rig.engine.cancel_task(last, String::new(), request()).await.expect("canceled");
    ids
}

on_every_database! {
    async fn every_filter_lists_what_fits_newest_first(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let ids = one_of_each(&rig).await;
        let mut tasks = Vec::new();
        for id in &ids {
            tasks.push(rig.task(*id).await);
        }
        tasks.sort_by_key(|t| std::cmp::Reverse(t.task.id));
        let middle = tasks[tasks.len() / 2].task.created_at;
        let states: [&[StateName]; 10] = [
            &[], &[Waiting], &[Leased], &[Running], &[NeedsReview], &[Succeeded], &[Failed, Canceled],
            &[Waiting, Leased, Running, NeedsReview], &[Leased, Succeeded], &[Running, NeedsReview],
        ];
        let name = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        for states in states {
            for (queue, handler) in
                [("", ""), ("default", ""), ("other", ""), ("", "h"), ("other", "h"), ("absent", ""), ("", HANDLER.0)]
            {
                for effect_uncertain in [None, Some(true), Some(false)] {
                    for created in [(None, None), (Some(middle), None), (None, Some(middle))] {
                        let filter = TaskFilter {
                            queue_id: name(queue),
                            handler: name(handler),
                            states: states.to_vec(),
                            effect_uncertain,
                            created_after: created.0,
                            created_before: created.1,
                        };
                        let expected: Vec<TaskId> = tasks
                            .iter()
                            .filter(|t| {
                                (queue.is_empty() || t.queue_id == queue)
                                    && (handler.is_empty() || t.handler == handler)
                                    && (states.is_empty() || states.contains(&t.task.state.name()))
                                    && effect_uncertain.is_none_or(|doubt| t.task.doubt == doubt)
                                    && created.0.is_none_or(|at| t.task.created_at >= at)
                                    && created.1.is_none_or(|at| t.task.created_at < at)
                            })
                            .map(|t| t.task.id)
                            .collect();
                        assert_eq!(all(&rig, &filter, 2).await, expected, "{filter:?}");
                    }
                }
            }
        }
        // A listed task is the task, without its texts; a failure has its error.
        let listed = page(&rig, &TaskFilter::default(), None, 50).await.tasks;
        for (listed, task) in listed.iter().zip(&tasks) {
            assert_eq!((&listed.task, &listed.error), (&task.task, &task.error));
            assert_eq!((&listed.payload, &listed.result), (&None, &None));
        }
        rig.end().await;
    }

    async fn each_task_is_shown_once_while_tasks_come_and_go(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut ids = BTreeSet::new();
        for _ in 0..20 {
            ids.insert(rig.submit(|_| {}).await);
        }
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = page(&rig, &TaskFilter::default(), before, 3).await;
            seen.extend(page.tasks.iter().map(|t| t.task.id));
            rig.submit(|_| {}).await;
            for id in ids.iter().step_by(4) {
                rig.engine.cancel_task(*id, String::new(), request()).await.expect("an answer");
            }
            match page.next {
                Some(next) => before = Some(next),
                None => break,
            }
        }
        let newest_first: Vec<TaskId> = ids.into_iter().rev().collect();
        assert_eq!(seen, newest_first);
        rig.end().await;
    }

    async fn a_call_looks_at_so_many_tasks_and_says_where_to_go_on(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        rig.submit(|_| {}).await;
        fill(&rig.database, 1, 1_000_000, 5, "").await;
        fill(&rig.database, 25_000, 2_000_000, 4, "").await;
        for queue_id in [None, Some(QUEUE.to_owned())] {
            let filter = TaskFilter { states: vec![Failed], queue_id, ..TaskFilter::default() };
            let (mut before, mut pages) = (None, 0);
            loop {
                let page = page(&rig, &filter, before, 50).await;
                pages += 1;
                let Some(next) = page.next else {
                    assert_eq!(page.tasks.len(), 1);
                    break;
                };
                assert_eq!(page.tasks.len(), 0, "page {pages}");
                before = Some(next);
            }
            assert_eq!(pages, 6);
        }
        rig.engine.shutdown().await;
        rig.database.drop().await;
    }

    // Ten tasks of each moment; few that wait are listed from where they wait, many by walking all tasks.
    async fn many_tasks_of_one_moment_and_a_long_backlog_are_shown_once_each(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        rig.database.load(3_000, std::time::Duration::from_hours(1)).await;
        let of_states = |states: &[StateName]| TaskFilter { states: states.to_vec(), ..TaskFilter::default() };
        let expected = async |states: &str| {
            rig.database.number(&format!("SELECT COUNT(*) FROM tasks WHERE state IN ({states})")).await
        };
        let different = |ids: &[TaskId]| {
            assert!(ids.is_sorted_by(|a, b| a > b), "newest first, each once");
            i64::try_from(ids.len()).expect("a number")
        };
        let filters = [(vec![], "1, 2, 3, 4, 5, 6, 7"), (vec![Waiting], "1"), (vec![Waiting, Running, NeedsReview], "1, 3, 7")];
        for backlog in [3, 2_500] {
            let from = 10_000 * backlog;
            rig.database.load_more(from, backlog, std::time::Duration::from_mins(30), "1").await;
            for (states, numbers) in &filters {
                for limit in [97, 1_000] {
                    let ids = all(&rig, &of_states(states), limit).await;
                    assert_eq!(different(&ids), expected(numbers).await, "{states:?} {limit} {backlog}");
                }
            }
            let of_queue = TaskFilter { queue_id: Some("load-1".to_owned()), ..of_states(&[Waiting, NeedsReview]) };
            let waiting = "SELECT COUNT(*) FROM tasks t JOIN routes r ON r.id = t.route JOIN queues q ON q.id = r.queue \
                           WHERE q.queue_id = 'load-1' AND t.state IN (1, 7)";
            assert_eq!(different(&all(&rig, &of_queue, 200).await), rig.database.number(waiting).await);
        }
        rig.end().await;
    }

    async fn a_page_stays_below_3_mib(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let waiting = crate::support::server::submit_request("1");
        server.tasks().submit_task(waiting).await.expect("accepted");
        fill(&database, 110, 1_000_000, 5, &format!("\"{}\"", "d".repeat(60_000))).await;
        let mut tasks: Vec<Task> = Vec::new();
        let mut request = ListTasksRequest { page_size: 1_000, ..ListTasksRequest::default() };
        let mut pages = 0;
        loop {
            let answer = server.tasks().list_tasks(request.clone()).await.expect("a page").into_inner();
            assert!(answer.encoded_len() <= PAGE_BYTES + 100, "{}", answer.encoded_len());
            tasks.extend(answer.tasks);
            pages += 1;
            request.page_token = answer.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        let different: BTreeSet<_> = tasks.iter().map(|t| &t.task_id).collect();
        assert_eq!((tasks.len(), different.len()), (111, 111));
        assert!((3..=4).contains(&pages), "{pages}");
        server.stop().await;
        database.drop().await;
    }
}

mod alone {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    const TASKS: u32 = 60_000;
    const PAGE: u32 = 50;
    const RUNS: usize = 21;

    /// The best of many runs: what a busy machine adds is no part of it.
    async fn best(rig: &Rig, filter: &TaskFilter, before: Option<TaskId>) -> Duration {
        let mut best = Duration::MAX;
        for _ in 0..RUNS {
            let began = Instant::now();
            assert_eq!(page(rig, filter, before, PAGE).await.tasks.len(), PAGE as usize);
            best = best.min(began.elapsed());
        }
        best
    }

    // tests/million.sh measures a million.
    on_every_database! {
        async fn page_1_and_page_1000_cost_the_same(database: TestDatabase) {
            let rig = Rig::new(database, options()).await;
            rig.submit(|_| {}).await;
            fill(&rig.database, TASKS, 1_000_000, 4, "").await;
            let of_queue = TaskFilter { queue_id: Some(QUEUE.to_owned()), ..TaskFilter::default() };
            let succeeded = TaskFilter { states: vec![Succeeded], ..TaskFilter::default() };
            let deep = TaskId(uuid::Uuid::from_u128(u128::from(1_000_000 + TASKS - 999 * PAGE) << 80));
            for filter in [TaskFilter::default(), of_queue, succeeded] {
                let first = best(&rig, &filter, None).await;
                let thousandth = best(&rig, &filter, Some(deep)).await;
                println!("page 1 {first:?}, page 1000 {thousandth:?} with {filter:?}");
                assert!(thousandth < first * 2 + Duration::from_millis(1), "{first:?} {thousandth:?} {filter:?}");
            }
            rig.engine.shutdown().await;
            rig.database.drop().await;
        }
    }
}

//! Messages that are lost on the way, and those that come out of order.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use orbit::proto::{
    AttemptState, CommandResult, Decision, Disposition, Finish, TaskState, worker_request::Message as Ask,
};
use tokio::time::Instant;

use super::{SHORT_LEASES, attempts, retried, submit, task};
use crate::support::{
    database::TestDatabase,
    eventually, on_every_database, on_mysql,
    server::{Server, channel},
    stream::{Stream, attempt_of, disposition, hello, hold_applied, new_id, start, succeeded},
    tcp_proxy::TcpProxy,
};

const LIMIT: Duration = Duration::from_secs(10);
/// Unstarted lease, sweep and backoff of these tests, and what a busy machine takes.
const BACK_AGAIN: Duration = Duration::from_millis(1_000 + 100 + 20 + 1_500);

/// Loses the dispatch of a claim, then holds that the task comes back, to the worker that lost it or to another.
async fn lose_a_dispatch(server: &Server, to_another: bool) {
    let proxy = TcpProxy::before(server.address()).await;
    let lost = Stream::open(channel(proxy.address()), 1).await;
    proxy.swallow_answers();
    let id = submit(server, retried("1")).await;
    eventually("claimed", LIMIT, async || {
        (task(server, &id).await.state() == TaskState::Leased).then_some(())
    })
    .await;
    let claimed = Instant::now();
    drop(lost);
    proxy.cut();

    let way = if to_another { server.channel() } else { channel(proxy.address()) };
    let mut worker = Stream::open(way, 1).await;
    worker.nothing_for(Duration::from_millis(500)).await;
    let dispatch = worker.dispatch().await;
    assert!(claimed.elapsed() < BACK_AGAIN, "{:?}", claimed.elapsed());
    assert_eq!((dispatch.task_id.as_str(), dispatch.attempt_number), (id.as_str(), 2));
    worker.run(&dispatch).await;

    let history = attempts(server, &id).await;
    let [first, second] = &history[..] else { panic!("{history:?}") };
    assert_eq!((first.state(), first.decision()), (AttemptState::Unstarted, Decision::UnstartedLeaseExpired));
    assert_eq!(second.state(), AttemptState::Succeeded);
    assert!(!task(server, &id).await.effect_uncertain);
}

/// How the answer to a first finish is lost.
#[derive(Clone, Copy)]
enum Loss {
    /// The server never reads the finish.
    BeforeItWasRead,
    /// The server commits it, and the answer is lost.
    AfterTheCommit,
}

/// A finish whose answer never came, after a reconnect.
struct Interrupted {
    _proxy: TcpProxy,
    finish: Finish,
    worker: Stream,
}

/// Loses a finish or its answer, then comes back, to `next`.
async fn interrupt_a_finish(server: &Server, loss: Loss, next: &Server) -> Interrupted {
    let proxy = TcpProxy::before(server.address()).await;
    let mut severed = Stream::open(channel(proxy.address()), 1).await;
    let id = submit(server, retried("1")).await;
    let attempt = attempt_of(&severed.dispatch().await);
    hold_applied(&severed.start(&attempt).await);
    match loss {
        Loss::BeforeItWasRead => proxy.swallow_requests(),
        Loss::AfterTheCommit => proxy.swallow_answers(),
    }
    let finish = succeeded(&attempt, "1");
    severed.send(Ask::Finish(finish.clone())).await;
    let expected = match loss {
        Loss::BeforeItWasRead => TaskState::Running,
        Loss::AfterTheCommit => TaskState::Succeeded,
    };
    eventually("the first finish got as far as it should", LIMIT, async || {
        (task(server, &id).await.state() == expected).then_some(())
    })
    .await;
    drop(severed);
    proxy.cut();
    let mut hello = hello(1);
    hello.held = vec![attempt];
    let worker = Stream::open_with(next.channel(), hello).await.expect("a stream");
    Interrupted { _proxy: proxy, finish, worker }
}

async fn hold_one_attempt(server: &Server, task_id: &str) {
    let task = task(server, task_id).await;
    assert_eq!((task.state(), task.attempt_count, task.effect_uncertain), (TaskState::Succeeded, 1, false));
}

on_every_database! {
    async fn t20_a_claim_whose_dispatch_is_lost_comes_back_to_the_same_worker(database: TestDatabase) {
        let server = Server::start_with(&database, &SHORT_LEASES).await.with_queue().await;
        lose_a_dispatch(&server, false).await;
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn t20_a_claim_whose_dispatch_is_lost_comes_to_another_worker(database: TestDatabase) {
        let server = Server::start_with(&database, &SHORT_LEASES).await.with_queue().await;
        lose_a_dispatch(&server, true).await;
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn t21_a_finish_that_was_never_read_is_applied_when_sent_again(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let mut cut = interrupt_a_finish(&server, Loss::BeforeItWasRead, &server).await;
        let answer = cut.worker.finish(&cut.finish).await;
        hold_applied(&answer);
        assert!(!answer.replayed);
        hold_one_attempt(&server, &cut.finish.task_id).await;
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn t21_a_finish_whose_answer_was_lost_gets_its_first_receipt(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let mut cut = interrupt_a_finish(&server, Loss::AfterTheCommit, &server).await;
        let same = cut.worker.finish(&cut.finish).await;
        hold_applied(&same);
        assert!(same.replayed);
        let other = Finish { message_id: new_id(), ..cut.finish.clone() };
        let alias = cut.worker.finish(&other).await;
        assert_eq!((alias.receipt, alias.replayed), (same.receipt, true));
        hold_one_attempt(&server, &cut.finish.task_id).await;
        cut.worker.nothing_for(Duration::from_millis(300)).await;
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn t23_start_and_finish_back_to_back_end_500_tasks(database: TestDatabase) {
        const TASKS: usize = 500;
        let server = Server::start(&database).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 50).await;
        let submits = async {
            let tasks = server.tasks();
            let submit = |_| {
                let mut tasks = tasks.clone();
                async move { tasks.submit_task(retried("1")).await.expect("accepted") }
            };
            stream::iter(0..TASKS).map(submit).buffer_unordered(16).for_each(async |_| ()).await;
        };
        let runs = async {
            let mut finishes = Vec::with_capacity(TASKS);
            for _ in 0..TASKS {
                let attempt = attempt_of(&worker.dispatch().await);
                worker.send(Ask::Start(start(&attempt))).await;
                let finish = succeeded(&attempt, "1");
                worker.send(Ask::Finish(finish.clone())).await;
                finishes.push(finish);
            }
            for finish in finishes {
                hold_applied(&worker.answer(&finish.message_id).await);
            }
        };
        tokio::join!(submits, runs);
        drop(worker);
        let succeeded = database.number("SELECT COUNT(*) FROM tasks WHERE state = 4").await;
        assert_eq!(usize::try_from(succeeded).expect("a count"), TASKS);
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }

    async fn t23_an_early_finish_is_evidence_until_it_is_sent_again(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let mut worker = Stream::open(server.channel(), 1).await;
        let id = submit(&server, retried("1")).await;
        let attempt = attempt_of(&worker.dispatch().await);
        let early = succeeded(&attempt, "1");
        assert_eq!(disposition(&worker.finish(&early).await), Disposition::Evidence);
        assert_eq!(task(&server, &id).await.state(), TaskState::Leased);
        hold_applied(&worker.start(&attempt).await);
        let applied = worker.finish(&Finish { message_id: new_id(), ..early.clone() }).await;
        hold_applied(&applied);
        let third = worker.finish(&Finish { message_id: new_id(), ..early.clone() }).await;
        assert_eq!((third.receipt, third.replayed), (applied.receipt, true));
        let first = worker.finish(&early).await;
        assert_eq!((disposition(&first), first.replayed), (Disposition::Evidence, true));
        hold_one_attempt(&server, &id).await;
        drop(worker);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

/// What makes two answers the same: all but how the lease is now.
fn said(answer: &CommandResult) -> (Option<orbit::proto::Receipt>, bool) {
    (answer.receipt, answer.replayed)
}

on_mysql! {
async fn t21_a_finish_is_sent_again_to_another_node() {
    let database = TestDatabase::mysql().await;
    let (a, b) = (Server::start(&database).await.with_queue().await, Server::start(&database).await);
    let mut cut = interrupt_a_finish(&a, Loss::AfterTheCommit, &b).await;
    let answer = cut.worker.finish(&cut.finish).await;
    hold_applied(&answer);
    assert!(answer.replayed);
    let at_a = Stream::open(a.channel(), 1).await.finish(&cut.finish).await;
    assert_eq!(said(&at_a), said(&answer));

    let mut never_read = interrupt_a_finish(&a, Loss::BeforeItWasRead, &b).await;
    let answer = never_read.worker.finish(&never_read.finish).await;
    hold_applied(&answer);
    assert!(!answer.replayed);
    for finish in [&cut.finish, &never_read.finish] {
        hold_one_attempt(&a, &finish.task_id).await;
    }
    a.stop().await;
    b.stop().await;
    database.check_invariants().await;
    database.drop().await;
}
}

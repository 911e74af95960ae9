//! A commit whose outcome is unknown (S20): settled, never guessed. A proxy loses the answer, or the COMMIT itself, or
//! delays it beyond the connection; whatever it was, it happened once and everybody is told the truth.

use std::time::Duration;

use orbit::{
    domain::{
        event::EventKind,
        queue::QueueChange,
        receipt::Disposition,
        report::{Finish, Start},
        task::StateName,
    },
    engine::{Engine, EngineOptions},
    store::{Database, DatabaseOptions},
};

use crate::support::{
    database::TestDatabase,
    eventually, on_mysql,
    proxy::{CommitFate, Proxy},
    rig::*,
};

const FATES: [CommitFate; 4] = [
    CommitFate::AnswerLost,
    CommitFate::NeverArrives,
    CommitFate::ArrivesLate(Duration::from_millis(300)),
    CommitFate::ArrivesLate(Duration::from_millis(1_200)),
];

/// An engine whose database is behind a proxy, and a second one that has its own way.
struct Behind {
    rig: Rig,
    proxy: Proxy,
    direct: Engine,
}

impl Behind {
    async fn new() -> Self {
        let database = TestDatabase::mysql().await;
        let proxy = Proxy::before(&database.url).await;
        let url = proxy.url(&database.url);
        let opened = Database::open(&url, DatabaseOptions::default()).await.expect("opened");
        let engine = Engine::start(opened, without_reaper()).await.expect("started");
        let direct = Engine::start(database.open().await, without_reaper()).await.expect("started");
        direct.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
        Self { rig: Rig { engine, database }, proxy, direct }
    }

    /// Every fate happened, and nothing is doubled.
    async fn end(self, lost: usize) {
        let Self { rig, proxy, direct } = self;
        assert_eq!(proxy.lost(), lost);
        direct.shutdown().await;
        drop(direct);
        let doubled = "SELECT COUNT(*) FROM (SELECT task_id, revision FROM events WHERE ordinal = 0 \
                       GROUP BY task_id, revision HAVING COUNT(*) > 1) AS d";
        assert_eq!(rig.database.number(doubled).await, 0);
        rig.end().await;
        proxy.end().await;
    }
}

on_mysql! {
async fn a_submit_is_accepted_once() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    // The route is known before the trouble begins.
    rig.submit(|_| {}).await;
    for (n, fate) in FATES.into_iter().enumerate() {
        behind.proxy.next_commits(&[fate]);
        let submission = submission();
        let first = rig.engine.submit(submission.clone()).await.expect("accepted");
        let again = rig.engine.submit(submission.clone()).await.expect("found");
        let there = behind.direct.submit(submission).await.expect("found");
        assert_eq!((again.task_id(), again.replayed()), (first.task_id(), true), "{fate:?}");
        assert_eq!((there.task_id(), there.replayed()), (first.task_id(), true), "{fate:?}");
        assert!(!first.replayed(), "{fate:?}");
        assert_eq!(
            rig.database.number("SELECT COUNT(*) FROM tasks").await,
            2 + i64::try_from(n).expect("few")
        );
    }
    behind.end(FATES.len()).await;
}

async fn a_claim_is_made_once_and_dispatched() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    for fate in FATES {
        let id = behind.direct.submit(submission()).await.expect("accepted").task_id();
        behind.proxy.next_commits(&[fate]);
        let mut worker = rig.worker(1).await;
        let attempt = worker.next().await.attempt;
        assert_eq!((attempt.task_id, attempt.epoch), (id, 1), "{fate:?}");
        let task = rig.task(id).await.task;
        assert_eq!((task.state.name(), task.attempt_count), (StateName::Leased, 1));
        assert_eq!(rig.kinds(id).await, [EventKind::Accepted, EventKind::Leased]);
        worker.start(attempt).await;
        worker.finish(attempt, succeeded()).await;
    }
    behind.end(FATES.len()).await;
}

async fn a_start_is_granted_once_and_its_receipt_is_true() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    let mut worker = rig.worker(8).await;
    for fate in FATES {
        let id = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        let message = Start { message_id: message_id(), attempt };
        behind.proxy.next_commits(&[fate]);
        let (receipt, _) = worker.start_as(attempt, message.message_id).await.expect("granted");
        assert_eq!((receipt.disposition, receipt.task_state), (Disposition::Applied, StateName::Running));
        let again = behind.direct.start_attempt(message, &worker.session).await.expect("an answer");
        assert_eq!(again.result, Ok((receipt, true)), "{fate:?}");
        let kinds = rig.kinds(id).await;
        assert_eq!(kinds, [EventKind::Accepted, EventKind::Leased, EventKind::Started], "{fate:?}");
        worker.finish(attempt, succeeded()).await;
    }
    behind.end(FATES.len()).await;
}

async fn a_finish_is_applied_once_and_its_receipt_is_true() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    let mut worker = rig.worker(8).await;
    for report in [failed(true), succeeded()] {
        for fate in FATES {
            let id = rig.submit(slow_retry).await;
            let attempt = worker.next().await.attempt;
            worker.start(attempt).await;
            let message = Finish { message_id: message_id(), attempt, report: report.clone() };
            behind.proxy.next_commits(&[fate]);
            let finished = worker.finish_as(attempt, message.message_id, report.clone()).await;
            let (receipt, _) = finished.expect("applied");
            assert_eq!(receipt.disposition, Disposition::Applied, "{fate:?}");
            let again = behind.direct.finish_attempt(message, &worker.session).await.expect("an answer");
            assert_eq!(again.result, Ok((receipt.clone(), true)), "{fate:?}");
            let task = rig.task(id).await.task;
            assert_eq!((task.state.name(), task.revision), (receipt.task_state, 4), "{fate:?}");
            assert_eq!(rig.ended(id).await.len(), 1);
            assert_eq!(rig.database.number("SELECT COUNT(*) FROM evidence").await, 0);
        }
    }
    behind.end(2 * FATES.len()).await;
}

async fn a_reclaim_happens_once() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    let mut worker = rig.worker(8).await;
    for fate in FATES {
        let id = rig
            .submit(|s| {
                idempotent(s);
                slow_retry(s);
            })
            .await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        rig.database.end_leases().await;
        behind.proxy.next_commits(&[fate]);
        assert_eq!(rig.engine.sweep().await.expect("swept").changed, 1, "{fate:?}");
        assert_eq!(behind.direct.sweep().await.expect("swept").candidates, 0, "{fate:?}");
        let kinds = rig.kinds(id).await;
        assert_eq!(kinds.iter().filter(|k| **k == EventKind::Requeued).count(), 1, "{fate:?}");
        assert_eq!(rig.task(id).await.task.state.name(), StateName::Waiting);
    }
    behind.end(FATES.len()).await;
}

async fn a_cancel_and_a_pause_happen_once() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    for fate in FATES {
        let id = rig.submit(|_| {}).await;
        let request = request();
        behind.proxy.next_commits(&[fate]);
        let canceled = rig.engine.cancel_task(id, String::new(), request.clone()).await.expect("canceled");
        let again = behind.direct.cancel_task(id, String::new(), request).await.expect("canceled");
        assert_eq!((canceled, canceled.changed), (again, true), "{fate:?}");

        let before = rig.engine.database().queue(QUEUE).await.expect("read").expect("there").revision;
        let request = self::request();
        let change = if before % 2 == 1 { QueueChange::Pause } else { QueueChange::Resume };
        behind.proxy.next_commits(&[fate]);
        let changed = rig.engine.change_queue(QUEUE.to_owned(), change, None, request.clone()).await;
        let changed = changed.expect("changed");
        let again = behind.direct.change_queue(QUEUE.to_owned(), change, None, request).await;
        assert_eq!(again.expect("changed").revision, changed.revision);
        assert_eq!(changed.revision, before + 1, "{fate:?}");
    }
    behind.end(2 * FATES.len()).await;
}

/// Many at once, and trouble again and again: every answer stays true.
async fn batches_survive_trouble_after_trouble() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    rig.submit(|_| {}).await;
    let submissions: Vec<_> = (0..200).map(|_| submission()).collect();
    for chunk in submissions.chunks(50) {
        behind.proxy.next_commits(&[
            CommitFate::AnswerLost,
            CommitFate::NeverArrives,
            CommitFate::AnswerLost,
        ]);
        let answers =
            futures_util::future::join_all(chunk.iter().map(|s| rig.engine.submit(s.clone()))).await;
        for (submission, answer) in chunk.iter().zip(answers) {
            let there = behind.direct.submit(submission.clone()).await.expect("found");
            assert_eq!(there.task_id(), answer.expect("accepted").task_id());
            assert!(there.replayed());
        }
    }
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM tasks").await, 201);
    let lost = behind.proxy.lost();
    assert!(lost >= 4, "{lost}");
    behind.end(lost).await;
}

/// As long as nobody can find out, callers are told that nobody knows; afterwards the same key tells.
async fn an_outcome_that_stays_unknown_is_said_to_be_unknown() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    rig.submit(|_| {}).await;
    for fate in [CommitFate::AnswerLost, CommitFate::NeverArrives] {
        let submission = submission();
        behind.proxy.cut_with_next_commit(fate);
        let answer = rig.engine.submit(submission.clone()).await;
        let failure = answer.expect_err("nobody knows");
        assert!(matches!(failure, orbit::engine::Failure::OutcomeUnknown), "{fate:?} {failure:?}");
        behind.proxy.restore();
        let healthy = eventually("it answers again", Duration::from_secs(10), || async {
            rig.engine.submit(submission.clone()).await.ok()
        })
        .await;
        assert_eq!(healthy.replayed(), fate == CommitFate::AnswerLost, "{fate:?}");
        let there = behind.direct.submit(submission).await.expect("found");
        assert_eq!((there.task_id(), there.replayed()), (healthy.task_id(), true));
    }
    // It was waited for: each lane of the two engines goes on from where it was.
    assert_eq!(rig.database.number("SELECT COUNT(*) FROM lane_commits").await, 4);
    behind.end(2).await;
}

/// Nobody is told "nothing was written" while it still may be.
async fn a_commit_that_arrives_after_everybody_has_given_up_is_said_to_be_unknown() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    rig.submit(|_| {}).await;
    let submission = submission();
    // After callers were answered (9 s), before MySQL ends the silent session and its transaction (10 s).
    behind.proxy.next_commits(&[CommitFate::ArrivesLate(Duration::from_millis(9_500))]);
    let failure = rig.engine.submit(submission.clone()).await.expect_err("nobody knows");
    assert!(matches!(failure, orbit::engine::Failure::OutcomeUnknown), "{failure:?}");
    let accepted = eventually("it answers again", Duration::from_secs(10), || async {
        rig.engine.submit(submission.clone()).await.ok()
    })
    .await;
    assert!(accepted.replayed(), "it was written after all");
    behind.end(1).await;
}

/// A commit that is not answered in time is looked up too: meanwhile the connection is there, and the COMMIT under way.
async fn a_commit_that_is_not_answered_in_time_is_looked_up() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    rig.submit(|_| {}).await;
    let lanes = "SELECT COUNT(*) FROM lane_commits WHERE seq >= 0";
    let names = "SELECT CAST(SUM(CRC32(lane)) AS SIGNED) FROM lane_commits";
    let before = (rig.database.number(lanes).await, rig.database.number(names).await);
    let submission = submission();
    behind.proxy.hold("COMMIT");
    let failure = rig.engine.submit(submission.clone()).await.expect_err("nobody knows");
    assert!(matches!(failure, orbit::engine::Failure::OutcomeUnknown), "{failure:?}");
    behind.proxy.let_go();
    let accepted = eventually("it answers again", Duration::from_secs(10), || async {
        rig.engine.submit(submission.clone()).await.ok()
    })
    .await;
    let there = behind.direct.submit(submission).await.expect("found");
    assert_eq!((there.task_id(), there.replayed()), (accepted.task_id(), true));
    // Nobody took it for a database that lost its commits: each lane goes on with its own row.
    assert_eq!((rig.database.number(lanes).await, rig.database.number(names).await), before);
    behind.end(0).await;
}

/// A replica took over without the commit: what became of it cannot be known, and nobody is told that it is there.
async fn a_commit_to_a_database_that_is_gone_is_said_to_be_unknown() {
    let behind = Behind::new().await;
    let rig = &behind.rig;
    rig.submit(|_| {}).await;
    let submission = submission();
    behind.proxy.cut_with_next_commit(CommitFate::NeverArrives);
    let other_database = async {
        eventually("the commit is lost", Duration::from_secs(5), async || {
            (behind.proxy.lost() == 1).then_some(())
        })
        .await;
        rig.database.sql("DELETE FROM lane_commits").await;
        behind.proxy.restore();
    };
    let (answer, ()) = tokio::join!(rig.engine.submit(submission.clone()), other_database);
    let failure = answer.expect_err("nobody knows");
    assert!(matches!(failure, orbit::engine::Failure::OutcomeUnknown), "{failure:?}");
    let accepted = rig.engine.submit(submission).await.expect("accepted");
    assert!(!accepted.replayed());
    behind.end(1).await;
}

async fn two_lanes_do_not_wait_for_each_others_trouble() {
    let database = TestDatabase::mysql().await;
    let proxy = Proxy::before(&database.url).await;
    let opened = Database::open(&proxy.url(&database.url), DatabaseOptions::default()).await.expect("opened");
    let options = EngineOptions { lanes: 4, ..without_reaper() };
    let rig = Rig { engine: Engine::start(opened, options).await.expect("started"), database };
    rig.engine.create_queue(QUEUE.to_owned(), 0, request()).await.expect("a queue");
    rig.submit(|_| {}).await;
    proxy.next_commits(&[CommitFate::ArrivesLate(Duration::from_secs(1))]);
    let submissions: Vec<_> = (0..40).map(|_| submission()).collect();
    let began = tokio::time::Instant::now();
    let answers = futures_util::future::join_all(submissions.into_iter().map(|s| async {
        rig.engine.submit(s).await.expect("accepted");
        began.elapsed()
    }))
    .await;
    let late = answers.iter().filter(|e| **e > Duration::from_millis(800)).count();
    assert!((1..40).contains(&late), "{late} of 40 waited");
    rig.end().await;
    proxy.end().await;
}
}

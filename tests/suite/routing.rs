//! Who gets what (S23), and what a replay passes by (S19).

use std::time::Duration;

use orbit::{
    domain::{
        json::JsonText,
        queue::QueueChange,
        rejection::{FieldReason, Rejection},
        task::State,
        time::Moment,
    },
    engine::EngineOptions,
};

use crate::support::{on_every_database, rig::*};

on_every_database! {
    async fn a_worker_holds_no_more_at_once_than_it_takes(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(2).await;
        for _ in 0..5 {
            rig.submit(|_| {}).await;
        }
        let first = worker.next().await.attempt;
        let mut last = worker.next().await.attempt;
        worker.start(last).await;
        worker.nothing_for(Duration::from_millis(400)).await;
        for _ in 0..3 {
            worker.finish(last, succeeded()).await;
            worker.seat.released(last.attempt_id);
            last = worker.next().await.attempt;
            worker.start(last).await;
        }
        worker.nothing_for(Duration::from_millis(400)).await;
        worker.start(first).await;
        rig.end().await;
    }

    async fn a_worker_gets_only_what_it_declared(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        rig.engine.create_queue("other".to_owned(), 0, request()).await.expect("a queue");
        let others = [
            rig.submit(|s| s.queue_id = "other".to_owned()).await,
            rig.submit(|s| s.handler = "text.Normalize".to_owned()).await,
            rig.submit(|s| s.handler_version = "v2".to_owned()).await,
        ];
        let mut worker = rig.worker(10).await;
        worker.nothing_for(Duration::from_millis(600)).await;
        let mine = rig.submit(|_| {}).await;
        assert_eq!(worker.next().await.attempt.task_id, mine);
        for id in others {
            assert!(matches!(rig.task(id).await.task.state, State::Waiting { .. }));
        }
        rig.end().await;
    }

    async fn a_replay_passes_every_check_that_depends_on_time_or_configuration(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let now = rig.database.number("SELECT MAX(last_seen) FROM cluster").await;
        let mut one = submission();
        one.start_before = Some(Moment::from_micros(now).plus_ms(1_500));
        one.payload = JsonText::stored(format!("\"{}\"", "x".repeat(5_000)));
        let first = rig.engine.submit(one.clone()).await.expect("accepted");
        rig.engine.change_queue(QUEUE.to_owned(), QueueChange::Pause, None, request()).await.expect("paused");
        rig.engine.shutdown().await;
        let database = rig.database;
        drop(rig.engine);

        // A smaller limit, a paused queue, and `start_before` has passed.
        let small = EngineOptions { payload_bytes_max: 1_000, ..options() };
        let engine = orbit::engine::Engine::start(database.open().await, small).await.expect("started");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let again = engine.submit(one.clone()).await.expect("replayed");
        assert_eq!((again.task_id(), again.replayed()), (first.task_id(), true));
        one.idempotency_key = "another".to_owned();
        let refused = rejection(engine.submit(one).await);
        let Rejection::Invalid(problems) = refused else { panic!("{refused:?}") };
        assert_eq!(problems.first().map(|p| p.reason), Some(FieldReason::PayloadTooLarge));
        engine.shutdown().await;
        database.drop().await;
    }
}

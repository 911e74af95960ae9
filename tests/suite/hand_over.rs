//! A new task goes to a waiting worker in the transaction that accepts it.

use std::time::Duration;

use orbit::domain::{event::EventKind, queue::QueueChange};
use tokio::time::sleep;

use crate::support::{
    database::TestDatabase,
    on_every_database,
    rig::{QUEUE, Rig, options, request, succeeded},
};

async fn transactions(database: &TestDatabase) -> i64 {
    database.number("SELECT CAST(SUM(seq) AS SIGNED) FROM lane_commits").await
}

on_every_database! {
    async fn a_task_that_a_worker_waits_for_is_leased_in_the_transaction_that_accepts_it(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(1).await;
        // The first one makes the route.
        rig.submit(|_| {}).await;
        worker.run(succeeded()).await;
        // A look for more after the slot became free.
        sleep(Duration::from_millis(100)).await;
        let before = transactions(&rig.database).await;
        let task_id = rig.submit(|_| {}).await;
        let dispatch = worker.next().await;
        assert_eq!((dispatch.attempt.task_id, dispatch.attempt.epoch), (task_id, 1));
        assert_eq!(transactions(&rig.database).await, before + 1, "one transaction accepts and leases");
        assert_eq!(dispatch.payload, rig.task(task_id).await.payload.expect("a payload"));
        let events = rig.engine.database().events(task_id, (0, 0), 10).await.expect("read").expect("there").events;
        let kinds: Vec<_> = events.iter().map(|e| (e.revision, e.kind)).collect();
        assert_eq!(kinds, [(1, EventKind::Accepted), (2, EventKind::Leased)]);
        worker.start(dispatch.attempt).await;
        worker.finish(dispatch.attempt, succeeded()).await;
        rig.end().await;
    }

    async fn what_waited_goes_first_and_only_as_much_as_there_is_room_for(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let older = [rig.submit(|_| {}).await, rig.submit(|_| {}).await];
        let mut worker = rig.worker(2).await;
        let first = worker.next().await;
        let second = worker.next().await;
        let newer = rig.submit(|_| {}).await;
        worker.nothing_for(Duration::from_millis(300)).await;
        assert_eq!([first.attempt.task_id, second.attempt.task_id], older);
        worker.start(first.attempt).await;
        worker.finish(first.attempt, succeeded()).await;
        assert_eq!(worker.next().await.attempt.task_id, newer);
        rig.end().await;
    }

    async fn a_paused_queue_hands_nothing_over(database: TestDatabase) {
        let rig = Rig::new(database, options()).await;
        let mut worker = rig.worker(4).await;
        rig.submit(|_| {}).await;
        worker.run(succeeded()).await;

        rig.engine.change_queue(QUEUE.to_owned(), QueueChange::Pause, None, request()).await.expect("paused");
        rig.submit(|_| {}).await;
        worker.nothing_for(Duration::from_millis(500)).await;
        rig.engine.change_queue(QUEUE.to_owned(), QueueChange::Resume, None, request()).await.expect("resumed");
        worker.run(succeeded()).await;
        rig.end().await;
    }
}

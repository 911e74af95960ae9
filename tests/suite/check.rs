//! `orbit check` finds rows that contradict each other, and names them.

use orbit::store::{Access, Database, DatabaseOptions};

use crate::support::{on_every_database, rig::*};

on_every_database! {
    async fn each_broken_row_is_named(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(1).await;
        let id = rig.submit(|_| {}).await;
        worker.next().await;
        rig.submit(|s| s.handler = "nobody".to_owned()).await;
        rig.engine.shutdown().await;
        rig.database.check_invariants().await;

        // Each breaks what was whole, and is put right again where that is easier than a new database.
        for (broken, count) in [
            ("DELETE FROM payloads", 2),
            ("UPDATE leases SET epoch = epoch + 1", 1),
            ("DELETE FROM leases", 2),
            ("DELETE FROM ready", 1),
            ("DELETE FROM events WHERE revision = 1", 2),
        ] {
            let before = all_broken(&rig).await;
            rig.database.sql(broken).await;
            let found = all_broken(&rig).await;
            assert!(found.len() > before.len() || found != before, "{broken} goes unnoticed");
            assert!(found.len() >= count, "{broken}: {found:?}");
        }
        assert!(all_broken(&rig).await.iter().any(|line| line.contains(&id.to_string())));
        rig.database.drop().await;
    }

    async fn what_is_left_of_a_task_that_is_gone_is_named_by_its_table(database: TestDatabase) {
        let rig = Rig::new(database, without_reaper()).await;
        let mut worker = rig.worker(2).await;
        rig.submit(|_| {}).await;
        let (attempt, _) = worker.run(succeeded()).await;
        worker.finish(attempt, unknown()).await;
        let running = rig.submit(|_| {}).await;
        let attempt = worker.next().await.attempt;
        worker.start(attempt).await;
        rig.engine.cancel_task(running, String::new(), request()).await.expect("recorded");
        rig.engine.shutdown().await;
        rig.database.check_invariants().await;
        rig.database.sql("DELETE FROM tasks").await;
        let found = all_broken(&rig).await;
        for table in ["payloads", "attempts", "receipts", "evidence", "events", "cancels", "requests"] {
            let named = format!("in {table} belongs to a task: ");
            assert!(found.iter().any(|line| line.contains(&named)), "{table}: {found:?}");
        }
        rig.database.drop().await;
    }
}

async fn all_broken(rig: &Rig) -> Vec<String> {
    let options = DatabaseOptions { access: Access::Inspect, ..DatabaseOptions::default() };
    let database = Database::open(&rig.database.url, options).await.expect("the test's database");
    let mut all = Vec::new();
    for invariant in Database::invariants() {
        let broken = database.broken(invariant, 10).await.expect("read");
        all.extend(broken.iter().map(|b| format!("{invariant}: {}", b.task_id)));
    }
    database.close().await;
    all
}

//! LookupTask: what became of a submit whose answer was lost.

use orbit::{proto::LookupTaskRequest, sdk::Error};
use tonic::Code;

use crate::support::{
    on_every_database,
    server::{Server, submit_request},
};

on_every_database! {
    async fn a_key_finds_its_task_and_no_other(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let request = submit_request("{\"a\":1}");
        let key = request.idempotency_key.clone();
        let client = server.client();

        let unknown = client.lookup(&key).await.expect_err("nothing was submitted");
        assert_eq!((unknown.code(), unknown.reason()), (Code::NotFound, Some("TASK_NOT_FOUND")));
        assert_eq!(unknown.metadata()["idempotency_key"], key);

        let accepted = server.tasks().submit_task(request).await.expect("accepted").into_inner();
        let accepted = accepted.task.expect("a task");
        // Somebody else's task under the same key is not the caller's.
        let theirs = format!("UPDATE tasks SET principal = 'other' WHERE idempotency_key = '{key}'");
        let found = client.lookup(&key).await.expect("found");
        assert_eq!((&found, found.payload.as_str()), (&accepted, ""));
        // Keys are compared byte for byte.
        assert!(client.lookup(&key.to_uppercase()).await.is_err() || key == key.to_uppercase());
        database.sql(&theirs).await;
        assert_eq!(client.lookup(&key).await.expect_err("not ours").code(), Code::NotFound);
        server.stop().await;
        database.drop().await;
    }

    async fn a_malformed_key_is_a_bad_field(database: TestDatabase) {
        let server = Server::start(&database).await;
        for idempotency_key in [String::new(), "a b".to_owned(), "é".to_owned(), "k".repeat(256)] {
            let refused = server.tasks().lookup_task(LookupTaskRequest { idempotency_key }).await;
            let refused = Error::from(refused.expect_err("refused"));
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert_eq!(refused.field_violations()[0].field, "idempotency_key");
        }
        server.stop().await;
        database.drop().await;
    }
}

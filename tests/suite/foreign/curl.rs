//! curl, as docs/http.md uses it.

use super::session::play;
use crate::support::{on_every_database, server::Server};

const PAGE: &str = include_str!("../../../docs/http.md");

on_every_database! {
    async fn the_lines_of_the_page_about_http_get_its_answers(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        assert!(play(PAGE, &server) >= 20);
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

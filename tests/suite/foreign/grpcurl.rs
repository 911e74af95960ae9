//! grpcurl and `buf curl`, as docs/grpcurl.md uses them: a worker by hand.

use super::session::play;
use crate::support::{on_every_database, server::Server};

const PAGE: &str = include_str!("../../../docs/grpcurl.md");

on_every_database! {
    async fn the_session_by_hand_goes_as_its_page_says(database: TestDatabase) {
        let server = Server::start(&database).await;
        assert!(play(PAGE, &server) >= 25);
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

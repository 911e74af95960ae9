//! One suite for every database: each test runs on SQLite and on a real MySQL, on a database of its own.
//!
//! The MySQL server is the one at `ORBIT_TEST_MYSQL_URL`, which `tests/run` provides.

#![cfg(feature = "server")]

#[path = "../sdk/authority.rs"]
mod authority;
#[path = "../million/load.rs"]
mod load_sql;
mod support;

mod atomicity;
mod batch;
mod bench;
mod cancel;
mod cancel_races;
mod check;
mod commands;
mod dispatch;
mod evidence;
mod example;
mod examples;
mod foreign;
mod hand_over;
mod http;
mod killed_at_commit;
mod lifecycle;
mod list;
mod load;
mod lookup;
mod outage;
mod passwords;
mod pause;
mod permits;
mod process_end;
mod readme;
mod receipts;
mod reclaim;
mod retention;
mod review;
mod routing;
mod sdk;
mod start;
mod stopped;
mod submit;
mod texts;
mod tls;
mod trials;
mod unknown_commit;
mod wait;
mod wire;

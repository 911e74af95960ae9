//! One suite for every database: each test runs on SQLite and on a real MySQL, on a database of its own.
//!
//! The MySQL server is the one at `ORBIT_TEST_MYSQL_URL`, which `tests/run` provides.

#![cfg(feature = "server")]

mod support;

mod atomicity;
mod batch;
mod cancel;
mod cancel_races;
mod check;
mod dispatch;
mod evidence;
mod example;
mod foreign;
mod http;
mod lifecycle;
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
mod review;
mod routing;
mod start;
mod submit;
mod texts;
mod trials;
mod unknown_commit;
mod wait;
mod wire;

//! One suite for every database: each test runs on SQLite and on a real MySQL, on a database of its own.
//!
//! The MySQL server is the one at `ORBIT_TEST_MYSQL_URL`, which `tests/run` provides.

mod support;

mod atomicity;
mod cancel;
mod evidence;
mod lifecycle;
mod outage;
mod pause;
mod permits;
mod receipts;
mod reclaim;
mod review;
mod start;
mod trials;
mod unknown_commit;

//! One suite for every database: each test runs on SQLite and on a real MySQL, on a database of its own.
//!
//! The MySQL server is the one at `ORBIT_TEST_MYSQL_URL`, which `tests/run` provides.

mod support;

mod cancel;
mod dispatch;
mod example;
mod lifecycle;
mod load;
mod process_end;
mod readme;
mod review;
mod submit;
mod texts;
mod trials;

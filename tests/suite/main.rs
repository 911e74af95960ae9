//! One suite for every database: each test runs on SQLite and on a real MySQL, on a database of its own.
//!
//! The MySQL server is the one at `ORBIT_TEST_MYSQL_URL`, which `tests/run` provides.

mod support;

mod cancel;
mod check;
mod lifecycle;
mod review;

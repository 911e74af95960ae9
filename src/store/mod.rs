//! The database: the only home of SQL and of every difference between MySQL, MariaDB and SQLite.
//!
//! Everything that changes a task goes through a [`transaction`]: lock and load a [`working_set`], let pure functions
//! decide, save what changed. Rows of the hot tables are derived from the state of the task (`ready` ⇔ WAITING,
//! `leases` ⇔ LEASED or RUNNING, `reviews` ⇔ NEEDS_REVIEW), so they cannot disagree with it.

mod answers;
mod check;
mod codes;
mod columns;
mod database;
mod dialect;
mod error;
mod history;
mod list;
mod load;
mod lookup;
mod outage;
pub mod reads;
mod refusals;
mod retention;
mod routes;
mod rows;
mod save;
mod sweep;
mod transaction;
mod working_set;

pub use answers::StoredAnswer;
pub use check::Broken;
pub use database::{Access, Database, DatabaseOptions, OpenError};
pub use error::{Fault, Inconsistency};
pub use history::EventPage;
pub use list::{TaskFilter, TaskPage};
pub use load::{ClaimNeed, Needs};
pub use outage::{LastSeen, LeaseTerms};
pub use retention::Finished;
pub use routes::{RouteInfo, Routes};
pub use sweep::{Due, HeldLease};
pub use transaction::{BatchError, KEEP_EVERY, LaneConnection};
pub use working_set::{KeyHit, StoredRequest, Wakes, WorkingSet};

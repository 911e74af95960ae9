//! The schema on every database at hand: see `databases`.

mod checks;
mod databases;
mod nodes;
mod reruns;
mod rows;
mod statuses;
mod types;
mod upgrade;

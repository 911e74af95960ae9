//! Between the contract and the domain: requests are checked field by field, records are written out.
//!
//! A request is read to its end before it is refused, so that its sender learns of all bad fields at once.

mod attempt;
mod event;
mod fields;
mod hello;
mod names;
mod operator;
mod queue;
mod report;
mod submission;
mod task;
mod time;
mod worker;

pub(crate) use attempt::attempt;
pub(crate) use event::event;
pub(crate) use fields::Fields;
pub(crate) use hello::{BadHello, Hello, SAFE_RETRY, hello};
pub(crate) use names::{decision, disposition, recovery_safety, state_name};
pub(crate) use operator::{cancel, operator_receipt, resolve};
pub(crate) use queue::{queue, queue_stats, served_handler};
pub(crate) use report::{RENEW_LEASES_MAX, finish, renew, start};
pub(crate) use submission::submission;
pub(crate) use task::{task, task_error};
pub(crate) use time::timestamp;
pub(crate) use worker::{dispatch, lease_status, receipt};

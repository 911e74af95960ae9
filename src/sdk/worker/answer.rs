//! How the server's answer to a start or a finish is read.

use std::time::Duration;

use tonic::Code;

use crate::{
    proto::{CommandResult, Receipt},
    sdk::error::Error,
};

/// What an answer asks the worker to do.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Decided and committed.
    Accepted(Receipt),
    /// Not decided, or not known to be: send the same message again.
    Again(Again),
    /// The task or attempt is gone, or no more evidence is kept: nothing that is sent can change that.
    Gone(Error),
    /// Evaluated and refused.
    Refused(Error),
}

/// Why, and how, to send the same message again.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) error: Error,
    /// How long the server asks to wait.
    pub(crate) after: Option<Duration>,
    /// Whether this looks like a fault that waiting may not cure, so that trying for ever would be wrong.
    pub(crate) suspicious: bool,
}

/// Reads an answer.
pub(crate) fn read(result: &CommandResult) -> Answer {
    let status = result.status.clone().unwrap_or_default();
    if status.code == Code::Ok as i32 {
        let again = || {
            let error = Error::protocol("a message was accepted without a receipt");
            Answer::Again(Again { error, after: None, suspicious: true })
        };
        return result.receipt.map_or_else(again, Answer::Accepted);
    }
    let error = Error::from_rpc_status(&status);
    let after = error.retry_after();
    let again = |error, suspicious| Answer::Again(Again { error, after, suspicious });
    match (error.code(), error.reason()) {
        (Code::Unavailable | Code::ResourceExhausted, _) | (_, Some("OUTCOME_UNKNOWN")) => {
            again(error, false)
        }
        (Code::NotFound, _) | (_, Some("EVIDENCE_LIMIT")) => Answer::Gone(error),
        (
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss,
            _,
        ) => Answer::Refused(error),
        (
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::PermissionDenied
            | Code::Aborted
            | Code::Internal
            | Code::Unauthenticated,
            _,
        ) => again(error, true),
    }
}

//! `orbit task cancel` and `orbit task resolve`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use orbit::{
    proto::{
        ResolveCanceled, ResolveFailed, ResolveRetry, ResolveSucceeded, ResolveTaskRequest, TaskError,
        resolve_task_request::Outcome,
    },
    sdk::Operated,
};
use prost_types::Timestamp;

use super::{
    super::{
        client::ClientArgs,
        failure::Failure,
        json::Json,
        print, table,
        value::{Name as _, moment_json, moment_short, parse_moment, yes_no},
    },
    show,
    submit::read_payload,
};

/// Cancel a task: no attempt is claimed or started any more
///
/// What has not started ends at once. A running attempt is told and goes on until it reports; its success still counts.
#[derive(Args)]
#[command(
    after_help = "Example:\n  orbit task cancel 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --reason 'ordered twice'"
)]
pub(crate) struct CancelArgs {
    /// The task's id, a UUID
    #[arg(value_name = "TASK_ID")]
    task: String,

    /// Why, for people and for the worker
    #[arg(long, default_value = "")]
    reason: String,

    #[command(flatten)]
    client: ClientArgs,
}

const RESOLVE_EXAMPLES: &str = "\
Look first (`orbit task explain`), verify at the resource what happened, then say so with --effect-verified.

Examples:
  orbit task resolve 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --revision 4 --reason 'booked, see ledger' --effect-verified succeeded --result '{\"receipt\":\"R-7\"}'
  orbit task resolve 0197c1a8-6c5e-7e3a-9f0b-2d4c6a8e0f12 --revision 4 --reason 'not in the ledger' --effect-verified retry --attempts 2";

/// Resolve a task that needs review
#[derive(Args)]
#[command(after_help = RESOLVE_EXAMPLES)]
pub(crate) struct ResolveArgs {
    /// The task's id, a UUID
    #[arg(value_name = "TASK_ID")]
    task: String,

    /// What you found out, for the record
    #[arg(long)]
    reason: String,

    /// You verified at the resource what happened; clears the doubt
    #[arg(long)]
    effect_verified: bool,

    /// Where the evidence lies, such as a link; may be given several times
    #[arg(long = "evidence", value_name = "REFERENCE")]
    evidence: Vec<String>,

    /// The revision you looked at, as `orbit task explain` told it; refused if the task has changed since
    #[arg(long, value_name = "N")]
    revision: u32,

    #[command(flatten)]
    client: ClientArgs,

    #[command(subcommand)]
    outcome: OutcomeArgs,
}

#[derive(Subcommand)]
enum OutcomeArgs {
    /// The effect happened
    Succeeded {
        /// What it returned: JSON text, @FILE, or - for standard input
        #[arg(long, value_name = "JSON|@FILE|-", default_value = "null", allow_hyphen_values = true)]
        result: String,
    },
    /// The effect did not happen
    Failed {
        /// A stable code
        #[arg(long)]
        code: String,
        /// For people
        #[arg(long, default_value = "")]
        message: String,
    },
    /// The effect did not happen and is not wanted any more
    Canceled,
    /// The task may run again
    Retry {
        /// Attempts added to the limit, 1 to 1000
        #[arg(long, value_name = "N", default_value_t = 1)]
        attempts: u32,
        /// The new deadline, in milliseconds from now [default: the task's own time]
        #[arg(long, value_name = "MS")]
        task_timeout_ms: Option<u32>,
        /// No attempt is claimed or started at or after this moment, RFC 3339
        #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
        start_before: Option<Timestamp>,
    },
}

/// Cancels.
pub(super) async fn cancel(args: CancelArgs) -> Result<ExitCode, Failure> {
    let canceled = args.client.connect()?.cancel(&args.task, &args.reason).await;
    let canceled = canceled.map_err(|error| args.client.failure(&error))?;
    show_receipt(args.client.json, &canceled)
}

/// Resolves.
pub(super) async fn resolve(args: ResolveArgs) -> Result<ExitCode, Failure> {
    let client = args.client.connect()?;
    let outcome = match args.outcome {
        OutcomeArgs::Succeeded { result } => {
            Outcome::Succeeded(ResolveSucceeded { result: read_payload(&result)? })
        }
        OutcomeArgs::Failed { code, message } => Outcome::Failed(ResolveFailed {
            error: Some(TaskError { code, message, details: String::new() }),
        }),
        OutcomeArgs::Canceled => Outcome::Canceled(ResolveCanceled {}),
        OutcomeArgs::Retry { attempts, task_timeout_ms, start_before } => {
            Outcome::Retry(ResolveRetry { granted_attempts: Some(attempts), task_timeout_ms, start_before })
        }
    };
    let request = ResolveTaskRequest {
        task_id: args.task,
        expected_revision: args.revision,
        effect_verified: args.effect_verified,
        reason: args.reason,
        evidence_refs: args.evidence,
        outcome: Some(outcome),
        request_id: String::new(),
    };
    let resolved = client.resolve(request).await.map_err(|error| args.client.failure(&error))?;
    show_receipt(args.client.json, &resolved)
}

fn show_receipt(json: bool, operated: &Operated) -> Result<ExitCode, Failure> {
    let receipt = operated.receipt;
    if json {
        let told = Json::Object(vec![
            ("changed", receipt.changed.into()),
            ("task_state", Json::text_or_null(receipt.task_state().name())),
            ("revision", receipt.revision.into()),
            ("decision", Json::text_or_null(receipt.decision().name())),
            ("effect_uncertain", receipt.effect_uncertain.into()),
            ("committed_at", moment_json(receipt.committed_at.as_ref())),
        ]);
        let task = show::basic_task_json(&operated.task);
        return print(&Json::Object(vec![("receipt", told), ("task", task)]).print());
    }
    print(&table::fields(vec![
        ("changed", yes_no(receipt.changed)),
        ("state", receipt.task_state().name().to_owned()),
        ("decision", receipt.decision().name().to_owned()),
        ("effect uncertain", yes_no(receipt.effect_uncertain)),
        ("revision", receipt.revision.to_string()),
        ("not before", moment_short(operated.task.not_before.as_ref())),
        ("start before", moment_short(operated.task.start_before.as_ref())),
    ]))
}

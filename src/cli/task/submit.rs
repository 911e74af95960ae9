//! `orbit task submit`.

use std::{
    io::Read as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::Args;
use orbit::{
    proto::RecoverySafety,
    sdk::{self, Client, Submit, Submitted},
};
use prost_types::Timestamp;

use super::{
    super::{
        client::ClientArgs,
        failure::Failure,
        json::Json,
        print, table,
        value::{Name as _, moment_short, parse_moment, yes_no},
    },
    show,
};

const EXAMPLES: &str = "\
What is left out keeps the server's default. Sending the same again with the same --key returns the task that was
accepted first; without --key each call is a task of its own.

Examples:
  orbit task submit --handler text.normalize --payload '{\"text\":\"  hello  \"}'
  orbit task submit --handler mail.send --key invoice-4711/send --payload @mail.json --max-attempts 3
  jq -c .order order.json | orbit task submit --handler order.ship --payload - --json";

/// Submit a task: when its id is printed, it is committed
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubmitArgs {
    /// The queue, which must exist
    #[arg(long, default_value = "default")]
    queue: String,

    /// Which handler runs the task
    #[arg(long, value_name = "NAME")]
    handler: String,

    /// The handler's version: only workers that declared exactly this pair get the task
    #[arg(long, value_name = "VERSION", default_value = "v1")]
    handler_version: String,

    /// JSON text, kept byte for byte: the text itself, @FILE, or - for standard input [default: null]
    #[arg(long, value_name = "JSON|@FILE|-", allow_hyphen_values = true)]
    payload: Option<String>,

    /// The version of the payload's schema, for the handler
    #[arg(long, value_name = "VERSION", default_value = sdk::DEFAULT_PAYLOAD_VERSION)]
    payload_version: String,

    /// Your own name for this operation, 1 to 255 visible ASCII characters [default: a new UUID]
    #[arg(long)]
    key: Option<String>,

    /// How many attempts may be claimed, the first included, 1 to 1000 [default: 1]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,

    /// Backoff after the first attempt, doubled after each further one [default: 1000]
    #[arg(long, value_name = "MS")]
    initial_delay_ms: Option<u32>,

    /// Where the doubling stops [default: 60000]
    #[arg(long, value_name = "MS")]
    max_delay_ms: Option<u32>,

    /// How long one attempt may run [default: 300000]
    #[arg(long, value_name = "MS")]
    attempt_timeout_ms: Option<u32>,

    /// Total time from acceptance to the deadline [default: 86400000]
    #[arg(long, value_name = "MS")]
    task_timeout_ms: Option<u32>,

    /// The handler may be repeated after an execution with unknown effect; otherwise a person must look
    #[arg(long)]
    idempotent: bool,

    /// Earliest first claim, RFC 3339 with an offset, such as 2030-01-31T09:30:00Z
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    not_before: Option<Timestamp>,

    /// No attempt is claimed or started at or after this moment
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    start_before: Option<Timestamp>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Submits the task and tells its id and key.
pub(super) async fn run(args: SubmitArgs) -> Result<ExitCode, Failure> {
    let submit = prepare(&args, &args.client.connect()?)?;
    let submitted = submit.send().await.map_err(|error| {
        let failure = args.client.failure(&error);
        if error.is_transient() {
            failure.hint(&format!(
                "the task may have been accepted: the same again with `--key {}` finds out",
                submit.key()
            ))
        } else {
            failure
        }
    })?;
    show_submitted(&submitted, args.client.json)
}

pub(super) fn show_submitted(submitted: &Submitted, json: bool) -> Result<ExitCode, Failure> {
    if json {
        let task = show::basic_task_json(&submitted.task);
        return print(&Json::Object(vec![("task", task), ("replayed", submitted.replayed.into())]).print());
    }
    print(&table::fields(vec![
        ("task", submitted.task.task_id.clone()),
        ("key", submitted.task.idempotency_key.clone()),
        ("state", submitted.task.state().name().to_owned()),
        ("not before", moment_short(submitted.task.not_before.as_ref())),
        ("start before", moment_short(submitted.task.start_before.as_ref())),
        ("replayed", yes_no(submitted.replayed)),
    ]))
}

fn prepare(args: &SubmitArgs, client: &Client) -> Result<Submit, Failure> {
    let mut submit = client
        .submit(&args.queue, &args.handler, &args.handler_version)
        .payload_version(&args.payload_version);
    if let Some(payload) = &args.payload {
        submit = submit.payload_json(read_payload(payload)?);
    }
    if let Some(key) = &args.key {
        submit = submit.idempotency_key(key);
    }
    if let Some(attempts) = args.max_attempts {
        submit = submit.max_attempts(attempts);
    }
    if let Some(ms) = args.initial_delay_ms {
        submit = submit.initial_delay(millis(ms));
    }
    if let Some(ms) = args.max_delay_ms {
        submit = submit.max_delay(millis(ms));
    }
    if let Some(ms) = args.attempt_timeout_ms {
        submit = submit.attempt_timeout(millis(ms));
    }
    if let Some(ms) = args.task_timeout_ms {
        submit = submit.task_timeout(millis(ms));
    }
    if args.idempotent {
        submit = submit.recovery_safety(RecoverySafety::Idempotent);
    }
    if let Some(at) = args.not_before {
        submit = submit.not_before(system_time("not-before", at)?);
    }
    if let Some(at) = args.start_before {
        submit = submit.start_before(system_time("start-before", at)?);
    }
    Ok(submit)
}

pub(super) fn read_payload(argument: &str) -> Result<String, Failure> {
    let (from, text) = match (argument, argument.strip_prefix('@')) {
        ("-", _) => {
            let mut text = String::new();
            ("standard input".to_owned(), std::io::stdin().read_to_string(&mut text).map(|_| text))
        }
        (_, Some(path)) => (path.to_owned(), std::fs::read_to_string(path)),
        (text, None) => return Ok(text.to_owned()),
    };
    text.map_err(|error| Failure::new(format!("the payload cannot be read from {from}: {error}")))
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

fn system_time(flag: &str, at: Timestamp) -> Result<SystemTime, Failure> {
    SystemTime::try_from(at)
        .map_err(|_| Failure::new(format!("--{flag}: this machine cannot tell the moment {at}")))
}

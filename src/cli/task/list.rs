//! `orbit task list`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbit::{
    proto::{ListTasksRequest, Task, TaskState},
    sdk::Client,
};
use prost_types::Timestamp;

use super::{
    super::{
        client::ClientArgs,
        failure::Failure,
        print,
        table::Table,
        value::{Name as _, moment_short, parse_moment, yes_no},
        write_out,
    },
    show,
};

const PAGE_SIZE_MAX: u32 = 1_000;

const AFTER: &str = "\
All filters that are given must fit. \
With --json each task is one JSON object on its line, without payload and result.

Exit codes: 0 listed, 1 failed, 2 wrong usage.

Examples:
  orbit task list --queue mail --state FAILED --limit 20
  orbit task list --state WAITING --state RUNNING --handler mail.send
  orbit task list --effect-uncertain true
  orbit task list --created-after 2030-01-31T00:00:00Z --limit 100000 --json | jq -r .task_id";

/// List tasks, newest first
#[derive(Args)]
#[command(after_help = AFTER)]
pub(crate) struct ListArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    queue: String,

    /// Only tasks in this state; may be given several times
    #[arg(long = "state", value_name = "STATE", ignore_case = true)]
    states: Vec<StateArg>,

    /// Only tasks for this handler, of any version
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    handler: String,

    /// Only tasks whose effect is in doubt (true), or is not (false)
    #[arg(long, value_name = "BOOL")]
    effect_uncertain: Option<bool>,

    /// Only tasks accepted at or after this moment, RFC 3339 with an offset, such as 2030-01-31T09:30:00Z
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    created_after: Option<Timestamp>,

    /// Only tasks accepted before this moment
    #[arg(long, value_name = "MOMENT", value_parser = parse_moment)]
    created_before: Option<Timestamp>,

    /// How many tasks at most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    #[command(flatten)]
    client: ClientArgs,
}

/// A state by its name in the contract.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
enum StateArg {
    Waiting,
    Leased,
    Running,
    Succeeded,
    Failed,
    Canceled,
    NeedsReview,
}

impl From<StateArg> for TaskState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Waiting => Self::Waiting,
            StateArg::Leased => Self::Leased,
            StateArg::Running => Self::Running,
            StateArg::Succeeded => Self::Succeeded,
            StateArg::Failed => Self::Failed,
            StateArg::Canceled => Self::Canceled,
            StateArg::NeedsReview => Self::NeedsReview,
        }
    }
}

/// Lists.
pub(super) async fn run(args: ListArgs) -> Result<ExitCode, Failure> {
    let orbit = args.client.connect()?;
    let filter = ListTasksRequest {
        queue_id: args.queue,
        states: args.states.iter().map(|state| TaskState::from(*state).into()).collect(),
        handler: args.handler,
        effect_uncertain: args.effect_uncertain,
        created_after: args.created_after,
        created_before: args.created_before,
        ..ListTasksRequest::default()
    };
    let (mut tasks, mut left, mut pages) = (Vec::new(), args.limit, Pages::new(orbit, filter));
    while left > 0
        && let Some(page) = pages.next(left, &args.client).await?
    {
        left = left.saturating_sub(u32::try_from(page.len()).unwrap_or(u32::MAX));
        if args.client.json {
            let lines: String = page.iter().map(|task| show::basic_task_json(task).line()).collect();
            if !write_out(&lines)? {
                return Ok(ExitCode::SUCCESS);
            }
        } else {
            tasks.extend(page);
        }
    }
    if args.client.json {
        return Ok(ExitCode::SUCCESS);
    }
    let more = if pages.at_end() { "" } else { "there may be more: --limit shows them\n" };
    print(&format!("{}{more}", tasks_table(&tasks)))
}

/// The pages of a list, one after the other.
pub(in crate::cli) struct Pages {
    orbit: Client,
    /// None after the last page.
    next: Option<ListTasksRequest>,
}

impl Pages {
    pub(in crate::cli) fn new(orbit: Client, filter: ListTasksRequest) -> Self {
        Self { orbit, next: Some(filter) }
    }

    /// The next page, which may be empty, of at most so many tasks; none after the last.
    pub(in crate::cli) async fn next(
        &mut self,
        limit: u32,
        client: &ClientArgs,
    ) -> Result<Option<Vec<Task>>, Failure> {
        let Some(mut request) = self.next.take() else {
            return Ok(None);
        };
        request.page_size = i32::try_from(limit.min(PAGE_SIZE_MAX)).unwrap_or(i32::MAX);
        let page = self.orbit.list_page(request.clone()).await.map_err(|error| client.failure(&error))?;
        if !page.next_page_token.is_empty() {
            self.next = Some(ListTasksRequest { page_token: page.next_page_token, ..request });
        }
        Ok(Some(page.tasks))
    }

    fn at_end(&self) -> bool {
        self.next.is_none()
    }
}

pub(in crate::cli) fn tasks_table(tasks: &[Task]) -> String {
    let limited = tasks.iter().any(|task| task.not_before.is_some() || task.start_before.is_some());
    let mut heading =
        vec!["TASK", "STATE", "QUEUE", "HANDLER", "ATTEMPTS", "UNCERTAIN", "CREATED", "COMPLETED"];
    // Few tasks have them, and the table is wide.
    if limited {
        heading.extend(["NOT BEFORE", "START BEFORE"]);
    }
    heading.push("ERROR");
    let mut table = Table::new(&heading);
    for task in tasks {
        let attempts = task.retry.unwrap_or_default().max_attempts().saturating_add(task.granted_attempts);
        let mut cells = vec![
            task.task_id.clone(),
            task.state().name().to_owned(),
            task.queue_id.clone(),
            format!("{} {}", task.handler, task.handler_version),
            format!("{} of {attempts}", task.attempt_count),
            yes_no(task.effect_uncertain),
            moment_short(task.created_at.as_ref()),
            moment_short(task.completed_at.as_ref()),
        ];
        if limited {
            cells.push(moment_short(task.not_before.as_ref()));
            cells.push(moment_short(task.start_before.as_ref()));
        }
        cells.push(task.error.as_ref().map(show::error_text).unwrap_or_default());
        table.row(&cells);
    }
    table.print()
}

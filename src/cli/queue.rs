//! `orbit queue`: making, showing and changing queues.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use orbit::proto::{Queue, QueueStats, ServedHandler};

use super::{
    client::ClientArgs,
    failure::Failure,
    json::Json,
    print,
    table::{self, Table},
    value::{duration, moment_json, moment_short, yes_no},
};

const EXAMPLES: &str = "\
Examples:
  orbit queue create mail --max-running 20
  orbit queue get mail
  orbit queue pause mail";

/// Make, show and change queues
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Subcommand)]
enum QueueCommand {
    /// Make a queue
    #[command(after_help = "Example:\n  orbit queue create mail --max-running 20")]
    Create {
        /// Its name: 1 to 128 of [A-Za-z0-9._-], the first a letter or digit
        queue: String,
        /// How many attempts may be leased or running at once, over all nodes; 0 means unlimited
        #[arg(long, value_name = "N", default_value_t = 0)]
        max_running: u32,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List all queues by name
    #[command(after_help = "Example:\n  orbit queue list --json")]
    List {
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show a queue and how busy it is
    #[command(after_help = "Example:\n  orbit queue get mail")]
    Get {
        /// Its name
        queue: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Stop claims: what runs goes on, nothing more is given to workers
    #[command(after_help = "Example:\n  orbit queue pause mail")]
    Pause {
        /// Its name
        queue: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Let claims go on
    #[command(after_help = "Example:\n  orbit queue resume mail")]
    Resume {
        /// Its name
        queue: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Change a queue's limit
    #[command(after_help = "Example:\n  orbit queue update mail --max-running 50 --expected-revision 3")]
    Update {
        /// Its name
        queue: String,
        /// How many attempts may be leased or running at once, over all nodes; 0 means unlimited
        #[arg(long, value_name = "N")]
        max_running: u32,
        /// Only if the queue still has this revision
        #[arg(long, value_name = "REVISION")]
        expected_revision: Option<u32>,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// Makes, shows or changes.
pub(crate) async fn run(args: QueueArgs) -> Result<ExitCode, Failure> {
    match args.command {
        QueueCommand::Create { queue, max_running, client } => {
            let made = client.connect()?.create_queue(&queue, max_running).await;
            print_queue(&made.map_err(|error| client.failure(&error))?, &client)
        }
        QueueCommand::List { client } => {
            let queues = client.connect()?.list_queues().await.map_err(|error| client.failure(&error))?;
            print(&if client.json { list_json(&queues) } else { list_table(&queues) })
        }
        QueueCommand::Get { queue, client } => {
            let shown = client.connect()?.get_queue(&queue).await.map_err(|error| client.failure(&error))?;
            print(&if client.json {
                status_json(&shown.queue, &shown.stats, &shown.served_here)
            } else {
                status_text(&shown.queue, &shown.stats, &shown.served_here)
            })
        }
        QueueCommand::Pause { queue, client } => {
            let paused = client.connect()?.pause_queue(&queue).await;
            print_queue(&paused.map_err(|error| client.failure(&error))?, &client)
        }
        QueueCommand::Resume { queue, client } => {
            let resumed = client.connect()?.resume_queue(&queue).await;
            print_queue(&resumed.map_err(|error| client.failure(&error))?, &client)
        }
        QueueCommand::Update { queue, max_running, expected_revision, client } => {
            let updated = client.connect()?.update_queue(&queue, max_running, expected_revision).await;
            print_queue(&updated.map_err(|error| client.failure(&error))?, &client)
        }
    }
}

fn print_queue(queue: &Queue, client: &ClientArgs) -> Result<ExitCode, Failure> {
    print(&if client.json { queue_json(queue).print() } else { table::fields(queue_fields(queue)) })
}

fn queue_fields(queue: &Queue) -> Vec<(&'static str, String)> {
    vec![
        ("queue", queue.queue_id.clone()),
        ("paused", yes_no(queue.paused)),
        ("max running", limit(queue.max_running)),
        ("revision", queue.revision.to_string()),
        ("created", moment_short(queue.created_at.as_ref())),
        ("updated", moment_short(queue.updated_at.as_ref())),
    ]
}

fn status_text(queue: &Queue, stats: &QueueStats, served_here: &[ServedHandler]) -> String {
    let more = if stats.waiting_capped { " or more" } else { "" };
    let mut fields = queue_fields(queue);
    fields.extend([
        ("running", stats.running.to_string()),
        ("waiting", format!("{}{more}", stats.waiting)),
        ("oldest due age", duration(stats.oldest_due_age_ms)),
        ("needs review", stats.needs_review.to_string()),
        ("served here", served_text(served_here)),
    ]);
    table::fields(fields)
}

/// What worker sessions at the node that answered serve.
fn served_text(served_here: &[ServedHandler]) -> String {
    if served_here.is_empty() {
        return "nothing, at the node that answered".to_owned();
    }
    let served = served_here.iter().map(|served| {
        let ServedHandler { handler, handler_version, sessions } = served;
        format!("{handler} {handler_version} ({sessions} session{})", if *sessions == 1 { "" } else { "s" })
    });
    served.collect::<Vec<_>>().join(", ")
}

fn list_table(queues: &[Queue]) -> String {
    let mut table = Table::new(&["QUEUE", "PAUSED", "MAX RUNNING", "REVISION", "UPDATED"]);
    for queue in queues {
        table.row(&[
            queue.queue_id.clone(),
            yes_no(queue.paused),
            limit(queue.max_running),
            queue.revision.to_string(),
            moment_short(queue.updated_at.as_ref()),
        ]);
    }
    table.print()
}

fn limit(max_running: u32) -> String {
    match max_running {
        0 => "unlimited".to_owned(),
        limit => limit.to_string(),
    }
}

fn list_json(queues: &[Queue]) -> String {
    let queues = queues.iter().map(queue_json).collect();
    Json::Object(vec![("queues", Json::List(queues))]).print()
}

fn status_json(queue: &Queue, stats: &QueueStats, served_here: &[ServedHandler]) -> String {
    let figures = Json::Object(vec![
        ("running", stats.running.into()),
        ("waiting", stats.waiting.into()),
        ("waiting_capped", stats.waiting_capped.into()),
        ("oldest_due_age_ms", stats.oldest_due_age_ms.into()),
        ("needs_review", stats.needs_review.into()),
    ]);
    let served = served_here.iter().map(|served| {
        Json::Object(vec![
            ("handler", served.handler.as_str().into()),
            ("handler_version", served.handler_version.as_str().into()),
            ("sessions", served.sessions.into()),
        ])
    });
    let served = Json::List(served.collect());
    Json::Object(vec![("queue", queue_json(queue)), ("stats", figures), ("served_here", served)]).print()
}

fn queue_json(queue: &Queue) -> Json {
    Json::Object(vec![
        ("queue_id", queue.queue_id.as_str().into()),
        ("paused", queue.paused.into()),
        ("max_running", queue.max_running.into()),
        ("revision", queue.revision.into()),
        ("created_at", moment_json(queue.created_at.as_ref())),
        ("updated_at", moment_json(queue.updated_at.as_ref())),
    ])
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;

    fn queue(max_running: u32) -> Queue {
        let made = Timestamp { seconds: 1_893_456_000, nanos: 123_456_000 };
        Queue {
            queue_id: "mail".to_owned(),
            paused: max_running == 0,
            max_running,
            revision: 3,
            created_at: Some(made),
            updated_at: Some(made),
        }
    }

    const STATS: QueueStats = QueueStats {
        running: 7,
        waiting: 10_000,
        waiting_capped: true,
        oldest_due_age_ms: 61_500,
        needs_review: 1,
    };

    fn served() -> Vec<ServedHandler> {
        let served = |version: &str, sessions| ServedHandler {
            handler: "mail.send".to_owned(),
            handler_version: version.to_owned(),
            sessions,
        };
        vec![served("v1", 2), served("v2", 1)]
    }

    #[test]
    fn queues_for_people() {
        let list = list_table(&[queue(0), queue(20)]);
        insta::assert_snapshot!(format!("{list}\n{}", status_text(&queue(20), &STATS, &served())));
    }

    #[test]
    fn queues_for_scripts() {
        let list = list_json(&[queue(0)]);
        insta::assert_snapshot!(format!("{list}{}", status_json(&queue(20), &STATS, &served())));
    }
}

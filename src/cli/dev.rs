//! `orbit dev`: a server to try things with, nothing to install or configure.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
};

use clap::Args;
use orbit::server::{self, DatabaseUrl, ServerConfig};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{
    client::URL_DEFAULT,
    failure::Failure,
    logging,
    options::{ListenArgs, LogArgs, RetentionArgs},
    print,
    signals::until_told_to_stop,
    value::parse_keep,
};

const DATABASE_FILE: &str = "orbit.db";
const QUEUE: &str = "default";

const EXAMPLES: &str = "\
Examples:
  orbit dev
  orbit dev --ephemeral --listen 127.0.0.1:7171

Ctrl-C ends it. For anything that matters use `orbit serve`.";

/// Run a server to try things with, on SQLite in ./orbit.db, with a queue `default`
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevArgs {
    /// Keep the database in a temporary directory that is removed at the end
    #[arg(long)]
    ephemeral: bool,

    #[command(flatten)]
    listen: ListenArgs,

    #[command(flatten)]
    retention: RetentionArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// Runs the server until a signal ends it.
pub(crate) async fn run(args: DevArgs) -> Result<ExitCode, Failure> {
    logging::start(args.log.log.as_deref(), None)?;
    // Held until the end: dropping it removes the directory.
    let temporary = if args.ephemeral { Some(temporary_directory()?) } else { None };
    let path = temporary.as_ref().map_or_else(|| DATABASE_FILE.into(), |dir| dir.path().join(DATABASE_FILE));
    let mut config = ServerConfig::new(DatabaseUrl::new(format!("sqlite:{}", path.display())));
    config.listen = args.listen.listen.unwrap_or(config.listen);
    config.insecure_no_auth = args.listen.insecure_no_auth.unwrap_or(config.insecure_no_auth);
    if let Some(keep) = &args.retention.keep_finished {
        let bad = |problem| Failure::new(format!("--keep-finished (or ORBIT_KEEP_FINISHED) {problem}"));
        config.engine.keep_finished = parse_keep(keep).map_err(bad)?;
    }
    config.migrate = true;
    config.queues.push(QUEUE.to_owned());

    let shutdown = CancellationToken::new();
    let ready = |address| {
        let text = banner(&program(), address, args.ephemeral);
        if let Err(failure) = print(&text) {
            tracing::warn!(%failure, "the greeting could not be shown");
        }
    };
    let served = async { Ok(server::run_announced(config, shutdown.clone(), ready).await?) };
    let done = until_told_to_stop(shutdown.clone(), served).await;
    if let Some(directory) = temporary
        && let Err(error) = directory.close()
    {
        tracing::warn!(%error, "the temporary directory could not be removed");
    }
    done.map(|()| ExitCode::SUCCESS)
}

fn temporary_directory() -> Result<TempDir, Failure> {
    TempDir::with_prefix("orbit-").map_err(|error| {
        Failure::new(format!("no temporary directory could be made for the database: {error}"))
    })
}

/// How the user started this program, so that the lines to type next work as they are.
fn program() -> String {
    let plain =
        |name: &String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    std::env::args().next().filter(plain).unwrap_or_else(|| "orbit".to_owned())
}

fn banner(program: &str, listening: SocketAddr, ephemeral: bool) -> String {
    let address = reachable(listening);
    let url = format!("http://{address}");
    // Commands find the default address by themselves.
    let url_flag = if url == URL_DEFAULT { String::new() } else { format!(" --url {url}") };
    let database = if ephemeral { "a temporary database" } else { "./orbit.db" };
    format!(
        r#"
Orbit {version} runs on {address} with {database} and the queue `{QUEUE}`.

Submit a task, and look at it:
  {program} task submit{url_flag} --handler text.normalize --payload '{{"text":"  hello  "}}'
  {program} task get{url_flag} TASK_ID

The same over gRPC, no proto file needed:
  grpcurl -plaintext -d '{{"queue_id":"{QUEUE}","idempotency_key":"hello-1","handler":"text.normalize","handler_version":"v1","payload_version":"v1","payload":"{{\"text\":\"  hello  \"}}"}}' {address} orbit.v1.TaskService/SubmitTask

See a worker fail once, wait and succeed (in a checkout of Orbit):
  ORBIT_URL={url} cargo run --example retry

Ctrl-C ends it.

"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// An address that a client on this machine can connect to.
fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(program: &str, listening: ([u8; 4], u16), ephemeral: bool) -> String {
        let banner = banner(program, SocketAddr::from(listening), ephemeral);
        banner.replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }

    #[test]
    fn the_banner_tells_what_to_type_next() {
        insta::assert_snapshot!(shown("orbit", ([127, 0, 0, 1], 7070), false));
    }

    #[test]
    fn the_banner_of_another_address_names_it_in_each_line() {
        insta::assert_snapshot!(shown("target/debug/orbit", ([0, 0, 0, 0], 7171), true));
    }
}

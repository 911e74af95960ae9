//! The `orbit` program as a process, without a server: what it says, what it refuses, how it exits.

#![cfg(feature = "server")]

use std::{
    io::Write as _,
    net::TcpListener,
    process::{Command, Output, Stdio},
};

fn orbit(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ORBIT_") || name == "RUST_LOG" || name == "COLUMNS" {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    orbit(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The one line on standard error of a command that fails with exit code 1.
fn refusal(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn every_command_explains_itself() {
    let commands = [
        "",
        "dev",
        "serve",
        "migrate",
        "bench",
        "check",
        "openapi",
        "queue",
        "queue create",
        "queue list",
        "queue get",
        "queue pause",
        "queue resume",
        "queue update",
        "task",
        "task submit",
        "task get",
        "task attempts",
        "task events",
        "task explain",
        "task list",
        "task wait",
        "task watch",
        "task resubmit",
        "task cancel",
        "task resolve",
        "review",
    ];
    for command in commands {
        let mut args: Vec<_> = command.split_whitespace().collect();
        args.push("--help");
        let output = run(&args);
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{command}");
        assert!(stdout.contains("Example"), "`{command}` shows no example");
        let name = if command.is_empty() { "orbit".to_owned() } else { command.replace(' ', "_") };
        insta::assert_snapshot!(format!("help_{name}"), stdout);
    }
}

#[test]
fn the_help_shows_no_value_of_the_environment() {
    let output = orbit(&["serve", "--help"])
        .env("ORBIT_DATABASE_URL", "mysql://root:hunter2@db/orbit")
        .output()
        .unwrap();
    assert!(!text(&output.stdout).contains("hunter2"));
}

#[test]
fn the_version_is_told() {
    assert_eq!(text(&run(&["--version"]).stdout), concat!("orbit ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["no-such-command"],
        &["serve", "--lease-ms", "long"],
        &["task", "submit"],
        &["task", "resubmit", "x"],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn without_a_database_serve_says_how_to_give_one() {
    let line = refusal(&mut orbit(&["serve"]));
    assert!(line.starts_with("error: no database was given: use --database-url"), "{line}");
    let line = refusal(&mut orbit(&["migrate"]));
    assert!(line.starts_with("error: no database was given"), "{line}");
}

#[test]
fn an_unknown_key_of_the_configuration_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orbit.toml");
    std::fs::write(&path, "database_url = \"sqlite:never.db\"\nlease = 5\n").unwrap();
    for command in ["serve", "migrate"] {
        let line = refusal(orbit(&[command, "--config"]).arg(&path));
        assert!(line.contains("orbit.toml, line 2: unknown key `lease`"), "{line}");
    }
    let line = refusal(orbit(&["serve"]).env("ORBIT_CONFIG", directory.path().join("absent.toml")));
    assert!(line.contains("absent.toml cannot be read"), "{line}");
}

#[test]
fn a_variable_outranks_the_file_and_a_flag_the_variable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orbit.toml");
    std::fs::write(&path, "database_url = \"sqlite:never.db\"\nlease_ms = 1\n").unwrap();
    // Each value is out of range, so that the refusal tells which one was taken.
    let line = refusal(orbit(&["serve", "--config"]).arg(&path));
    assert!(line.contains("`lease_ms` is 1;"), "{line}");
    let line = refusal(orbit(&["serve", "--config"]).arg(&path).env("ORBIT_LEASE_MS", "2"));
    assert!(line.contains("(or ORBIT_LEASE_MS) is 2;"), "{line}");
    let line =
        refusal(orbit(&["serve", "--lease-ms", "3", "--config"]).arg(&path).env("ORBIT_LEASE_MS", "2"));
    assert!(line.contains("--lease-ms (or ORBIT_LEASE_MS) is 3;"), "{line}");
}

#[test]
fn an_address_that_others_reach_needs_a_word() {
    let args = ["serve", "--database-url", "sqlite:never.db", "--listen"];
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7070", "[::ffff:10.0.0.1]:7070"] {
        let line = refusal(orbit(&args).arg(address));
        assert!(line.contains("--insecure-no-auth"), "{line}");
    }
    let line = refusal(&mut orbit(&["dev", "--ephemeral", "--listen", "0.0.0.0:0"]));
    assert!(line.contains("--insecure-no-auth"), "{line}");
    assert!(!std::path::Path::new("never.db").exists());
}

#[test]
fn a_taken_port_is_refused_before_the_database_is_touched() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let mut command =
        orbit(&["serve", "--migrate", "--database-url", "sqlite:orbit.db", "--listen", &address]);
    let line = refusal(command.current_dir(&directory));
    assert!(line.contains("is taken by another program"), "{line}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_wrong_log_filter_is_refused() {
    let line = refusal(&mut orbit(&["dev", "--ephemeral", "--log", "orbit=loudly"]));
    assert!(line.contains("`orbit=loudly` is not a log filter"), "{line}");
}

#[test]
fn a_command_without_a_server_says_so_and_keeps_its_key() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let line = refusal(&mut orbit(&["queue", "list", "--timeout-ms", "100", "--url", &url]));
    assert!(line.contains(&format!("no answer from {url}")) && line.contains("orbit dev"), "{line}");

    let submit = ["task", "submit", "--handler", "h", "--timeout-ms", "100", "--key", "mine"];
    let output = orbit(&submit).env("ORBIT_URL", &url).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--key mine"), "{}", text(&output.stderr));
}

#[test]
fn a_payload_that_cannot_be_read_is_refused() {
    let line = refusal(&mut orbit(&["task", "submit", "--handler", "h", "--payload", "@absent.json"]));
    assert!(line.contains("the payload cannot be read from absent.json"), "{line}");

    let mut child = orbit(&["task", "submit", "--handler", "h", "--payload", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\"\xff\"").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("standard input"), "{}", text(&output.stderr));
}

#[test]
fn an_address_that_is_none_is_refused() {
    let line = refusal(&mut orbit(&["queue", "list", "--url", "127.0.0.1:7070"]));
    assert!(line.contains("http://host:port"), "{line}");
}

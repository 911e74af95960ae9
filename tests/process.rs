//! `orbit` as a server process: how it starts, what stops it from starting, how it ends.

#![cfg(all(feature = "server", unix))]

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use orbit::store::{Database, DatabaseOptions};
use sea_orm::ConnectionTrait as _;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(10);

fn orbit(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ORBIT_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.args(args).current_dir(directory).stdin(Stdio::null());
    command
}

/// The one line on standard error of a command that fails with exit code 1.
fn refusal(directory: &Path, args: &[&str]) -> String {
    let output = orbit(directory, args).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    stderr
}

fn exit_code(directory: &Path, args: &[&str]) -> Option<i32> {
    orbit(directory, args).output().unwrap().status.code()
}

/// A server process; killed if the test fails.
struct Server {
    process: Child,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(process.stdout.take().unwrap());
        let stderr = lines(process.stderr.take().unwrap());
        Self { process, stdout, stderr }
    }

    fn wait_until_it_listens(&self) {
        self.line(|line| line.contains("listening"));
    }

    /// The next line of the log that is as asked.
    fn line(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.stderr.recv_timeout(LIMIT).unwrap();
            if wanted(&line) {
                return line;
            }
        }
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Waits for the end; panics after the 10 s that a server has.
    fn end(mut self) -> ExitStatus {
        // The streams end with the process.
        while self.stdout.recv_timeout(LIMIT).is_ok() {}
        self.process.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1_000);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--database-url", "sqlite:orbit.db"];

#[test]
fn dev_greets_with_lines_to_type_and_leaves_its_database() {
    let here = directory();
    let server = Server::start(&mut orbit(here.path(), &["dev", "--listen", "127.0.0.1:0"]));
    server.wait_until_it_listens();
    let greeting: Vec<_> = server.stdout.iter().take_while(|line| !line.contains("Ctrl-C")).collect();
    let greeting = greeting.join("\n");
    for part in ["./orbit.db", "task submit --url http://127.0.0.1:", "grpcurl -plaintext", "--example retry"]
    {
        assert!(greeting.contains(part), "{greeting}");
    }
    server.signal("-INT");
    assert_eq!(server.end().code(), Some(0));
    assert!(here.path().join("orbit.db").exists());
}

#[test]
fn an_ephemeral_database_is_gone_afterwards() {
    let (here, temporary) = (directory(), directory());
    let mut command = orbit(here.path(), &["dev", "--ephemeral", "--listen", "127.0.0.1:0"]);
    let server = Server::start(command.env("TMPDIR", temporary.path()));
    server.wait_until_it_listens();
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    server.signal("-TERM");
    assert_eq!(server.end().code(), Some(0));
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0);
}

#[test]
fn a_second_server_on_one_file_is_refused_and_a_later_one_is_not() {
    let here = directory();
    let mut args = SERVE.to_vec();
    args.push("--migrate");
    let first = Server::start(&mut orbit(here.path(), &args));
    first.wait_until_it_listens();
    let line = refusal(here.path(), &SERVE);
    assert!(line.contains("in use by another Orbit server"), "{line}");
    first.signal("-TERM");
    assert_eq!(first.end().code(), Some(0));

    let later = Server::start(&mut orbit(here.path(), &SERVE));
    later.wait_until_it_listens();
    later.signal("-TERM");
    assert_eq!(later.end().code(), Some(0));
}

#[test]
fn an_empty_database_needs_a_migration() {
    let here = directory();
    let line = refusal(here.path(), &SERVE);
    assert!(line.contains("`orbit migrate`") && line.contains("--migrate"), "{line}");

    let migrate = ["migrate", "--database-url", "sqlite:orbit.db"];
    let check = ["migrate", "--check", "--database-url", "sqlite:orbit.db"];
    assert_eq!(exit_code(here.path(), &check), Some(3));
    assert_eq!(exit_code(here.path(), &migrate), Some(0));
    assert_eq!(exit_code(here.path(), &migrate), Some(0));
    assert_eq!(exit_code(here.path(), &check), Some(0));
}

#[test]
fn looking_needs_no_writable_file_and_leaves_nothing_behind() {
    let here = directory();
    let look = |place: &Path, file: &str| {
        let url = format!("sqlite:{file}");
        let checked = exit_code(place, &["check", "--database-url", &url]);
        (checked, exit_code(place, &["migrate", "--check", "--database-url", &url]))
    };
    let well = (Some(0), Some(0));
    let mut args = SERVE.to_vec();
    args.push("--migrate");
    let server = Server::start(&mut orbit(here.path(), &args));
    server.wait_until_it_listens();
    assert_eq!(look(here.path(), "orbit.db"), well, "beside the server");
    server.signal("-TERM");
    assert_eq!(server.end().code(), Some(0));

    let copies = directory();
    let file = copies.path().join("copy.db");
    std::fs::copy(here.path().join("orbit.db"), &file).unwrap();
    let allow = |mode: u32, path: &Path| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    allow(0o444, &file);
    allow(0o555, copies.path());
    assert_eq!(look(copies.path(), "copy.db"), well);
    assert_eq!(std::fs::read_dir(copies.path()).unwrap().count(), 1, "as it was");
    allow(0o755, copies.path());
    assert_eq!(look(copies.path(), "none.db"), (Some(1), Some(1)), "and makes none");
    assert_eq!(std::fs::read_dir(copies.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_newer_schema_is_refused_by_all() {
    let here = directory();
    assert_eq!(exit_code(here.path(), &["migrate", "--database-url", "sqlite:orbit.db"]), Some(0));
    let url = format!("sqlite:{}", here.path().join("orbit.db").display());
    let database = Database::open(&url, DatabaseOptions::default()).await.unwrap();
    let newer = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m9999_future', 1)";
    database.connection().execute_unprepared(newer).await.unwrap();
    database.close().await;
    drop(database);

    let mut serve_and_migrate = SERVE.to_vec();
    serve_and_migrate.push("--migrate");
    for args in [
        &SERVE[..],
        &serve_and_migrate,
        &["migrate", "--database-url", "sqlite:orbit.db"],
        &["migrate", "--check", "--database-url", "sqlite:orbit.db"],
    ] {
        let line = refusal(here.path(), args);
        assert!(line.contains("schema is newer than this program"), "{line}");
    }
}

#[test]
fn a_database_that_is_none_is_refused_in_one_line_without_its_password() {
    let here = directory();
    std::fs::write(here.path().join("junk.db"), "junk ".repeat(1_000)).unwrap();
    for (url, expected) in [
        ("postgres://u:hunter2@127.0.0.1/orbit", "must begin with mysql:// or sqlite:"),
        ("mysql://u:hunter2@127.0.0.1:1/orbit", "cannot reach the database at 127.0.0.1:1/orbit"),
        ("mysql://u:hunter2@127.0.0.1:1", "names no database"),
        ("sqlite:junk.db", "not an SQLite database"),
        ("sqlite:no/such/folder/orbit.db", "no/such/folder/orbit.db"),
        ("sqlite:.", "cannot use the SQLite file"),
    ] {
        for args in [
            &["serve", "--listen", "127.0.0.1:0", "--database-url", url][..],
            &["migrate", "--database-url", url],
        ] {
            let line = refusal(here.path(), args);
            assert!(line.contains(expected) && !line.contains("hunter2"), "{line}");
        }
    }
}

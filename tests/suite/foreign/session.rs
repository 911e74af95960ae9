//! Types the sessions of a page of the documentation into the real programs, and compares what they answer.
//!
//! In the page, a comment before each block says what it is: `run` a command line, `stream` one that stays open, `type`
//! what is typed into it, `answer` what comes. In answers `…` stands for anything, and a name in capitals for a value
//! that keeps its name from then on. Blanks do not count.

use std::{
    collections::HashMap,
    io::{BufReader, Read as _, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use super::tools;
use crate::support::server::Server;

const ADDRESS: &str = "127.0.0.1:7070";
const LIMIT: Duration = Duration::from_secs(20);
/// The names of values.
const NAMES: [&str; 4] = ["TASK_ID", "ATTEMPT_ID", "STARTED_AT", "FINISHED_AT"];

/// The blocks of a page, each with what it is.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    page.split("<!-- ")
        .skip(1)
        .map(|part| {
            let (what, rest) = part.split_once(" -->\n```").expect("a block after each comment");
            let (_, rest) = rest.split_once('\n').expect("its language");
            (what, rest.split_once("\n```").expect("its end").0)
        })
        .collect()
}

/// Plays a page; returns how many blocks there were.
pub(super) fn play(page: &str, server: &Server) -> usize {
    let mut session = Session { address: server.address().to_string(), ..Session::default() };
    let blocks = blocks(page);
    for (what, text) in &blocks {
        match *what {
            "run" => session.answers = run(&session.filled_in(text)).into(),
            "stream" => session.stream = Some(Stream::open(&session.filled_in(text))),
            "type" => session.type_in(text),
            "answer" => session.hold(text),
            other => panic!("{other} is no kind of block"),
        }
    }
    blocks.len()
}

#[derive(Default)]
struct Session {
    address: String,
    values: HashMap<&'static str, String>,
    /// What the last command line wrote, until it was compared.
    answers: Option<String>,
    stream: Option<Stream>,
}

impl Session {
    fn filled_in(&self, text: &str) -> String {
        let text = text.replace(ADDRESS, &self.address);
        self.values.iter().fold(text, |text, (name, value)| text.replace(name, value))
    }

    fn type_in(&mut self, text: &str) {
        let text = self.filled_in(text);
        let stream = self.stream.as_mut().expect("an open stream");
        writeln!(stream.stdin, "{text}").and_then(|()| stream.stdin.flush()).expect("it listens");
    }

    fn hold(&mut self, pattern: &str) {
        let answer = match self.answers.take() {
            Some(answer) => answer,
            None => self.stream.as_mut().expect("an open stream").next(),
        };
        let (answer, pattern) = (without_blanks(&answer), without_blanks(&self.filled_in(pattern)));
        let found =
            matches(&pattern, &answer).unwrap_or_else(|at| panic!("at {at:?}\n{pattern}\nin\n{answer}"));
        self.values.extend(found);
    }
}

fn without_blanks(text: &str) -> String {
    text.split_whitespace().collect()
}

/// The values of names in a text that fits a pattern; otherwise the part that does not fit.
fn matches<'p>(pattern: &'p str, text: &str) -> Result<Vec<(&'static str, String)>, &'p str> {
    let (mut rest, mut at, mut found) = (pattern, 0, Vec::new());
    // What the next literal part must be preceded by: nothing, anything, or a value.
    let (mut anything, mut name) = (false, None);
    loop {
        let next = NAMES
            .iter()
            .filter_map(|n| rest.find(n).map(|i| (i, *n)))
            .chain(rest.find('…').map(|i| (i, "…")));
        let (literal, stop) = match next.min() {
            Some((end, stop)) => (&rest[..end], Some(stop)),
            None => (rest, None),
        };
        let place = if anything || name.is_some() {
            text[at..].find(literal).map(|i| at + i)
        } else {
            text[at..].starts_with(literal).then_some(at)
        };
        let ends = stop.is_none() && !(anything && literal.is_empty());
        let place = if ends && anything {
            text.ends_with(literal).then(|| text.len() - literal.len())
        } else {
            place
        };
        let place = place.ok_or(literal)?;
        if let Some(name) = name {
            found.push((name, text[at..place].to_owned()));
        }
        at = place + literal.len();
        let Some(stop) = stop else {
            return if ends && at < text.len() { Err(literal) } else { Ok(found) };
        };
        rest = &rest[literal.len() + stop.len()..];
        (anything, name) = if stop == "…" { (true, None) } else { (false, Some(stop)) };
    }
}

/// A shell that runs a line, and finds the tools before everything else.
pub(crate) fn shell(line: &str) -> Command {
    let mut shell = Command::new("sh");
    let path = format!("{}:{}", tools().display(), std::env::var("PATH").unwrap_or_default());
    shell.args(["-c", line]).env("PATH", path);
    shell
}

fn run(line: &str) -> String {
    let output = shell(line).stdin(Stdio::null()).output().expect("a shell");
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("a text")
}

/// A client with an open stream.
struct Stream {
    process: Child,
    stdin: ChildStdin,
    bytes: Receiver<u8>,
}

impl Stream {
    fn open(line: &str) -> Self {
        let mut command = shell(&format!("exec {line}"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let stdin = process.stdin.take().expect("piped");
        let stdout = process.stdout.take().expect("piped");
        let (sender, bytes) = channel();
        thread::spawn(move || {
            BufReader::new(stdout).bytes().map_while(Result::ok).try_for_each(|byte| sender.send(byte))
        });
        Self { process, stdin, bytes }
    }

    /// The next message that it shows.
    fn next(&mut self) -> String {
        let mut text = Vec::new();
        loop {
            let Ok(byte) = self.bytes.recv_timeout(LIMIT) else {
                panic!("no answer, but {}", String::from_utf8_lossy(&text));
            };
            text.push(byte);
            if byte == b'}' && serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
                return String::from_utf8(text).expect("a text");
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn a_pattern_fits_what_it_says_and_nothing_else() {
    let found = matches(r#"{"id":"TASK_ID",…,"s":1}"#, r#"{"id":"a-b","x":2,"s":1}"#);
    assert_eq!(found, Ok(vec![("TASK_ID", "a-b".to_owned())]));
    assert!(matches("{…}", "{1}").is_ok() && matches("{1…", "{12").is_ok() && matches("a", "a").is_ok());
    assert!(
        matches("{1}", "{1}2").is_err() && matches("{…}1", "{}2").is_err() && matches("a…c", "ab").is_err()
    );
}

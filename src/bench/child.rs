//! A child process that answers one line with one line.

use std::process::Stdio;

use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{self, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use super::{BenchError, usage, usage::Usage};

/// A child process of this very program. It ends with its standard input, and is killed if it is dropped.
pub(super) struct Child {
    process: process::Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts `orbit SUBCOMMAND` and tells it its configuration: through a pipe, where nobody sees a password.
    pub(super) async fn start(subcommand: &str, config: &impl Serialize) -> Result<Self, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::of("this program is not found"))?;
        let mut command = Command::new(program);
        command.arg(subcommand).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // The terminal's Ctrl-C is for the parent, who ends its children in order.
        #[cfg(unix)]
        command.process_group(0);
        let mut process = command.spawn().map_err(BenchError::of("a process could not be started"))?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(BenchError::new("a process has no pipes"));
        };
        let mut this = Self { process, stdin, answers: BufReader::new(stdout).lines() };
        let config = serde_json::to_string(config).map_err(BenchError::of("a configuration"))?;
        this.say(&config).await?;
        Ok(this)
    }

    /// Asks, and waits for the answer.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, question: &str) -> Result<T, BenchError> {
        self.say(question).await?;
        self.hear().await
    }

    /// Waits for the next answer.
    pub(super) async fn hear<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        match self.answers.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(BenchError::of("an answer")),
            Ok(None) | Err(_) => {
                Err(BenchError::new("a process of the measurement ended; it says why above"))
            }
        }
    }

    /// What it has used so far.
    pub(super) fn usage(&self) -> Usage {
        self.process.id().and_then(usage::of).unwrap_or_default()
    }

    /// Lets it end by itself, if it does so soon.
    pub(super) async fn end(mut self) {
        drop(self.stdin);
        let _ = timeout(std::time::Duration::from_secs(10), self.process.wait()).await;
    }

    async fn say(&mut self, line: &str) -> Result<(), BenchError> {
        let line = format!("{line}\n");
        let told = self.stdin.write_all(line.as_bytes()).await;
        told.map_err(BenchError::of("a process of the measurement ended"))
    }
}

//! Questions and answers about one task.

use std::io::BufRead as _;

use orbit::proto::{
    RecoverySafety, ResolveCanceled, ResolveFailed, ResolveRetry, ResolveSucceeded, ResolveTaskRequest, Task,
    TaskError, resolve_task_request::Outcome,
};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::super::{failure::Failure, write_out};

/// Asks on standard output, reads lines from standard input.
pub(super) struct Dialog {
    stop: CancellationToken,
}

impl Dialog {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { stop }
    }

    /// The answer without the blanks around it; none at the end of the input, or when told to stop.
    async fn ask(&mut self, question: &str) -> Result<Option<String>, Failure> {
        if !write_out(question)? {
            return Ok(None);
        }
        let read = spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin()
                .lock()
                .read_line(&mut line)
                .map(|bytes| (bytes > 0).then(|| line.trim().to_owned()))
        });
        tokio::select! {
            read = read => match read {
                Ok(Ok(line)) => Ok(line),
                Ok(Err(error)) => Err(Failure::new(format!("the answer could not be read: {error}"))),
                Err(error) => Err(Failure::new(format!("the answer could not be read: {error}"))),
            },
            () = self.stop.cancelled() => Ok(None),
        }
    }

    /// Asks until the answer is one of these; an empty one means `default`.
    async fn choose(
        &mut self,
        question: &str,
        answers: &[char],
        default: char,
    ) -> Result<Option<char>, Failure> {
        loop {
            let Some(answer) = self.ask(question).await? else {
                return Ok(None);
            };
            let first = answer.chars().next().map_or(default, |c| c.to_ascii_lowercase());
            if answers.contains(&first) {
                return Ok(Some(first));
            }
        }
    }

    /// Asks until there is an answer.
    async fn require(&mut self, question: &str) -> Result<Option<String>, Failure> {
        loop {
            match self.ask(question).await? {
                Some(answer) if answer.is_empty() => {}
                answer => return Ok(answer),
            }
        }
    }
}

/// Leaves the question when the person has left.
macro_rules! or_end {
    ($answer:expr) => {
        match $answer? {
            Some(answer) => answer,
            None => return Ok(None),
        }
    };
}

/// What the person makes of a task: none to end the walk, within it none to leave this task as it is.
pub(super) async fn resolution(
    task: &Task,
    dialog: &mut Dialog,
) -> Result<Option<Option<ResolveTaskRequest>>, Failure> {
    let question = "What is to become of it? [s]ucceeded (the effect happened), [f]ailed (it did not), [c]anceled (it did \
                    not and shall not), [r]etry, leave it for [l]ater, [q]uit: ";
    let wish = or_end!(dialog.choose(question, &['s', 'f', 'c', 'r', 'l', 'q'], 'l').await);
    match wish {
        'q' => return Ok(None),
        'l' => return Ok(Some(None)),
        _ => {}
    }
    let verified = or_end!(
        dialog.choose("Did you verify at the resource what happened? [y]es, [N]o: ", &['y', 'n'], 'n').await
    ) == 'y';
    let unverified_retry = wish == 'r' && task.recovery_safety() == RecoverySafety::Idempotent;
    if !verified && !unverified_retry {
        let told = "It stays as it is: only what was verified can be resolved so.\n";
        return Ok(write_out(told)?.then_some(None));
    }
    let outcome = or_end!(outcome(wish, dialog).await);
    let reason = or_end!(dialog.require("What did you find out, for the record? ").await);
    let evidence = or_end!(dialog.ask("Where the evidence lies, such as a link [none]: ").await);
    let (word, doubt) = (word(&outcome), if verified { "" } else { ", its doubt kept" });
    let question = format!("Resolve task {} as {word}{doubt}? [y]es, [N]o: ", task.task_id);
    if or_end!(dialog.choose(&question, &['y', 'n'], 'n').await) == 'n' {
        return Ok(write_out("It stays as it is.\n")?.then_some(None));
    }
    Ok(Some(Some(ResolveTaskRequest {
        task_id: task.task_id.clone(),
        expected_revision: task.revision,
        effect_verified: verified,
        reason,
        evidence_refs: Some(evidence).filter(|evidence| !evidence.is_empty()).into_iter().collect(),
        outcome: Some(outcome),
        request_id: String::new(),
    })))
}

async fn outcome(wish: char, dialog: &mut Dialog) -> Result<Option<Outcome>, Failure> {
    Ok(Some(match wish {
        's' => {
            let result = or_end!(dialog.ask("What it returned, as JSON [null]: ").await);
            Outcome::Succeeded(ResolveSucceeded { result })
        }
        'f' => {
            let code = or_end!(dialog.require("A code for the failure, such as NOT_BOOKED: ").await);
            let message = or_end!(dialog.ask("A message for people [none]: ").await);
            Outcome::Failed(ResolveFailed {
                error: Some(TaskError { code, message, details: String::new() }),
            })
        }
        'c' => Outcome::Canceled(ResolveCanceled {}),
        _ => {
            let attempts = loop {
                let answer = or_end!(dialog.ask("Attempts to add, 1 to 1000 [1]: ").await);
                if answer.is_empty() {
                    break 1;
                }
                if let Some(attempts) = answer.parse().ok().filter(|n| (1..=1_000).contains(n)) {
                    break attempts;
                }
            };
            let retry =
                ResolveRetry { granted_attempts: Some(attempts), task_timeout_ms: None, start_before: None };
            Outcome::Retry(retry)
        }
    }))
}

const fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded(_) => "SUCCEEDED",
        Outcome::Failed(_) => "FAILED",
        Outcome::Canceled(_) => "CANCELED",
        Outcome::Retry(_) => "to be tried again",
    }
}

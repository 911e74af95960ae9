//! Why a command fails, as its user reads it.

use std::{fmt, process::ExitCode};

use orbit::{
    sdk::{self, ErrorKind},
    server::StartError,
};

use super::text::harmless;

/// What a shell reports for a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Why a command fails: a text for people and an exit code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    pub(crate) fn interrupted() -> Self {
        Self {
            message: "stopped at once: what was not answered may be sent again".to_owned(),
            code: INTERRUPTED,
        }
    }

    /// Of a call to the server at `url`.
    pub(crate) fn call(error: &sdk::Error, url: &str) -> Self {
        if matches!(error.kind(), ErrorKind::Transport | ErrorKind::Timeout) {
            let problem = error.message();
            let hint = if problem.contains("certificate") {
                "whom to trust besides the authorities of the system is told by --ca FILE"
            } else if problem.contains("connection error") && url.starts_with("http://") {
                // There is somebody, who did not understand.
                "is it an Orbit server? If it speaks TLS, its address begins with https://"
            } else {
                "is a server running there? `orbit dev` starts one"
            };
            return Self::new(format!("no answer from {url} ({problem}): {hint}"));
        }
        let told = error.to_string();
        let mut message = harmless(&told);
        for violation in error.field_violations() {
            // Orbit's messages name the fields themselves unless they are too many.
            if told.contains(&violation.description) {
                continue;
            }
            let (field, problem) = (harmless(&violation.field), harmless(&violation.description));
            message = format!("{message}\n  {field} {problem}");
        }
        Self::new(message)
    }

    /// The same failure with one more hint.
    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.message.push('\n');
        self.message.push_str(hint);
        self
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::new(error.to_string())
    }
}

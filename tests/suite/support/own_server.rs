//! A MySQL server of a test's own, to mistreat it.

use std::{path::Path, process::Command};

/// A server that goes away with the test.
pub(crate) struct OwnServer {
    dir: tempfile::TempDir,
    pub(crate) url: String,
}

fn script(args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mysql/mysql.sh");
    let output = Command::new(script).args(args).output().expect("the script runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl OwnServer {
    /// Starts one, with further options.
    pub(crate) fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data").to_str().expect("a path").to_owned();
        let arguments: Vec<&str> = ["start", &data].into_iter().chain(options.iter().copied()).collect();
        let url = script(&arguments);
        Self { dir, url }
    }

    fn data(&self) -> String {
        self.dir.path().join("data").to_str().expect("a path").to_owned()
    }

    /// Ends it as a crash would.
    pub(crate) fn crash(&self) {
        script(&["stop", &self.data(), "KILL"]);
    }

    /// Starts it again after a crash.
    pub(crate) fn again(&self) {
        assert_eq!(script(&["start", &self.data()]), self.url, "it comes back where it was");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.dir.path().join("data/pid")).expect("a pid file");
        let killed = Command::new("kill").args([signal, pid.trim()]).status().expect("kill runs");
        assert!(killed.success());
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mysql/mysql.sh");
        let _ = Command::new(script).args(["remove", &self.data()]).output();
    }
}

//! Clients that are not ours: the examples in other languages, the documented sessions of curl, grpcurl and buf, and a
//! fuzzer. `tests/tools.sh` provides the programs; `tests/run` says in `ORBIT_TEST_TOOLS` where.

mod breaking;
mod curl;
mod examples;
mod fuzz;
mod grpcurl;
pub(crate) mod session;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A program, or a script of this repository, that finds the tools before everything else.
pub(crate) fn tool(program: &str) -> Command {
    let tools = tools();
    let path = env::var("PATH").unwrap_or_default();
    let program = if program.contains('/') { root().join(program) } else { tools.join(program) };
    assert!(program.exists(), "{} is missing: tests/tools.sh provides it", program.display());
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:{path}", tools.display())).stdin(Stdio::null()).env_remove("KEY");
    command
}

fn tools() -> PathBuf {
    let tools = env::var("ORBIT_TEST_TOOLS");
    tools.unwrap_or_else(|_| panic!("ORBIT_TEST_TOOLS names a folder; tests/run sets it")).into()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

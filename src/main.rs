//! The `orbit` program: the server, and a command line that talks to one.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

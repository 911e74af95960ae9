//! `orbit openapi`: the HTTP interface, for programs.

use std::process::ExitCode;

use clap::Args;

use super::{failure::Failure, print};

const EXAMPLES: &str = "\
Examples:
  orbit openapi > openapi.json

A running server has the same document at /openapi.json, and a page for people at /docs.";

/// Print the OpenAPI 3.1 document of the HTTP gateway
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OpenapiArgs {}

/// Prints the document.
pub(crate) fn run(_: &OpenapiArgs) -> Result<ExitCode, Failure> {
    let document = orbit::gateway::openapi().map_err(|error| Failure::new(error.to_string()))?;
    print(&document)
}

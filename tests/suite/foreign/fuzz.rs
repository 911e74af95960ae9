//! What others make of the OpenAPI document: a validator, and a fuzzer that tries it on a server.

use super::{root, tool};
use crate::support::{
    on_every_database,
    server::{Server, orbit},
};

const DOCUMENT: &str = include_str!("../../../docs/openapi.json");
/// The examples of one call. With the calls there are, more than 2,000 requests.
const EXAMPLES: &str = "100";

#[test]
fn the_document_is_valid_and_current() {
    let printed = orbit().arg("openapi").output().expect("it runs");
    let current = String::from_utf8(printed.stdout).expect("a text");
    assert!(
        current == DOCUMENT,
        "docs/openapi.json is not current: `cargo run -- openapi > docs/openapi.json`"
    );
    let mut validator = tool("python3");
    validator.args(["-m", "openapi_spec_validator"]).arg(root().join("docs/openapi.json"));
    let output = validator.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

on_every_database! {
    async fn two_thousand_requests_find_no_failure_and_no_mismatch(database: TestDatabase) {
        let server = Server::start(&database).await.with_queue().await;
        let mut fuzzer = tool("python3");
        fuzzer
            .args(["-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"])
            .arg(format!("{}/openapi.json", server.url()))
            .args(["--phases", "examples,coverage,fuzzing", "-n", EXAMPLES, "--seed", "1"])
            .args(["--continue-on-failure", "--no-color"])
            // The document tells ranges and rules between fields in words only.
            .args(["--exclude-checks", "positive_data_acceptance"])
            .current_dir(std::env::temp_dir());
        let run = tokio::task::spawn_blocking(move || fuzzer.output().expect("it runs"));
        let output = run.await.expect("no panic");
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{report}");
        let generated = report.lines().find_map(|line| line.trim().strip_suffix(" passed")?.split(' ').next()?.parse().ok());
        let generated: u32 = generated.unwrap_or_else(|| panic!("{report}"));
        assert!(generated >= 2_000, "{report}");
        assert_eq!(server.complaints(), [""; 0]);
        server.stop().await;
        database.check_invariants().await;
        database.drop().await;
    }
}

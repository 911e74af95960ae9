//! `orbit bench` as a user runs it, for moments only: that each mode works and tells its figures. How large they are is
//! for the person at the machine.

use std::{process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{process::Command, time::sleep};

use crate::support::{database::TestDatabase, on_every_database, on_mysql};

/// Runs `orbit bench` at the database server of the test.
async fn bench(database: &TestDatabase, arguments: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
    command.args(["bench", "--json", "--warm-up", "0.2", "--rounds", "1"]);
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).env_remove("ORBIT_BENCH_DATABASE_URL");
    let output = command.args(["--database-url", &database.url]).output().await.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(report.as_object().is_some_and(|o| o.values().all(|v| !v.is_object())), "flat: {report}");
    assert_eq!(report["warnings"].as_array().map(Vec::len), Some(0), "{report}");
    report
}

fn positive(report: &Value, keys: &[&str]) {
    for key in keys {
        assert!(report[key].as_f64().is_some_and(|n| n > 0.0), "{key}: {report}");
    }
}

mod alone {
    use super::*;

    on_every_database! {
        async fn lifecycles_are_told_beside_the_ceiling(database: TestDatabase) {
            let report = bench(&database, "lifecycle --workers 2 --slots 8 --submitters 8 --seconds 2").await;
            positive(&report, &["lifecycles_per_s", "ceiling_per_s", "lifecycle_over_ceiling", "start_latency_p50_ms"]);
            positive(&report, &["server_cpu_us", "load_cpu_us", "server_peak_rss_mib", "rows_per_lifecycle", "batch_mean"]);
            let ceiling = bench(&database, "ceiling --seconds 0.5").await;
            positive(&ceiling, &["ceiling_per_s"]);
            assert!(ceiling["rows_per_lifecycle"].as_f64().is_some_and(|rows| rows <= 16.0), "{ceiling}");
            database.drop().await;
        }

        async fn submits_batches_and_a_backlog_are_measured(database: TestDatabase) {
            positive(&bench(&database, "submit --seconds 2").await, &["submits_per_s", "submit_latency_p99_ms"]);
            let batch = bench(&database, "batch --batch 100 --seconds 4").await;
            positive(&batch, &["submits_per_s", "reference_per_s", "batch_over_reference"]);
            positive(&bench(&database, "drain --waiting 1000 --seconds 10").await, &["drained_per_s"]);
            database.drop().await;
        }

        async fn latency_is_told_in_single_commits_and_idle_workers_cost_memory(database: TestDatabase) {
            let latency = bench(&database, "latency --rate 20 --seconds 2").await;
            positive(&latency, &["start_latency_p50_ms", "done_latency_max_ms", "commit_p50_ms", "start_over_commit"]);
            let idle = bench(&database, "idle --workers 50 --connections 5 --seconds 0.5").await;
            positive(&idle, &["workers", "server_rss_mib"]);
            database.drop().await;
        }

        async fn a_burden_is_compared_with_the_plain_case(database: TestDatabase) {
            let burden = "lifecycle --compare --pairs 1 --finished 150 --paused 150 --queues 120 --handlers 3 --snapshot \
                          --workers 4 --slots 8 --submitters 8 --seconds 2";
            positive(&bench(&database, burden).await, &["ratio", "ratio_min", "ratio_max"]);
            let retries = bench(&database, "drain --retries --waiting 300 --seconds 20").await;
            positive(&retries, &["attempts_per_s"]);
            database.drop().await;
        }
    }

    on_mysql! {
        async fn two_nodes_share_a_database_and_nothing_is_left_behind() {
            let database = TestDatabase::mysql().await;
            let databases = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'orbit\\_bench\\_%'";
            let before = database.number(databases).await;
            let report = bench(&database, "lifecycle --nodes 2 --workers 4 --slots 8 --submitters 8 --seconds 2").await;
            positive(&report, &["lifecycles_per_s", "database_cpu_us"]);
            assert_eq!(database.number(databases).await, before);
            database.drop().await;
        }

        async fn ctrl_c_removes_databases_and_processes() {
            let database = TestDatabase::mysql().await;
            let databases = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name LIKE 'orbit\\_bench\\_%'";
            let before = database.number(databases).await;
            let mut command = Command::new(env!("CARGO_BIN_EXE_orbit"));
            command.args(["bench", "lifecycle", "--database-url", &database.url]).stdin(Stdio::null());
            let bench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
            let pid = bench.id().expect("it runs").to_string();
            // Two databases are there once lifecycles begin.
            for _ in 0..600 {
                if database.number(databases).await >= before + 2 {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            sleep(Duration::from_secs(1)).await;
            let told = Command::new("kill").args(["-INT", &pid]).status().await.expect("kill");
            assert!(told.success());
            let output = bench.wait_with_output().await.expect("it ends");
            assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(database.number(databases).await, before);
            database.drop().await;
        }
    }
}

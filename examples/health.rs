//! Is Orbit there, and does it take work? The standard health service, which load balancers and supervisors ask too.
//!
//! ```sh
//! cargo run --example health -- --embedded
//! cargo run --example health -- http://127.0.0.1:7070
//! ```
//!
//! One line a service goes to standard output; the exit code is 0 when all of them are served. A server says NOT_SERVING
//! before it ends, and while its database is away.

mod support;

use std::{process::ExitCode, time::Duration};

use orbit::sdk::Client;
use tonic::transport::Endpoint;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};

use support::Outcome;

/// The whole server, and each of its services.
const NAMES: [&str; 4] = ["", "orbit.v1.TaskService", "orbit.v1.QueueService", "orbit.v1.WorkerService"];
/// A health check that takes longer says as much as one that fails.
const LIMIT: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    support::run(health).await
}

async fn health(url: &str) -> Outcome<()> {
    let channel =
        Endpoint::from_shared(url.to_owned())?.connect_timeout(LIMIT).timeout(LIMIT).connect().await?;
    let mut client = HealthClient::new(channel);
    let mut away = 0;
    for name in NAMES {
        let request = HealthCheckRequest { service: name.to_owned() };
        let status = client.check(request).await?.into_inner().status;
        let serving = status == ServingStatus::Serving as i32;
        away += u32::from(!serving);
        let name = if name.is_empty() { "orbit" } else { name };
        println!("{name}={}", if serving { "SERVING" } else { "NOT_SERVING" });
    }
    if away > 0 {
        return Err(format!("{away} of {} are not served", NAMES.len()).into());
    }
    // Serving is one thing, answering another.
    let queues = Client::builder().url(url).call_timeout(LIMIT).build()?.list_queues().await?;
    println!("queues={}", queues.len());
    Ok(())
}

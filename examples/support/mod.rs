//! What all examples share: where Orbit is, and how they end.

use std::{env, error::Error, process::ExitCode};

use orbit::{sdk::DEFAULT_URL, server::Embedded};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Runs an example against the server that its one argument names: `--embedded` starts one for it, an address is used,
/// and without an argument the address in `ORBIT_URL` or the default one. The exit code is 1 when it fails.
pub(crate) async fn run(example: impl AsyncFnOnce(&str) -> Outcome<()>) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--embedded"] => embedded(example).await,
        [url] if !url.starts_with('-') => at(url, example).await,
        [] => at(&env::var("ORBIT_URL").unwrap_or_else(|_| DEFAULT_URL.to_owned()), example).await,
        _ => Err("usage: [--embedded | URL]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn at(url: &str, example: impl AsyncFnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    eprintln!("using the server at {url}");
    example(url).await
}

/// On a temporary SQLite file, inside this process.
async fn embedded(example: impl AsyncFnOnce(&str) -> Outcome<()>) -> Outcome<()> {
    let server = Embedded::start().await?;
    eprintln!("started a server at {}", server.url());
    let outcome = example(server.url()).await;
    server.shutdown().await?;
    outcome
}

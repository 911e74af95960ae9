//! The settings of a server: flag over environment over file over default.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use orbit::server::{DatabaseUrl, ServerConfig, TlsFiles};

use super::{failure::Failure, file::ConfigFile, options::parse_listen, serve::ServeArgs, value::parse_keep};

/// What `orbit serve` runs with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) server: ServerConfig,
    pub(crate) log: LogSettings,
}

/// What to log, by where that was said: `RUST_LOG` ranks between the two.
#[derive(Debug)]
pub(crate) struct LogSettings {
    pub(crate) chosen: Option<String>,
    pub(crate) from_file: Option<String>,
}

impl Settings {
    /// Reads the file, if one is named, and merges it below the arguments (clap has put the environment below the
    /// flags already).
    pub(crate) fn resolve(args: ServeArgs) -> Result<Self, Failure> {
        let path = args.database.config.clone();
        let file = ConfigFile::read(path.as_deref())?;
        merge(args, file, path.as_deref())
    }
}

/// The database's address alone, for `orbit migrate`.
pub(crate) fn database_url(flag: Option<String>, file: Option<String>) -> Result<DatabaseUrl, Failure> {
    flag.or(file).map(DatabaseUrl::new).ok_or_else(|| {
        Failure::new(
            "no database was given: use --database-url, ORBIT_DATABASE_URL or `database_url` in the configuration \
             file, such as sqlite:orbit.db (or try `orbit dev`)",
        )
    })
}

fn merge(args: ServeArgs, file: ConfigFile, path: Option<&Path>) -> Result<Settings, Failure> {
    let limits = Limits { path };
    let mut server = ServerConfig::new(database_url(args.database.database_url, file.database_url)?);
    if let Some(listen) = args.listen.listen {
        server.listen = listen;
    } else if let Some(listen) = file.listen {
        server.listen = parse_listen(&listen)
            .map_err(|problem| limits.failure("listen", Source::File, &format!("is none; {problem}")))?;
    }
    server.migrate = args.migrate.or(file.migrate).unwrap_or(server.migrate);
    server.insecure_no_auth =
        args.listen.insecure_no_auth.or(file.insecure_no_auth).unwrap_or(server.insecure_no_auth);
    if let Some(origins) = limits.origins(args.cors_origins, file.cors_origins)? {
        server.cors_origins = origins;
    }
    server.tls = tls(args.tls_cert.or(file.tls_cert), args.tls_key.or(file.tls_key))?;

    let engine = &mut server.engine;
    if let Some(node_id) = limits.node_id(args.node_id, file.node_id)? {
        engine.node_id = node_id;
    }
    let ms = |key, flag, file, range| limits.number(key, flag, file, range).map(|ms| ms.map(millis));
    if let Some(lease) = ms("lease_ms", args.lease_ms, file.lease_ms, 1_000..=3_600_000)? {
        engine.lease = lease;
    }
    if let Some(window) =
        ms("start_window_ms", args.start_window_ms, file.start_window_ms, 1_000..=3_600_000)?
    {
        engine.start_window = window;
    }
    if let Some(interval) =
        ms("sweep_interval_ms", args.sweep_interval_ms, file.sweep_interval_ms, 10..=60_000)?
    {
        engine.sweep_interval = interval;
    }
    if let Some(interval) = ms("poll_interval_ms", args.poll_interval_ms, file.poll_interval_ms, 10..=60_000)?
    {
        engine.poll_interval = interval;
    }
    let lanes = limits.number("lanes", args.lanes, file.lanes, 1..=16)?;
    if let Some(lanes) = lanes.and_then(|n| usize::try_from(n).ok()) {
        engine.lanes = lanes;
    }
    let batch_max = limits.number("batch_max", args.batch_max, file.batch_max, 1..=1_024)?;
    if let Some(batch_max) = batch_max.and_then(|n| usize::try_from(n).ok()) {
        engine.batch_max = batch_max;
    }
    // A task's payload and result together must fit an answer that default clients read, 4 MiB.
    let bytes = limits.number(
        "payload_bytes_max",
        args.payload_bytes_max,
        file.payload_bytes_max,
        1_024..=2_000_000,
    )?;
    if let Some(bytes) = bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
        engine.payload_bytes_max = bytes;
    }
    engine.keep_finished = limits.keep_finished(args.retention.keep_finished, file.keep_finished)?;
    Ok(Settings { server, log: LogSettings { chosen: args.log.log, from_file: file.log } })
}

fn tls(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<TlsFiles>, Failure> {
    let (given, missing) = match (cert, key) {
        (Some(cert), Some(key)) => return Ok(Some(TlsFiles { cert, key })),
        (None, None) => return Ok(None),
        (Some(_), None) => ("cert", "key"),
        (None, Some(_)) => ("key", "cert"),
    };
    Err(Failure::new(format!(
        "TLS needs a certificate and its key, and only tls_{given} is given: add --tls-{missing} FILE (or \
         ORBIT_TLS_{}, or `tls_{missing}` in the configuration file)",
        missing.to_ascii_uppercase()
    )))
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

/// Where a value came from, so that its error can say so.
#[derive(Clone, Copy)]
enum Source {
    /// A flag or a variable: clap does not tell which.
    Argument,
    /// The configuration file.
    File,
}

struct Limits<'a> {
    path: Option<&'a Path>,
}

impl Limits<'_> {
    fn number(
        &self,
        key: &str,
        flag: Option<u32>,
        file: Option<u32>,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, Failure> {
        let Some((value, source)) = pick(flag, file) else {
            return Ok(None);
        };
        if range.contains(&value) {
            return Ok(Some(value));
        }
        let problem = format!("is {value}; it must be {} to {}", range.start(), range.end());
        Err(self.failure(key, source, &problem))
    }

    /// A browser sends nothing after the host and the port, so anything more would never match.
    fn origins(
        &self,
        flag: Option<Vec<String>>,
        file: Option<Vec<String>>,
    ) -> Result<Option<Vec<String>>, Failure> {
        let Some((origins, source)) = pick(flag, file) else {
            return Ok(None);
        };
        let is_origin = |origin: &String| {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            host.is_some_and(|host| {
                !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
            })
        };
        match origins.iter().find(|origin| !is_origin(origin)) {
            None => Ok(Some(origins)),
            Some(_) => {
                Err(self.failure("cors_origins", source, "must be origins, such as https://console.example"))
            }
        }
    }

    fn node_id(&self, flag: Option<String>, file: Option<String>) -> Result<Option<String>, Failure> {
        let Some((value, source)) = pick(flag, file) else {
            return Ok(None);
        };
        if (1..=64).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Some(value));
        }
        Err(self.failure("node_id", source, "must be 1 to 64 visible ASCII characters"))
    }

    fn keep_finished(&self, flag: Option<String>, file: Option<String>) -> Result<Option<Duration>, Failure> {
        let Some((value, source)) = pick(flag, file) else {
            return Ok(None);
        };
        parse_keep(&value).map_err(|problem| self.failure("keep_finished", source, &problem))
    }

    fn failure(&self, key: &str, source: Source, problem: &str) -> Failure {
        let flag = key.replace('_', "-");
        let variable = key.to_ascii_uppercase();
        match (source, self.path) {
            (Source::File, Some(path)) => {
                Failure::new(format!("the configuration file {}: `{key}` {problem}", path.display()))
            }
            (Source::File, None) | (Source::Argument, _) => {
                Failure::new(format!("--{flag} (or ORBIT_{variable}) {problem}"))
            }
        }
    }
}

fn pick<T>(flag: Option<T>, file: Option<T>) -> Option<(T, Source)> {
    let flag = flag.map(|value| (value, Source::Argument));
    flag.or_else(|| file.map(|value| (value, Source::File)))
}

#[cfg(test)]
mod tests;

//! Why a server does not start, or stops.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

use crate::store::OpenError;

/// Why a server does not start, or stops. Each is one line that tells what to do; none shows the database's password.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database could not be opened.
    #[error(transparent)]
    Database(#[from] OpenError),
    /// A newer program migrated the database.
    #[error(
        "the database's schema is newer than this program (step {applied}, this program knows {known}): \
         use a newer orbit"
    )]
    SchemaNewer {
        /// How many migrations were applied.
        applied: u32,
        /// How many this program knows.
        known: u32,
    },
    /// The database lacks migrations.
    #[error(
        "the database's schema is older than this program (step {applied} of {known}): \
         run `orbit migrate`, or serve with --migrate"
    )]
    SchemaOlder {
        /// How many migrations were applied.
        applied: u32,
        /// How many this program knows.
        known: u32,
    },
    /// The database has no schema.
    #[error("the database is empty: run `orbit migrate`, or serve with --migrate")]
    SchemaEmpty,
    /// The schema could not be read or migrated.
    #[error("the database's schema could not be brought up to date: {0}")]
    Migrate(String),
    /// The schema could not be read.
    #[error("the database's schema could not be read: {0}")]
    SchemaUnreadable(String),
    /// The check of a database was cut short.
    #[error("the database could not be checked: {0}")]
    Check(String),
    /// The engine did not start.
    #[error("the engine could not start: {0}")]
    Engine(String),
    /// A queue that should be there could not be made.
    #[error("the queue `{queue_id}` could not be created: {problem}")]
    Queue {
        /// The queue.
        queue_id: String,
        /// What happened.
        problem: String,
    },
    /// The address is open to other machines, and there are no credentials.
    #[error(
        "{address} can be reached from other machines, and without credentials everybody there could do everything: \
         listen on 127.0.0.1 or [::1], or say --insecure-no-auth"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// Another program listens there.
    #[error("port {} on {} is taken by another program: choose another with --listen", address.port(), address.ip())]
    PortTaken {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate for TLS is of no use.
    #[error("the certificate in {} (--tls-cert) {problem}", path.display())]
    TlsCert {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The key for TLS is of no use.
    #[error("the private key in {} (--tls-key) {problem}", path.display())]
    TlsKey {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The address cannot be listened on for another reason.
    #[error("cannot listen on {address}: {problem}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        problem: String,
    },
    /// The temporary directory of an embedded server could not be made.
    #[error("no temporary directory could be made for the database: {0}")]
    TemporaryDirectory(String),
    /// The server stopped by itself.
    #[error("the server stopped: {0}")]
    Serve(String),
    /// A part of the server panicked.
    #[error(
        "a part of the server failed, and it stopped for that: the log says where. Start it again; nothing that was \
         accepted is lost. This is a bug, please report it"
    )]
    Broken,
}

impl StartError {
    pub(super) fn listen(address: SocketAddr, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AddrInUse => Self::PortTaken { address },
            io::ErrorKind::AddrNotAvailable => {
                Self::Listen { address, problem: "this machine does not have that address".to_owned() }
            }
            io::ErrorKind::PermissionDenied => Self::Listen {
                address,
                problem: "permission denied (ports below 1024 are reserved on many systems)".to_owned(),
            },
            _ => Self::Listen { address, problem: one_line(error) },
        }
    }
}

/// Texts of other layers may span lines; an error at start is one.
pub(super) fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

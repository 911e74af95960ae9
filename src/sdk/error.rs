//! What can go wrong between a caller and Orbit.

use std::{collections::HashMap, error, fmt, sync::Arc, time::Duration};

use tonic::{Code, Status};
use tonic_types::{RpcStatusExt as _, StatusExt as _};

/// The error of every call of this SDK.
///
/// Decide by [`kind`](Self::kind) and [`reason`](Self::reason), never by the message, which is for people.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// use orbit::sdk::ErrorKind;
///
/// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
/// assert_eq!((error.kind(), error.reason()), (ErrorKind::Server, Some("QUEUE_NOT_FOUND")));
/// assert!(!error.is_transient());
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

/// Where an [`Error`] came from.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use orbit::sdk::{Client, ErrorKind};
///
/// assert_eq!(Client::connect("nonsense").unwrap_err().kind(), ErrorKind::Config);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's own set-up is wrong: an address, a name, a call outside of a tokio runtime. Nothing was sent.
    Config,
    /// A value could not be written as JSON. Nothing was sent.
    Serialization,
    /// The server could not be reached or the connection broke. Whether the request took effect is not known:
    /// sending it again with the same key or request id is safe.
    Transport,
    /// Time ran out before an answer arrived. As with `Transport`, the effect is not known.
    Timeout,
    /// Orbit answered with an error; [`Error::reason`] says which.
    Server,
    /// The server answered something that the contract rules out.
    Protocol,
}

/// A field of the request that the server refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let orbit = orbit::testing::TestServer::start().await?;
/// # let client = orbit.client()?;
/// let submit = client.submit("default", "text.normalize", "v1").max_attempts(0);
/// let error = submit.send().await.unwrap_err();
/// assert_eq!(error.field_violations()[0].field, "retry.max_attempts");
/// # orbit.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldViolation {
    /// The field's path in the request, such as `retry.max_attempts`.
    pub field: String,
    /// What is wrong with it, for people.
    pub description: String,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    code: Code,
    message: String,
    details: Details,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
}

/// The parts of google.rpc's rich error model that callers act on.
#[derive(Debug, Clone, Default)]
struct Details {
    reason: Option<String>,
    metadata: HashMap<String, String>,
    retry_after: Option<Duration>,
    violations: Vec<FieldViolation>,
}

impl Error {
    /// Where the error came from.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert_eq!(error.kind(), orbit::sdk::ErrorKind::Server);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The gRPC code; for errors that never reached a server, the one that fits best.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert_eq!(error.code(), tonic::Code::NotFound);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The stable reason of an error that Orbit answered, such as `QUEUE_NOT_FOUND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert_eq!(error.reason(), Some("QUEUE_NOT_FOUND"));
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reason(&self) -> Option<&str> {
        self.0.details.reason.as_deref()
    }

    /// The explanation for people.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert!(!error.message().is_empty());
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The ids and values involved, as the server named them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert_eq!(error.metadata()["queue_id"], "nowhere");
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.0.details.metadata
    }

    /// How long the server asks to wait before the same request is sent again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert_eq!(error.retry_after(), None);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.details.retry_after
    }

    /// All fields that the server refused, when it did.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("a queue", "", "v1").send().await.unwrap_err();
    /// assert_eq!(error.field_violations().len(), 2);
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn field_violations(&self) -> &[FieldViolation] {
        &self.0.details.violations
    }

    /// Whether the same request, with the same key or request id, may succeed later: the server was unavailable,
    /// unreachable or overloaded, or did not answer in time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let orbit = orbit::testing::TestServer::start().await?;
    /// # let client = orbit.client()?;
    /// let error = client.submit("nowhere", "text.normalize", "v1").send().await.unwrap_err();
    /// assert!(!error.is_transient());
    /// let nobody = orbit::sdk::Client::connect("http://127.0.0.1:1")?;
    /// let nobody = nobody.with_call_timeout(std::time::Duration::from_millis(100));
    /// assert!(nobody.list_queues().await.unwrap_err().is_transient());
    /// # orbit.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_transient(&self) -> bool {
        match self.0.kind {
            ErrorKind::Transport | ErrorKind::Timeout => true,
            ErrorKind::Server => matches!(self.0.code, Code::Unavailable | Code::ResourceExhausted),
            ErrorKind::Config | ErrorKind::Serialization | ErrorKind::Protocol => false,
        }
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, Code::InvalidArgument, message)
    }

    pub(crate) fn serialization(what: &str, source: Arc<serde_json::Error>) -> Self {
        let message = format!("the {what} could not be written as JSON: {source}");
        let mut error = Self::new(ErrorKind::Serialization, Code::InvalidArgument, message);
        error.0.source = Some(source);
        error
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Protocol, Code::Internal, message)
    }

    /// A time-out; `last` is the failure that the tries before it met.
    pub(crate) fn timeout(message: impl Into<String>, last: Option<Self>) -> Self {
        let mut message = message.into();
        if let Some(last) = &last {
            message = format!("{message}; last failure: {}", last.message());
        }
        let mut error = Self::new(ErrorKind::Timeout, Code::DeadlineExceeded, message);
        error.0.source = last.map(|last| Arc::new(last) as Arc<dyn error::Error + Send + Sync>);
        error
    }

    /// Reads an error from the status inside a `command_result`.
    pub(crate) fn from_rpc_status(status: &tonic_types::Status) -> Self {
        let mut error = Self::new(ErrorKind::Server, Code::from_i32(status.code), status.message.clone());
        error.0.details = Details::read(&status.get_error_details());
        error
    }

    fn new(kind: ErrorKind, code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            code,
            message: message.into(),
            details: Details::default(),
            source: None,
        }))
    }
}

impl Details {
    fn read(details: &tonic_types::ErrorDetails) -> Self {
        let info = details.error_info();
        Self {
            reason: info.map(|info| info.reason.clone()),
            metadata: info.map(|info| info.metadata.clone()).unwrap_or_default(),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
            violations: details.bad_request().map_or_else(Vec::new, |request| {
                let violations = request.field_violations.iter();
                violations
                    .map(|violation| FieldViolation {
                        field: violation.field.clone(),
                        description: violation.description.clone(),
                    })
                    .collect()
            }),
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // A status that a server sent has no source; one that tonic made of a broken connection carries its cause.
        // The code alone does not tell: a partition shows as UNKNOWN.
        let kind = match error::Error::source(&status) {
            Some(_) if status.code() == Code::DeadlineExceeded => ErrorKind::Timeout,
            Some(_) => ErrorKind::Transport,
            None => ErrorKind::Server,
        };
        let mut message = status.message().to_owned();
        let mut cause = error::Error::source(&status);
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !text.is_empty() && !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = inner.source();
        }
        let mut error = Self::new(kind, status.code(), message);
        error.0.details = Details::read(&status.get_error_details());
        error.0.source = Some(Arc::new(status));
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason() {
            Some(reason) => write!(f, "{} ({reason})", self.0.message),
            None => f.write_str(&self.0.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("code", &self.0.code)
            .field("message", &self.0.message)
            .field("details", &self.0.details)
            .finish_non_exhaustive()
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

//! Where Orbit is, and how to get there.

use std::time::Duration;

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

use super::error::Error;

/// How long a TCP and TLS connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an HTTP/2 ping is sent while calls are open, and how long its answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// What an answer may weigh: the server cuts its answers at 3 MiB, but one task with large texts may pass that.
pub(crate) const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where a certificate in PEM form begins.
const PEM_MARK: &str = "-----BEGIN CERTIFICATE-----";

/// A connection that adds the bearer token to each call.
pub(crate) type Transport = InterceptedService<Channel, Bearer>;

/// The addresses of one Orbit cluster with what is needed to talk to them. Holds no connection.
#[derive(Debug, Clone)]
pub(crate) struct Endpoints {
    list: Vec<Endpoint>,
    bearer: Bearer,
}

impl Endpoints {
    /// Reads addresses, each of the form `http://host:port` or `https://host:port`.
    pub(crate) fn parse(urls: &[String], ca_pem: Option<&str>, token: Option<&str>) -> Result<Self, Error> {
        if urls.is_empty() {
            return Err(Error::config("no address of an Orbit server was given"));
        }
        let list = urls.iter().map(|url| endpoint(url, ca_pem)).collect::<Result<_, _>>()?;
        let bearer = Bearer::parse(token)?;
        Ok(Self { list, bearer })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// A channel to one address, connected when it is first used. Belongs to the runtime it was made in.
    pub(crate) fn channel(&self, index: usize) -> Result<Transport, Error> {
        // `connect_lazy` spawns, and would panic outside of a runtime.
        tokio::runtime::Handle::try_current()
            .map_err(|_| Error::config("the Orbit client must be made and used inside a tokio runtime"))?;
        let endpoint = self.list.get(index % self.list.len().max(1));
        let endpoint = endpoint.ok_or_else(|| Error::config("no address of an Orbit server was given"))?;
        Ok(InterceptedService::new(endpoint.connect_lazy(), self.bearer.clone()))
    }

    /// The address, for logs.
    pub(crate) fn name(&self, index: usize) -> String {
        self.list
            .get(index % self.list.len().max(1))
            .map(|endpoint| endpoint.uri().to_string())
            .unwrap_or_default()
    }
}

fn endpoint(url: &str, ca_pem: Option<&str>) -> Result<Endpoint, Error> {
    let wrong =
        |problem: &str| Error::config(format!("`{url}` is not the address of an Orbit server: {problem}"));
    let tls = match url.split_once("://") {
        Some(("http", rest)) if !rest.is_empty() => false,
        Some(("https", rest)) if !rest.is_empty() => true,
        _ => return Err(wrong("it must look like http://host:port or https://host:port")),
    };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| wrong(&error.to_string()))?;
    let endpoint = endpoint
        .user_agent(concat!("orbit-rust/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| wrong(&error.to_string()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    if !tls {
        return match ca_pem {
            Some(_) => Err(wrong("a certificate authority was given, so it must begin with https://")),
            None => Ok(endpoint),
        };
    }
    let config = match ca_pem {
        // Without one nothing would be trusted, and every call fail without saying why.
        Some(pem) if !pem.contains(PEM_MARK) => {
            return Err(wrong("the certificate authority holds no certificate in PEM form"));
        }
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(config).map_err(|error| wrong(&error.to_string()))
}

/// Adds `authorization: Bearer …` to calls, when there is a token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn parse(token: Option<&str>) -> Result<Self, Error> {
        let Some(token) = token else { return Ok(Self(None)) };
        let mut value: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|_| Error::config("the bearer token holds characters that a header cannot carry"))?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_https_addresses_are_taken() {
        for url in ["127.0.0.1:7070", "ftp://host:1", "http://", "http://a b", ""] {
            let error = Endpoints::parse(&[url.to_owned()], None, None).err();
            assert_eq!(error.map(|error| error.kind()), Some(crate::sdk::ErrorKind::Config), "{url}");
        }
        assert!(Endpoints::parse(&["http://127.0.0.1:7070".to_owned()], None, None).is_ok());
        assert!(Endpoints::parse(&["https://orbit.example".to_owned()], None, Some("secret")).is_ok());
        assert!(Endpoints::parse(&["http://h".to_owned()], None, Some("line\nbreak")).is_err());
        assert!(Endpoints::parse(&["http://h".to_owned()], Some(PEM_MARK), None).is_err());
    }

    #[test]
    fn a_token_is_not_shown_by_debug() {
        let endpoints = Endpoints::parse(&["http://h:1".to_owned()], None, Some("hunter2"));
        assert!(!format!("{endpoints:?}").contains("hunter2"));
    }
}

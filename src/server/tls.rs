//! The server's certificate and private key, from their files.

use std::{path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self, InconsistentKeys, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
};

use super::{StartError, error::one_line};

/// gRPC, and the HTTP gateway in both of its versions. Who does not negotiate is told apart by what it says first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where the server's certificate and its private key are. Both are read once, at the start.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// PEM: the server's certificate first, then those up to its authority.
    pub cert: PathBuf,
    /// PEM: the certificate's private key, without a passphrase.
    pub key: PathBuf,
}

impl TlsFiles {
    pub(super) fn read(&self) -> Result<Arc<ServerConfig>, StartError> {
        let (chain, key) = (self.chain()?, self.private_key()?);
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.bad_cert(one_line(&error)))?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| self.unfit(&error))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Ok(Arc::new(config))
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, StartError> {
        let text = std::fs::read(&self.cert).map_err(|error| self.bad_cert(unreadable(&error)))?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let chain = chain.map_err(|error| self.bad_cert(no_pem(&error)))?;
        if chain.is_empty() {
            return Err(self.bad_cert(
                "is none: the file must hold PEM, the server's certificate first and then those up to its authority",
            ));
        }
        Ok(chain)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, StartError> {
        let text = std::fs::read(&self.key).map_err(|error| self.bad_key(unreadable(&error)))?;
        if is_encrypted(&text) {
            return Err(self.bad_key(
                "is encrypted, and at the start nobody is there to type its passphrase: write it without one, readable \
                 by this program's user alone (openssl pkey -in FILE -out NEW_FILE)",
            ));
        }
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            pem::Error::NoItemsFound => self.bad_key("is none: the file must hold PEM with a PRIVATE KEY"),
            error => self.bad_key(no_pem(&error)),
        })
    }

    /// Why rustls does not take the two together.
    fn unfit(&self, error: &rustls::Error) -> StartError {
        match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => self.bad_key(format!(
                "does not belong to the certificate in {}: give those that were made together, the server's own \
                 certificate first in its file",
                self.cert.display()
            )),
            rustls::Error::InvalidCertificate(_) => self.bad_cert(format!("cannot be used: {}", one_line(error))),
            _ => self.bad_key(format!("cannot be used: {}", one_line(error))),
        }
    }

    fn bad_cert(&self, problem: impl Into<String>) -> StartError {
        StartError::TlsCert { path: self.cert.clone(), problem: problem.into() }
    }

    fn bad_key(&self, problem: impl Into<String>) -> StartError {
        StartError::TlsKey { path: self.key.clone(), problem: problem.into() }
    }
}

fn unreadable(error: &std::io::Error) -> String {
    format!("cannot be read: {}", one_line(error))
}

fn no_pem(error: &pem::Error) -> String {
    format!("is no PEM: {}", one_line(error))
}

/// In either of the two forms that OpenSSL writes.
fn is_encrypted(pem: &[u8]) -> bool {
    let text = String::from_utf8_lossy(pem);
    text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----") || text.contains("Proc-Type: 4,ENCRYPTED")
}

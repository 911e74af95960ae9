//! A server's certificate, in files.

use tempfile::TempDir;

use crate::authority::Authority;

/// An authority with a certificate for 127.0.0.1, in a folder that goes away: `ca`, `cert` and `key`.
pub(crate) struct Certificates {
    pub(crate) authority: Authority,
    folder: TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let this = Self { authority: Authority::new(), folder: tempfile::tempdir().expect("a folder") };
        let (cert, key) = this.authority.issue("127.0.0.1");
        for (name, pem) in [("ca", this.authority.pem()), ("cert", cert), ("key", key)] {
            this.write(name, &pem);
        }
        this
    }

    /// Writes one more file, and tells where.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("written");
        self.path(name)
    }

    /// Where a file of that name is.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

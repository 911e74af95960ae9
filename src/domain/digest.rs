//! Content digests, version 1 (S17): SHA-256 over (field number, value) pairs.
//!
//! Each pair is the field number as 4 bytes, the length of the value as 8 bytes, both big-endian, and the value.
//! Fields at their default are left out, so a client that does not know a field and one that leaves it at its default
//! mean the same. Numbers are the field numbers of the contract.

use sha2::{Digest as _, Sha256};

/// The version of this scheme, stored beside each digest.
pub const DIGEST_VERSION: i16 = 1;

/// A SHA-256 digest of a message's content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// Collects pairs.
pub struct Digester(Sha256);

impl Digester {
    /// Begins with no pairs.
    pub fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    /// Adds a number, as 8 bytes big-endian.
    #[must_use]
    pub fn number(self, field: u32, value: i64) -> Self {
        self.bytes(field, &value.to_be_bytes())
    }

    /// Adds a value, or nothing if it is the default.
    #[must_use]
    pub fn number_unless(self, field: u32, value: i64, default: i64) -> Self {
        if value == default { self } else { self.number(field, value) }
    }

    /// Adds a text, or nothing if it is the default.
    #[must_use]
    pub fn text_unless(self, field: u32, value: &str, default: &str) -> Self {
        if value == default { self } else { self.text(field, value) }
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.0.update(field.to_be_bytes());
        self.0.update((value.len() as u64).to_be_bytes());
        self.0.update(value);
        self
    }

    /// The digest of the pairs.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl Default for Digester {
    fn default() -> Self {
        Self::new()
    }
}

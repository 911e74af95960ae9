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

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    #[test]
    fn a_pair_is_field_length_and_value_in_big_endian() {
        assert_eq!(Digester::new().finish(), sha256(b""));
        assert_eq!(Digester::default().finish(), sha256(b""));
        assert_eq!(Digester::new().text(6, "ab").finish(), sha256(b"\0\0\0\x06\0\0\0\0\0\0\0\x02ab"));
        assert_eq!(
            Digester::new().number(0x0102, -2).finish(),
            sha256(b"\0\0\x01\x02\0\0\0\0\0\0\0\x08\xff\xff\xff\xff\xff\xff\xff\xfe")
        );
        assert_eq!(
            Digester::new().text(1, "").text(2, "x").finish(),
            sha256(b"\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01x")
        );
    }

    #[test]
    fn defaults_are_left_out_and_nothing_else_is() {
        let empty = || Digester::new();
        assert_eq!(empty().number_unless(1, 5, 5).finish(), empty().finish());
        assert_eq!(empty().number_unless(1, 0, 5).finish(), empty().number(1, 0).finish());
        assert_eq!(empty().text_unless(1, "null", "null").finish(), empty().finish());
        assert_eq!(empty().text_unless(1, "", "null").finish(), empty().text(1, "").finish());
    }

    #[test]
    fn the_order_the_field_and_the_value_all_count() {
        let digests = [
            Digester::new().text(1, "a").text(2, "b").finish(),
            Digester::new().text(2, "b").text(1, "a").finish(),
            Digester::new().text(1, "ab").finish(),
            Digester::new().text(2, "ab").finish(),
            Digester::new().text(1, "a").finish(),
        ];
        assert_eq!(digests.iter().collect::<std::collections::HashSet<_>>().len(), digests.len());
    }

    #[test]
    fn a_digest_prints_as_hex() {
        let mut bytes = [0; 32];
        bytes[0] = 0x0a;
        bytes[31] = 0xff;
        assert_eq!(format!("{:?}", Digest(bytes)), format!("0a{}ff", "00".repeat(30)));
    }
}

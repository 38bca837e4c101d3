//! The last head of a connection. A head with the same bytes means the same, so it is not parsed again.

use super::DecodedHead;

/// The last head of a connection.
#[derive(Debug)]
pub(super) struct RememberedHead {
    /// Its bytes; empty if there were too many.
    pub(super) bytes: Vec<u8>,
    pub(super) decoded: DecodedHead,
}

impl Default for RememberedHead {
    fn default() -> RememberedHead {
        RememberedHead {
            bytes: Vec::new(),
            decoded: DecodedHead::EMPTY_RESPONSE,
        }
    }
}

impl RememberedHead {
    /// Returns whether `bytes` begin with the same head again.
    #[inline]
    pub(super) fn begins(&self, bytes: &[u8]) -> bool {
        let known = self.bytes.len();
        known > 0 && bytes.len() >= known && bytes[..known] == self.bytes
    }
}

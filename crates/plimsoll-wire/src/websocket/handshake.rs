//! The key of the opening handshake (RFC 6455 §4.2.2).

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`.
pub fn accept_key(key: &[u8]) -> String {
    // The RFC fixes SHA-1; it proves that the server understood, and secures nothing.
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key);
    digest.update(GUID);
    STANDARD.encode(digest.finish())
}

/// The `Sec-WebSocket-Key` that stands for a nonce.
pub fn client_key(nonce: &[u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// Whether this is a `Sec-WebSocket-Key`: 16 bytes in base64.
pub fn is_client_key(key: &[u8]) -> bool {
    key.len() == 24
        && STANDARD
            .decode(key)
            .is_ok_and(|decoded| decoded.len() == 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_the_rfc() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert!(is_client_key(key));
        assert_eq!(client_key(b"the sample nonce").as_bytes(), key);
        assert_eq!(accept_key(key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!is_client_key(b"dGhlIHNhbXBsZSBub25jZQ="));
        assert!(!is_client_key(b"not base64 at all -------"));
    }
}

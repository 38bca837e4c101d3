//! Names of key types, by their algorithm identifiers (RFC 5280 §4.1.1.2), for error messages about keys and
//! certificates that the TLS library rejects without naming the type.

use rustls::pki_types::PrivateKeyDer;

use super::der::{SEQUENCE, read_element, read_tagged};

const OBJECT_IDENTIFIER: u8 = 0x06;
const INTEGER: u8 = 0x02;

/// Description of the supported key types for error messages.
pub(super) const SUPPORTED_KEY_TYPES: &str =
    "use RSA of 2048 to 8192 bits, ECDSA (P-256, P-384, P-521), Ed25519 or ML-DSA";

/// Returns the name of a key type that the TLS library does not support; `None` if it may be supported.
pub(super) fn unsupported_key_type(algorithm: &[u8]) -> Option<&'static str> {
    let (OBJECT_IDENTIFIER, identifier, _) = read_element(algorithm)? else {
        return None;
    };
    match identifier {
        // A key that may be used only for RSA-PSS (RFC 4055 §1.2).
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a] => Some("RSA-PSS"),
        [0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01] => Some("DSA"),
        [0x2b, 0x65, 0x71] => Some("Ed448"),
        [0x2b, 0x65, 0x6e] => Some("X25519"),
        [0x2b, 0x65, 0x6f] => Some("X448"),
        _ => None,
    }
}

/// Returns the reason why the TLS library rejected a private key. The message contains no part of the key.
pub(super) fn describe_key_problem(key: &PrivateKeyDer<'_>) -> String {
    let kind = match key {
        PrivateKeyDer::Pkcs8(der) => {
            pkcs8_algorithm(der.secret_pkcs8_der()).and_then(unsupported_key_type)
        }
        _ => None,
    };
    match kind {
        Some(kind) => {
            format!("{kind} keys are not supported: {SUPPORTED_KEY_TYPES}")
        }
        None => {
            format!("the key is damaged, or of a kind that is not supported: {SUPPORTED_KEY_TYPES}")
        }
    }
}

/// Returns the algorithm of a `PrivateKeyInfo` (RFC 5958 §2): its second element, after the version.
fn pkcs8_algorithm(der: &[u8]) -> Option<&[u8]> {
    let (body, _) = read_tagged(der, SEQUENCE)?;
    let (_, rest) = read_tagged(body, INTEGER)?;
    Some(read_tagged(rest, SEQUENCE)?.0)
}

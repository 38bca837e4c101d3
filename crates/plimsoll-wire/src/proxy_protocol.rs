//! The PROXY protocol, versions 1 and 2: a header before a connection's first byte with which a proxy tells the server
//! its client's address.
//!
//! The specification is <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. Parsing is strict: bytes that do
//! not begin like a header are an error, and so is a header that does not end where it must. Servers and the sidecar
//! call this for peers that are configured to send a header.

use std::net::SocketAddr;

use ppp::v2::{self, Command, Version};
use ppp::{PartialResult, v1};

/// The beginning of a version 1 header.
const TEXT_PREFIX: &[u8] = b"PROXY ";
/// Maximum length of a version 1 header in bytes, including CR LF (§2.1).
const MAX_TEXT_HEADER_BYTES: usize = 107;
/// Length in bytes of the part of a version 2 header before the addresses (§2.2).
const FIXED_HEADER_BYTES: usize = 16;
/// Maximum length of a header in bytes, including the extensions of version 2.
pub const MAX_HEADER_BYTES: usize = 4096;

/// The reason why a connection does not begin with a valid header.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    #[error("a PROXY header of more than {0} bytes")]
    TooLong(usize),
    #[error("a malformed PROXY header: {0}")]
    Malformed(String),
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client's address; `None` if the connection is the proxy's own, such as a health check, or if the client is
    /// unknown.
    pub client: Option<SocketAddr>,
    /// Length of the header in bytes.
    pub size: usize,
}

/// Returns whether `bytes` begin with the signature of a PROXY header.
pub fn has_signature(bytes: &[u8]) -> bool {
    let is_prefix = |of: &[u8]| bytes.starts_with(of);
    is_prefix(TEXT_PREFIX) || is_prefix(v2::PROTOCOL_PREFIX)
}

/// Parses the header at the beginning of `bytes`; returns `None` if it is incomplete, in which case all of `bytes`
/// belong to it.
///
/// # Errors
/// Returns an error if there is no header, or it is invalid.
pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let shorter = |whole: &[u8]| whole.starts_with(&bytes[..bytes.len().min(whole.len())]);
    if shorter(v2::PROTOCOL_PREFIX) {
        parse_binary(bytes)
    } else if shorter(TEXT_PREFIX) {
        parse_text(bytes)
    } else {
        Err(ProxyError::Missing)
    }
}

fn parse_text(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    let first = &bytes[..bytes.len().min(MAX_TEXT_HEADER_BYTES)];
    // The line is parsed only when it is complete, because the parser of the `ppp` crate may reject an incomplete
    // number.
    let Some(end) = first.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < MAX_TEXT_HEADER_BYTES {
            Ok(None)
        } else {
            Err(ProxyError::TooLong(MAX_TEXT_HEADER_BYTES))
        };
    };
    let size = end + 2;
    let header = v1::Header::try_from(&bytes[..size]).map_err(malformed_error)?;
    let client = match header.addresses {
        v1::Addresses::Tcp4(at) => Some((at.source_address, at.source_port).into()),
        v1::Addresses::Tcp6(at) => Some((at.source_address, at.source_port).into()),
        v1::Addresses::Unknown => None,
    };
    Ok(Some(ProxyHeader { client, size }))
}

fn parse_binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyError> {
    if let Some(fixed) = bytes.first_chunk::<FIXED_HEADER_BYTES>() {
        let rest = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        let size = FIXED_HEADER_BYTES + rest;
        if size > MAX_HEADER_BYTES {
            return Err(ProxyError::TooLong(MAX_HEADER_BYTES));
        }
        // For a proxy's own connection, the rest of the header is skipped, including its address family (§2.2).
        if fixed[12] == Version::Two | Command::Local {
            let header = ProxyHeader { client: None, size };
            return Ok((bytes.len() >= size).then_some(header));
        }
    }
    let parsed = v2::Header::try_from(bytes);
    if parsed.is_incomplete() {
        return Ok(None);
    }
    let header = parsed.map_err(malformed_error)?;
    let client = match header.addresses {
        v2::Addresses::IPv4(at) => Some((at.source_address, at.source_port).into()),
        v2::Addresses::IPv6(at) => Some((at.source_address, at.source_port).into()),
        _ => None,
    };
    Ok(Some(ProxyHeader {
        client,
        size: header.header.len(),
    }))
}

fn malformed_error(error: impl std::error::Error) -> ProxyError {
    let text = error.to_string();
    ProxyError::Malformed(text.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a version 2 header with this command, family and protocol, followed by `rest`.
    fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [
            v2::PROTOCOL_PREFIX,
            &[0x20 | command, family],
            &length,
            rest,
        ]
        .concat()
    }

    #[test]
    fn any_split_yields_client_address() {
        let four = [
            &[203, 0, 113, 7, 10, 0, 0, 1, 0x15, 0xb3, 0, 80][..],
            // An extension (§2.2.4).
            &[0x04, 0, 2, 0, 0],
        ]
        .concat();
        let mut six = [0; 36];
        (six[15], six[32], six[33]) = (1, 0x15, 0xb3);
        let cases: [(Vec<u8>, Option<&str>); 11] = [
            (
                b"PROXY TCP4 203.0.113.7 10.0.0.1 5555 80\r\n".to_vec(),
                Some("203.0.113.7:5555"),
            ),
            (
                b"PROXY TCP6 2001:db8::7 ::1 5555 80\r\n".to_vec(),
                Some("[2001:db8::7]:5555"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (
                b"PROXY UNKNOWN ffff:: ffff:: 65535 65535\r\n".to_vec(),
                None,
            ),
            (version_2(1, 0x11, &four), Some("203.0.113.7:5555")),
            (version_2(1, 0x21, &six), Some("[::1]:5555")),
            // The proxy's own connection, such as a health check.
            (version_2(0, 0x11, &four), None),
            (version_2(0, 0x00, &[]), None),
            (version_2(0, 0x11, &[]), None),
            (version_2(0, 0x51, &[1]), None),
            (version_2(1, 0x31, &[b'x'; 216]), None),
        ];
        for (wire, client) in cases {
            let followed = [&wire[..], b"PROXY GET / HTTP/1.1\r\n"].concat();
            for cut in 0..wire.len() {
                assert_eq!(parse(&wire[..cut]), Ok(None), "{wire:?} cut at {cut}");
            }
            for bytes in [&wire, &followed] {
                let header = parse(bytes).unwrap().unwrap();
                assert_eq!(header.size, wire.len());
                assert_eq!(header.client, client.map(|text| text.parse().unwrap()));
                assert!(has_signature(bytes));
            }
        }
    }

    #[test]
    fn malformed_or_oversized_header_rejected() {
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"\r\n\r\nx"] {
            assert_eq!(parse(other), Err(ProxyError::Missing));
            assert!(!has_signature(other));
        }
        let endless = [TEXT_PREFIX, &[b'a'; MAX_TEXT_HEADER_BYTES]].concat();
        assert_eq!(
            parse(&endless),
            Err(ProxyError::TooLong(MAX_TEXT_HEADER_BYTES))
        );
        let long = version_2(1, 0x11, &[0; MAX_HEADER_BYTES]);
        assert_eq!(
            parse(&long[..FIXED_HEADER_BYTES]),
            Err(ProxyError::TooLong(MAX_HEADER_BYTES))
        );
        for wrong in [
            b"PROXY TCP4 203.0.113.700 10.0.0.1 5555 80\r\n".to_vec(),
            b"PROXY TCP4 203.0.113.7 10.0.0.1 5555\r\n".to_vec(),
            b"PROXY UDP4 203.0.113.7 10.0.0.1 5555 80\r\n".to_vec(),
            // These headers are too short for the addresses, or have an unknown version or command.
            version_2(1, 0x21, &[0; 12]),
            [v2::PROTOCOL_PREFIX, &[0x31, 0x11, 0, 0]].concat(),
            version_2(7, 0x11, &[0; 12]),
        ] {
            let refused = parse(&wrong);
            assert!(
                matches!(refused, Err(ProxyError::Malformed(_))),
                "{wrong:?}"
            );
        }
    }
}

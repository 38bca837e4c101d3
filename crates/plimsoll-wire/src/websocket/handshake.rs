//! The opening handshake (RFC 6455 §4): its keys, and the check of a server's response.

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::DeflateParameters;
use crate::http1::{BodyFraming, FieldStorage, Http1Error, ResponseHead};

const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Maximum length in bytes of text from the server in error messages.
const MAX_SHOWN_BYTES: usize = 200;

/// Returns the `Sec-WebSocket-Accept` value for a `Sec-WebSocket-Key`.
pub fn derive_accept_key(key: &[u8]) -> String {
    // RFC 6455 requires SHA-1. The digest only proves that the server understands WebSocket, and provides no security.
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key);
    digest.update(WEBSOCKET_GUID);
    STANDARD.encode(digest.finish())
}

/// Returns the `Sec-WebSocket-Key` for a nonce.
pub fn client_key(nonce: &[u8; 16]) -> String {
    STANDARD.encode(nonce)
}

/// Returns whether `key` is a valid `Sec-WebSocket-Key`: 16 bytes in base64.
pub fn is_valid_client_key(key: &[u8]) -> bool {
    key.len() == 24
        && STANDARD
            .decode(key)
            .is_ok_and(|decoded| decoded.len() == 16)
}

/// The response to an upgrade request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeResponse {
    /// The status code; 101 if the WebSocket is open.
    pub status: u16,
    /// Size of the head in bytes; frames follow if there is no problem.
    pub size: usize,
    /// The reason why the response does not open a WebSocket; `None` if it does.
    pub problem: Option<String>,
    /// The compression that was agreed on, if any.
    pub deflate: Option<DeflateParameters>,
}

/// The extensions and subprotocols that an upgrade request offers.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpgradeOffer<'a> {
    /// Whether [`DeflateParameters::CLIENT_OFFER`] was sent.
    pub compression: bool,
    /// Subprotocols, of which the server must choose one.
    pub protocols: &'a [String],
}

impl UpgradeOffer<'_> {
    /// An offer of compression without a subprotocol.
    pub const COMPRESSION_ONLY: UpgradeOffer<'static> = UpgradeOffer {
        compression: true,
        protocols: &[],
    };
}

impl UpgradeResponse {
    /// Parses the response at the beginning of `bytes` to an upgrade request whose `Sec-WebSocket-Key` was `key`;
    /// returns `None` until its head is complete.
    ///
    /// # Errors
    /// Returns an error if `bytes` are not an HTTP/1.1 response.
    pub fn parse(
        bytes: &[u8],
        key: &str,
        offer: UpgradeOffer<'_>,
    ) -> Result<Option<UpgradeResponse>, Http1Error> {
        let UpgradeOffer {
            compression,
            protocols,
        } = offer;
        let mut space = FieldStorage::new();
        let head = ResponseHead::parse_final(bytes, &mut space)?;
        Ok(head.map(|head| {
            let deflate = parse_extension(&head, compression);
            UpgradeResponse {
                status: head.status,
                size: head.size,
                problem: upgrade_problem(&head, bytes, key, (deflate.is_err(), protocols)),
                deflate: deflate.unwrap_or(None),
            }
        }))
    }
}

/// The error of a server that chose an extension that was not offered.
struct ExtensionNotOffered;

fn parse_extension(
    head: &ResponseHead<'_, '_>,
    compression: bool,
) -> Result<Option<DeflateParameters>, ExtensionNotOffered> {
    let mut extensions = head.fields.values("sec-websocket-extensions");
    let Some(extension) = extensions.next() else {
        return Ok(None);
    };
    let known = std::str::from_utf8(extension).ok();
    let known = known.filter(|_| compression && extensions.next().is_none());
    known
        .and_then(DeflateParameters::parse_answer)
        .map(Some)
        .ok_or(ExtensionNotOffered)
}

/// Returns the reason why the response does not open a WebSocket (RFC 6455 §4.1); `None` if it does. `extends`: whether
/// the response has an extension that was not offered. `protocols_offered`: the offered subprotocols.
fn upgrade_problem(
    head: &ResponseHead<'_, '_>,
    bytes: &[u8],
    key: &str,
    (extends, protocols_offered): (bool, &[String]),
) -> Option<String> {
    if head.status != 101 {
        return Some(describe_refusal(head, &bytes[head.size..]));
    }
    let fields = head.fields;
    let problem = if !fields.lists_token("upgrade", "websocket") {
        "no Upgrade: websocket"
    } else if !fields.lists_token("connection", "upgrade") {
        "no Connection: Upgrade"
    } else {
        let mut accepts = fields.values("sec-websocket-accept");
        let mut protocols = fields.values("sec-websocket-protocol");
        let chosen = (protocols.next(), protocols.next());
        match (accepts.next(), accepts.next()) {
            (None, _) => "no Sec-WebSocket-Accept",
            (Some(accept), None) if accept == derive_accept_key(key.as_bytes()).as_bytes() => {
                if extends {
                    "a Sec-WebSocket-Extensions that was not offered"
                } else {
                    let is_offered = |chosen: &[u8]| {
                        protocols_offered
                            .iter()
                            .any(|offered| offered.as_bytes() == chosen)
                    };
                    match chosen {
                        (None, _) if protocols_offered.is_empty() => return None,
                        (None, _) => "no Sec-WebSocket-Protocol, although one was offered",
                        (Some(chosen), None) if is_offered(chosen) => return None,
                        _ => "a Sec-WebSocket-Protocol that was not offered",
                    }
                }
            }
            _ => "the wrong Sec-WebSocket-Accept",
        }
    };
    Some(format!("the answer to the upgrade has {problem}"))
}

/// Describes a response that does not upgrade the connection: its status, the fields that tell the client what to do,
/// and the beginning of the body as far as it was received.
fn describe_refusal(head: &ResponseHead<'_, '_>, body: &[u8]) -> String {
    let mut text = format!("the answer to the upgrade was {}", head.status);
    if !head.reason.is_empty() {
        text = format!("{text} {}", printable_excerpt(head.reason.as_bytes()));
    }
    for name in ["location", "retry-after", "www-authenticate"] {
        if let Some(value) = head.fields.values(name).next() {
            text = format!("{text}, {name}: {}", printable_excerpt(value));
        }
    }
    match printable_excerpt(body.trim_ascii()) {
        body if body.is_empty() || head.body == BodyFraming::Chunked => text,
        body => format!("{text}: {body}"),
    }
}

/// Returns the text, shortened and without control characters.
fn printable_excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)]);
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_subprotocol_must_be_selected() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
        for (answered, offered, is_right) in [
            ("", &[][..], true),
            ("Sec-WebSocket-Protocol: a\r\n", &["a"], true),
            ("Sec-WebSocket-Protocol: a\r\n", &["b", "a"], true),
            ("Sec-WebSocket-Protocol: a\r\n", &[], false),
            ("Sec-WebSocket-Protocol: b\r\n", &["a"], false),
            ("Sec-WebSocket-Protocol: a, b\r\n", &["a", "b"], false),
            ("", &["a"], false),
            (
                "Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: a\r\n",
                &["a"],
                false,
            ),
        ] {
            let protocols: Vec<String> = offered.iter().map(ToString::to_string).collect();
            let bytes = format!("{head}{answered}\r\n");
            let answer = UpgradeResponse::parse(
                bytes.as_bytes(),
                KEY,
                UpgradeOffer {
                    compression: false,
                    protocols: &protocols,
                },
            );
            let problem = answer.unwrap().unwrap().problem;
            assert_eq!(
                problem.is_none(),
                is_right,
                "{answered:?} {offered:?} {problem:?}"
            );
        }
    }

    #[test]
    fn only_valid_upgrade_opens_websocket() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        let whole = [
            ("Upgrade", "websocket"),
            ("Connection", "keep-alive, Upgrade"),
            ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ];
        let problem = |status: u16, headers: &[(&str, &str)]| {
            let lines: String = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let text = format!("HTTP/1.1 103 Y\r\n\r\nHTTP/1.1 {status} X\r\n{lines}\r\n");
            for end in 0..text.len() {
                let part =
                    UpgradeResponse::parse(&text.as_bytes()[..end], KEY, UpgradeOffer::default());
                assert_eq!(part, Ok(None));
            }
            let answer = UpgradeResponse::parse(text.as_bytes(), KEY, UpgradeOffer::default())
                .unwrap()
                .unwrap();
            assert_eq!((answer.status, answer.size), (status, text.len()));
            answer.problem
        };
        assert_eq!(problem(101, &whole), None);
        let refused = problem(429, &[("Retry-After", "2"), ("Location", "/a")]).unwrap();
        assert!(
            refused.ends_with("was 429 X, location: /a, retry-after: 2"),
            "{refused}"
        );
        for left_out in 0..whole.len() {
            let mut headers = whole.to_vec();
            headers.remove(left_out);
            let text = problem(101, &headers).unwrap();
            assert!(text.contains(whole[left_out].0), "{text}");
        }
        for (name, value) in [
            ("Sec-WebSocket-Extensions", "permessage-deflate"),
            ("Sec-WebSocket-Protocol", "chat"),
            ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ] {
            let mut headers = whole.to_vec();
            headers.push((name, value));
            assert!(problem(101, &headers).unwrap().contains(name));
        }
        let mut wrong = whole;
        wrong[2].1 = "s3pPLMBiTxaQ9kYGzzhZRbK+xOp=";
        assert!(problem(101, &wrong).unwrap().contains("wrong"));
    }

    #[test]
    fn compression_requires_offer_and_acceptance() {
        let answer = |extensions: &str, compression: bool| {
            let text = format!(
                "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n{extensions}\r\n"
            );
            let key = "dGhlIHNhbXBsZSBub25jZQ==";
            let answer = UpgradeResponse::parse(
                text.as_bytes(),
                key,
                UpgradeOffer {
                    compression,
                    protocols: &[],
                },
            );
            let answer = answer.unwrap().unwrap();
            (answer.problem.is_none(), answer.deflate.is_some())
        };
        let agreed = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover\r\n";
        assert_eq!(answer(agreed, true), (true, true));
        assert_eq!(answer(agreed, false), (false, false));
        assert_eq!(answer("", true), (true, false));
        assert_eq!(answer(&agreed.repeat(2), true), (false, false));
        let in_context = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
        assert_eq!(answer(in_context, true), (true, true));
        let other = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
        assert_eq!(answer(other, true), (false, false));
    }

    #[test]
    fn rfc_6455_key_example() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert!(is_valid_client_key(key));
        assert_eq!(client_key(b"the sample nonce").as_bytes(), key);
        assert_eq!(derive_accept_key(key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!is_valid_client_key(b"dGhlIHNhbXBsZSBub25jZQ="));
        assert!(!is_valid_client_key(b"not base64 at all -------"));
    }
}

//! The heads of messages, and how their bodies are delimited (RFC 9112 §2 to §6).

use std::mem::MaybeUninit;

use httparse::{Header, ParserConfig, Status};

use super::Http1Error;

/// Number of fields that are stored without allocation; the maximum for requests.
const INLINE_FIELD_COUNT: usize = 128;

/// Length in bytes of the shortest possible field: `a:` and a line break.
const MIN_FIELD_BYTES: usize = 3;

/// Storage for a head's fields, so that parsing needs no allocation.
pub struct FieldStorage<'b> {
    inline: [MaybeUninit<Header<'b>>; INLINE_FIELD_COUNT],
    /// Storage for responses with more fields.
    large: Vec<MaybeUninit<Header<'b>>>,
}

impl FieldStorage<'_> {
    /// Creates storage for 128 fields; it grows for responses with more.
    pub fn new() -> Self {
        FieldStorage {
            inline: [const { MaybeUninit::uninit() }; INLINE_FIELD_COUNT],
            large: Vec::new(),
        }
    }
}

impl Default for FieldStorage<'_> {
    fn default() -> Self {
        FieldStorage::new()
    }
}

/// The way in which a body is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// The body has this length in bytes.
    Length(u64),
    /// The body is chunked (RFC 9112 §7.1).
    Chunked,
    /// The body ends when the connection is closed; only in responses.
    UntilClose,
}

/// The fields of a head, in order.
#[derive(Clone, Copy, Debug)]
pub struct HttpFields<'h, 'b>(&'h [Header<'b>]);

impl<'h, 'b> HttpFields<'h, 'b> {
    /// Returns the names as sent, and the values without surrounding whitespace.
    pub fn iter(self) -> impl Iterator<Item = (&'b str, &'b [u8])> + Clone + 'h {
        let fields = self.0.iter();
        fields.map(|field| (field.name, field.value.trim_ascii()))
    }

    /// Returns the values of all fields with this name.
    pub fn values(self, name: &'h str) -> impl Iterator<Item = &'b [u8]> + 'h {
        self.iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Returns whether a field with this name lists `token` (RFC 9110 §5.6.1).
    pub fn lists_token(self, name: &'h str, token: &str) -> bool {
        self.values(name).any(|value| lists_token(value, token))
    }
}

fn lists_token(value: &[u8], token: &str) -> bool {
    list_items(value).any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
}

fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii)
}

/// A request's head.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'h, 'b> {
    /// The method, case-sensitive, as sent (RFC 9110 §9.1).
    pub method: &'b str,
    /// The request target as sent (RFC 9112 §3.2).
    pub target: &'b str,
    /// Whether the version is HTTP/1.1 and not 1.0.
    pub is_1_1: bool,
    /// Size of the head in bytes.
    pub size: usize,
    /// The way in which the body is delimited; length 0 if no field declares one.
    pub body: BodyFraming,
    /// Whether the client closes the connection after the response (RFC 9112 §9.3).
    pub closes: bool,
    /// The fields in the order in which they were sent.
    pub fields: HttpFields<'h, 'b>,
}

impl<'h, 'b> RequestHead<'h, 'b> {
    /// Parses the head at the beginning of `bytes`, of at most `max` bytes; `None` until it is complete.
    ///
    /// # Errors
    /// Returns an error if the head is invalid or exceeds `max` bytes.
    pub fn parse(
        bytes: &'b [u8],
        max: usize,
        space: &'h mut FieldStorage<'b>,
    ) -> Result<Option<RequestHead<'h, 'b>>, Http1Error> {
        let mut parsed = httparse::Request::new(&mut []);
        let status = ParserConfig::default().parse_request_with_uninit_headers(
            &mut parsed,
            bytes,
            &mut space.inline,
        );
        let Some(size) = size_if_complete(status, bytes.len(), max)? else {
            return Ok(None);
        };
        let is_1_1 = parsed.version == Some(1);
        let general = MessageProperties::from_fields(parsed.headers, is_1_1)?;
        Ok(Some(RequestHead {
            method: parsed.method.unwrap_or_default(),
            target: parsed.path.unwrap_or_default(),
            is_1_1,
            size,
            body: general.framing.unwrap_or(BodyFraming::Length(0)),
            closes: general.closes,
            fields: HttpFields(parsed.headers),
        }))
    }
}

/// A response's head.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'h, 'b> {
    /// The three-digit status code (RFC 9110 §15).
    pub status: u16,
    /// The reason phrase; empty if the server sent none.
    pub reason: &'b str,
    /// Size of the head in bytes.
    pub size: usize,
    /// The way in which the body is delimited, unless the request was HEAD.
    pub body: BodyFraming,
    /// Whether the server closes the connection after this response (RFC 9112 §9.3).
    pub closes: bool,
    /// The fields in the order in which they were sent.
    pub fields: HttpFields<'h, 'b>,
}

impl<'h, 'b> ResponseHead<'h, 'b> {
    /// Parses the head at the beginning of `bytes`; `None` until it is complete.
    ///
    /// # Errors
    /// Returns an error if the head is invalid or exceeds [`super::MAX_HEAD_BYTES`] bytes.
    pub fn parse(
        bytes: &'b [u8],
        space: &'h mut FieldStorage<'b>,
    ) -> Result<Option<ResponseHead<'h, 'b>>, Http1Error> {
        ResponseHead::parse_with_max_bytes(bytes, super::MAX_HEAD_BYTES, space)
    }

    /// Does the same as [`ResponseHead::parse`] for a head of at most `max` bytes with any number of fields.
    ///
    /// # Errors
    /// Returns an error if the head is invalid or exceeds `max` bytes.
    pub fn parse_with_max_bytes(
        bytes: &'b [u8],
        max: usize,
        space: &'h mut FieldStorage<'b>,
    ) -> Result<Option<ResponseHead<'h, 'b>>, Http1Error> {
        let config = ParserConfig::default();
        let mut parsed = httparse::Response::new(&mut []);
        let mut status =
            config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut space.inline);
        if status == Err(httparse::Error::TooManyHeaders) {
            let room = bytes.len().min(max) / MIN_FIELD_BYTES + 1;
            space.large.clear();
            space.large.resize_with(room, MaybeUninit::uninit);
            parsed = httparse::Response::new(&mut []);
            status =
                config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut space.large);
        }
        if status == Err(httparse::Error::Version) && is_tls_record(bytes) {
            return Err(Http1Error::Tls);
        }
        let Some(size) = size_if_complete(status, bytes.len(), max)? else {
            return Ok(None);
        };
        let general = MessageProperties::from_fields(parsed.headers, parsed.version == Some(1))?;
        let status = parsed.code.unwrap_or(0);
        let body = match (status, general.framing) {
            (100..200 | 204 | 304, _) => BodyFraming::Length(0),
            (_, framing) => framing.unwrap_or(BodyFraming::UntilClose),
        };
        Ok(Some(ResponseHead {
            status,
            reason: parsed.reason.unwrap_or_default(),
            size,
            body,
            closes: general.closes || body == BodyFraming::UntilClose,
            fields: HttpFields(parsed.headers),
        }))
    }

    /// Returns the error of a connection that ended after `bytes` within a head. An error in `bytes` takes precedence
    /// over the truncation, since where the connection ended depends only on the network.
    pub fn truncation_error(bytes: &'b [u8]) -> Http1Error {
        let read = ResponseHead::parse(bytes, &mut FieldStorage::new()).map(|_| ());
        read.err().unwrap_or(Http1Error::EndedInHead)
    }

    /// Parses the final head at the beginning of `bytes`. Interim heads before it are skipped and included in its size.
    ///
    /// # Errors
    /// Returns an error if one of the heads is invalid, or if together they exceed [`super::MAX_HEAD_BYTES`] bytes.
    pub fn parse_final(
        bytes: &'b [u8],
        space: &'h mut FieldStorage<'b>,
    ) -> Result<Option<ResponseHead<'h, 'b>>, Http1Error> {
        let mut before = 0;
        while let Some(head) = ResponseHead::parse(&bytes[before..], &mut FieldStorage::new())? {
            if !head.is_interim() {
                let head = ResponseHead::parse(&bytes[before..], space)?;
                return Ok(head.map(|head| ResponseHead {
                    size: before + head.size,
                    ..head
                }));
            }
            before += head.size;
            if before > super::MAX_HEAD_BYTES {
                return Err(Http1Error::HeadTooLong(super::MAX_HEAD_BYTES));
            }
        }
        Ok(None)
    }

    /// Returns whether another head follows (RFC 9110 §15.2). No head follows after 101, since the connection then
    /// changes to another protocol.
    pub fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..200)
    }
}

/// Returns whether bytes begin an alert or a handshake message of TLS (RFC 8446 §5.1).
fn is_tls_record(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16] | [0x15 | 0x16, 0x03, ..])
}

fn size_if_complete(
    parsed: httparse::Result<usize>,
    seen: usize,
    max: usize,
) -> Result<Option<usize>, Http1Error> {
    match parsed.map_err(Http1Error::Head)? {
        Status::Complete(size) if size <= max => Ok(Some(size)),
        Status::Partial if seen <= max => Ok(None),
        _ => Err(Http1Error::HeadTooLong(max)),
    }
}

/// Properties of a message that its fields determine.
struct MessageProperties {
    framing: Option<BodyFraming>,
    closes: bool,
}

impl MessageProperties {
    fn from_fields(fields: &[Header<'_>], is_1_1: bool) -> Result<MessageProperties, Http1Error> {
        let (mut length, mut chunked) = (None, false);
        let (mut close, mut keep) = (false, is_1_1);
        for Header { name, value } in fields {
            if name.eq_ignore_ascii_case("content-length") {
                for item in list_items(value) {
                    let bytes = parse_content_length(item)?;
                    match length.replace(bytes) {
                        Some(other) if other != bytes => {
                            return Err(Http1Error::TwoLengths(other, bytes));
                        }
                        _ => {}
                    }
                }
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                // Applying chunked twice is forbidden (RFC 9112 §6.1).
                if chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    let coding = String::from_utf8_lossy(value.trim_ascii()).into_owned();
                    return Err(Http1Error::TransferCoding(coding));
                }
                chunked = true;
            } else if name.eq_ignore_ascii_case("connection") {
                close |= lists_token(value, "close");
                keep |= lists_token(value, "keep-alive");
            }
        }
        let framing = match (length, chunked) {
            (Some(_), true) => return Err(Http1Error::LengthAndCoding),
            (None, true) if !is_1_1 => return Err(Http1Error::OldCoding),
            (None, true) => Some(BodyFraming::Chunked),
            (Some(bytes), false) => Some(BodyFraming::Length(bytes)),
            (None, false) => None,
        };
        Ok(MessageProperties {
            framing,
            closes: close || !keep,
        })
    }
}

/// Parses a number that consists of digits only.
fn parse_content_length(digits: &[u8]) -> Result<u64, Http1Error> {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| Http1Error::ContentLength(String::from_utf8_lossy(digits).into_owned()))
}

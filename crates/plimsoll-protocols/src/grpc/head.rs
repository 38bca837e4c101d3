//! The fields of a response's header blocks that decide the outcome of a call.

use plimsoll_wire::hpack::{DEFAULT_TABLE_BYTES, Decoder, HeaderField, HpackError};
use plimsoll_wire::http2::MAX_HEADER_LIST_BYTES;

use crate::http2::{
    BlockCache, HEAD_TOO_LARGE, ResponseFieldChecks, parse_content_length, parse_number,
    to_printable, to_printable_lines,
};
use plimsoll_wire::hex::percent_decode;

/// The format of a response, by its `content-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// The field is missing.
    Absent,
    /// `application/grpc`, possibly with a suffix after `+` or parameters after `;`.
    Grpc,
    /// Another value.
    Other,
}

/// The encoding of a response's compressed messages, by its `grpc-encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageEncoding {
    /// Not compressed.
    Identity,
    /// gzip (RFC 1952).
    Gzip,
    /// Another value.
    Other,
}

/// The fields of one header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrpcHeaders {
    /// `:status`; 0 if the block has none, like trailers.
    pub http_status: u16,
    /// `grpc-status`; 255 if it is not a number from 0 to 254.
    pub grpc_status: Option<u8>,
    /// The format named by `content-type`.
    pub content_type: ContentType,
    /// The encoding named by `grpc-encoding`.
    pub encoding: MessageEncoding,
    /// `content-length`, in bytes; `None`: not given.
    pub content_length: Option<u32>,
    /// The rule of RFC 9113, 8.2 and 8.3, that the block violates.
    pub malformed: Option<&'static str>,
}

impl GrpcHeaders {
    /// The value for a block without any of these fields.
    const NONE: GrpcHeaders = GrpcHeaders {
        http_status: 0,
        grpc_status: None,
        content_type: ContentType::Absent,
        encoding: MessageEncoding::Identity,
        content_length: None,
        malformed: None,
    };
}

/// The kinds of header blocks in the responses of successful calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommonHeaderBlock {
    /// The header of a response whose message follows, with neither encoding nor length announced.
    Opening,
    /// The trailers of a successful call.
    Success,
}

impl CommonHeaderBlock {
    fn from_headers(head: &GrpcHeaders) -> Option<CommonHeaderBlock> {
        let opening = GrpcHeaders {
            http_status: 200,
            content_type: ContentType::Grpc,
            ..GrpcHeaders::NONE
        };
        let success = GrpcHeaders {
            grpc_status: Some(0),
            ..GrpcHeaders::NONE
        };
        match *head {
            head if head == opening => Some(CommonHeaderBlock::Opening),
            head if head == success => Some(CommonHeaderBlock::Success),
            _ => None,
        }
    }
}

/// A server's texts about a failure, safe to print: control characters are replaced, except for tabs and line
/// ends in the message, and each text is cut at 1 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureTexts {
    /// `grpc-message`, percent-decoded.
    pub message: Option<String>,
    /// A `content-type` other than gRPC's.
    pub content_type: Option<String>,
    /// A `grpc-encoding` other than identity and gzip.
    pub encoding: Option<String>,
}

/// The maximum length of a cached block, in bytes.
const MAX_CACHED_BLOCK_BYTES: usize = 39;

/// The reader of one connection's header blocks, with its HPACK state and a cache.
#[derive(Debug)]
#[repr(C)]
pub struct HeadReader {
    /// The cache. It is the first field, because most responses need no other field of the reader.
    memo: BlockCache<(GrpcHeaders, Option<CommonHeaderBlock>), MAX_CACHED_BLOCK_BYTES>,
    decoder: Decoder,
}

impl Default for HeadReader {
    fn default() -> HeadReader {
        HeadReader::new(MAX_HEADER_LIST_BYTES)
    }
}

impl HeadReader {
    /// Creates a reader. `max_head`: the maximum size of a block's header list in bytes (RFC 9113, section 6.5.2).
    pub fn new(max_head: u32) -> HeadReader {
        HeadReader {
            decoder: Decoder::new(DEFAULT_TABLE_BYTES, max_head),
            memo: BlockCache::default(),
        }
    }

    /// Prefetches the cache, which is sufficient for most responses.
    #[inline]
    pub fn prefetch(&self) {
        self.memo.prefetch();
    }

    /// Reads a complete header block. Failure texts are returned if it has any.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::decode`].
    #[inline]
    pub fn read(
        &mut self,
        block: &[u8],
    ) -> Result<(GrpcHeaders, Option<Box<FailureTexts>>), HpackError> {
        match self.memo.get(block) {
            Some((head, _)) => Ok((*head, None)),
            None => self.read_uncached(block),
        }
    }

    /// Returns the kind of `block`, if it is cached and common.
    #[inline(always)]
    pub fn recognise(&self, block: &[u8]) -> Option<CommonHeaderBlock> {
        self.memo.get(block)?.1
    }

    /// Reads a complete header block, and calls `f` with each of its fields.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::decode`].
    pub(super) fn read_fields(
        &mut self,
        block: &[u8],
        mut f: impl FnMut(&[u8], &[u8]),
    ) -> Result<(GrpcHeaders, Option<Box<FailureTexts>>), HpackError> {
        self.decode(block, &mut f)
    }

    #[inline(never)]
    fn read_uncached(
        &mut self,
        block: &[u8],
    ) -> Result<(GrpcHeaders, Option<Box<FailureTexts>>), HpackError> {
        self.decode(block, &mut |_, _| {})
    }

    fn decode(
        &mut self,
        block: &[u8],
        f: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(GrpcHeaders, Option<Box<FailureTexts>>), HpackError> {
        let mut reading = HeaderParser {
            head: GrpcHeaders::NONE,
            texts: None,
            rules: ResponseFieldChecks::default(),
        };
        let decoded = (self.decoder).decode(block, |field| {
            f(field.name, field.value);
            reading.parse_field(field);
        })?;
        let HeaderParser {
            mut head,
            texts,
            rules,
        } = reading;
        head.http_status = rules.status;
        if decoded.is_list_too_large {
            head.malformed = Some(HEAD_TOO_LARGE);
        }
        if decoded.has_changed_table {
            self.memo.clear();
        }
        if decoded.is_steady && texts.is_none() {
            self.memo
                .put(block, (head, CommonHeaderBlock::from_headers(&head)));
        }
        Ok((head, texts))
    }

    /// Returns the bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.decoder.heap_bytes() + self.memo.heap_bytes()
    }
}

struct HeaderParser {
    head: GrpcHeaders,
    texts: Option<Box<FailureTexts>>,
    rules: ResponseFieldChecks,
}

impl HeaderParser {
    fn parse_field(&mut self, field: HeaderField<'_>) {
        let HeaderField { name, value, .. } = field;
        if let Err(why) = self.rules.check(name, value) {
            self.head.malformed = self.head.malformed.or(Some(why));
            return;
        }
        match name {
            b"grpc-status" => {
                let status = parse_number(value).and_then(|status| u8::try_from(status).ok());
                self.head.grpc_status = Some(status.unwrap_or(u8::MAX));
            }
            b"grpc-message" if !value.is_empty() => {
                // The value is percent-encoded (gRPC over HTTP/2, "Status-Message").
                self.texts.get_or_insert_default().message =
                    Some(to_printable_lines(&percent_decode(value)));
            }
            b"content-type" if is_grpc(value) => self.head.content_type = ContentType::Grpc,
            b"content-type" => {
                self.head.content_type = ContentType::Other;
                self.texts.get_or_insert_default().content_type = Some(to_printable(value));
            }
            b"grpc-encoding" if value == b"gzip" => self.head.encoding = MessageEncoding::Gzip,
            b"grpc-encoding" if value != b"identity" => {
                self.head.encoding = MessageEncoding::Other;
                self.texts.get_or_insert_default().encoding = Some(to_printable(value));
            }
            b"content-length" => match parse_content_length(value) {
                Ok(length) => self.head.content_length = Some(length),
                Err(why) => self.head.malformed = Some(why),
            },
            _ => {}
        }
    }
}

fn is_grpc(content_type: &[u8]) -> bool {
    match content_type.strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_wire::hpack::Encoder;

    fn read(fields: &[(&str, &str)]) -> (GrpcHeaders, FailureTexts) {
        let block = Encoder::encode_plain(fields.iter().copied());
        let (head, texts) = HeadReader::default().read(&block).unwrap();
        (
            head,
            texts.map_or_else(FailureTexts::default, |texts| *texts),
        )
    }

    #[test]
    fn failure_status_includes_decoded_message() {
        let (head, texts) = read(&[
            (":status", "200"),
            ("content-type", "application/grpc+proto"),
            ("grpc-status", "14"),
            ("grpc-message", "caf%C3%A9 100%25 %zz %1b[2J"),
        ]);
        assert_eq!((head.http_status, head.grpc_status), (200, Some(14)));
        assert_eq!(
            (head.content_type, head.malformed),
            (ContentType::Grpc, None)
        );
        assert_eq!(texts.message.as_deref(), Some("café 100% %zz \u{fffd}[2J"));
    }

    #[test]
    fn grpc_content_types_are_recognised() {
        for (text, kind) in [
            ("application/grpc", ContentType::Grpc),
            ("application/grpc;charset=utf8", ContentType::Grpc),
            ("application/grpc-web", ContentType::Other),
            ("text/html", ContentType::Other),
        ] {
            assert_eq!(
                read(&[("content-type", text)]).0.content_type,
                kind,
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_header_lists_are_reported() {
        for fields in [
            &[("grpc-status", "0"), (":status", "200")][..],
            &[(":path", "/")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "20")],
            &[(":status", "2oo")],
            &[(":status", "099")],
            &[("Upper", "1")],
            &[("", "1")],
            &[("a b", "1")],
            &[("x", "a\nb")],
            &[("x", " a")],
            &[("connection", "close")],
            &[("transfer-encoding", "chunked")],
            &[("content-length", "-1")],
        ] {
            assert!(read(fields).0.malformed.is_some(), "{fields:?}");
        }
        assert_eq!(read(&[("grpc-status", "x")]).0.grpc_status, Some(255));
        assert_eq!(read(&[("grpc-status", "300")]).0.grpc_status, Some(255));
    }

    #[test]
    fn hpack_table_change_invalidates_memo() {
        let mut encoder = Encoder::default();
        let ok = [("grpc-status", "0")];
        let bad = [("grpc-status", "5")];
        let insert_ok = encoder.encode(ok);
        let index_ok = encoder.encode(ok);
        let insert_bad = encoder.encode(bad);
        let index_bad = encoder.encode(bad);
        assert_eq!(
            index_ok, index_bad,
            "index 62 means the newest entry both times"
        );
        let mut reader = HeadReader::default();
        let mut status = |block: &[u8]| reader.read(block).unwrap().0.grpc_status;
        assert_eq!(status(&insert_ok), Some(0));
        assert_eq!(status(&index_ok), Some(0));
        assert_eq!(status(&index_ok), Some(0));
        assert_eq!(status(&insert_bad), Some(5));
        assert_eq!(status(&index_bad), Some(5));
    }
}

//! The fields of an answer's header blocks that decide how a call ended.
//!
//! A block that does not change the dynamic table is a pure function of its bytes until
//! one that does. A server's blocks soon are such, and repeat: the last few are
//! remembered with their result and recognised by comparing bytes.

use plimsoll_wire::hpack::{DEFAULT_TABLE_SIZE, Decoder, Field, HpackError};
use plimsoll_wire::http2::{MAX_HEADER_LIST, field_problem};

/// Text from the network that is kept for a person, at most. Bytes.
const MAX_TEXT: usize = 1024;

/// How an answer's messages are encoded, by its content-type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    Absent,
    /// `application/grpc`, alone or with `+` or `;` and more.
    Grpc,
    Other,
}

/// How an answer's packed messages are packed, by its `grpc-encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Not at all.
    Identity,
    Gzip,
    Other,
}

/// What one header block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// `:status`; 0 if there is none, as in trailers.
    pub http_status: u16,
    /// `grpc-status`; one that is not a number from 0 to 254 is 255.
    pub grpc_status: Option<u8>,
    pub content_type: ContentType,
    pub encoding: Encoding,
    pub content_length: Option<u32>,
    /// A rule of RFC 9113, 8.2 and 8.3, that the block breaks.
    pub malformed: Option<&'static str>,
}

impl Head {
    /// What a block without any of these fields says.
    const NONE: Head = Head {
        http_status: 0,
        grpc_status: None,
        content_type: ContentType::Absent,
        encoding: Encoding::Identity,
        content_length: None,
        malformed: None,
    };
}

/// What blocks of usual answers say: those to calls that succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usual {
    /// A gRPC message follows, and nothing is said of how it is packed or of its length.
    Opening,
    /// The trailers of a call that succeeded.
    Success,
}

impl Usual {
    fn of(head: &Head) -> Option<Usual> {
        let opening = Head {
            http_status: 200,
            content_type: ContentType::Grpc,
            ..Head::NONE
        };
        let success = Head {
            grpc_status: Some(0),
            ..Head::NONE
        };
        match *head {
            head if head == opening => Some(Usual::Opening),
            head if head == success => Some(Usual::Success),
            _ => None,
        }
    }
}

/// What a server said of a failure, fit for a terminal: control characters replaced, but for
/// tabs and ends of lines in its message, and
/// cut at 1 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// `grpc-message`, percent-decoded.
    pub message: Option<String>,
    /// A `content-type` other than gRPC's.
    pub content_type: Option<String>,
    /// A `grpc-encoding` other than identity and gzip.
    pub encoding: Option<String>,
}

/// Blocks remembered.
const MEMO_BLOCKS: usize = 4;

/// The longest block remembered. Bytes.
const MEMO_BLOCK_LEN: usize = 39;

#[derive(Clone, Copy, Debug)]
struct Remembered {
    head: Head,
    usual: Option<Usual>,
    length: u8,
    block: [u8; MEMO_BLOCK_LEN],
}

#[derive(Debug)]
struct Memo {
    /// How many were remembered; the next goes to this place, modulo their number.
    count: usize,
    blocks: [Remembered; MEMO_BLOCKS],
}

impl Default for Memo {
    fn default() -> Memo {
        let empty = Remembered {
            head: Head::NONE,
            usual: None,
            length: 0,
            block: [0; MEMO_BLOCK_LEN],
        };
        Memo {
            count: 0,
            blocks: [empty; MEMO_BLOCKS],
        }
    }
}

/// One connection's answers: decoding state and memo.
#[derive(Debug)]
pub struct HeadReader {
    decoder: Decoder,
    memo: Option<Box<Memo>>,
}

impl Default for HeadReader {
    fn default() -> HeadReader {
        HeadReader {
            decoder: Decoder::new(DEFAULT_TABLE_SIZE, MAX_HEADER_LIST),
            memo: None,
        }
    }
}

impl HeadReader {
    /// Reads a whole header block. Texts come with it where it has any, on the way of
    /// failures only.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    #[inline]
    pub fn read(&mut self, block: &[u8]) -> Result<(Head, Option<Box<Texts>>), HpackError> {
        match self.remembered(block) {
            Some(remembered) => Ok((remembered.head, None)),
            None => self.read_anew(block),
        }
    }

    /// What `block` says, if it is remembered and usual.
    #[inline(always)]
    pub fn recognise(&self, block: &[u8]) -> Option<Usual> {
        self.remembered(block)?.usual
    }

    #[inline(always)]
    fn remembered(&self, block: &[u8]) -> Option<&Remembered> {
        let memo = self.memo.as_deref()?;
        let is_it = |it: &&Remembered| {
            let known = it.block.get(..it.length as usize).unwrap_or_default();
            // In a steady connection a block is a few bytes: less than a call to compare them.
            known.len() == block.len() && known.iter().eq(block)
        };
        memo.blocks.iter().take(memo.count).find(is_it)
    }

    /// [`HeadReader::read`], and shows every field to `visit`.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn read_all<F>(
        &mut self,
        block: &[u8],
        mut visit: F,
    ) -> Result<(Head, Option<Box<Texts>>), HpackError>
    where
        F: FnMut(Field<'_>),
    {
        let mut reading = Reading {
            head: Head::NONE,
            texts: None,
            regular_began: false,
        };
        let decoded = self.decoder.decode(block, |field| {
            reading.field(field);
            visit(field);
        })?;
        let Reading {
            mut head, texts, ..
        } = reading;
        if decoded.list_too_large {
            head.malformed = Some("a field list over 65536 bytes (RFC 9113, 6.5.2)");
        }
        if decoded.changed_table {
            self.memo = None;
        } else if texts.is_none() && block.len() <= MEMO_BLOCK_LEN {
            let memo = self.memo.get_or_insert_default();
            let place = &mut memo.blocks[memo.count % MEMO_BLOCKS];
            memo.count += 1;
            *place = Remembered {
                head,
                usual: Usual::of(&head),
                length: block.len() as u8,
                block: [0; MEMO_BLOCK_LEN],
            };
            place.block[..block.len()].copy_from_slice(block);
        }
        Ok((head, texts))
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.decoder.heap_bytes() + self.memo.as_ref().map_or(0, |_| size_of::<Memo>())
    }

    #[inline(never)]
    fn read_anew(&mut self, block: &[u8]) -> Result<(Head, Option<Box<Texts>>), HpackError> {
        self.read_all(block, |_| ())
    }
}

struct Reading {
    head: Head,
    texts: Option<Box<Texts>>,
    regular_began: bool,
}

impl Reading {
    fn field(&mut self, field: Field<'_>) {
        let Field { name, value, .. } = field;
        if let Err(why) = self.check(name, value) {
            self.head.malformed = self.head.malformed.or(Some(why));
            return;
        }
        match name {
            b":status" => self.head.http_status = number(value).unwrap_or(0) as u16,
            b"grpc-status" => {
                let status = number(value).and_then(|status| u8::try_from(status).ok());
                self.head.grpc_status = Some(status.unwrap_or(u8::MAX));
            }
            b"grpc-message" if !value.is_empty() => {
                self.texts.get_or_insert_default().message = Some(lines(&percent_decoded(value)));
            }
            b"content-type" if is_grpc(value) => self.head.content_type = ContentType::Grpc,
            b"content-type" => {
                self.head.content_type = ContentType::Other;
                self.texts.get_or_insert_default().content_type = Some(printable(value));
            }
            b"grpc-encoding" if value == b"gzip" => self.head.encoding = Encoding::Gzip,
            b"grpc-encoding" if value != b"identity" => {
                self.head.encoding = Encoding::Other;
                self.texts.get_or_insert_default().encoding = Some(printable(value));
            }
            b"content-length" => match number(value) {
                Some(length) => self.head.content_length = Some(length),
                None => {
                    self.head.malformed = Some("content-length is not a number (RFC 9113, 8.1.1)");
                }
            },
            _ => {}
        }
    }

    /// RFC 9113, 8.2.1 (characters), 8.2.2 (connection's fields) and 8.3 (pseudo-fields).
    fn check(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        if let Some((b':', _)) = name.split_first() {
            if self.regular_began {
                return Err("a pseudo-field after a regular one (RFC 9113, 8.3)");
            }
            if name != b":status" {
                return Err("a pseudo-field other than :status (RFC 9113, 8.3.2)");
            }
            if self.head.http_status != 0 {
                return Err(":status twice (RFC 9113, 8.3)");
            }
            if value.len() != 3 || number(value).is_none_or(|status| status < 100) {
                return Err(":status is not three digits (RFC 9113, 8.3.2)");
            }
            return Ok(());
        }
        self.regular_began = true;
        field_problem(name, value).map_or(Ok(()), Err)
    }
}

fn number(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn is_grpc(content_type: &[u8]) -> bool {
    match content_type.strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    }
}

/// gRPC over HTTP/2, "Status-Message"; what is no valid escape is kept as it is.
fn percent_decoded(value: &[u8]) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, after @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            decoded.push(high << 4 | low);
            rest = after;
        } else {
            decoded.push(byte);
        }
    }
    decoded
}

/// Bytes from the network as text that a terminal shows and does not obey.
pub(super) fn printable(bytes: &[u8]) -> String {
    cleaned(bytes, char::is_control)
}

/// [`printable`] text that may have several lines, and tabs in them. Whoever shows it in a
/// line of its own escapes them there.
fn lines(bytes: &[u8]) -> String {
    cleaned(bytes, |c| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
    })
}

fn cleaned(bytes: &[u8], is_unfit: impl Fn(char) -> bool) -> String {
    let cut = &bytes[..bytes.len().min(MAX_TEXT)];
    let mut text: String = String::from_utf8_lossy(cut)
        .chars()
        .map(|c| {
            if is_unfit(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect();
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_wire::hpack::Encoder;

    fn read(fields: &[(&str, &str)]) -> (Head, Texts) {
        let block = Encoder::encode_plain(fields.iter().copied());
        let (head, texts) = HeadReader::default().read(&block).unwrap();
        (head, texts.map_or_else(Texts::default, |texts| *texts))
    }

    #[test]
    fn a_failure_is_read_with_its_text() {
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
    fn content_types() {
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
    fn malformed_lists_are_seen() {
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
    fn the_memo_ends_with_the_table_it_was_made_under() {
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

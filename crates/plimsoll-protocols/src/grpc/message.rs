//! The length-prefixed messages in a stream's DATA (gRPC over HTTP/2, "Length-Prefixed-Message"): a flag
//! byte, four bytes of length, and the message.

use std::io::Write as _;

use flate2::write::GzEncoder;
use thiserror::Error;

use super::call::MessageCompression;

/// The length of the prefix of each message, in bytes.
pub const PREFIX_LEN: usize = 5;

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The declared length exceeds the limit.
    #[error("a message of {length} bytes, over the limit of {limit}")]
    TooLarge {
        /// The declared length, in bytes.
        length: u32,
        /// The limit, in bytes.
        limit: u32,
    },
    /// The compressed flag is set, but no encoding was negotiated.
    #[error("a message with the compressed flag, although no compression was offered")]
    Compressed,
    /// The compressed flag is neither 0 nor 1.
    #[error("a message whose flag byte is {0}, not 0 or 1")]
    BadFlag(u8),
    /// The message exceeds the limit after decompression.
    #[error("a compressed message that decompresses to more than the limit of {limit} bytes")]
    UnpacksTooLarge {
        /// The limit, in bytes.
        limit: u32,
    },
    /// The bytes are not gzip.
    #[error("a message that is declared as gzip but is not")]
    NotGzip,
    /// The bytes are not a valid message, for this reason.
    #[error("not the message that the method returns: {0}")]
    Undecodable(&'static str),
    /// The message is not the one that the plan expects; the text describes the difference.
    #[error("not the message that the plan expects: {0}")]
    Mismatch(Box<str>),
}

/// Appends a message with its prefix, compressed if `compression` is set.
#[inline]
pub(super) fn write_message(
    out: &mut Vec<u8>,
    compression: Option<MessageCompression>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LEN]);
    write(out);
    if compression.is_some() {
        out[start] = 1;
        compress_tail(out, start + PREFIX_LEN);
    }
    // Callers ensure that messages are smaller than four gigabytes.
    let length = (out.len() - start - PREFIX_LEN) as u32;
    out[start + 1..start + PREFIX_LEN].copy_from_slice(&length.to_be_bytes());
}

/// Compresses the bytes of `out` from offset `from` on with gzip (RFC 1952).
fn compress_tail(out: &mut Vec<u8>, from: usize) {
    let plain = out.split_off(from);
    let mut encoder = GzEncoder::new(&mut *out, flate2::Compression::default());
    // Writing to a vector can't fail.
    let _ = encoder
        .write_all(&plain)
        .and_then(|()| encoder.try_finish());
}

/// The receiver of messages that a [`MessageReader`] reads. By default it ignores their contents and rejects
/// compressed messages.
pub(super) trait MessageSink {
    /// Handles the start of a compressed message.
    fn on_compressed_start(&mut self) -> Result<(), MessageError> {
        Err(MessageError::Compressed)
    }
    /// Handles a piece of a message.
    #[inline(always)]
    fn on_piece(&mut self, _bytes: &[u8]) -> Result<(), MessageError> {
        Ok(())
    }
    /// Handles the end of a message.
    #[inline(always)]
    fn on_end(&mut self) -> Result<(), MessageError> {
        Ok(())
    }
}

/// A sink that ignores messages; the reader counts them.
struct IgnoringSink;

impl MessageSink for IgnoringSink {}

/// A reader of one stream's messages in DATA frames, however the messages are split.
#[derive(Clone, Copy, Debug)]
pub struct MessageReader {
    /// The remaining bytes of the current message.
    remaining: u32,
    prefix: [u8; PREFIX_LEN],
    prefix_len: u8,
    /// The number of complete messages, up to 65,535.
    complete: u16,
}

impl MessageReader {
    /// The state before the first message.
    pub const NEW: MessageReader = MessageReader {
        remaining: 0,
        prefix: [0; PREFIX_LEN],
        prefix_len: 0,
        complete: 0,
    };

    /// Reads the next bytes of the stream. Messages over `limit` bytes are rejected as soon as their length
    /// is known.
    ///
    /// # Errors
    /// After an error the stream can't be read any further.
    #[inline]
    pub fn read(&mut self, bytes: &[u8], limit: u32) -> Result<(), MessageError> {
        // Most frames hold exactly one message.
        if let [0, a, b, c, d, message @ ..] = bytes
            && self.prefix_len == 0
            && message.len() == u32::from_be_bytes([*a, *b, *c, *d]) as usize
            && message.len() <= limit as usize
        {
            self.complete = self.complete.saturating_add(1);
            return Ok(());
        }
        self.read_slow_path(bytes, limit)
    }

    #[inline(never)]
    fn read_slow_path(&mut self, bytes: &[u8], limit: u32) -> Result<(), MessageError> {
        self.read_into(&mut IgnoringSink, bytes, limit)
    }

    /// Reads like [`MessageReader::read`], and passes the messages to `sink`.
    pub(super) fn read_into(
        &mut self,
        sink: &mut impl MessageSink,
        mut bytes: &[u8],
        limit: u32,
    ) -> Result<(), MessageError> {
        while !bytes.is_empty() {
            if (self.prefix_len as usize) < PREFIX_LEN {
                let have = self.prefix_len as usize;
                let take = bytes.len().min(PREFIX_LEN - have);
                let (taken, rest) = bytes.split_at(take);
                self.prefix[have..have + take].copy_from_slice(taken);
                self.prefix_len += take as u8;
                bytes = rest;
                if (self.prefix_len as usize) < PREFIX_LEN {
                    return Ok(());
                }
                let [flag, a, b, c, d] = self.prefix;
                match flag {
                    0 => {}
                    1 => sink.on_compressed_start()?,
                    other => return Err(MessageError::BadFlag(other)),
                }
                let length = u32::from_be_bytes([a, b, c, d]);
                if length > limit {
                    return Err(MessageError::TooLarge { length, limit });
                }
                self.remaining = length;
            }
            let take = bytes.len().min(self.remaining as usize);
            sink.on_piece(&bytes[..take])?;
            bytes = &bytes[take..];
            self.remaining -= take as u32;
            if self.remaining == 0 {
                sink.on_end()?;
                self.prefix_len = 0;
                self.complete = self.complete.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Returns the number of complete messages, up to 65,535.
    #[inline]
    pub fn complete_message_count(&self) -> u16 {
        self.complete
    }

    /// Returns the number of complete messages since the last call of this function. One frame never completes as many
    /// as 65,535.
    #[inline]
    pub fn take_complete_message_count(&mut self) -> u16 {
        std::mem::take(&mut self.complete)
    }

    /// Returns true if a message has begun but not ended.
    #[inline]
    pub fn is_mid_message(&self) -> bool {
        self.prefix_len > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_parse_in_any_split() {
        let stream = [
            &[0, 0, 0, 0, 3][..],
            b"abc",
            &[0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 1],
            b"x",
        ];
        let stream = stream.concat();
        for i in 0..stream.len() {
            for j in i..stream.len() {
                let mut reader = MessageReader::NEW;
                reader.read(&stream[..i], 3).unwrap();
                reader.read(&stream[i..j], 3).unwrap();
                reader.read(&stream[j..], 3).unwrap();
                assert_eq!(
                    (reader.complete_message_count(), reader.is_mid_message()),
                    (3, false),
                    "{i} {j}"
                );
            }
        }
        let mut reader = MessageReader::NEW;
        reader.read(&stream[..stream.len() - 1], 3).unwrap();
        assert_eq!(
            (reader.complete_message_count(), reader.is_mid_message()),
            (2, true)
        );
    }

    #[test]
    fn invalid_message_prefix_is_rejected() {
        let read = |bytes: &[u8]| {
            let mut reader = MessageReader::NEW;
            reader.read(bytes, 4)
        };
        assert_eq!(
            read(&[0, 0, 0, 0, 5]),
            Err(MessageError::TooLarge {
                length: 5,
                limit: 4
            })
        );
        assert_eq!(read(&[1, 0, 0, 0, 1]), Err(MessageError::Compressed));
        assert_eq!(read(&[2, 0, 0, 0, 1]), Err(MessageError::BadFlag(2)));
        assert_eq!(read(&[0, 0, 0, 0]), Ok(()));
    }
}

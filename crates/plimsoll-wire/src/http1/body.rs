//! Reads the body of a message (RFC 9112 §6 and §7.1).

use super::{BodyFraming, Http1Error, MAX_HEAD_BYTES};

/// Maximum length of a chunk-size line in bytes.
const MAX_LINE_BYTES: usize = 4096;

/// Maximum total length of all chunk extensions of a body in bytes; their content is ignored.
const MAX_EXTENSION_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    /// Remaining bytes of a body of known length.
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    /// The line break after a chunk's data.
    ChunkEnd,
    Trailers,
    Complete,
}

/// A reader that removes the framing of a body. It stores only an incomplete line.
#[derive(Debug)]
pub struct BodyReader {
    state: BodyState,
    received: u64,
    max: u64,
    line: Vec<u8>,
    extensions: usize,
    /// Number of bytes of trailers received so far.
    trailers: usize,
    max_trailers: usize,
}

impl BodyReader {
    /// Creates a reader of a body of at most `max` bytes.
    ///
    /// # Errors
    /// Returns an error if the declared length of the body exceeds `max`.
    pub fn new(framing: BodyFraming, max: u64) -> Result<BodyReader, Http1Error> {
        let mut body = BodyReader::new_complete();
        body.restart(framing, max)?;
        Ok(body)
    }

    /// Creates a reader in the state after a complete body.
    pub fn new_complete() -> BodyReader {
        BodyReader {
            state: BodyState::Complete,
            received: 0,
            max: 0,
            line: Vec::new(),
            extensions: 0,
            trailers: 0,
            max_trailers: MAX_HEAD_BYTES,
        }
    }

    /// Accepts trailers of up to `max` bytes instead of 64 KiB.
    #[must_use]
    pub fn with_max_trailer_bytes(mut self, max: usize) -> BodyReader {
        self.max_trailers = max;
        self
    }

    /// Begins the next body and reuses the allocations.
    ///
    /// # Errors
    /// Returns an error if the declared length of the body exceeds `max`.
    #[inline]
    pub fn restart(&mut self, framing: BodyFraming, max: u64) -> Result<(), Http1Error> {
        self.state = match framing {
            BodyFraming::Length(0) => BodyState::Complete,
            BodyFraming::Length(length) if length > max => {
                return Err(Http1Error::BodyTooLong(max));
            }
            BodyFraming::Length(length) => BodyState::Length(length),
            BodyFraming::Chunked => BodyState::ChunkSize,
            BodyFraming::UntilClose => BodyState::UntilClose,
        };
        self.line.clear();
        (self.received, self.max, self.extensions, self.trailers) = (0, max, 0, 0);
        Ok(())
    }

    /// Consumes a prefix of `bytes`, at most to the end of the body, and passes its content without framing to `sink`.
    /// Returns the prefix's length, which is the length of `bytes` unless the body is complete.
    ///
    /// # Errors
    /// Returns an error if the body is malformed or too long.
    #[inline]
    pub fn consume(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Http1Error> {
        let mut rest = bytes;
        while !rest.is_empty() && self.state != BodyState::Complete {
            let most = match self.state {
                BodyState::Length(left) | BodyState::ChunkData(left) => left,
                BodyState::UntilClose => u64::MAX,
                _ => {
                    rest = &rest[self.consume_line(rest)?..];
                    continue;
                }
            };
            let length = rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
            let (data, after) = rest.split_at(length);
            rest = after;
            self.received += length as u64;
            let left = most - length as u64;
            self.state = match self.state {
                BodyState::Length(_) if left == 0 => BodyState::Complete,
                BodyState::Length(_) => BodyState::Length(left),
                BodyState::ChunkData(_) if left == 0 => BodyState::ChunkEnd,
                BodyState::ChunkData(_) => BodyState::ChunkData(left),
                _ if self.received > self.max => return Err(Http1Error::BodyTooLong(self.max)),
                state => state,
            };
            sink(data);
        }
        Ok(bytes.len() - rest.len())
    }

    /// Consumes the bytes of `rest` that belong to the current framing line; returns their number.
    fn consume_line(&mut self, rest: &[u8]) -> Result<usize, Http1Error> {
        let end = rest.iter().position(|b| *b == b'\n');
        let taken = end.map_or(rest.len(), |end| end + 1);
        // Invalid lines are rejected before their end, which may never arrive.
        let before = self.line.len();
        let begin = self.line.iter().chain(&rest[..taken]);
        if self.state == BodyState::ChunkEnd && !begin.zip(b"\r\n").all(|(a, b)| a == b) {
            return Err(Http1Error::Chunk);
        }
        if self.state == BodyState::Trailers {
            // The final line break does not count towards the limit.
            if self.trailers + before + taken > self.max_trailers + 2 {
                return Err(Http1Error::TrailersTooLong(self.max_trailers));
            }
        } else if before + taken > MAX_LINE_BYTES {
            return Err(self.malformed_error());
        }
        self.line.extend_from_slice(&rest[..taken]);
        if end.is_none() {
            return Ok(taken);
        }
        let mut line = std::mem::take(&mut self.line);
        let Some(text) = line.strip_suffix(b"\r\n").filter(|l| !l.contains(&b'\r')) else {
            return Err(self.malformed_error());
        };
        self.state = match self.state {
            BodyState::Trailers => self.check_trailer(text)?,
            BodyState::ChunkEnd => BodyState::ChunkSize,
            _ => self.parse_chunk_size(text)?,
        };
        // The allocation is kept for the next line.
        line.clear();
        self.line = line;
        Ok(taken)
    }

    fn malformed_error(&self) -> Http1Error {
        match self.state {
            BodyState::Trailers => Http1Error::Trailer,
            _ => Http1Error::Chunk,
        }
    }

    fn parse_chunk_size(&mut self, line: &[u8]) -> Result<BodyState, Http1Error> {
        let extension = line.iter().position(|b| *b == b';');
        let (digits, extension) = line.split_at(extension.unwrap_or(line.len()));
        self.extensions += extension.len();
        let digits = std::str::from_utf8(digits.trim_ascii_end()).unwrap_or_default();
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let size = u64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_number && self.extensions <= MAX_EXTENSION_BYTES)
            .ok_or(Http1Error::Chunk)?;
        match size {
            0 => Ok(BodyState::Trailers),
            _ if size > self.max - self.received => Err(Http1Error::BodyTooLong(self.max)),
            _ => Ok(BodyState::ChunkData(size)),
        }
    }

    /// Checks a trailer field (RFC 9112 §7.1.2); its value is ignored.
    fn check_trailer(&mut self, line: &[u8]) -> Result<BodyState, Http1Error> {
        if line.is_empty() {
            return Ok(BodyState::Complete);
        }
        self.trailers += line.len();
        if self.trailers > self.max_trailers {
            return Err(Http1Error::TrailersTooLong(self.max_trailers));
        }
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        let is_field = name.len() < line.len() && !name.is_empty();
        // A blank in the name means that the line is folded, or that whitespace precedes the colon.
        if !is_field || !name.iter().all(u8::is_ascii_graphic) {
            return Err(Http1Error::Trailer);
        }
        Ok(BodyState::Trailers)
    }

    /// Returns whether the body is complete.
    #[inline]
    pub fn is_complete(&self) -> bool {
        self.state == BodyState::Complete
    }

    /// Returns the number of received bytes of the body, without framing.
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Returns how many announced bytes of the current body or chunk have not arrived yet.
    pub fn awaited_bytes(&self) -> u64 {
        match self.state {
            BodyState::Length(left) | BodyState::ChunkData(left) => left,
            _ => 0,
        }
    }

    /// Processes an orderly end of stream.
    ///
    /// # Errors
    /// Returns an error if the body is incomplete.
    pub fn on_end_of_stream(&self) -> Result<(), Http1Error> {
        let seen = self.received;
        match self.state {
            BodyState::Complete | BodyState::UntilClose => Ok(()),
            BodyState::Length(left) => Err(Http1Error::Short {
                seen,
                promised: seen + left,
            }),
            _ => Err(Http1Error::EndedInChunks { seen }),
        }
    }
}

//! The body of a message as it arrives (RFC 9112, 6 and 7.1).

use super::{Framing, Http1Error, MAX_HEAD};

/// The longest line of a chunk's size. Bytes.
const MAX_LINE: usize = 4096;

/// All chunk extensions of a body together. Bytes. What they say is not read.
const MAX_EXTENSIONS: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes are still to come.
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    /// The line end behind a chunk's data.
    ChunkEnd,
    Trailers,
    Over,
}

/// Takes a body apart. It keeps nothing of it but a line that came in part.
#[derive(Debug)]
pub struct Body {
    state: State,
    seen: u64,
    max: u64,
    line: Vec<u8>,
    extensions: usize,
    /// Bytes of the trailers so far.
    trailers: usize,
    max_trailers: usize,
}

impl Body {
    /// `max`: bytes of the body, at most.
    ///
    /// # Errors
    /// Its length is over `max`.
    pub fn new(framing: Framing, max: u64) -> Result<Body, Http1Error> {
        let mut body = Body::over();
        body.restart(framing, max)?;
        Ok(body)
    }

    /// One that is over, to begin with.
    pub fn over() -> Body {
        Body {
            state: State::Over,
            seen: 0,
            max: 0,
            line: Vec::new(),
            extensions: 0,
            trailers: 0,
            max_trailers: MAX_HEAD,
        }
    }

    /// Takes trailers of up to `max` bytes in place of 64 KiB.
    #[must_use]
    pub fn with_max_trailers(mut self, max: usize) -> Body {
        self.max_trailers = max;
        self
    }

    /// Begins the next body, in the room of this one.
    ///
    /// # Errors
    /// Its length is over `max`.
    #[inline]
    pub fn restart(&mut self, framing: Framing, max: u64) -> Result<(), Http1Error> {
        self.state = match framing {
            Framing::Length(0) => State::Over,
            Framing::Length(length) if length > max => return Err(Http1Error::BodyTooLong(max)),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        self.line.clear();
        (self.seen, self.max, self.extensions, self.trailers) = (0, max, 0, 0);
        Ok(())
    }

    /// Takes a prefix of `bytes`, at most to the end of the body, hands what is in it without
    /// framing to `sink`, and returns the prefix's length: that of `bytes`, unless the body is
    /// over.
    ///
    /// # Errors
    /// The body is malformed or too long.
    #[inline]
    pub fn take(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Http1Error> {
        let mut rest = bytes;
        while !rest.is_empty() && self.state != State::Over {
            let most = match self.state {
                State::Length(left) | State::ChunkData(left) => left,
                State::UntilClose => u64::MAX,
                _ => {
                    rest = &rest[self.take_line(rest)?..];
                    continue;
                }
            };
            let length = rest.len().min(usize::try_from(most).unwrap_or(usize::MAX));
            let (data, after) = rest.split_at(length);
            rest = after;
            self.seen += length as u64;
            let left = most - length as u64;
            self.state = match self.state {
                State::Length(_) if left == 0 => State::Over,
                State::Length(_) => State::Length(left),
                State::ChunkData(_) if left == 0 => State::ChunkEnd,
                State::ChunkData(_) => State::ChunkData(left),
                _ if self.seen > self.max => return Err(Http1Error::BodyTooLong(self.max)),
                state => state,
            };
            sink(data);
        }
        Ok(bytes.len() - rest.len())
    }

    /// Takes what of `rest` belongs to a line of the framing.
    fn take_line(&mut self, rest: &[u8]) -> Result<usize, Http1Error> {
        let end = rest.iter().position(|b| *b == b'\n');
        let taken = end.map_or(rest.len(), |end| end + 1);
        // Refused before its end, which need never come.
        let before = self.line.len();
        let begin = self.line.iter().chain(&rest[..taken]);
        if self.state == State::ChunkEnd && !begin.zip(b"\r\n").all(|(a, b)| a == b) {
            return Err(Http1Error::Chunk);
        }
        if self.state == State::Trailers {
            // A line end is no part of them.
            if self.trailers + before + taken > self.max_trailers + 2 {
                return Err(Http1Error::TrailersTooLong(self.max_trailers));
            }
        } else if before + taken > MAX_LINE {
            return Err(self.malformed());
        }
        self.line.extend_from_slice(&rest[..taken]);
        if end.is_none() {
            return Ok(taken);
        }
        let mut line = std::mem::take(&mut self.line);
        let Some(text) = line.strip_suffix(b"\r\n").filter(|l| !l.contains(&b'\r')) else {
            return Err(self.malformed());
        };
        self.state = match self.state {
            State::Trailers => self.trailer(text)?,
            State::ChunkEnd => State::ChunkSize,
            _ => self.chunk_size(text)?,
        };
        // Its room is for the next line.
        line.clear();
        self.line = line;
        Ok(taken)
    }

    fn malformed(&self) -> Http1Error {
        match self.state {
            State::Trailers => Http1Error::Trailer,
            _ => Http1Error::Chunk,
        }
    }

    fn chunk_size(&mut self, line: &[u8]) -> Result<State, Http1Error> {
        let extension = line.iter().position(|b| *b == b';');
        let (digits, extension) = line.split_at(extension.unwrap_or(line.len()));
        self.extensions += extension.len();
        let digits = std::str::from_utf8(digits.trim_ascii_end()).unwrap_or_default();
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let size = u64::from_str_radix(digits, 16)
            .ok()
            .filter(|_| is_number && self.extensions <= MAX_EXTENSIONS)
            .ok_or(Http1Error::Chunk)?;
        match size {
            0 => Ok(State::Trailers),
            _ if size > self.max - self.seen => Err(Http1Error::BodyTooLong(self.max)),
            _ => Ok(State::ChunkData(size)),
        }
    }

    /// RFC 9112, 7.1.2. What trailers say is not read.
    fn trailer(&mut self, line: &[u8]) -> Result<State, Http1Error> {
        if line.is_empty() {
            return Ok(State::Over);
        }
        self.trailers += line.len();
        if self.trailers > self.max_trailers {
            return Err(Http1Error::TrailersTooLong(self.max_trailers));
        }
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        let is_field = name.len() < line.len() && !name.is_empty();
        // A blank among them is a folded line, or one before the colon.
        if !is_field || !name.iter().all(u8::is_ascii_graphic) {
            return Err(Http1Error::Trailer);
        }
        Ok(State::Trailers)
    }

    /// Nothing of it is still to come.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Bytes of the body that have come, without framing.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Bytes of the body that the peer has promised and not sent.
    pub fn still_to_come(&self) -> u64 {
        match self.state {
            State::Length(left) | State::ChunkData(left) => left,
            _ => 0,
        }
    }

    /// The peer has closed its side in good order.
    ///
    /// # Errors
    /// The body is cut off there.
    pub fn end(&self) -> Result<(), Http1Error> {
        let seen = self.seen;
        match self.state {
            State::Over | State::UntilClose => Ok(()),
            State::Length(left) => Err(Http1Error::Short {
                seen,
                promised: seen + left,
            }),
            _ => Err(Http1Error::EndedInChunks { seen }),
        }
    }
}

//! An HTTP/1.1 answer as it arrives, in any split (RFC 9112 §4, §6, §7.1).
//!
//! The body is counted and thrown away. A partial head is all that is ever kept, and it
//! is bounded. [`super::driver`] and the fuzz target call this.

/// The largest head that is taken, and the largest trailers.
pub const MOST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;
/// The longest line of a chunk's size, or of a trailer.
const MOST_LINE: usize = 4096;

/// What can be wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("not HTTP/1.1: {0}")]
    Head(httparse::Error),
    #[error("the answer's head is longer than {MOST_HEAD} bytes")]
    HeadTooLong,
    #[error("the answer's trailers are longer than {MOST_HEAD} bytes")]
    TrailersTooLong,
    #[error("{0:?} is no Content-Length")]
    ContentLength(String),
    #[error("two different lengths: {0} and {1}")]
    TwoLengths(u64, u64),
    #[error("101, and no other protocol was asked for (RFC 9110, 15.2.2)")]
    Switching,
    #[error("transfer coding {0:?} is not known; chunked is")]
    TransferCoding(String),
    #[error("both Content-Length and Transfer-Encoding, which servers must not send")]
    LengthAndCoding,
    #[error("a malformed chunk of the body")]
    Chunk,
    #[error("the body ended after {seen} of {promised} bytes")]
    Short { seen: u64, promised: u64 },
    #[error("the connection ended within the answer's head")]
    EndedInHead,
    #[error("the connection ended within a chunked body, after {seen} bytes")]
    EndedInChunks { seen: u64 },
}

/// The head of a whole answer, and the length that its body turned out to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub reason: String,
    /// Bytes of the body, without framing.
    pub body: u64,
    /// The server closes the connection behind this answer.
    pub closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked(Chunk),
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    Size,
    Data(u64),
    /// The line end behind a chunk's data.
    DataEnd,
    /// So many bytes of them have come.
    Trailers(usize),
}

/// One answer after another, from the bytes of one connection.
#[derive(Debug, Default)]
pub struct Answers {
    /// Of the head, or of a line within a chunked body, what arrived in part.
    partial: Vec<u8>,
    current: Option<(Answer, Framing)>,
}

impl Answers {
    /// Take in a prefix of `bytes`, at most to the end of an answer, which is returned.
    /// The number of bytes taken comes with it.
    ///
    /// # Errors
    /// What is wrong with the answer. The connection is of no more use.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Answer>), AnswerError> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let Some((answer, framing)) = &mut self.current else {
                if rest.is_empty() {
                    return Ok((at, None));
                }
                at += self.take_head(rest)?;
                continue;
            };
            let taken = match framing {
                Framing::Length(left) => {
                    let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= n as u64;
                    answer.body += n as u64;
                    if *left == 0 {
                        return Ok((at + n, self.finished()));
                    }
                    n
                }
                Framing::UntilClose => {
                    answer.body += rest.len() as u64;
                    rest.len()
                }
                Framing::Chunked(Chunk::Data(left)) => {
                    let n = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= n as u64;
                    answer.body += n as u64;
                    if *left == 0 {
                        *framing = Framing::Chunked(Chunk::DataEnd);
                    }
                    n
                }
                // Anything else is no line, and its end need never come.
                Framing::Chunked(Chunk::DataEnd) if !is_line_end(&self.partial, rest) => {
                    return Err(AnswerError::Chunk);
                }
                Framing::Chunked(chunk) => {
                    let (n, line) = take_line(&mut self.partial, rest)?;
                    let Some(line) = line else {
                        return Ok((at + n, None));
                    };
                    let (next, done) = next_chunk(*chunk, &line)?;
                    *chunk = next;
                    if done {
                        return Ok((at + n, self.finished()));
                    }
                    n
                }
            };
            at += taken;
            if at == bytes.len() {
                return Ok((at, None));
            }
        }
    }

    /// The peer closed its side in good order: the answer that ends there, if one does.
    ///
    /// # Errors
    /// Where an answer is cut off.
    pub fn end(&mut self) -> Result<Option<Answer>, AnswerError> {
        match &self.current {
            None if self.partial.is_empty() => Ok(None),
            None => Err(AnswerError::EndedInHead),
            Some((_, Framing::UntilClose)) => Ok(self.finished()),
            Some((answer, Framing::Length(left))) => Err(AnswerError::Short {
                seen: answer.body,
                promised: answer.body + left,
            }),
            Some((answer, Framing::Chunked(_))) => {
                Err(AnswerError::EndedInChunks { seen: answer.body })
            }
        }
    }

    /// Bytes of the body that the peer has promised and not sent.
    pub fn still_to_come(&self) -> u64 {
        match self.current {
            Some((_, Framing::Length(left) | Framing::Chunked(Chunk::Data(left)))) => left,
            _ => 0,
        }
    }

    fn finished(&mut self) -> Option<Answer> {
        self.current.take().map(|(answer, _)| answer)
    }

    /// The number of bytes of `rest` that belong to the head, or all of them.
    fn take_head(&mut self, rest: &[u8]) -> Result<usize, AnswerError> {
        let before = self.partial.len();
        let joined;
        let bytes = if before == 0 {
            rest
        } else {
            let most = (MOST_HEAD + 1).saturating_sub(before).min(rest.len());
            self.partial.extend_from_slice(&rest[..most]);
            joined = std::mem::take(&mut self.partial);
            joined.as_slice()
        };
        match read_head(bytes)? {
            Some((length, head)) if length <= MOST_HEAD => {
                // An informational answer (1xx) comes before the one that counts.
                if let Some((answer, framing)) = head {
                    self.current = Some((answer, framing));
                }
                Ok(length - before)
            }
            None if bytes.len() <= MOST_HEAD => {
                self.partial = bytes.to_vec();
                Ok(rest.len())
            }
            _ => Err(AnswerError::HeadTooLong),
        }
    }
}

/// The head at the beginning of `bytes`, with its length; `None` until it is whole. No
/// answer: an informational one.
#[expect(
    clippy::type_complexity,
    reason = "taken apart where it is called, once"
)]
fn read_head(bytes: &[u8]) -> Result<Option<(usize, Option<(Answer, Framing)>)>, AnswerError> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes).map_err(AnswerError::Head)? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(length) => length,
    };
    let status = response.code.unwrap_or(0);
    if status == 101 {
        return Err(AnswerError::Switching);
    }
    if (100..200).contains(&status) {
        return Ok(Some((length, None)));
    }
    // HTTP/1.0 closes unless it says otherwise (RFC 9112 §9.3).
    let mut closes = response.version == Some(0);
    let mut promised: Option<u64> = None;
    let mut chunked = false;
    for header in response.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let typed = String::from_utf8_lossy(value).into_owned();
            if typed.is_empty() || !typed.bytes().all(|b| b.is_ascii_digit()) {
                return Err(AnswerError::ContentLength(typed));
            }
            let bytes: u64 = typed
                .parse()
                .map_err(|_| AnswerError::ContentLength(typed))?;
            match promised.replace(bytes) {
                Some(other) if other != bytes => return Err(AnswerError::TwoLengths(other, bytes)),
                _ => {}
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                let coding = String::from_utf8_lossy(value).into_owned();
                return Err(AnswerError::TransferCoding(coding));
            }
            chunked = true;
        } else if header.name.eq_ignore_ascii_case("connection") {
            for option in value.split(|b| *b == b',') {
                if option.trim_ascii().eq_ignore_ascii_case(b"close") {
                    closes = true;
                } else if option.trim_ascii().eq_ignore_ascii_case(b"keep-alive") {
                    closes = false;
                }
            }
        }
    }
    let framing = match (status, promised, chunked) {
        (204 | 304, ..) => Framing::Length(0),
        (_, Some(_), true) => return Err(AnswerError::LengthAndCoding),
        (_, None, true) => Framing::Chunked(Chunk::Size),
        (_, Some(bytes), false) => Framing::Length(bytes),
        (_, None, false) => Framing::UntilClose,
    };
    let answer = Answer {
        status,
        reason: response.reason.unwrap_or_default().to_owned(),
        body: 0,
        closes: closes || framing == Framing::UntilClose,
    };
    Ok(Some((length, Some((answer, framing)))))
}

/// A line and how many bytes of `rest` it took; what came in part is kept in `partial`.
fn take_line(partial: &mut Vec<u8>, rest: &[u8]) -> Result<(usize, Option<Vec<u8>>), AnswerError> {
    let end = rest.iter().position(|b| *b == b'\n');
    let taken = end.map_or(rest.len(), |end| end + 1);
    if partial.len() + taken > MOST_LINE {
        return Err(AnswerError::Chunk);
    }
    partial.extend_from_slice(&rest[..taken]);
    if end.is_none() {
        return Ok((taken, None));
    }
    let mut line = std::mem::take(partial);
    line.pop();
    if line.pop() != Some(b'\r') {
        return Err(AnswerError::Chunk);
    }
    Ok((taken, Some(line)))
}

/// Whether the two pieces together begin with a line end, as far as they go.
fn is_line_end(begin: &[u8], rest: &[u8]) -> bool {
    begin.iter().chain(rest).zip(b"\r\n").all(|(a, b)| a == b)
}

/// What follows a line of a chunked body; true: the body is over.
fn next_chunk(at: Chunk, line: &[u8]) -> Result<(Chunk, bool), AnswerError> {
    match at {
        Chunk::Size => {
            // An extension may follow behind a semicolon.
            let digits = line.split(|b| *b == b';').next().unwrap_or_default();
            let digits = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(AnswerError::Chunk);
            }
            match u64::from_str_radix(digits, 16) {
                Ok(0) => Ok((Chunk::Trailers(0), false)),
                Ok(size) => Ok((Chunk::Data(size), false)),
                Err(_) => Err(AnswerError::Chunk),
            }
        }
        Chunk::DataEnd if line.is_empty() => Ok((Chunk::Size, false)),
        Chunk::DataEnd | Chunk::Data(_) => Err(AnswerError::Chunk),
        Chunk::Trailers(before) => match before + line.len() {
            bytes if bytes > MOST_HEAD => Err(AnswerError::TrailersTooLong),
            bytes => Ok((Chunk::Trailers(bytes), line.is_empty())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_that_never_end_are_an_error_by_name() {
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n".to_vec();
        bytes.extend(b"x-more: and more\r\n".repeat(5_000));
        for step in [1, 1_000, bytes.len()] {
            assert_eq!(
                all(&bytes, step),
                (vec![], Err(AnswerError::TrailersTooLong))
            );
        }
    }

    /// Every answer in `bytes`, given in pieces of `step` bytes, and how it ended.
    fn all(bytes: &[u8], step: usize) -> (Vec<Answer>, Result<Option<Answer>, AnswerError>) {
        let mut answers = Answers::default();
        let mut found = Vec::new();
        for mut piece in bytes.chunks(step) {
            while !piece.is_empty() {
                match answers.take(piece) {
                    Ok((taken, answer)) => {
                        found.extend(answer);
                        piece = &piece[taken..];
                    }
                    Err(e) => return (found, Err(e)),
                }
            }
        }
        (found, answers.end())
    }

    fn answer(status: u16, reason: &str, body: u64, closes: bool) -> Answer {
        Answer {
            status,
            reason: reason.into(),
            body,
            closes,
        }
    }

    #[test]
    fn answers_are_found_however_they_are_split() {
        let bytes: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n\
            HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n\
            HTTP/1.1 204 Nothing\r\n\r\n\
            HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: foo, Close\r\n\r\n\
            HTTP/1.0 404 Not Found\r\n\r\nto the end";
        for step in 1..=bytes.len() {
            let (found, end) = all(bytes, step);
            assert_eq!(
                found,
                [
                    answer(200, "OK", 5, false),
                    answer(200, "OK", 13, false),
                    answer(204, "Nothing", 0, false),
                    answer(200, "OK", 0, true),
                ],
                "in pieces of {step}"
            );
            assert_eq!(end, Ok(Some(answer(404, "Not Found", 10, true))));
        }
    }

    #[test]
    fn what_is_cut_off_or_contradicts_itself_is_an_error() {
        for (bytes, error) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
                AnswerError::Short {
                    seen: 4,
                    promised: 5,
                },
            ),
            ("HTTP/1.1 200 OK\r\nConte", AnswerError::EndedInHead),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
                AnswerError::EndedInChunks { seen: 2 },
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
                AnswerError::Chunk,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
                AnswerError::Chunk,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
                AnswerError::Chunk,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                AnswerError::TransferCoding("gzip".into()),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
                AnswerError::TwoLengths(5, 6),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
                AnswerError::ContentLength("+5".into()),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                AnswerError::LengthAndCoding,
            ),
            (
                "SSH-2.0-OpenSSH\r\n",
                AnswerError::Head(httparse::Error::Version),
            ),
        ] {
            for step in [1, 7, 1000] {
                let (found, end) = all(bytes.as_bytes(), step);
                assert_eq!((found.len(), end), (0, Err(error.clone())), "{bytes}");
            }
        }
    }

    #[test]
    fn a_chunk_with_more_data_than_it_says_is_refused_before_any_line_ends() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello";
        for more in [&b"w"[..], b"world", b"\rw", b"\n"] {
            let bytes = [&bytes[..], more].concat();
            for step in [1, bytes.len()] {
                assert_eq!(all(&bytes, step), (vec![], Err(AnswerError::Chunk)));
            }
        }
    }

    #[test]
    fn other_protocols_that_nobody_asked_for_are_refused() {
        let bytes = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
        for step in [1, bytes.len()] {
            assert_eq!(all(bytes, step), (vec![], Err(AnswerError::Switching)));
        }
    }

    #[test]
    fn a_head_without_end_is_refused() {
        let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
        while bytes.len() <= MOST_HEAD {
            bytes.extend_from_slice(b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy");
            bytes.resize(bytes.len() + 1000, b'y');
            bytes.extend_from_slice(b"\r\n");
        }
        for step in [1000, 70_000] {
            assert_eq!(all(&bytes, step).1, Err(AnswerError::HeadTooLong));
        }
        let line = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let endless = [line.as_slice(), &vec![b'1'; MOST_LINE + 1]].concat();
        assert_eq!(all(&endless, 100).1, Err(AnswerError::Chunk));
    }
}

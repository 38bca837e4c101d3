//! HTTP/1.1 as a client of a small API needs it (RFC 9112): one request at a time, an
//! answer with a head and a body, the connection kept.

use std::fmt::Write;

const MOST_HEAD: usize = 32 * 1024;
const MOST_BODY: usize = 1 << 20;
const MOST_HEADERS: usize = 64;

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// The server closes the connection after this answer.
    pub closes: bool,
}

/// What an answer can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnAnswer(pub String);

/// A POST without a body.
pub fn put_post(out: &mut Vec<u8>, host: &str, path: &str) {
    let mut head = String::with_capacity(96 + path.len());
    // Writing to a string does not fail.
    let _ = write!(
        head,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nAccept: application/json\r\n\r\n"
    );
    out.extend_from_slice(head.as_bytes());
}

/// Gathers an answer. Keeps nothing between answers.
#[derive(Debug, Default)]
pub struct AnswerReader {
    gathered: Vec<u8>,
}

impl AnswerReader {
    /// Takes bytes; the answer, once it is whole.
    ///
    /// # Errors
    /// What is not an HTTP/1.1 answer of known length.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<Answer>, NotAnAnswer> {
        self.gathered.extend_from_slice(bytes);
        let answer = parse(&self.gathered)?;
        if answer.is_some() {
            self.gathered = Vec::new();
        }
        Ok(answer)
    }

    /// Whether an answer has begun to arrive.
    pub fn has_begun(&self) -> bool {
        !self.gathered.is_empty()
    }

    pub fn clear(&mut self) {
        self.gathered = Vec::new();
    }
}

fn parse(bytes: &[u8]) -> Result<Option<Answer>, NotAnAnswer> {
    let Some(head) = Head::parse(bytes)? else {
        return Ok(None);
    };
    let body = &bytes[head.size..];
    let body = if head.chunked {
        match unchunk(body)? {
            None => return Ok(None),
            Some(body) => body,
        }
    } else {
        let length = match head.length {
            Some(length) => length,
            None if head.status == 204 || head.status == 304 => 0,
            None => return Err(NotAnAnswer("an answer of unknown length".to_owned())),
        };
        if length > MOST_BODY {
            return Err(NotAnAnswer(format!("a body of {length} bytes")));
        }
        match body.get(..length) {
            None => return Ok(None),
            Some(body) => body.to_vec(),
        }
    };
    Ok(Some(Answer {
        status: head.status,
        body,
        closes: head.closes,
    }))
}

/// The head of an answer.
pub(super) struct Head {
    pub(super) status: u16,
    /// Bytes that it takes.
    pub(super) size: usize,
    length: Option<usize>,
    chunked: bool,
    closes: bool,
    /// `Sec-WebSocket-Accept`
    pub(super) accept: Option<String>,
}

impl Head {
    /// `None`: not all there yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Head>, NotAnAnswer> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let size = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) if bytes.len() > MOST_HEAD => {
                return Err(NotAnAnswer("a head of more than 32 KiB".to_owned()));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(e) => return Err(NotAnAnswer(format!("not an HTTP/1.1 answer: {e}"))),
        };
        let mut head = Head {
            status: parsed.code.unwrap_or(0),
            size,
            length: None,
            chunked: false,
            closes: parsed.version == Some(0),
            accept: None,
        };
        for header in parsed.headers.iter() {
            let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let length = value.parse();
                    head.length = Some(length.map_err(|_| {
                        NotAnAnswer("a Content-Length that is no number".to_owned())
                    })?);
                }
                "transfer-encoding" => head.chunked = value.eq_ignore_ascii_case("chunked"),
                "connection" => head.closes |= value.eq_ignore_ascii_case("close"),
                "sec-websocket-accept" => head.accept = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(Some(head))
    }
}

/// RFC 9112 §7.1, without trailers.
fn unchunk(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, NotAnAnswer> {
    let mut body = Vec::new();
    loop {
        let Some(line) = bytes.windows(2).position(|w| w == b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&bytes[..line]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16)
            .map_err(|_| NotAnAnswer("a chunk without its size".to_owned()))?;
        if body.len() + size > MOST_BODY {
            return Err(NotAnAnswer("a body of more than 1 MiB".to_owned()));
        }
        let begin = line + 2;
        let Some(chunk) = bytes.get(begin..begin + size + 2) else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err(NotAnAnswer("a chunk that does not end".to_owned()));
        }
        if size == 0 {
            return Ok(Some(body));
        }
        body.extend_from_slice(&chunk[..size]);
        bytes = &bytes[begin + size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], piece: usize) -> Result<Option<Answer>, NotAnAnswer> {
        let mut reader = AnswerReader::default();
        let mut answer = None;
        for part in bytes.chunks(piece) {
            assert!(answer.is_none(), "the answer came before its end");
            answer = reader.read(part)?;
        }
        Ok(answer)
    }

    #[test]
    fn answers_are_read_in_every_split() {
        let plain =
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\nConnection: close\r\n\r\n{\"a\"}";
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        for (bytes, status, body, closes) in [
            (&plain[..], 404, &b"{\"a\"}"[..], true),
            (chunked, 200, b"abcde", false),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", false),
        ] {
            for piece in 1..=bytes.len() {
                let answer = read(bytes, piece).unwrap().unwrap();
                assert_eq!((answer.status, answer.closes), (status, closes));
                assert_eq!(answer.body, body);
            }
        }
    }

    #[test]
    fn what_is_not_an_answer_is_told() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(read(bytes, bytes.len()).is_err(), "{bytes:?}");
        }
    }
}

//! HTTP/1.1 as a client of a small API needs it (RFC 9112): one request at a time, an
//! answer with a head and a body, the connection kept.

use std::fmt::Write;

use plimsoll_wire::websocket::accept_key;

const MOST_HEAD: usize = 32 * 1024;
const MOST_BODY: usize = 1 << 20;
const MOST_HEADERS: usize = 64;
/// Of an answer, framing and all: a body in chunks of a byte still fits.
const MOST_ANSWER: usize = 8 << 20;

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

/// A POST of a JSON document, or without a body where that is empty.
pub fn put_post(out: &mut Vec<u8>, host: &str, path: &str, json: &[u8]) {
    let mut head = String::with_capacity(160 + path.len());
    let kind = match json {
        [] => "",
        _ => "Content-Type: application/json\r\n",
    };
    // Writing to a string does not fail.
    let _ = write!(
        head,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\n{kind}Content-Length: {}\r\nAccept: application/json\r\n\r\n",
        json.len()
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(json);
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
        if answer.is_none() && self.gathered.len() > MOST_ANSWER {
            return Err(NotAnAnswer(
                "an answer of more than 8 MiB, of which the body may have 1 MiB".to_owned(),
            ));
        }
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

/// The answer to an upgrade whose `Sec-WebSocket-Key` was `key`: how many bytes its head
/// takes, and why it opens no WebSocket, where it does not. `None`: not all there yet.
///
/// # Errors
/// What is not an HTTP/1.1 answer.
pub fn answer_to_upgrade(
    bytes: &[u8],
    key: &str,
) -> Result<Option<(usize, Option<String>)>, NotAnAnswer> {
    let head = Head::parse(bytes)?;
    Ok(head.map(|head| (head.size, head.not_a_websocket(key))))
}

/// The head of an answer.
pub(super) struct Head {
    pub(super) status: u16,
    /// Bytes that it takes.
    pub(super) size: usize,
    length: Option<usize>,
    chunked: bool,
    closes: bool,
    /// `Upgrade: websocket`, and `Connection: Upgrade`.
    upgrade: bool,
    connection_upgrade: bool,
    /// `Sec-WebSocket-Accept`
    accept: Option<String>,
    /// An extension or a subprotocol is agreed to. None is ever offered.
    agrees: Option<&'static str>,
}

impl Head {
    /// The head that counts: interim ones (RFC 9110 §15.2) before it are skipped, and are part
    /// of its size. `None`: not all there yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Head>, NotAnAnswer> {
        let mut before = 0;
        while let Some(head) = Head::parse_one(&bytes[before..])? {
            before += head.size;
            if !matches!(head.status, 100 | 102..=199) {
                return Ok(Some(Head {
                    size: before,
                    ..head
                }));
            }
            if before > MOST_HEAD {
                return Err(NotAnAnswer(
                    "more than 32 KiB of interim answers (1xx)".to_owned(),
                ));
            }
        }
        Ok(None)
    }

    fn parse_one(bytes: &[u8]) -> Result<Option<Head>, NotAnAnswer> {
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
            upgrade: false,
            connection_upgrade: false,
            accept: None,
            agrees: None,
        };
        for header in parsed.headers.iter() {
            let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
            match header.name.to_ascii_lowercase().as_str() {
                "content-length" => {
                    let digits = value.bytes().all(|b| b.is_ascii_digit());
                    let length: Option<usize> = value.parse().ok().filter(|_| digits);
                    let length = length.ok_or_else(|| {
                        NotAnAnswer("a Content-Length that is no number".to_owned())
                    })?;
                    if head.length.replace(length).is_some_and(|one| one != length) {
                        return Err(NotAnAnswer("two different Content-Lengths".to_owned()));
                    }
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => head.chunked = true,
                "transfer-encoding" => {
                    return Err(NotAnAnswer(format!(
                        "transfer coding {value:?} is not known; chunked is"
                    )));
                }
                "connection" => {
                    for option in value.split(',').map(str::trim) {
                        head.closes |= option.eq_ignore_ascii_case("close");
                        head.connection_upgrade |= option.eq_ignore_ascii_case("upgrade");
                    }
                }
                "upgrade" => head.upgrade |= value.eq_ignore_ascii_case("websocket"),
                "sec-websocket-extensions" => head.agrees = Some("Sec-WebSocket-Extensions"),
                "sec-websocket-protocol" => head.agrees = Some("Sec-WebSocket-Protocol"),
                "sec-websocket-accept" => head.accept = Some(value.to_owned()),
                _ => {}
            }
        }
        if head.chunked && head.length.is_some() {
            return Err(NotAnAnswer(
                "both Content-Length and Transfer-Encoding".to_owned(),
            ));
        }
        Ok(Some(head))
    }

    /// Why this is not the answer that opens a WebSocket (RFC 6455 §4.1), `key` having been
    /// the request's `Sec-WebSocket-Key`.
    pub(super) fn not_a_websocket(&self, key: &str) -> Option<String> {
        if self.status != 101 {
            return Some(format!("the answer to the upgrade was {}", self.status));
        }
        let expected = accept_key(key.as_bytes());
        let problem = match self {
            Head { upgrade: false, .. } => "no Upgrade: websocket".to_owned(),
            Head {
                connection_upgrade: false,
                ..
            } => "no Connection: Upgrade".to_owned(),
            Head { accept: None, .. } => "no Sec-WebSocket-Accept".to_owned(),
            Head {
                accept: Some(accept),
                ..
            } if *accept != expected => "the wrong Sec-WebSocket-Accept".to_owned(),
            Head {
                agrees: Some(header),
                ..
            } => format!("a {header} that was not offered"),
            _ => return None,
        };
        Some(format!("the answer to the upgrade has {problem}"))
    }
}

/// RFC 9112 §7.1. What trailers say is not read.
fn unchunk(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, NotAnAnswer> {
    let mut body = Vec::new();
    loop {
        let Some(line) = bytes.windows(2).position(|w| w == b"\r\n") else {
            return Ok(None);
        };
        let size = std::str::from_utf8(&bytes[..line]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let is_number = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
        let size = usize::from_str_radix(size, 16)
            .ok()
            .filter(|_| is_number)
            .ok_or_else(|| NotAnAnswer("a chunk without its size".to_owned()))?;
        if size > MOST_BODY - body.len() {
            return Err(NotAnAnswer("a body of more than 1 MiB".to_owned()));
        }
        let begin = line + 2;
        if size == 0 {
            // The line end before is that of the last chunk, or of the last trailer.
            let is_over = bytes[line..].windows(4).any(|w| w == b"\r\n\r\n");
            return Ok(is_over.then_some(body));
        }
        let Some(chunk) = bytes.get(begin..begin + size + 2) else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err(NotAnAnswer("a chunk that does not end".to_owned()));
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
    fn a_chunk_that_never_begins_is_an_error() {
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=".to_vec();
        bytes.resize(MOST_ANSWER + 2, b'y');
        let error = read(&bytes, 1 << 20).unwrap_err();
        assert!(error.0.contains("more than 8 MiB"), "{error:?}");
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
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
                200,
                b"a",
                false,
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\nZ: z\r\n\r\n",
                200,
                b"a",
                false,
            ),
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
            b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nffffffffffffffff\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: magic\r\nContent-Length: 1\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\na",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
            &b"HTTP/1.1 100 Continue\r\n\r\n".repeat(2000),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(read(bytes, bytes.len()).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn only_the_right_answer_opens_a_websocket() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        let whole = [
            ("Upgrade", "websocket"),
            ("Connection", "keep-alive, Upgrade"),
            ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ];
        let told = |status: u16, headers: &[(&str, &str)]| {
            let lines: String = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let text = format!("HTTP/1.1 {status} X\r\n{lines}\r\n");
            let head = Head::parse(text.as_bytes()).unwrap().unwrap();
            head.not_a_websocket(KEY)
        };
        assert_eq!(told(101, &whole), None);
        assert!(told(200, &whole).unwrap().ends_with("was 200"));
        for left_out in 0..whole.len() {
            let mut headers = whole.to_vec();
            headers.remove(left_out);
            let text = told(101, &headers).unwrap();
            assert!(text.contains(whole[left_out].0), "{text}");
        }
        for (name, value) in [
            ("Sec-WebSocket-Extensions", "permessage-deflate"),
            ("Sec-WebSocket-Protocol", "chat"),
        ] {
            let mut headers = whole.to_vec();
            headers.push((name, value));
            assert!(told(101, &headers).unwrap().contains(name));
        }
        let mut wrong = whole;
        wrong[2].1 = "s3pPLMBiTxaQ9kYGzzhZRbK+xOp=";
        assert!(told(101, &wrong).unwrap().contains("wrong"));
    }
}

//! The HTTP/1.1 request that opens a connection, and the answer that is not 101.

use std::fmt::Write;

use plimsoll_protocols::session::websocket::{accept_key, is_client_key};

use super::stream::Stream;

const MOST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// The subprotocol by which a browser hands its token over: `bearer, TOKEN`.
const BEARER: &str = "bearer";

/// A request's head.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
    /// HTTP/1.1 or later.
    modern: bool,
    /// What came after the head: a client must not send before it is answered.
    early: bool,
}

/// An answer that ends the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The class of the refusal, for log and metrics; empty: it is none. Never holds what the
    /// client sent.
    pub(super) reason: &'static str,
    kind: &'static str,
    extra: &'static str,
    body: String,
}

impl Answer {
    pub(super) fn json(status: u16, body: &str) -> Answer {
        Answer {
            status,
            reason: "",
            kind: "application/json",
            extra: "",
            body: body.to_owned(),
        }
    }

    pub(super) fn text(status: u16, body: String) -> Answer {
        Answer {
            status,
            reason: "",
            kind: "text/plain; version=0.0.4",
            extra: "",
            body,
        }
    }

    pub(super) fn refusal(status: u16, reason: &'static str, explanation: &str) -> Answer {
        let extra = match status {
            401 => "WWW-Authenticate: Bearer\r\n",
            426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
            503 => "Retry-After: 1\r\n",
            _ => "",
        };
        Answer {
            status,
            reason,
            kind: "application/json",
            extra,
            body: serde_json::json!({ "error": explanation }).to_string(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let phrase = match self.status {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "",
        };
        let (kind, extra, length) = (self.kind, self.extra, self.body.len());
        format!(
            "HTTP/1.1 {} {phrase}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{extra}Connection: close\r\n\r\n{}",
            self.status, self.body
        )
        .into_bytes()
    }
}

/// A WebSocket upgrade that is in order (RFC 6455 §4.2.1).
pub(super) struct Upgrade {
    accept: String,
    bearer: bool,
}

impl Upgrade {
    /// The answer 101.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = String::with_capacity(192);
        text.push_str(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        );
        // Writing to a string does not fail.
        let _ = write!(text, "Sec-WebSocket-Accept: {}\r\n", self.accept);
        if self.bearer {
            let _ = write!(text, "Sec-WebSocket-Protocol: {BEARER}\r\n");
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

impl Request {
    /// Reads a head. `Err(None)`: the client went away.
    pub(super) async fn read(stream: &mut Stream) -> Result<Request, Option<Answer>> {
        let mut head = Vec::with_capacity(1024);
        let mut piece = [0; 1024];
        loop {
            if let Some(request) = Request::parse(&head)? {
                return Ok(request);
            }
            if head.len() >= MOST_HEAD {
                return Err(Some(Answer::refusal(
                    431,
                    "head_too_large",
                    "the request's head is over 16 KiB",
                )));
            }
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => return Err(None),
                Ok(n) => head.extend_from_slice(&piece[..n]),
            }
        }
    }

    fn parse(head: &[u8]) -> Result<Option<Request>, Option<Answer>> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let length = match parsed.parse(head) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(e) => {
                return Err(Some(Answer::refusal(
                    400,
                    "malformed",
                    &format!("not an HTTP/1.1 request: {e}"),
                )));
            }
        };
        let target = parsed.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(Some(Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            modern: parsed.version == Some(1),
            early: head.len() > length,
            headers: parsed
                .headers
                .iter()
                .map(|h| (h.name.to_ascii_lowercase(), h.value.to_vec()))
                .collect(),
        }))
    }

    /// The values of a header that may occur several times, joined lists split.
    fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(n, _)| n == name)
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
    }

    fn has(&self, name: &str, token: &str) -> bool {
        self.list(name)
            .any(|value| value.eq_ignore_ascii_case(token))
    }

    /// A number in the query.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Answer> {
        let value = self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == name).then_some(value)
        });
        match value.map(str::parse) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(Answer::refusal(
                400,
                "bad_query",
                &format!("`{name}` in the query is not a number"),
            )),
        }
    }

    /// The token: `Authorization: Bearer`, or the second subprotocol after `bearer`.
    pub(super) fn token(&self) -> Option<&str> {
        let authorization = self
            .headers
            .iter()
            .find(|(name, _)| name == "authorization")
            .and_then(|(_, value)| std::str::from_utf8(value).ok());
        if let Some((scheme, token)) = authorization.and_then(|value| value.split_once(' ')) {
            return scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim());
        }
        let mut offered = self.list("sec-websocket-protocol");
        offered.find(|name| *name == BEARER)?;
        offered.next()
    }

    /// # Errors
    /// What is wrong with the upgrade.
    pub(super) fn upgrade(&self) -> Result<Upgrade, Answer> {
        if self.method != "GET" {
            return Err(Answer::refusal(
                405,
                "method",
                "a WebSocket is opened with GET",
            ));
        }
        if !self.modern || !self.has("connection", "upgrade") || !self.has("upgrade", "websocket") {
            return Err(Answer::refusal(426, "no_upgrade", "this is a WebSocket"));
        }
        if !self.has("sec-websocket-version", "13") {
            return Err(Answer::refusal(
                426,
                "version",
                "WebSocket version 13 is spoken here",
            ));
        }
        let mut keys = self.list("sec-websocket-key");
        let key = match (keys.next(), keys.next()) {
            (Some(key), None) if is_client_key(key.as_bytes()) => key,
            _ => {
                return Err(Answer::refusal(
                    400,
                    "bad_key",
                    "one Sec-WebSocket-Key of 16 bytes in base64 is needed",
                ));
            }
        };
        if self.early {
            return Err(Answer::refusal(
                400,
                "early_data",
                "data before the handshake was answered",
            ));
        }
        Ok(Upgrade {
            accept: accept_key(key.as_bytes()),
            bearer: self.has("sec-websocket-protocol", BEARER),
        })
    }
}

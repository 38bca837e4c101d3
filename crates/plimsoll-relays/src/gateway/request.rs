//! The HTTP/1.1 request that opens a connection, and responses other than 101.

use plimsoll_serving::{PeerAddress, TrustedProxies};
use plimsoll_wire::http1::{
    BodyFraming, FieldStorage, Http1Error, RequestHead, append_response_head,
};
use plimsoll_wire::websocket::{DeflateParameters, derive_accept_key, is_valid_client_key};
use tokio::io::AsyncReadExt;

use super::stream::ClientStream;
use crate::client_address::ClientAddress;
use crate::metrics::CONTENT_TYPE;

const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The subprotocol with which a browser sends its token: `bearer, TOKEN`.
const BEARER_SUBPROTOCOL: &str = "bearer";

/// The head of a request.
pub(super) struct GatewayRequest {
    pub(super) method: String,
    pub(super) path: String,
    query: String,
    headers: Vec<(String, Vec<u8>)>,
    is_1_1: bool,
    has_body: bool,
    /// The client sent bytes after the head, although it must first wait for the response.
    has_early_bytes: bool,
}

/// A response that ends the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GatewayResponse {
    pub(super) status: u16,
    /// The class of the refusal for log and metrics, empty if the response is not a refusal. Contains nothing that the
    /// client sent.
    pub(super) reason: &'static str,
    content_type: &'static str,
    extra_fields: &'static [(&'static str, &'static str)],
    body: String,
}

impl GatewayResponse {
    pub(super) fn json(status: u16, body: impl Into<String>) -> GatewayResponse {
        GatewayResponse {
            status,
            reason: "",
            content_type: "application/json",
            extra_fields: &[],
            body: body.into(),
        }
    }

    pub(super) fn metrics_page(body: String) -> GatewayResponse {
        let kind = CONTENT_TYPE;
        GatewayResponse {
            content_type: kind,
            ..GatewayResponse::json(200, body)
        }
    }

    pub(super) fn refusal(status: u16, reason: &'static str, explanation: &str) -> GatewayResponse {
        let extra: &[_] = match status {
            401 => &[("WWW-Authenticate", "Bearer")],
            426 => &[("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
            503 => &[("Retry-After", "1")],
            _ => &[],
        };
        let body = serde_json::json!({ "error": explanation }).to_string();
        GatewayResponse {
            reason,
            extra_fields: extra,
            ..GatewayResponse::json(status, body)
        }
    }

    /// Returns [`GatewayResponse::refusal`] as an error, for callers with another success type.
    pub(super) fn refusal_error<T>(
        status: u16,
        reason: &'static str,
        text: &str,
    ) -> Result<T, GatewayResponse> {
        Err(GatewayResponse::refusal(status, reason, text))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let length = self.body.len().to_string();
        let mut fields = vec![
            ("Content-Type", self.content_type),
            ("Content-Length", &*length),
        ];
        fields.extend(self.extra_fields);
        fields.push(("Connection", "close"));
        let mut out = Vec::new();
        append_response_head(&mut out, self.status, &fields);
        out.extend_from_slice(self.body.as_bytes());
        out
    }
}

/// A valid WebSocket upgrade (RFC 6455 §4.2.1).
pub(super) struct WebSocketUpgrade {
    accept: String,
    uses_bearer: bool,
    pub(super) deflate: Option<DeflateParameters>,
}

impl WebSocketUpgrade {
    /// Encodes the 101 response.
    pub(super) fn encode(&self) -> Vec<u8> {
        let extension = self
            .deflate
            .as_ref()
            .map(DeflateParameters::to_header_value);
        let mut fields = vec![
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", &*self.accept),
        ];
        if self.uses_bearer {
            fields.push(("Sec-WebSocket-Protocol", BEARER_SUBPROTOCOL));
        }
        if let Some(extension) = &extension {
            fields.push(("Sec-WebSocket-Extensions", extension));
        }
        let mut out = Vec::with_capacity(192);
        append_response_head(&mut out, 101, &fields);
        out
    }
}

impl GatewayRequest {
    /// Reads a request head. `Err(None)` means that the client closed the connection.
    pub(super) async fn read(
        stream: &mut ClientStream,
    ) -> Result<GatewayRequest, Option<GatewayResponse>> {
        let mut head = Vec::with_capacity(1024);
        let mut piece = [0; 1024];
        loop {
            if let Some(request) = GatewayRequest::parse(&head).map_err(Some)? {
                return Ok(request);
            }
            match stream.read(&mut piece).await {
                Ok(0) | Err(_) => return Err(None),
                Ok(n) => head.extend_from_slice(&piece[..n]),
            }
        }
    }

    fn parse(bytes: &[u8]) -> Result<Option<GatewayRequest>, GatewayResponse> {
        let mut space = FieldStorage::new();
        let head = RequestHead::parse(bytes, MAX_HEAD_BYTES, &mut space).map_err(|e| match e {
            Http1Error::HeadTooLong(_) => {
                GatewayResponse::refusal(431, "head_too_large", "the request's head is over 16 KiB")
            }
            e => GatewayResponse::refusal(400, "malformed", &e.to_string()),
        })?;
        let Some(head) = head else {
            return Ok(None);
        };
        let (path, query) = head.target.split_once('?').unwrap_or((head.target, ""));
        Ok(Some(GatewayRequest {
            method: head.method.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
            is_1_1: head.is_1_1,
            has_body: head.body != BodyFraming::Length(0),
            has_early_bytes: bytes.len() > head.size,
            headers: head
                .fields
                .iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
                .collect(),
        }))
    }

    /// Returns the values of a header that may occur several times, with comma-separated lists
    /// split.
    fn header_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(n, _)| n == name)
            .filter_map(|(_, value)| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
    }

    fn header_count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(n, _)| n == name).count()
    }

    /// Returns the client's address for the log.
    pub(super) fn client_address(
        &self,
        peer: PeerAddress,
        trusted: &TrustedProxies,
    ) -> ClientAddress {
        ClientAddress::resolve(peer, self.header_values("x-forwarded-for"), trusted)
    }

    fn has_header_token(&self, name: &str, token: &str) -> bool {
        self.header_values(name)
            .any(|value| value.eq_ignore_ascii_case(token))
    }

    /// Parses a number from the query.
    pub(super) fn parse_query_number(&self, name: &str) -> Result<Option<u64>, GatewayResponse> {
        let value = self.query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == name).then_some(value)
        });
        match value.map(str::parse) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => {
                let text = format!("`{name}` in the query is not a number");
                GatewayResponse::refusal_error(400, "bad_query", &text)
            }
        }
    }

    /// Returns the token from `Authorization: Bearer` or the subprotocol after `bearer`.
    pub(super) fn bearer_token(&self) -> Option<&str> {
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
        let mut offered = self.header_values("sec-websocket-protocol");
        offered.find(|name| *name == BEARER_SUBPROTOCOL)?;
        offered.next()
    }

    /// Checks the upgrade; `compression` allows messages to be compressed if the client offers it.
    ///
    /// # Errors
    /// Returns the response that refuses an invalid upgrade.
    pub(super) fn check_upgrade(
        &self,
        compression: bool,
    ) -> Result<WebSocketUpgrade, GatewayResponse> {
        if self.method != "GET" {
            return GatewayResponse::refusal_error(405, "method", "a WebSocket is opened with GET");
        }
        if !self.is_1_1
            || !self.has_header_token("connection", "upgrade")
            || !self.has_header_token("upgrade", "websocket")
        {
            return GatewayResponse::refusal_error(
                426,
                "no_upgrade",
                "a WebSocket upgrade is required",
            );
        }
        // RFC 9112 §3.2 forbids several Host fields: a proxy might have used a different one than this gateway.
        if self.header_count("host") != 1 {
            return GatewayResponse::refusal_error(400, "host", "exactly one Host is needed");
        }
        // With several Authorization fields, a proxy might have checked a different one than this gateway.
        if self.header_count("authorization") > 1 {
            return GatewayResponse::refusal_error(
                400,
                "authorization",
                "more than one Authorization",
            );
        }
        let offered = self.header_values("sec-websocket-protocol");
        if offered.filter(|name| *name == BEARER_SUBPROTOCOL).count() > 1 {
            return GatewayResponse::refusal_error(
                400,
                "bearer",
                "the subprotocol bearer more than once",
            );
        }
        // A proxy would read the following bytes as a body, we would read them as frames.
        if self.has_body {
            return GatewayResponse::refusal_error(400, "body", "an upgrade has no body");
        }
        if !self.has_header_token("sec-websocket-version", "13") {
            return GatewayResponse::refusal_error(
                426,
                "version",
                "only WebSocket version 13 is supported",
            );
        }
        let mut keys = self.header_values("sec-websocket-key");
        let key = match (keys.next(), keys.next()) {
            (Some(key), None) if is_valid_client_key(key.as_bytes()) => key,
            _ => {
                return GatewayResponse::refusal_error(
                    400,
                    "bad_key",
                    "one Sec-WebSocket-Key of 16 bytes in base64 is needed",
                );
            }
        };
        if self.has_early_bytes {
            return GatewayResponse::refusal_error(
                400,
                "early_data",
                "data before the handshake was answered",
            );
        }
        Ok(WebSocketUpgrade {
            accept: derive_accept_key(key.as_bytes()),
            uses_bearer: self.has_header_token("sec-websocket-protocol", BEARER_SUBPROTOCOL),
            deflate: if compression {
                DeflateParameters::from_offers(self.header_values("sec-websocket-extensions"))
            } else {
                None
            },
        })
    }
}

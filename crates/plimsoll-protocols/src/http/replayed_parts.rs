//! The method and header fields that each line of a replayed file sets for its call.

use std::collections::BTreeMap;

use plimsoll_model::rows::template::{RenderContext, Template};
use serde::Deserialize;

use super::header_names::check_name;
use crate::http2::put_literal;

/// The templates for the parts that the lines of a replayed file set, apart from path and body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayedParts {
    /// The method; `None` if all calls have the same method.
    pub method: Option<Template>,
    /// The header fields, as a JSON object; `None` if the lines set none.
    pub headers: Option<Template>,
    /// The names of the plan's header fields, in lower case; they replace the lines' fields of the same name.
    pub own_names: Vec<String>,
}

/// The values of a header field.
#[derive(Deserialize)]
#[serde(untagged)]
enum FieldValues {
    One(String),
    Several(Vec<String>),
}

/// Parses the header fields in a JSON object. Names are in lower case; connection-specific fields are left out.
///
/// # Errors
/// Returns a message if a field can't be sent.
pub(super) fn parse_fields(json: &str) -> Result<Vec<(String, String)>, String> {
    if json.is_empty() {
        return Ok(Vec::new());
    }
    let fields: BTreeMap<String, FieldValues> = serde_json::from_str(json)
        .map_err(|_| "not a JSON object of names and texts, or lists of texts".to_owned())?;
    let mut sent = Vec::new();
    for (name, values) in fields {
        let name = name.to_ascii_lowercase();
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("{name:?} is not the name of a header field"));
        }
        let is_of_connection = check_name(&name).is_err() || name.starts_with("proxy-");
        if is_of_connection || name == "host" {
            continue;
        }
        let values = match values {
            FieldValues::One(value) => vec![value],
            FieldValues::Several(values) => values,
        };
        for value in values {
            let is_sendable = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
            if !value.bytes().all(is_sendable) {
                return Err(format!("the value of `{name}` can't be sent as it is"));
            }
            sent.push((name.clone(), value.trim().to_owned()));
        }
    }
    Ok(sent)
}

impl ReplayedParts {
    /// Calls `add` with each header field of a call's line. A body that looks like JSON gets the JSON content type if
    /// the line sets none.
    pub(super) fn for_each_field(
        &self,
        moment: &RenderContext<'_>,
        body: &[u8],
        add: &mut dyn FnMut(&str, &str),
    ) {
        const CONTENT_TYPE: &str = "content-type";
        let mut has_type = self.own_names.iter().any(|name| name == CONTENT_TYPE);
        if let Some(headers) = &self.headers {
            let mut json = Vec::new();
            headers.write(moment, &mut json);
            // All lines were checked when the plan was resolved, so parsing does not fail here.
            let fields = parse_fields(&String::from_utf8_lossy(&json)).unwrap_or_default();
            for (name, value) in fields {
                if !self.own_names.contains(&name) {
                    has_type |= name == CONTENT_TYPE;
                    add(&name, &value);
                }
            }
        }
        if !has_type && (body.starts_with(b"{") || body.starts_with(b"[")) {
            add(CONTENT_TYPE, "application/json");
        }
    }
}

impl ReplayedParts {
    /// Replaces `block` by the header fields of a call's line, encoded for HTTP/2.
    pub(super) fn encode_block(
        &self,
        moment: &RenderContext<'_>,
        body: &[u8],
        block: &mut Vec<u8>,
    ) {
        block.clear();
        self.for_each_field(moment, body, &mut |name, value| {
            put_literal(name, value.as_bytes(), block);
        });
    }
}

/// Returns whether a request with this method has a `content-length` even if it has no body (RFC 9110, 8.6).
pub(super) fn expects_body(method: &[u8]) -> bool {
    matches!(method, b"POST" | b"PUT" | b"PATCH")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use plimsoll_engine::driver::{CallId, Driver, Protocol};
    use plimsoll_model::Time;
    use plimsoll_model::spec::{self, ResolveContext};
    use plimsoll_wire::hpack::{DEFAULT_TABLE_BYTES, Decoder};
    use plimsoll_wire::http2::{kind, split_frame, write};

    use super::*;
    use crate::http::multiplexed::{Http2Protocol, HttpScheme};
    use crate::http::request::HttpRequest;
    use crate::http::{Http1Protocol, HttpCall};

    /// An environment whose only file is a log of requests.
    struct LogContext;

    impl ResolveContext for LogContext {
        fn env_variable(&self, _: &str) -> Option<String> {
            None
        }
        fn read(&self, _: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
            Ok(LOG.as_bytes().to_vec())
        }
    }

    const LOG: &str = concat!(
        "{\"time\":0,\"method\":\"GET\",\"path\":\"/a\"}\n",
        "{\"time\":1,\"method\":\"POST\",\"path\":\"/b\",\"body\":{\"n\":1},\"headers\":{\"X-A\":\"1\",\"x-own\":\"2\"}}\n",
        "{\"time\":2,\"method\":\"PUT\",\"path\":\"/c\",\"headers\":{\"Content-Type\":\"text/plain\",\"Host\":\"x\"}}\n",
    );

    fn replayed_call() -> HttpCall {
        crate::registry::register_protocols();
        let plan = "target = \"http://h:1\"\n[load]\nreplay = \"log\"\n[call.http]\nheaders = { x-own = \"0\" }\n";
        let spec = spec::read(plan).expect("readable");
        let plan = spec::resolve(&spec, &LogContext).expect("right");
        plan.call.downcast_ref::<HttpCall>().expect("HTTP").clone()
    }

    #[test]
    fn requests_over_http1_are_those_of_lines() {
        let call = replayed_call();
        let request = HttpRequest {
            call: &call,
            authority: "h:1",
            closes: false,
        };
        let sent = [0, 1, 2].map(|number| {
            let mut driver = Http1Protocol::new(&request).new_driver();
            let mut out = Vec::new();
            driver.open(Time::ZERO, &mut out);
            driver.start(CallId(0), number, Time::ZERO, &mut out);
            String::from_utf8(out).expect("text")
        });
        let head = "HTTP/1.1\r\nhost: h:1\r\nx-own: 0\r\n";
        assert_eq!(sent[0], format!("GET /a {head}\r\n"));
        assert_eq!(
            sent[1],
            format!(
                "POST /b {head}x-a: 1\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n{{\"n\":1}}"
            )
        );
        assert_eq!(
            sent[2],
            format!("PUT /c {head}content-type: text/plain\r\ncontent-length: 0\r\n\r\n")
        );
    }

    #[test]
    fn requests_over_http2_are_those_of_lines() {
        let call = replayed_call();
        let request = HttpRequest {
            call: &call,
            authority: "h:1",
            closes: false,
        };
        let mut driver = Http2Protocol::new(&request, HttpScheme::Http).new_driver();
        let (mut out, mut settings) = (Vec::new(), Vec::new());
        driver.open(Time::ZERO, &mut out);
        write::settings(&mut settings, &[]);
        let settings = driver.receive(&settings, Time::ZERO, &mut out, &mut Vec::new());
        assert!(settings.is_ok());
        let mut decoder = Decoder::new(DEFAULT_TABLE_BYTES, 1 << 16);
        let sent = [0, 1, 2].map(|number| {
            out.clear();
            driver.start(CallId(number), number.into(), Time::ZERO, &mut out);
            let (mut fields, mut body, mut rest) = (Vec::new(), Vec::new(), &*out);
            while let Ok(Some((head, payload))) = split_frame(&mut rest, 1 << 14) {
                if head.kind() == kind::HEADERS {
                    let decoded = decoder.decode(payload, |field| {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        fields.push(format!("{}: {}", text(field.name), text(field.value)));
                    });
                    assert!(decoded.is_ok());
                } else {
                    body.extend_from_slice(payload);
                }
            }
            (fields[2..].join("\n"), body)
        });
        assert_eq!(sent[0].0, ":method: GET\n:path: /a\nx-own: 0");
        assert_eq!(
            sent[1].0,
            ":method: POST\n:path: /b\nx-own: 0\nx-a: 1\ncontent-type: application/json\ncontent-length: 7"
        );
        assert_eq!(sent[1].1, b"{\"n\":1}");
        assert_eq!(
            sent[2].0,
            ":method: PUT\n:path: /c\nx-own: 0\ncontent-type: text/plain"
        );
    }

    #[test]
    fn fields_of_connections_are_left_out() {
        let json = r#"{"Accept":"a","Host":"x","content-length":"3","Connection":"close","cookie":["b=1","c=2"]}"#;
        let fields = parse_fields(json).expect("fields");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            fields,
            [
                pair("accept", "a"),
                pair("cookie", "b=1"),
                pair("cookie", "c=2")
            ]
        );
        assert_eq!(parse_fields(""), Ok(Vec::new()));
        for (json, expected) in [
            ("[]", "not a JSON object"),
            ("{\"a\":1}", "not a JSON object"),
            ("{\"a b\":\"\"}", "not the name of"),
            ("{\"a\":\"x\\ny\"}", "`a` can't be sent"),
        ] {
            let problem = parse_fields(json).expect_err(json);
            assert!(problem.contains(expected), "{problem}");
        }
    }
}

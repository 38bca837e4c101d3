//! `[call.http]`: a request over HTTP, as typed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::keys::keys_of;
use super::{
    ConversationSpec, FrameSpec, GoodputSpec, Limit, MetadataSpec, Problems, Schemes, Section,
    Spec, Surroundings,
};
use crate::plan::{FrameCall, HttpCall, HttpVersion};
use crate::units::Size;

/// One kind of request over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSpec {
    /// `"1.1"` (the default), `"2"`, or `"auto"`: what the server chooses by ALPN.
    pub version: Option<HttpVersion>,
    /// Default GET; with a body POST.
    pub method: Option<String>,
    /// Path and query, which may have fields. Default: the target URL's, or `/`.
    pub path: Option<String>,
    /// `Host`. Default: host:port of the target.
    pub host: Option<String>,
    /// The request's body, which may have fields.
    pub body: Option<String>,
    /// A file that holds it.
    pub body_file: Option<PathBuf>,
    /// Statuses of calls that succeed: `[200, 204]`, `["2xx"]`. Default `["2xx"]`.
    pub expect: Option<Vec<StatusSpec>>,
    /// Text that the body of an answer has to hold.
    pub expect_body: Option<String>,
    /// The answer comes in events: `"sse"`, `"ndjson"`, or `"openai"`, server-sent events that hold tokens.
    pub stream: Option<String>,
    /// The event that ends a stream well: its data, `event:NAME` or `contains:TEXT`. Default: the end of the body;
    /// with `"openai"` `[DONE]`.
    pub stream_until: Option<String>,
    /// The event that reports an error, written like `stream_until`. Default: one named `error`, or an object that
    /// begins with the key `error`.
    pub stream_error: Option<String>,
    /// Ask for packed answers (gzip, deflate, br, zstd), and unpack them. Default: no; packed answers that have to be
    /// looked into are unpacked all the same.
    pub compressed: Option<bool>,
    /// Larger answers fail with `MESSAGE_TOO_LARGE`. Default: no limit below 4GiB.
    pub max_body: Option<Size>,
    /// The call's deadline, or "none". Default 10s.
    pub deadline: Option<Limit>,
    /// What an answer of tokens has to meet to be counted as good, besides succeeding.
    pub goodput: Option<GoodputSpec>,
    /// Each user makes several such calls, and each carries what was said before.
    pub conversation: Option<ConversationSpec>,
    /// Open a WebSocket, and send the body over it as a frame with each call.
    pub websocket: Option<WebSocketSpec>,
    /// Header fields, whose values may have fields.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, MetadataSpec>,
    /// Header fields that an answer has to have, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub expect_headers: BTreeMap<String, String>,
}

/// The WebSocket that a request opens. Its answer are messages: the first, or all up to the one that
/// `stream_until` names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSocketSpec {
    /// Offer this subprotocol. Default: none.
    pub subprotocol: Option<String>,
    /// Send binary frames. Default: text.
    pub binary: Option<bool>,
    /// A frame that is sent once on each socket, before its first call.
    pub greeting: Option<String>,
    /// In place of the body: what each user sends, over a socket of its own.
    pub script: Option<Vec<FrameSpec>>,
}

impl FromStr for HttpVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpVersion, String> {
        let named = HttpVersion::ALL.into_iter().find(|v| v.name() == text);
        named.ok_or_else(|| format!("`{text}` is no version of HTTP: use 1.1, 2 or auto"))
    }
}

impl Serialize for HttpVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for HttpVersion {
    /// Takes the numbers, too, that versions look like.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HttpVersion, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = HttpVersion;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version of HTTP such as \"1.1\"")
            }
            fn visit_f64<E: de::Error>(self, number: f64) -> Result<HttpVersion, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<HttpVersion, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<HttpVersion, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HttpVersion, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A status, or a class of them: `204`, `2xx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSpec {
    pub from: u16,
    pub to: u16,
}

impl FromStr for StatusSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<StatusSpec, String> {
        let wrong = || format!("`{text}` is no status: write 200, or 2xx for a class of them");
        if let Some(class) = text.strip_suffix("xx").or(text.strip_suffix("XX")) {
            let class = class.parse::<u16>().ok().filter(|c| (2..=5).contains(c));
            let from = class.ok_or_else(wrong)? * 100;
            return Ok(StatusSpec {
                from,
                to: from + 99,
            });
        }
        let status = text.parse::<u16>().ok().filter(|s| (200..600).contains(s));
        let from = status.ok_or_else(wrong)?;
        Ok(StatusSpec { from, to: from })
    }
}

impl fmt::Display for StatusSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from == self.to {
            true => write!(f, "{}", self.from),
            false => write!(f, "{}xx", self.from / 100),
        }
    }
}

impl Serialize for StatusSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.from == self.to {
            true => serializer.serialize_u16(self.from),
            false => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for StatusSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StatusSpec, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = StatusSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status such as 200, or \"2xx\"")
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<StatusSpec, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<StatusSpec, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<StatusSpec, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Section for HttpSpec {
    const SCHEMES: Schemes = Schemes {
        section: "http",
        purpose: "for HTTP",
        plain: "http",
        secured: Some("https"),
        elsewhere: &[],
        ports: Some((80, 443)),
        with_path: true,
    };
    const VARIES: bool = true;
    type Call = HttpCall;

    fn keys_within(path: &str) -> Option<&'static [&'static str]> {
        match path {
            "websocket" => Some(keys_of::<WebSocketSpec>()),
            "websocket.script" => Some(keys_of::<FrameSpec>()),
            "conversation" => Some(keys_of::<ConversationSpec>()),
            "goodput" => Some(keys_of::<GoodputSpec>()),
            path => path.starts_with("headers.").then(MetadataSpec::keys),
        }
    }

    fn fields(&mut self) -> Option<&mut BTreeMap<String, MetadataSpec>> {
        Some(&mut self.headers)
    }

    fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let socket = self.websocket.as_ref();
        let script = socket.and_then(|socket| socket.script.as_ref());
        let frames = script.into_iter().flatten();
        let frames = frames.map(|frame| ("websocket.script", &frame.body_file));
        let all = std::iter::once(("body_file", &self.body_file)).chain(frames);
        all.filter_map(|(key, path)| Some((key, path.clone()?)))
            .collect()
    }

    fn calls_in_a_row(&self) -> Option<u32> {
        if let Some(talk) = &self.conversation {
            return Some(talk.turns.unwrap_or(1));
        }
        let script = self.websocket.as_ref()?.script.as_ref()?;
        let answered = script.iter().filter(|frame| frame.answer != Some(false));
        (!script.is_empty()).then(|| answered.count() as u32)
    }

    fn resolve(
        &self,
        spec: &Spec,
        problems: &mut Problems,
        surroundings: &dyn Surroundings,
    ) -> Option<HttpCall> {
        problems.http_call(spec, self, surroundings)
    }

    fn filled_in(mut self, call: &HttpCall) -> HttpSpec {
        fill_in(&mut self, call);
        self
    }
}

/// Writes the defaults out.
fn fill_in(spec: &mut HttpSpec, call: &HttpCall) {
    spec.version = Some(call.version);
    spec.method = Some(call.method.clone());
    // As it is typed: what reads it there looks for fields again.
    let path_varies = call.varying.as_ref().is_some_and(|all| all.path.is_some());
    spec.path = Some(match path_varies {
        true => call.path.clone(),
        false => call.path.replace("{{", "{{{{"),
    });
    // A socket is opened with 101.
    if call.socket.is_none() {
        let statuses = call.expect.iter();
        let spec_of = |&(from, to): &(u16, u16)| StatusSpec { from, to };
        spec.expect = Some(statuses.map(spec_of).collect());
    }
    // The body itself, so that the run stays the same when the file changes.
    if spec.body_file.is_some() {
        let varying = call.varying.as_ref().and_then(|all| all.body.as_ref());
        let typed = match varying {
            Some(body) => Some(body.typed.clone()),
            None => std::str::from_utf8(&call.body)
                .ok()
                .map(|text| text.replace("{{", "{{{{")),
        };
        if let Some(typed) = typed {
            (spec.body, spec.body_file) = (Some(typed), None);
        }
    }
    let frames = spec
        .websocket
        .as_mut()
        .and_then(|socket| socket.script.as_mut());
    let resolved = call.socket.iter().flat_map(|socket| &socket.script);
    for (frame, resolved) in frames.into_iter().flatten().zip(resolved) {
        fill_in_frame(frame, resolved);
    }
    spec.max_body = Some(Size(call.max_body.into()));
    spec.deadline = None;
}

/// Writes the frame itself out, so that the run stays the same when its file changes.
fn fill_in_frame(spec: &mut FrameSpec, frame: &FrameCall) {
    if spec.body_file.is_none() {
        return;
    }
    let typed = match &frame.varying {
        Some(body) => Some(body.typed.clone()),
        None => std::str::from_utf8(&frame.payload)
            .ok()
            .map(|text| text.replace("{{", "{{{{")),
    };
    if typed.is_some() {
        (spec.body, spec.body_file) = (typed, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_text_or_numbers() {
        let read = |value: &str| toml::from_str::<HttpSpec>(&format!("version = {value}"));
        for (value, version) in [
            ("\"1.1\"", HttpVersion::V1),
            ("1.1", HttpVersion::V1),
            ("\"2\"", HttpVersion::V2),
            ("2", HttpVersion::V2),
            ("\"auto\"", HttpVersion::Auto),
        ] {
            assert_eq!(read(value).unwrap().version, Some(version), "{value}");
        }
        for value in ["\"3\"", "1", "\"h2\"", "true"] {
            let error = read(value).expect_err(value).to_string();
            assert!(error.contains("version"), "{error}");
        }
    }

    #[test]
    fn statuses_are_numbers_or_classes() {
        for (text, from, to) in [("200", 200, 200), ("2xx", 200, 299), ("5XX", 500, 599)] {
            assert_eq!(text.parse(), Ok(StatusSpec { from, to }));
        }
        for text in ["", "x", "20", "100", "1xx", "6xx", "600", "2x", "-200"] {
            let error = text.parse::<StatusSpec>().expect_err(text);
            assert!(error.contains("write 200"), "{error}");
        }
    }
}

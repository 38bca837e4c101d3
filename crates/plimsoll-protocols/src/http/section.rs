//! `[call.http]` and the flags of `plimsoll http`: a request over HTTP, in the form that users write.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args};
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_model::spec::{
    GoodputSpec, MetadataSpec, OptionalPeriod, ProxiedCalls, Spec, WireFormat,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::call::HttpVersion;
use super::text_or_number::deserialize_text_or_number;
use super::typed_parts::TypedParts;
use crate::journey::StepSpec;

/// One kind of request over HTTP.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[command(next_help_heading = "Call")]
#[serde(deny_unknown_fields, default)]
pub struct HttpSpec {
    /// The version of HTTP: 1.1; 2, in plaintext by prior knowledge; auto, which lets the server choose by ALPN
    /// [default: 1.1].
    #[arg(id = "http_version", long = "http-version", value_name = "VERSION")]
    pub version: Option<HttpVersion>,

    /// The method [default: GET, or POST if there is a body].
    #[arg(short = 'X', long)]
    pub method: Option<String>,

    /// Path and query, which may contain fields. Default: those of the target URL, or `/`.
    #[arg(skip)]
    pub path: Option<String>,

    #[command(flatten)]
    #[serde(skip)]
    pub(super) typed: TypedParts,

    /// Header fields; their values may contain template fields.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, MetadataSpec>,

    /// Over HTTP/1.1, keep the case in which the names of header fields are written [default: lower case, as in
    /// HTTP/2].
    #[arg(long, action = ArgAction::SetTrue)]
    pub typed_names: Option<bool>,

    /// The request's body, which may have fields.
    #[arg(
        help = "The body, or @FILE or @- (stdin) that holds it",
        short = 'd',
        long = "data",
        value_name = "BODY"
    )]
    pub body: Option<String>,

    /// A file that holds the body.
    #[arg(skip)]
    pub body_file: Option<PathBuf>,

    /// The parts of a form (`multipart/form-data`) in order, in place of a body.
    #[arg(skip)]
    pub form: Option<Vec<FormPartSpec>>,

    /// The Host to send [default: host:port of the target].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,

    /// Statuses of calls that succeed: `[200, 204]`, `["2xx"]`. Default `["2xx"]`.
    #[arg(
        help = "Statuses of calls that succeed: 200,204 or 2xx [default: 2xx]",
        long,
        value_name = "STATUS",
        value_delimiter = ','
    )]
    pub expect: Option<Vec<StatusSpec>>,

    /// Header fields that an answer must have, with these values; a list contains several values of one name, all of
    /// which must be there.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub expect_headers: BTreeMap<String, ExpectedValues>,

    /// Text that the body of an answer must contain.
    #[arg(long, value_name = "TEXT")]
    pub expect_body: Option<String>,

    /// The exact size of an answer's body as received; any other size fails with BODY_LENGTH.
    #[arg(long, value_name = "SIZE")]
    pub expect_size: Option<ByteSize>,

    /// The answer consists of events: sse (server-sent events), ndjson (one JSON document per line), openai
    /// (server-sent events with tokens, as `plimsoll llm` reads them); or of messages: grpc-web or connect, whose
    /// requests also send the body as a message.
    #[arg(long, value_name = "FORMAT")]
    pub stream: Option<StreamSpec>,

    /// The API of a language model, whose answers stream tokens: `chat`, `completions`, `responses` (OpenAI) or
    /// `messages` (Anthropic). With `stream = false`, and with `embeddings` and `rerank`, answers are not streamed, and
    /// tokens have no times.
    #[arg(skip)]
    pub api: Option<String>,

    /// The event that ends a stream successfully: its data, event:NAME or contains:TEXT
    /// [default: the end of the body; with openai `[DONE]`].
    #[arg(long, value_name = "EVENT")]
    pub stream_until: Option<String>,

    /// The event that reports an error: its data, event:NAME or contains:TEXT [default: one named error, or an object
    /// that begins with the key error and a value that is neither empty nor null].
    #[arg(long, value_name = "EVENT")]
    pub stream_error: Option<String>,

    /// End a stream of events, or the messages of a WebSocket, after this time, as a success, if it has no end of its
    /// own. The time counts from the head of the answer, on a WebSocket from the frame.
    #[arg(
        help = "End a stream of events after this time, as a success: for streams that have no end of their own",
        long,
        value_name = "TIME",
        value_parser = parse_seconds
    )]
    pub stream_duration: Option<Period>,

    /// Ask for compressed answers (gzip, deflate, br, zstd), and decompress them: bytes are counted as received and
    /// as decompressed.
    #[arg(long, action = ArgAction::SetTrue)]
    pub compressed: Option<bool>,

    /// Send a request that is answered with 429, or with 503 and Retry-After, up to N times more: after Retry-After, or
    /// else after a growing pause. Response times count from when it was due [default: such answers are failures].
    #[arg(long, value_name = "N")]
    pub retry_refused: Option<u32>,

    /// The longest wait before a request is sent again [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, requires = "retry_refused")]
    pub retry_wait: Option<Period>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: no limit below 4GiB; 256MiB for decompressed answers, and
    /// for whole answers of a model].
    #[arg(long, value_name = "SIZE")]
    pub max_body: Option<ByteSize>,

    /// Answers with a larger head (status line and fields) fail with HEAD_TOO_LARGE [default: 64KiB].
    #[arg(long, value_name = "SIZE")]
    pub max_head: Option<ByteSize>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<OptionalPeriod>,

    /// A tokenizer file (tokenizer.json) that also counts the tokens of answers; needs a build with the feature
    /// `tokenizers`.
    #[arg(skip)]
    pub tokenizer: Option<PathBuf>,

    /// The bounds that a successful answer of tokens must meet to count as good.
    #[arg(skip)]
    pub goodput: Option<GoodputSpec>,

    /// Each user makes several of these calls, and each request contains the conversation so far.
    #[arg(skip)]
    pub conversation: Option<ConversationSpec>,

    /// Open a WebSocket, and send the body over it as a frame with each call.
    #[arg(skip)]
    pub websocket: Option<WebSocketSpec>,

    /// The steps of a journey, which plans write as `[[steps]]`: requests that each user makes one after another, and
    /// whose answers give values to later requests. The other keys here are defaults for the steps.
    #[arg(skip)]
    pub steps: Option<Vec<StepSpec>>,
}

impl HttpSpec {
    /// Returns the names of header fields whose case is kept when they are sent.
    pub(super) fn case_preserved_names(&self) -> Vec<String> {
        match self.typed_names {
            Some(true) => self.headers.keys().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns what a proxy must understand to forward the calls of `spec`, whose call this is.
    pub(super) fn proxied_calls(&self, spec: &Spec) -> ProxiedCalls {
        ProxiedCalls {
            wire: self.wire_format(spec),
            calls_model: self.api.is_some() || self.stream_format() == Some("openai"),
        }
    }

    fn wire_format(&self, spec: &Spec) -> WireFormat {
        if self.websocket.is_some() {
            return WireFormat::Socket;
        }
        match self.version.unwrap_or_default() {
            HttpVersion::V2 => WireFormat::Http2,
            HttpVersion::Auto if spec.tls.is_some() => WireFormat::Http2,
            HttpVersion::V1 | HttpVersion::Auto => WireFormat::Http1,
        }
    }

    /// Returns the name of the stream format, if the plan sets one.
    pub(super) fn stream_format(&self) -> Option<&str> {
        match self.stream.as_ref()? {
            StreamSpec::Format(name) => Some(name),
            StreamSpec::Whole => None,
        }
    }

    /// Returns whether responses are read as events or as tokens of a model.
    pub(super) fn reads_events(&self) -> bool {
        self.stream.is_some() || self.api.is_some()
    }

    /// Returns the steps of the journey, if there is one.
    pub(super) fn journey_steps(&self) -> Option<&[StepSpec]> {
        self.steps.as_deref().filter(|steps| !steps.is_empty())
    }

    /// Returns the frames of the script, if there is one.
    pub(super) fn frames(&self) -> Option<&[FrameSpec]> {
        let socket = self.websocket.as_ref()?;
        socket.script.as_deref().filter(|script| !script.is_empty())
    }
}

/// The format of a stream, or `false` for a model that answers in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamSpec {
    /// The name of a format.
    Format(String),
    /// The answer of a model is one JSON document.
    Whole,
}

impl FromStr for StreamSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<StreamSpec, String> {
        Ok(match text {
            "false" => StreamSpec::Whole,
            name => StreamSpec::Format(name.to_owned()),
        })
    }
}

impl Serialize for StreamSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StreamSpec::Format(name) => serializer.serialize_str(name),
            StreamSpec::Whole => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for StreamSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StreamSpec, D::Error> {
        deserialize_text_or_number(deserializer, "a format such as \"sse\", or false")
    }
}

/// A part of a form: a field, or a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FormPartSpec {
    /// The field's name.
    pub name: String,
    /// The field's value, which may contain template fields.
    pub value: Option<String>,
    /// In place of `value`: a file, which is sent unchanged.
    pub file: Option<PathBuf>,
    /// The file name to send. Default: the last part of `file`; a `value` has none.
    pub filename: Option<String>,
    /// The content type of the part. Default: application/octet-stream for a file; a `value` has none.
    pub content_type: Option<String>,
}

/// The values that an answer must have under one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string, or a list of strings")]
pub enum ExpectedValues {
    /// A single value.
    One(String),
    /// Several values, all of which must be there.
    All(Vec<String>),
}

impl ExpectedValues {
    /// Returns the values in order.
    pub fn as_slice(&self) -> &[String] {
        match self {
            ExpectedValues::One(value) => std::slice::from_ref(value),
            ExpectedValues::All(values) => values,
        }
    }
}

/// The WebSocket that a request opens. The answer consists of messages: the first one, or all messages up to the one
/// that `stream_until` names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSocketSpec {
    /// Offer this subprotocol, or the subprotocols of a list; the server must accept one. Default: none.
    pub subprotocol: Option<MetadataSpec>,
    /// Send binary frames. Default: text.
    pub binary: Option<bool>,
    /// A message that the server sends on its own on each socket, and that is awaited before the first call: "any", its
    /// whole text, or contains:TEXT. Default: if sockets that were opened before the load received a message, later
    /// sockets also await one, for at most 1s.
    pub welcome: Option<String>,
    /// A frame that is sent once on each socket, before its first call. It may contain fields, which get the number of
    /// the socket.
    pub greeting: Option<String>,
    /// In place of the body: the frames that each user sends over its own socket.
    pub script: Option<Vec<FrameSpec>>,
}

/// Several calls of each user: each request contains the earlier messages, including the service's answers. Users pause
/// for `load.think` between an answer and their next turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConversationSpec {
    /// The number of calls of a user.
    pub turns: Option<u32>,
    /// The prompts of the turns after the first, in order, which may contain fields. Default: the last message of the
    /// request, rendered again.
    pub follow_ups: Option<Vec<String>>,
}

/// A frame of a script. Each frame that expects an answer is a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrameSpec {
    /// The frame's content, which may contain fields.
    pub body: Option<String>,
    /// The file that holds the content.
    pub body_file: Option<PathBuf>,
    /// Send a binary frame. Default: the socket's `binary`.
    pub binary: Option<bool>,
    /// Wait for an answer. Default true. A frame without an answer is sent right before the next frame.
    pub answer: Option<bool>,
    /// The message that ends the answer, written like `stream_until`. Default: the request's `stream_until`.
    pub until: Option<String>,
    /// Text that a message of the answer must contain. Default: the request's `expect_body`.
    pub expect: Option<String>,
    /// The pause between the end of the previous answer and this frame. Default: `load.think`.
    pub pace: Option<Period>,
}

impl FrameSpec {
    /// Reads a file of frames: a TOML document with a table `[[frames]]` for each.
    ///
    /// # Errors
    /// Returns an error if the text is not a TOML document of this form, or has no frames.
    pub fn parse_script(text: &str) -> Result<Vec<FrameSpec>, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct ScriptFile {
            frames: Vec<FrameSpec>,
        }
        let script: ScriptFile = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        if script.frames.is_empty() {
            Err("no frames".to_owned())
        } else {
            Ok(script.frames)
        }
    }
}

impl FromStr for HttpVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpVersion, String> {
        let named = HttpVersion::ALL.into_iter().find(|v| v.name() == text);
        named.ok_or_else(|| format!("`{text}` is not a valid HTTP version: use 1.1, 2 or auto"))
    }
}

impl Serialize for HttpVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for HttpVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HttpVersion, D::Error> {
        deserialize_text_or_number(deserializer, "a version of HTTP such as \"1.1\"")
    }
}

/// A status, or a class of them: `204`, `2xx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSpec {
    /// The lowest status.
    pub from: u16,
    /// The highest status, inclusive.
    pub to: u16,
}

impl FromStr for StatusSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<StatusSpec, String> {
        let wrong =
            || format!("`{text}` is not a valid status: write 200, or 2xx for a class of them");
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
        if self.from == self.to {
            write!(f, "{}", self.from)
        } else {
            write!(f, "{}xx", self.from / 100)
        }
    }
}

impl Serialize for StatusSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.from == self.to {
            serializer.serialize_u16(self.from)
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for StatusSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StatusSpec, D::Error> {
        deserialize_text_or_number(deserializer, "a status such as 200, or \"2xx\"")
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

//! A call over HTTP, resolved.

use std::borrow::Cow;
use std::time::Duration;

use plimsoll_model::plan::{Call, Goodput, TlsPlan, TokenCounter};
use plimsoll_model::redaction;
use plimsoll_model::template::{MetadataField, Template, TraceIds, Variation, trace_ids};

/// What a call is that makes a connection and nothing else.
const HANDSHAKE_NAME: &str = "handshake";

/// Which HTTP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// RFC 9112.
    #[default]
    V1,
    /// RFC 9113; in plaintext by prior knowledge.
    V2,
    /// Over TLS what the server chooses by ALPN, in plaintext 1.1.
    Auto,
}

impl HttpVersion {
    /// All versions, in the order in which messages list them.
    pub const ALL: [HttpVersion; 3] = [HttpVersion::V1, HttpVersion::V2, HttpVersion::Auto];

    /// Returns the name that flags and plans have for it.
    pub const fn name(self) -> &'static str {
        match self {
            HttpVersion::V1 => "1.1",
            HttpVersion::V2 => "2",
            HttpVersion::Auto => "auto",
        }
    }
}

/// One kind of request over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpCall {
    /// Which is spoken, or who chooses.
    pub version: HttpVersion,
    /// The request's method.
    pub method: String,
    /// Path and query, with the leading slash. Where they vary: as typed.
    pub path: String,
    /// `Host`; `None`: host:port of the target.
    pub host: Option<String>,
    /// In order, names in lower case. Values may be secret: the run directory keeps only the names.
    pub headers: Vec<(String, String)>,
    /// Names that HTTP/1.1 sends as they are here, whatever their case in `headers`.
    pub typed_names: Vec<String>,
    /// Empty: none.
    pub body: Vec<u8>,
    /// What differs from call to call; `None`: every call sends the same.
    pub varying: Option<VaryingHttp>,
    /// Statuses of calls that succeed, from and to.
    pub expect: Vec<(u16, u16)>,
    /// Fields that an answer has to have, names in lower case.
    pub expect_headers: Vec<(String, String)>,
    /// Text that a body has to hold.
    pub expect_body: Option<String>,
    /// Bytes that a body has to have, as it is received.
    pub expect_size: Option<u64>,
    /// Packed answers are asked for, and unpacked.
    pub compressed: bool,
    /// The path is a file's: a page that says that it is missing fails, whatever its status.
    pub is_file: bool,
    /// Connections are made, and nothing is sent over them.
    pub handshake_only: bool,
    /// The request opens a WebSocket, and its body is what each call sends over it.
    pub socket: Option<Box<SocketCall>>,
    /// `None`: a body is one piece.
    pub stream: Option<EventStream>,
    /// A stream that has lasted for so long is ended, and its call has succeeded.
    pub stream_duration: Option<Duration>,
    /// Streams that have brought events, and of which none has ended by itself, end with the load as a success.
    pub ends_with_load: bool,
    /// Counts the tokens of streamed answers, besides the service.
    pub tokenizer: Option<TokenCounter>,
    /// A user makes several such calls, each of which carries the messages so far.
    pub conversation: Option<Box<Conversation>>,
    /// Answers with a body larger than this fail with `MESSAGE_TOO_LARGE`. Bytes.
    pub max_body: u32,
    /// Answers with a larger head fail with `HEAD_TOO_LARGE`. Bytes.
    pub max_head: u32,
}

impl Call for HttpCall {
    fn names(&self) -> (&'static str, Cow<'_, str>) {
        if self.handshake_only {
            return ("http", HANDSHAKE_NAME.into());
        }
        let path = redaction::with_variables(&self.path);
        ("http", format!("{} {path}", self.method).into())
    }

    fn short_name(&self) -> Cow<'_, str> {
        if self.handshake_only {
            return HANDSHAKE_NAME.into();
        }
        let path = self.path.split(['?', '#']).next();
        format!("{} {}", self.method, path.unwrap_or_default()).into()
    }

    fn version(&self, tls: Option<&TlsPlan>) -> Option<&'static str> {
        (!self.handshake_only).then(|| self.version_over(tls).name())
    }

    fn calls_at_once(&self, tls: Option<&TlsPlan>) -> Option<u32> {
        let is_serial = self.socket.is_none() && self.version_over(tls).name() == "1.1";
        is_serial.then_some(1)
    }

    fn variation(&self) -> Option<&Variation> {
        self.varying.as_ref().map(|all| &all.variation)
    }

    fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        let varying = self.varying.as_ref();
        (&self.headers, varying.map_or(&[], |all| &all.headers))
    }

    fn path(&self) -> Option<&str> {
        Some(&self.path)
    }

    fn traced(&self, ids: TraceIds) -> Option<HttpCall> {
        let mut varying = self.varying.clone()?;
        varying.trace_ids()?;
        varying.variation = varying.variation.traced(ids);
        Some(HttpCall {
            varying: Some(varying),
            ..self.clone()
        })
    }

    fn token_counter(&self) -> Option<&TokenCounter> {
        self.tokenizer.as_ref()
    }

    fn calls_in_a_row(&self) -> Option<u32> {
        let of_socket = self
            .socket
            .as_ref()
            .and_then(|socket| match &*socket.script {
                [] => None,
                script => Some(script.iter().filter(|frame| frame.answer.is_some()).count() as u32),
            });
        let turns = self.conversation.as_ref().map(|talk| talk.turns);
        turns.or(of_socket)
    }
}

impl HttpCall {
    /// A request that was sent twice does what one does (RFC 9110, 9.2.2): by its method, or because the server knows
    /// by a key which requests are the same.
    pub(super) fn is_idempotent(&self) -> bool {
        let has_key = || {
            let varying = self.varying.iter().flat_map(|all| &all.headers);
            let names = self.headers.iter().map(|(name, _)| name.as_str());
            let mut names = names.chain(varying.map(|field| field.name.as_str()));
            names.any(|name| name == "idempotency-key")
        };
        let by_method = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"];
        by_method.contains(&&*self.method) || has_key()
    }

    /// A field's name as HTTP/1.1 sends it.
    pub(super) fn typed_name<'a>(&'a self, name: &'a str) -> &'a str {
        let mut typed = self.typed_names.iter();
        typed
            .find(|typed| typed.eq_ignore_ascii_case(name))
            .map_or(name, String::as_str)
    }

    /// The version that is spoken; `Auto` only where the server chooses.
    pub fn version_over(&self, tls: Option<&TlsPlan>) -> HttpVersion {
        match (self.version, tls) {
            // What goes out with the first bytes of TLS goes out before the server has chosen.
            (HttpVersion::Auto, Some(tls)) if !tls.early_data => HttpVersion::Auto,
            (HttpVersion::Auto, _) => HttpVersion::V1,
            (version, _) => version,
        }
    }
}

/// A call over a WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketCall {
    /// Offered, in order; the server has to take one, where there are any. They may be secret.
    pub subprotocols: Vec<String>,
    /// The message that is awaited before the first call.
    pub welcome: Option<Welcome>,
    /// Frames are binary.
    pub binary: bool,
    /// Sent once on each socket, before its first call: what all sockets send, or what it is made of.
    pub greeting: Option<(Vec<u8>, Option<VaryingBody>)>,
    /// The message that ends an answer; `None`: the first one.
    pub until: Option<EventMatch>,
    /// A message that reports an error.
    pub error: Option<EventMatch>,
    /// What each user sends, over a socket of its own; empty: calls share sockets, and send the
    /// request's body.
    pub script: Vec<FrameCall>,
}

/// A message that the server sends by itself on a socket that has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// Whatever it says.
    Any,
    /// This one; others before it answer no call.
    Message(EventMatch),
}

impl SocketCall {
    /// Sockets send different greetings.
    pub(super) fn greeting_varies(&self) -> bool {
        matches!(self.greeting, Some((_, Some(_))))
    }
}

/// A conversation with a model: the messages of a turn's request are those of the turn before, the
/// answer to it, and one more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// Calls of a user.
    pub turns: u32,
    /// Between the end of an answer and the next turn.
    pub think: Duration,
    /// What is said in the turns after the first, in turn; empty: the last message of the body, anew.
    pub follow_ups: Vec<VaryingBody>,
}

/// A frame of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameCall {
    /// The frame's content.
    pub payload: Vec<u8>,
    /// `None`: every user sends the same.
    pub varying: Option<VaryingBody>,
    /// A binary frame; else text.
    pub binary: bool,
    /// `None`: it is not answered, and goes out with the next one that is.
    pub answer: Option<FrameAnswer>,
    /// Before it, from the end of the answer before.
    pub pace: Duration,
}

/// What ends the call of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameAnswer {
    /// The message that ends it; `None`: the first one.
    pub until: Option<EventMatch>,
    /// Text that it has to hold.
    pub expect: Option<String>,
}

/// What of an HTTP request differs from call to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingHttp {
    /// What the fields are made of.
    pub variation: Variation,
    /// `None`: it does not vary.
    pub path: Option<Template>,
    /// Those that vary.
    pub headers: Vec<MetadataField>,
    /// `None`: it does not vary.
    pub body: Option<VaryingBody>,
}

impl VaryingHttp {
    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        trace_ids(&self.variation, &self.headers)
    }
}

/// A body whose fields are filled in anew for every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingBody {
    /// The text with its fields.
    pub template: Template,
    /// The text as it was given.
    pub typed: String,
    /// Which of its parts stand within a JSON string, where columns of rows are escaped.
    pub quoted: Vec<bool>,
}

/// An answer that comes in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventStream {
    /// How the body is divided.
    pub format: EventFormat,
    /// The event that ends a stream well; `None`: the end of the body does, and where events carry tokens `[DONE]`, or
    /// the end of a body in which the model has said why it stopped.
    pub until: Option<EventMatch>,
    /// The event that reports an error; `None`: one that looks like it.
    pub error: Option<EventMatch>,
    /// Events carry tokens, as OpenAI's API writes them; what a call has to meet to be counted as
    /// good.
    pub tokens: Option<Goodput>,
}

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFormat {
    /// Server-sent events (WHATWG HTML, 9.2).
    Sse,
    /// A JSON document a line.
    NdJson,
    /// Messages with a prefix, as gRPC-Web has them.
    Web,
    /// The same as the streams of the Connect protocol have them.
    Connect,
}

/// Which event is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventMatch {
    /// The event whose data are this, but for blanks at their ends.
    Data(String),
    /// The event whose data hold this.
    Contains(String),
    /// The event of this name.
    Named(String),
}

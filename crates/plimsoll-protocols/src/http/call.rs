//! An HTTP call with all defaults resolved.

use std::borrow::Cow;
use std::time::Duration;

use plimsoll_model::plan::{Call, Metric, Target, TimeMetric, TlsPlan, TokenCounter};
use plimsoll_model::rows::template::{
    MetadataField, Template, TraceIds, VariationSettings, trace_ids,
};
use plimsoll_model::{TimeMeasure, formats::redaction};

use super::llm_api::ModelResponseRules;
use super::refusals::RefusalRetries;
pub use super::replayed_parts::ReplayedParts;
use crate::journey::JourneyPlan;
use crate::shared::bearer_token::{self, TOKEN_VARIABLE};

// Reasons why responses can't have the metric that an objective limits.
const NO_MODEL_REASON: &str =
    "only answers of a language model have it: needs call.http.api (plimsoll llm)";
const NO_MESSAGES_REASON: &str = "answers are neither tokens nor messages: needs call.http.api or call.http.stream; first_byte \
                           is the time to the beginning of any answer";
const NO_TOKENS_REASON: &str =
    "embeddings and rankings are numbers, without tokens: limit the response time, as in p99";
const NOT_STREAMED_REASON: &str = "answers come as a whole (--no-stream, call.http.stream = false), so that nobody knows when \
                            their tokens came: stream them, or limit the response time, as in p99";
const TOKENS_NOT_MESSAGES_REASON: &str =
    "answers of a language model are timed by tokens: use ttft or itl";

/// The name of a call that only makes a connection.
const HANDSHAKE_NAME: &str = "handshake";

/// The version of HTTP that a call uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1 (RFC 9112).
    #[default]
    V1,
    /// HTTP/2 (RFC 9113); without TLS, by prior knowledge.
    V2,
    /// Over TLS, the version that the server chooses by ALPN; in plaintext, HTTP/1.1.
    Auto,
}

impl HttpVersion {
    /// All versions, in the order in which messages list them.
    pub const ALL: [HttpVersion; 3] = [HttpVersion::V1, HttpVersion::V2, HttpVersion::Auto];

    /// Returns the name in flags and plans.
    pub const fn name(self) -> &'static str {
        match self {
            HttpVersion::V1 => "1.1",
            HttpVersion::V2 => "2",
            HttpVersion::Auto => "auto",
        }
    }
}

/// What the calls of a plan are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallPurpose {
    /// Any request.
    #[default]
    Request,
    /// Fetching a file. An error page fails the call, even with status 200.
    File,
    /// Opening connections. Nothing is sent over them.
    Handshake,
}

/// An HTTP request, and the checks of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpCall {
    /// The version of HTTP.
    pub version: HttpVersion,
    /// The request's method.
    pub method: String,
    /// Path and query with the leading slash. A template is kept as the user wrote it.
    pub path: String,
    /// The `Host` field; `None` uses `host:port` of the target.
    pub host: Option<String>,
    /// Header fields in order, names in lower case. Values may be secret: the run directory keeps only the names.
    pub headers: Vec<(String, String)>,
    /// The names of `headers` with the capitalisation that HTTP/1.1 sends.
    pub typed_names: Vec<String>,
    /// The body; empty means none.
    pub body: Vec<u8>,
    /// The parts that differ from call to call; `None` if every call sends the same.
    pub varying: Option<VaryingRequest>,
    /// The parts of requests that come from the lines of a replayed file; `None` if the lines set none, or no file is
    /// replayed.
    pub replayed: Option<ReplayedParts>,
    /// Ranges of the statuses of successful calls, as first and last status.
    pub expect: Vec<(u16, u16)>,
    /// Header fields that a response must have, names in lower case.
    pub expect_headers: Vec<(String, String)>,
    /// Text that the body must contain.
    pub expect_body: Option<String>,
    /// The length that a body must have before it is decoded, in bytes.
    pub expect_size: Option<u64>,
    /// Whether to ask for compressed responses, and decode them.
    pub compressed: bool,
    /// What calls are for.
    pub purpose: CallPurpose,
    /// The WebSocket that is opened, if calls are its messages: each sends the body as a frame.
    pub socket: Option<Box<WebSocketCall>>,
    /// The rules by which the body is read as a stream of events; `None` if it is read as a whole.
    pub stream: Option<EventStream>,
    /// The time after which a stream is ended and counted as successful.
    pub stream_duration: Option<Duration>,
    /// Whether the end of the load also ends streams that have delivered events, as a success, unless some stream of
    /// the run has ended on its own.
    pub ends_with_load: bool,
    /// The counter for the tokens of streamed responses, in addition to the service's own count.
    pub tokenizer: Option<TokenCounter>,
    /// If set, each user makes several of these calls, and each request contains all messages so far.
    pub conversation: Option<Box<ConversationPlan>>,
    /// If set, each user sends the requests of these steps; the call itself is the first step's.
    pub journey: Option<Box<JourneyPlan>>,
    /// How often a request that the server refuses for now is sent again.
    pub refusal_retries: RefusalRetries,
    /// The maximum size of a body, in bytes; a larger one fails with `MESSAGE_TOO_LARGE`.
    pub max_body: u32,
    /// The maximum size of a head, in bytes; a larger one fails with `HEAD_TOO_LARGE`.
    pub max_head: u32,
}

impl Call for HttpCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        if self.purpose == CallPurpose::Handshake {
            return ("http", HANDSHAKE_NAME.into());
        }
        if let Some(journey) = &self.journey {
            return ("http", journey.name().into());
        }
        let path = redaction::replace_secrets_with_variables(&self.path);
        ("http", format!("{} {path}", self.method).into())
    }

    fn short_name(&self) -> Cow<'_, str> {
        if self.purpose == CallPurpose::Handshake {
            return HANDSHAKE_NAME.into();
        }
        if self.journey.is_some() {
            return "journey".into();
        }
        let path = self.path.split(['?', '#']).next();
        format!("{} {}", self.method, path.unwrap_or_default()).into()
    }

    fn protocol_version(&self, tls: Option<&TlsPlan>) -> Option<&'static str> {
        (self.purpose != CallPurpose::Handshake).then(|| self.resolved_version(tls).name())
    }

    fn max_concurrent_calls(&self, tls: Option<&TlsPlan>) -> Option<u32> {
        let is_serial = self.socket.is_none() && self.resolved_version(tls).name() == "1.1";
        is_serial.then_some(1)
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        if let Some(journey) = &self.journey {
            return Some(&journey.variation);
        }
        self.varying.as_ref().map(|all| &all.variation)
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        if let Some(journey) = &self.journey {
            return journey.fields();
        }
        let varying = self.varying.as_ref();
        (&self.headers, varying.map_or(&[], |all| &all.headers))
    }

    fn query_string_secrets(&self) -> Vec<(String, String)> {
        match &self.journey {
            Some(journey) => journey.query_secrets.clone(),
            None => redaction::query_string_secrets(&self.path),
        }
    }

    fn setting_secrets(&self) -> Vec<(String, String)> {
        let offered = self.socket.iter().flat_map(|socket| &socket.subprotocols);
        let offered: Vec<&str> = offered.map(String::as_str).collect();
        let token = bearer_token::find_token(&offered);
        let named = token.map(|token| (TOKEN_VARIABLE.to_owned(), token.to_owned()));
        named.into_iter().collect()
    }

    fn with_trace_ids(&self, ids: TraceIds) -> Option<HttpCall> {
        let journey = self.journey.as_ref();
        let journey = journey.map(|journey| Box::new(journey.with_trace_ids(ids)));
        let mut varying = self.varying.clone()?;
        varying.trace_ids()?;
        varying.variation = varying.variation.with_trace_ids(ids);
        Some(HttpCall {
            varying: Some(varying),
            journey,
            ..self.clone()
        })
    }

    fn missing_metric_reason(&self, metric: Metric) -> Option<&'static str> {
        match &self.journey {
            // A journey has the metric if the responses of any step can have it, so a reason is returned only if all
            // steps have one.
            Some(journey) => {
                let lacks: Option<Vec<_>> = journey
                    .calls()
                    .map(|call| call.missing_metric_reason(metric))
                    .collect();
                lacks?.first().copied()
            }
            None => self.missing_metric_reason_without_journey(metric),
        }
    }

    fn token_counter(&self) -> Option<&TokenCounter> {
        self.tokenizer.as_ref()
    }

    fn other_targets(&self) -> Vec<(&Target, bool)> {
        let journey = self.journey.as_ref();
        journey.map_or_else(Vec::new, |journey| journey.other_targets().collect())
    }

    fn other_targets_mut(&mut self) -> Vec<&mut Target> {
        let journey = self.journey.as_mut();
        journey.map_or_else(Vec::new, |journey| journey.other_targets_mut())
    }

    fn max_calls_per_journey(&self) -> Option<u32> {
        Some(self.journey.as_ref()?.max_calls())
    }

    fn calls_per_user(&self) -> Option<u32> {
        let of_socket = self
            .socket
            .as_ref()
            .and_then(|socket| match &*socket.script {
                [] => None,
                script => Some(script.iter().filter(|frame| frame.answer.is_some()).count() as u32),
            });
        let turns = self.conversation.as_ref().map(|talk| talk.turns);
        turns.or(of_socket).or(self.journey.as_ref().map(|_| 1))
    }
}

impl HttpCall {
    /// Returns why responses to this request can't have `metric`; `None` if they can.
    fn missing_metric_reason_without_journey(&self, metric: Metric) -> Option<&'static str> {
        let times_messages = self.stream.is_some() || self.socket.is_some();
        let is_first = matches!(metric, Metric::Time(TimeMetric::FirstToken, _));
        let stream = self.stream.as_ref();
        let Some(answers) = stream.and_then(|stream| stream.tokens) else {
            return match metric {
                metric if metric.is_about_tokens() => Some(NO_MODEL_REASON),
                // `FirstToken` is also the time to the first message of streams without tokens.
                _ => (is_first && !times_messages).then_some(NO_MESSAGES_REASON),
            };
        };
        let is_whole = stream.is_some_and(|stream| stream.format == EventFormat::Document);
        match metric {
            Metric::Time(
                TimeMetric::Measure(TimeMeasure::FirstMessage | TimeMeasure::InterMessage),
                _,
            ) => Some(TOKENS_NOT_MESSAGES_REASON),
            metric if !metric.is_about_tokens() && !is_first => None,
            _ if answers.api.computes_numbers => Some(NO_TOKENS_REASON),
            Metric::Finish(_) => None,
            _ => is_whole.then_some(NOT_STREAMED_REASON),
        }
    }

    /// Returns whether the request is idempotent (RFC 9110 §9.2.2), by its method or by an idempotency key.
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

    /// Returns a field's name with the capitalisation that HTTP/1.1 sends.
    pub(super) fn wire_name<'a>(&'a self, name: &'a str) -> &'a str {
        let mut typed = self.typed_names.iter();
        typed
            .find(|typed| typed.eq_ignore_ascii_case(name))
            .map_or(name, String::as_str)
    }

    /// Returns the version that is used with these TLS settings; `Auto` only if the server chooses it.
    pub fn resolved_version(&self, tls: Option<&TlsPlan>) -> HttpVersion {
        match (self.version, tls) {
            // A request sent as early data needs a fixed version, because the server has not chosen one yet.
            (HttpVersion::Auto, Some(tls)) if !tls.early_data => HttpVersion::Auto,
            (HttpVersion::Auto, _) => HttpVersion::V1,
            (version, _) => version,
        }
    }
}

/// Settings of calls over a WebSocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebSocketCall {
    /// Subprotocols to offer, in order of preference; the server must accept one of them. They may be secret.
    pub subprotocols: Vec<String>,
    /// The message from the server that must arrive before the first call.
    pub welcome: Option<WelcomeMessage>,
    /// Whether frames are binary instead of text.
    pub binary: bool,
    /// The frame that is sent once on each socket, before its first call: its constant bytes, and its template if it
    /// varies.
    pub greeting: Option<(Vec<u8>, Option<VaryingBody>)>,
    /// The message that ends a response; `None` means the first message.
    pub until: Option<EventMatch>,
    /// The message that reports an error.
    pub error: Option<EventMatch>,
    /// The frames that each user sends over its own socket. If empty, calls share sockets, and each sends the request's
    /// body.
    pub script: Vec<FrameCall>,
}

/// A message that the server sends on its own after a socket has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WelcomeMessage {
    /// Any message.
    Any,
    /// A message that matches; earlier messages are skipped.
    Message(EventMatch),
}

impl WebSocketCall {
    /// Returns whether the greeting differs between sockets.
    pub(super) fn greeting_varies(&self) -> bool {
        matches!(self.greeting, Some((_, Some(_))))
    }
}

/// A conversation with a model: the request of each turn repeats all earlier messages and answers, and adds one
/// message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationPlan {
    /// The number of turns of each user.
    pub turns: u32,
    /// The pause between an answer and the next turn.
    pub think: Duration,
    /// The user messages of the turns after the first, repeated in order; if empty, the last message of the body is
    /// rendered again.
    pub follow_ups: Vec<VaryingBody>,
}

/// A frame of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameCall {
    /// The frame's payload.
    pub payload: Vec<u8>,
    /// The template; `None` if every user sends the same.
    pub varying: Option<VaryingBody>,
    /// Sends a binary frame instead of a text frame.
    pub binary: bool,
    /// How the frame's response ends. `None`: the frame has no response, and is sent together with the next frame that
    /// has one.
    pub answer: Option<FrameAnswer>,
    /// The pause between the previous response and this frame.
    pub pace: Duration,
}

/// How the response to a frame ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameAnswer {
    /// The message that ends the response; `None` means the first message.
    pub until: Option<EventMatch>,
    /// Text that this message must contain.
    pub expect: Option<String>,
}

/// The parts of an HTTP request that differ from call to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingRequest {
    /// The source of the values that fill the templates.
    pub variation: VariationSettings,
    /// The path; `None` if it does not vary.
    pub path: Option<Template>,
    /// The header fields that vary.
    pub headers: Vec<MetadataField>,
    /// The body; `None` if it does not vary.
    pub body: Option<VaryingBody>,
    /// What a journey's step expects of its response; `None` if it does not vary.
    pub expectations: Option<Box<VaryingExpectations>>,
}

impl VaryingRequest {
    pub(super) fn trace_ids(&self) -> Option<TraceIds> {
        trace_ids(&self.variation, &self.headers)
    }
}

/// The expectations of a journey's step whose texts have fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VaryingExpectations {
    /// The text that the body must contain; `None` if it does not vary.
    pub(super) body: Option<Template>,
    /// Header fields that the response must have, names in lower case.
    pub(super) headers: Vec<(String, Template)>,
}

/// A body whose template is filled in for every call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingBody {
    /// The template.
    pub template: Template,
    /// The text of the template, as the user wrote it.
    pub typed: String,
    /// For each part of the template, whether it is within a JSON string, where values of columns are escaped.
    pub quoted: Vec<bool>,
}

/// How a streamed response is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventStream {
    /// The format of the events.
    pub format: EventFormat,
    /// The event that ends a stream successfully; `None` means the end of the body. If events carry tokens, `None`
    /// means one of three ends: `[DONE]`, the API's own last event, or the end of the body after a finish reason.
    pub until: Option<EventMatch>,
    /// The event that reports an error. `None`: common forms of errors are recognised.
    pub error: Option<EventMatch>,
    /// The rules by which tokens are read from events, and by which responses count as good; `None` if events carry no
    /// tokens.
    pub tokens: Option<ModelResponseRules>,
}

/// The format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFormat {
    /// Server-sent events (WHATWG HTML, 9.2).
    Sse,
    /// One JSON document per line.
    NdJson,
    /// Length-prefixed messages of gRPC-Web.
    Web,
    /// Length-prefixed messages of the Connect protocol.
    Connect,
    /// The whole body is one JSON document, which is the only event.
    Document,
}

/// How an event is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventMatch {
    /// The event's data equal this text, ignoring white space at both ends.
    Data(String),
    /// The event's data contain this text.
    Contains(String),
    /// The event has this name.
    Named(String),
}

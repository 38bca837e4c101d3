//! A resolved gRPC call, from which the driver prepares its requests.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::plan::{Call, Target};
use plimsoll_model::rows::template::{
    MessageRenderer, MetadataField, TraceIds, VariationSettings, VaryingMessages, VaryingMetadata,
};

use crate::http::VaryingBody;
use crate::journey::{JourneyPlan, MessageCheck, SharedAnswerReader};

/// A message in the protobuf encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryMessage {
    /// The message, without gRPC's prefix.
    pub bytes: Vec<u8>,
    /// The message's origin, for error messages.
    pub source: String,
}

/// A method of the schema, with messages encoded for it.
#[derive(Clone, Debug)]
pub(super) struct EncodedMethod {
    /// `package.Service/Method`.
    pub method: String,
    pub kind: MethodKind,
    /// One message, or several for a stream whose JSON was a list. If messages vary: the messages of the first call.
    pub messages: Vec<Vec<u8>>,
    /// The renderers of varying messages; empty: every call sends the same messages.
    pub varying: Vec<Arc<dyn MessageRenderer>>,
    /// The layout that responses must have; `None`: not checked.
    pub answer_shapes: Option<Arc<MessageShapes>>,
    /// The reader of values in responses; `None`: the method is not described.
    pub answer_schema: Option<SharedAnswerReader>,
}

/// The messages as the plan gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PlanMessages {
    /// Every call sends the empty message.
    #[default]
    EmptyMessage,
    /// JSON text: a message or a list of messages.
    Json(String),
    /// Messages in the protobuf encoding.
    Binary(Vec<BinaryMessage>),
}

/// A gRPC call with its message encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcCall {
    /// `package.Service/Method`, without the leading slash.
    pub method: String,
    /// The request message in the protobuf encoding, without the gRPC prefix. If messages vary: the message of the
    /// first call. Streams have their messages in `stream`.
    pub message: Vec<u8>,
    /// The varying messages; `None`: every call sends the same messages.
    pub varying: Option<VaryingMessages>,
    /// The messages as the plan gives them, for the run directory.
    pub plan_messages: PlanMessages,
    /// ASCII metadata in order; `-bin` values already in base64. Values may be secret: the run directory
    /// keeps only the names.
    pub metadata: Vec<(String, String)>,
    /// The metadata that differs from call to call; `None`: all metadata is constant.
    pub varying_metadata: Option<VaryingMetadata>,
    /// The value of `:authority`; `None`: host:port of the target.
    pub authority: Option<String>,
    /// The value of `user-agent`; `None`: this program and its version.
    pub user_agent: Option<String>,
    /// The compression of requests, also offered for responses.
    pub compression: Option<MessageCompression>,
    /// Maximum size of an uncompressed message, in bytes. Responses with a larger message fail with
    /// `MESSAGE_TOO_LARGE`.
    pub max_message: usize,
    /// Maximum size of metadata in bytes, at least 64 KiB. Responses with larger metadata fail with `HEAD_TOO_LARGE`.
    pub max_head: u32,
    /// The plan of a streaming call; `None`: the call is unary.
    pub stream: Option<StreamPlan>,
    /// The layout that response messages must have; `None`: not checked.
    pub answer_shapes: Option<Arc<MessageShapes>>,
    /// The reader of values in responses; `None`: the method is not described.
    pub answer_schema: Option<SharedAnswerReader>,
    /// The varying content that responses to a journey's step must have; `None`: it does not vary.
    pub varying_answer: Option<Box<VaryingAnswer>>,
    /// The journey that each user makes; `None`: single calls. If it is set, the other fields describe its first step.
    pub journey: Option<Box<JourneyPlan>>,
}

impl Call for GrpcCall {
    fn protocol_and_call_name(&self) -> (&'static str, Cow<'_, str>) {
        match &self.journey {
            Some(journey) => ("grpc", journey.name().into()),
            None => ("grpc", self.method.as_str().into()),
        }
    }

    fn short_name(&self) -> Cow<'_, str> {
        match &self.journey {
            Some(_) => "journey".into(),
            None => self.method.rsplit('/').next().unwrap_or_default().into(),
        }
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
        self.journey.as_ref().map(|_| 1)
    }

    fn variation_settings(&self) -> Option<&VariationSettings> {
        if let Some(journey) = &self.journey {
            return Some(&journey.variation);
        }
        let of_metadata = self.varying_metadata.as_ref().map(|m| &m.variation);
        self.varying.as_ref().map(|v| &v.variation).or(of_metadata)
    }

    fn header_fields(&self) -> (&[(String, String)], &[MetadataField]) {
        if let Some(journey) = &self.journey {
            return journey.fields();
        }
        let varying = self.varying_metadata.as_ref();
        (&self.metadata, varying.map_or(&[], |all| &all.fields))
    }

    fn with_trace_ids(&self, ids: TraceIds) -> Option<GrpcCall> {
        let journey = self.journey.as_ref();
        let journey = journey.map(|journey| Box::new(journey.with_trace_ids(ids)));
        Some(GrpcCall {
            varying_metadata: Some(self.varying_metadata.as_ref()?.with_trace_ids(ids)?),
            journey,
            ..self.clone()
        })
    }
}

/// The parts of messages' layouts that decide whether bytes are a valid message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageShapes {
    /// The full name of the top-level message type.
    pub name: String,
    /// The shape of the top-level message type, followed by the shapes of the types that it refers to.
    pub shapes: Vec<MessageShape>,
    /// The content that each message must have; `None`: any.
    pub expected: Option<ExpectedAnswer>,
}

/// The content that responses to a journey's step must have, with fields for the values of its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaryingAnswer {
    /// The source of the values that fill the template.
    pub variation: VariationSettings,
    /// The expected fields, as a JSON object.
    pub json: VaryingBody,
}

/// The content that messages must have.
#[derive(Clone)]
pub struct ExpectedAnswer {
    json: String,
    check: MessageCheck,
}

impl ExpectedAnswer {
    /// Creates the expectation that `json` describes and `check` tests.
    pub fn new(json: &str, check: MessageCheck) -> ExpectedAnswer {
        let json = json.to_owned();
        ExpectedAnswer { json, check }
    }

    /// Checks a message in the protobuf encoding.
    ///
    /// # Errors
    /// Returns a description of the first difference.
    pub fn check(&self, message: &[u8]) -> Result<(), String> {
        (self.check)(message)
    }
}

impl fmt::Debug for ExpectedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExpectedAnswer").field(&self.json).finish()
    }
}

impl PartialEq for ExpectedAnswer {
    fn eq(&self, other: &ExpectedAnswer) -> bool {
        self.json == other.json
    }
}

impl Eq for ExpectedAnswer {}

/// The layout of one message type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageShape {
    /// Fields in the order of their numbers. Fields that accept any bytes are left out.
    pub fields: Vec<(u32, FieldShape)>,
}

/// The content of a field of a [`MessageShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldShape {
    /// A string that must be UTF-8.
    Text,
    /// A message, by its index in [`MessageShapes::shapes`].
    Message(usize),
}

impl MessageShapes {
    /// Returns the content of a field; `None`: any bytes are valid.
    #[inline]
    pub fn field_shape(&self, shape: usize, field: u32) -> Option<FieldShape> {
        let parts = &self.shapes.get(shape)?.fields;
        let place = parts.binary_search_by_key(&field, |(number, _)| *number);
        place.ok().map(|place| parts[place].1)
    }
}

/// The compression of messages (gRPC over HTTP/2, "Message-Encoding").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageCompression {
    /// gzip (RFC 1952).
    Gzip,
}

/// The kind of a method: which sides send a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// One request, one response.
    Unary,
    /// One request, any number of responses.
    ServerStreaming,
    /// Any number of requests, one response.
    ClientStreaming,
    /// Any number of requests and responses.
    Bidirectional,
}

impl MethodKind {
    /// Returns true if the client sends a stream of messages.
    pub fn is_client_streaming(self) -> bool {
        matches!(
            self,
            MethodKind::ClientStreaming | MethodKind::Bidirectional
        )
    }

    /// Returns true if the server sends a stream of messages.
    pub fn is_server_streaming(self) -> bool {
        matches!(
            self,
            MethodKind::ServerStreaming | MethodKind::Bidirectional
        )
    }
}

impl fmt::Display for MethodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MethodKind::Unary => "unary",
            MethodKind::ServerStreaming => "server streaming",
            MethodKind::ClientStreaming => "client streaming",
            MethodKind::Bidirectional => "bidirectional streaming",
        })
    }
}

/// The plan of a streaming call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// The kind of the method, never [`MethodKind::Unary`].
    pub kind: MethodKind,
    /// The encoded messages, without a prefix. They are sent in order and repeated cyclically.
    pub messages: Vec<Vec<u8>>,
    /// The number of messages that the client sends on a call. It half-closes with the last.
    pub count: u32,
    /// When the messages after the first are sent.
    pub pace: StreamPace,
    /// The number of messages that the server must send on a call; `None`: any number.
    pub expect: Option<u32>,
    /// The number of messages from the server after which the client cancels the call (0: at once), which counts as a
    /// success.
    pub cancel_after: Option<u32>,
    /// The time after which the client ends the call, which counts as a success.
    pub duration: Option<Duration>,
}

/// When a stream's messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPace {
    /// All messages are sent at once, as far as the flow-control windows allow.
    None,
    /// Message k is due k gaps after the stream's start.
    Every(Duration),
    /// Each message is sent after the response to the one before it.
    Answers,
}

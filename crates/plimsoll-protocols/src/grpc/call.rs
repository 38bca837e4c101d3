//! A gRPC call, resolved.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::plan::Call;
use plimsoll_model::template::{
    MetadataField, Render, TraceIds, Variation, Varying, VaryingMetadata,
};

/// A message in the protobuf encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryMessage {
    /// The message, without gRPC's prefix.
    pub bytes: Vec<u8>,
    /// Where it comes from, in words for an error.
    pub source: String,
}

/// A method that exists and a message that fits it.
#[derive(Clone, Debug)]
pub(super) struct EncodedCall {
    /// `package.Service/Method`.
    pub method: String,
    pub kind: MethodKind,
    /// One; or several for a stream, where the JSON was a list. Where they vary: as the
    /// first call has them.
    pub messages: Vec<Vec<u8>>,
    /// What makes each call's own of them; empty: every call sends the same.
    pub varying: Vec<Arc<dyn Render>>,
    /// What an answer has to be; `None`: anything.
    pub answer: Option<Arc<Shapes>>,
}

/// What a plan has for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GivenMessages {
    /// Every call sends the empty message.
    #[default]
    Nothing,
    /// JSON text: a message, or a list of them.
    Json(String),
    /// Messages in the protobuf encoding.
    Binary(Vec<BinaryMessage>),
}

/// One kind of gRPC call, its message encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcCall {
    /// `package.Service/Method`, without the leading slash.
    pub method: String,
    /// The request message in the protobuf encoding, without the gRPC prefix. Streams
    /// have theirs in `stream`. Where messages vary: as the first call has it.
    pub message: Vec<u8>,
    /// `None`: every call sends the same.
    pub varying: Option<Varying>,
    /// The messages as the plan has them, for the record.
    pub given: GivenMessages,
    /// ASCII metadata in order; `-bin` values already in base64. Values may be secret:
    /// the run directory keeps only the names.
    pub metadata: Vec<(String, String)>,
    /// Those that differ from call to call. `None`: there are none.
    pub varying_metadata: Option<VaryingMetadata>,
    /// `:authority`; `None`: host:port of the target.
    pub authority: Option<String>,
    /// `user-agent`; `None`: this program and its version.
    pub user_agent: Option<String>,
    /// The compression of requests, which is offered for answers, too.
    pub compression: Option<Compression>,
    /// Answers with a message larger than this fail with `MESSAGE_TOO_LARGE`, unpacked
    /// where it was compressed. Bytes.
    pub max_message: usize,
    /// Answers with larger metadata fail with `HEAD_TOO_LARGE`. Bytes; 64 KiB at least.
    pub max_head: u32,
    /// `None`: the call is unary.
    pub stream: Option<StreamPlan>,
    /// What an answer's message has to be; `None`: anything.
    pub answer: Option<Arc<Shapes>>,
}

impl Call for GrpcCall {
    fn names(&self) -> (&'static str, Cow<'_, str>) {
        ("grpc", self.method.as_str().into())
    }

    fn variation(&self) -> Option<&Variation> {
        let of_metadata = self.varying_metadata.as_ref().map(|m| &m.variation);
        self.varying.as_ref().map(|v| &v.variation).or(of_metadata)
    }

    fn fields(&self) -> (&[(String, String)], &[MetadataField]) {
        let varying = self.varying_metadata.as_ref();
        (&self.metadata, varying.map_or(&[], |all| &all.fields))
    }

    fn traced(&self, ids: TraceIds) -> Option<GrpcCall> {
        Some(GrpcCall {
            varying_metadata: Some(self.varying_metadata.as_ref()?.traced(ids)?),
            ..self.clone()
        })
    }
}

/// How messages are laid out, as far as it decides whether bytes are one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shapes {
    /// The full name of the first.
    pub name: String,
    /// A message, then those that it is made of.
    pub shapes: Vec<Shape>,
}

/// One kind of message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// By field number, in order. Fields of any bytes are left out.
    pub parts: Vec<(u32, Part)>,
}

/// What a field of a [`Shape`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// UTF-8.
    Text,
    /// A message, by its place in [`Shapes::shapes`].
    Message(usize),
}

impl Shapes {
    /// What a field of a shape holds; `None`: any bytes.
    #[inline]
    pub fn part(&self, shape: usize, field: u32) -> Option<Part> {
        let parts = &self.shapes.get(shape)?.parts;
        let place = parts.binary_search_by_key(&field, |(number, _)| *number);
        place.ok().map(|place| parts[place].1)
    }
}

/// How messages are packed (gRPC over HTTP/2, "Message-Encoding").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip (RFC 1952).
    Gzip,
}

/// Which sides of a call send a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// One request, one answer.
    Unary,
    /// One request, any number of answers.
    ServerStreaming,
    /// Any number of requests, one answer.
    ClientStreaming,
    /// Any number of both.
    Bidirectional,
}

impl MethodKind {
    /// The client sends a stream of messages.
    pub fn client_streams(self) -> bool {
        matches!(
            self,
            MethodKind::ClientStreaming | MethodKind::Bidirectional
        )
    }

    /// The server sends a stream of messages.
    pub fn server_streams(self) -> bool {
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

/// A call that carries several messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// Not [`MethodKind::Unary`].
    pub kind: MethodKind,
    /// Encoded, without a prefix; sent in turn, and after the last the first again.
    pub messages: Vec<Vec<u8>>,
    /// Messages that the client sends on a call; it half-closes with the last.
    pub count: u32,
    /// When the messages after the first are sent.
    pub pace: Pace,
    /// Messages that the server has to send on a call; `None`: as many as it likes.
    pub expect: Option<u32>,
    /// The client cancels the call after so many messages from the server (0: at once),
    /// and that is its good end.
    pub cancel_after: Option<u32>,
    /// The client ends the call after so long, and that is its good end.
    pub duration: Option<Duration>,
}

/// When a stream's messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// All at once, as the windows allow.
    None,
    /// Message k is due k gaps after the stream's beginning.
    Every(Duration),
    /// Each when the one before it was answered.
    Answers,
}

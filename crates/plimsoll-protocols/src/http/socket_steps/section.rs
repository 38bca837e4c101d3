//! The keys of a step over a WebSocket, as written in a plan.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_model::formats::units::{ByteSize, Period};
use plimsoll_model::spec::MetadataSpec;
use serde::{Deserialize, Serialize};
use toml::Value;

use crate::journey::MessageTypeSpec;

/// A step over a WebSocket. It does one or more of these, in this order: it opens the socket, sends frames, awaits
/// messages, and closes the socket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SocketStepSpec {
    /// Path and query of the socket that the step opens, which may contain fields. A step without a path uses the
    /// socket that an earlier step has opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Header fields of the upgrade request; their values may contain template fields.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, MetadataSpec>,
    /// The `Host` of the upgrade request. Default: host:port of the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The subprotocol to offer, or a list of them, which may contain fields; the server must accept one. Default:
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subprotocol: Option<MetadataSpec>,
    /// Offer to compress messages (permessage-deflate).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<bool>,
    /// The maximum size of a message on the socket; a larger message fails the step with MESSAGE_TOO_LARGE. Default
    /// 16MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message: Option<ByteSize>,
    /// How often in a row to open the socket again when it is lost, before its steps fail; where steps await tokens,
    /// the service is asked to continue after the last one. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnects: Option<u32>,
    /// The longest pause before the first attempt; it doubles each time. Default 1s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnect_pause: Option<Period>,
    /// The longest pause before any attempt. Default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnect_pause_most: Option<Period>,
    /// The frame to send, or a list of frames: texts which may contain fields, or bytes as `{ hex = "0a03" }`, `{ base64 = "CgM=" }`
    /// or `{ file = "frame.bin" }`, which are sent as binary frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send: Option<FramesSpec>,
    /// Send texts, too, as binary frames. Default: as text frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<bool>,
    /// The message to await, or how many messages. Default: 1 for a step that sends, and for one that neither opens nor
    /// closes the socket; otherwise 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<MessageMatchSpec>,
    /// Await the tokens of a query up to its `done`, and check that each arrives once and in order. Their number, also
    /// as a text with fields such as `"{{tokens}}"`, or true if only `done` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokensSpec>,
    /// A message that reports an error, and fails the step with EVENT_ERROR.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<MessageMatchSpec>,
    /// At least one of the awaited messages must match this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<MessageMatchSpec>,
    /// The type of binary messages, such as `{ message = "chat.v1.Event", proto = ["chat.proto"] }`: they are read as
    /// JSON, except by hex and base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protobuf: Option<MessageTypeSpec>,
    /// Close the socket at the end of the step, and wait until the server has closed it, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub close: Option<bool>,
}

impl SocketStepSpec {
    /// Returns whether the step opens a socket.
    pub(super) fn opens(&self) -> bool {
        self.path.is_some()
    }

    /// Returns whether the step closes the socket.
    pub(super) fn closes(&self) -> bool {
        self.close == Some(true)
    }

    /// Returns the frames to send.
    pub(super) fn frames(&self) -> &[SentFrameSpec] {
        match &self.send {
            None => &[],
            Some(FramesSpec::One(frame)) => std::slice::from_ref(frame),
            Some(FramesSpec::Several(frames)) => frames,
        }
    }
}

/// The frames to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, bytes such as { hex = \"0a03\" } (base64, file), or a list of these"
)]
pub enum FramesSpec {
    /// Several frames. This variant is tried first, since a list can also be read as the fields of a table.
    Several(Vec<SentFrameSpec>),
    /// A single frame.
    One(SentFrameSpec),
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, or bytes such as { hex = \"0a03\" } (base64, file)"
)]
pub enum SentFrameSpec {
    /// A text with fields.
    Text(String),
    /// Bytes.
    Bytes(FrameBytesSpec),
}

/// The bytes of a binary frame; exactly one key is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrameBytesSpec {
    /// Hexadecimal digits; blanks between them are ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// Base64 (RFC 4648, 4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// A file with the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// How a message is recognised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a message such as \"done\" or \"contains:done\", a number of messages, or a table such as { \
                 json = \"/type\", equals = \"done\" }"
)]
pub enum MessageMatchSpec {
    /// This many messages.
    Messages(u32),
    /// The whole message, or `contains:TEXT`.
    Text(String),
    /// A table for a part of the message.
    Part(MessagePartSpec),
}

/// The tokens that a step awaits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of tokens, a text with fields such as \"{{tokens}}\", or true"
)]
pub enum TokensSpec {
    /// Any number of tokens (`true`): the service's `done` says how many.
    Any(bool),
    /// A fixed number of tokens.
    Number(u64),
    /// A number of tokens with template fields.
    Text(String),
}

/// A value in a message, or a regular expression that the message matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessagePartSpec {
    /// A JSON Pointer (RFC 6901) to a value that the message must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// The value at the pointer: a text, which may contain fields, a number, true or false. Default: any value but
    /// null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
    /// A regular expression that the message must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The bytes of the message in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
    /// The bytes of the message in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Where in the message the bytes of `hex` or `base64` are, from 0. Default: they are the whole message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u32>,
}

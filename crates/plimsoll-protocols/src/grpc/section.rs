//! `[call.grpc]`: a call of a method, as typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_model::spec::{Limit, MetadataSpec};
use plimsoll_model::units::{Period, Size, UnitError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::binary::BinarySpec;

/// One kind of gRPC call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcSpec {
    /// `package.Service/Method`.
    pub method: Option<String>,
    /// `.proto` files that describe the method.
    pub proto: Option<Vec<PathBuf>>,
    /// Where imports of the `.proto` files are looked for.
    pub import_path: Option<Vec<PathBuf>>,
    /// A descriptor set (`protoc --descriptor_set_out --include_imports`).
    pub descriptor_set: Option<PathBuf>,
    /// Ask the server what the method is (server reflection). Default: where the method is
    /// none of the built-in services', and neither `proto` nor `descriptor_set` is given.
    pub reflection: Option<bool>,
    /// The request message: a table, or its JSON text, with fields such as `{{seq}}` where
    /// it varies from call to call. Default: the empty message.
    pub message: Option<MessageSpec>,
    /// Streams: messages that the client sends on a call. Default: as many as are given.
    pub messages: Option<u32>,
    /// Streams: `"50ms"` between two messages of a call, `"answers"`: each after the
    /// answer to the one before, or `"none"` (the default).
    pub pace: Option<PaceSpec>,
    /// Streams: messages that the server must send on a call. Default: any number.
    pub expect: Option<u32>,
    /// Streams: the client cancels after so many messages from the server; 0: at once.
    pub cancel_after: Option<u32>,
    /// Streams: the client ends the call after this time, as a success.
    pub stream_duration: Option<Period>,
    /// A file that holds the message's JSON.
    pub message_file: Option<PathBuf>,
    /// The message in the protobuf encoding, or several, in place of JSON.
    pub message_binary: Option<BinarySpec>,
    /// Metadata sent with every call.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, MetadataSpec>,
    /// `:authority`. Default: host:port of the target.
    pub authority: Option<String>,
    /// `user-agent`. Default: this program and its version.
    pub user_agent: Option<String>,
    /// `"gzip"`: requests are compressed, and answers may be. Default `"none"`.
    pub compression: Option<String>,
    /// Larger answers fail with `MESSAGE_TOO_LARGE`. Default 4MiB.
    pub max_message: Option<Size>,
    /// The call's deadline, or "none". Default 10s.
    pub deadline: Option<Limit>,
}

/// A message as JSON text. Typed as a table, or as a string of JSON; where a call sends a
/// stream of messages it may be a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageSpec(pub String);

impl<'de> Deserialize<'de> for MessageSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MessageSpec, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(MessageSpec(text)),
            value @ (serde_json::Value::Object(_) | serde_json::Value::Array(_)) => {
                Ok(MessageSpec(value.to_string()))
            }
            other => Err(de::Error::custom(format!(
                "`{other}` is not a message: write a table, such as {{ id = 1 }}, or its JSON as a string"
            ))),
        }
    }
}

/// When the messages of a stream are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceSpec {
    None,
    Answers,
    Every(Period),
}

impl std::str::FromStr for PaceSpec {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<PaceSpec, Self::Err> {
        match text.trim() {
            "none" => Ok(PaceSpec::None),
            "answers" => Ok(PaceSpec::Answers),
            text => text.parse().map(PaceSpec::Every),
        }
    }
}

impl Serialize for PaceSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            PaceSpec::None => serializer.serialize_str("none"),
            PaceSpec::Answers => serializer.serialize_str("answers"),
            PaceSpec::Every(period) => period.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for PaceSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PaceSpec, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|e| de::Error::custom(format!("{e}; or \"answers\", or \"none\"")))
    }
}

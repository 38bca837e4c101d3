//! `[call.grpc]` and the flags of a gRPC call, before they are resolved.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{ArgAction, Args};
use plimsoll_model::formats::units::{ByteSize, Period, parse_seconds};
use plimsoll_model::spec::{MetadataSpec, OptionalPeriod};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::binary::BinarySpec;
use super::call::StreamPace;
use crate::interface::flags::CredentialFlags;
use crate::journey::StepSpec;

/// One kind of gRPC call.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcSpec {
    /// The method to call: package.Service/Method.
    #[arg(short, long, alias = "call", help_heading = "Call")]
    pub method: Option<String>,

    /// The request message: a table, or its JSON text, with fields such as `{{seq}}` where it varies from call to call.
    /// Default: the empty message.
    #[arg(
        help = "The message as JSON, or a list of them (a stream's; else calls take them in turn); @FILE or @- (stdin) that holds it, or a message a line [default: the empty message]",
        id = "grpc_message",
        short = 'd',
        long = "data",
        value_name = "JSON",
        help_heading = "Call"
    )]
    pub message: Option<MessageSpec>,

    /// A file that holds the message's JSON.
    #[arg(skip)]
    pub message_file: Option<PathBuf>,

    /// The message in the protobuf encoding, or several, instead of JSON.
    #[arg(skip)]
    pub message_binary: Option<BinarySpec>,

    /// A message in the protobuf encoding, @FILE or @- (stdin), instead of --data; repeatable: a stream sends them all,
    /// otherwise calls take them in turn.
    #[arg(long, value_name = "@FILE", help_heading = "Call")]
    #[serde(skip)]
    pub(super) data_binary: Vec<String>,

    /// Like --data-binary, with several messages in a file, each prefixed with its length as a varint (protobuf's
    /// delimited format).
    #[arg(long, value_name = "@FILE", help_heading = "Call")]
    #[serde(skip)]
    pub(super) data_delimited: Vec<String>,

    /// `.proto` files that describe the method.
    #[arg(
        help = "A .proto file that describes the method; repeatable",
        long,
        value_name = "FILE",
        help_heading = "Call"
    )]
    pub proto: Option<Vec<PathBuf>>,

    /// Directories to search for imports of the `.proto` files.
    #[arg(
        help = "Directory to search for imports of --proto; repeatable",
        long,
        value_name = "DIR",
        help_heading = "Call"
    )]
    pub import_path: Option<Vec<PathBuf>>,

    /// A descriptor set that describes the method (protoc --descriptor_set_out --include_imports).
    #[arg(long, value_name = "FILE", help_heading = "Call")]
    pub descriptor_set: Option<PathBuf>,

    /// Ask the server to describe the method, even one of a built-in service; files add what it does not describe
    /// [default: ask only about other services that no file describes].
    #[arg(long, action = ArgAction::SetTrue, help_heading = "Call")]
    pub reflection: Option<bool>,

    /// Metadata, 'name: value'; repeatable. 'name: $VARIABLE' takes the value from the environment, and fields such as
    /// {{row.user}} vary from call to call.
    #[arg(
        id = "metadata",
        long = "metadata",
        value_name = "NAME: VALUE",
        help_heading = "Call"
    )]
    #[serde(skip)]
    pub(super) typed_metadata: Vec<String>,

    /// Metadata sent with every call.
    #[arg(skip)]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, MetadataSpec>,

    #[command(flatten)]
    #[serde(skip)]
    pub(super) credentials: CredentialFlags,

    /// Streams: number of messages that the client sends on a call. Default: as many as the plan gives.
    #[arg(
        help = "Streams: messages to send on a call [default: as many as --data has]",
        long,
        value_name = "N",
        help_heading = "Call"
    )]
    pub messages: Option<u32>,

    /// Streams: time between two messages of a call, or "answers": each after the answer to
    /// the one before [default: all at once].
    #[arg(long, value_name = "TIME", help_heading = "Call")]
    pub pace: Option<StreamPace>,

    /// Streams: number of messages that the server must send on a call; with any other number the call fails.
    #[arg(long, value_name = "N", help_heading = "Call")]
    pub expect: Option<u32>,

    /// Fields that each answer must have, with these values: a table, or its JSON text. Other fields may have any
    /// value; an answer that differs fails with MESSAGE_MISMATCH.
    #[arg(
        help = "Fields that each answer must have, with these values, as JSON: other fields may be anything, and another message fails with MESSAGE_MISMATCH",
        long,
        value_name = "JSON",
        help_heading = "Call"
    )]
    pub expect_message: Option<MessageSpec>,

    /// Streams: cancel the call after this many messages from the server; 0: at once.
    #[arg(long, value_name = "N", help_heading = "Call")]
    pub cancel_after: Option<u32>,

    /// Streams: end the call after this time, as a success: for streams that do not end on their own.
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = "Call")]
    pub stream_duration: Option<Period>,

    /// The :authority to send [default: host:port of the target].
    #[arg(long, help_heading = "Call")]
    pub authority: Option<String>,

    /// The user-agent to send [default: this program and its version].
    #[arg(long, value_name = "TEXT", help_heading = "Call")]
    pub user_agent: Option<String>,

    /// Compress requests, and accept compressed answers: gzip or none [default: none].
    #[arg(long, value_name = "HOW", help_heading = "Call")]
    pub compression: Option<String>,

    /// Larger answers fail with MESSAGE_TOO_LARGE [default: 4MiB].
    #[arg(long, value_name = "SIZE", help_heading = "Call")]
    pub max_message: Option<ByteSize>,

    /// Answers with larger metadata, before or after their messages, fail with HEAD_TOO_LARGE [default: 64KiB].
    #[arg(long, value_name = "SIZE", help_heading = "Call")]
    pub max_head: Option<ByteSize>,

    /// The call's deadline, or "none". Default 10s.
    #[arg(skip)]
    pub deadline: Option<OptionalPeriod>,

    /// The steps of a journey, which plans write as `[[steps]]`: calls that each user makes one after another, with
    /// values of earlier answers in later calls. The other keys of this section are defaults for the steps.
    #[arg(skip)]
    pub steps: Option<Vec<StepSpec>>,
}

impl GrpcSpec {
    /// Returns the steps of the journey, if there is one.
    pub(super) fn journey_steps(&self) -> Option<&[StepSpec]> {
        self.steps.as_deref().filter(|steps| !steps.is_empty())
    }
}

/// A message as JSON text. A plan gives it as a table or as a string of JSON; for a call that sends a stream
/// of messages it may be a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageSpec(pub String);

impl From<String> for MessageSpec {
    fn from(json: String) -> MessageSpec {
        MessageSpec(json)
    }
}

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

impl std::str::FromStr for StreamPace {
    type Err = String;
    fn from_str(text: &str) -> Result<StreamPace, Self::Err> {
        match text.trim() {
            "none" => Ok(StreamPace::None),
            "answers" => Ok(StreamPace::Answers),
            text => text.parse().map(|Period(gap)| StreamPace::Every(gap)),
        }
    }
}

impl Serialize for StreamPace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StreamPace::None => serializer.serialize_str("none"),
            StreamPace::Answers => serializer.serialize_str("answers"),
            StreamPace::Every(gap) => Period(*gap).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StreamPace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StreamPace, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|e| de::Error::custom(format!("{e}; or \"answers\", or \"none\"")))
    }
}

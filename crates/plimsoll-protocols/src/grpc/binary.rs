//! `message_binary` in `[call.grpc]`: sources of messages in the protobuf encoding.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::spec::struct_keys;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The messages of a call: the path of a file with one message, a table, or a list of paths and tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BinarySpec(pub Vec<BinarySource>);

/// A source of one message, or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BinarySource {
    /// `"order.bin"` or `{ file = "order.bin" }`: a message.
    File(PathBuf),
    /// `{ delimited = "orders.bin" }`: messages, each prefixed with its length as a varint, as protobuf's
    /// libraries write and parse them (`writeDelimitedTo`).
    Delimited(PathBuf),
    /// `{ base64 = "CAE=" }`: a message.
    Base64(String),
}

impl BinarySource {
    /// Returns the keys of a source that is a table.
    pub fn keys() -> &'static [&'static str] {
        struct_keys::<BinaryTable>()
    }

    /// Returns a source with the message in base64, for resolved plans.
    pub fn from_message(message: &[u8]) -> BinarySource {
        BinarySource::Base64(STANDARD.encode(message))
    }
}

/// A source as a table, in which exactly one key is set.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct BinaryTable {
    /// The file that holds the message.
    file: Option<PathBuf>,
    /// A file of messages, each prefixed with its length as a varint (`writeDelimitedTo`).
    delimited: Option<PathBuf>,
    /// The message in base64.
    base64: Option<String>,
}

const EXPECTED_SOURCE: &str = "a path, { file = \"PATH\" }, { delimited = \"PATH\" }, { base64 = \"TEXT\" }, or a list of them";

impl Serialize for BinarySource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = BinaryTable::default();
        match self.clone() {
            BinarySource::File(path) => table.file = Some(path),
            BinarySource::Delimited(path) => table.delimited = Some(path),
            BinarySource::Base64(text) => table.base64 = Some(text),
        }
        table.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BinarySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BinarySource, D::Error> {
        struct OneSourceVisitor;
        impl<'de> Visitor<'de> for OneSourceVisitor {
            type Value = BinarySource;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED_SOURCE)
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<BinarySource, E> {
                Ok(BinarySource::File(path.into()))
            }
            fn visit_map<M: de::MapAccess<'de>>(self, map: M) -> Result<BinarySource, M::Error> {
                let table = BinaryTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let mut given = [
                    table.file.map(BinarySource::File),
                    table.delimited.map(BinarySource::Delimited),
                    table.base64.map(BinarySource::Base64),
                ]
                .into_iter()
                .flatten();
                match (given.next(), given.next()) {
                    (Some(source), None) => Ok(source),
                    _ => Err(de::Error::custom(format_args!(
                        "a source is {EXPECTED_SOURCE}"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(OneSourceVisitor)
    }
}

impl<'de> Deserialize<'de> for BinarySpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BinarySpec, D::Error> {
        struct SourcesVisitor;
        impl<'de> Visitor<'de> for SourcesVisitor {
            type Value = BinarySpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED_SOURCE)
            }
            fn visit_str<E: de::Error>(self, path: &str) -> Result<BinarySpec, E> {
                Ok(BinarySpec(vec![BinarySource::File(path.into())]))
            }
            fn visit_map<M: de::MapAccess<'de>>(self, map: M) -> Result<BinarySpec, M::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                Ok(BinarySpec(vec![BinarySource::deserialize(map)?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<BinarySpec, A::Error> {
                let seq = de::value::SeqAccessDeserializer::new(seq);
                Vec::deserialize(seq).map(BinarySpec)
            }
        }
        deserializer.deserialize_any(SourcesVisitor)
    }
}

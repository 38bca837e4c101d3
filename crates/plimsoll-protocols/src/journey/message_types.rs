//! The types of binary messages, which `.proto` files or descriptor sets describe, and the readers of such messages.
//!
//! The protocol that knows these descriptions registers the function that reads them; steps of other protocols use it
//! through [`describe_messages`].

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// The type of a step's binary messages, which are read as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessageTypeSpec {
    /// The type of the messages: package.Message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// `.proto` files that describe the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<Vec<PathBuf>>,
    /// Directories to search for imports of the `.proto` files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import_path: Option<Vec<PathBuf>>,
    /// A descriptor set that describes the type (protoc --descriptor_set_out --include_imports), instead of `.proto`
    /// files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor_set: Option<PathBuf>,
}

impl MessageTypeSpec {
    /// Returns the files that describe the type.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let protos = self.proto.iter().flatten();
        protos.chain(&self.descriptor_set)
    }
}

/// A check of a message in the protobuf encoding. Its error describes the difference.
pub type MessageCheck = Arc<dyn Fn(&[u8]) -> Result<(), String> + Send + Sync>;

/// A reader of messages of one type.
pub trait AnswerReader: Send + Sync {
    /// Returns the name of the message's type.
    fn type_name(&self) -> String;

    /// Returns a message as JSON (Protocol Buffers, "ProtoJSON Format"). The fields have their names from the `.proto`
    /// file, and those with default values are included.
    ///
    /// # Errors
    /// Returns the reason why the bytes are not a message of this type.
    fn to_json(&self, message: &[u8]) -> Result<String, String>;

    /// Resolves a JSON Pointer (RFC 6901) that refers to the output of [`AnswerReader::to_json`]. `tokens` are the
    /// pointer's reference tokens; they are returned with field names as in the `.proto` file.
    ///
    /// # Errors
    /// Returns an error that names the field that does not exist.
    fn resolve_path(&self, tokens: &[String]) -> Result<Vec<String>, String>;

    /// Creates the check that messages have the fields of a JSON object with their values.
    ///
    /// # Errors
    /// Returns an error if the text is not a JSON object, or does not fit the type.
    fn message_check(&self, json: &str) -> Result<MessageCheck, String>;
}

/// A shared [`AnswerReader`].
#[derive(Clone)]
pub struct SharedAnswerReader(Arc<dyn AnswerReader>);

impl SharedAnswerReader {
    /// Wraps a reader.
    pub fn new(reader: impl AnswerReader + 'static) -> SharedAnswerReader {
        SharedAnswerReader(Arc::new(reader))
    }
}

impl Deref for SharedAnswerReader {
    type Target = dyn AnswerReader;

    fn deref(&self) -> &(dyn AnswerReader + 'static) {
        &*self.0
    }
}

impl fmt::Debug for SharedAnswerReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnswerSchema")
            .field(&self.type_name())
            .finish()
    }
}

impl PartialEq for SharedAnswerReader {
    fn eq(&self, other: &SharedAnswerReader) -> bool {
        self.type_name() == other.type_name()
    }
}

impl Eq for SharedAnswerReader {}

/// Finds the description of a message type.
pub(crate) type DescribeMessagesFn =
    fn(&MessageTypeSpec) -> Result<SharedAnswerReader, (&'static str, String)>;

static REGISTERED_FUNCTION: OnceLock<DescribeMessagesFn> = OnceLock::new();

/// Registers the function that reads descriptions. Takes effect once in a process; later calls are ignored.
pub(crate) fn register_descriptions(describe: DescribeMessagesFn) {
    REGISTERED_FUNCTION.get_or_init(|| describe);
}

/// Returns the reader of the messages of a type.
///
/// # Errors
/// Returns the key of [`MessageTypeSpec`] that is wrong, and why.
pub(crate) fn describe_messages(
    typed: &MessageTypeSpec,
) -> Result<SharedAnswerReader, (&'static str, String)> {
    match REGISTERED_FUNCTION.get() {
        Some(describe) => describe(typed),
        None => Err(("message", "no protocol describes messages here".to_owned())),
    }
}

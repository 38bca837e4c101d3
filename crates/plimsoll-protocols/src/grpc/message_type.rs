//! Describes the binary messages of other protocols' steps by `.proto` files or a descriptor set.

#[cfg(feature = "schema")]
use super::schema::Schema;
use crate::journey::{MessageTypeSpec, SharedAnswerReader};

/// Returns the reader of the messages of a type.
///
/// # Errors
/// Returns the key that is wrong, and why.
#[cfg(feature = "schema")]
pub(crate) fn describe_messages(
    typed: &MessageTypeSpec,
) -> Result<SharedAnswerReader, (&'static str, String)> {
    let schema = match (&typed.proto, &typed.descriptor_set) {
        (Some(_), Some(_)) => {
            let problem = "can't be combined with proto: write one of them";
            return Err(("descriptor_set", problem.to_owned()));
        }
        (Some(files), None) => {
            let imports = typed.import_path.as_deref().unwrap_or(&[]);
            Schema::from_protos(files, imports).map_err(|e| ("proto", e.to_string()))?
        }
        (None, Some(path)) => {
            Schema::from_descriptor_set(path).map_err(|e| ("descriptor_set", e.to_string()))?
        }
        (None, None) => {
            let problem = "missing: name the .proto files, or a descriptor_set";
            return Err(("proto", problem.to_owned()));
        }
    };
    let reader = schema.message_reader(&typed.message);
    let reader = reader.map_err(|e| ("message", e.to_string()))?;
    Ok(SharedAnswerReader::new(reader))
}

/// Returns an error, because this build lacks the feature `schema`.
///
/// # Errors
/// Always returns the problem that the type can't be looked up.
#[cfg(not(feature = "schema"))]
pub(crate) fn describe_messages(
    typed: &MessageTypeSpec,
) -> Result<SharedAnswerReader, (&'static str, String)> {
    let name = &typed.message;
    Err(("message", format!("{name} can't be looked up here")))
}

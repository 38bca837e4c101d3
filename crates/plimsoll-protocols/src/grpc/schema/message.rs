//! Messages from JSON to bytes and back, by the proto3 JSON mapping.

use prost_reflect::prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};
use serde_json::Value;

use super::right::{fields, right};
use super::{Method, Schema, SchemaError, near};

impl Schema {
    /// Encodes a request of `method` from its JSON form, without the gRPC prefix.
    ///
    /// # Errors
    /// When the text is not JSON, or does not fit the message: the error names the field
    /// by its path, and for a name that does not exist the nearest that does.
    pub fn encode(&self, method: &Method, json: &str) -> Result<Vec<u8>, SchemaError> {
        let message = method.descriptor.input();
        let value: Value = serde_json::from_str(json).map_err(|e| SchemaError::Json {
            message: message.full_name().to_owned(),
            problem: e.to_string(),
        })?;
        check_names(&message, &message, &value, "")?;
        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(&value, &mut track);
        let encoded = DynamicMessage::deserialize(message.clone(), deserializer);
        match encoded {
            Ok(encoded) => Ok(encoded.encode_to_vec()),
            Err(e) => {
                let path = track.path();
                // What is wrong with an object as a whole is told by the decoding alone.
                let is_known = path.iter().len() > 0 || !value.is_object();
                let right = match is_known {
                    true => right(&message, &path),
                    false => String::new(),
                };
                Err(SchemaError::Value {
                    message: message.full_name().to_owned(),
                    path: path.to_string(),
                    problem: e.to_string(),
                    right,
                })
            }
        }
    }

    /// The JSON form of an answer of `method`, defaults written out.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn decode(&self, method: &Method, bytes: &[u8]) -> Result<String, SchemaError> {
        let message = method.descriptor.output();
        let bad = |problem: String| SchemaError::Decode {
            message: message.full_name().to_owned(),
            problem,
        };
        let decoded =
            DynamicMessage::decode(message.clone(), bytes).map_err(|e| bad(e.to_string()))?;
        let mut json = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut json);
        decoded
            .serialize_with_options(
                &mut serializer,
                &SerializeOptions::new().skip_default_fields(false),
            )
            .map_err(|e| bad(e.to_string()))?;
        String::from_utf8(json).map_err(|e| bad(e.to_string()))
    }
}

/// Looks every object key up. Values are left to the decoding proper, whose own errors
/// are good; only for a wrong name it knows no better one.
pub(super) fn check_names(
    top: &MessageDescriptor,
    message: &MessageDescriptor,
    value: &Value,
    path: &str,
) -> Result<(), SchemaError> {
    // The types that come with protobuf have JSON forms of their own.
    if message.full_name().starts_with("google.protobuf.") {
        return Ok(());
    }
    let Value::Object(entries) = value else {
        return Ok(());
    };
    for (key, value) in entries {
        // An extension's name, in brackets.
        if key.starts_with('[') {
            continue;
        }
        let inner = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        let field = message
            .get_field_by_json_name(key)
            .or_else(|| message.get_field_by_name(key));
        let Some(field) = field else {
            let names: Vec<String> = message.fields().map(|f| f.json_name().to_owned()).collect();
            return Err(SchemaError::NoField {
                message: top.full_name().to_owned(),
                path: inner,
                near: near(key, names.iter()),
                fields: fields(message),
            });
        };
        check_field(top, &field, value, &inner)?;
    }
    Ok(())
}

fn check_field(
    top: &MessageDescriptor,
    field: &FieldDescriptor,
    value: &Value,
    path: &str,
) -> Result<(), SchemaError> {
    let Kind::Message(message) = field.kind() else {
        return Ok(());
    };
    match value {
        Value::Object(entries) if field.is_map() => {
            let Kind::Message(message) = message.map_entry_value_field().kind() else {
                return Ok(());
            };
            entries.iter().try_for_each(|(key, value)| {
                check_names(top, &message, value, &format!("{path}.{key}"))
            })
        }
        Value::Array(items) if field.is_list() => items
            .iter()
            .enumerate()
            .try_for_each(|(i, value)| check_names(top, &message, value, &format!("{path}[{i}]"))),
        value => check_names(top, &message, value, path),
    }
}

//! Conversion of messages between JSON and bytes, by the proto3 JSON mapping.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::prost::Message as _;
use prost_reflect::{
    Cardinality, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage,
    SerializeOptions,
};
use serde_json::Value;

use super::describe::{find_field, type_name};
use super::editions::is_zero_placeholder;
use super::error::format_suggestion_or_fields;
use super::json_value::parse_json;
use super::type_hint::{describe_kind, expected_type_hint, list_fields};
use super::{GrpcMethod, Schema, SchemaError, similar_names};
use crate::grpc::BinaryMessage;

impl Schema {
    /// Encodes a request of `method` from JSON, without the gRPC prefix.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON or does not fit the message. The error names the field by
    /// its path, and suggests a similar name for an unknown field.
    pub fn encode(&self, method: &GrpcMethod, json: &str) -> Result<Vec<u8>, SchemaError> {
        let message = method.descriptor.input();
        let value = parse_json(json).map_err(|problem| {
            let name = message.full_name();
            SchemaError::new(format_args!("message of {name}: {problem}"))
        })?;
        let encoded = self.read_json(&message, &value)?;
        match find_missing_field(&encoded, "") {
            None => Ok(encoded.encode_to_vec()),
            Some((field, path)) => Err(SchemaError::new(format_args!(
                "message of {}: required field {path:?} is missing: set it to a {}",
                message.full_name(),
                type_name(&field)
            ))),
        }
    }

    /// Reads a message from JSON. Required fields may be missing.
    pub(super) fn read_json(
        &self,
        message: &MessageDescriptor,
        value: &Value,
    ) -> Result<DynamicMessage, SchemaError> {
        self.check_keys_and_enums(message, value)?;
        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        DynamicMessage::deserialize(message.clone(), deserializer).map_err(|e| {
            let path = track.path();
            // An error about the object as a whole, and not about one of its fields, needs no hint at the expected
            // type.
            let is_known = path.iter().len() > 0 || !value.is_object();
            let right = if is_known {
                expected_type_hint(message, &path)
            } else {
                String::new()
            };
            let (path, problem) = (path.to_string(), e.to_string());
            SchemaError::invalid_value(message.full_name(), &path, &problem, &right)
        })
    }

    /// Checks that bytes are a request of `method`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a request, or if a required field is missing.
    pub fn check_request(
        &self,
        method: &GrpcMethod,
        given: &BinaryMessage,
    ) -> Result<(), SchemaError> {
        let message = method.descriptor.input();
        let bad = |problem: String| {
            let (source, name) = (&given.source, message.full_name());
            SchemaError::new(format_args!("{source}: not a {name}: {problem}"))
        };
        let decoded = DynamicMessage::decode(message.clone(), &given.bytes[..]);
        let decoded = decoded.map_err(|e| bad(e.to_string()))?;
        match find_missing_field(&decoded, "") {
            None => Ok(()),
            Some((_, path)) => Err(bad(format!("required field {path:?} is missing"))),
        }
    }

    /// Returns a response of `method` as JSON, including default values.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a response of `method`.
    pub fn decode(&self, method: &GrpcMethod, bytes: &[u8]) -> Result<String, SchemaError> {
        let message = method.descriptor.output();
        let bad = |problem: String| {
            let name = message.full_name();
            SchemaError::new(format_args!("answer of {name}: {problem}"))
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

impl Schema {
    /// Checks all object keys, and the values of closed enums. The decoder checks all other values, with clear
    /// errors.
    pub(super) fn check_keys_and_enums(
        &self,
        top: &MessageDescriptor,
        value: &Value,
    ) -> Result<(), SchemaError> {
        let check = KeyAndEnumCheck {
            top,
            closed: &self.unsupported.closed_enums,
        };
        check.check_message(top, value, "")
    }
}

/// A check of object keys and enum values in JSON, before the JSON is decoded.
struct KeyAndEnumCheck<'a> {
    top: &'a MessageDescriptor,
    closed: &'a BTreeSet<String>,
}

impl KeyAndEnumCheck<'_> {
    fn check_message(
        &self,
        message: &MessageDescriptor,
        value: &Value,
        path: &str,
    ) -> Result<(), SchemaError> {
        // Protobuf's well-known types have special JSON formats.
        if message.full_name().starts_with("google.protobuf.") {
            return Ok(());
        }
        let Value::Object(entries) = value else {
            return Ok(());
        };
        let mut keys: BTreeMap<u32, &String> = BTreeMap::new();
        for (key, value) in entries {
            // A key in brackets is an extension's name.
            if key.starts_with('[') {
                continue;
            }
            let inner = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let Some(field) = find_field(message, key) else {
                let names: Vec<String> =
                    message.fields().map(|f| f.json_name().to_owned()).collect();
                return Err(SchemaError::new(format_args!(
                    "message of {}: no field {inner:?}{}",
                    self.top.full_name(),
                    format_suggestion_or_fields(
                        &similar_names(key, names.iter()),
                        &list_fields(message)
                    )
                )));
            };
            // A field has two names: the one in the `.proto` file, and the one in JSON.
            if let Some(first) = keys.insert(field.number(), key) {
                return Err(SchemaError::new(format_args!(
                    "message of {}: field {inner:?} occurs twice, as {first:?} and {key:?}",
                    self.top.full_name()
                )));
            }
            self.check_field(&field, value, &inner)?;
        }
        Ok(())
    }

    fn check_field(
        &self,
        field: &FieldDescriptor,
        value: &Value,
        path: &str,
    ) -> Result<(), SchemaError> {
        match (value, field.kind()) {
            (Value::Object(entries), Kind::Message(entry)) if field.is_map() => {
                let kind = entry.map_entry_value_field().kind();
                entries.iter().try_for_each(|(key, value)| {
                    self.check_value(&kind, value, &format!("{path}.{key}"))
                })
            }
            (Value::Array(items), kind) if field.is_list() => items
                .iter()
                .enumerate()
                .try_for_each(|(i, value)| self.check_value(&kind, value, &format!("{path}[{i}]"))),
            (value, kind) => self.check_value(&kind, value, path),
        }
    }

    fn check_value(&self, kind: &Kind, value: &Value, path: &str) -> Result<(), SchemaError> {
        match kind {
            Kind::Message(message) => self.check_message(message, value, path),
            Kind::Enum(found) if self.closed.contains(found.full_name()) => {
                let named = match value {
                    Value::Number(number) => number
                        .as_i64()
                        .and_then(|number| i32::try_from(number).ok())
                        .and_then(|number| found.get_value(number)),
                    Value::String(name) => found.get_value_by_name(name),
                    // The decoder rejects any other value.
                    _ => return Ok(()),
                };
                if named.is_some_and(|value| !is_zero_placeholder(&value)) {
                    return Ok(());
                }
                let name = found.full_name();
                let problem = format!("{value} is not a valid value of {name}");
                let top = self.top.full_name();
                Err(SchemaError::invalid_value(
                    top,
                    path,
                    &problem,
                    &describe_kind(kind),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the first required field that is missing, with its path.
fn find_missing_field(message: &DynamicMessage, path: &str) -> Option<(FieldDescriptor, String)> {
    for field in message.descriptor().fields() {
        let path = match path {
            "" => field.json_name().to_owned(),
            path => format!("{path}.{}", field.json_name()),
        };
        if !message.has_field(&field) {
            if field.cardinality() == Cardinality::Required {
                return Some((field, path));
            }
            continue;
        }
        let found = match message.get_field(&field).as_ref() {
            prost_reflect::Value::Message(inner) => find_missing_field(inner, &path),
            prost_reflect::Value::List(items) => items.iter().enumerate().find_map(|(i, item)| {
                find_missing_field(item.as_message()?, &format!("{path}[{i}]"))
            }),
            prost_reflect::Value::Map(entries) => entries.iter().find_map(|(key, value)| {
                find_missing_field(
                    value.as_message()?,
                    &format!("{path}.{}", format_map_key(key)),
                )
            }),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

fn format_map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

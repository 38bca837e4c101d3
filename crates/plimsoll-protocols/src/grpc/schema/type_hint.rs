//! Descriptions of valid values, for errors about a JSON value that does not fit its message.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_path_to_error::{Path, Segment};

use super::describe::{find_field, type_name};
use super::editions::is_zero_placeholder;

/// The maximum number of listed fields or values.
const MAX_LISTED_NAMES: usize = 12;

/// Describes a valid value at `path` of a message. The text is empty if that is not known.
pub(super) fn expected_type_hint(top: &MessageDescriptor, path: &Path) -> String {
    let mut place = PathTarget::Value(Kind::Message(top.clone()));
    for segment in path.iter() {
        let Some(inner) = place.step_into(segment) else {
            return String::new();
        };
        place = inner;
    }
    match place {
        PathTarget::Field(field) if field.is_list() => {
            format!(
                "a JSON list, each of which is {}",
                describe_kind(&field.kind())
            )
        }
        PathTarget::Field(field) if field.is_map() => {
            format!("a JSON object ({})", type_name(&field))
        }
        PathTarget::Field(field) => describe_kind(&field.kind()),
        PathTarget::Value(kind) => describe_kind(&kind),
    }
}

/// The element that a path leads to.
enum PathTarget {
    Field(FieldDescriptor),
    /// A message, an item of a list or a value of a map.
    Value(Kind),
}

impl PathTarget {
    fn step_into(&self, segment: &Segment) -> Option<PathTarget> {
        match (self, segment) {
            (PathTarget::Field(field), Segment::Seq { .. }) if field.is_list() => {
                Some(PathTarget::Value(field.kind()))
            }
            (PathTarget::Field(field), Segment::Map { .. }) if field.is_map() => match field.kind()
            {
                Kind::Message(entry) => {
                    Some(PathTarget::Value(entry.map_entry_value_field().kind()))
                }
                _ => None,
            },
            (PathTarget::Field(field), Segment::Map { key }) if !field.is_list() => {
                field_target(&field.kind(), key)
            }
            (PathTarget::Value(kind), Segment::Map { key }) => field_target(kind, key),
            _ => None,
        }
    }
}

fn field_target(kind: &Kind, key: &str) -> Option<PathTarget> {
    find_field(kind.as_message()?, key).map(PathTarget::Field)
}

/// Describes a valid value of this kind.
pub(super) fn describe_kind(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => "a time such as \"2026-01-31T12:00:00Z\"".to_owned(),
            "google.protobuf.Duration" => "a duration such as \"1.5s\"".to_owned(),
            name if name.starts_with("google.protobuf.") => {
                format!("the JSON form of {name}")
            }
            _ => format!("a JSON object with {}", list_fields(message)),
        },
        Kind::Enum(values) => {
            let own = values.values().filter(|value| !is_zero_placeholder(value));
            let names: Vec<String> = own.map(|v| format!("\"{}\"", v.name())).collect();
            format!("one of {}, or its number", join_limited(names.into_iter()))
        }
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a string, in quotes".to_owned(),
        Kind::Bytes => "a string of base64".to_owned(),
        Kind::Double | Kind::Float => format!("a number ({kind:?})"),
        whole => format!("a whole number ({whole:?})"),
    }
}

/// Lists the fields of a message with their types.
pub(super) fn list_fields(message: &MessageDescriptor) -> String {
    if message.fields().len() == 0 {
        return "no field".to_owned();
    }
    join_limited(
        message
            .fields()
            .map(|field| format!("{} ({})", field.json_name(), type_name(&field))),
    )
}

fn join_limited(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MAX_LISTED_NAMES);
    let names: Vec<String> = names.take(MAX_LISTED_NAMES).collect();
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

//! The JSON of a message as one call has it: what the patched bytes must be equal to, and
//! what is looked through for mistakes.

use plimsoll_model::template::{Moment, Source};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::{Tree, field_named};

/// Puts values where templates are.
pub(super) struct Filling<'a> {
    pub(super) moment: &'a Moment<'a>,
}

impl Filling<'_> {
    pub(super) fn message(&self, message: &MessageDescriptor, tree: &Tree) -> Value {
        match tree {
            Tree::Object(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, tree)| {
                        let field = field_named(message, key);
                        (key.clone(), self.field(field.as_ref(), tree))
                    })
                    .collect(),
            ),
            tree => self.field(None, tree),
        }
    }

    /// `None`: a field that there is not, which is told later.
    fn field(&self, field: Option<&FieldDescriptor>, tree: &Tree) -> Value {
        match tree {
            Tree::Constant(value) => value.clone(),
            Tree::Template(template) => {
                let mut text = Vec::new();
                template.write(self.moment, &mut text);
                let text = String::from_utf8_lossy(&text);
                match field {
                    Some(field) => match (field.kind(), template.alone()) {
                        (Kind::Bytes, Some(only)) if matches!(only.source, Source::Uuid) => {
                            Value::String(base64(&only.uuid(self.moment)))
                        }
                        (Kind::Message(message), Some(only))
                            if matches!(only.source, Source::Now(_))
                                && message.full_name() == "google.protobuf.Timestamp" =>
                        {
                            Value::String(self.moment.rfc3339())
                        }
                        (_, Some(_)) => typed(field, &text),
                        _ => Value::String(text.into_owned()),
                    },
                    None => Value::String(text.into_owned()),
                }
            }
            Tree::List(items) => {
                Value::Array(items.iter().map(|item| self.field(field, item)).collect())
            }
            Tree::Object(entries) => {
                let Some(Kind::Message(message)) = field.map(FieldDescriptor::kind) else {
                    let none = |(key, tree): &(String, Tree)| (key.clone(), self.field(None, tree));
                    return Value::Object(entries.iter().map(none).collect());
                };
                if field.is_some_and(FieldDescriptor::is_map) {
                    let value = message.map_entry_value_field();
                    let entries = entries.iter();
                    return Value::Object(
                        entries
                            .map(|(key, tree)| (key.clone(), self.field(Some(&value), tree)))
                            .collect(),
                    );
                }
                self.message(&message, tree)
            }
        }
    }
}

/// A text as the JSON that a field of this kind takes. Numbers may be strings there
/// (proto3 JSON mapping).
pub(super) fn typed(field: &FieldDescriptor, text: &str) -> Value {
    let parsed = || serde_json::from_str(text).ok();
    let plain = || Value::String(text.to_owned());
    let one = |kind: &Kind| match (kind, text) {
        (Kind::Bool, "1") => Value::Bool(true),
        (Kind::Bool, "0") => Value::Bool(false),
        (Kind::Bool, _) => parsed().filter(Value::is_boolean).unwrap_or_else(plain),
        (Kind::Enum(_), _) => parsed().filter(Value::is_i64).unwrap_or_else(plain),
        (Kind::Message(_), _) => parsed()
            .filter(|value: &Value| value.is_object() || value.is_array() || value.is_boolean())
            .unwrap_or_else(plain),
        _ => plain(),
    };
    match parsed() {
        Some(whole @ Value::Array(_)) if field.is_list() => whole,
        Some(whole @ Value::Object(_)) if field.is_map() => whole,
        _ => one(&field.kind()),
    }
}

fn base64(bytes: &[u8]) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

//! The JSON of a message as one call has it: what the patched bytes must be equal to, and
//! what is looked through for mistakes.

use plimsoll_model::template::{Moment, Source, Template};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::known::{free, held};
use super::{Tree, field_named};

/// Puts values where templates are.
pub(super) struct Filling<'a> {
    pub(super) moment: &'a Moment<'a>,
}

impl Filling<'_> {
    pub(super) fn message(&self, message: &MessageDescriptor, tree: &Tree) -> Value {
        match (message.full_name(), tree) {
            (_, tree) if tree.column().is_some() => whole(message, &self.text(tree)),
            (
                "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue",
                tree,
            ) => self.open(tree),
            ("google.protobuf.Any", Tree::Object(entries)) => {
                let url = entries.iter().find_map(|(key, tree)| match tree {
                    Tree::Constant(url) if key == "@type" => Some(url),
                    _ => None,
                });
                match url.and_then(|url| held(message, url)) {
                    Some(held) if held.full_name().starts_with("google.protobuf.") => {
                        let entry = |(key, tree): &(String, Tree)| {
                            let value = match key == "value" {
                                true => self.message(&held, tree),
                                false => self.open(tree),
                            };
                            (key.clone(), value)
                        };
                        Value::Object(entries.iter().map(entry).collect())
                    }
                    Some(held) => self.fields(&held, entries),
                    None => self.open(tree),
                }
            }
            (_, Tree::Object(entries)) => self.fields(message, entries),
            (_, tree) => self.field(None, tree),
        }
    }

    fn text(&self, tree: &Tree) -> String {
        let mut text = Vec::new();
        if let Tree::Template(template) = tree {
            template.write(self.moment, &mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// JSON that may be anything.
    fn open(&self, tree: &Tree) -> Value {
        let text = |key: &Template| {
            let mut text = Vec::new();
            key.write(self.moment, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        };
        match tree {
            Tree::Constant(value) => value.clone(),
            Tree::Template(template) => match template.alone() {
                Some(only) if only.is_number() || tree.column().is_some() => free(&self.text(tree)),
                _ => Value::String(self.text(tree)),
            },
            Tree::List(items) => items.iter().map(|item| self.open(item)).collect(),
            Tree::Object(entries) => {
                let entry = |(key, tree): &(String, Tree)| (key.clone(), self.open(tree));
                Value::Object(entries.iter().map(entry).collect())
            }
            Tree::Keyed(entries) => {
                let entry = |(key, tree): &(Template, Tree)| (text(key), self.open(tree));
                Value::Object(entries.iter().map(entry).collect())
            }
        }
    }

    fn fields(&self, message: &MessageDescriptor, entries: &[(String, Tree)]) -> Value {
        let entries = entries.iter();
        let filled = entries.map(|(key, tree)| {
            let field = field_named(message, key);
            (key.clone(), self.field(field.as_ref(), tree))
        });
        Value::Object(filled.collect())
    }

    /// `None`: an unknown field, which is reported later.
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
                if let Some(Kind::Message(message)) = field.map(FieldDescriptor::kind)
                    && message.full_name() == "google.protobuf.ListValue"
                    && !field.is_some_and(FieldDescriptor::is_list)
                {
                    return self.open(tree);
                }
                Value::Array(items.iter().map(|item| self.field(field, item)).collect())
            }
            Tree::Keyed(entries) => {
                let Some(Kind::Message(message)) = field.map(FieldDescriptor::kind) else {
                    return self.open(tree);
                };
                if !message.is_map_entry() {
                    return self.message(&message, tree);
                }
                let value = message.map_entry_value_field();
                let is_bool = message.map_entry_key_field().kind() == Kind::Bool;
                let entries = entries.iter().map(|(key, tree)| {
                    let mut name = Vec::new();
                    key.write(self.moment, &mut name);
                    let name = match (is_bool, &name[..]) {
                        (true, b"0") => "false".to_owned(),
                        (true, b"1") => "true".to_owned(),
                        _ => String::from_utf8_lossy(&name).into_owned(),
                    };
                    (name, self.field(Some(&value), tree))
                });
                Value::Object(entries.collect())
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

/// Whether a message's JSON may be anything.
fn is_open(message: &MessageDescriptor) -> bool {
    message.full_name() == "google.protobuf.Value"
}

/// A row as the JSON of a message: its strings as the fields take them.
pub(super) fn whole(message: &MessageDescriptor, text: &str) -> Value {
    match free(text) {
        Value::Object(entries) if !message.full_name().starts_with("google.protobuf.") => {
            let fitted = entries.into_iter().map(|(key, value)| {
                let value = match (value, field_named(message, &key)) {
                    (Value::String(text), Some(field)) => typed(&field, &text),
                    (value, _) => value,
                };
                (key, value)
            });
            Value::Object(fitted.collect())
        }
        other => other,
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
        (Kind::Message(message), _) if is_open(message) => free(text),
        (Kind::Message(message), _) => match parsed() {
            Some(Value::Object(_)) => whole(message, text),
            Some(other) if other.is_array() || other.is_boolean() => other,
            _ => plain(),
        },
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

//! Fills a message's templates with one call's values. The resulting JSON is checked for mistakes, and its encoding
//! must equal the patched message of that call.

use plimsoll_model::rows::template::{FieldSource, RenderContext, Template};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::well_known_types::{any_message_type, is_current_time, json_or_string};
use super::{TemplateTree, find_field};

/// A converter that replaces templates with their values of one call.
pub(super) struct TemplateFiller<'a> {
    pub(super) moment: &'a RenderContext<'a>,
}

impl TemplateFiller<'_> {
    pub(super) fn fill_message(&self, message: &MessageDescriptor, tree: &TemplateTree) -> Value {
        match (message.full_name(), tree) {
            (_, TemplateTree::Template(template)) if tree.column().is_some() => {
                row_to_json(message, &self.fill_text(template))
            }
            (
                "google.protobuf.Struct" | "google.protobuf.Value" | "google.protobuf.ListValue",
                tree,
            ) => self.fill_any_json(tree),
            ("google.protobuf.Any", TemplateTree::Object(entries)) => {
                match any_message_type(message, entries) {
                    Some((held, _)) if held.full_name().starts_with("google.protobuf.") => {
                        build_object(self.fill_keys(tree), |key, tree| {
                            if key == "value" {
                                self.fill_message(&held, tree)
                            } else {
                                self.fill_any_json(tree)
                            }
                        })
                    }
                    Some((held, _)) => self.fill_fields(&held, tree),
                    None => self.fill_any_json(tree),
                }
            }
            (_, TemplateTree::Object(_)) => self.fill_fields(message, tree),
            (_, tree) => self.fill_field(None, tree),
        }
    }

    fn fill_text(&self, template: &Template) -> String {
        let mut text = Vec::new();
        template.write(self.moment, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns an object's keys, with their templates filled, and its values.
    fn fill_keys<'t>(&self, tree: &'t TemplateTree) -> Vec<(String, &'t TemplateTree)> {
        match tree {
            TemplateTree::Object(entries) => entries
                .iter()
                .map(|(key, tree)| (key.clone(), tree))
                .collect(),
            TemplateTree::Keyed(entries) => entries
                .iter()
                .map(|(key, tree)| (self.fill_text(key), tree))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns JSON of any type, for messages such as `google.protobuf.Value`.
    fn fill_any_json(&self, tree: &TemplateTree) -> Value {
        match tree {
            TemplateTree::Constant(value) => value.clone(),
            TemplateTree::Template(template) => match template.sole_field() {
                Some(only) if only.is_number() || tree.column().is_some() => {
                    json_or_string(&self.fill_text(template))
                }
                _ => Value::String(self.fill_text(template)),
            },
            TemplateTree::List(items) => {
                items.iter().map(|item| self.fill_any_json(item)).collect()
            }
            TemplateTree::Object(_) | TemplateTree::Keyed(_) => {
                build_object(self.fill_keys(tree), |_, tree| self.fill_any_json(tree))
            }
        }
    }

    fn fill_fields(&self, message: &MessageDescriptor, tree: &TemplateTree) -> Value {
        build_object(self.fill_keys(tree), |key, tree| {
            self.fill_field(find_field(message, key).as_ref(), tree)
        })
    }

    /// Returns the JSON of a field; `None` stands for an unknown field, which is reported later.
    fn fill_field(&self, field: Option<&FieldDescriptor>, tree: &TemplateTree) -> Value {
        match tree {
            TemplateTree::Constant(value) => value.clone(),
            TemplateTree::Template(template) => {
                let text = self.fill_text(template);
                let Some((field, only)) = field.zip(template.sole_field()) else {
                    return Value::String(text);
                };
                match field.kind() {
                    Kind::Bytes if matches!(only.source, FieldSource::Uuid) => {
                        Value::String(encode_base64(&only.uuid(self.moment)))
                    }
                    Kind::Message(message) if is_current_time(&message, tree) => {
                        Value::String(self.moment.format_rfc3339())
                    }
                    _ => text_to_json(field, &text),
                }
            }
            TemplateTree::List(items) => {
                if let Some(Kind::Message(message)) = field.map(FieldDescriptor::kind)
                    && message.full_name() == "google.protobuf.ListValue"
                    && !field.is_some_and(FieldDescriptor::is_list)
                {
                    return self.fill_any_json(tree);
                }
                Value::Array(
                    items
                        .iter()
                        .map(|item| self.fill_field(field, item))
                        .collect(),
                )
            }
            TemplateTree::Object(_) | TemplateTree::Keyed(_) => {
                let Some(Kind::Message(message)) = field.map(FieldDescriptor::kind) else {
                    return self.fill_any_json(tree);
                };
                if !message.is_map_entry() {
                    return self.fill_message(&message, tree);
                }
                let value = message.map_entry_value_field();
                let mut entries = self.fill_keys(tree);
                if message.map_entry_key_field().kind() == Kind::Bool {
                    for (key, _) in &mut entries {
                        match key.as_str() {
                            "0" => "false".clone_into(key),
                            "1" => "true".clone_into(key),
                            _ => {}
                        }
                    }
                }
                build_object(entries, |_, tree| self.fill_field(Some(&value), tree))
            }
        }
    }
}

/// Builds an object, with values that `value` computes from the entries.
fn build_object(
    entries: Vec<(String, &TemplateTree)>,
    mut value: impl FnMut(&str, &TemplateTree) -> Value,
) -> Value {
    let entries = entries.into_iter().map(|(key, tree)| {
        let value = value(&key, tree);
        (key, value)
    });
    Value::Object(entries.collect())
}

/// Returns true if a message's JSON may be of any type.
fn accepts_any_json(message: &MessageDescriptor) -> bool {
    message.full_name() == "google.protobuf.Value"
}

/// Converts a row to the JSON of a message; strings are converted to the types of their fields.
pub(super) fn row_to_json(message: &MessageDescriptor, text: &str) -> Value {
    match json_or_string(text) {
        Value::Object(entries) if !message.full_name().starts_with("google.protobuf.") => {
            let fitted = entries.into_iter().map(|(key, value)| {
                let value = match (value, find_field(message, &key)) {
                    (Value::String(text), Some(field)) => text_to_json(&field, &text),
                    (value, _) => value,
                };
                (key, value)
            });
            Value::Object(fitted.collect())
        }
        other => other,
    }
}

/// Converts text to the JSON of a field. Numbers remain strings, which the proto3 JSON mapping allows.
pub(super) fn text_to_json(field: &FieldDescriptor, text: &str) -> Value {
    let parsed = || serde_json::from_str(text).ok();
    let plain = || Value::String(text.to_owned());
    let one = |kind: &Kind| match (kind, text) {
        (Kind::Bool, "1") => Value::Bool(true),
        (Kind::Bool, "0") => Value::Bool(false),
        (Kind::Bool, _) => parsed().filter(Value::is_boolean).unwrap_or_else(plain),
        (Kind::Enum(_), _) => parsed().filter(Value::is_i64).unwrap_or_else(plain),
        (Kind::Message(message), _) if accepts_any_json(message) => json_or_string(text),
        (Kind::Message(message), _) => match parsed() {
            Some(Value::Object(_)) => row_to_json(message, text),
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

fn encode_base64(bytes: &[u8]) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(bytes)
}

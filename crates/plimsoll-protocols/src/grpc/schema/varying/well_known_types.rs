//! Varying fields of protobuf's well-known messages, whose JSON format is not an object with their fields (Protocol
//! Buffers, "ProtoJSON Format").

use plimsoll_model::rows::template::{FieldSource, RandomRange, Template, TemplatePart};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use super::scalar::{wire_type, wire_types};
use super::{TemplateMessage, TemplateTree, encode_message};
use crate::grpc::patched_message::{FieldPresence, FieldTag, PatchNode};
use crate::grpc::schema::error::SchemaError;

/// The maximum of a `google.protobuf.Duration` in seconds, positive or negative.
const MAX_DURATION_SECONDS: i64 = 315_576_000_000;

/// Returns true if a tree is a template of the current time in a `google.protobuf.Timestamp`.
pub(super) fn is_current_time(message: &MessageDescriptor, tree: &TemplateTree) -> bool {
    message.full_name() == "google.protobuf.Timestamp"
        && matches!(tree, TemplateTree::Template(template)
            if template.sole_field().is_some_and(|only| matches!(only.source, FieldSource::Now(_))))
}

/// Parses a column's value as JSON; a value that is not JSON becomes a string.
pub(super) fn json_or_string(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Returns the type of the message in a `google.protobuf.Any`, and its type URL.
pub(super) fn any_message_type<'t>(
    any: &MessageDescriptor,
    entries: &'t [(String, TemplateTree)],
) -> Option<(MessageDescriptor, &'t str)> {
    let url = entries.iter().find_map(|(key, tree)| match tree {
        TemplateTree::Constant(url) if key == "@type" => url.as_str(),
        _ => None,
    })?;
    let (_, name) = url.rsplit_once('/')?;
    Some((any.parent_pool().get_message_by_name(name)?, url))
}

impl TemplateMessage<'_> {
    /// Returns the nodes of a message's content.
    pub(super) fn content_nodes(
        &self,
        message: &MessageDescriptor,
        tree: &TemplateTree,
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let name = message.full_name();
        if !name.starts_with("google.protobuf.") {
            return match tree {
                TemplateTree::Object(entries) => self.message_nodes(message, entries, path),
                TemplateTree::Constant(value) => Ok(vec![PatchNode::Bytes(
                    self.encode_constant(message, value, path)?.into(),
                )]),
                TemplateTree::Keyed(_) => Err(self.error_at(path, "only keys of a map can vary")),
                TemplateTree::Template(_) => Err(self.error_at(
                    path,
                    "a message can only be replaced by {{row}} or {{row.NAME}} alone",
                )),
                TemplateTree::List(_) => Err(self.error_at(path, "this field can't hold a list")),
            };
        }
        match (name, tree) {
            ("google.protobuf.Struct", TemplateTree::Object(_) | TemplateTree::Keyed(_)) => {
                self.field_nodes(&self.require_field(message, "fields", path)?, tree, path)
            }
            ("google.protobuf.Value", tree) => self.json_value_nodes(message, tree, path),
            ("google.protobuf.ListValue", TemplateTree::List(items)) => {
                self.list_value_nodes(message, items, path)
            }
            ("google.protobuf.Any", TemplateTree::Object(entries)) => {
                self.any_message_nodes(message, entries, path)
            }
            ("google.protobuf.Duration", TemplateTree::Template(template)) => {
                self.duration_nodes(template, path)
            }
            (_, TemplateTree::Template(_)) if name.ends_with("Value") => {
                self.wrapper_nodes(message, tree, path)
            }
            (_, TemplateTree::Template(_)) => {
                Err(self.error_at(path, &format!("this template can't be used for a {name}")))
            }
            _ => Err(self.error_at(path, &format!("nothing in a {name} can vary"))),
        }
    }

    /// Returns the nodes of a wrapper, such as `google.protobuf.Int32Value`.
    fn wrapper_nodes(
        &self,
        message: &MessageDescriptor,
        tree: &TemplateTree,
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let value = message.get_field_by_name("value");
        let Some(value) = value.filter(|value| !matches!(value.kind(), Kind::Message(_))) else {
            let problem = format!("a {} can't be a template", message.full_name());
            return Err(self.error_at(path, &problem));
        };
        let tag = FieldTag::new(value.number(), wire_type(&value));
        self.value_nodes(&value, tree, (tag, FieldPresence::Implicit), path)
    }

    /// Returns the nodes of a duration such as `"{{random 0.1 2.5}}s"`.
    fn duration_nodes(
        &self,
        template: &Template,
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let [TemplatePart::Field(field), TemplatePart::Text(unit)] = template.parts() else {
            return Err(self.error_at(path, "write a duration such as \"{{random 1 5}}s\""));
        };
        if !field.is_number() || unit != "s" {
            return Err(self.error_at(path, "write a duration such as \"{{random 1 5}}s\""));
        }
        if let FieldSource::Random(RandomRange { low, high, digits }) = field.source {
            let most = MAX_DURATION_SECONDS.saturating_mul(10i64.pow(u32::from(digits)));
            if low < -most || high > most {
                return Err(self.error_at(path, "a duration has at most 315576000000 seconds"));
            }
        }
        let field = field.clone();
        Ok(vec![PatchNode::Duration { field }])
    }

    /// Returns the nodes of a `ListValue`.
    fn list_value_nodes(
        &self,
        list: &MessageDescriptor,
        items: &[TemplateTree],
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let values = self.require_field(list, "values", path)?;
        let tag = FieldTag::new(values.number(), wire_types::LEN);
        let item = |(i, tree): (usize, &TemplateTree)| {
            let path = format!("{path}[{i}]");
            self.value_nodes(&values, tree, (tag, FieldPresence::Explicit), &path)
        };
        let items: Result<Vec<_>, _> = items.iter().enumerate().map(item).collect();
        Ok(items?.concat())
    }

    /// Returns the nodes of a `Value`, whose field depends on the type of the JSON value.
    fn json_value_nodes(
        &self,
        value: &MessageDescriptor,
        tree: &TemplateTree,
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let encode = |json: &Value| self.encode_constant(value, json, path);
        let name = match tree {
            TemplateTree::Constant(constant) => {
                return Ok(vec![PatchNode::Bytes(encode(constant)?.into())]);
            }
            TemplateTree::Template(template) => match (tree.column(), template.sole_field()) {
                (Some(column), _) => {
                    let rows =
                        self.row_column_node(column, path, json_or_string, |json| encode(&json))?;
                    return Ok(vec![rows]);
                }
                _ if let Some(index) = template.sole_captured_index() => {
                    let value = value.clone();
                    let encode = move |text: &str| {
                        encode_message(&value, &json_or_string(text)).map_err(|e| e.to_string())
                    };
                    return Ok(vec![self.captured_node(index, path, encode)]);
                }
                (None, Some(only)) if only.is_number() => "number_value",
                _ => "string_value",
            },
            TemplateTree::Object(_) | TemplateTree::Keyed(_) => "struct_value",
            TemplateTree::List(_) => "list_value",
        };
        self.field_nodes(&self.require_field(value, name, path)?, tree, path)
    }

    /// Returns a field of a message that comes with protobuf. Such a message has its own JSON format, but is encoded
    /// field by field like any other.
    fn require_field(
        &self,
        message: &MessageDescriptor,
        name: &str,
        path: &str,
    ) -> Result<FieldDescriptor, SchemaError> {
        let field = message.get_field_by_name(name);
        field.ok_or_else(|| self.error_at(path, &format!("no {name} in a {}", message.full_name())))
    }

    /// Returns the nodes of an `Any`: the type URL and the message.
    fn any_message_nodes(
        &self,
        any: &MessageDescriptor,
        entries: &[(String, TemplateTree)],
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let Some((message, url)) = any_message_type(any, entries) else {
            let problem = "\"@type\" has to name a type that is described, such as \"type.googleapis.com/package.Message\"";
            return Err(self.error_at(path, problem));
        };
        let mut fields: Vec<(String, TemplateTree)> = entries.to_vec();
        fields.retain(|(key, _)| key != "@type");
        let content = if message.full_name().starts_with("google.protobuf.") {
            let value = fields.into_iter().find(|(key, _)| key == "value");
            let Some((_, tree)) = value else {
                return Err(self.error_at(path, "\"value\" is missing"));
            };
            self.content_nodes(&message, &tree, path)?
        } else {
            self.message_nodes(&message, &fields, path)?
        };
        Ok(vec![
            string_node(FieldTag::new(1, wire_types::LEN), url),
            PatchNode::new_nested(FieldTag::new(2, wire_types::LEN), content),
        ])
    }
}

/// Returns the node of a constant string field.
fn string_node(tag: FieldTag, text: &str) -> PatchNode {
    let mut field = tag.bytes().to_vec();
    crate::grpc::patched_message::write_varint(text.len() as u64, &mut field);
    field.extend_from_slice(text.as_bytes());
    PatchNode::Bytes(field.into())
}

//! Messages with varying fields: JSON with templates becomes patched messages, which encode each call's values.
//!
//! prost-reflect encodes constant fields one by one. Only elements that contain a template are encoded here, in the
//! order of field numbers, as prost-reflect does.

mod captured_fields;
mod filler;
mod list;
mod scalar;
mod template_tree;
mod well_known_types;

use std::sync::Arc;

use plimsoll_model::formats::redaction::is_secret_field_name;
use plimsoll_model::rows::template::{
    FieldScope, MessageRenderer, RenderContext, RowColumn, RowOrder, Rows, VariationSettings,
    has_fields, quote_unquoted_fields,
};
use prost_reflect::prost::Message as _;
use prost_reflect::prost::encoding::{decode_key, decode_varint};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::describe::find_field;
use super::json_value::{UniqueKeysJson, describe_json_error, is_repeated_key, parse_json};
use super::{GrpcMethod, Schema, SchemaError};
use crate::grpc::BinaryMessage;
use crate::grpc::patched_message::{FieldPresence, FieldTag, PatchNode, PatchedMessage};
use filler::{TemplateFiller, row_to_json, text_to_json};
use scalar::{scalar_node, wire_type, wire_types};
use template_tree::{TemplateTree, join_path, parse_tree};
use well_known_types::is_current_time;

/// The requests of a call.
#[derive(Clone, Debug)]
pub struct EncodedRequests {
    /// The encoded messages. If they vary: the messages of the first call.
    pub messages: Vec<Vec<u8>>,
    /// The renderers of varying messages; empty: every call sends the same messages.
    pub varying: Vec<Arc<dyn MessageRenderer>>,
}

impl Schema {
    /// Encodes the requests of a call: one message, or each of a list. A list is a JSON array, or several
    /// values one after another (JSON lines). A client stream sends the whole list; other calls take its
    /// messages in turn. Strings may contain fields of a [`plimsoll_model::rows::template::Template`].
    ///
    /// # Errors
    /// Returns the errors of [`Schema::encode`], and an error if a field can't vary as requested, or if a row
    /// does not fit.
    pub fn encode_all<'a>(
        &self,
        method: &GrpcMethod,
        json: &str,
        scope: impl Into<FieldScope<'a>>,
    ) -> Result<EncodedRequests, SchemaError> {
        let scope = scope.into();
        let varies = has_fields(json);
        let quoted = if varies {
            quote_unquoted_fields(json)
        } else {
            json.to_owned()
        };
        let texts = split_messages(method, &quoted)?.unwrap_or_else(|| vec![quoted]);
        let in_turn = texts.len() != 1 && !method.kind().is_client_streaming();
        if in_turn && texts.is_empty() {
            return Err(value_error(
                &method.descriptor.input(),
                "",
                "an empty list of messages",
            ));
        }
        let mut requests = EncodedRequests {
            messages: Vec::new(),
            varying: Vec::new(),
        };
        let count = scope.rows.map_or(0, Rows::count);
        let first = VariationSettings::new(1, 1, count, RowOrder::RoundRobin);
        let mut slots = 0;
        for (i, text) in texts.iter().enumerate() {
            let encoded = self.encode_one(method, text, &mut slots, scope, &first);
            let (message, patched) = encoded.map_err(|error| match texts.len() {
                1 => error,
                _ => {
                    let number = i + 1;
                    SchemaError::new(format_args!("message {number} of the list: {error}"))
                }
            })?;
            requests.messages.push(message);
            requests.varying.push(Arc::new(patched));
        }
        if in_turn {
            requests.messages.truncate(1);
            requests.varying = vec![Arc::new(RoundRobinMessages(requests.varying))];
        } else if slots == 0 {
            requests.varying.clear();
        }
        Ok(requests)
    }

    /// Returns requests of already encoded messages. A client stream sends all of them; other calls take them
    /// in turn.
    ///
    /// # Errors
    /// Returns an error if a message is not a request of `method`, or lacks a required field.
    pub fn requests_from_encoded(
        &self,
        method: &GrpcMethod,
        given: &[BinaryMessage],
    ) -> Result<EncodedRequests, SchemaError> {
        for message in given {
            self.check_request(method, message)?;
        }
        let mut messages: Vec<_> = given.iter().map(|message| message.bytes.clone()).collect();
        let mut varying: Vec<Arc<dyn MessageRenderer>> = Vec::new();
        if messages.len() > 1 && !method.kind().is_client_streaming() {
            let each = messages.iter().map(|bytes| {
                let patched = PatchedMessage::new(vec![PatchNode::Bytes(bytes.clone().into())]);
                Arc::new(patched) as Arc<dyn MessageRenderer>
            });
            varying = vec![Arc::new(RoundRobinMessages(each.collect()))];
            messages.truncate(1);
        }
        Ok(EncodedRequests { messages, varying })
    }

    /// Encodes one message. Returns the message of the first call, and the renderer for every call. The first message
    /// is empty if it needs values of earlier responses.
    fn encode_one(
        &self,
        method: &GrpcMethod,
        json: &str,
        slots: &mut u32,
        scope: FieldScope<'_>,
        first: &VariationSettings,
    ) -> Result<(Vec<u8>, PatchedMessage), SchemaError> {
        if !has_fields(json) {
            let bytes = self.encode(method, json)?;
            let patched = PatchedMessage::new(vec![PatchNode::Bytes(bytes.clone().into())]);
            return Ok((bytes, patched));
        }
        let message = TemplateMessage::parse(self, method, json, slots, scope)?;
        let sample = message.fill(&first.render_context(0, 0, 0));
        // The order determines which error is reported first: field names, then templates, then values.
        self.check_keys_and_enums(&message.message, &sample)?;
        let patched = message.to_patched()?;
        if !patched.captured_indices().is_empty() {
            return Ok((Vec::new(), patched));
        }
        Ok((self.encode(method, &sample.to_string())?, patched))
    }
}

/// Returns the messages of a list or of JSON lines; `None`: the text is neither.
///
/// # Errors
/// Returns an error if an object has a key twice.
fn split_messages(method: &GrpcMethod, json: &str) -> Result<Option<Vec<String>>, SchemaError> {
    let name = method.request_type();
    let is_list_itself = name == "google.protobuf.ListValue" || name == "google.protobuf.Value";
    let values = serde_json::Deserializer::from_str(json).into_iter();
    let values = values.map(|parsed| parsed.map(|UniqueKeysJson(value)| value));
    let values: Vec<Value> = match values.collect::<Result<_, _>>() {
        Ok(values) => values,
        Err(e) if is_repeated_key(&e) => {
            let problem = describe_json_error(&e);
            return Err(SchemaError::new(format_args!(
                "message of {name}: {problem}"
            )));
        }
        // The encoder of single messages reports what is wrong.
        Err(_) => return Ok(None),
    };
    Ok(match &values[..] {
        [Value::Array(items)] if !is_list_itself => {
            Some(items.iter().map(ToString::to_string).collect())
        }
        [] | [_] => None,
        several => Some(several.iter().map(ToString::to_string).collect()),
    })
}

/// A list of messages that calls take in turn.
#[derive(Debug)]
struct RoundRobinMessages(Vec<Arc<dyn MessageRenderer>>);

impl MessageRenderer for RoundRobinMessages {
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let index = moment.number % self.0.len() as u64;
        self.0[index as usize].render(moment, out);
    }

    fn max_bytes(&self) -> usize {
        let sizes = self.0.iter().map(|message| message.max_bytes());
        sizes.max().unwrap_or(0)
    }

    fn captured_indices(&self) -> Vec<u16> {
        self.0
            .iter()
            .flat_map(|message| message.captured_indices())
            .collect()
    }

    fn check_captured_values(&self, moment: &RenderContext<'_>) -> Result<(), String> {
        self.0
            .iter()
            .try_for_each(|message| message.check_captured_values(moment))
    }
}

/// A message with templates.
struct TemplateMessage<'a> {
    schema: &'a Schema,
    method: &'a GrpcMethod,
    message: MessageDescriptor,
    tree: TemplateTree,
    scope: FieldScope<'a>,
}

impl<'a> TemplateMessage<'a> {
    fn parse(
        schema: &'a Schema,
        method: &'a GrpcMethod,
        json: &str,
        slots: &mut u32,
        scope: impl Into<FieldScope<'a>>,
    ) -> Result<TemplateMessage<'a>, SchemaError> {
        let scope = scope.into();
        let message = method.descriptor.input();
        let Ok(value) = parse_json(json) else {
            // Invalid JSON is passed to the encoder of constant messages, which reports the problem.
            schema.encode(method, json)?;
            return Err(value_error(&message, "", "not valid JSON"));
        };
        let tree = parse_tree(value, slots, scope, "").map_err(|(path, e)| {
            let problem = e.to_string();
            value_error(&message, &path, &problem)
        })?;
        Ok(TemplateMessage {
            schema,
            method,
            message,
            tree,
            scope,
        })
    }

    /// Returns the JSON, with templates replaced by their values for the call that `moment` describes.
    fn fill(&self, moment: &RenderContext<'_>) -> Value {
        TemplateFiller { moment }.fill_message(&self.message, &self.tree)
    }

    fn to_patched(&self) -> Result<PatchedMessage, SchemaError> {
        match &self.tree {
            TemplateTree::Object(entries) => Ok(PatchedMessage::new(self.message_nodes(
                &self.message,
                entries,
                "",
            )?)),
            TemplateTree::Constant(value) => {
                let bytes = self.encode_constant(&self.message, value, "")?;
                Ok(PatchedMessage::new(vec![PatchNode::Bytes(bytes.into())]))
            }
            tree => {
                if let Some(column) = tree.column() {
                    let whole = |text: &str| row_to_json(&self.message, text);
                    let encode = |value: Value| self.schema.encode(self.method, &value.to_string());
                    let rows = self.row_column_node(column, "", whole, encode)?;
                    return Ok(PatchedMessage::new(vec![rows]));
                }
                if let Some(index) = tree.captured_index() {
                    return Ok(PatchedMessage::new(vec![self.captured_message_node(index)]));
                }
                Ok(PatchedMessage::new(self.content_nodes(
                    &self.message,
                    tree,
                    "",
                )?))
            }
        }
    }

    /// Returns a message's nodes in the order of field numbers.
    fn message_nodes(
        &self,
        message: &MessageDescriptor,
        entries: &[(String, TemplateTree)],
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let mut fields: Vec<(u32, Vec<PatchNode>)> = Vec::new();
        for (key, tree) in entries {
            let path = join_path(path, key);
            if let TemplateTree::Constant(value) = tree {
                let bytes = self.encode_field(message, key, value.clone(), &path)?;
                if let Ok((number, _)) = decode_key(&mut &bytes[..]) {
                    fields.push((number, vec![PatchNode::Bytes(bytes.into())]));
                }
                continue;
            }
            let Some(field) = find_field(message, key) else {
                return Err(self.error_at(&path, "an extension can't vary"));
            };
            fields.push((field.number(), self.field_nodes(&field, tree, &path)?));
        }
        fields.sort_by_key(|(number, _)| *number);
        Ok(fields.into_iter().flat_map(|(_, nodes)| nodes).collect())
    }

    fn field_nodes(
        &self,
        field: &FieldDescriptor,
        tree: &TemplateTree,
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let message = field.parent_message();
        if let Some(column) = tree.column() {
            let encode = |value| self.encode_field(message, field.json_name(), value, path);
            let rows =
                self.row_column_node(column, path, |text| text_to_json(field, text), encode)?;
            return Ok(vec![rows]);
        }
        let is_text = field.kind() == Kind::String && !field.is_list() && !field.is_map();
        if let Some(index) = tree.captured_index().filter(|_| !is_text) {
            return Ok(vec![self.captured_field_node(index, field, path)]);
        }
        let tag = FieldTag::new(field.number(), wire_types::LEN);
        let pair =
            |entry: &MessageDescriptor, key: TemplateTree, value: &TemplateTree, path: &str| {
                let pair = [("key".to_owned(), key), ("value".to_owned(), value.clone())];
                Ok(PatchNode::new_nested(
                    tag,
                    self.message_nodes(entry, &pair, path)?,
                ))
            };
        match (field.kind(), tree) {
            (Kind::Message(entry), TemplateTree::Object(entries)) if field.is_map() => {
                let key_is_bool = entry.map_entry_key_field().kind() == Kind::Bool;
                let pairs = entries.iter().map(|(key, tree)| {
                    let path = join_path(path, key);
                    let key = match serde_json::from_str(key) {
                        Ok(Value::Bool(key)) if key_is_bool => Value::Bool(key),
                        _ => Value::String(key.clone()),
                    };
                    pair(&entry, TemplateTree::Constant(key), tree, &path)
                });
                pairs.collect()
            }
            (Kind::Message(entry), TemplateTree::Keyed(entries)) if field.is_map() => {
                let path = join_path(path, "*");
                let pairs = entries.iter();
                let pairs = pairs.map(|(key, tree)| {
                    pair(&entry, TemplateTree::Template(key.clone()), tree, &path)
                });
                pairs.collect()
            }
            (_, TemplateTree::List(items)) if field.is_list() => {
                self.repeated_field_nodes(field, items, path)
            }
            _ if field.is_list() || field.is_map() => Err(self.error_at(
                path,
                "a whole list or map can only be replaced by {{row.NAME}} alone",
            )),
            _ => {
                let presence = if field.supports_presence() {
                    FieldPresence::Explicit
                } else {
                    FieldPresence::Implicit
                };
                let tag = FieldTag::new(field.number(), wire_type(field));
                self.value_nodes(field, tree, (tag, presence), path)
            }
        }
    }

    /// Returns the nodes of a field's value, or of one list element.
    fn value_nodes(
        &self,
        field: &FieldDescriptor,
        tree: &TemplateTree,
        (tag, presence): (FieldTag, FieldPresence),
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        match (field.kind(), tree) {
            (Kind::Message(message), tree) => {
                if is_current_time(&message, tree) {
                    return Ok(vec![PatchNode::Timestamp { tag }]);
                }
                let mut inner = self.content_nodes(&message, tree, path)?;
                if !field.is_group() {
                    return Ok(vec![PatchNode::new_nested(tag, inner)]);
                }
                let end = FieldTag::new(field.number(), wire_types::GROUP_END);
                inner.insert(0, PatchNode::Bytes(tag.bytes().into()));
                inner.push(PatchNode::Bytes(end.bytes().into()));
                Ok(inner)
            }
            (Kind::String, TemplateTree::Template(template)) => {
                Ok(vec![PatchNode::text(tag, template.clone(), presence)])
            }
            (kind, TemplateTree::Template(template)) => {
                let Some(only) = template.sole_field() else {
                    return Err(self.error_at(
                        path,
                        "a value that is not a string can only be replaced by one template field alone",
                    ));
                };
                let node = scalar_node(&kind, only, tag, presence);
                Ok(vec![node.map_err(|problem| self.error_at(path, &problem))?])
            }
            _ => Err(self.error_at(path, "this field can't hold a list or an object")),
        }
    }

    /// Returns the node of a field whose value comes from a column of the rows; `encode` encodes the value of each row.
    fn row_column_node(
        &self,
        column: &RowColumn,
        path: &str,
        value: impl Fn(&str) -> Value,
        encode: impl Fn(Value) -> Result<Vec<u8>, SchemaError>,
    ) -> Result<PatchNode, SchemaError> {
        let mut encoded = Vec::new();
        let mut ends = Vec::new();
        for (row, text) in column.values().enumerate() {
            let bytes = encode(value(&text)).map_err(|e| {
                let (file, row) = (self.scope.rows.map_or("", Rows::file), row + 1);
                let problem = if is_secret_field_name(&column.name) {
                    // The message may contain the value.
                    "its value does not fit the field".to_owned()
                } else {
                    e.to_string()
                };
                SchemaError::Row(format!(
                    "{file}, row {row}, column {:?}: {problem}",
                    column.name
                ))
            })?;
            encoded.extend_from_slice(&bytes);
            ends.push(
                u32::try_from(encoded.len())
                    .map_err(|_| self.error_at(path, "the column has over four gigabytes"))?,
            );
        }
        Ok(PatchNode::Rows {
            encoded: encoded.into(),
            ends: ends.into(),
        })
    }

    /// Encodes a message that has one field.
    fn encode_field(
        &self,
        message: &MessageDescriptor,
        key: &str,
        value: Value,
        path: &str,
    ) -> Result<Vec<u8>, SchemaError> {
        let object = Value::Object(Map::from_iter([(key.to_owned(), value)]));
        self.encode_constant(message, &object, path)
    }

    fn encode_constant(
        &self,
        message: &MessageDescriptor,
        value: &Value,
        path: &str,
    ) -> Result<Vec<u8>, SchemaError> {
        encode_message(message, value).map_err(|e| self.error_at(path, &e.to_string()))
    }

    fn error_at(&self, path: &str, problem: &str) -> SchemaError {
        value_error(&self.message, path, problem)
    }
}

/// Encodes a message.
fn encode_message(
    message: &MessageDescriptor,
    value: &Value,
) -> Result<Vec<u8>, serde_json::Error> {
    let message = DynamicMessage::deserialize(message.clone(), value)?;
    Ok(message.encode_to_vec())
}

fn value_error(message: &MessageDescriptor, path: &str, problem: &str) -> SchemaError {
    let path = if path.is_empty() { "." } else { path };
    SchemaError::invalid_value(message.full_name(), path, problem, "")
}

/// Returns a field's bytes without its tag and length.
fn strip_tag_and_length(mut bytes: &[u8]) -> Vec<u8> {
    let _tag = decode_varint(&mut bytes);
    let _length = decode_varint(&mut bytes);
    bytes.to_vec()
}

#[cfg(test)]
mod tests;

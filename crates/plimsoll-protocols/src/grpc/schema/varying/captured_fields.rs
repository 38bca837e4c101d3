//! Fields whose values are captured from earlier responses of a journey. Encoding them requires the schema.

use prost_reflect::FieldDescriptor;
use serde_json::{Map, Value};

use super::filler::{row_to_json, text_to_json};
use super::{TemplateMessage, encode_message, strip_tag_and_length};
use crate::grpc::patched_message::{CapturedEncoder, PatchNode};

impl TemplateMessage<'_> {
    /// Returns the node of a whole message.
    pub(super) fn captured_message_node(&self, index: u16) -> PatchNode {
        let message = self.message.clone();
        let encode = move |text: &str| {
            encode_message(&message, &row_to_json(&message, text)).map_err(|e| e.to_string())
        };
        self.captured_node(index, "", encode)
    }

    /// Returns the node of a field, which may be a list or a map.
    pub(super) fn captured_field_node(
        &self,
        index: u16,
        field: &FieldDescriptor,
        path: &str,
    ) -> PatchNode {
        let field = field.clone();
        let encode = move |text: &str| encode_captured_field(&field, text_to_json(&field, text));
        self.captured_node(index, path, encode)
    }

    /// Returns the node of an element of a list.
    pub(super) fn captured_element_node(
        &self,
        index: u16,
        field: &FieldDescriptor,
        path: &str,
    ) -> PatchNode {
        let field = field.clone();
        let encode = move |text: &str| {
            let element = Value::Array(vec![text_to_json(&field, text)]);
            let bytes = encode_captured_field(&field, element)?;
            Ok(if field.is_packed() {
                strip_tag_and_length(&bytes)
            } else {
                bytes
            })
        };
        self.captured_node(index, path, encode)
    }

    /// Returns the node of a field whose value is captured from an earlier response; `encode` encodes it.
    pub(super) fn captured_node(
        &self,
        index: u16,
        path: &str,
        encode: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> PatchNode {
        let name = self.scope.captured.get(usize::from(index));
        let name = name.cloned().unwrap_or_default();
        let path = if path.is_empty() { "." } else { path }.to_owned();
        let encoder = CapturedEncoder::new(move |text| {
            encode(text).map_err(|problem| format!("`{name}` does not fit {path}: {problem}"))
        });
        PatchNode::Captured { index, encoder }
    }
}

/// Encodes a field of a message, including its tag.
fn encode_captured_field(field: &FieldDescriptor, value: Value) -> Result<Vec<u8>, String> {
    let object = Value::Object(Map::from_iter([(field.json_name().to_owned(), value)]));
    encode_message(field.parent_message(), &object).map_err(|e| e.to_string())
}

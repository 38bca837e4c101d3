//! Fields whose values are captured from earlier responses of a journey, and which only the schema can encode.

use prost_reflect::FieldDescriptor;
use serde_json::{Map, Value};

use super::filler::{typed, whole};
use super::{TemplateMessage, encoded, without_tag_and_length};
use crate::grpc::patch::{PatchNode, TakenEncoder};

impl TemplateMessage<'_> {
    /// Returns the node of a whole message.
    pub(super) fn taken_message(&self, index: u16) -> PatchNode {
        let message = self.message.clone();
        let encode =
            move |text: &str| encoded(&message, &whole(&message, text)).map_err(|e| e.to_string());
        self.taken_node(index, "", encode)
    }

    /// Returns the node of a field, which may be a list or a map.
    pub(super) fn taken_field(&self, index: u16, field: &FieldDescriptor, path: &str) -> PatchNode {
        let field = field.clone();
        let encode = move |text: &str| encoded_field(&field, typed(&field, text));
        self.taken_node(index, path, encode)
    }

    /// Returns the node of an element of a list.
    pub(super) fn taken_element(
        &self,
        index: u16,
        field: &FieldDescriptor,
        path: &str,
    ) -> PatchNode {
        let field = field.clone();
        let encode = move |text: &str| {
            let element = Value::Array(vec![typed(&field, text)]);
            let bytes = encoded_field(&field, element)?;
            Ok(if field.is_packed() {
                without_tag_and_length(&bytes)
            } else {
                bytes
            })
        };
        self.taken_node(index, path, encode)
    }

    /// Returns the node of a field whose value is captured from an earlier response; `encode` encodes it.
    pub(super) fn taken_node(
        &self,
        index: u16,
        path: &str,
        encode: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> PatchNode {
        let name = self.scope.taken.get(usize::from(index));
        let name = name.cloned().unwrap_or_default();
        let path = if path.is_empty() { "." } else { path }.to_owned();
        let encoder = TakenEncoder::new(move |text| {
            encode(text).map_err(|problem| format!("`{name}` does not fit {path}: {problem}"))
        });
        PatchNode::Taken { index, encoder }
    }
}

/// Encodes a field of a message, including its tag.
fn encoded_field(field: &FieldDescriptor, value: Value) -> Result<Vec<u8>, String> {
    let object = Value::Object(Map::from_iter([(field.json_name().to_owned(), value)]));
    encoded(field.parent_message(), &object).map_err(|e| e.to_string())
}

//! Lists with varying elements.

use prost_reflect::{FieldDescriptor, Kind};
use serde_json::Value;

use super::filler::text_to_json;
use super::scalar::{wire_type, wire_types};
use super::{TemplateMessage, TemplateTree, strip_tag_and_length};
use crate::grpc::patched_message::{FieldPresence, FieldTag, PatchNode};
use crate::grpc::schema::error::SchemaError;

impl TemplateMessage<'_> {
    pub(super) fn repeated_field_nodes(
        &self,
        field: &FieldDescriptor,
        items: &[TemplateTree],
        path: &str,
    ) -> Result<Vec<PatchNode>, SchemaError> {
        let packed = field.is_packed();
        let message = field.parent_message();
        let name = field.json_name();
        let encode = |value: Value, path: &str| -> Result<Vec<u8>, SchemaError> {
            let bytes = self.encode_field(message, name, Value::Array(vec![value]), path)?;
            Ok(if packed {
                strip_tag_and_length(&bytes)
            } else {
                bytes
            })
        };
        let mut elements = Vec::new();
        for (i, tree) in items.iter().enumerate() {
            let path = format!("{path}[{i}]");
            match tree {
                TemplateTree::Constant(value) => {
                    elements.push(PatchNode::Bytes(encode(value.clone(), &path)?.into()));
                }
                tree => {
                    if let Some(column) = tree.column() {
                        let each = |value| encode(value, &path);
                        let typed = |text: &str| text_to_json(field, text);
                        elements.push(self.row_column_node(column, &path, typed, each)?);
                        continue;
                    }
                    if let Some(index) = tree
                        .captured_index()
                        .filter(|_| field.kind() != Kind::String)
                    {
                        elements.push(self.captured_element_node(index, field, &path));
                        continue;
                    }
                    let tag = if packed {
                        FieldTag::NONE
                    } else {
                        FieldTag::new(field.number(), wire_type(field))
                    };
                    elements.extend(self.value_nodes(
                        field,
                        tree,
                        (tag, FieldPresence::Explicit),
                        &path,
                    )?);
                }
            }
        }
        if packed {
            let tag = FieldTag::new(field.number(), wire_types::LEN);
            elements = vec![PatchNode::new_nested(tag, elements)];
        }
        Ok(elements)
    }
}

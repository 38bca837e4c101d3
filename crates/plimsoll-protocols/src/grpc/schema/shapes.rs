//! The layout of a method's response, for its validation.

use std::collections::BTreeMap;

use prost_reflect::{Kind, MessageDescriptor, Syntax};

use super::{GrpcMethod, Schema};
use crate::grpc::{FieldShape, MessageShape, MessageShapes};

impl Schema {
    /// Returns the layout that responses of `method` must have.
    pub fn answer_shapes(&self, method: &GrpcMethod) -> MessageShapes {
        let top = method.descriptor.output();
        let mut places = BTreeMap::from([(top.full_name().to_owned(), 0)]);
        let mut messages = vec![top];
        let mut shapes = Vec::new();
        while let Some(message) = messages.get(shapes.len()).cloned() {
            shapes.push(self.add_shape(&message, &mut places, &mut messages));
        }
        MessageShapes {
            name: method.response_type(),
            shapes,
            expected: None,
        }
    }

    fn add_shape(
        &self,
        message: &MessageDescriptor,
        places: &mut BTreeMap<String, usize>,
        messages: &mut Vec<MessageDescriptor>,
    ) -> MessageShape {
        // Strings of proto2 are not checked for UTF-8.
        let is_verified = message.parent_file().syntax() != Syntax::Proto2;
        let mut parts = Vec::new();
        for field in message.fields() {
            let part = match field.kind() {
                Kind::Message(inner) => {
                    let name = inner.full_name().to_owned();
                    FieldShape::Message(*places.entry(name).or_insert_with(|| {
                        messages.push(inner);
                        messages.len() - 1
                    }))
                }
                Kind::String
                    if is_verified
                        && !self
                            .unsupported
                            .unverified_strings
                            .contains(field.full_name()) =>
                {
                    FieldShape::Text
                }
                _ => continue,
            };
            parts.push((field.number(), part));
        }
        parts.sort_unstable_by_key(|(number, _)| *number);
        MessageShape { fields: parts }
    }
}

//! Reads values from messages of one type, such as those that a method returns.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};

use super::describe::find_field;
use super::error::{format_similar_names, format_suggestion_or_fields};
use super::type_hint::list_fields;
use super::{GrpcMethod, Schema, SchemaError, similar_names};
use crate::journey::{AnswerReader, MessageCheck};

/// The reader of messages of one type.
struct MessageTypeReader {
    schema: Schema,
    message: MessageDescriptor,
}

impl Schema {
    /// Returns the reader of values in the responses of `method`.
    pub fn answer_reader(&self, method: &GrpcMethod) -> impl AnswerReader + use<> {
        MessageTypeReader {
            schema: self.clone(),
            message: method.descriptor.output(),
        }
    }

    /// Returns the reader of messages of the type `name`, `package.Message`.
    ///
    /// # Errors
    /// Returns an error that suggests similar names if there is no such type.
    pub fn message_reader(&self, name: &str) -> Result<impl AnswerReader + use<>, SchemaError> {
        if let Some(message) = self.pool.get_message_by_name(name) {
            let schema = self.clone();
            return Ok(MessageTypeReader { schema, message });
        }
        let all = self.pool.all_messages();
        let all: Vec<String> = all.map(|found| found.full_name().to_owned()).collect();
        let similar = format_similar_names(&similar_names(name, all.iter()));
        let source = &self.source;
        Err(SchemaError::new(format_args!(
            "message {name:?} is not in {source}{similar}"
        )))
    }
}

impl AnswerReader for MessageTypeReader {
    fn type_name(&self) -> String {
        self.message.full_name().to_owned()
    }

    fn to_json(&self, message: &[u8]) -> Result<String, String> {
        let decoded = DynamicMessage::decode(self.message.clone(), message);
        let decoded = decoded.map_err(|e| e.to_string())?;
        let options = SerializeOptions::new()
            .skip_default_fields(false)
            .use_proto_field_name(true);
        let mut json = Vec::new();
        let mut serializer = serde_json::Serializer::new(&mut json);
        let written = decoded.serialize_with_options(&mut serializer, &options);
        written.map_err(|e| e.to_string())?;
        String::from_utf8(json).map_err(|e| e.to_string())
    }

    fn resolve_path(&self, tokens: &[String]) -> Result<Vec<String>, String> {
        let mut message = Some(self.message.clone());
        // The list or map in which the next token is an index or a key.
        let mut container: Option<FieldDescriptor> = None;
        let mut path = Vec::with_capacity(tokens.len());
        for token in tokens {
            if let Some(field) = container.take() {
                message = value_message_type(&field);
                path.push(token.clone());
                continue;
            }
            // Protobuf's well-known types have special JSON formats.
            let own = message
                .take()
                .filter(|message| !message.full_name().starts_with("google.protobuf."));
            let Some(own) = own else {
                path.push(token.clone());
                continue;
            };
            let Some(field) = find_field(&own, token) else {
                let names: Vec<String> =
                    own.fields().map(|field| field.name().to_owned()).collect();
                let hint = format_suggestion_or_fields(
                    &similar_names(token, names.iter()),
                    &list_fields(&own),
                );
                let name = own.full_name();
                return Err(format!("{name} has no field `{token}`{hint}"));
            };
            path.push(field.name().to_owned());
            if field.is_list() || field.is_map() {
                container = Some(field);
            } else {
                message = value_message_type(&field);
            }
        }
        Ok(path)
    }

    fn message_check(&self, json: &str) -> Result<MessageCheck, String> {
        let check = self.schema.message_check(&self.message, json);
        check.map_err(|e| e.to_string())
    }
}

/// Returns the message type of a field's value, of its elements or of the values of its map; `None`: the values are not
/// messages.
fn value_message_type(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(entry) if field.is_map() => match entry.map_entry_value_field().kind() {
            Kind::Message(message) => Some(message),
            _ => None,
        },
        Kind::Message(message) => Some(message),
        _ => None,
    }
}

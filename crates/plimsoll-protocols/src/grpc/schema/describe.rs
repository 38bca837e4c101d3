//! Describes a schema as text: its methods, and the fields of messages.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;

use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    SerializeOptions,
};

use super::editions::is_zero_placeholder;
use super::error::format_similar_names;
use super::{GrpcMethod, Schema, SchemaError, similar_names};

impl Schema {
    /// Returns one line for each method: its path, kind, request and response.
    pub fn list_methods(&self) -> String {
        let mut text = String::new();
        for method in self.methods() {
            write_method(&mut text, &method);
        }
        if text.is_empty() {
            let _ = writeln!(text, "{} defines no services", self.source);
        }
        text
    }

    /// Describes a service, a method, a message or an enum, with every message and enum that it refers to.
    ///
    /// # Errors
    /// Returns an error that suggests similar names if nothing has this name.
    pub fn describe(&self, name: &str) -> Result<String, SchemaError> {
        let mut text = String::new();
        let mut queue = VecDeque::new();
        let bare = name.strip_prefix('/').unwrap_or(name);
        if let Some(service) = self.pool.get_service_by_name(bare) {
            for descriptor in service.methods() {
                write_method(&mut text, &GrpcMethod { descriptor });
            }
            return Ok(text);
        } else if let Some(message) = self.pool.get_message_by_name(bare) {
            queue.push_back(Kind::Message(message));
        } else if let Some(found) = self.pool.get_enum_by_name(bare) {
            queue.push_back(Kind::Enum(found));
        } else if let Ok(method) = self.method(bare) {
            write_method(&mut text, &method);
            text.push('\n');
            queue.push_back(Kind::Message(method.descriptor.input()));
            queue.push_back(Kind::Message(method.descriptor.output()));
        } else {
            self.check_service(bare)?;
            if let Some((service, _)) = bare.rsplit_once(['/', '.']) {
                self.check_service(service)?;
            }
            let names: Vec<String> = self
                .methods()
                .map(|method| method.path())
                .chain(self.pool.services().map(|s| s.full_name().to_owned()))
                .chain(self.pool.all_messages().map(|m| m.full_name().to_owned()))
                .chain(self.pool.all_enums().map(|e| e.full_name().to_owned()))
                .collect();
            return Err(SchemaError::new(format_args!(
                "{bare:?} is neither a service, a method, a message nor an enum of {}{}",
                self.source,
                format_similar_names(&similar_names(bare, names.iter()))
            )));
        }
        write_types(&mut text, queue);
        Ok(text)
    }
}

impl GrpcMethod {
    /// Returns a request as JSON in which every field has its default, for the user to fill in.
    pub(crate) fn blank_request(&self) -> String {
        let options = SerializeOptions::new().skip_default_fields(false);
        let blank = DynamicMessage::new(self.descriptor.input());
        let mut json = Vec::new();
        let written =
            blank.serialize_with_options(&mut serde_json::Serializer::new(&mut json), &options);
        written.map_or_else(
            |_| "{}".to_owned(),
            |()| String::from_utf8_lossy(&json).into_owned(),
        )
    }
}

fn write_method(text: &mut String, method: &GrpcMethod) {
    let _ = writeln!(
        text,
        "{} ({}): {} -> {}",
        method.path(),
        method.kind(),
        method.request_type(),
        method.response_type()
    );
}

/// Writes every type in the queue, and every type that these refer to, once.
fn write_types(text: &mut String, mut queue: VecDeque<Kind>) {
    let mut seen = BTreeSet::new();
    while let Some(kind) = queue.pop_front() {
        match kind {
            Kind::Message(message) if seen.insert(message.full_name().to_owned()) => {
                write_message(text, &message);
                for field in message.fields() {
                    queue.push_back(match field.kind() {
                        Kind::Message(entry) if entry.is_map_entry() => {
                            entry.map_entry_value_field().kind()
                        }
                        kind => kind,
                    });
                }
            }
            Kind::Enum(found) if seen.insert(found.full_name().to_owned()) => {
                write_enum(text, &found);
            }
            _ => {}
        }
    }
}

fn write_message(text: &mut String, message: &MessageDescriptor) {
    let _ = writeln!(text, "message {} {{", message.full_name());
    for field in message.fields() {
        let choice = match field.containing_oneof() {
            Some(oneof) if !oneof.is_synthetic() => format!("  // one of {}", oneof.name()),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "  {} {} = {};{choice}",
            type_name(&field),
            field.name(),
            field.number()
        );
    }
    text.push_str("}\n");
}

fn write_enum(text: &mut String, found: &EnumDescriptor) {
    let _ = writeln!(text, "enum {} {{", found.full_name());
    for value in found.values().filter(|value| !is_zero_placeholder(value)) {
        let _ = writeln!(text, "  {} = {};", value.name(), value.number());
    }
    text.push_str("}\n");
}

/// Returns the type of a field as in a `.proto` file.
pub(super) fn type_name(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => format!(
            "map<{}, {}>",
            kind_name(&entry.map_entry_key_field().kind()),
            kind_name(&entry.map_entry_value_field().kind())
        ),
        kind if field.is_list() => format!("repeated {}", kind_name(&kind)),
        kind if field.cardinality() == Cardinality::Required => {
            format!("required {}", kind_name(&kind))
        }
        kind if field.supports_presence()
            && field
                .containing_oneof()
                .is_none_or(|oneof| oneof.is_synthetic())
            && !matches!(kind, Kind::Message(_)) =>
        {
            format!("optional {}", kind_name(&kind))
        }
        kind => kind_name(&kind),
    }
}

fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(found) => found.full_name().to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

/// Finds a field by its name in JSON or in its `.proto` file.
pub(super) fn find_field(message: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    message
        .get_field_by_json_name(key)
        .or_else(|| message.get_field_by_name(key))
}

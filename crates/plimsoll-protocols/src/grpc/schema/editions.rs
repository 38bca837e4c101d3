//! Files of protobuf editions (2023 and 2024), put in the terms of proto3.
//!
//! An edition's file says with features what proto2 and proto3 say with their syntax. Every
//! feature that shows on the wire or in JSON has its equal there, which the library knows:
//!
//! | feature | becomes |
//! |---|---|
//! | `field_presence` | `proto3_optional`, and the label of a required field |
//! | `repeated_field_encoding` | the option `packed` |
//! | `message_encoding = DELIMITED` | the type of a group |
//! | `enum_type = CLOSED` | a name in [`Apart`], since the library takes any number |
//! | `utf8_validation = NONE` | a name in [`Apart`] |
//!
//! Features are looked up as the language has it: what is not set on a field, enum or oneof
//! comes from what surrounds it, and at last from the edition (protobuf.dev, "Feature
//! Settings for Editions").

use std::collections::BTreeSet;

use prost_reflect::EnumValueDescriptor;
use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FieldOptions, FileDescriptorProto, UninterpretedOption,
};

/// What the library has no words for, by full names.
#[derive(Clone, Debug, Default)]
pub(super) struct Apart {
    /// Enums that have no numbers but their own.
    pub(super) closed: BTreeSet<String>,
    /// Strings of editions that need not be UTF-8.
    pub(super) any_bytes: BTreeSet<String>,
}

/// `google.protobuf.Edition`.
const EDITION_2023: i32 = 1000;
const EDITION_2024: i32 = 1001;
/// What ends the name of the value that stands at 0 in an enum without one: in proto3 the
/// first value has to be 0, in a closed enum of an edition it need not.
const STAND_IN: &str = "__has_no_zero";

/// `google.protobuf.FeatureSet`, as far as it shows on the wire or in JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FeatureSet {
    #[prost(int32, optional, tag = "1")]
    presence: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    enums: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    repeated: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    text: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    messages: Option<i32>,
}

/// Numbers of `FeatureSet.FieldPresence`.
mod presence {
    pub(super) const EXPLICIT: i32 = 1;
    pub(super) const IMPLICIT: i32 = 2;
    pub(super) const LEGACY_REQUIRED: i32 = 3;
}
const OPEN: i32 = 1;
const CLOSED: i32 = 2;
const PACKED: i32 = 1;
const EXPANDED: i32 = 2;
const VERIFY: i32 = 2;
const NONE: i32 = 3;
const LENGTH_PREFIXED: i32 = 1;
const DELIMITED: i32 = 2;

/// The features of a file and all in it: what is in a `FileDescriptorProto` that the
/// library's own does not have.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FileFeatures {
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageFeatures>,
    #[prost(message, repeated, tag = "5")]
    enums: Vec<EnumFeatures>,
    #[prost(message, repeated, tag = "7")]
    extensions: Vec<FieldFeatures>,
    #[prost(message, optional, tag = "8")]
    options: Option<OfFile>,
    #[prost(int32, optional, tag = "14")]
    pub(super) edition: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MessageFeatures {
    #[prost(message, repeated, tag = "2")]
    fields: Vec<FieldFeatures>,
    #[prost(message, repeated, tag = "3")]
    messages: Vec<MessageFeatures>,
    #[prost(message, repeated, tag = "4")]
    enums: Vec<EnumFeatures>,
    #[prost(message, repeated, tag = "6")]
    extensions: Vec<FieldFeatures>,
    #[prost(message, optional, tag = "7")]
    options: Option<OfMessage>,
    #[prost(message, repeated, tag = "8")]
    oneofs: Vec<OneofFeatures>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldFeatures {
    #[prost(message, optional, tag = "8")]
    options: Option<OfField>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OneofFeatures {
    #[prost(message, optional, tag = "2")]
    options: Option<OfOneof>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EnumFeatures {
    #[prost(message, optional, tag = "3")]
    options: Option<OfEnum>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfFile {
    #[prost(message, optional, tag = "50")]
    features: Option<FeatureSet>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfMessage {
    #[prost(message, optional, tag = "12")]
    features: Option<FeatureSet>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfField {
    #[prost(message, optional, tag = "21")]
    features: Option<FeatureSet>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfOneof {
    #[prost(message, optional, tag = "1")]
    features: Option<FeatureSet>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct OfEnum {
    #[prost(message, optional, tag = "7")]
    features: Option<FeatureSet>,
}

macro_rules! set {
    ($($features:ty),*) => {$(
        impl $features {
            fn set(&self) -> Option<&FeatureSet> {
                self.options.as_ref()?.features.as_ref()
            }
        }
    )*};
}
set!(
    FileFeatures,
    MessageFeatures,
    FieldFeatures,
    OneofFeatures,
    EnumFeatures
);

/// Features where nothing is left open.
#[derive(Clone, Copy, Debug)]
struct Resolved {
    presence: i32,
    enums: i32,
    repeated: i32,
    text: i32,
    messages: i32,
}

impl Resolved {
    /// Editions 2023 and 2024 differ in none of these.
    const DEFAULTS: Resolved = Resolved {
        presence: presence::EXPLICIT,
        enums: OPEN,
        repeated: PACKED,
        text: VERIFY,
        messages: LENGTH_PREFIXED,
    };

    fn with(self, set: Option<&FeatureSet>) -> Resolved {
        let Some(set) = set else { return self };
        let known = |value: Option<i32>, most: i32, inherited: i32| match value {
            Some(value) if (1..=most).contains(&value) => value,
            _ => inherited,
        };
        Resolved {
            presence: known(set.presence, presence::LEGACY_REQUIRED, self.presence),
            enums: known(set.enums, CLOSED, self.enums),
            repeated: known(set.repeated, EXPANDED, self.repeated),
            text: known(set.text, NONE, self.text),
            messages: known(set.messages, DELIMITED, self.messages),
        }
    }
}

/// The number of an edition as a `.proto` file names it.
///
/// # Errors
/// When it is none that is known.
pub(super) fn edition_named(name: &str) -> Result<i32, String> {
    match name {
        "2023" => Ok(EDITION_2023),
        "2024" => Ok(EDITION_2024),
        other => Err(unknown_edition(&format!("{other:?}"))),
    }
}

fn unknown_edition(edition: &str) -> String {
    format!("edition {edition} is not known: those up to 2024 are")
}

/// Puts a file of an edition in the terms of proto3. `features` are those that it declares.
///
/// # Errors
/// When its edition is not known.
pub(super) fn translate(
    file: &mut FileDescriptorProto,
    features: &FileFeatures,
    apart: &mut Apart,
) -> Result<(), String> {
    match features.edition {
        Some(EDITION_2023 | EDITION_2024) => {}
        Some(other) => return Err(unknown_edition(&format!("number {other}"))),
        None => return Err("a file of an edition that does not say which".to_owned()),
    }
    let resolved = Resolved::DEFAULTS.with(features.set());
    let scope = file.package().to_owned();
    for (message, features) in file.message_type.iter_mut().zip(&features.messages) {
        translate_message(message, features, resolved, &scope, apart);
    }
    for (found, features) in file.enum_type.iter_mut().zip(&features.enums) {
        translate_enum(found, features, resolved, &scope, apart);
    }
    for (field, features) in file.extension.iter_mut().zip(&features.extensions) {
        translate_field(field, resolved.with(features.set()), Place::Extension);
    }
    file.syntax = Some("proto3".to_owned());
    Ok(())
}

/// Where a field is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A field of a message.
    Message,
    /// A map.
    Map,
    /// The key or the value of a map.
    Entry,
    Extension,
}

fn translate_message(
    message: &mut DescriptorProto,
    features: &MessageFeatures,
    inherited: Resolved,
    scope: &str,
    apart: &mut Apart,
) {
    let resolved = inherited.with(features.set());
    let scope = qualified(scope, message.name());
    let is_entry = is_map_entry(message);
    let maps: BTreeSet<String> = message
        .nested_type
        .iter()
        .filter(|nested| is_map_entry(nested))
        .map(|nested| nested.name().to_owned())
        .collect();
    for (field, features_of_field) in message.field.iter_mut().zip(&features.fields) {
        let oneof = field.oneof_index.and_then(|at| usize::try_from(at).ok());
        let oneof = oneof.and_then(|at| features.oneofs.get(at));
        let around = resolved.with(oneof.and_then(OneofFeatures::set));
        let kind = field.type_name().rsplit('.').next().unwrap_or_default();
        let place = match field.label() {
            _ if is_entry => Place::Entry,
            Label::Repeated if maps.contains(kind) => Place::Map,
            _ => Place::Message,
        };
        let features = around.with(features_of_field.set());
        if features.text == NONE && matches!(field.r#type(), Type::String) {
            apart.any_bytes.insert(qualified(&scope, field.name()));
        }
        translate_field(field, features, place);
    }
    for (field, features) in message.extension.iter_mut().zip(&features.extensions) {
        translate_field(field, resolved.with(features.set()), Place::Extension);
    }
    for (nested, features) in message.nested_type.iter_mut().zip(&features.messages) {
        translate_message(nested, features, resolved, &scope, apart);
    }
    for (found, features) in message.enum_type.iter_mut().zip(&features.enums) {
        translate_enum(found, features, resolved, &scope, apart);
    }
}

fn translate_field(field: &mut FieldDescriptorProto, features: Resolved, place: Place) {
    match field.label() {
        Label::Repeated => {
            field.options = Some(FieldOptions {
                packed: Some(features.repeated == PACKED),
                ..FieldOptions::default()
            });
        }
        // Written whatever they are, as protobuf's own runtimes do.
        _ if place == Place::Entry => field.proto3_optional = Some(true),
        _ if place == Place::Message && field.oneof_index.is_none() => match features.presence {
            presence::IMPLICIT => {}
            presence::LEGACY_REQUIRED => {
                field.proto3_optional = Some(true);
                field.set_label(Label::Required);
            }
            _ => field.proto3_optional = Some(true),
        },
        _ => {}
    }
    // A type that a source names may turn out to be an enum: the library takes that for one,
    // whatever is said here.
    let is_group = features.messages == DELIMITED && !matches!(place, Place::Map | Place::Entry);
    let is_named = field.r#type.is_none() && field.type_name.is_some();
    if is_group && (is_named || field.r#type == Some(Type::Message as i32)) {
        field.set_type(Type::Group);
    }
}

fn translate_enum(
    found: &mut EnumDescriptorProto,
    features: &EnumFeatures,
    inherited: Resolved,
    scope: &str,
    apart: &mut Apart,
) {
    if inherited.with(features.set()).enums != CLOSED {
        return;
    }
    apart.closed.insert(qualified(scope, found.name()));
    let zero = found.value.iter().position(|value| value.number() == 0);
    let zero = match zero {
        Some(at) => found.value.remove(at),
        None => EnumValueDescriptorProto {
            name: Some(format!("{}{STAND_IN}", found.name())),
            number: Some(0),
            options: None,
        },
    };
    found.value.insert(0, zero);
}

/// Whether a value of an enum is none of its own.
pub(super) fn is_stand_in(value: &EnumValueDescriptor) -> bool {
    let (name, of) = (value.name(), value.parent_enum());
    value.number() == 0 && name.strip_suffix(STAND_IN) == Some(of.name())
}

/// The full name of what is called `name` in `scope`.
pub(super) fn qualified(scope: &str, name: &str) -> String {
    match scope {
        "" => name.to_owned(),
        scope => format!("{scope}.{name}"),
    }
}

pub(super) fn is_map_entry(message: &DescriptorProto) -> bool {
    let options = message.options.as_ref();
    options.is_some_and(|options| options.map_entry())
}

/// Takes the features out of the options of a file that was just read from its source, as
/// they are written there. Of the other options only those stay that bear on encoding.
pub(super) fn take_features(file: &mut FileDescriptorProto, edition: i32) -> FileFeatures {
    let options = file.options.take();
    FileFeatures {
        edition: Some(edition),
        options: options.map(|o| OfFile {
            features: written(&o.uninterpreted_option),
        }),
        messages: file.message_type.iter_mut().map(of_message).collect(),
        enums: file.enum_type.iter_mut().map(of_enum).collect(),
        extensions: file.extension.iter_mut().map(of_field).collect(),
    }
}

fn of_message(message: &mut DescriptorProto) -> MessageFeatures {
    let options = message.options.as_mut();
    let features = MessageFeatures {
        options: options.map(|o| OfMessage {
            features: written(&std::mem::take(&mut o.uninterpreted_option)),
        }),
        fields: message.field.iter_mut().map(of_field).collect(),
        messages: message.nested_type.iter_mut().map(of_message).collect(),
        enums: message.enum_type.iter_mut().map(of_enum).collect(),
        extensions: message.extension.iter_mut().map(of_field).collect(),
        oneofs: message
            .oneof_decl
            .iter_mut()
            .map(|oneof| OneofFeatures {
                options: oneof.options.take().map(|o| OfOneof {
                    features: written(&o.uninterpreted_option),
                }),
            })
            .collect(),
    };
    for range in &mut message.extension_range {
        range.options = None;
    }
    features
}

fn of_field(field: &mut FieldDescriptorProto) -> FieldFeatures {
    FieldFeatures {
        options: field.options.take().map(|o| OfField {
            features: written(&o.uninterpreted_option),
        }),
    }
}

fn of_enum(found: &mut EnumDescriptorProto) -> EnumFeatures {
    for value in &mut found.value {
        value.options = None;
    }
    let Some(options) = found.options.as_mut() else {
        return EnumFeatures::default();
    };
    let features = written(&options.uninterpreted_option);
    // The one other option of an enum that counts here.
    let counts =
        |o: &UninterpretedOption| matches!(&o.name[..], [part] if part.name_part == "allow_alias");
    options.uninterpreted_option.retain(counts);
    EnumFeatures {
        options: Some(OfEnum { features }),
    }
}

/// The features among options as they are written: `features.NAME = VALUE`, or several in
/// `features = { NAME: VALUE … }`.
fn written(options: &[UninterpretedOption]) -> Option<FeatureSet> {
    let mut set = None;
    for option in options {
        match &option.name[..] {
            [first, feature] if first.name_part == "features" && !first.is_extension => {
                let value = option.identifier_value.as_deref().unwrap_or_default();
                let set: &mut FeatureSet = set.get_or_insert_default();
                set.put(&feature.name_part, value);
            }
            [first] if first.name_part == "features" && !first.is_extension => {
                let text = option.aggregate_value.as_deref().unwrap_or_default();
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let words: Vec<&str> = text
                    .split(|c| !is_word(c))
                    .filter(|w| !w.is_empty())
                    .collect();
                let set: &mut FeatureSet = set.get_or_insert_default();
                for pair in words.windows(2) {
                    set.put(pair[0], pair[1]);
                }
            }
            _ => {}
        }
    }
    set
}

impl FeatureSet {
    fn put(&mut self, feature: &str, value: &str) {
        let (place, values): (_, &[&str]) = match feature {
            "field_presence" => (
                &mut self.presence,
                &["EXPLICIT", "IMPLICIT", "LEGACY_REQUIRED"],
            ),
            "enum_type" => (&mut self.enums, &["OPEN", "CLOSED"]),
            "repeated_field_encoding" => (&mut self.repeated, &["PACKED", "EXPANDED"]),
            "utf8_validation" => (&mut self.text, &["", "VERIFY", "NONE"]),
            "message_encoding" => (&mut self.messages, &["LENGTH_PREFIXED", "DELIMITED"]),
            _ => return,
        };
        if let Some(at) = values.iter().position(|known| *known == value) {
            *place = Some(at as i32 + 1);
        }
    }
}

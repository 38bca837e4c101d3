//! Translation of files of protobuf editions (2023 and 2024) to proto3.
//!
//! A file with an edition instead of a syntax uses features for properties that proto2 and proto3 express by their
//! syntax. Every feature that affects the wire format or JSON is translated to an equivalent that the library
//! (prost-reflect) supports, or is recorded in [`UnsupportedFeatures`]:
//!
//! | feature | becomes |
//! |---|---|
//! | `field_presence` | `proto3_optional`, and the label of a required field |
//! | `repeated_field_encoding` | the option `packed` |
//! | `message_encoding = DELIMITED` | the type of a group |
//! | `enum_type = CLOSED` | a name in [`UnsupportedFeatures`], since the library accepts any number |
//! | `utf8_validation = NONE` | a name in [`UnsupportedFeatures`] |
//!
//! Features are inherited as the language defines: a feature that is not set on a field, enum or oneof comes from
//! the enclosing element, and finally from the edition (protobuf.dev, "Feature Settings for Editions"). Features are
//! read from the `FileDescriptorProto` as a dynamic message of the library's pool, because the library's own
//! type of that name has no features.

use std::borrow::Cow;
use std::collections::BTreeSet;

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FieldOptions, FileDescriptorProto, UninterpretedOption,
};
use prost_reflect::{DynamicMessage, EnumValueDescriptor, Kind, ReflectMessage as _, Value};

/// The full names of elements with features that the library can't represent.
#[derive(Clone, Debug, Default)]
pub(super) struct UnsupportedFeatures {
    /// Closed enums, which accept only the numbers that they define.
    pub(super) closed_enums: BTreeSet<String>,
    /// String fields in files with editions whose values need not be UTF-8.
    pub(super) unverified_strings: BTreeSet<String>,
}

/// Numbers of `google.protobuf.Edition`.
const EDITION_2023: i32 = 1000;
const EDITION_2024: i32 = 1001;
/// The suffix of the placeholder value that is added to an enum without 0: proto3 requires that the first value is 0,
/// but a closed enum in a file with an edition need not have it.
const ZERO_PLACEHOLDER_SUFFIX: &str = "__has_no_zero";

/// Numbers of `FeatureSet.FieldPresence`.
mod presence {
    pub(super) const EXPLICIT: i32 = 1;
    pub(super) const IMPLICIT: i32 = 2;
    pub(super) const LEGACY_REQUIRED: i32 = 3;
}
const OPEN_ENUM: i32 = 1;
const CLOSED_ENUM: i32 = 2;
const PACKED_ENCODING: i32 = 1;
const EXPANDED_ENCODING: i32 = 2;
/// Numbers of `FeatureSet.Utf8Validation`, which differ from those in the library's pool.
const VERIFY_UTF8: i32 = 2;
const NO_UTF8_CHECK: i32 = 3;
const LENGTH_PREFIXED: i32 = 1;
const DELIMITED_ENCODING: i32 = 2;

/// The values of all features of an element.
#[derive(Clone, Copy, Debug)]
struct ResolvedFeatures {
    presence: i32,
    enums: i32,
    repeated: i32,
    text: i32,
    messages: i32,
}

impl ResolvedFeatures {
    /// The defaults of editions 2023 and 2024, which are the same for these features.
    const EDITION_DEFAULTS: ResolvedFeatures = ResolvedFeatures {
        presence: presence::EXPLICIT,
        enums: OPEN_ENUM,
        repeated: PACKED_ENCODING,
        text: VERIFY_UTF8,
        messages: LENGTH_PREFIXED,
    };

    /// Returns these features, overridden by the features that an element of the file sets.
    fn with_overrides(self, part: &DynamicMessage) -> ResolvedFeatures {
        let Some(set) = explicit_features(part) else {
            return self;
        };
        let known = |name: &str, last: i32, inherited: i32| {
            let number = set.get_field_by_name(name);
            let number = number.and_then(|number| number.as_enum_number());
            let known = number.filter(|number| (1..=last).contains(number));
            known.unwrap_or(inherited)
        };
        ResolvedFeatures {
            presence: known("field_presence", presence::LEGACY_REQUIRED, self.presence),
            enums: known("enum_type", CLOSED_ENUM, self.enums),
            repeated: known("repeated_field_encoding", EXPANDED_ENCODING, self.repeated),
            text: known("utf8_validation", NO_UTF8_CHECK, self.text),
            messages: known("message_encoding", DELIMITED_ENCODING, self.messages),
        }
    }
}

/// Returns the features that an element sets, in encoded form or in source form (`features.NAME = VALUE`, or several
/// in `features = { NAME: VALUE … }`).
fn explicit_features(part: &DynamicMessage) -> Option<DynamicMessage> {
    let options = part.get_field_by_name("options")?;
    let options = options.as_message()?;
    let mut set = options.get_field_by_name("features")?.as_message()?.clone();
    for option in repeated_messages(options, "uninterpreted_option") {
        let Ok(option) = option.transcode_to::<UninterpretedOption>() else {
            continue;
        };
        match &option.name[..] {
            [first, feature] if first.name_part == "features" && !first.is_extension => {
                set_feature(&mut set, &feature.name_part, option.identifier_value());
            }
            [first] if first.name_part == "features" && !first.is_extension => {
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let words: Vec<&str> = option
                    .aggregate_value()
                    .split(|c| !is_word(c))
                    .filter(|w| !w.is_empty())
                    .collect();
                for pair in words.windows(2) {
                    set_feature(&mut set, pair[0], pair[1]);
                }
            }
            _ => {}
        }
    }
    Some(set)
}

fn set_feature(set: &mut DynamicMessage, feature: &str, value: &str) {
    if let Some(field) = set.descriptor().get_field_by_name(feature)
        && let Kind::Enum(values) = field.kind()
        && let Some(named) = values.get_value_by_name(value)
    {
        let number = match (feature, value) {
            ("utf8_validation", "NONE") => NO_UTF8_CHECK,
            _ => named.number(),
        };
        set.set_field(&field, Value::EnumNumber(number));
    }
}

/// Returns the messages in the repeated field of this name.
fn repeated_messages<'a>(
    of: &'a DynamicMessage,
    name: &'static str,
) -> impl Iterator<Item = &'a DynamicMessage> {
    let list = match of.get_field_by_name(name) {
        Some(Cow::Borrowed(Value::List(list))) => &list[..],
        _ => &[],
    };
    list.iter().filter_map(Value::as_message)
}

/// Checks that the edition that a `.proto` file names is known.
///
/// # Errors
/// Returns an error if the edition is unknown.
pub(super) fn check_edition_name(edition: &str) -> Result<(), String> {
    match edition {
        "2023" | "2024" => Ok(()),
        other => Err(unknown_edition_error(&format!("{other:?}"))),
    }
}

/// Checks that the edition of a compiled file is known.
///
/// # Errors
/// Returns an error if the edition is unknown or missing.
pub(super) fn check_edition(declared: &DynamicMessage) -> Result<(), String> {
    let edition = declared.get_field_by_name("edition");
    let edition = edition.and_then(|edition| edition.as_enum_number());
    match edition.filter(|_| declared.has_field_by_name("edition")) {
        Some(EDITION_2023 | EDITION_2024) => Ok(()),
        Some(other) => Err(unknown_edition_error(&format!("number {other}"))),
        None => Err("a file that uses editions but names none".to_owned()),
    }
}

fn unknown_edition_error(edition: &str) -> String {
    format!("edition {edition} is not supported: use 2023 or 2024")
}

/// Translates a file that uses editions to proto3. `declared` is the original file with its features.
pub(super) fn translate(
    file: &mut FileDescriptorProto,
    declared: &DynamicMessage,
    apart: &mut UnsupportedFeatures,
) {
    let resolved = ResolvedFeatures::EDITION_DEFAULTS.with_overrides(declared);
    let scope = file.package().to_owned();
    for (message, declared) in
        (file.message_type.iter_mut()).zip(repeated_messages(declared, "message_type"))
    {
        translate_message(message, declared, resolved, &scope, apart);
    }
    for (found, declared) in file
        .enum_type
        .iter_mut()
        .zip(repeated_messages(declared, "enum_type"))
    {
        translate_enum(found, declared, resolved, &scope, apart);
    }
    for (field, declared) in file
        .extension
        .iter_mut()
        .zip(repeated_messages(declared, "extension"))
    {
        translate_field(
            field,
            resolved.with_overrides(declared),
            FieldContext::Extension,
        );
    }
    file.syntax = Some("proto3".to_owned());
}

/// The kind of element that a field belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldContext {
    /// A field of a message.
    Message,
    /// A field that is a map.
    Map,
    /// The key or the value of a map.
    Entry,
    Extension,
}

fn translate_message(
    message: &mut DescriptorProto,
    declared: &DynamicMessage,
    inherited: ResolvedFeatures,
    scope: &str,
    apart: &mut UnsupportedFeatures,
) {
    let resolved = inherited.with_overrides(declared);
    let scope = qualify_name(scope, message.name());
    let is_entry = is_map_entry(message);
    let maps: BTreeSet<String> = message
        .nested_type
        .iter()
        .filter(|nested| is_map_entry(nested))
        .map(|nested| nested.name().to_owned())
        .collect();
    let oneofs =
        repeated_messages(declared, "oneof_decl").map(|oneof| resolved.with_overrides(oneof));
    let oneofs: Vec<ResolvedFeatures> = oneofs.collect();
    for (field, declared) in message
        .field
        .iter_mut()
        .zip(repeated_messages(declared, "field"))
    {
        let oneof = field.oneof_index.and_then(|at| usize::try_from(at).ok());
        let around = oneof.and_then(|at| oneofs.get(at)).unwrap_or(&resolved);
        let kind = field.type_name().rsplit('.').next().unwrap_or_default();
        let place = match field.label() {
            _ if is_entry => FieldContext::Entry,
            Label::Repeated if maps.contains(kind) => FieldContext::Map,
            _ => FieldContext::Message,
        };
        let features = around.with_overrides(declared);
        if features.text == NO_UTF8_CHECK && matches!(field.r#type(), Type::String) {
            apart
                .unverified_strings
                .insert(qualify_name(&scope, field.name()));
        }
        translate_field(field, features, place);
    }
    for (field, declared) in message
        .extension
        .iter_mut()
        .zip(repeated_messages(declared, "extension"))
    {
        translate_field(
            field,
            resolved.with_overrides(declared),
            FieldContext::Extension,
        );
    }
    for (nested, declared) in message
        .nested_type
        .iter_mut()
        .zip(repeated_messages(declared, "nested_type"))
    {
        translate_message(nested, declared, resolved, &scope, apart);
    }
    for (found, declared) in message
        .enum_type
        .iter_mut()
        .zip(repeated_messages(declared, "enum_type"))
    {
        translate_enum(found, declared, resolved, &scope, apart);
    }
}

fn translate_field(
    field: &mut FieldDescriptorProto,
    features: ResolvedFeatures,
    place: FieldContext,
) {
    match field.label() {
        Label::Repeated => {
            field.options = Some(FieldOptions {
                packed: Some(features.repeated == PACKED_ENCODING),
                ..FieldOptions::default()
            });
        }
        // Keys and values of maps are always written, as in protobuf's own runtimes.
        _ if place == FieldContext::Entry => field.proto3_optional = Some(true),
        _ if place == FieldContext::Message && field.oneof_index.is_none() => {
            match features.presence {
                presence::IMPLICIT => {}
                presence::LEGACY_REQUIRED => {
                    field.proto3_optional = Some(true);
                    field.set_label(Label::Required);
                }
                _ => field.proto3_optional = Some(true),
            }
        }
        _ => {}
    }
    // A source file refers to a type only by its name, which may be an enum's name. The library then treats the field
    // as an enum, although its type is set to group.
    let is_group = features.messages == DELIMITED_ENCODING
        && !matches!(place, FieldContext::Map | FieldContext::Entry);
    let is_named = field.r#type.is_none() && field.type_name.is_some();
    if is_group && (is_named || field.r#type == Some(Type::Message as i32)) {
        field.set_type(Type::Group);
    }
}

fn translate_enum(
    found: &mut EnumDescriptorProto,
    declared: &DynamicMessage,
    inherited: ResolvedFeatures,
    scope: &str,
    apart: &mut UnsupportedFeatures,
) {
    if inherited.with_overrides(declared).enums != CLOSED_ENUM {
        return;
    }
    apart.closed_enums.insert(qualify_name(scope, found.name()));
    let zero = found.value.iter().position(|value| value.number() == 0);
    let zero = match zero {
        Some(at) => found.value.remove(at),
        None => EnumValueDescriptorProto {
            name: Some(format!("{}{ZERO_PLACEHOLDER_SUFFIX}", found.name())),
            number: Some(0),
            options: None,
        },
    };
    found.value.insert(0, zero);
}

/// Returns true if an enum's value is the placeholder that was added for a missing 0.
pub(super) fn is_zero_placeholder(value: &EnumValueDescriptor) -> bool {
    let (name, of) = (value.name(), value.parent_enum());
    value.number() == 0 && name.strip_suffix(ZERO_PLACEHOLDER_SUFFIX) == Some(of.name())
}

/// Returns the full name of `name` in `scope`.
pub(super) fn qualify_name(scope: &str, name: &str) -> String {
    match scope {
        "" => name.to_owned(),
        scope => format!("{scope}.{name}"),
    }
}

pub(super) fn is_map_entry(message: &DescriptorProto) -> bool {
    let options = message.options.as_ref();
    options.is_some_and(|options| options.map_entry())
}

#[cfg(test)]
mod tests;

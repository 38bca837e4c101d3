//! Varying fields with one scalar value: checks that their templates fit, and encodes them.

use plimsoll_model::rows::template::{FieldSource, RandomRange, TemplateField, TimeFormat};
use prost_reflect::{FieldDescriptor, Kind};

use crate::grpc::patched_message::{FieldPresence, FieldTag, NumberEncoding, PatchNode};

/// Wire types (Protocol Buffers, "Encoding").
pub(super) mod wire_types {
    pub(crate) const VARINT: u32 = 0;
    pub(crate) const I64: u32 = 1;
    pub(crate) const LEN: u32 = 2;
    pub(crate) const GROUP: u32 = 3;
    pub(crate) const GROUP_END: u32 = 4;
    pub(crate) const I32: u32 = 5;
}

/// Returns the node of a field with one value that is neither a string nor a message.
pub(super) fn scalar_node(
    kind: &Kind,
    only: &TemplateField,
    tag: FieldTag,
    presence: FieldPresence,
) -> Result<PatchNode, String> {
    let (form, low, high) = match kind {
        Kind::Bytes if matches!(only.source, FieldSource::Uuid) => {
            let field = only.clone();
            return Ok(PatchNode::Uuid { tag, field });
        }
        Kind::Bytes => {
            return Err("bytes are base64: use {{uuid}} or {{row.NAME}} alone".to_owned());
        }
        Kind::Bool => (NumberEncoding::Varint, 0, 1),
        Kind::Int32 | Kind::Enum(_) => (
            NumberEncoding::Varint,
            i64::from(i32::MIN),
            i64::from(i32::MAX),
        ),
        Kind::Sint32 => (
            NumberEncoding::Zigzag,
            i64::from(i32::MIN),
            i64::from(i32::MAX),
        ),
        Kind::Sfixed32 => (
            NumberEncoding::Fixed32,
            i64::from(i32::MIN),
            i64::from(i32::MAX),
        ),
        Kind::Uint32 => (NumberEncoding::Varint, 0, i64::from(u32::MAX)),
        Kind::Fixed32 => (NumberEncoding::Fixed32, 0, i64::from(u32::MAX)),
        Kind::Int64 => (NumberEncoding::Varint, i64::MIN, i64::MAX),
        Kind::Sint64 => (NumberEncoding::Zigzag, i64::MIN, i64::MAX),
        Kind::Sfixed64 => (NumberEncoding::Fixed64, i64::MIN, i64::MAX),
        Kind::Uint64 => (NumberEncoding::Varint, 0, i64::MAX),
        Kind::Fixed64 => (NumberEncoding::Fixed64, 0, i64::MAX),
        Kind::Float => (NumberEncoding::Float, i64::MIN, i64::MAX),
        Kind::Double => (NumberEncoding::Double, i64::MIN, i64::MAX),
        Kind::String | Kind::Message(_) => return Err("a number can't be used here".to_owned()),
    };
    let name = format!("{kind:?}").to_lowercase();
    if !only.is_number() {
        return Err(format!(
            "this template is not a number, but the field is {name}"
        ));
    }
    let is_real = matches!(form, NumberEncoding::Float | NumberEncoding::Double);
    if only.decimal_places() > 0 && !is_real {
        return Err(format!(
            "digits after the decimal point, and the field is {name}"
        ));
    }
    let fits_in_32 = high <= i64::from(u32::MAX);
    match &only.source {
        FieldSource::Random(RandomRange {
            low: least,
            high: most,
            ..
        }) if !is_real && (*least < low || *most > high) => {
            return Err(format!("the field is {name}: from {low} to {high}"));
        }
        FieldSource::Random(_) => {}
        _ if *kind == Kind::Bool => {
            return Err("the field is bool: use {{random 0 1}} or a column".to_owned());
        }
        FieldSource::Now(TimeFormat::UnixUnits(nanos)) if *nanos < 1_000_000_000 && fits_in_32 => {
            return Err(format!("the field is {name}: only {{{{now s}}}} fits"));
        }
        _ => {}
    }
    let counts = !matches!(only.source, FieldSource::Random(_));
    Ok(PatchNode::Number {
        tag,
        encoding: form,
        field: only.clone(),
        mask: if counts && !is_real { high } else { -1 },
        presence,
    })
}

pub(super) fn wire_type(field: &FieldDescriptor) -> u32 {
    match field.kind() {
        Kind::Message(_) if field.is_group() => wire_types::GROUP,
        Kind::String | Kind::Bytes | Kind::Message(_) => wire_types::LEN,
        Kind::Fixed32 | Kind::Sfixed32 | Kind::Float => wire_types::I32,
        Kind::Fixed64 | Kind::Sfixed64 | Kind::Double => wire_types::I64,
        _ => wire_types::VARINT,
    }
}

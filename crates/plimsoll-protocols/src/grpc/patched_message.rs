//! A protobuf message in which some fields vary: constant bytes alternate with nodes that render each call's values.
//!
//! Only the varying fields are encoded for each call; lengths around them are rewritten when a size changes.
//! The result equals encoding the whole message with the call's values: a field without presence is left out
//! if it has its type's default. The schema builds these messages and the driver renders them.

use std::fmt;
use std::sync::Arc;

use plimsoll_model::rows::template::{
    MAX_CAPTURED_VALUE_BYTES, MessageRenderer, RenderContext, Template, TemplateField,
};

/// An encoded field tag (Protocol Buffers, "Encoding").
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldTag {
    bytes: [u8; 5],
    length: u8,
}

impl FieldTag {
    /// No tag, for elements of a packed list.
    pub(super) const NONE: FieldTag = FieldTag {
        bytes: [0; 5],
        length: 0,
    };

    pub(super) fn new(number: u32, wire_type: u32) -> FieldTag {
        let (buffer, length) = encode_varint(u64::from(number << 3 | wire_type));
        let mut bytes = [0; 5];
        bytes.copy_from_slice(&buffer[..5]);
        FieldTag {
            bytes,
            length: length as u8,
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The encoding of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberEncoding {
    /// `int32`, `int64`, `uint32`, `uint64`, `bool` and enums.
    Varint,
    /// `sint32` and `sint64`.
    Zigzag,
    /// `fixed32` and `sfixed32`.
    Fixed32,
    /// `fixed64` and `sfixed64`.
    Fixed64,
    Float,
    Double,
}

/// Whether a field that holds its default is encoded (Protocol Buffers, "Field Presence").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldPresence {
    Explicit,
    /// The field is left out.
    Implicit,
}

/// A function that encodes a value captured from an earlier response of a journey. Its error says why the value does
/// not fit the field.
type EncodeValueFn = dyn Fn(&str) -> Result<Vec<u8>, String> + Send + Sync;

/// The encoder of a captured value for a field whose type only the schema knows.
#[derive(Clone)]
pub(super) struct CapturedEncoder(Arc<EncodeValueFn>);

impl CapturedEncoder {
    pub(super) fn new(
        encode: impl Fn(&str) -> Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> CapturedEncoder {
        CapturedEncoder(Arc::new(encode))
    }

    fn encode(&self, value: &[u8]) -> Result<Vec<u8>, String> {
        let text =
            std::str::from_utf8(value).map_err(|_| "a value that is not UTF-8".to_owned())?;
        (self.0)(text)
    }
}

impl fmt::Debug for CapturedEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TakenEncoder")
    }
}

#[derive(Clone, Debug)]
pub(super) enum PatchNode {
    Bytes(Box<[u8]>),
    Number {
        tag: FieldTag,
        encoding: NumberEncoding,
        field: TemplateField,
        /// The mask of the value's bits that are kept: counters wrap around at the type's maximum.
        mask: i64,
        presence: FieldPresence,
    },
    Text {
        tag: FieldTag,
        template: Template,
        /// The usual length of the length prefix, in bytes.
        width: u8,
        presence: FieldPresence,
    },
    /// A `bytes` field with the sixteen bytes of a UUID.
    Uuid {
        tag: FieldTag,
        field: TemplateField,
    },
    /// A `google.protobuf.Timestamp`.
    Timestamp {
        tag: FieldTag,
    },
    /// The content of a `google.protobuf.Duration`; `field` renders its seconds.
    Duration {
        field: TemplateField,
    },
    /// A field that is encoded for every row beforehand, including its tag.
    Rows {
        encoded: Box<[u8]>,
        ends: Box<[u32]>,
    },
    /// A field other than a string, including its tag, whose value was captured from an earlier response of a journey.
    Captured {
        index: u16,
        encoder: CapturedEncoder,
    },
    /// A message, a packed list, or an entry of a map.
    Nested {
        tag: FieldTag,
        width: u8,
        nodes: Box<[PatchNode]>,
    },
}

/// A message with its varying fields.
#[derive(Debug)]
pub(super) struct PatchedMessage {
    nodes: Box<[PatchNode]>,
    max_bytes: usize,
}

impl PatchedMessage {
    pub(super) fn new(nodes: Vec<PatchNode>) -> PatchedMessage {
        let nodes = join_constants(nodes);
        PatchedMessage {
            max_bytes: total_size_bounds(&nodes).1,
            nodes,
        }
    }
}

impl MessageRenderer for PatchedMessage {
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        out.reserve(self.max_bytes.min(1 << 16));
        write_all(&self.nodes, moment, out);
    }

    fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    fn captured_indices(&self) -> Vec<u16> {
        let mut needs = Vec::new();
        self.nodes
            .iter()
            .for_each(|node| node.collect_captured_indices(&mut needs));
        needs
    }

    fn check_captured_values(&self, moment: &RenderContext<'_>) -> Result<(), String> {
        self.nodes
            .iter()
            .try_for_each(|node| node.check_captured_values(moment))
    }
}

impl PatchNode {
    pub(super) fn text(tag: FieldTag, template: Template, presence: FieldPresence) -> PatchNode {
        PatchNode::Text {
            tag,
            width: expected_prefix_width(template.length_bounds()),
            template,
            presence,
        }
    }

    pub(super) fn new_nested(tag: FieldTag, nodes: Vec<PatchNode>) -> PatchNode {
        let nodes = join_constants(nodes);
        PatchNode::Nested {
            tag,
            width: expected_prefix_width(total_size_bounds(&nodes)),
            nodes,
        }
    }

    /// Adds the indices of the captured values that the node contains.
    fn collect_captured_indices(&self, needs: &mut Vec<u16>) {
        match self {
            PatchNode::Text { template, .. } => needs.extend(template.captured_indices()),
            PatchNode::Captured { index, .. } => needs.push(*index),
            PatchNode::Nested { nodes, .. } => nodes
                .iter()
                .for_each(|node| node.collect_captured_indices(needs)),
            _ => {}
        }
    }

    /// Checks that the values captured from responses fit their fields.
    fn check_captured_values(&self, moment: &RenderContext<'_>) -> Result<(), String> {
        match self {
            PatchNode::Text { template, .. } => {
                let mut values = template
                    .captured_indices()
                    .filter_map(|name| moment.captured_value(name));
                if values.any(|value| std::str::from_utf8(value).is_err()) {
                    return Err("a value that is not UTF-8, for a string".to_owned());
                }
                Ok(())
            }
            PatchNode::Captured { index, encoder } => match moment.captured_value(*index) {
                Some(value) => encoder.encode(value).map(drop),
                None => Ok(()),
            },
            PatchNode::Nested { nodes, .. } => nodes
                .iter()
                .try_for_each(|node| node.check_captured_values(moment)),
            _ => Ok(()),
        }
    }

    fn write(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        match self {
            PatchNode::Bytes(bytes) => out.extend_from_slice(bytes),
            PatchNode::Number {
                tag,
                encoding: form,
                field,
                mask,
                presence,
            } => {
                let number = field.scaled_integer(moment) & mask;
                if number == 0 && *presence == FieldPresence::Implicit {
                    return;
                }
                out.extend_from_slice(tag.bytes());
                write_number(*form, number, field.decimal_places(), out);
            }
            PatchNode::Text {
                tag,
                template,
                width,
                presence,
            } => {
                let start = out.len();
                out.extend_from_slice(tag.bytes());
                let length = write_length_prefixed(*width, out, |out| template.write(moment, out));
                if length == 0 && *presence == FieldPresence::Implicit {
                    out.truncate(start);
                }
            }
            PatchNode::Uuid { tag, field } => {
                out.extend_from_slice(tag.bytes());
                out.push(16);
                out.extend_from_slice(&field.uuid(moment));
            }
            PatchNode::Timestamp { tag } => {
                const NANOS_PER_SECOND: u64 = 1_000_000_000;
                out.extend_from_slice(tag.bytes());
                write_length_prefixed(1, out, |out| {
                    for (tag, value) in [
                        (1 << 3, moment.unix_ns / NANOS_PER_SECOND),
                        (2 << 3, moment.unix_ns % NANOS_PER_SECOND),
                    ] {
                        if value != 0 {
                            out.push(tag);
                            write_varint(value, out);
                        }
                    }
                });
            }
            PatchNode::Duration { field } => {
                let (number, digits) = (
                    field.scaled_integer(moment),
                    u32::from(field.decimal_places()),
                );
                let scale = 10i64.pow(digits);
                // The number has at most nine decimals, so its nanoseconds are a whole number.
                let nanos = number % scale * 10i64.pow(9 - digits);
                for (tag, value) in [(1 << 3, number / scale), (2 << 3, nanos)] {
                    if value != 0 {
                        out.push(tag);
                        write_varint(value as u64, out);
                    }
                }
            }
            PatchNode::Rows { encoded, ends } => {
                let row = moment.row_index();
                let start = row.checked_sub(1).map_or(0, |before| ends[before]);
                out.extend_from_slice(&encoded[start as usize..ends[row] as usize]);
            }
            PatchNode::Captured { index, encoder } => {
                // `check_captured_values` has already rejected values that do not fit.
                let value = moment.captured_value(*index);
                if let Some(Ok(field)) = value.map(|value| encoder.encode(value)) {
                    out.extend_from_slice(&field);
                }
            }
            PatchNode::Nested { tag, width, nodes } => {
                out.extend_from_slice(tag.bytes());
                write_length_prefixed(*width, out, |out| write_all(nodes, moment, out));
            }
        }
    }

    /// Returns the minimum and the maximum size, in bytes.
    fn size_bounds(&self) -> (usize, usize) {
        match self {
            PatchNode::Bytes(bytes) => (bytes.len(), bytes.len()),
            PatchNode::Number {
                tag,
                encoding: form,
                ..
            } => {
                let most = match form {
                    NumberEncoding::Varint | NumberEncoding::Zigzag => 10,
                    NumberEncoding::Fixed32 | NumberEncoding::Float => 4,
                    NumberEncoding::Fixed64 | NumberEncoding::Double => 8,
                };
                (0, tag.bytes().len() + most)
            }
            PatchNode::Text { tag, template, .. } => {
                let (least, most) = template.length_bounds();
                (
                    least,
                    tag.bytes().len() + encode_varint(most as u64).1 + most,
                )
            }
            PatchNode::Uuid { tag, .. } => (17, tag.bytes().len() + 17),
            PatchNode::Duration { .. } => (0, 22),
            PatchNode::Timestamp { tag } => (1, tag.bytes().len() + 1 + 12),
            PatchNode::Rows { ends, .. } => {
                let starts = std::iter::once(&0).chain(ends.iter());
                let lengths = || {
                    ends.iter()
                        .zip(starts.clone())
                        .map(|(end, start)| end - start)
                };
                let (least, most) = (lengths().min(), lengths().max());
                (least.unwrap_or(0) as usize, most.unwrap_or(0) as usize)
            }
            PatchNode::Captured { .. } => (0, MAX_CAPTURED_VALUE_BYTES),
            PatchNode::Nested { tag, nodes, .. } => {
                let (least, most) = total_size_bounds(nodes);
                let around =
                    |inner: usize| tag.bytes().len() + encode_varint(inner as u64).1 + inner;
                (around(least), around(most))
            }
        }
    }
}

fn write_all(nodes: &[PatchNode], moment: &RenderContext<'_>, out: &mut Vec<u8>) {
    for node in nodes {
        node.write(moment, out);
    }
}

fn total_size_bounds(nodes: &[PatchNode]) -> (usize, usize) {
    nodes
        .iter()
        .map(PatchNode::size_bounds)
        .fold((0, 0), |sum, next| {
            (sum.0.saturating_add(next.0), sum.1.saturating_add(next.1))
        })
}

/// Joins adjacent constant bytes into one node.
fn join_constants(nodes: Vec<PatchNode>) -> Box<[PatchNode]> {
    let mut joined: Vec<PatchNode> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match (joined.last_mut(), node) {
            (Some(PatchNode::Bytes(before)), PatchNode::Bytes(bytes)) => {
                *before = [&before[..], &bytes[..]].concat().into();
            }
            (_, node) => joined.push(node),
        }
    }
    joined.into()
}

/// Returns the length in bytes of the length prefix for content whose size is midway between these bounds.
fn expected_prefix_width((least, most): (usize, usize)) -> u8 {
    encode_varint((least + (most - least) / 2) as u64).1 as u8
}

/// Writes a length prefix and the content that `write` appends; returns the content's length. `width` is the
/// expected number of bytes of the prefix; if it is wrong, the content is moved.
#[inline]
fn write_length_prefixed(width: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> usize {
    let width = usize::from(width);
    let start = out.len();
    out.extend_from_slice(&[0; 10][..width]);
    write(out);
    let length = out.len() - start - width;
    let (bytes, needed) = encode_varint(length as u64);
    if needed != width {
        move_content(out, start, width, needed);
    }
    out[start..start + needed].copy_from_slice(&bytes[..needed]);
    length
}

#[cold]
fn move_content(out: &mut Vec<u8>, start: usize, width: usize, needed: usize) {
    let end = out.len();
    if needed > width {
        out.resize(end + needed - width, 0);
    }
    out.copy_within(start + width..end, start + needed);
    out.truncate(end + needed - width);
}

#[inline]
fn write_number(form: NumberEncoding, number: i64, digits: u8, out: &mut Vec<u8>) {
    // If both numbers are exact, the quotient equals the result of parsing the decimal text.
    let real = || number as f64 / 10f64.powi(i32::from(digits));
    match form {
        NumberEncoding::Varint => write_varint(number as u64, out),
        NumberEncoding::Zigzag => write_varint(((number << 1) ^ (number >> 63)) as u64, out),
        NumberEncoding::Fixed32 => out.extend_from_slice(&(number as u32).to_le_bytes()),
        NumberEncoding::Fixed64 => out.extend_from_slice(&number.to_le_bytes()),
        NumberEncoding::Float if number.unsigned_abs() < 1 << 24 => {
            let real = number as f32 / 10f32.powi(i32::from(digits));
            out.extend_from_slice(&real.to_le_bytes());
        }
        NumberEncoding::Float => out.extend_from_slice(&(real() as f32).to_le_bytes()),
        NumberEncoding::Double => out.extend_from_slice(&real().to_le_bytes()),
    }
}

#[inline]
pub(super) fn write_varint(value: u64, out: &mut Vec<u8>) {
    let (bytes, length) = encode_varint(value);
    out.extend_from_slice(&bytes[..length]);
}

/// Encodes a base-128 varint; returns its bytes and their number.
#[inline]
fn encode_varint(mut value: u64) -> ([u8; 10], usize) {
    let mut bytes = [0; 10];
    let mut length = 0;
    while value >= 0x80 {
        bytes[length] = value as u8 | 0x80;
        value >>= 7;
        length += 1;
    }
    bytes[length] = value as u8;
    (bytes, length + 1)
}

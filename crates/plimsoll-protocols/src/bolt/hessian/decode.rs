//! The decoder of Hessian.

use std::sync::Arc;

use super::{HessianClass, HessianValue};

/// The maximum nesting depth of values.
const MAX_DEPTH: usize = 64;

/// The maximum bytes of type names that references may repeat: short references to a long name must not
/// expand a small input into large values.
const MAX_REPEATED_NAME_BYTES: usize = 1 << 20;

/// Why bytes are not valid Hessian, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hessian: at byte {at}: {problem}")]
pub struct HessianError {
    /// The offset in the bytes.
    pub at: usize,
    /// The problem at this offset.
    pub problem: HessianErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HessianErrorKind {
    #[error("unexpected end of data")]
    UnexpectedEnd,
    #[error("unknown type code {0:#04x}")]
    Tag(u8),
    #[error("invalid length {0}")]
    Length(i32),
    #[error("a string that is not UTF-8")]
    NotUtf8,
    #[error("a reference to class {0}, which is not defined")]
    Class(i32),
    #[error("a reference to type {0}, which is not defined")]
    Type(i32),
    #[error("a reference to value {0}, which is not defined")]
    Ref(u32),
    #[error("references repeat more than {MAX_REPEATED_NAME_BYTES} bytes of type names")]
    TooManyRepeats,
    #[error("values nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("{0} bytes after the value")]
    TrailingBytes(usize),
}

/// Decodes exactly one value.
///
/// # Errors
/// Returns an error if the bytes are not one value and nothing else.
pub fn decode(bytes: &[u8]) -> Result<HessianValue, HessianError> {
    let mut decoder = HessianDecoder::new(bytes);
    let value = decoder.read_value()?;
    match decoder.remaining() {
        0 => Ok(value),
        left => Err(decoder.error(HessianErrorKind::TrailingBytes(left))),
    }
}

/// A decoder of a sequence of values that share classes and references.
#[derive(Debug)]
pub struct HessianDecoder<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    classes: Vec<Arc<HessianClass>>,
    types: Vec<String>,
    /// Bytes of type names that references have repeated.
    repeated: usize,
    /// The number of lists, maps and objects begun.
    container_count: u32,
}

impl<'a> HessianDecoder<'a> {
    /// Creates a decoder of one stream. Classes and references are numbered per stream.
    pub fn new(bytes: &'a [u8]) -> HessianDecoder<'a> {
        HessianDecoder {
            bytes,
            at: 0,
            depth: 0,
            classes: Vec::new(),
            types: Vec::new(),
            repeated: 0,
            container_count: 0,
        }
    }

    /// Returns the number of unread bytes.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn error(&self, problem: HessianErrorKind) -> HessianError {
        HessianError {
            at: self.at,
            problem,
        }
    }

    /// Returns the error for the type code that was read last, and steps back to its offset.
    fn unexpected_tag(&mut self, tag: u8) -> HessianError {
        self.at -= 1;
        self.error(HessianErrorKind::Tag(tag))
    }

    /// Decodes the next value.
    ///
    /// # Errors
    /// Returns an error if no value is left, or if the value is invalid.
    pub fn read_value(&mut self) -> Result<HessianValue, HessianError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(HessianErrorKind::TooDeep));
        }
        self.depth += 1;
        let value = self.tagged_value();
        self.depth -= 1;
        value
    }

    fn read_values(&mut self, count: usize) -> Result<Vec<HessianValue>, HessianError> {
        (0..count).map(|_| self.read_value()).collect()
    }

    fn tagged_value(&mut self) -> Result<HessianValue, HessianError> {
        let mut tag = self.read_byte()?;
        // Class definitions precede the object that uses them first.
        while tag == b'O' {
            self.read_class_definition()?;
            tag = self.read_byte()?;
        }
        Ok(match tag {
            b'N' => HessianValue::Null,
            b'T' => HessianValue::Bool(true),
            b'F' => HessianValue::Bool(false),
            b'I' | 0x80..=0xd7 => HessianValue::Int(self.int_after_tag(tag)?),
            0xd8..=0xef => HessianValue::Long(i64::from(tag) - 0xe0),
            0xf0..=0xff => {
                HessianValue::Long((i64::from(tag) - 0xf8) << 8 | i64::from(self.read_byte()?))
            }
            0x38..=0x3f => {
                HessianValue::Long((i64::from(tag) - 0x3c) << 16 | i64::from(self.be_u16()?))
            }
            0x77 => HessianValue::Long(i64::from(self.be_i32()?)),
            b'L' => HessianValue::Long(self.be_i64()?),
            0x67 => HessianValue::Double(0.0),
            0x68 => HessianValue::Double(1.0),
            0x69 => HessianValue::Double(f64::from(self.read_byte()?.cast_signed())),
            0x6a => HessianValue::Double(f64::from(self.be_u16()?.cast_signed())),
            0x6b => HessianValue::Double(f64::from(f32::from_bits(self.be_i32()?.cast_unsigned()))),
            b'D' => HessianValue::Double(f64::from_bits(self.be_i64()?.cast_unsigned())),
            b'd' => HessianValue::Date(self.be_i64()?),
            0x00..=0x1f | b'S' | b's' => HessianValue::String(self.string_after_tag(tag)?),
            0x20..=0x2f | b'B' | b'b' => HessianValue::Bytes(self.bytes_after_tag(tag)?),
            b'V' => self.list()?,
            b'v' => self.short_list()?,
            b'M' => self.map()?,
            b'o' => self.object()?,
            b'R' => self.reference(0)?,
            0x4a => self.reference(1)?,
            0x4b => self.reference(2)?,
            other => return Err(self.unexpected_tag(other)),
        })
    }

    fn read_byte(&mut self) -> Result<u8, HessianError> {
        let byte = *self
            .bytes
            .get(self.at)
            .ok_or_else(|| self.error(HessianErrorKind::UnexpectedEnd))?;
        self.at += 1;
        Ok(byte)
    }

    fn read_bytes(&mut self, length: usize) -> Result<&'a [u8], HessianError> {
        let taken = self
            .at
            .checked_add(length)
            .and_then(|end| self.bytes.get(self.at..end))
            .ok_or_else(|| self.error(HessianErrorKind::UnexpectedEnd))?;
        self.at += length;
        Ok(taken)
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], HessianError> {
        let mut array = [0; N];
        array.copy_from_slice(self.read_bytes(N)?);
        Ok(array)
    }

    fn be_u16(&mut self) -> Result<u16, HessianError> {
        self.read_array().map(u16::from_be_bytes)
    }

    fn be_i32(&mut self) -> Result<i32, HessianError> {
        self.read_array().map(i32::from_be_bytes)
    }

    fn be_i64(&mut self) -> Result<i64, HessianError> {
        self.read_array().map(i64::from_be_bytes)
    }

    fn int_after_tag(&mut self, tag: u8) -> Result<i32, HessianError> {
        Ok(match tag {
            0x80..=0xbf => i32::from(tag) - 0x90,
            0xc0..=0xcf => (i32::from(tag) - 0xc8) << 8 | i32::from(self.read_byte()?),
            0xd0..=0xd7 => (i32::from(tag) - 0xd4) << 16 | i32::from(self.be_u16()?),
            b'I' => self.be_i32()?,
            other => return Err(self.unexpected_tag(other)),
        })
    }

    /// Decodes an integer where nothing else is allowed: lengths, class numbers.
    fn int(&mut self) -> Result<i32, HessianError> {
        let tag = self.read_byte()?;
        self.int_after_tag(tag)
    }

    fn length(&mut self) -> Result<usize, HessianError> {
        let length = self.int()?;
        usize::try_from(length).map_err(|_| self.error(HessianErrorKind::Length(length)))
    }

    fn string_after_tag(&mut self, mut tag: u8) -> Result<String, HessianError> {
        let mut text = Vec::new();
        loop {
            let units = match tag {
                0x00..=0x1f => u16::from(tag),
                b'S' | b's' => self.be_u16()?,
                other => return Err(self.unexpected_tag(other)),
            };
            self.read_cesu8_units(units.into(), &mut text)?;
            if tag != b's' {
                return Ok(cesu8_to_string(text));
            }
            tag = self.read_byte()?;
        }
    }

    /// Decodes a string of `units` UTF-16 units. A supplementary character takes two.
    fn cesu8_text(&mut self, units: usize) -> Result<String, HessianError> {
        let mut text = Vec::new();
        self.read_cesu8_units(units, &mut text)?;
        Ok(cesu8_to_string(text))
    }

    /// Appends the bytes of `units` UTF-16 units, one to three bytes each.
    fn read_cesu8_units(&mut self, units: usize, text: &mut Vec<u8>) -> Result<(), HessianError> {
        let begin = self.at;
        // Every unit takes at least one byte, so this many can be read without looking at them.
        let least = self.read_bytes(units)?;
        if !least.is_ascii() {
            self.at = begin;
            for _ in 0..units {
                match self.read_byte()? {
                    0x00..=0x7f => {}
                    0xc0..=0xdf => self.check_continuation_byte()?,
                    0xe0..=0xef => {
                        self.check_continuation_byte()?;
                        self.check_continuation_byte()?;
                    }
                    _ => return Err(self.error(HessianErrorKind::NotUtf8)),
                }
            }
        }
        text.extend_from_slice(&self.bytes[begin..self.at]);
        Ok(())
    }

    fn check_continuation_byte(&mut self) -> Result<(), HessianError> {
        match self.read_byte()? {
            0x80..=0xbf => Ok(()),
            _ => Err(self.error(HessianErrorKind::NotUtf8)),
        }
    }

    fn bytes_after_tag(&mut self, mut tag: u8) -> Result<Vec<u8>, HessianError> {
        let mut all = Vec::new();
        loop {
            let length = match tag {
                0x20..=0x2f => u16::from(tag - 0x20),
                b'B' | b'b' => self.be_u16()?,
                other => return Err(self.unexpected_tag(other)),
            };
            all.extend_from_slice(self.read_bytes(length.into())?);
            if tag != b'b' {
                return Ok(all);
            }
            tag = self.read_byte()?;
        }
    }

    fn skip_if_next(&mut self, tag: u8) -> bool {
        let is = self.bytes.get(self.at) == Some(&tag);
        self.at += usize::from(is);
        is
    }

    /// Decodes a type's name, or a reference to an earlier one.
    fn read_class_name(&mut self) -> Result<Option<String>, HessianError> {
        if self.skip_if_next(b't') {
            let units = self.be_u16()?;
            let name = self.cesu8_text(units.into())?;
            self.types.push(name.clone());
            return Ok(Some(name));
        }
        if self.skip_if_next(0x75) {
            let number = self.int()?;
            return self.type_by_number(number).map(Some);
        }
        Ok(None)
    }

    fn type_by_number(&mut self, number: i32) -> Result<String, HessianError> {
        let name = usize::try_from(number)
            .ok()
            .and_then(|n| self.types.get(n))
            .cloned()
            .ok_or_else(|| self.error(HessianErrorKind::Type(number)))?;
        self.repeated += name.len();
        if self.repeated > MAX_REPEATED_NAME_BYTES {
            return Err(self.error(HessianErrorKind::TooManyRepeats));
        }
        Ok(name)
    }

    fn list(&mut self) -> Result<HessianValue, HessianError> {
        self.container_count += 1;
        let class = self.read_class_name()?;
        // The length is only a hint: the end mark decides.
        if self.skip_if_next(b'n') {
            self.read_byte()?;
        } else if self.skip_if_next(b'l') {
            self.be_i32()?;
        }
        let mut items = Vec::new();
        while !self.skip_if_next(b'z') {
            items.push(self.read_value()?);
        }
        Ok(HessianValue::List { class, items })
    }

    /// Decodes a list with a type reference, a length and no end mark.
    fn short_list(&mut self) -> Result<HessianValue, HessianError> {
        self.container_count += 1;
        let number = self.int()?;
        let class = Some(self.type_by_number(number)?);
        let length = self.length()?;
        let items = self.read_values(length)?;
        Ok(HessianValue::List { class, items })
    }

    fn map(&mut self) -> Result<HessianValue, HessianError> {
        self.container_count += 1;
        let class = self.read_class_name()?;
        let mut entries = Vec::new();
        while !self.skip_if_next(b'z') {
            let key = self.read_value()?;
            entries.push((key, self.read_value()?));
        }
        Ok(HessianValue::Map { class, entries })
    }

    fn read_class_definition(&mut self) -> Result<(), HessianError> {
        let length = self.length()?;
        let name = self.cesu8_text(length)?;
        let mut fields = Vec::new();
        for _ in 0..self.length()? {
            let tag = self.read_byte()?;
            fields.push(self.string_after_tag(tag)?);
        }
        self.classes.push(Arc::new(HessianClass { name, fields }));
        Ok(())
    }

    fn object(&mut self) -> Result<HessianValue, HessianError> {
        let number = self.int()?;
        let class = usize::try_from(number)
            .ok()
            .and_then(|n| self.classes.get(n))
            .cloned()
            .ok_or_else(|| self.error(HessianErrorKind::Class(number)))?;
        self.container_count += 1;
        let fields = self.read_values(class.fields.len())?;
        Ok(HessianValue::Object { class, fields })
    }

    fn reference(&mut self, width: usize) -> Result<HessianValue, HessianError> {
        let number = match width {
            1 => u32::from(self.read_byte()?),
            2 => u32::from(self.be_u16()?),
            _ => self.be_i32()?.cast_unsigned(),
        };
        if number < self.container_count {
            Ok(HessianValue::Ref(number))
        } else {
            Err(self.error(HessianErrorKind::Ref(number)))
        }
    }
}

/// Converts the bytes of [`HessianDecoder::read_cesu8_units`] to a string. They are UTF-8, except for supplementary
/// characters, which are two units (CESU-8, Unicode Technical Report 26), and for U+0000, which may take two bytes.
fn cesu8_to_string(units: Vec<u8>) -> String {
    String::from_utf8(units).unwrap_or_else(|e| {
        let each = e
            .as_bytes()
            .chunk_by(|_, next| (0x80..=0xbf).contains(next));
        let units: Vec<u16> = each
            .map(|unit| match *unit {
                [first, middle, last] => {
                    u16::from(first & 0x0f) << 12
                        | u16::from(middle & 0x3f) << 6
                        | u16::from(last & 0x3f)
                }
                [first, last] => u16::from(first & 0x1f) << 6 | u16::from(last & 0x3f),
                _ => unit[0].into(),
            })
            .collect();
        String::from_utf16_lossy(&units)
    })
}

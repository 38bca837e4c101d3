//! The encoder of Hessian. It uses the shortest forms, as the Java library does.

use std::sync::Arc;

use super::{HessianClass, HessianValue};

/// The maximum length of one chunk: UTF-16 units of a string, or bytes of a byte array.
const MAX_CHUNK_LENGTH: usize = 0x8000;

/// Encodes a single value.
pub fn encode(value: &HessianValue) -> Vec<u8> {
    let mut encoder = HessianEncoder::default();
    encoder.write_value(value);
    encoder.finish()
}

/// An encoder of a sequence of values that share class definitions.
#[derive(Debug, Default)]
pub struct HessianEncoder {
    out: Vec<u8>,
    classes: Vec<Arc<HessianClass>>,
}

impl HessianEncoder {
    /// Returns the encoded bytes.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Appends a value. A class is defined before its first use.
    pub fn write_value(&mut self, value: &HessianValue) {
        match value {
            HessianValue::Null => self.out.push(b'N'),
            HessianValue::Bool(true) => self.out.push(b'T'),
            HessianValue::Bool(false) => self.out.push(b'F'),
            HessianValue::Int(number) => self.int(*number),
            HessianValue::Long(number) => self.long(*number),
            HessianValue::Double(number) => self.double(*number),
            HessianValue::Date(millis) => self.write_tagged(b'd', millis.to_be_bytes()),
            HessianValue::String(text) => self.string(text),
            HessianValue::Bytes(bytes) => self.bytes(bytes),
            HessianValue::List { class, items } => {
                self.out.push(b'V');
                self.write_class_name(class.as_deref());
                match u8::try_from(items.len()) {
                    Ok(length) => self.out.extend_from_slice(&[b'n', length]),
                    Err(_) => self.write_tagged(b'l', saturating_i32(items.len()).to_be_bytes()),
                }
                for item in items {
                    self.write_value(item);
                }
                self.out.push(b'z');
            }
            HessianValue::Map { class, entries } => {
                self.out.push(b'M');
                self.write_class_name(class.as_deref());
                for (key, value) in entries {
                    self.write_value(key);
                    self.write_value(value);
                }
                self.out.push(b'z');
            }
            HessianValue::Object { class, fields } => self.object(class, fields),
            HessianValue::Ref(number) => self.reference(*number),
        }
    }

    fn write_tagged<const N: usize>(&mut self, tag: u8, bytes: [u8; N]) {
        self.out.push(tag);
        self.out.extend_from_slice(&bytes);
    }

    fn int(&mut self, number: i32) {
        match number {
            -16..=47 => self.out.push((0x90 + number) as u8),
            -2048..=2047 => self.write_tagged((0xc8 + (number >> 8)) as u8, [number as u8]),
            _ => self.write_tagged(b'I', number.to_be_bytes()),
        }
    }

    fn long(&mut self, number: i64) {
        match number {
            -8..=15 => self.out.push((0xe0 + number) as u8),
            -2048..=2047 => self.write_tagged((0xf8 + (number >> 8)) as u8, [number as u8]),
            -262_144..=262_143 => {
                self.write_tagged((0x3c + (number >> 16)) as u8, (number as u16).to_be_bytes());
            }
            _ => match i32::try_from(number) {
                Ok(number) => self.write_tagged(0x77, number.to_be_bytes()),
                Err(_) => self.write_tagged(b'L', number.to_be_bytes()),
            },
        }
    }

    /// Always uses the full form: the short forms for whole numbers lose the sign of a negative zero.
    fn double(&mut self, number: f64) {
        self.write_tagged(b'D', number.to_be_bytes());
    }

    fn string(&mut self, text: &str) {
        let mut units = utf16_length(text);
        if units < 32 {
            self.out.push(units as u8);
            self.push_cesu8(text);
            return;
        }
        let mut rest = text;
        while units > MAX_CHUNK_LENGTH {
            let (chunk, of_chunk) = prefix_of_units(rest, MAX_CHUNK_LENGTH);
            self.write_chunk_header(b's', of_chunk);
            self.push_cesu8(chunk);
            rest = &rest[chunk.len()..];
            units -= of_chunk;
        }
        self.write_chunk_header(b'S', units);
        self.push_cesu8(rest);
    }

    fn write_chunk_header(&mut self, tag: u8, length: usize) {
        self.write_tagged(tag, (length as u16).to_be_bytes());
    }

    /// Appends each UTF-16 unit in one to three bytes (CESU-8, Unicode Technical Report 26). This equals
    /// UTF-8, except for characters of two units.
    fn push_cesu8(&mut self, text: &str) {
        let mut rest = text;
        while !rest.is_ascii() {
            let Some(at) = rest.bytes().position(|byte| byte >= 0xf0) else {
                break;
            };
            let (before, pair) = rest.split_at(at);
            self.out.extend_from_slice(before.as_bytes());
            let (pair, _) = pair.split_at(4);
            for unit in pair.encode_utf16() {
                self.out.extend_from_slice(&[
                    0xe0 | (unit >> 12) as u8,
                    0x80 | (unit >> 6 & 0x3f) as u8,
                    0x80 | (unit & 0x3f) as u8,
                ]);
            }
            rest = &rest[at + 4..];
        }
        self.out.extend_from_slice(rest.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() < 16 {
            self.out.push(0x20 + bytes.len() as u8);
            self.out.extend_from_slice(bytes);
            return;
        }
        let mut rest = bytes;
        while rest.len() > MAX_CHUNK_LENGTH {
            self.write_chunk_header(b'b', MAX_CHUNK_LENGTH);
            self.out.extend_from_slice(&rest[..MAX_CHUNK_LENGTH]);
            rest = &rest[MAX_CHUNK_LENGTH..];
        }
        self.write_chunk_header(b'B', rest.len());
        self.out.extend_from_slice(rest);
    }

    fn write_class_name(&mut self, class: Option<&str>) {
        if let Some(name) = class {
            let (name, units) = prefix_of_units(name, usize::from(u16::MAX));
            self.write_chunk_header(b't', units);
            self.push_cesu8(name);
        }
    }

    fn object(&mut self, class: &Arc<HessianClass>, fields: &[HessianValue]) {
        let known = self.classes.iter().position(|seen| seen == class);
        let number = known.unwrap_or_else(|| {
            self.out.push(b'O');
            self.int(saturating_i32(utf16_length(&class.name)));
            self.push_cesu8(&class.name);
            self.int(saturating_i32(class.fields.len()));
            for field in &class.fields {
                self.string(field);
            }
            self.classes.push(Arc::clone(class));
            self.classes.len() - 1
        });
        self.out.push(b'o');
        self.int(saturating_i32(number));
        // A missing field would shift all fields after it, so it is written as null.
        for i in 0..class.fields.len() {
            self.write_value(fields.get(i).unwrap_or(&HessianValue::Null));
        }
    }

    fn reference(&mut self, number: u32) {
        match number {
            0..=0xff => self.write_tagged(0x4a, [number as u8]),
            0x100..=0xffff => self.write_tagged(0x4b, (number as u16).to_be_bytes()),
            _ => self.write_tagged(b'R', number.to_be_bytes()),
        }
    }
}

/// Returns the number of UTF-16 units: two for a character of four UTF-8 bytes, one for any other.
fn utf16_length(text: &str) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    let begun = |byte: u8| usize::from(byte & 0xc0 != 0x80) + usize::from(byte >= 0xf0);
    text.bytes().map(begun).sum()
}

/// Returns the longest prefix of at most `most` UTF-16 units, and the prefix's number of units. Never splits a
/// surrogate pair, and neither does Java.
fn prefix_of_units(text: &str, most: usize) -> (&str, usize) {
    let mut taken = 0;
    for (at, character) in text.char_indices() {
        if taken + character.len_utf16() > most {
            return (&text[..at], taken);
        }
        taken += character.len_utf16();
    }
    (text, taken)
}

fn saturating_i32(length: usize) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::decode;
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = HessianValue> {
        let leaf = prop_oneof![
            Just(HessianValue::Null),
            any::<bool>().prop_map(HessianValue::Bool),
            any::<i32>().prop_map(HessianValue::Int),
            (-3000i32..3000).prop_map(HessianValue::Int),
            any::<i64>().prop_map(HessianValue::Long),
            (-300_000i64..300_000).prop_map(HessianValue::Long),
            (-1e300..1e300f64).prop_map(HessianValue::Double),
            any::<i64>().prop_map(HessianValue::Date),
            proptest::collection::vec(any::<char>(), 0..70)
                .prop_map(|chars| HessianValue::String(chars.into_iter().collect())),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(HessianValue::Bytes),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            let class = proptest::option::of("[a-z.]{1,12}");
            let items = proptest::collection::vec(inner.clone(), 0..5);
            let pairs = proptest::collection::vec((inner.clone(), inner.clone()), 0..4);
            let object = (
                "[A-Z]{1,3}",
                proptest::collection::vec(("[a-z]{1,5}", inner), 0..4),
            );
            prop_oneof![
                (class.clone(), items)
                    .prop_map(|(class, items)| HessianValue::List { class, items }),
                (class, pairs).prop_map(|(class, entries)| HessianValue::Map { class, entries }),
                object.prop_map(|(name, fields)| {
                    let (names, fields) = fields.into_iter().unzip();
                    let class = Arc::new(HessianClass {
                        name,
                        fields: names,
                    });
                    HessianValue::Object { class, fields }
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn encoded_values_round_trip(value in values()) {
            let bytes = encode(&value);
            prop_assert_eq!(decode(&bytes), Ok(value));
        }

        #[test]
        fn truncated_or_corrupt_input_never_panics(value in values(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = encode(&value);
            let at = cut.index(bytes.len());
            prop_assert!(decode(&bytes[..at]).is_err());
            bytes[at] = byte;
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn strings_count_utf16_units() {
        assert_eq!(encode(&"\u{1F600}".into()), b"\x02\xed\xa0\xbd\xed\xb8\x80");
        assert_eq!(encode(&"é".into()), b"\x01\xc3\xa9");
        let long = "x".repeat(32);
        assert_eq!(&encode(&HessianValue::String(long))[..4], b"S\0\x20x");
    }

    #[test]
    fn foreign_strings_decode_surrogate_pairs() {
        for (bytes, text) in [
            (&b"\x02a\xc0\x80"[..], "a\0"),
            (b"s\x00\x01\xed\xa0\xbdS\x00\x01\xed\xb8\x80", "\u{1F600}"),
            (b"\x03\xed\xa0\xbd\xc3\xa9x", "\u{fffd}\u{e9}x"),
            (b"\x02\xed\xb8\x80\xe2\x82\xac", "\u{fffd}\u{20ac}"),
        ] {
            assert_eq!(decode(bytes), Ok(text.into()), "{bytes:02x?}");
        }
        for bytes in [&b"\x01\xf0\x9f\x98\x80"[..], b"\x01\x80", b"\x02a\xe2\x82x"] {
            let why = decode(bytes).unwrap_err().to_string();
            assert!(why.contains("UTF-8"), "{bytes:02x?} {why}");
        }
    }

    #[test]
    fn long_strings_and_arrays_are_chunked() {
        let mut text = "a".repeat(MAX_CHUNK_LENGTH - 1);
        text.push('\u{1F600}');
        text.push_str(&"b".repeat(2 * MAX_CHUNK_LENGTH));
        let value = HessianValue::String(text);
        let bytes = encode(&value);
        assert_eq!(&bytes[..3], b"s\x7f\xff", "a pair is not cut in two");
        assert_eq!(decode(&bytes), Ok(value));
        let value = HessianValue::Bytes(vec![7; 3 * MAX_CHUNK_LENGTH + 5]);
        assert_eq!(decode(&encode(&value)), Ok(value));
    }

    #[test]
    fn lists_and_depth_are_bounded() {
        let deep = [b'V'; 1000];
        assert!(decode(&deep).unwrap_err().to_string().contains("nested"));
        // Many short references to one long name.
        let mut bytes = b"Vt\xff\xff".to_vec();
        bytes.extend([b'a'; 65_535]);
        bytes.extend(b"V\x75\x90z".repeat(40));
        bytes.push(b'z');
        assert!(decode(&bytes).unwrap_err().to_string().contains("repeat"));
        // A claimed length of two billion items must not be trusted.
        assert!(decode(b"Vl\x7f\xff\xff\xff\x91").is_err());
        assert!(decode(b"O\x91AI\x7f\xff\xff\xff").is_err());
        assert!(
            decode(b"\x4a\x00")
                .unwrap_err()
                .to_string()
                .contains("reference to value 0")
        );
        assert!(
            decode(b"o\x90")
                .unwrap_err()
                .to_string()
                .contains("class 0")
        );
    }
}

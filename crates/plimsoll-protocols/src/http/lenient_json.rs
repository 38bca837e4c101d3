//! Deserializes JSON whose shape differs between services: reads known values, and skips the rest.
//!
//! A value of an unexpected type is not an error; only invalid JSON is. `tokens` reads events with this module, and
//! `body_inspection` repairs invalid events with it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A type that can be read from a JSON value of any type. Each method handles one JSON type; the default methods ignore
/// the value.
pub(super) trait FromAnyJson<'de>: Default {
    fn on_text(&mut self, _text: Cow<'de, str>) {}

    /// Reads a number; integers above 2^53 are rounded.
    fn on_number(&mut self, _number: f64) {}

    fn on_bool(&mut self, _value: bool) {}

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// A wrapper that deserializes by the methods of [`FromAnyJson`].
pub(super) struct LenientValue<T>(pub(super) T);

impl<'de, T: FromAnyJson<'de>> Deserialize<'de> for LenientValue<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LenientValue<T>, D::Error> {
        deserializer
            .deserialize_any(LenientVisitor(T::default()))
            .map(LenientValue)
    }
}

struct LenientVisitor<T>(T);

impl<'de, T: FromAnyJson<'de>> Visitor<'de> for LenientVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_borrowed_str<E: Error>(mut self, text: &'de str) -> Result<T, E> {
        self.0.on_text(Cow::Borrowed(text));
        Ok(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(mut self, text: String) -> Result<T, E> {
        self.0.on_text(Cow::Owned(text));
        Ok(self.0)
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<T, E> {
        self.0.on_number(number);
        Ok(self.0)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<T, E> {
        self.0.on_bool(value);
        Ok(self.0)
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, list: A) -> Result<T, A::Error> {
        self.0.on_list(list)?;
        Ok(self.0)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, object: A) -> Result<T, A::Error> {
        self.0.on_object(object)?;
        Ok(self.0)
    }
}

/// Reads the value of the current key.
pub(super) fn read_value<'de, T, A>(object: &mut A) -> Result<T, A::Error>
where
    T: FromAnyJson<'de>,
    A: MapAccess<'de>,
{
    object.next_value::<LenientValue<T>>().map(|value| value.0)
}

/// Skips the value of the current key.
pub(super) fn skip_value<'de, A: MapAccess<'de>>(object: &mut A) -> Result<(), A::Error> {
    object.next_value::<IgnoredAny>().map(|_| ())
}

/// The key of an entry, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
pub(super) struct ObjectKey<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A string; empty if the value is of another type.
#[derive(Default)]
pub(super) struct LenientString<'a>(pub(super) Cow<'a, str>);

impl<'de> FromAnyJson<'de> for LenientString<'de> {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 = text;
    }
}

/// A count, which may be written as a string or with a decimal point; `None` for other values.
#[derive(Clone, Copy, Default)]
pub(super) struct LenientCount(pub(super) Option<u64>);

impl<'de> FromAnyJson<'de> for LenientCount {
    fn on_text(&mut self, text: Cow<'de, str>) {
        if let Ok(number) = text.trim().parse() {
            self.on_number(number);
        }
    }

    fn on_number(&mut self, number: f64) {
        // Larger counts are implausible, and their sums could overflow.
        let is_plausible = (0.0..=f64::from(u32::MAX)).contains(&number);
        self.0 = is_plausible.then_some(number as u64);
    }
}

/// Whether a value is truthy: not null, false, 0, or an empty string, list or object.
#[derive(Clone, Copy, Default)]
pub(super) struct TruthyValue(pub(super) bool);

impl<'de> FromAnyJson<'de> for TruthyValue {
    fn on_text(&mut self, text: Cow<'de, str>) {
        self.0 = !text.trim().is_empty();
    }

    fn on_number(&mut self, number: f64) {
        self.0 = number != 0.0;
    }

    fn on_bool(&mut self, value: bool) {
        self.0 = value;
    }

    fn on_list<A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {
            self.0 = true;
        }
        Ok(())
    }

    fn on_object<A: MapAccess<'de>>(&mut self, mut object: A) -> Result<(), A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            self.0 = true;
        }
        Ok(())
    }
}

/// Repairs invalid JSON that common libraries write: bytes that are not UTF-8, unpaired surrogates, control characters
/// within strings, `NaN` and `Infinity`. Returns `None` if there is nothing to repair.
pub(super) fn repair_json(data: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(data);
    let mut is_mended = matches!(text, Cow::Owned(_));
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_text) = (&*text, false);
    while let Some(c) = rest.chars().next() {
        let mut numbers = ["NaN", "Infinity", "-Infinity"].into_iter();
        let number = numbers.find(|name| !in_text && rest.starts_with(name));
        let (taken, written) = match c {
            '\\' if in_text => match lone_surrogate_len(rest) {
                Some(taken) => (taken, "\\ufffd"),
                None if begins_with_surrogate_pair(rest) => (12, &rest[..12]),
                None => {
                    let end = rest.char_indices().nth(2);
                    let end = end.map_or(rest.len(), |(at, _)| at);
                    (end, &rest[..end])
                }
            },
            c if in_text && c.is_ascii_control() => (1, " "),
            c => match number {
                Some(number) => (number.len(), "null"),
                None => {
                    in_text ^= c == '"';
                    (c.len_utf8(), &rest[..c.len_utf8()])
                }
            },
        };
        is_mended |= written != &rest[..taken];
        out.push_str(written);
        rest = &rest[taken..];
    }
    is_mended.then_some(out)
}

/// Returns the UTF-16 code unit of a `\u` escape at the beginning of `text`.
fn utf16_unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// Returns whether `text` begins with an escaped surrogate pair.
fn begins_with_surrogate_pair(text: &str) -> bool {
    let second = text.get(6..).and_then(utf16_unit);
    matches!(utf16_unit(text), Some(0xd800..=0xdbff)) && matches!(second, Some(0xdc00..=0xdfff))
}

/// Returns the length of an escaped, unpaired surrogate at the beginning of `text`.
fn lone_surrogate_len(text: &str) -> Option<usize> {
    let is_half = matches!(utf16_unit(text), Some(0xd800..=0xdfff));
    (is_half && !begins_with_surrogate_pair(text)).then_some(6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'de, T: FromAnyJson<'de>>(json: &'de str) -> T {
        serde_json::from_str::<LenientValue<T>>(json).unwrap().0
    }

    #[test]
    fn quantities_accept_numbers_and_strings() {
        for (json, number) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("\"7\"", Some(7)),
            ("0", Some(0)),
            ("null", None),
            ("-1", None),
            ("18446744073709551616", None),
            ("1e300", None),
            ("\"many\"", None),
            ("[7]", None),
            ("{\"n\":7}", None),
            ("true", None),
        ] {
            assert_eq!(read::<LenientCount>(json).0, number, "{json}");
        }
    }

    #[test]
    fn empty_values_count_as_unset() {
        for json in ["1", "-1", "0.5", "\"x\"", "true", "[0]", "{\"a\":null}"] {
            assert!(read::<TruthyValue>(json).0, "{json}");
        }
        for json in ["0", "0.0", "\"\"", "\" \"", "false", "null", "[]", "{}"] {
            assert!(!read::<TruthyValue>(json).0, "{json}");
        }
    }

    #[test]
    fn almost_valid_json_is_repaired() {
        for (data, text) in [
            (
                &b"{\"a\":NaN,\"b\":-Infinity}"[..],
                r#"{"a":null,"b":null}"#,
            ),
            (
                b"[\"\xff\", \"NaN \\\" NaN\"]",
                "[\"\u{fffd}\", \"NaN \\\" NaN\"]",
            ),
            (b"[\"\\ud83d\"]", r#"["\ufffd"]"#),
            (b"[\"\\ude00\\ud83d\\ude00\"]", r#"["\ufffd\ud83d\ude00"]"#),
            (b"[\"a\tb\"]", "[\"a b\"]"),
        ] {
            assert_eq!(repair_json(data).as_deref(), Some(text));
            assert!(serde_json::from_str::<IgnoredAny>(text).is_ok(), "{text}");
        }
        for data in [
            "{}",
            "[\"\\ud83d\\ude00\"]",
            "[\"\\\\ud83d NaN\"]",
            "{",
            "\"\\",
        ] {
            assert_eq!(repair_json(data.as_bytes()), None, "{data}");
        }
    }
}

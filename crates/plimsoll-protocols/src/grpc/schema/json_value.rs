//! JSON of messages in which no object has the same key twice. `serde_json` keeps only the last of such entries, so a
//! part of what a user wrote would be lost without a word.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A JSON value whose objects have each key once.
pub(super) struct UniqueKeysJson(pub(super) Value);

/// Parses `text`.
///
/// # Errors
/// Returns an error with line and column if `text` is not JSON, or if an object has a key twice.
pub(super) fn parse_json(text: &str) -> Result<Value, String> {
    let parsed = serde_json::from_str(text);
    parsed
        .map(|UniqueKeysJson(value)| value)
        .map_err(|e| describe_json_error(&e))
}

/// Returns true if the error is a key that occurs twice, in text that is JSON.
pub(super) fn is_repeated_key(error: &serde_json::Error) -> bool {
    error.is_data()
}

pub(super) fn describe_json_error(error: &serde_json::Error) -> String {
    if is_repeated_key(error) {
        error.to_string()
    } else {
        format!("not valid JSON: {error}")
    }
}

impl<'de> Deserialize<'de> for UniqueKeysJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueKeysJson, D::Error> {
        deserializer
            .deserialize_any(JsonVisitor)
            .map(UniqueKeysJson)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // JSON has no infinite numbers: the parser rejects numbers that are too large.
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueKeysJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "key {key:?} occurs twice in one object"
                )));
            }
            let UniqueKeysJson(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Schema;
    use super::*;

    #[test]
    fn unique_keys_parse_like_serde_json() {
        for text in [
            "null",
            "-1",
            "18446744073709551615",
            "2.22507e-308",
            r#""é\u00e9""#,
            r#"{"a": [true, {"a": {}}], "b": {"a": 1e3}}"#,
        ] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse_json(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn numbers_keep_all_their_digits() {
        for number in ["2.22507e-308", "-2.22507e-308", "0.30000000000000004"] {
            let expected: f64 = number.parse().unwrap();
            let parsed = parse_json(number).unwrap().as_f64().unwrap();
            assert_eq!(parsed.to_bits(), expected.to_bits(), "{number}");
        }
    }

    #[test]
    fn messages_with_repeated_keys_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.proto");
        let source = "syntax = \"proto3\"; package a; message M { int32 order_id = 1; M m = 2; }
            service S { rpc Call(M) returns (M); }";
        std::fs::write(&path, source).unwrap();
        let schema = Schema::from_protos(&[path], &[]).unwrap();
        let call = schema.method("a.S/Call").unwrap();
        for (json, expected) in [
            (
                r#"{"orderId": 1, "orderId": 2}"#,
                "message of a.M: key \"orderId\" occurs twice in one object at line 1 column 24",
            ),
            (
                r#"{"m": {"order_id": 1, "orderId": 2}}"#,
                "message of a.M: field \"m.order_id\" occurs twice, as \"orderId\" and \"order_id\"",
            ),
        ] {
            let error = schema.encode_all(&call, json, None).unwrap_err();
            assert_eq!(error.to_string(), expected);
            let error = schema.expected_answer(&call, json).unwrap_err().to_string();
            assert!(error.contains("occurs twice"), "{json}: {error}");
        }
        let lines = "{\"orderId\": 1}\n{\"orderId\": 1, \"orderId\": 2}";
        let error = schema.encode_all(&call, lines, None).unwrap_err();
        assert!(error.to_string().contains("at line 2"), "{error}");
    }

    #[test]
    fn repeated_key_error_names_place() {
        for (text, expected) in [
            (
                r#"{"a": 1, "a": 2}"#,
                "key \"a\" occurs twice in one object at line 1 column 12",
            ),
            (
                "{\"a\": [{\"b\": 1,\n\"\\u0062\": 2}]}",
                "key \"b\" occurs twice in one object at line 2 column 8",
            ),
            (
                "{\"a\": 1",
                "not valid JSON: EOF while parsing an object at line 1 column 7",
            ),
        ] {
            assert_eq!(parse_json(text).unwrap_err(), expected, "{text}");
        }
    }
}

//! The check that a method's responses contain the fields of a JSON object with their values.

use std::sync::Arc;

use prost_reflect::{DynamicMessage, Kind, MessageDescriptor, SerializeOptions};
use serde_json::{Map, Value};

use super::describe::find_field;
use super::json_value::parse_json;
use super::{GrpcMethod, Schema, SchemaError};
use crate::grpc::ExpectedAnswer;
use crate::journey::MessageCheck;

/// The maximum number of characters of a value in an error.
const MAX_SHOWN_CHARS: usize = 60;

impl Schema {
    /// Creates a check that responses of `method` contain the fields of `json` with their values.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, or does not fit the response.
    pub fn expected_answer(
        &self,
        method: &GrpcMethod,
        json: &str,
    ) -> Result<ExpectedAnswer, SchemaError> {
        let check = self.message_check(&method.descriptor.output(), json)?;
        Ok(ExpectedAnswer::new(json, check))
    }

    /// Creates a check that messages of a type contain the fields of `json` with their values.
    ///
    /// # Errors
    /// Returns an error if the text is not JSON, or does not fit the type.
    pub(super) fn message_check(
        &self,
        message: &MessageDescriptor,
        json: &str,
    ) -> Result<MessageCheck, SchemaError> {
        let wrong = |problem: &dyn std::fmt::Display| {
            let name = message.full_name();
            SchemaError::new(format_args!("answer of {name}: {problem}"))
        };
        let typed = parse_json(json).map_err(|problem| wrong(&problem))?;
        if !typed.is_object() {
            return Err(wrong(&"not an object: write {\"field\": value}"));
        }
        let read = self.read_json(message, &typed)?;
        let whole = message_json(&read).map_err(|e| wrong(&e))?;
        let expected = select_named_fields(message, &typed, &whole);
        let message = message.clone();
        let check = move |bytes: &[u8]| {
            let answer = DynamicMessage::decode(message.clone(), bytes);
            let answer = answer.map_err(|e| e.to_string())?;
            describe_difference(&expected, &message_json(&answer)?, "").map_or(Ok(()), Err)
        };
        Ok(Arc::new(check))
    }
}

/// Returns a message as JSON, with default values.
fn message_json(message: &DynamicMessage) -> Result<Value, String> {
    let options = SerializeOptions::new().skip_default_fields(false);
    let json = message.serialize_with_options(serde_json::value::Serializer, &options);
    json.map_err(|e| e.to_string())
}

/// Returns the fields of `whole` that the user wrote in `typed`. Both describe the same message; `whole` has all its
/// fields, with names and values in the form in which responses are converted to JSON.
fn select_named_fields(message: &MessageDescriptor, typed: &Value, whole: &Value) -> Value {
    let (Value::Object(typed), Value::Object(all)) = (typed, whole) else {
        return whole.clone();
    };
    // Protobuf's well-known types have special JSON formats.
    if message.full_name().starts_with("google.protobuf.") {
        return whole.clone();
    }
    let mut named = Map::new();
    for (key, value) in typed {
        let field = find_field(message, key);
        let name = field.as_ref().map_or(key.as_str(), |f| f.json_name());
        let whole = all.get(name).unwrap_or(&Value::Null);
        let inner = match field.as_ref().map(prost_reflect::FieldDescriptor::kind) {
            Some(Kind::Message(inner)) => Some(inner),
            _ => None,
        };
        let expected = match (inner, value, whole) {
            (Some(entry), Value::Object(typed), Value::Object(all)) if entry.is_map_entry() => {
                match entry.map_entry_value_field().kind() {
                    Kind::Message(inner) => {
                        let each = typed.iter().map(|(key, value)| {
                            let whole = all.get(key).unwrap_or(&Value::Null);
                            (key.clone(), select_named_fields(&inner, value, whole))
                        });
                        Value::Object(each.collect())
                    }
                    _ => whole.clone(),
                }
            }
            (Some(inner), Value::Array(typed), Value::Array(all)) => {
                let pairs = typed.iter().zip(all);
                let each = pairs.map(|(typed, whole)| select_named_fields(&inner, typed, whole));
                Value::Array(each.collect())
            }
            (Some(inner), value, whole) => select_named_fields(&inner, value, whole),
            (None, _, whole) => whole.clone(),
        };
        named.insert(name.to_owned(), expected);
    }
    Value::Object(named)
}

/// Describes the first difference; `None`: `answer` contains `expected`. Lists must have the same length.
fn describe_difference(expected: &Value, answer: &Value, path: &str) -> Option<String> {
    match (expected, answer) {
        (Value::Object(expected), Value::Object(answer)) => {
            expected.iter().find_map(|(key, expected)| {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let found = answer.get(key).unwrap_or(&Value::Null);
                describe_difference(expected, found, &path)
            })
        }
        (Value::Array(expected), Value::Array(answer)) if expected.len() == answer.len() => {
            let mut pairs = expected.iter().zip(answer).enumerate();
            pairs.find_map(|(nth, (expected, answer))| {
                describe_difference(expected, answer, &format!("{path}[{nth}]"))
            })
        }
        (Value::Array(expected), Value::Array(answer)) => Some(format!(
            "{path} has {} elements, not {}",
            answer.len(),
            expected.len()
        )),
        (expected, answer) if expected == answer => None,
        (expected, Value::Null) => Some(format!(
            "{path} is not set, not {}",
            truncate_value(expected)
        )),
        (expected, answer) => Some(format!(
            "{path} is {}, not {}",
            truncate_value(answer),
            truncate_value(expected)
        )),
    }
}

fn truncate_value(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_contain_named_fields() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("t.proto");
        let text = "syntax = \"proto3\"; package t; service S { rpc Get(M) returns (M); }\n\
             enum E { ZERO = 0; ONE = 1; }\n\
             message M { string some_name = 1; int64 count = 2; E kind = 3; M inner = 4; repeated M list = 5;\n\
             map<string, int32> numbers = 6; map<string, M> messages = 7; bool is = 8; }";
        std::fs::write(&file, text).expect("written");
        let schema = Schema::from_protos(&[file], &[]).expect("compiled");
        let method = schema.method("t.S/Get").expect("a method");
        let answer = r#"{"someName": "a", "count": "7", "kind": "ONE", "inner": {"count": 1, "is": true},
            "list": [{"count": 1}, {"someName": "b"}], "numbers": {"x": 1, "y": 2}, "messages": {"k": {"count": 3}}}"#;
        // Requests and responses have the same type.
        let bytes = schema.encode(&method, answer).expect("encoded");
        for (expected, difference) in [
            ("{}", None),
            (r#"{"some_name": "a", "count": 7, "kind": 1}"#, None),
            (
                r#"{"inner": {"is": true}, "numbers": {"x": 1, "y": 2}}"#,
                None,
            ),
            (
                r#"{"list": [{"count": "1"}, {}], "messages": {"k": {"count": 3}}}"#,
                None,
            ),
            (r#"{"is": false, "inner": {"inner": null}}"#, None),
            (r#"{"is": true}"#, Some("is is false, not true")),
            (r#"{"count": 0}"#, Some("count is \"7\", not \"0\"")),
            (
                r#"{"inner": {"someName": "x"}}"#,
                Some("inner.someName is \"\", not \"x\""),
            ),
            (
                r#"{"inner": {"inner": {"is": true}}}"#,
                Some("inner.inner is not set, not"),
            ),
            (r#"{"list": [{}]}"#, Some("list has 2 elements, not 1")),
            (
                r#"{"list": [{}, {"count": 5}]}"#,
                Some("list[1].count is \"0\", not \"5\""),
            ),
            (
                r#"{"messages": {"k": {"count": 4}}}"#,
                Some("messages.k.count is \"3\""),
            ),
        ] {
            let check = schema.expected_answer(&method, expected).expect(expected);
            let found = check.check(&bytes).err();
            match difference {
                None => assert_eq!(found, None, "{expected}"),
                Some(text) => assert!(
                    found.as_deref().is_some_and(|found| found.contains(text)),
                    "{expected}: {found:?}"
                ),
            }
        }
        for wrong in ["[]", "{", r#"{"nme": 1}"#, r#"{"count": "x"}"#] {
            assert!(schema.expected_answer(&method, wrong).is_err(), "{wrong}");
        }
    }
}

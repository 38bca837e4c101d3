//! JSON ↔ values: how arguments are typed and answers are shown.
//!
//! A plain JSON value becomes the Java type that holds it best: a whole number an
//! `Integer`, or a `Long` where it is too large; a number with a fraction a `Double`; an
//! array an `ArrayList`; an object a `HashMap`. `{"@type": …}` says another type.

use std::sync::Arc;

use serde_json::{Map, Number, Value as Json};

use super::{Class, Value};

/// Why JSON has no counterpart in Java, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonError(String);

/// The value that a JSON argument means.
///
/// # Errors
/// Where a number is too large, or `@type` and content don't fit.
pub fn from_json(json: &Json) -> Result<Value, JsonError> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => self::number(number)?,
        Json::String(text) => Value::String(text.clone()),
        Json::Array(items) => Value::List {
            class: None,
            items: items.iter().map(from_json).collect::<Result<_, _>>()?,
        },
        Json::Object(object) => match object.get("@type") {
            None => Value::Map {
                class: None,
                entries: entries(object)?,
            },
            Some(Json::String(class)) => typed(class, object)?,
            Some(other) => {
                return Err(JsonError(format!(
                    "\"@type\" is {other}, expected the name of a Java class as a string"
                )));
            }
        },
    })
}

fn number(number: &Number) -> Result<Value, JsonError> {
    if let Some(whole) = number.as_i64() {
        return Ok(i32::try_from(whole).map_or(Value::Long(whole), Value::Int));
    }
    match number.as_f64() {
        Some(real) if number.is_f64() => Ok(Value::Double(real)),
        _ => Err(JsonError(format!("{number} does not fit 64 bits"))),
    }
}

fn entries(object: &Map<String, Json>) -> Result<Vec<(Value, Value)>, JsonError> {
    object
        .iter()
        .filter(|(key, _)| *key != "@type")
        .map(|(key, value)| Ok((Value::String(key.clone()), from_json(value)?)))
        .collect()
}

/// `{"@type": "long", "value": 1}`, `{"@type": "java.util.TreeMap", "entries": {}}` or
/// `{"@type": "my.Class", "field": …}`.
fn typed(class: &str, object: &Map<String, Json>) -> Result<Value, JsonError> {
    let wrong = |problem: &str| JsonError(format!("\"@type\" {class}: {problem}"));
    let content = object.get("value");
    let simple = match class {
        "int" | "java.lang.Integer" => Some(
            content
                .and_then(Json::as_i64)
                .and_then(|n| i32::try_from(n).ok())
                .map(Value::Int)
                .ok_or_else(|| wrong("\"value\" must be a whole number of 32 bits"))?,
        ),
        "long" | "java.lang.Long" => Some(
            content
                .and_then(Json::as_i64)
                .map(Value::Long)
                .ok_or_else(|| wrong("\"value\" must be a whole number of 64 bits"))?,
        ),
        "double" | "java.lang.Double" | "float" | "java.lang.Float" => Some(
            content
                .and_then(Json::as_f64)
                .map(Value::Double)
                .ok_or_else(|| wrong("\"value\" must be a number"))?,
        ),
        "java.util.Date" => Some(
            content
                .and_then(Json::as_i64)
                .map(Value::Date)
                .ok_or_else(|| wrong("\"value\" must be milliseconds since 1970"))?,
        ),
        "[byte" | "byte[]" => Some(
            content
                .and_then(Json::as_str)
                .and_then(crate::hex::decode)
                .map(Value::Bytes)
                .ok_or_else(|| wrong("\"value\" must be a string of hex digits, two a byte"))?,
        ),
        _ => None,
    };
    if let Some(value) = simple {
        return Ok(value);
    }
    if let Some(Json::Array(items)) = object.get("items") {
        return Ok(Value::List {
            class: Some(class.to_owned()),
            items: items.iter().map(from_json).collect::<Result<_, _>>()?,
        });
    }
    if let Some(Json::Object(inner)) = object.get("entries") {
        return Ok(Value::Map {
            class: Some(class.to_owned()),
            entries: entries(inner)?,
        });
    }
    let fields: Vec<(&String, &Json)> = object.iter().filter(|(key, _)| *key != "@type").collect();
    Ok(Value::Object {
        class: Arc::new(Class {
            name: class.to_owned(),
            fields: fields.iter().map(|(name, _)| (*name).clone()).collect(),
        }),
        fields: fields
            .iter()
            .map(|(_, value)| from_json(value))
            .collect::<Result<_, _>>()?,
    })
}

/// A value for a person to read. References show as `{"@ref": n}`.
pub fn to_json(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => Json::Bool(*flag),
        Value::Int(number) => Json::from(*number),
        Value::Long(number) | Value::Date(number) => Json::from(*number),
        Value::Double(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::String(text) => Json::String(text.clone()),
        Value::Bytes(bytes) => {
            Json::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        Value::List { items, .. } => Json::Array(items.iter().map(to_json).collect()),
        Value::Map { entries, .. } => Json::Object(
            entries
                .iter()
                .map(|(key, value)| {
                    let key = match key {
                        Value::String(text) => text.clone(),
                        other => to_json(other).to_string(),
                    };
                    (key, to_json(value))
                })
                .collect(),
        ),
        Value::Object { class, fields } => {
            let mut object = Map::new();
            object.insert("@type".to_owned(), Json::String(class.name.clone()));
            for (name, value) in class.fields.iter().zip(fields) {
                object.insert(name.clone(), to_json(value));
            }
            Json::Object(object)
        }
        Value::Ref(number) => serde_json::json!({ "@ref": number }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_becomes_the_java_type_that_holds_it() {
        let of = |json: Json| from_json(&json).unwrap();
        assert_eq!(of(json!(7)), Value::Int(7));
        assert_eq!(of(json!(7_000_000_000i64)), Value::Long(7_000_000_000));
        assert_eq!(of(json!(0.5)), Value::Double(0.5));
        assert_eq!(of(json!({"@type": "long", "value": 7})), Value::Long(7));
        assert_eq!(
            of(json!({"@type": "byte[]", "value": "00ff"})),
            Value::Bytes(vec![0, 255])
        );
        let object = of(json!({"@type": "a.B", "x": 1}));
        assert_eq!(object.class_name(), "a.B");
        assert_eq!(object.field("x"), Some(&Value::Int(1)));
        assert_eq!(to_json(&object), json!({"@type": "a.B", "x": 1}));
    }

    #[test]
    fn what_does_not_fit_is_reported() {
        for (json, needle) in [
            (json!(u64::MAX), "64 bits"),
            (json!({"@type": 3}), "name of a Java class"),
            (json!({"@type": "int", "value": "x"}), "32 bits"),
            (json!({"@type": "byte[]", "value": "abc"}), "hex digits"),
        ] {
            let error = from_json(&json).unwrap_err().to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}

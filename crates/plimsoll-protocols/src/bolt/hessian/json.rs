//! Conversion of JSON arguments to Hessian values.
//!
//! A plain JSON value becomes the Java type that fits best: a whole number an `Integer`, or a `Long` if it is
//! too large; a number with a fraction a `Double`; an array an `ArrayList`; an object a `HashMap`. `{"@type":
//! …}` selects another type.

use std::sync::Arc;

use serde_json::{Map, Number, Value as Json};

use super::{HessianClass, HessianValue};

/// Converts a JSON argument to a value.
///
/// # Errors
/// Returns an error if a number is too large, or if the content does not fit its `@type`.
pub fn from_json(json: &Json) -> Result<HessianValue, String> {
    Ok(match json {
        Json::Null => HessianValue::Null,
        Json::Bool(flag) => HessianValue::Bool(*flag),
        Json::Number(number) => self::convert_number(number)?,
        Json::String(text) => HessianValue::String(text.clone()),
        Json::Array(items) => HessianValue::List {
            class: None,
            items: items.iter().map(from_json).collect::<Result<_, _>>()?,
        },
        Json::Object(object) => match object.get("@type") {
            None => HessianValue::Map {
                class: None,
                entries: convert_entries(object)?,
            },
            Some(Json::String(class)) => convert_typed_object(class, object)?,
            Some(other) => {
                return Err(format!(
                    "\"@type\" is {other}, expected the name of a Java class as a string"
                ));
            }
        },
    })
}

fn convert_number(number: &Number) -> Result<HessianValue, String> {
    if let Some(whole) = number.as_i64() {
        return Ok(i32::try_from(whole).map_or(HessianValue::Long(whole), HessianValue::Int));
    }
    match number.as_f64() {
        Some(real) if number.is_f64() => Ok(HessianValue::Double(real)),
        _ => Err(format!("{number} does not fit 64 bits")),
    }
}

fn convert_entries(
    object: &Map<String, Json>,
) -> Result<Vec<(HessianValue, HessianValue)>, String> {
    object
        .iter()
        .filter(|(key, _)| *key != "@type")
        .map(|(key, value)| Ok((HessianValue::String(key.clone()), from_json(value)?)))
        .collect()
}

/// Converts an object with a type: `{"@type": "long", "value": 1}`, `{"@type": "java.util.TreeMap",
/// "entries": {}}` or `{"@type": "my.Class", "field": …}`.
fn convert_typed_object(class: &str, object: &Map<String, Json>) -> Result<HessianValue, String> {
    let content = object.get("value");
    let whole = content.and_then(Json::as_i64);
    let (value, expected) = match class {
        "int" | "java.lang.Integer" => (
            whole
                .and_then(|n| i32::try_from(n).ok())
                .map(HessianValue::Int),
            "a whole number of 32 bits",
        ),
        "long" | "java.lang.Long" => (whole.map(HessianValue::Long), "a whole number of 64 bits"),
        "double" | "java.lang.Double" | "float" | "java.lang.Float" => (
            content.and_then(Json::as_f64).map(HessianValue::Double),
            "a number",
        ),
        "java.util.Date" => (whole.map(HessianValue::Date), "milliseconds since 1970"),
        "[byte" | "byte[]" => {
            let bytes = content
                .and_then(Json::as_str)
                .and_then(plimsoll_wire::hex::decode);
            let expected = "a string of hex digits, two per byte";
            (bytes.map(HessianValue::Bytes), expected)
        }
        _ => return convert_composite_value(class, object),
    };
    value.ok_or_else(|| format!("\"@type\" {class}: \"value\" must be {expected}"))
}

/// Converts a list, a map or an object of the given class.
fn convert_composite_value(
    class: &str,
    object: &Map<String, Json>,
) -> Result<HessianValue, String> {
    if let Some(Json::Array(items)) = object.get("items") {
        return Ok(HessianValue::List {
            class: Some(class.to_owned()),
            items: items.iter().map(from_json).collect::<Result<_, _>>()?,
        });
    }
    if let Some(Json::Object(inner)) = object.get("entries") {
        return Ok(HessianValue::Map {
            class: Some(class.to_owned()),
            entries: convert_entries(inner)?,
        });
    }
    let fields: Vec<(&String, &Json)> = object.iter().filter(|(key, _)| *key != "@type").collect();
    Ok(HessianValue::Object {
        class: Arc::new(HessianClass {
            name: class.to_owned(),
            fields: fields.iter().map(|(name, _)| (*name).clone()).collect(),
        }),
        fields: fields
            .iter()
            .map(|(_, value)| from_json(value))
            .collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_maps_to_smallest_java_type() {
        let of = |json: Json| from_json(&json).unwrap();
        assert_eq!(of(json!(7)), HessianValue::Int(7));
        assert_eq!(
            of(json!(7_000_000_000i64)),
            HessianValue::Long(7_000_000_000)
        );
        assert_eq!(of(json!(0.5)), HessianValue::Double(0.5));
        assert_eq!(
            of(json!({"@type": "long", "value": 7})),
            HessianValue::Long(7)
        );
        assert_eq!(
            of(json!({"@type": "byte[]", "value": "00ff"})),
            HessianValue::Bytes(vec![0, 255])
        );
        let object = of(json!({"@type": "a.B", "x": 1}));
        assert_eq!(object.class_name(), "a.B");
        assert_eq!(object.field("x"), Some(&HessianValue::Int(1)));
    }

    #[test]
    fn unrepresentable_json_is_reported() {
        for (json, needle) in [
            (json!(u64::MAX), "64 bits"),
            (json!({"@type": 3}), "name of a Java class"),
            (json!({"@type": "int", "value": "x"}), "32 bits"),
            (json!({"@type": "byte[]", "value": "abc"}), "hex digits"),
        ] {
            let error = from_json(&json).unwrap_err();
            assert!(error.contains(needle), "{error}");
        }
    }
}

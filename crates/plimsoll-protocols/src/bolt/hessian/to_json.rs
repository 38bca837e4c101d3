//! Conversion of Hessian values to JSON, from which journeys take values.

use serde_json::{Map, Value as Json};

use super::HessianValue;

/// The most values of a converted answer, which bounds what nested references can expand to.
const MAX_REPLY_VALUES: usize = 100_000;
/// The most levels of a converted answer, which bounds references to a value from within.
const MAX_DEPTH: usize = 64;

/// Converts a value: dates become milliseconds since 1970, bytes hexadecimal digits, objects and maps JSON objects, and
/// a reference what it refers to.
///
/// # Errors
/// Returns an error if the value has too many parts or levels, or a number that JSON can't express.
pub fn to_json(value: &HessianValue) -> Result<Json, String> {
    let mut containers = Vec::new();
    collect_containers(value, &mut containers);
    let mut converter = JsonConverter {
        containers,
        values: 0,
    };
    converter.convert(value, 0)
}

/// Collects lists, maps and objects in the order in which they begin, as references count them.
fn collect_containers<'a>(value: &'a HessianValue, containers: &mut Vec<&'a HessianValue>) {
    match value {
        HessianValue::List { items, .. } => {
            containers.push(value);
            items
                .iter()
                .for_each(|item| collect_containers(item, containers));
        }
        HessianValue::Map { entries, .. } => {
            containers.push(value);
            for (key, value) in entries {
                collect_containers(key, containers);
                collect_containers(value, containers);
            }
        }
        HessianValue::Object { fields, .. } => {
            containers.push(value);
            fields
                .iter()
                .for_each(|field| collect_containers(field, containers));
        }
        _ => {}
    }
}

struct JsonConverter<'a> {
    containers: Vec<&'a HessianValue>,
    /// The number of values converted so far.
    values: usize,
}

impl<'a> JsonConverter<'a> {
    fn convert(&mut self, value: &'a HessianValue, depth: usize) -> Result<Json, String> {
        self.values += 1;
        if self.values > MAX_REPLY_VALUES || depth > MAX_DEPTH {
            return Err("its values are too many, or nested too deeply".to_owned());
        }
        Ok(match value {
            HessianValue::Null => Json::Null,
            HessianValue::Bool(flag) => Json::Bool(*flag),
            HessianValue::Int(number) => Json::from(*number),
            HessianValue::Long(number) | HessianValue::Date(number) => Json::from(*number),
            HessianValue::Double(number) => serde_json::Number::from_f64(*number)
                .map(Json::Number)
                .ok_or_else(|| format!("JSON has no number {number}"))?,
            HessianValue::String(text) => Json::from(text.as_str()),
            HessianValue::Bytes(bytes) => Json::from(plimsoll_wire::hex::encode(bytes)),
            HessianValue::List { items, .. } => {
                let items = items.iter().map(|item| self.convert(item, depth + 1));
                Json::Array(items.collect::<Result<_, _>>()?)
            }
            HessianValue::Map { entries, .. } => {
                let mut object = Map::new();
                for (key, value) in entries {
                    let key = match self.convert(key, depth + 1)? {
                        Json::String(text) => text,
                        other => other.to_string(),
                    };
                    object.insert(key, self.convert(value, depth + 1)?);
                }
                Json::Object(object)
            }
            HessianValue::Object { class, fields } => {
                let mut object = Map::new();
                for (name, value) in class.fields.iter().zip(fields) {
                    object.insert(name.clone(), self.convert(value, depth + 1)?);
                }
                Json::Object(object)
            }
            HessianValue::Ref(number) => {
                let referenced = self.containers.get(*number as usize).copied();
                let missing = || format!("reference {number} leads to nothing");
                self.convert(referenced.ok_or_else(missing)?, depth + 1)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_become_their_json() {
        let list = HessianValue::List {
            class: None,
            items: vec![HessianValue::Int(1), HessianValue::Bytes(vec![0, 255])],
        };
        let map = HessianValue::Map {
            class: None,
            entries: vec![
                ("list".into(), list),
                (HessianValue::Int(7), HessianValue::Ref(1)),
                ("none".into(), HessianValue::Null),
            ],
        };
        assert_eq!(
            to_json(&map),
            Ok(json!({"list": [1, "00ff"], "7": [1, "00ff"], "none": null}))
        );
    }

    #[test]
    fn cyclic_values_are_refused() {
        let cyclic = HessianValue::List {
            class: None,
            items: vec![HessianValue::Ref(0), HessianValue::Ref(0)],
        };
        assert!(to_json(&cyclic).is_err());
        assert!(to_json(&HessianValue::Ref(3)).is_err());
        assert!(to_json(&HessianValue::Double(f64::NAN)).is_err());
    }
}

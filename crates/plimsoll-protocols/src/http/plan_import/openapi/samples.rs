//! Builds the smallest values that schemas allow, for bodies without an example.

use serde_json::{Map, Value, json};

use super::document::ServiceDescription;

/// The maximum nesting of schemas, which also ends cycles.
const MAX_SCHEMA_DEPTH: usize = 12;
/// The maximum number of schemas that are evaluated for one sample.
const MAX_SCHEMAS_PER_SAMPLE: usize = 2_000;
/// The maximum number of items or characters in a sample, if a schema requires a minimum length.
const MAX_SAMPLE_LENGTH: u64 = 1_000;

/// Returns a value that a schema allows: the example or default in the schema, or else the smallest value with all
/// required parts.
pub(super) fn build_sample(document: &ServiceDescription<'_>, schema: &Value) -> Value {
    let mut left = MAX_SCHEMAS_PER_SAMPLE;
    build_nested_sample((document, &mut left), schema, MAX_SCHEMA_DEPTH)
}

/// The description of the service, and the number of schemas that may still be evaluated.
type SampleScope<'a, 'b> = (&'a ServiceDescription<'b>, &'a mut usize);

fn build_nested_sample(
    (document, left): SampleScope<'_, '_>,
    schema: &Value,
    depth: usize,
) -> Value {
    let schema = document.resolve_reference(schema);
    if let Some(value) = document.schema_value(&schema) {
        return value;
    }
    *left = left.saturating_sub(1);
    if depth == 0 || *left == 0 {
        return Value::Null;
    }
    for key in ["oneOf", "anyOf"] {
        let choices = schema.get(key).and_then(Value::as_array);
        let is_null = |choice: &&Value| choice.get("type").and_then(Value::as_str) == Some("null");
        if let Some(choice) = choices.and_then(|all| all.iter().find(|choice| !is_null(choice))) {
            return build_nested_sample((document, left), choice, depth - 1);
        }
    }
    if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
        let mut merged = Map::new();
        let own = object_sample((document, left), &schema, depth);
        let parts = all
            .iter()
            .map(|part| build_nested_sample((document, left), part, depth - 1));
        let parts: Vec<Value> = parts.chain([own]).collect();
        for part in parts {
            match part {
                Value::Object(members) => merged.extend(members),
                Value::Null => {}
                other => return other,
            }
        }
        return Value::Object(merged);
    }
    match schema_type(&schema) {
        "object" => object_sample((document, left), &schema, depth),
        "array" => {
            let count = numeric_keyword(&schema, "minItems").clamp(1, MAX_SAMPLE_LENGTH);
            let item = schema.get("items");
            let item = item.map_or(Value::Null, |item| {
                build_nested_sample((document, left), item, depth - 1)
            });
            // The size of nested lists is the product of their lengths, so inner lists have one item.
            let count = if depth < MAX_SCHEMA_DEPTH { 1 } else { count };
            Value::Array(vec![item; count as usize])
        }
        "string" => Value::String(text_sample(&schema)),
        "integer" => json!(
            schema
                .get("minimum")
                .and_then(Value::as_f64)
                .unwrap_or(1.0)
                .ceil() as i64
        ),
        "number" => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(true),
        _ => Value::Null,
    }
}

/// Returns the schema's type; if it has several, the first that is not null.
fn schema_type(schema: &Value) -> &str {
    let named = match schema.get("type") {
        Some(Value::Array(kinds)) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str);
            kinds.find(|kind| *kind != "null")
        }
        Some(kind) => kind.as_str(),
        None => None,
    };
    let has_members = schema.get("properties").is_some();
    named.unwrap_or(if has_members { "object" } else { "" })
}

fn object_sample((document, left): SampleScope<'_, '_>, schema: &Value, depth: usize) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| {
        required.is_some_and(|names| names.iter().any(|known| known.as_str() == Some(name)))
    };
    let members = properties.into_iter().flatten();
    let members = members.filter(|(name, _)| is_required(name));
    let members = members.map(|(name, schema)| {
        (
            name.clone(),
            build_nested_sample((document, left), schema, depth - 1),
        )
    });
    Value::Object(members.collect())
}

fn numeric_keyword(schema: &Value, key: &str) -> u64 {
    schema.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn text_sample(schema: &Value) -> String {
    let by_format = match schema.get("format").and_then(Value::as_str) {
        Some("date") => "2026-01-01",
        Some("date-time") => "2026-01-01T00:00:00Z",
        Some("time") => "00:00:00Z",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("email") => "user@example.com",
        Some("uri" | "url") => "https://example.com/",
        Some("ipv4") => "192.0.2.1",
        Some("ipv6") => "2001:db8::1",
        _ => "text",
    };
    let min = numeric_keyword(schema, "minLength").min(MAX_SAMPLE_LENGTH) as usize;
    let max = schema.get("maxLength").and_then(Value::as_u64);
    let mut text = by_format.to_owned();
    while text.chars().count() < min {
        text.push('x');
    }
    match max {
        Some(max) => text.chars().take(max as usize).collect(),
        None => text,
    }
}

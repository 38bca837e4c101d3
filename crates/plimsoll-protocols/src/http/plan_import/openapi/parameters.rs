//! The parameters of an operation, and their texts in a request.

use serde_json::Value;

use super::document::{ServiceDescription, ServiceOperation};

/// A parameter of an operation.
pub(super) struct OperationParameter {
    pub(super) name: String,
    pub(super) place: ParameterSyntax,
    pub(super) text: ParameterText,
}

/// The part of a request that carries a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterSyntax {
    Path,
    Query,
    Header,
    Cookie,
}

/// The text of a parameter in a request, if it is known.
pub(super) enum ParameterText {
    /// The text of the value; in a query, `name=value`.
    Known(String),
    /// The parameter is required, and has no example.
    Missing,
    /// The parameter is optional, and has no example.
    LeftOut,
}

/// Header fields that a description can't set as parameters (OpenAPI 3.1, 4.8.12.1).
const IGNORED_HEADERS: [&str; 3] = ["accept", "authorization", "content-type"];

/// Returns the parameters of an operation: its own, and those of its path object that it does not override.
pub(super) fn find_parameters(
    document: &ServiceDescription<'_>,
    operation: &ServiceOperation<'_>,
) -> Vec<OperationParameter> {
    let of = |value: &Value| value.get("parameters").and_then(Value::as_array).cloned();
    let own = of(operation.value).unwrap_or_default();
    let common = of(operation.item).unwrap_or_default();
    let mut found: Vec<OperationParameter> = Vec::new();
    for value in own.iter().chain(&common) {
        let resolved = resolve_parameter(document, value);
        let Some(parameter) = read_parameter(document, &resolved) else {
            continue;
        };
        let is_known = |known: &OperationParameter| {
            known.name == parameter.name && known.place == parameter.place
        };
        if !found.iter().any(is_known) {
            found.push(parameter);
        }
    }
    found
}

/// Returns a parameter after following the references of the parameter and of its schema.
fn resolve_parameter(document: &ServiceDescription<'_>, value: &Value) -> Value {
    let mut value = document.resolve_reference(value);
    let schema = value
        .get("schema")
        .map(|schema| document.resolve_reference(schema));
    if let (Some(schema), Some(object)) = (schema, value.as_object_mut()) {
        object.insert("schema".to_owned(), schema);
    }
    value
}

fn read_parameter(document: &ServiceDescription<'_>, value: &Value) -> Option<OperationParameter> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let name = text("name")?.to_owned();
    let place = match text("in")? {
        "path" => ParameterSyntax::Path,
        "query" => ParameterSyntax::Query,
        "cookie" => ParameterSyntax::Cookie,
        "header" if !IGNORED_HEADERS.contains(&&*name.to_ascii_lowercase()) => {
            ParameterSyntax::Header
        }
        _ => return None,
    };
    let is_required = value.get("required").and_then(Value::as_bool) == Some(true);
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    let style = text("style").unwrap_or_default();
    let found = document.parameter_value(value);
    let rendered = found.map(|found| match place {
        ParameterSyntax::Query => {
            query_parameter_text(&name, &found, flag("explode") != Some(false), style)
        }
        ParameterSyntax::Path => encode_path_text(&percent_encode(&join_values(&found))),
        ParameterSyntax::Header | ParameterSyntax::Cookie => join_values(&found),
    });
    let text = match rendered {
        // An empty value would send nothing, although the parameter may be required.
        Some(text) if !text.is_empty() => ParameterText::Known(text),
        _ if is_required || place == ParameterSyntax::Path => ParameterText::Missing,
        _ => ParameterText::LeftOut,
    };
    Some(OperationParameter { name, place, text })
}

/// Returns a value as text: items of a list, and members of an object, joined by commas (`style: simple`).
fn join_values(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(items) => items.iter().map(join_values).collect::<Vec<_>>().join(","),
        Value::Object(members) => {
            let members = members.iter();
            let pairs = members.map(|(key, value)| format!("{key},{}", join_values(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// Returns the text of a query parameter (`style: form` or `deepObject`).
fn query_parameter_text(name: &str, value: &Value, explode: bool, style: &str) -> String {
    let pair = |name: &str, value: &Value| {
        format!(
            "{}={}",
            percent_encode(name),
            percent_encode(&join_values(value))
        )
    };
    let pairs: Vec<String> = match value {
        Value::Array(items) if explode => items.iter().map(|item| pair(name, item)).collect(),
        Value::Object(members) if style == "deepObject" => {
            let members = members.iter();
            members
                .map(|(key, value)| pair(&format!("{name}[{key}]"), value))
                .collect()
        }
        Value::Object(members) if explode => members
            .iter()
            .map(|(key, value)| pair(key, value))
            .collect(),
        Value::Null => Vec::new(),
        other => vec![pair(name, other)],
    };
    pairs.join("&")
}

/// Percent-encodes all but the unreserved characters (RFC 3986, 2.3), and commas.
pub(super) fn percent_encode(text: &str) -> String {
    let encoded = text.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-._~,".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    encoded.collect()
}

/// Percent-encodes characters that a path can't contain.
pub(super) fn encode_path_text(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'!'..=b'~' if !b"#?\"<>\\^`{|}".contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

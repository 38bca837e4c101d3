//! Merges keys from a user's JSON text into the JSON of a request; values may be template fields.

use serde_json::{Map, Value};

use crate::interface::protocol_module::UsageError;

/// Merges the keys of the JSON text `extra` into the request; they replace keys of `body` with the same names. Their
/// values are copied unchanged, so they may be template fields.
pub(super) fn merge_extra_keys(
    mut body: Map<String, Value>,
    extra: &str,
) -> Result<String, UsageError> {
    let problem = |problem: &dyn std::fmt::Display| {
        UsageError::new(
            format_args!("--extra: {problem}"),
            "write, for example, --extra '{\"temperature\": 0}'",
        )
    };
    let keys = match serde_json::from_str(&replace_fields_by_zero(extra)) {
        Ok(Value::Object(keys)) => keys,
        Ok(_) => return Err(problem(&"not a JSON object")),
        Err(e) => return Err(problem(&format_args!("not JSON: {e}"))),
    };
    body.retain(|name, _| !keys.contains_key(name));
    let mut text = Value::Object(body).to_string();
    let inside = extra.trim();
    let inside = inside
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    if let (Some(inside), false) = (inside, keys.is_empty()) {
        text.pop();
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(inside);
        text.push('}');
    }
    Ok(text)
}

/// Removes the quotation marks around the template field that is the value of `key`, since the value must be a number.
pub(super) fn unquote_field(text: &str, key: &str, field: &Value) -> String {
    match field {
        Value::String(bare) => {
            let name = Value::from(key);
            text.replacen(&format!("{name}:{field}"), &format!("{name}:{bare}"), 1)
        }
        _ => text.to_owned(),
    }
}

/// Replaces template fields outside of JSON strings by 0, so that the text can be parsed as JSON.
fn replace_fields_by_zero(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_text) = (text, false);
    while let Some(c) = rest.chars().next() {
        let field = rest.strip_prefix("{{").filter(|_| !in_text);
        if let Some((_, behind)) = field.and_then(|field| field.split_once("}}")) {
            out.push('0');
            rest = behind;
            continue;
        }
        let escaped = match c {
            '\\' => rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => 0,
        };
        in_text ^= c == '"';
        let (piece, behind) = rest.split_at(c.len_utf8() + escaped);
        out.push_str(piece);
        rest = behind;
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn extra_body_keys_are_kept_verbatim() {
        let body = || {
            Map::from_iter([
                ("max_tokens".to_owned(), json!(4)),
                ("n".to_owned(), json!(1)),
            ])
        };
        for (extra, text) in [
            ("{}", r#"{"max_tokens":4,"n":1}"#),
            (
                r#" {"x": 1.10, "n": 1e3} "#,
                r#"{"max_tokens":4,"x": 1.10, "n": 1e3}"#,
            ),
            (
                r#"{"max_tokens": {{row.n}}}"#,
                r#"{"n":1,"max_tokens": {{row.n}}}"#,
            ),
            (
                r#"{"n":2,"max_tokens":{{random 1 9}},"stop":["\"{{seq}}"]}"#,
                r#"{"n":2,"max_tokens":{{random 1 9}},"stop":["\"{{seq}}"]}"#,
            ),
            (
                r#"{"a":{"b":{"c":{{seq}}}}}"#,
                r#"{"max_tokens":4,"n":1,"a":{"b":{"c":{{seq}}}}}"#,
            ),
        ] {
            assert_eq!(merge_extra_keys(body(), extra).unwrap(), text);
        }
        for extra in [
            "[1]",
            "{",
            "{{{row.n}}}",
            "{\"a\" {{row.n}}}",
            "7",
            "{{seq}}",
            "\\",
        ] {
            assert!(merge_extra_keys(body(), extra).is_err(), "{extra}");
        }
    }
}

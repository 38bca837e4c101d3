//! Finds values inside a value: JSON and XML in strings, parameters and forms, and secrets that a text assigns to
//! names.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::request_parts::{find_json_values, find_pieces};
use super::request_value::{RequestValue, ValueSyntax};
use super::secrets::is_secret_under_name;
use super::value_classes::is_credential;
use super::xml_values::find_xml_values;

/// The maximum nesting of texts that are examined.
const MAX_NESTING: usize = 4;

/// A value's decoded text, with the origin of each byte in the encoded text.
struct DecodedText {
    text: String,
    /// The offset in the encoded text of each decoded byte, and of the end.
    offsets: Vec<usize>,
}

/// Returns the values inside a value whose text is JSON or XML, with their positions in `text`; empty if it is neither.
pub(super) fn nested_values(text: &str, value: &RequestValue) -> Vec<RequestValue> {
    parse_nested_values(text, value, MAX_NESTING)
}

fn parse_nested_values(text: &str, value: &RequestValue, depth: usize) -> Vec<RequestValue> {
    if depth == 0 || !value.value.trim_start().starts_with(['{', '[', '<']) {
        return Vec::new();
    }
    let Some(decoded) = decode(text, value) else {
        return Vec::new();
    };
    let found = find_json_values(&decoded.text).or_else(|| find_xml_values(&decoded.text));
    let mut values = Vec::new();
    for inner in found.unwrap_or_default() {
        let deeper = parse_nested_values(&decoded.text, &inner, depth - 1);
        let parts = if deeper.is_empty() {
            vec![inner]
        } else {
            deeper
        };
        values.extend(
            parts
                .into_iter()
                .map(|part| decoded.to_encoded_position(part)),
        );
    }
    values
}

static ASSIGNMENT_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"([A-Za-z_][A-Za-z0-9_.-]*)["']?\s*[:=]\s*(?:"([^"]+)"|'([^']+)'|([^\s"'&,;(){}\[\]<>]+))"#;
    Regex::new(pattern).expect("a valid expression")
});

/// Returns the secrets in a value's text, in order and without overlaps: values assigned to secret names, as in GraphQL
/// (`password: "hush"`), and texts with the form of credentials.
pub(super) fn embedded_secrets(text: &str, value: &RequestValue) -> Vec<RequestValue> {
    if value.place == ValueSyntax::JsonNumber {
        return Vec::new();
    }
    let Some(decoded) = decode(text, value) else {
        return Vec::new();
    };
    let held = &*decoded.text;
    let mut found: Vec<(Range<usize>, String)> = Vec::new();
    for groups in ASSIGNMENT_PATTERN.captures_iter(held) {
        let assigned = groups.get(2).or(groups.get(3)).or(groups.get(4));
        let Some((name, assigned)) = groups.get(1).zip(assigned) else {
            continue;
        };
        // In GraphQL, a variable or a type may follow the colon instead of a value.
        let is_reference = assigned.as_str().starts_with('$') || assigned.as_str().ends_with('!');
        if !is_reference && is_secret_under_name(name.as_str(), assigned.as_str()) {
            found.push((assigned.range(), name.as_str().to_owned()));
        }
    }
    let credentials = find_pieces(held).into_iter();
    let credentials = credentials.filter(|piece| is_credential(&held[piece.clone()]));
    found.extend(credentials.map(|piece| (piece, String::new())));
    found.sort_by_key(|(span, _)| span.start);
    let mut end = 0;
    found.retain(|(span, _)| {
        let is_apart = span.start >= end;
        if is_apart {
            end = span.end;
        }
        // A secret that is the whole value is handled by the caller.
        is_apart && span.len() < held.len()
    });
    let secrets = found.into_iter().map(|(span, name)| {
        decoded.to_encoded_position(RequestValue {
            value: held[span.clone()].to_owned(),
            span,
            name,
            place: ValueSyntax::Embedded,
        })
    });
    secrets.collect()
}

impl DecodedText {
    /// Converts a value's position in the decoded text to its position in the encoded text.
    fn to_encoded_position(&self, value: RequestValue) -> RequestValue {
        let is_number = value.place == ValueSyntax::JsonNumber;
        RequestValue {
            span: self.offsets[value.span.start]..self.offsets[value.span.end],
            // `Embedded` marks a place where the value of a field is not encoded for the syntax around it.
            place: if is_number {
                ValueSyntax::JsonNumber
            } else {
                ValueSyntax::Embedded
            },
            ..value
        }
    }
}

/// Returns a value's decoded text; `None` if the origin of its bytes can't be determined.
fn decode(text: &str, value: &RequestValue) -> Option<DecodedText> {
    let encoded = &text[value.span.clone()];
    let base = value.span.start;
    let lengths: Vec<(usize, usize)> = match value.place {
        ValueSyntax::JsonString => json_lengths(encoded)?,
        ValueSyntax::Query | ValueSyntax::Form => percent_lengths(encoded),
        _ => vec![(1, 1); encoded.len()],
    };
    let mut offsets = Vec::with_capacity(value.value.len() + 1);
    let mut at = base;
    for (from, to) in lengths {
        offsets.extend(std::iter::repeat_n(at, to));
        at += from;
    }
    offsets.push(at);
    let is_whole = at == value.span.end && offsets.len() == value.value.len() + 1;
    is_whole.then(|| DecodedText {
        text: value.value.clone(),
        offsets,
    })
}

/// Returns the encoded and decoded length of each character of a JSON string, in bytes.
fn json_lengths(encoded: &str) -> Option<Vec<(usize, usize)>> {
    let mut lengths = Vec::new();
    let mut at = 0;
    while let Some(c) = encoded.get(at..)?.chars().next() {
        let length = match c {
            '\\' if encoded[at..].starts_with("\\u") => {
                let unit = |at: usize| u16::from_str_radix(encoded.get(at + 2..at + 6)?, 16).ok();
                let is_pair = matches!(unit(at)?, 0xd800..=0xdbff);
                let length = if is_pair { 12 } else { 6 };
                let escape = format!("\"{}\"", encoded.get(at..at + length)?);
                let decoded: String = serde_json::from_str(&escape).ok()?;
                (length, decoded.len())
            }
            '\\' => (2, 1),
            // Counts each byte of a multi-byte character separately.
            c => {
                let bytes = c.len_utf8();
                lengths.extend(std::iter::repeat_n((1, 1), bytes - 1));
                at += bytes - 1;
                (1, 1)
            }
        };
        lengths.push(length);
        at += length.0;
    }
    Some(lengths)
}

/// Returns the encoded and decoded length of each byte of a percent-encoded text.
fn percent_lengths(encoded: &str) -> Vec<(usize, usize)> {
    let mut lengths = Vec::new();
    let mut at = 0;
    let is_encoded = |at: usize| {
        let digits = encoded.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    while let Some(byte) = encoded.as_bytes().get(at) {
        let length = if *byte == b'%' && is_encoded(at) {
            3
        } else {
            1
        };
        lengths.push((length, 1));
        at += length;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, values: &[RequestValue]) -> Vec<String> {
        let shown = values.iter();
        shown
            .map(|v| format!("{}={}={}", v.name, &text[v.span.clone()], v.value))
            .collect()
    }

    fn value(text: &str, decoded: &str, place: ValueSyntax) -> RequestValue {
        let begin = text.find("«").expect("a mark") + "«".len();
        RequestValue {
            span: begin..text.find('»').expect("a mark"),
            value: decoded.to_owned(),
            name: "outer".to_owned(),
            place,
        }
    }

    #[test]
    fn json_within_strings_and_parameters_has_places() {
        let text = r#"{"v":"«{\"é\":\"\u00e9 x\",\"password\":\"p\\\"q\"}»"}"#;
        let inner = r#"{"é":"é x","password":"p\"q"}"#;
        let values = nested_values(text, &value(text, inner, ValueSyntax::JsonString));
        assert_eq!(
            shown(text, &values),
            [r"é=\u00e9 x=é x", r#"password=p\\\"q=p"q"#]
        );
        let text = "v=«%7B%22pin%22%3A12,%22a%22:%22b+c%22%7D»&x";
        let inner = r#"{"pin":12,"a":"b c"}"#;
        let values = nested_values(text, &value(text, inner, ValueSyntax::Form));
        assert_eq!(shown(text, &values), ["pin=12=12", "a=b+c=b c"]);
        let twice = r#"«{"a":"{\"b\":\"<x><pin>7</pin></x>\"}"}»"#;
        let inner = &twice["«".len()..twice.len() - "»".len()];
        let values = nested_values(twice, &value(twice, inner, ValueSyntax::Text));
        assert_eq!(shown(twice, &values), ["pin=7=7"]);
    }

    #[test]
    fn assignments_of_secrets_are_found_in_text() {
        let text = r#""«mutation($p: String!) { login(user: \"ada\", password: \"hush\", pin: $p) { token } }»""#;
        let inner =
            r#"mutation($p: String!) { login(user: "ada", password: "hush", pin: $p) { token } }"#;
        let values = embedded_secrets(text, &value(text, inner, ValueSyntax::JsonString));
        assert_eq!(shown(text, &values), ["password=hush=hush"]);
        let text = "«use ghp_16C7e42F292c6912E7710c838347Ae178B4a, max_tokens: 100»";
        let inner = &text["«".len()..text.len() - "»".len()];
        let values = embedded_secrets(text, &value(text, inner, ValueSyntax::Text));
        assert_eq!(values.len(), 1);
        assert!(values[0].value.starts_with("ghp_") && values[0].name.is_empty());
    }
}

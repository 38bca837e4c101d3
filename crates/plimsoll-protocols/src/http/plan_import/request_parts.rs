//! The values in a request's texts: path segments, parameters, and leaves of a JSON body, with their places.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::exchange::{PlusSign, percent_decoded};
use super::json_leaves::json_leaves;

/// A value in a text of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestValue {
    /// The place in the text.
    pub(super) span: Range<usize>,
    /// The value without the encoding that the place needs.
    pub(super) value: String,
    /// The name it is sent under; of a path segment, the segment before it.
    pub(super) name: String,
    pub(super) place: ValueSyntax,
}

/// The syntax of the text around a value, which determines how it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSyntax {
    Segment,
    Query,
    Form,
    JsonString,
    JsonNumber,
    /// Text without a structure that is known, such as a header field.
    Text,
}

/// Returns the values in a path and query.
pub(super) fn values_of_path(path: &str) -> Vec<RequestValue> {
    let query = path.find('?').unwrap_or(path.len());
    let mut values = Vec::new();
    let mut begin = 0;
    let mut before = String::new();
    for segment in path[..query].split('/') {
        let span = begin..begin + segment.len();
        begin = span.end + 1;
        let Some(value) = percent_decoded(segment, PlusSign::Plus).filter(|v| !v.is_empty()) else {
            continue;
        };
        let name = std::mem::replace(&mut before, value.clone());
        values.push(RequestValue {
            span,
            value,
            name,
            place: ValueSyntax::Segment,
        });
    }
    if query < path.len() {
        values.extend(parameters(path, query + 1, ValueSyntax::Query));
    }
    values
}

/// Returns the values of a form's text (`application/x-www-form-urlencoded`).
pub(super) fn values_of_form(text: &str) -> Vec<RequestValue> {
    parameters(text, 0, ValueSyntax::Form)
}

/// Returns the values of `name=value&…`, which begins at `from`.
fn parameters(text: &str, from: usize, place: ValueSyntax) -> Vec<RequestValue> {
    let mut values = Vec::new();
    let mut begin = from;
    for pair in text[from..].split('&') {
        let end = begin + pair.len();
        let equals = pair.find('=');
        let value_at = begin + equals.map_or(0, |at| at + 1);
        let name = equals.map_or("", |at| &pair[..at]);
        begin = end + 1;
        let decoded = |text: &str| percent_decoded(text, PlusSign::Space);
        let (Some(name), Some(value)) = (decoded(name), decoded(&text[value_at..end])) else {
            continue;
        };
        if !value.is_empty() {
            values.push(RequestValue {
                span: value_at..end,
                value,
                name,
                place,
            });
        }
    }
    values
}

static PART_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?s)[; ]name="([^"]*)"[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)\r?\n--"#;
    Regex::new(pattern).expect("a valid expression")
});

/// Returns the values of the parts of a form's text (RFC 7578).
fn values_of_parts(text: &str) -> Vec<RequestValue> {
    let parts = PART_PATTERN.captures_iter(text).filter_map(|part| {
        let (name, value) = (part.get(1)?, part.get(2)?);
        Some(RequestValue {
            span: value.range(),
            value: value.as_str().to_owned(),
            name: name.as_str().to_owned(),
            place: ValueSyntax::Text,
        })
    });
    parts.filter(|part| !part.value.is_empty()).collect()
}

/// Returns the values of a body.
pub(super) fn values_of_body(text: &str, content_type: &str) -> Vec<RequestValue> {
    if content_type.starts_with("application/x-www-form-urlencoded") {
        return values_of_form(text);
    }
    if content_type.starts_with("multipart/") {
        return values_of_parts(text);
    }
    if let Some(leaves) = json_leaves(text) {
        let values = leaves.into_iter().map(|leaf| RequestValue {
            span: leaf.span,
            value: leaf.value,
            name: leaf.key,
            place: if leaf.is_string {
                ValueSyntax::JsonString
            } else {
                ValueSyntax::JsonNumber
            },
        });
        return values.filter(|value| !value.value.is_empty()).collect();
    }
    vec![RequestValue {
        span: 0..text.len(),
        value: text.to_owned(),
        name: String::new(),
        place: ValueSyntax::Text,
    }]
}

/// Returns the pieces of a text that may be values: those between delimiters, largest first.
pub(super) fn pieces(text: &str) -> Vec<Range<usize>> {
    let is_outer = |c: char| c.is_whitespace() || ",;\"'<>()[]{}|\\".contains(c);
    let is_inner = |c: char| "/?&=:@#".contains(c);
    let mut found = Vec::new();
    for outer in split(text, 0, &is_outer) {
        let inner = split(&text[outer.clone()], outer.start, &is_inner);
        found.push(outer);
        found.extend(inner);
    }
    found
}

fn split(text: &str, offset: usize, is_delimiter: &dyn Fn(char) -> bool) -> Vec<Range<usize>> {
    let mut begin = offset;
    let mut found = Vec::new();
    for piece in text.split(is_delimiter) {
        let end = begin + piece.len();
        if !piece.is_empty() {
            found.push(begin..end);
        }
        let delimiter = text[end - offset..]
            .chars()
            .next()
            .map_or(0, char::len_utf8);
        begin = end + delimiter;
    }
    found
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

    #[test]
    fn paths_have_segments_and_parameters() {
        let path = "/a/b%20c//d?x=1&y=%2B+z&&=&e=&f";
        assert_eq!(
            shown(path, &values_of_path(path)),
            [
                "=a=a",
                "a=b%20c=b c",
                "b c=d=d",
                "x=1=1",
                "y=%2B+z=+ z",
                "=f=f"
            ]
        );
        assert!(values_of_path("/").is_empty());
    }

    #[test]
    fn bodies_are_read_by_content_type() {
        let form = "user=ada&password=p%26w";
        let values = values_of_body(form, "application/x-www-form-urlencoded; charset=utf-8");
        assert_eq!(shown(form, &values), ["user=ada=ada", "password=p%26w=p&w"]);
        let json = r#"{"a":[{"n":7}],"s":"x\ty"}"#;
        let values = values_of_body(json, "");
        assert_eq!(shown(json, &values), ["n=7=7", "s=x\\ty=x\ty"]);
        assert_eq!(
            values_of_body("<a>", "text/xml")[0].place,
            ValueSyntax::Text
        );
    }

    #[test]
    fn pieces_lie_between_delimiters() {
        let text = "Bearer é.b; /orders/7";
        let found = pieces(text);
        let found: Vec<&str> = found.iter().map(|piece| &text[piece.clone()]).collect();
        assert_eq!(
            found,
            ["Bearer", "Bearer", "é.b", "é.b", "/orders/7", "orders", "7"]
        );
    }
}

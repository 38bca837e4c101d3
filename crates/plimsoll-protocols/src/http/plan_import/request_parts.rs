//! Finds the values in a request: path segments, parameters, and leaves of a JSON body, with their positions.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::exchange::{PlusSign, percent_decode};
use super::json_leaves::json_leaves;
use super::request_value::{RequestValue, ValueSyntax};
use super::value_classes::split_words;
use super::xml_values::find_xml_values;

/// Words in path segments after which a token may follow, as in links sent by mail.
const TOKEN_SEGMENT_WORDS: [&str; 18] = [
    "activate",
    "activation",
    "confirm",
    "confirmation",
    "invitation",
    "invite",
    "magic",
    "passwd",
    "password",
    "passwordless",
    "recover",
    "recovery",
    "reset",
    "token",
    "unlock",
    "unsubscribe",
    "verification",
    "verify",
];
/// The maximum distance from one of these words to the token, in segments. Links of Django have the user's number in
/// between.
const MAX_SEGMENTS_TO_TOKEN: usize = 2;

/// Returns the values in a path and query.
pub(super) fn find_path_values(path: &str) -> Vec<RequestValue> {
    let query = path.find('?').unwrap_or(path.len());
    let mut values = Vec::new();
    let mut begin = 0;
    let mut before: Vec<String> = Vec::new();
    for segment in path[..query].split('/') {
        let own = segment.split(';').next().unwrap_or_default();
        let span = begin..begin + own.len();
        let parameters = span.end + 1..begin + segment.len();
        begin += segment.len() + 1;
        if let Some(value) = percent_decode(own, PlusSign::Plus).filter(|v| !v.is_empty()) {
            let mut near = before.iter().rev().take(MAX_SEGMENTS_TO_TOKEN);
            let token_place = near.find(|segment| precedes_token(segment));
            let (name, place) = match token_place {
                Some(segment) => (segment.clone(), ValueSyntax::TokenSegment),
                None => {
                    let last = before.last().cloned();
                    (last.unwrap_or_default(), ValueSyntax::Segment)
                }
            };
            before.push(value.clone());
            values.push(RequestValue {
                span,
                value,
                name,
                place,
            });
        }
        if !parameters.is_empty() {
            let text = &path[..parameters.end];
            values.extend(find_pairs(
                text,
                parameters.start,
                ';',
                ValueSyntax::SegmentParameter,
            ));
        }
    }
    if query < path.len() {
        values.extend(find_pairs(path, query + 1, '&', ValueSyntax::Query));
    }
    values
}

fn precedes_token(segment: &str) -> bool {
    let words = split_words(segment);
    let mut words = words.iter();
    words.any(|word| TOKEN_SEGMENT_WORDS.contains(&word.as_str()))
}

/// Returns the values of a form's text (`application/x-www-form-urlencoded`).
pub(super) fn find_form_values(text: &str) -> Vec<RequestValue> {
    find_pairs(text, 0, '&', ValueSyntax::Form)
}

/// Returns the values of `name=value` pairs. `from`: the offset of the first pair. `separator`: the character between
/// pairs.
fn find_pairs(text: &str, from: usize, separator: char, place: ValueSyntax) -> Vec<RequestValue> {
    let plus = match place {
        ValueSyntax::SegmentParameter => PlusSign::Plus,
        _ => PlusSign::Space,
    };
    let mut values = Vec::new();
    let mut begin = from;
    for pair in text[from..].split(separator) {
        let end = begin + pair.len();
        let equals = pair.find('=');
        let value_at = begin + equals.map_or(0, |at| at + 1);
        let name = equals.map_or("", |at| &pair[..at]);
        begin = end + 1;
        let decode = |text: &str| percent_decode(text, plus);
        let (Some(name), Some(value)) = (decode(name), decode(&text[value_at..end])) else {
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
    let pattern =
        r#"(?s)[; ]name="?([^";\r\n]*)"?[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)\r?\n--"#;
    Regex::new(pattern).expect("a valid expression")
});

/// Returns the values of the parts of a multipart form (RFC 7578).
fn find_multipart_values(text: &str) -> Vec<RequestValue> {
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

/// Matches the text of a form that is sent with another content type, as web beacons do.
static FORM_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"^[\w.%\[\]-]+=[^&\s=]*(?:&[\w.%\[\]-]+=[^&\s=]*)*$";
    Regex::new(pattern).expect("a valid expression")
});

/// Returns the strings and numbers of a JSON text; `None` if the text is not JSON.
pub(super) fn find_json_values(text: &str) -> Option<Vec<RequestValue>> {
    let leaves = json_leaves(text)?.into_iter();
    let leaves = leaves.filter(|leaf| !leaf.value.is_empty());
    let values = leaves.map(|leaf| RequestValue {
        span: leaf.span,
        value: leaf.value,
        name: leaf_name(&leaf.pointer, leaf.key),
        place: if leaf.is_string {
            ValueSyntax::JsonString
        } else {
            ValueSyntax::JsonNumber
        },
    });
    Some(values.collect())
}

/// Returns the values of JSON lines; `None` if a line is not JSON.
fn find_json_line_values(text: &str) -> Option<Vec<RequestValue>> {
    let mut values = Vec::new();
    let mut begin = 0;
    for line in text.split_inclusive('\n') {
        if !line.trim().is_empty() {
            values.extend(
                find_json_values(line)?
                    .into_iter()
                    .map(|value| RequestValue {
                        span: value.span.start + begin..value.span.end + begin,
                        ..value
                    }),
            );
        }
        begin += line.len();
    }
    Some(values)
}

/// Returns the name of a leaf: its key, or the key of its parent if its own key is only `id`.
fn leaf_name(pointer: &str, key: String) -> String {
    if !matches!(&*key, "id" | "uuid") {
        return key;
    }
    let is_name = |token: &&str| !token.is_empty() && !token.bytes().all(|b| b.is_ascii_digit());
    let mut holders = pointer.rsplit('/').skip(1).filter(is_name);
    match holders.next() {
        Some(holder) => format!("{holder}_{key}"),
        None => key,
    }
}

/// Returns the values of a body.
pub(super) fn find_body_values(text: &str, content_type: &str) -> Vec<RequestValue> {
    if content_type.starts_with("application/x-www-form-urlencoded") {
        return find_form_values(text);
    }
    if content_type.starts_with("multipart/") {
        return find_multipart_values(text);
    }
    let found = find_json_values(text).or_else(|| find_xml_values(text));
    if let Some(values) = found.or_else(|| find_json_line_values(text)) {
        return values;
    }
    if FORM_PATTERN.is_match(text) {
        // Template fields in a body with this content type are not percent-encoded.
        let place = ValueSyntax::Embedded;
        let values = find_form_values(text).into_iter();
        return values
            .map(|value| RequestValue { place, ..value })
            .collect();
    }
    vec![RequestValue {
        span: 0..text.len(),
        value: text.to_owned(),
        name: String::new(),
        place: ValueSyntax::Text,
    }]
}

/// Returns the pieces of a text between delimiters, which may be values, largest first.
pub(super) fn find_pieces(text: &str) -> Vec<Range<usize>> {
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
            shown(path, &find_path_values(path)),
            [
                "=a=a",
                "a=b%20c=b c",
                "b c=d=d",
                "x=1=1",
                "y=%2B+z=+ z",
                "=f=f"
            ]
        );
        assert!(find_path_values("/").is_empty());
    }

    #[test]
    fn segments_have_parameters_and_token_places() {
        let path = "/shop;jsessionid=A%2B+1;v=2/reset/MTY/c9-1;x/end?y=1";
        let values = find_path_values(path);
        assert_eq!(
            shown(path, &values),
            [
                "=shop=shop",
                "jsessionid=A%2B+1=A++1",
                "v=2=2",
                "shop=reset=reset",
                "reset=MTY=MTY",
                "reset=c9-1=c9-1",
                "=x=x",
                "c9-1=end=end",
                "y=1=1"
            ]
        );
        assert_eq!(values[5].place, ValueSyntax::TokenSegment);
        assert_eq!(values[7].place, ValueSyntax::Segment);
    }

    #[test]
    fn bodies_are_read_by_content_type() {
        let form = "user=ada&password=p%26w";
        let values = find_body_values(form, "application/x-www-form-urlencoded; charset=utf-8");
        assert_eq!(shown(form, &values), ["user=ada=ada", "password=p%26w=p&w"]);
        let json = r#"{"a":[{"n":7}],"s":"x\ty"}"#;
        let values = find_body_values(json, "");
        assert_eq!(shown(json, &values), ["n=7=7", "s=x\\ty=x\ty"]);
        let lines = "{\"a\":1}\n\n{\"item\":{\"id\":2}}\n";
        let values = find_body_values(lines, "application/x-ndjson");
        assert_eq!(shown(lines, &values), ["a=1=1", "item_id=2=2"]);
        let beacon = "user=ada&pin=1%262";
        let values = find_body_values(beacon, "text/plain");
        assert_eq!(shown(beacon, &values), ["user=ada=ada", "pin=1%262=1&2"]);
        let unquoted = "--7\r\ncontent-disposition: form-data; name=pin\r\n\r\n12\r\n--7--";
        let values = find_body_values(unquoted, "multipart/form-data; boundary=7");
        assert_eq!(shown(unquoted, &values), ["pin=12=12"]);
        assert_eq!(
            find_body_values("<a>", "text/xml")[0].place,
            ValueSyntax::Text
        );
        assert_eq!(
            find_body_values("<a>b</a>", "text/xml")[0].place,
            ValueSyntax::Embedded
        );
    }

    #[test]
    fn pieces_lie_between_delimiters() {
        let text = "Bearer é.b; /orders/7";
        let found = find_pieces(text);
        let found: Vec<&str> = found.iter().map(|piece| &text[piece.clone()]).collect();
        assert_eq!(
            found,
            ["Bearer", "Bearer", "é.b", "é.b", "/orders/7", "orders", "7"]
        );
    }
}

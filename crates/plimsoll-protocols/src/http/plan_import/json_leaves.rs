//! Finds the strings and numbers of a JSON document with their positions in the text, which JSON parsers don't report.

use std::ops::Range;

/// A string or number in a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonLeaf {
    /// The JSON Pointer to the leaf (RFC 6901).
    pub(super) pointer: String,
    /// The name of the member that contains the leaf, directly or in a list; empty at the top level.
    pub(super) key: String,
    /// The position in the text, without the quotes of a string.
    pub(super) span: Range<usize>,
    /// The decoded string, or the text of the number.
    pub(super) value: String,
    pub(super) is_string: bool,
}

/// An object or list around the scanner's position.
enum JsonContainer {
    /// An object, with the key of the current member.
    Object(String),
    /// A list, with the index of the current item.
    List(usize),
}

/// Returns the strings and numbers of `text` in order; `None` if `text` is not JSON.
pub(super) fn json_leaves(text: &str) -> Option<Vec<JsonLeaf>> {
    // Checks the syntax first; the scan below relies on it.
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let bytes = text.as_bytes();
    let mut leaves = Vec::new();
    let mut inside: Vec<JsonContainer> = Vec::new();
    let mut is_key = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let begin = at;
        at += 1;
        match byte {
            b'{' => {
                inside.push(JsonContainer::Object(String::new()));
                is_key = true;
            }
            b'[' => inside.push(JsonContainer::List(0)),
            b'}' | b']' => {
                inside.pop();
                is_key = false;
            }
            b',' => match inside.last_mut() {
                Some(JsonContainer::List(index)) => *index += 1,
                _ => is_key = true,
            },
            b':' => is_key = false,
            b'"' => {
                let end = find_closing_quote(bytes, at);
                let value: String = serde_json::from_str(text.get(begin..=end)?).ok()?;
                if let (true, Some(JsonContainer::Object(key))) = (is_key, inside.last_mut()) {
                    *key = value;
                } else {
                    leaves.extend(build_leaf(&inside, at..end, value, JsonKind::String));
                }
                at = end + 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_number = |b: &u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                at = begin + bytes[begin..].iter().take_while(|b| is_number(b)).count();
                let value = text.get(begin..at)?.to_owned();
                leaves.extend(build_leaf(&inside, begin..at, value, JsonKind::Number));
            }
            _ => {}
        }
    }
    Some(leaves)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonKind {
    String,
    Number,
}

/// The maximum length of a leaf's pointer, in bytes. This limits memory, as each leaf has its own copy.
const MAX_POINTER_BYTES: usize = 512;

/// Returns a leaf; `None` if its pointer is too long.
fn build_leaf(
    inside: &[JsonContainer],
    span: Range<usize>,
    value: String,
    kind: JsonKind,
) -> Option<JsonLeaf> {
    let length = inside.iter().map(|container| match container {
        JsonContainer::Object(key) => key.len(),
        JsonContainer::List(_) => 1,
    });
    if length.sum::<usize>() > MAX_POINTER_BYTES {
        return None;
    }
    let tokens = inside.iter().map(|container| match container {
        JsonContainer::Object(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        JsonContainer::List(index) => format!("/{index}"),
    });
    let keys = inside.iter().rev().find_map(|container| match container {
        JsonContainer::Object(key) => Some(key.clone()),
        JsonContainer::List(_) => None,
    });
    Some(JsonLeaf {
        pointer: tokens.collect(),
        key: keys.unwrap_or_default(),
        span,
        value,
        is_string: kind == JsonKind::String,
    })
}

/// Returns the position of the closing quote of the string whose content begins at `from`.
fn find_closing_quote(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at,
            _ => at += 1,
        }
    }
    bytes.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_pointers_keys_and_spans() {
        let text = r#" {"a/b":[{"id":-1.50},"x\"é"],"ok":true,"":"y","n":null,"z":{"deep":"v"}} "#;
        let leaves = json_leaves(text).expect("JSON");
        let shown: Vec<(&str, &str, &str)> = leaves
            .iter()
            .map(|leaf| (&*leaf.pointer, &*leaf.key, &*leaf.value))
            .collect();
        assert_eq!(
            shown,
            [
                ("/a~1b/0/id", "id", "-1.50"),
                ("/a~1b/1", "a/b", "x\"é"),
                ("/", "", "y"),
                ("/z/deep", "deep", "v"),
            ]
        );
        assert_eq!(&text[leaves[1].span.clone()], "x\\\"é");
        assert!(leaves[1].is_string && !leaves[0].is_string);
    }

    #[test]
    fn text_that_is_not_json_has_no_leaves() {
        for text in ["", "<html>", "{\"a\":", "{\"a\":\"b\\\"}", "[1,]"] {
            assert_eq!(json_leaves(text), None, "{text}");
        }
        assert_eq!(json_leaves("7").expect("JSON")[0].pointer, "");
        assert_eq!(json_leaves("\"\\\\\"").expect("JSON")[0].value, "\\");
    }
}

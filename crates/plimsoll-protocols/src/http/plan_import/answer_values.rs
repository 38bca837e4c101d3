//! Finds the values of a response that later requests may send back, each with its source in the response.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use plimsoll_model::rows::template::MAX_CAPTURED_VALUE_BYTES;
use regex::Regex;

use super::exchange::{RecordedExchange, find_header};
use super::json_leaves::json_leaves;
use super::value_classes::{
    entity_words, id_owner_words, is_distinctive, is_identifying_name, looks_random,
};
use crate::journey::{TakeSpec, TakeTable};

/// The maximum size of a body that is searched for values, in bytes: journeys keep no larger bodies.
pub(super) const MAX_SEARCHED_BODY_BYTES: usize = 1 << 20;

/// A value of a response.
#[derive(Clone, Debug)]
pub(super) struct AnswerValue {
    pub(super) value: String,
    pub(super) take: TakeSpec,
    /// The name under which the value would be bound.
    pub(super) name: String,
    /// Words that name the thing that the value identifies. A value in a later request matches only if its name shares
    /// one of them.
    pub(super) words: BTreeSet<String>,
    /// Words that name the thing whose id the value is. A common value matches only if the name in the request shares
    /// one of them.
    pub(super) owner: BTreeSet<String>,
    /// Whether the value matches under any name.
    pub(super) is_distinctive: bool,
    /// Whether the value is in an item of a list.
    pub(super) is_in_list: bool,
}

/// Header fields of responses whose values are never sent back, or are handled by the journey itself.
const IGNORED_HEADERS: [&str; 24] = [
    "accept-ranges",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-expose-headers",
    "age",
    "alt-svc",
    "cache-control",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-security-policy",
    "content-type",
    "date",
    "expires",
    "keep-alive",
    "last-modified",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "vary",
    "via",
];

/// Returns the values of the response that later requests may send back.
pub(super) fn answer_values(exchange: &RecordedExchange) -> Vec<AnswerValue> {
    let Some(answer) = &exchange.answer else {
        return Vec::new();
    };
    let path = exchange.path.split('?').next().unwrap_or_default();
    let path_words = entity_words(path);
    let mut values = Vec::new();
    let body = answer.body.as_deref().unwrap_or_default();
    if body.len() <= MAX_SEARCHED_BODY_BYTES {
        match json_leaves(body) {
            Some(leaves) => values.extend(leaves.into_iter().map(|leaf| {
                let mut words = entity_words(&leaf.pointer);
                words.extend(path_words.iter().cloned());
                AnswerValue {
                    owner: leaf_owner_words(&leaf.pointer, &leaf.key, path),
                    name: leaf_name(&leaf.pointer, &leaf.key, path),
                    is_distinctive: is_distinctive(&leaf.value, &leaf.key),
                    is_in_list: leaf.pointer.split('/').any(is_index),
                    words: if is_identifying_name(&leaf.key) {
                        words
                    } else {
                        BTreeSet::new()
                    },
                    take: TakeSpec::Json(leaf.pointer),
                    value: leaf.value,
                }
            })),
            None => values.extend(page_values(body)),
        }
    }
    for (name, value) in &answer.headers {
        match &**name {
            "set-cookie" => values.extend(cookie_value(value)),
            "location" => values.extend(location_values(value)),
            name if IGNORED_HEADERS.contains(&name) => {}
            name => values.push(AnswerValue {
                take: header_source(name, None),
                name: to_snake_case(name),
                words: if is_identifying_name(name) {
                    entity_words(name)
                } else {
                    BTreeSet::new()
                },
                owner: id_owner_words(name),
                is_distinctive: is_distinctive(value, name),
                is_in_list: false,
                value: value.clone(),
            }),
        }
    }
    // Drops values that are not distinctive and have no words: nothing would tell them from other values.
    values.retain(|found| {
        let is_identified = !found.words.is_empty() || !found.owner.is_empty();
        (found.is_distinctive || is_identified)
            && (1..=MAX_CAPTURED_VALUE_BYTES).contains(&found.value.len())
    });
    values
}

/// Returns the words that name the thing whose id a JSON leaf is. They come from its key, from its nearest parent with
/// words, or from the path.
fn leaf_owner_words(pointer: &str, key: &str, path: &str) -> BTreeSet<String> {
    let own = id_owner_words(key);
    if own.is_empty() || !entity_words(key).is_empty() {
        return own;
    }
    let parents = pointer.rsplit('/').skip(1);
    let mut owners = parents.chain(path.rsplit('/')).map(entity_words);
    owners.find(|words| !words.is_empty()).unwrap_or_default()
}

fn is_index(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the rule that takes the value of a header field, or the match of a regular expression in it.
pub(super) fn header_source(name: &str, regex: Option<String>) -> TakeSpec {
    TakeSpec::From(TakeTable {
        header: Some(name.to_owned()),
        regex,
        ..TakeTable::default()
    })
}

/// Returns the rule that takes the match of a regular expression in the body.
pub(super) fn body_source(regex: String) -> TakeSpec {
    TakeSpec::From(TakeTable {
        regex: Some(regex),
        ..TakeTable::default()
    })
}

/// Returns a name for the value of a JSON leaf: `item_id` for `/items/0/id`, and for `/id` in a response to `/items`.
fn leaf_name(pointer: &str, key: &str, path: &str) -> String {
    if !matches!(key, "id" | "uuid" | "key" | "code" | "number" | "name" | "") {
        return to_snake_case(key);
    }
    let is_word = |token: &&str| {
        !entity_words(token).is_empty() && !token.bytes().any(|b| b.is_ascii_digit())
    };
    let mut parents = pointer.rsplit('/').skip(1).filter(is_word);
    let of_path = || path.rsplit('/').find(|segment| is_word(segment));
    let parent = parents.next().or_else(of_path).unwrap_or_default();
    let parent = parent.strip_suffix('s').unwrap_or(parent);
    to_snake_case(&format!("{parent}_{key}"))
}

/// Converts a text to a name: words of lower-case letters and digits, joined by `_`.
pub(super) fn to_snake_case(text: &str) -> String {
    let mut name = String::new();
    let mut last = ' ';
    for c in text.chars().take(60) {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && last.is_ascii_lowercase()) {
            name.push('_');
        }
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        }
        last = c;
    }
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    if words.is_empty() {
        "value".to_owned()
    } else {
        words.join("_")
    }
}

fn cookie_value(field: &str) -> Option<AnswerValue> {
    let (name, rest) = field.split_once('=')?;
    let name = name.trim();
    let value = rest.split(';').next().unwrap_or_default().trim();
    let take = TakeTable {
        cookie: Some(name.to_owned()),
        ..TakeTable::default()
    };
    Some(AnswerValue {
        take: TakeSpec::From(take),
        name: to_snake_case(name),
        words: BTreeSet::new(),
        owner: BTreeSet::new(),
        is_distinctive: is_distinctive(value, name),
        is_in_list: false,
        value: value.to_owned(),
    })
}

/// Returns the segments and parameters of a `Location` that contain no character to decode, so that requests send them
/// unchanged.
fn location_values(location: &str) -> Vec<AnswerValue> {
    let is_plain = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
    };
    let location = location.split('#').next().unwrap_or_default();
    let (path, query) = location.split_once('?').unwrap_or((location, ""));
    let mut values = Vec::new();
    let queried = query.split('&').map(|pair| ("[?&]", "[^&#]+", pair));
    let of_segments = path
        .split('/')
        .flat_map(|segment| segment.split(';').skip(1));
    let of_segments = of_segments.map(|pair| (";", "[^;/?#]+", pair));
    for (mark, content, pair) in queried.chain(of_segments) {
        let Some((name, value)) = pair.split_once('=').filter(|(_, value)| is_plain(value)) else {
            continue;
        };
        let pattern = format!("{mark}{}=({content})", regex::escape(name));
        values.push(AnswerValue {
            take: header_source("location", Some(pattern)),
            name: to_snake_case(name),
            words: entity_words(name),
            owner: id_owner_words(name),
            is_distinctive: is_distinctive(value, name),
            is_in_list: false,
            value: value.to_owned(),
        });
    }
    let from = path.find("://").map_or(0, |at| at + 3);
    let from = path[from..].find('/').map_or(path.len(), |at| from + at);
    let mut before = from;
    for (at, _) in path[from..].match_indices('/') {
        let begin = from + at + 1;
        let segment = path[begin..].split('/').next().unwrap_or_default();
        let has_digit = segment.bytes().any(|byte| byte.is_ascii_digit());
        if has_digit && is_plain(segment) {
            let prefix = &path[before..begin];
            let name = prefix
                .trim_matches('/')
                .rsplit('/')
                .next()
                .unwrap_or_default();
            let singular = name.strip_suffix('s').unwrap_or(name);
            values.push(AnswerValue {
                take: header_source(
                    "location",
                    Some(format!("{}([^/?#]+)", regex::escape(prefix))),
                ),
                name: to_snake_case(&format!("{singular}_id")),
                words: entity_words(prefix),
                owner: entity_words(name),
                is_distinctive: is_distinctive(segment, "id"),
                is_in_list: false,
                value: segment.to_owned(),
            });
            before = begin + segment.len();
        }
    }
    values
}

static TAG_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?is)<(?:input|meta)\b[^>]*>").expect("a valid expression"));
static ATTRIBUTE_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?is)\b(name|id|value|content)\s*=\s*(?:"([^"]*)"|'([^']*)')"#)
        .expect("a valid expression")
});

/// Returns the values of an HTML page's inputs and `meta` elements.
fn page_values(page: &str) -> Vec<AnswerValue> {
    let mut values = Vec::new();
    for tag in TAG_PATTERN.find_iter(page).take(MAX_TAGS) {
        let tag = tag.as_str();
        let (mut name, mut value) = (None, None);
        for attribute in ATTRIBUTE_PATTERN.captures_iter(tag) {
            let whole = attribute.get(0).map_or(0..0, |all| all.range());
            let text = attribute
                .get(2)
                .or(attribute.get(3))
                .map_or("", |m| m.as_str());
            match attribute[1].to_ascii_lowercase().as_str() {
                "name" => name = Some((text, whole)),
                "id" if name.is_none() => name = Some((text, whole)),
                "value" | "content" => value = Some((text, whole)),
                _ => {}
            }
        }
        let (Some((name, named)), Some((value, valued))) = (name, value) else {
            continue;
        };
        // A value with escaped characters would have to be decoded before it is sent.
        if value.contains('&') || value.is_empty() {
            continue;
        }
        let name_text = regex::escape(&tag[named.clone()]);
        let value_text = &tag[valued.clone()];
        let quote = value_text.chars().next_back().unwrap_or('"');
        let opening = value_text.find(quote).map_or("", |at| &value_text[..=at]);
        let value_text = format!("{}([^{quote}]+)", regex::escape(opening));
        let pattern = if named.start < valued.start {
            format!("{name_text}[^>]*{value_text}")
        } else {
            format!("{value_text}{quote}[^>]*{name_text}")
        };
        if first_match_captures(&pattern, page, value) {
            values.push(AnswerValue {
                take: body_source(pattern),
                name: to_snake_case(name),
                words: entity_words(name),
                owner: id_owner_words(name),
                is_distinctive: is_distinctive(value, name),
                is_in_list: false,
                value: value.to_owned(),
            });
        }
    }
    values
}

/// Returns whether the first match of the regular expression in `text` captures `value`.
fn first_match_captures(pattern: &str, text: &str, value: &str) -> bool {
    let Ok(expression) = Regex::new(pattern) else {
        return false;
    };
    let found = expression.captures(text).and_then(|groups| groups.get(1));
    found.is_some_and(|group| group.as_str() == value)
}

/// The maximum length of the text before a value in the value's regular expression, in bytes.
const MAX_PRECEDING_TEXT_BYTES: usize = 32;
/// The minimum length of the text before a value in the value's regular expression, in bytes.
const MIN_PRECEDING_TEXT_BYTES: usize = 3;
/// The maximum number of tags of a page whose values are examined: for each tag the whole page is searched.
const MAX_TAGS: usize = 100;

/// Returns a regular expression that finds a value in a page by the text before it.
pub(super) fn build_capture_regex(page: &str, value: &str) -> Option<String> {
    for (at, _) in page.match_indices(value).take(8) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let (before, after) = (&page[..at], &page[at + value.len()..]);
        if before.ends_with(is_word) || after.starts_with(is_word) {
            continue;
        }
        let mut from = at.saturating_sub(MAX_PRECEDING_TEXT_BYTES);
        while !page.is_char_boundary(from) {
            from += 1;
        }
        let context = &page[from..at];
        // Uses the shortest text that does not occur earlier in the page, since text further away is more likely to
        // change.
        let is_edge = |c: char| c.is_whitespace() || "<>\"'&?,;=:{}()[]".contains(c);
        let edges = context.char_indices().filter(|(_, c)| is_edge(*c));
        let mut starts: Vec<usize> = edges.map(|(at, c)| at + c.len_utf8()).collect();
        starts.insert(0, 0);
        let end = after
            .chars()
            .next()
            .map_or(String::new(), |c| regex::escape(&c.to_string()));
        let end = if end.is_empty() || after.starts_with(char::is_whitespace) {
            r"\s".to_owned()
        } else {
            end
        };
        for start in starts.into_iter().rev() {
            let prefix = &context[start..];
            if prefix.split(is_edge).any(looks_random) {
                break;
            }
            let pattern = format!("{}([^{end}]+)", regex::escape(prefix));
            if prefix.trim().len() >= MIN_PRECEDING_TEXT_BYTES
                && first_match_captures(&pattern, page, value)
            {
                return Some(pattern);
            }
        }
    }
    None
}

/// Returns the names and values of the cookies that a response sets; an empty value deletes the cookie.
pub(super) fn response_cookies(headers: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    let fields = headers.iter().filter(|(name, _)| name == "set-cookie");
    fields.filter_map(|(_, field)| {
        let (name, rest) = field.split_once('=')?;
        Some((
            name.trim(),
            rest.split(';').next().unwrap_or_default().trim(),
        ))
    })
}

/// Returns the path to which a response redirects, and the rule that takes it; `None` if the redirect leads to another
/// origin.
pub(super) fn redirect_path(exchange: &RecordedExchange) -> Option<(&str, TakeSpec)> {
    let answer = exchange.answer.as_ref()?;
    let location = find_header(&answer.headers, "location")?;
    if location.starts_with('/') && !location.starts_with("//") && !location.contains('#') {
        return Some((location, header_source("location", None)));
    }
    let path = location.strip_prefix(&*exchange.origin)?;
    let path = path.split('#').next().unwrap_or_default();
    let pattern = "^https?://[^/]+(/[^#]*)".to_owned();
    path.starts_with('/')
        .then(|| (path, header_source("location", Some(pattern))))
}

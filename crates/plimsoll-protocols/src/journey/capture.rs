//! Takes values from responses by JSON Pointer (RFC 6901), JSONPath (RFC 9535), header field, cookie or regular
//! expression.
//!
//! JSON values keep their spelling: `1.10` stays `1.10`, and a number of 30 digits keeps all of them. Strings are taken
//! without quotes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::rows::template::MAX_CAPTURED_VALUE_BYTES;
use plimsoll_wire::hex;
use regex::bytes::Regex;
use serde_json::Value;
use serde_json::value::RawValue;
use serde_json_path::JsonPath;

use super::step_spec::{TakeSpec, TakeTable, ValueEncoding};
use crate::http2::to_printable;

/// The maximum length of a value in a header field, in bytes: common servers limit a whole field to this.
const MAX_HEADER_VALUE_BYTES: usize = 8 << 10;
/// The maximum length of the excerpt of a response in a message, in bytes.
const MAX_EXCERPT_BYTES: usize = 120;

/// The message where a value has no source, or several.
const ONE_SOURCE: &str = "use one of json, header (metadata), cookie, regex and bytes, such as { header = \"location\" }; \
                          only a header may have a regex, too";

/// A rule for taking a value from a step's response.
#[derive(Clone, Debug)]
pub(crate) struct CaptureRule {
    /// The index of the name to which the value is bound.
    pub(crate) name: usize,
    pub(crate) source: CaptureSource,
    /// Whether a response may lack the value.
    pub(crate) is_optional: bool,
    /// Whether some step's header field contains the value, which limits its length and bytes.
    pub(crate) is_in_header: bool,
    /// The text that the value's bytes become.
    pub(crate) encoding: Option<ValueEncoding>,
}

impl PartialEq for CaptureRule {
    fn eq(&self, other: &CaptureRule) -> bool {
        let key = |take: &CaptureRule| {
            (
                take.name,
                take.is_optional,
                take.is_in_header,
                take.encoding,
            )
        };
        key(self) == key(other) && self.source.to_string() == other.source.to_string()
    }
}

/// The place of a value in a response.
#[derive(Clone, Debug)]
pub(crate) enum CaptureSource {
    /// The unescaped reference tokens of a JSON Pointer.
    Pointer(Vec<String>),
    Path(JsonPath),
    /// The name of a header field, and a regular expression to search its value for.
    Header(String, Option<Regex>),
    Cookie(String),
    Regex(Regex),
    /// The bytes of the body at these indices.
    Bytes(BodyRange),
}

/// A range of a body's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyRange {
    from: usize,
    /// The index after the last byte; `None`: the range reaches to the end.
    to: Option<usize>,
}

impl BodyRange {
    /// Parses `4..8` or `4..`.
    fn parse(text: &str) -> Option<BodyRange> {
        let (from, to) = text.split_once("..")?;
        let from = from.trim().parse().ok()?;
        let to = match to.trim() {
            "" => None,
            to => Some(to.parse().ok().filter(|to| *to > from)?),
        };
        Some(BodyRange { from, to })
    }

    /// Returns the bytes; `None`: the body is shorter.
    fn of<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        match self.to {
            Some(to) => body.get(self.from..to),
            None => body.get(self.from..).filter(|rest| !rest.is_empty()),
        }
    }
}

impl fmt::Display for CaptureSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureSource::Pointer(tokens) => {
                f.write_str("json ")?;
                tokens.iter().try_for_each(|token| {
                    write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))
                })
            }
            CaptureSource::Path(path) => write!(f, "json {path}"),
            CaptureSource::Header(name, None) => write!(f, "header {name}"),
            CaptureSource::Header(name, Some(regex)) => write!(f, "header {name} regex {regex}"),
            CaptureSource::Cookie(name) => write!(f, "cookie {name}"),
            CaptureSource::Regex(regex) => write!(f, "regex {regex}"),
            CaptureSource::Bytes(BodyRange { from, to }) => {
                write!(f, "bytes {from}..")?;
                to.map_or(Ok(()), |to| write!(f, "{to}"))
            }
        }
    }
}

impl CaptureSource {
    /// Parses a value of the plan key `take`. Returns the source and whether a response may lack the value.
    pub(super) fn parse(typed: &TakeSpec) -> Result<(CaptureSource, bool), String> {
        let table = match typed {
            TakeSpec::Json(path) => &TakeTable {
                json: Some(path.clone()),
                ..TakeTable::default()
            },
            TakeSpec::From(table) => table,
        };
        let is_optional = table.optional.unwrap_or(false);
        let TakeTable {
            json,
            header,
            metadata,
            cookie,
            regex,
            bytes,
            encoding,
            ..
        } = table;
        // gRPC calls its header fields metadata.
        let header = match (header, metadata) {
            (Some(_), Some(_)) => return Err("use either header or metadata".to_owned()),
            (header, metadata) => header.as_ref().or(metadata.as_ref()),
        };
        let regex = regex.as_deref().map(|pattern| {
            Regex::new(pattern).map_err(|e| format!("not a regular expression: {e}"))
        });
        if encoding.is_some() && regex.is_none() && bytes.is_none() {
            return Err("as: only for regex and bytes: other values are texts already".to_owned());
        }
        if let Some(bytes) = bytes {
            let others = [json, &header.cloned(), cookie]
                .into_iter()
                .flatten()
                .count();
            if others > 0 || regex.is_some() {
                return Err(ONE_SOURCE.to_owned());
            }
            let range = BodyRange::parse(bytes);
            let wrong = || format!("`{bytes}` is not a range of bytes such as 4..8 or 4..");
            return Ok((CaptureSource::Bytes(range.ok_or_else(wrong)?), is_optional));
        }
        let source = match (json, header, cookie, regex.transpose()?) {
            (Some(path), None, None, None) => parse_json_source(path)?,
            (None, Some(name), None, regex) => {
                CaptureSource::Header(name.to_ascii_lowercase(), regex)
            }
            (None, None, Some(name), None) => CaptureSource::Cookie(name.clone()),
            (None, None, None, Some(regex)) => CaptureSource::Regex(regex),
            _ => return Err(ONE_SOURCE.to_owned()),
        };
        Ok((source, is_optional))
    }

    /// Returns whether the value is in the body.
    pub(super) fn is_in_body(&self) -> bool {
        !matches!(self, CaptureSource::Header(..) | CaptureSource::Cookie(_))
    }
}

/// Parses a JSON Pointer or a JSONPath.
///
/// # Errors
/// Returns an error if the text is neither.
pub(crate) fn parse_json_source(path: &str) -> Result<CaptureSource, String> {
    if path.starts_with('$') {
        let parsed = JsonPath::parse(path);
        return parsed
            .map(CaptureSource::Path)
            .map_err(|e| format!("`{path}` is not a JSONPath (RFC 9535): {e}"));
    }
    if !path.is_empty() && !path.starts_with('/') {
        return Err(format!(
            "`{path}` is neither a JSON Pointer such as /items/0/id nor a JSONPath such as $.items[*].id"
        ));
    }
    let tokens = path.split('/').skip(1);
    let unescaped = tokens.map(|token| token.replace("~1", "/").replace("~0", "~"));
    Ok(CaptureSource::Pointer(unescaped.collect()))
}

/// The parts of a response from which values are taken.
pub(super) struct AnswerParts<'a> {
    pub(super) fields: &'a [(&'a [u8], &'a [u8])],
    /// The body, or the reason why it is unknown.
    pub(super) body: Result<&'a [u8], &'a str>,
    pub(super) cookie: &'a dyn Fn(&str) -> Option<String>,
}

impl CaptureRule {
    /// Returns the value. `draw` returns a random number below its argument; it chooses among several values that match
    /// a JSONPath.
    ///
    /// # Errors
    /// Returns an error if the response has no value that later steps can use.
    pub(super) fn extract_value(
        &self,
        answer: &AnswerParts<'_>,
        draw: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Box<[u8]>, String> {
        let found: Option<Cow<'_, [u8]>> = match &self.source {
            CaptureSource::Header(name, regex) => {
                let of_name =
                    |(other, _): &&(&[u8], &[u8])| other.eq_ignore_ascii_case(name.as_bytes());
                let mut found = answer.fields.iter().filter(of_name);
                let value = found.next().map(|(_, value)| *value);
                match regex {
                    None => value.map(Cow::Borrowed),
                    Some(regex) => value.and_then(|value| first_group(regex, value)),
                }
            }
            CaptureSource::Cookie(name) => {
                (answer.cookie)(name).map(|value| Cow::Owned(value.into_bytes()))
            }
            source => {
                let body = answer.body?;
                match source {
                    CaptureSource::Regex(regex) => first_group(regex, body),
                    CaptureSource::Bytes(range) => range.of(body).map(Cow::Borrowed),
                    CaptureSource::Pointer(tokens) => resolve_pointer(body_text(body)?, tokens)?,
                    CaptureSource::Path(path) => {
                        let text = body_text(body)?;
                        let value: Value =
                            serde_json::from_str(text).map_err(not_json_error(text))?;
                        let nodes = path.query_located(&value).all();
                        let nodes: Vec<_> = nodes.iter().collect();
                        match nodes.len() as u64 {
                            0 => None,
                            several => {
                                let node = nodes[draw(several) as usize];
                                let pointer = node.location().to_json_pointer();
                                let tokens = pointer.split('/').skip(1);
                                let tokens: Vec<String> = tokens
                                    .map(|token| token.replace("~1", "/").replace("~0", "~"))
                                    .collect();
                                resolve_pointer(text, &tokens)?
                            }
                        }
                    }
                    CaptureSource::Header(..) | CaptureSource::Cookie(_) => None,
                }
            }
        };
        let found = found.ok_or_else(|| match answer.body {
            Ok(body) if self.source.is_in_body() && !body.is_empty() => {
                let shown = to_printable(&body[..body.len().min(MAX_EXCERPT_BYTES)]);
                format!("the answer has none; it begins: {shown}")
            }
            _ => "the answer has none".to_owned(),
        })?;
        if found.is_empty() {
            return Err("its value is empty".to_owned());
        }
        let found: Cow<'_, [u8]> = match self.encoding {
            None => found,
            Some(ValueEncoding::Hex) => Cow::Owned(hex::encode(&found).into_bytes()),
            Some(ValueEncoding::Base64) => Cow::Owned(STANDARD.encode(&found).into_bytes()),
        };
        if found.len() > MAX_CAPTURED_VALUE_BYTES {
            return Err(format!("its value has {} bytes, over 64 KiB", found.len()));
        }
        if self.is_in_header && found.len() > MAX_HEADER_VALUE_BYTES {
            let bytes = found.len();
            return Err(format!(
                "its value has {bytes} bytes, too many for a header field: at most 8 KiB"
            ));
        }
        let fits = |byte: &u8| (0x20..=0x7e).contains(byte);
        if self.is_in_header && !(found.iter().all(fits) && found.trim_ascii() == &*found) {
            let shown = to_printable(&found);
            return Err(format!("its value can't be in a header field: {shown}"));
        }
        Ok(found.into())
    }
}

/// Returns the first group of the first match, or the whole match if the expression has no groups.
fn first_group<'a>(regex: &Regex, text: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let groups = regex.captures(text)?;
    let group = groups.get(1).or(groups.get(0))?;
    Some(Cow::Borrowed(group.as_bytes()))
}

fn body_text(body: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(body).map_err(|_| "the body is not UTF-8".to_owned())
}

fn not_json_error(text: &str) -> impl Fn(serde_json::Error) -> String + '_ {
    let shown = &text.as_bytes()[..text.len().min(MAX_EXCERPT_BYTES)];
    move |e| format!("the body is not JSON ({e}): {}", to_printable(shown))
}

/// Returns the value at a JSON Pointer, as the response spells it; `None` if there is no such value or it is null.
pub(crate) fn resolve_pointer<'a>(
    text: &'a str,
    tokens: &[String],
) -> Result<Option<Cow<'a, [u8]>>, String> {
    let mut value: &RawValue = serde_json::from_str(text).map_err(not_json_error(text))?;
    for token in tokens {
        let inside = value.get();
        let found = match inside.as_bytes().first() {
            Some(b'{') => {
                let members: BTreeMap<Cow<'_, str>, &RawValue> =
                    serde_json::from_str(inside).map_err(not_json_error(text))?;
                members.get(token.as_str()).copied()
            }
            Some(b'[') => {
                let items: Vec<&RawValue> =
                    serde_json::from_str(inside).map_err(not_json_error(text))?;
                let index = token.parse::<usize>().ok();
                index.and_then(|index| items.get(index).copied())
            }
            _ => None,
        };
        match found {
            Some(found) => value = found,
            None => return Ok(None),
        }
    }
    Ok(match value.get() {
        "null" => None,
        text if text.starts_with('"') => {
            let string: String = serde_json::from_str(text).map_err(not_json_error(text))?;
            Some(Cow::Owned(string.into_bytes()))
        }
        text => Some(Cow::Borrowed(text.as_bytes())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"token":"a\"b","n":1.10,"id":123456789012345678901234567890,"none":null,
        "items":[{"id":1,"open":false},{"id":22,"open":true},{"id":333,"open":true}],"a/b":{"~":true}}"#;

    fn taken(typed: &str, body: &str) -> Result<String, String> {
        let spec: BTreeMap<String, TakeSpec> = toml::from_str(&format!("x = {typed}")).unwrap();
        let (source, is_optional) = CaptureSource::parse(&spec["x"])?;
        let take = CaptureRule {
            name: 0,
            source,
            is_optional,
            is_in_header: false,
            encoding: spec["x"].encoding(),
        };
        let fields: [(&[u8], &[u8]); 1] = [(b"Location", b"/orders/7")];
        let answer = AnswerParts {
            fields: &fields,
            body: Ok(body.as_bytes()),
            cookie: &|name| (name == "sid").then(|| "s1".to_owned()),
        };
        let value = take.extract_value(&answer, &mut |bound| bound - 1)?;
        Ok(String::from_utf8(value.into()).unwrap())
    }

    #[test]
    fn values_are_taken_as_written() {
        for (typed, value) in [
            ("'/token'", "a\"b"),
            ("'/n'", "1.10"),
            ("'$.id'", "123456789012345678901234567890"),
            ("'/items/1/id'", "22"),
            ("'$.items[*].id'", "333"),
            ("'$.items[?@.open == false].id'", "1"),
            ("'/a~1b/~0'", "true"),
            ("'/items/0'", r#"{"id":1,"open":false}"#),
            ("{ header = 'location' }", "/orders/7"),
            ("{ header = 'location', regex = 'orders/([0-9]+)' }", "7"),
            ("{ cookie = 'sid' }", "s1"),
            ("{ regex = '\"id\":(\\d\\d),' }", "22"),
            ("{ regex = 'op.n' }", "open"),
            ("{ regex = 'op.n', as = 'hex' }", "6f70656e"),
            ("{ bytes = '1..8' }", "\"token\""),
            ("{ bytes = '2..7', as = 'base64' }", "dG9rZW4="),
        ] {
            assert_eq!(taken(typed, BODY).as_deref(), Ok(value), "{typed}");
        }
    }

    #[test]
    fn missing_values_say_what_the_answer_was() {
        for typed in [
            "'/none'",
            "'/items/9'",
            "'$.nothing'",
            "{ regex = 'zz' }",
            "{ bytes = '9..9999' }",
        ] {
            let missing = taken(typed, BODY).unwrap_err();
            assert!(
                missing.contains("it begins: {\"token\""),
                "{typed}: {missing}"
            );
        }
        let broken = taken("'/token'", "<html>").unwrap_err();
        assert!(
            broken.contains("not JSON") && broken.contains("<html>"),
            "{broken}"
        );
        assert!(taken("{ header = 'x' }", BODY).is_err());
        assert!(taken("{ header = 'location', regex = 'zz' }", BODY).is_err());
    }

    #[test]
    fn invalid_sources_are_named() {
        for (typed, problem) in [
            ("'token'", "JSON Pointer"),
            ("'$.['", "JSONPath"),
            ("{ regex = '(' }", "regular expression"),
            ("{ json = '/a', header = 'b' }", "use one of"),
            ("{ optional = true }", "use one of"),
            ("{ cookie = 'a', regex = 'b' }", "use one of"),
            ("{ bytes = '4', json = '/a' }", "use one of"),
            ("{ bytes = '4' }", "not a range"),
            ("{ bytes = '8..4' }", "not a range"),
            ("{ json = '/a', as = 'hex' }", "only for regex and bytes"),
        ] {
            let refused = taken(typed, BODY).unwrap_err();
            assert!(refused.contains(problem), "{typed}: {refused}");
        }
    }
}

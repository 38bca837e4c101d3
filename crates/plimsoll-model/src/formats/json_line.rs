//! Parses a line that is a JSON object.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Returns the entries of a line's object in order, including repeated keys. Values are text: the content of strings,
/// and the JSON source of anything else, since parsing a number would lose digits.
pub(crate) fn json_entries(line: &str) -> serde_json::Result<Vec<(String, String)>> {
    // Deserialise the whole line first, only for its errors, which name the column.
    serde_json::from_str::<HashMap<String, IgnoredAny>>(line)?;
    let mut entries = Vec::new();
    // Skip the brace or comma.
    let mut rest = line.trim_start().get(1..).unwrap_or_default().trim_start();
    while !rest.is_empty() && !rest.starts_with('}') {
        let (name, behind) = parse_leading_value::<String>(rest)?;
        // Skip the colon.
        let typed = behind
            .trim_start()
            .get(1..)
            .unwrap_or_default()
            .trim_start();
        let value = if typed.starts_with('"') {
            let (value, behind) = parse_leading_value::<String>(typed)?;
            rest = behind;
            value
        } else {
            let (IgnoredAny, behind) = parse_leading_value::<IgnoredAny>(typed)?;
            rest = behind;
            typed[..typed.len() - behind.len()].to_owned()
        };
        entries.push((name, value));
        rest = rest.trim_start().trim_start_matches(',').trim_start();
    }
    Ok(entries)
}

/// Parses the JSON value at the start of `text`; returns it and the rest.
fn parse_leading_value<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    let value = match values.next() {
        Some(value) => value?,
        None => return Err(serde::de::Error::custom("a value is missing")),
    };
    Ok((value, &text[values.byte_offset()..]))
}

//! Reads lines in the order of [HTTPie](https://httpie.io): the method, the URL, and then fields, parameters and the
//! members of a JSON body.

use std::ffi::OsString;

use serde_json::{Map, Value};

use crate::command_line::quoting::quote_for_shell;

/// Methods that HTTPie takes before the URL.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

/// Separators of an item, the longer ones first: a JSON value, a parameter of the query, a text, a header field.
const SEPARATORS: [&str; 4] = [":=", "==", "=", ":"];

/// Returns the tip for a line `COMMAND METHOD URL ITEM…`; `None` for any other line. `words` begins with the program's
/// name.
pub(super) fn translate(words: &[&str]) -> Option<String> {
    let [_, command, method, url, items @ ..] = words else {
        return None;
    };
    if !METHODS.contains(method) || url.starts_with('-') || !url.contains([':', '.', '/']) {
        return None;
    }
    let mut target = (*url).to_owned();
    let mut body = Map::new();
    let mut flags = Vec::new();
    let mut left = items.iter();
    while let Some(item) = left.next() {
        if item.starts_with('-') {
            flags.push((*item).to_owned());
            // The value of a flag is not an item; a switch is followed by a flag or an item.
            let is_value = |next: &&&str| !next.starts_with('-') && split_item(next).is_none();
            if let Some(value) = left.clone().next().filter(is_value) {
                flags.push((*value).to_owned());
                left.next();
            }
            continue;
        }
        let (name, separator, value) = split_item(item)?;
        match separator {
            ":=" => {
                body.insert(name.to_owned(), serde_json::from_str(value).ok()?);
            }
            "==" => {
                let mark = if target.contains('?') { '&' } else { '?' };
                target.push_str(&format!("{mark}{name}={value}"));
            }
            "=" => {
                body.insert(name.to_owned(), Value::from(value));
            }
            _ => flags.extend(["-H".to_owned(), format!("{name}: {value}")]),
        }
    }
    let mut ours = vec![(*command).to_owned(), target];
    ours.extend(["-X".to_owned(), (*method).to_owned()]);
    if !body.is_empty() {
        let text = Value::Object(body).to_string();
        ours.extend(["-d".to_owned(), text]);
        ours.extend(["-H", "content-type: application/json"].map(str::to_owned));
    }
    ours.extend(flags);
    let ours: Vec<OsString> = ours.into_iter().map(OsString::from).collect();
    Some(format!(
        "the URL comes first, and flags say the rest: plimsoll {}",
        quote_for_shell(&ours)
    ))
}

/// Splits an item at its first separator.
fn split_item(item: &str) -> Option<(&str, &'static str, &str)> {
    let at = item.find(['=', ':'])?;
    let separator = SEPARATORS
        .into_iter()
        .find(|separator| item[at..].starts_with(separator))?;
    let name = &item[..at];
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    is_name.then(|| (name, separator, &item[at + separator.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tip(line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        translate(&words)
    }

    #[test]
    fn items_become_body_fields_and_query() {
        let said =
            tip("plimsoll http PUT a.test/b name=ann age:=7 q==1 x-id:5 -n 20").expect("a tip");
        let ours = "plimsoll http 'a.test/b?q=1' -X PUT -d '{\"age\":7,\"name\":\"ann\"}' \
                    -H 'content-type: application/json' -H 'x-id: 5' -n 20";
        assert!(said.ends_with(ours), "{said}");
        for other in [
            "plimsoll http http://a.test/ -n 5",
            "plimsoll http GET",
            "plimsoll http GET a.test b",
        ] {
            assert_eq!(tip(other), None, "{other}");
        }
    }
}

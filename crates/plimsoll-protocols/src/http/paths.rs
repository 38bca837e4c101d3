//! Checks the paths of requests.

use std::borrow::Cow;

use plimsoll_model::formats::redaction;
use plimsoll_model::rows::template::{FieldSource, Rows, Template, TemplatePart};
use plimsoll_model::spec::is_visible_ascii;

use super::payload::has_message_field;

/// Returns the path to request. `path`: the rest of a URL after its authority. A fragment is not sent (RFC 9110 §7.1),
/// and an empty path becomes `/` (§4.2.3).
pub(super) fn requested_path(path: &str) -> Cow<'_, str> {
    match path.split('#').next().unwrap_or_default() {
        "" => Cow::Borrowed("/"),
        query if query.starts_with('?') => Cow::Owned(format!("/{query}")),
        path => Cow::Borrowed(path),
    }
}

/// Returns whether the text can be part of a path (RFC 9112 §3.2.1).
pub(crate) fn is_valid_in_path(text: &str) -> bool {
    is_visible_ascii(text) && !text.contains('#')
}

/// Returns the error message for a text that is not a path, with a suggested correction.
pub(crate) fn invalid_path_message(text: &str) -> String {
    let text = redaction::mask_urls(text);
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'#' | 0..=b' ' | 0x7f.. => encoded.push_str(&format!("%{byte:02X}")),
            byte => encoded.push(byte.into()),
        }
    }
    match &*encoded {
        same if same == text => format!("`{text}` is not a path: begin with `/`"),
        _ => format!("`{text}` is not a path: write `{encoded}`, percent-encoded"),
    }
}

/// Checks that every call has a path that fits into a request line.
pub(super) fn check_path(template: &Template, rows: Option<&Rows>) -> Result<(), String> {
    if has_message_field(template) {
        return Err("{{message}}: not supported in a path".to_owned());
    }
    for (nth, part) in template.parts().iter().enumerate() {
        match part {
            TemplatePart::Text(text) => {
                let begins = nth > 0 || text.starts_with('/');
                if !begins || !is_valid_in_path(text) {
                    return Err(invalid_path_message(text));
                }
            }
            TemplatePart::Field(field) => {
                let column = match &field.source {
                    FieldSource::Row(column) => column,
                    // The value is not known before the run, so it is checked during the run.
                    FieldSource::Captured(_) => continue,
                    _ if nth == 0 => return Err(invalid_path_message("{{…}}")),
                    _ => continue,
                };
                let begins = |value: &Cow<'_, str>| nth > 0 || value.starts_with('/');
                if !column.values().all(|value| begins(&value)) {
                    return Err(invalid_path_message("{{…}}"));
                }
                // An empty value is valid, except at the beginning of the path.
                let bad = |value: &Cow<'_, str>| {
                    if value.is_empty() {
                        nth == 0
                    } else {
                        !is_valid_in_path(value)
                    }
                };
                if let Some(row) = column.values().position(|value| bad(&value)) {
                    // The value may be a secret, so the message only says where it is.
                    let (file, row) = (rows.map_or("rows", Rows::file), row + 1);
                    return Err(format!(
                        "{file}, row {row}, column {:?}: its value is not valid in a path: write it percent-encoded",
                        column.name
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use plimsoll_model::rows::template::FieldScope;

    use super::*;

    #[test]
    fn invalid_row_values_stay_hidden() {
        let rows = Rows::parse("users.csv", "name,password\na,b\nc,CANARY x\n").unwrap();
        let scope = FieldScope {
            rows: Some(&rows),
            captured: &[],
        };
        let mut slots = 0;
        let path = "/login?password={{row.password}}";
        let template = Template::parse(path, &mut slots, scope).unwrap();
        assert_eq!(
            check_path(&template, Some(&rows)).unwrap_err(),
            "users.csv, row 2, column \"password\": its value is not valid in a path: write it percent-encoded"
        );
    }
}

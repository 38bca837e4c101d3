//! Labels of a run: facts that the user adds because Plimsoll can't know them, such as the commit of the service.

use std::collections::BTreeMap;

/// Values of labels by their names.
pub type Labels = BTreeMap<String, String>;

/// Maximum number of labels of a run.
const MAX_LABELS: usize = 32;

/// Maximum length of a label's name.
const MAX_NAME_BYTES: usize = 64;

/// Maximum length of a label's value.
const MAX_VALUE_BYTES: usize = 256;

/// Splits `NAME=VALUE` into name and value. `None`: there is no `=`.
pub fn parse_label(typed: &str) -> Option<(String, String)> {
    let (name, value) = typed.split_once('=')?;
    Some((name.trim().to_owned(), value.trim().to_owned()))
}

/// Checks the number, names and values of labels.
///
/// # Errors
/// Returns what is wrong with the first invalid label, and what would be valid.
pub fn check(labels: &Labels) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("{} labels: at most {MAX_LABELS}", labels.len()));
    }
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./".contains(&b);
    for (name, value) in labels {
        if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(is_plain) {
            return Err(format!(
                "`{}` is not a label's name: use 1 to {MAX_NAME_BYTES} letters, digits, `_`, `-`, `.` and `/`",
                name.escape_debug()
            ));
        }
        if value.len() > MAX_VALUE_BYTES || value.chars().any(char::is_control) {
            return Err(format!(
                "{name}: its value is too long, or has a control character: use one line of at most {MAX_VALUE_BYTES} bytes"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_split_at_first_equals_sign() {
        let pair = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(parse_label("commit=1a2b=c"), pair("commit", "1a2b=c"));
        assert_eq!(parse_label("note="), pair("note", ""));
        assert_eq!(parse_label("commit"), None);
    }

    #[test]
    fn labels_have_bounds() {
        let one = |name: &str, value: &str| check(&Labels::from([(name.into(), value.into())]));
        assert_eq!(one("ci/build-2.x_y", "any text, über"), Ok(()));
        assert_eq!(one(&"n".repeat(64), &"v".repeat(256)), Ok(()));
        for (name, value) in [
            ("", "x"),
            ("two words", "x"),
            (&*"n".repeat(65), "x"),
            ("commit", &*"v".repeat(257)),
            ("commit", "two\nlines"),
            ("commit", "\u{1b}[2J"),
        ] {
            assert!(one(name, value).is_err(), "{name:?} = {value:?}");
        }
        let many = |n: usize| (0..n).map(|i| (i.to_string(), String::new())).collect();
        assert_eq!(check(&many(32)), Ok(()));
        assert!(check(&many(33)).is_err());
    }
}

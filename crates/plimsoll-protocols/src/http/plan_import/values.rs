//! Which values of answers may come back in later requests, and where a request's values are.
//!
//! A value is *distinctive* if no user would type it, such as a token. Any other value, such as the number 7, is taken
//! for one of an answer only where the name it is sent under shares a word with the name it had there.

use std::collections::BTreeSet;

/// The shortest value that can be distinctive. Bytes.
const MIN_DISTINCTIVE: usize = 6;
/// The shortest value without a digit that is distinctive. Bytes.
const MIN_DISTINCTIVE_LETTERS: usize = 16;

/// Words in the names of values that identify something or somebody.
const TELLING_WORDS: [&str; 23] = [
    "auth",
    "code",
    "csrf",
    "csrfmiddlewaretoken",
    "csrftoken",
    "cursor",
    "etag",
    "guid",
    "hash",
    "id",
    "jwt",
    "key",
    "nonce",
    "number",
    "ref",
    "reference",
    "sid",
    "slug",
    "state",
    "ticket",
    "token",
    "uuid",
    "xsrf",
];

/// Returns the words of a name in lower case, without the `s` of a plural: `itemIds` has `item` and `id`.
pub(super) fn words_of(name: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let mut word = String::new();
    let mut last = ' ';
    for c in name.chars().chain([' ']) {
        let begins = c.is_uppercase() && last.is_lowercase();
        if begins || !c.is_alphanumeric() {
            let full = std::mem::take(&mut word);
            let singular = full.strip_suffix('s').filter(|rest| rest.len() > 1);
            words
                .extend(Some(singular.unwrap_or(&full).to_owned()).filter(|word| !word.is_empty()));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        last = c;
    }
    words
}

/// Returns whether a name says that its value identifies something.
pub(super) fn is_telling(name: &str) -> bool {
    let words = words_of(name);
    let telling = |word: &String| {
        TELLING_WORDS.contains(&word.as_str())
            || word.ends_with("token")
            || (word.len() > 2 && word.ends_with("id") && !word.ends_with("aid"))
    };
    words.iter().any(telling)
}

/// Returns whether nobody would type the value, so that it is recognised wherever it is sent.
pub(super) fn is_distinctive(value: &str, name: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let is_long = value.len() >= MIN_DISTINCTIVE_LETTERS;
    value.len() >= MIN_DISTINCTIVE
        && !value.contains(char::is_whitespace)
        && !is_date(value)
        && (has_digit || is_long || is_telling(name))
}

/// Returns whether the value begins as a date (ISO 8601).
fn is_date(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() >= 10
        && bytes[..10].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns whether a value without a name of its own is random enough to look for it in the text of pages.
pub(super) fn is_random(value: &str) -> bool {
    let count = |is: fn(&u8) -> bool| value.bytes().filter(&is).count();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte);
    value.len() >= 8
        && !is_date(value)
        && value.bytes().all(is_token)
        && count(u8::is_ascii_digit) >= 2
}

/// Returns whether the value is a JSON Web Token by its form (RFC 7519).
pub(super) fn is_jwt(value: &str) -> bool {
    value.starts_with("eyJ") && value.matches('.').count() == 2 && value.len() > 40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_singular_words() {
        let words = |name| words_of(name).into_iter().collect::<Vec<_>>();
        assert_eq!(words("itemIds"), ["id", "item"]);
        assert_eq!(words("/orders/0/x-id"), ["0", "id", "order", "x"]);
        assert!(is_telling("userId") && is_telling("authenticity_token") && is_telling("ids"));
        assert!(!is_telling("paid") && !is_telling("page") && !is_telling("idea"));
    }

    #[test]
    fn distinctive_values_are_not_typed_by_people() {
        for (value, name, expected) in [
            ("8f3a91", "x", true),
            ("pending", "status", false),
            ("abcdef", "token", true),
            ("abc", "token", false),
            ("2026-11-29T10:00:00Z", "created", false),
            ("a name with 2 blanks", "name", false),
            ("AbCdEfGhIjKlMnOpQr", "x", true),
        ] {
            assert_eq!(is_distinctive(value, name), expected, "{value}");
        }
    }
}

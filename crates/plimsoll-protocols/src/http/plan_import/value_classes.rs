//! Classifies values by name and form: whether they may come from a response, are common, or are secret.
//!
//! A value that no user would type, such as a token, is *distinctive*: it is recognised under any name. Any other value
//! is matched to a response only if the names in request and response identify the same thing. *Common* values, such as
//! `7`, `en` or `true`, may be in a response by chance, so they are matched only as ids of the same thing.

use std::collections::BTreeSet;

/// The minimum length of a value that is distinctive, in bytes.
const MIN_DISTINCTIVE_BYTES: usize = 6;
/// The minimum length of a value without digits that is distinctive by its form, in bytes.
const MIN_DISTINCTIVE_LETTERS_BYTES: usize = 16;
/// The maximum length of a number that is common, in digits.
const MAX_COMMON_DIGITS: usize = 4;
/// The maximum length of a value with letters and digits that is common, such as `v2`, in bytes.
const MAX_COMMON_MIXED_BYTES: usize = 3;
/// The minimum length of a text that is a credential by its form alone, in bytes.
const MIN_OPAQUE_BYTES: usize = 32;
/// The maximum length of a text that is a credential by its form alone, in bytes; longer texts are content.
const MAX_OPAQUE_BYTES: usize = 512;
/// The minimum share of adjacent characters of different kinds in random text, in percent. The share is smaller in
/// words.
const MIN_KIND_CHANGES_PERCENT: usize = 38;
/// The minimum length of a run of small letters that belongs to a word, in bytes.
const MIN_WORD_TAIL_BYTES: usize = 3;
/// The minimum share of a name's letters that belong to such words, in percent; in random text it is about a quarter.
const MIN_WORDS_PERCENT: usize = 80;
/// The shortest token after a path segment such as `reset`, in bytes.
const MIN_PATH_TOKEN_BYTES: usize = 16;

/// Words in the names of values that identify something or someone.
const IDENTIFYING_WORDS: [&str; 23] = [
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

/// The identifying words whose values people may also type or choose, such as the state of an order.
const WEAK_IDENTIFYING_WORDS: [&str; 10] = [
    "auth",
    "code",
    "id",
    "key",
    "number",
    "ref",
    "reference",
    "slug",
    "state",
    "ticket",
];

/// Words in the names of values that describe an identifier, as in `token_type`.
const DESCRIBING_WORDS: [&str; 18] = [
    "algorithm",
    "count",
    "currency",
    "enabled",
    "expire",
    "format",
    "kind",
    "lang",
    "language",
    "length",
    "limit",
    "locale",
    "method",
    "mode",
    "name",
    "type",
    "unit",
    "version",
];

/// Words in names that mark a value as an id, but do not tell of what thing.
const ID_WORDS: [&str; 8] = [
    "guid",
    "id",
    "key",
    "no",
    "number",
    "ref",
    "reference",
    "uuid",
];

/// Words in paths and names that do not identify a thing.
const FILLER_WORDS: [&str; 10] = [
    "api", "data", "detail", "index", "json", "list", "public", "rest", "result", "x",
];

/// Splits a name into lower-case words without a plural `s`: `itemIds` has `item` and `id`.
pub(super) fn split_words(name: &str) -> BTreeSet<String> {
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

/// Returns the words of a name that tell what thing a value belongs to: `item` for `itemId`.
pub(super) fn entity_words(name: &str) -> BTreeSet<String> {
    let is_entity = |word: &String| {
        let is_version = || {
            let digits = word.strip_prefix('v').unwrap_or(word);
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        let word = word.as_str();
        word.len() > 1
            && !is_version()
            && !IDENTIFYING_WORDS.contains(&word)
            && !ID_WORDS.contains(&word)
            && !FILLER_WORDS.contains(&word)
    };
    let mut words: BTreeSet<String> = split_words(name)
        .into_iter()
        .map(|word| match word.strip_suffix("id") {
            // Splits names such as `userid`, which are written as one word.
            Some(entity) if entity.len() > 2 => entity.to_owned(),
            _ => word,
        })
        .collect();
    words.retain(is_entity);
    words
}

/// Returns the words of a name that tell what thing the value is an id of: `item` for `itemId`. Returns an empty set if
/// the value is not an id.
pub(super) fn id_owner_words(name: &str) -> BTreeSet<String> {
    if !is_id_name(name) {
        return BTreeSet::new();
    }
    let entities = entity_words(name);
    if entities.is_empty() {
        // The name may be only `id`, which is then the only word.
        split_words(name)
    } else {
        entities
    }
}

/// Returns whether values with this name are ids: `id`, `orderId` or `order_no`, but not `state`.
fn is_id_name(name: &str) -> bool {
    let words = split_words(name);
    let is_id = |word: &String| ID_WORDS.contains(&word.as_str()) || ends_with_id(word);
    words.iter().any(is_id) && !describes_identifier(&words)
}

/// Returns whether values with this name identify something.
pub(super) fn is_identifying_name(name: &str) -> bool {
    let words = split_words(name);
    words.iter().any(|word| is_identifying_word(word)) && !describes_identifier(&words)
}

fn is_identifying_word(word: &str) -> bool {
    IDENTIFYING_WORDS.contains(&word) || word.ends_with("token") || ends_with_id(word)
}

fn ends_with_id(word: &str) -> bool {
    word.len() > 2 && word.ends_with("id") && !word.ends_with("aid")
}

fn describes_identifier(words: &BTreeSet<String>) -> bool {
    let mut words = words.iter();
    words.any(|word| DESCRIBING_WORDS.contains(&word.as_str()))
}

/// Returns whether values with this name are tokens, which nobody types.
fn is_token_name(name: &str) -> bool {
    let words = split_words(name);
    let is_strong = |word: &String| {
        is_identifying_word(word)
            && !WEAK_IDENTIFYING_WORDS.contains(&word.as_str())
            && !ends_with_id(word)
    };
    let is_strong = |word: &String| is_strong(word) || matches!(word.as_str(), "guid" | "uuid");
    words.iter().any(is_strong) && !describes_identifier(&words)
}

/// Returns whether the value is one that nobody would type, so that it is recognised under any name.
pub(super) fn is_distinctive(value: &str, name: &str) -> bool {
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    let is_long =
        value.len() >= MIN_DISTINCTIVE_LETTERS_BYTES && alternates_like_random_text(value);
    value.len() >= MIN_DISTINCTIVE_BYTES
        && !value.contains(char::is_whitespace)
        && !has_common_notation(value)
        && (has_digit || is_long || is_token_name(name))
}

/// Returns whether a response may contain the value by chance.
pub(super) fn is_common(value: &str) -> bool {
    let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let is_words = value
        .bytes()
        .all(|byte| byte.is_ascii_alphabetic() || b"-_ ".contains(&byte));
    match value.len() {
        length if is_digits => length <= MAX_COMMON_DIGITS,
        length => is_words || length <= MAX_COMMON_MIXED_BYTES || has_common_notation(value),
    }
}

/// Returns whether a value has a widely used notation: a date, an amount, a round number, a version, a size in pixels,
/// a media type or a character set.
fn has_common_notation(value: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_amount = || {
        let parts = value.strip_prefix(['-', '+']).unwrap_or(value);
        parts.contains(['.', ',']) && parts.split(['.', ',']).all(is_number)
    };
    let is_size = || {
        let sides = value.split_once('x');
        sides.is_some_and(|(width, height)| is_number(width) && is_number(height))
    };
    let is_media_type = || {
        let kinds = ["application", "audio", "font", "image", "text", "video"];
        let kind = value.split_once('/');
        kind.is_some_and(|(kind, _)| kinds.contains(&kind))
    };
    let is_charset = || value.starts_with("iso-8859") || value.starts_with("windows-125");
    let is_round = || is_number(value) && value.ends_with("000");
    is_date(value) || is_amount() || is_round() || is_size() || is_media_type() || is_charset()
}

/// Returns whether lower-case letters, capitals and digits alternate as often as in random text.
fn alternates_like_random_text(value: &str) -> bool {
    let class = |byte: u8| match byte {
        b'a'..=b'z' => 'a',
        b'A'..=b'Z' => 'A',
        b'0'..=b'9' => '0',
        _ => '-',
    };
    let changes = value
        .as_bytes()
        .windows(2)
        .filter(|pair| class(pair[0]) != class(pair[1]))
        .count();
    let has_capitals = value.bytes().any(|byte| byte.is_ascii_uppercase());
    has_capitals && changes * 100 >= value.len() * MIN_KIND_CHANGES_PERCENT
}

/// Returns whether the value begins with a date (ISO 8601).
fn is_date(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() >= 10
        && bytes[..10].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns whether a value looks random enough to search pages for it.
pub(super) fn looks_random(value: &str) -> bool {
    let count = |is: fn(&u8) -> bool| value.bytes().filter(&is).count();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=".contains(&byte);
    value.len() >= 8
        && !has_common_notation(value)
        && value.bytes().all(is_token)
        && count(u8::is_ascii_digit) >= 2
}

/// Returns whether the value has the form of a JSON Web Token (RFC 7519).
pub(super) fn is_jwt(value: &str) -> bool {
    value.starts_with("eyJ") && value.matches('.').count() == 2 && value.len() > 40
}

/// Returns whether the value has the form of a token. Used only after a path segment such as `reset`.
pub(super) fn is_path_token(value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+=:".contains(&byte);
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let is_code = (4..=8).contains(&value.len()) && digits == value.len();
    let is_long =
        value.len() >= MIN_PATH_TOKEN_BYTES && (digits >= 2 || alternates_like_random_text(value));
    value.bytes().all(is_token) && !has_common_notation(value) && (is_long || is_code)
}

/// Prefixes of credentials that well-known services issue.
const CREDENTIAL_PREFIXES: [&str; 22] = [
    "AIza",
    "AKIA",
    "ASIA",
    "SG.",
    "dop_v1_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "npm_",
    "pypi-",
    "rk_live_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "ya29.",
];
/// The minimum length of a credential with one of these prefixes, in bytes.
const MIN_CREDENTIAL_BYTES: usize = 20;

/// Returns whether the value has the form of a credential, whatever its name.
pub(super) fn is_credential(value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let has_prefix = || {
        let mut known = CREDENTIAL_PREFIXES.iter();
        let digits = value.bytes().filter(u8::is_ascii_digit).count();
        let is_random = digits >= 2 && value.len() >= MIN_CREDENTIAL_BYTES;
        is_random && value.bytes().all(is_token) && known.any(|prefix| value.starts_with(prefix))
    };
    is_jwt(value) || has_prefix() || is_opaque(value)
}

/// Returns whether the value looks like random bytes in Base64, by its length and mix of characters.
fn is_opaque(value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let count = |is: fn(&u8) -> bool| value.bytes().filter(&is).count();
    (MIN_OPAQUE_BYTES..=MAX_OPAQUE_BYTES).contains(&value.len())
        && value.bytes().all(is_token)
        && alternates_like_random_text(value)
        && count(u8::is_ascii_digit) >= 2
        && !is_camel_case(value)
}

/// Returns whether most letters of the value belong to words in `CamelCase`, which a name of several words is and random
/// text hardly ever.
fn is_camel_case(value: &str) -> bool {
    let letters = value.bytes().filter(u8::is_ascii_alphabetic).count();
    let runs = value.split(|c: char| !c.is_ascii_lowercase());
    // A word's capital is outside of its run of small letters.
    let words = runs.filter(|run| run.len() >= MIN_WORD_TAIL_BYTES);
    let in_words: usize = words.map(|run| run.len() + 1).sum();
    in_words * 100 >= letters * MIN_WORDS_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_singular_words() {
        let words = |name| split_words(name).into_iter().collect::<Vec<_>>();
        assert_eq!(words("itemIds"), ["id", "item"]);
        assert_eq!(words("/orders/0/x-id"), ["0", "id", "order", "x"]);
        assert!(
            is_identifying_name("userId")
                && is_identifying_name("authenticity_token")
                && is_identifying_name("ids")
        );
        assert!(
            !is_identifying_name("paid")
                && !is_identifying_name("page")
                && !is_identifying_name("idea")
        );
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
            ("pending", "state", false),
            ("bearer", "token_type", false),
            ("awaiting_payment", "code", false),
            ("application/json", "type", false),
            ("199.99", "price", false),
            ("1920x1080", "screen", false),
        ] {
            assert_eq!(is_distinctive(value, name), expected, "{value}");
        }
    }

    #[test]
    fn common_values_are_short_or_words() {
        for value in [
            "1",
            "2026",
            "true",
            "en",
            "en-US",
            "on_hold",
            "v2",
            "10.5",
            "2026-11-29",
        ] {
            assert!(is_common(value), "{value}");
        }
        for value in ["12345", "o-12", "blue-shirt-2", "a1b2"] {
            assert!(!is_common(value), "{value}");
        }
    }

    #[test]
    fn entities_are_named_without_words_for_ids() {
        let words = |name| entity_words(name).into_iter().collect::<Vec<_>>();
        assert_eq!(words("orderId"), ["order"]);
        assert_eq!(words("user_ids"), ["user"]);
        assert_eq!(words("userid"), ["user"]);
        assert!(words("id").is_empty() && words("v2").is_empty() && words("api").is_empty());
        assert!(is_id_name("order_no") && is_id_name("userId") && !is_id_name("state"));
        assert!(id_owner_words("id_type").is_empty() && id_owner_words("id").contains("id"));
    }

    #[test]
    fn credentials_are_known_by_form() {
        let opaque = "q7Rk2XvB9mLp4TzN8sWc1YhD6fJg3aQe";
        for value in [
            opaque,
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        ] {
            assert!(is_credential(value), "{value}");
        }
        let hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        for value in [
            hash,
            "RecommendationsForTheWholeFamily2026",
            "Get2Orders1Item3Page4Query5Name6Kind",
            "sk-learn",
            "6f1c3a52-0d0f-4a53-9d8e-3b1f6a0c2d11",
        ] {
            assert!(!is_credential(value), "{value}");
        }
        assert!(is_path_token("c9x2k1-9f8a7b6c5d4e3f2a1b0c") && is_path_token("482913"));
        assert!(
            !is_path_token("new") && !is_path_token("42") && !is_path_token("forgotten-password")
        );
    }
}

//! The secrets that this process sends. A server may repeat them in an answer, of which messages and run directories
//! show an excerpt.
//!
//! Resolving a plan remembers its secrets ([`remember_secret`]), and everything that is shown or recorded passes
//! [`mask_urls`](super::mask_urls), which masks them. Both are outside of the hot path.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use super::secret_names::{
    SECRET_SCHEMES, is_opaque, is_secret_parameter_name, is_secret_word, subprotocol_token,
};
use crate::formats::base64_text::decode_base64;

/// Minimum length of a secret that is masked, in bytes. A shorter one would hide ordinary words.
const MIN_KNOWN_BYTES: usize = 6;

/// Maximum number of secrets; the oldest is forgotten. A command may print a new credential every second.
const MAX_KNOWN_SECRETS: usize = 1000;

static KNOWN_SECRETS: RwLock<VecDeque<String>> = RwLock::new(VecDeque::new());

/// Remembers a secret value and its parts: the credentials behind the name of an authentication scheme, the password
/// within those of `Basic`, the token in the name of a subprotocol, and those values of cookies that are secret by their
/// names or their form. A value is remembered with and without the escapes of JSON and of a query, and with those of
/// HTML.
pub fn remember_secret(value: &str) {
    let mut parts = Vec::new();
    collect_parts(value, &mut parts);
    // The password `password` would hide what an answer says of passwords.
    parts.retain(|part| part.len() >= MIN_KNOWN_BYTES && !is_secret_word(part));
    if parts.is_empty() {
        return;
    }
    let mut known = KNOWN_SECRETS
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    for part in parts {
        if known.contains(&part) {
            continue;
        }
        if known.len() == MAX_KNOWN_SECRETS {
            known.pop_front();
        }
        known.push_back(part);
    }
}

fn collect_parts(value: &str, parts: &mut Vec<String>) {
    let value = value.trim();
    // A template field differs from call to call, so the text around it is no literal secret.
    if !value.replace("{{{{", "").contains("{{") {
        let literal = value.replace("{{{{", "{{");
        parts.push(decode_percent_encoding(&literal));
        parts.extend(other_json_forms(&literal));
        parts.extend(encoded_forms(&literal));
        parts.push(literal);
    }
    if let Some(token) = subprotocol_token(value) {
        parts.extend(decode_text(token));
        parts.push(token.to_owned());
    }
    if let Some((scheme, credentials)) = value.split_once(' ')
        && SECRET_SCHEMES
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        if scheme.eq_ignore_ascii_case("basic")
            && let Some(pair) = decode_text(credentials)
        {
            parts.extend(
                pair.split_once(':')
                    .map(|(_, password)| password.to_owned()),
            );
            parts.push(pair);
        }
        return collect_parts(credentials, parts);
    }
    // The values of a `cookie` field, and the signature of an `authorization` field with parameters.
    let pairs = value.split([';', ',']);
    for (name, part) in pairs.filter_map(|pair| pair.split_once('=')) {
        let part = part.trim().trim_matches('"');
        // Other parts are words, such as those of `lang=english`, which texts of all kinds contain.
        let is_secret = is_secret_parameter_name(name.trim()) || is_opaque(part);
        if is_secret && !part.contains("{{") {
            parts.push(part.to_owned());
        }
    }
}

/// Decodes Base64 of either alphabet (RFC 4648 §4 and §5), padded or not, to text.
fn decode_text(credentials: &str) -> Option<String> {
    let standard = credentials.trim().replace('-', "+").replace('_', "/");
    let bytes = decode_base64(standard)?;
    String::from_utf8(bytes).ok()
}

/// Returns a value of JSON without its escapes, and a text as JSON writes it, where either differs from `value`. A body
/// has the one, a message's field the other, and a server may repeat both.
fn other_json_forms(value: &str) -> Vec<String> {
    let unescaped = serde_json::from_str::<String>(&format!("\"{value}\"")).ok();
    let escaped = serde_json::Value::from(value).to_string();
    let escaped = escaped.get(1..escaped.len() - 1).map(str::to_owned);
    let forms = unescaped.into_iter().chain(escaped);
    forms.filter(|form| form != value).collect()
}

/// Returns a text as a query (RFC 3986 §2.1) and as HTML write it, where either differs from `value`.
fn encoded_forms(value: &str) -> Vec<String> {
    let (mut percent, mut html) = (String::new(), String::new());
    for c in value.chars() {
        match c {
            '&' => html += "&amp;",
            '<' => html += "&lt;",
            '>' => html += "&gt;",
            '"' => html += "&quot;",
            _ => html.push(c),
        }
        if c.is_ascii_alphanumeric() || "-._~".contains(c) {
            percent.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            let _infallible = write!(percent, "%{byte:02X}");
        }
    }
    let forms = [percent, html].into_iter();
    forms.filter(|form| form != value).collect()
}

/// Decodes a value of a query, which a server may repeat as it was meant.
fn decode_percent_encoding(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| value.to_owned())
}

/// Finds the remembered secrets in a text. An excerpt may end within a secret, so the beginning of one at the end of the
/// text counts, too.
pub(super) fn find_known_secrets(text: &str) -> Vec<Range<usize>> {
    let known = KNOWN_SECRETS.read().unwrap_or_else(PoisonError::into_inner);
    let mut all = Vec::new();
    for secret in known.iter() {
        let found = text.match_indices(secret.as_str());
        all.extend(found.map(|(start, found)| start..start + found.len()));
        let cut = text.trim_end_matches(['…', char::REPLACEMENT_CHARACTER]);
        all.extend(find_cut_secret(cut, secret));
    }
    all
}

/// Finds the longest beginning of `secret` at the end of `text`.
fn find_cut_secret(text: &str, secret: &str) -> Option<Range<usize>> {
    let longest = secret.len().saturating_sub(1).min(text.len());
    let mut lengths = (MIN_KNOWN_BYTES..=longest).rev();
    let length = lengths.find(|length| text.as_bytes().ends_with(&secret.as_bytes()[..*length]))?;
    // Both ends are character boundaries if the texts are equal up to there.
    let start = text.len() - length;
    text.is_char_boundary(start).then_some(start..text.len())
}

#[cfg(test)]
mod tests {
    use super::super::mask_urls;
    use super::*;

    #[test]
    fn repeated_secrets_are_masked() {
        // Other tests of this process remember secrets, too, so these are unlike any others.
        remember_secret("Bearer Qx7-known-bearer");
        remember_secret("Basic bWU6UXg3LXBhc3N3b3Jk");
        remember_secret("theme=Qx7-dark-theme; sid=\"Qx7-session\"");
        remember_secret(r#"Qx8-\"body\""#);
        remember_secret("Qx9-\"field");
        remember_secret("lang=qx-english; session=qx-secret");
        remember_secret("Qx7%2Dpercent%2Dencoded");
        remember_secret("Qx7{{{{braces");
        remember_secret("Qx7-row-{{row.token}}");
        remember_secret("Qx7-a");
        remember_secret("Password");
        for (text, hidden) in [
            (r#"401: {"got":"Qx7-known-bearer"}"#, "Qx7-known-bearer"),
            ("me:Qx7-password!", "me:Qx7-password"),
            ("no Qx7-password", "Qx7-password"),
            ("Qx7-session", "Qx7-session"),
            ("Qx7-dark-theme or so", "Qx7-dark-theme"),
            ("no qx-secret", "qx-secret"),
            (r#"no Qx8-"body""#, r#"Qx8-"body""#),
            (r#"{"n":"Qx9-\"field"}"#, r#"Qx9-\"field"#),
            ("Qx7-percent-encoded", "Qx7-percent-encoded"),
            ("/x?y=Qx9-%22field", "Qx9-%22field"),
            ("<p>Qx9-&quot;field</p>", "Qx9-&quot;field"),
            ("Qx7{{braces", "Qx7{{braces"),
            ("it begins: Qx7-known-be", "Qx7-known-be"),
            ("it begins: Qx7-know…", "Qx7-know"),
        ] {
            let shown = text.replace(hidden, &"*".repeat(hidden.len()));
            assert_eq!(mask_urls(text), shown);
        }
        for text in [
            "it begins: Qx7-k",
            "Qx7-known, and more",
            "Qx7-row-1 and Qx7-a",
            "no qx-english",
            "Password is missing",
        ] {
            assert_eq!(mask_urls(text), text);
        }
    }
}

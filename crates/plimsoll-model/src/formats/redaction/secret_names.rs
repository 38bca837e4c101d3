//! Recognises secrets by the names of header fields, query parameters and fields of bodies, and by the form of a header
//! field's value.

use super::is_variable;

/// Words that mark the names of query parameters, and of fields in bodies, with secret values.
const SECRET_PARAMETER_WORDS: [&str; 32] = [
    "accesskey",
    "apikey",
    "assertion",
    "auth",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "csrf",
    "hmac",
    "jsessionid",
    "jwt",
    "key",
    "otp",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "phpsessid",
    "pin",
    "pwd",
    "secret",
    "secretkey",
    "session",
    "sessionid",
    "sid",
    "sig",
    "signature",
    "token",
    "totp",
    "verifier",
    "xsrf",
];

/// Ends of such words, where words are written together: `csrfmiddlewaretoken`, `clientsecret`.
const SECRET_PARAMETER_ENDINGS: [&str; 5] = ["apikey", "password", "privatekey", "secret", "token"];

/// Names of parameters, without separators, that are secret if their values are opaque: codes and `state` of OAuth
/// (RFC 6749 §4.1), tickets, and codes that prove an identity. `code=US` and `state=open` are something else.
const OPAQUE_PARAMETER_NAMES: [&str; 17] = [
    "accesscode",
    "activationcode",
    "code",
    "confirmationcode",
    "devicecode",
    "invitecode",
    "logincode",
    "mfacode",
    "nonce",
    "recoverycode",
    "relaystate",
    "resetcode",
    "securitycode",
    "state",
    "ticket",
    "usercode",
    "verificationcode",
];

/// Last words of names that describe a secret and hold none: `token_type=bearer`, `SignatureVersion=2`.
const DESCRIBING_WORDS: [&str; 12] = [
    "algorithm",
    "count",
    "enabled",
    "expiry",
    "length",
    "limit",
    "method",
    "mode",
    "timeout",
    "ttl",
    "type",
    "version",
];

/// Words beside `key` that mark the key of a query as data: `sort_key=name`.
const DATA_KEY_WORDS: [&str; 5] = ["cache", "foreign", "partition", "row", "sort"];

/// Minimum length of an opaque value, in bytes. A shorter one is opaque if it has at least [`MIN_CODE_BYTES`] and a
/// digit.
const MIN_OPAQUE_BYTES: usize = 16;
const MIN_CODE_BYTES: usize = 6;

/// Words beside `key` that mark the key of a body as secret. `partition_key` and `key` itself are data.
const SECRET_KEY_WORDS: [&str; 14] = [
    "access",
    "account",
    "admin",
    "api",
    "app",
    "client",
    "encryption",
    "license",
    "master",
    "private",
    "service",
    "shared",
    "signing",
    "subscription",
];

/// Words in the names of secrets that people type, which may be numbers in JSON.
const TYPED_SECRET_WORDS: [&str; 7] = [
    "otp", "passcode", "passwd", "password", "pin", "pwd", "secret",
];

/// Texts that mark the names of header fields and metadata entries with secret values, anywhere in the name.
const SECRET_FIELD_PARTS: [&str; 13] = [
    "auth",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "cookie",
    "key",
    "credential",
    "session",
    "jwt",
    "signature",
];

/// Words that mark the names of such fields. They are too short to be looked for within other words.
const SECRET_FIELD_WORDS: [&str; 4] = ["bearer", "pat", "pwd", "sid"];

/// A word that marks a secret only at the end of a name: `x-pass` holds a password, and `pass-through` does not.
const SECRET_LAST_WORD: &str = "pass";

/// Names of authentication schemes (RFC 9110 §11.1) that are followed by a secret.
pub(super) const SECRET_SCHEMES: [&str; 5] = ["basic", "bearer", "digest", "negotiate", "token"];

/// The beginnings of tokens that well-known services issue.
const TOKEN_PREFIXES: [&str; 12] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "xoxb-",
    "xoxp-",
];

/// The beginnings of subprotocols that contain a token: those of Kubernetes, whose token is in Base64, and of OpenAI.
const SUBPROTOCOL_TOKEN_PREFIXES: [&str; 3] = [
    "base64url.bearer.authorization.k8s.io.",
    "bearer.",
    "openai-insecure-api-key.",
];

/// Minimum length of a token behind its prefix, in bytes. `sk-SK` is a language, not a token.
const MIN_TOKEN_BYTES: usize = 16;

/// Returns whether the value of a header field or metadata entry of this name must not be written to the run directory.
pub fn is_secret_field_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_part = |part: &&str| name.contains(*part);
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    SECRET_FIELD_PARTS.iter().any(is_part)
        || words.clone().next_back() == Some(SECRET_LAST_WORD)
        || words.any(|word| SECRET_FIELD_WORDS.contains(&word))
}

/// Returns whether a field's value is a secret whatever the field's name is: the name of an authentication scheme with
/// credentials, a token of a well-known service, or a JSON web token.
pub fn is_secret_field_value(value: &str) -> bool {
    let value = value.trim();
    has_credentials(value) || is_known_token(value) || is_json_web_token(value)
}

/// Returns the token that the name of a subprotocol contains.
pub fn subprotocol_token(name: &str) -> Option<&str> {
    let mut prefixes = SUBPROTOCOL_TOKEN_PREFIXES.iter();
    prefixes
        .find_map(|prefix| name.strip_prefix(prefix))
        .filter(|token| !token.is_empty())
}

/// Returns whether one of the words of `api_key`, `apiKey`, `api%5Fkey` or `X-Amz-Signature` indicates a secret.
pub fn is_secret_parameter_name(name: &str) -> bool {
    let words = split_name(name);
    let contains_any = |known: &[&str]| words.iter().any(|word| known.contains(&word.as_str()));
    let is_data_key = contains_any(&DATA_KEY_WORDS) && !contains_any(&SECRET_KEY_WORDS);
    let is_secret =
        |word: &String| is_secret_parameter_word(word) && !(is_data_key && word == "key");
    has_secret_last_word(&words) || !is_description(&words) && words.iter().any(is_secret)
}

/// Returns whether a query parameter is secret by its name, or by its name and the form of its value. The `key` of a
/// query may be one of an API, or of the data.
pub fn is_secret_parameter(name: &str, value: &str) -> bool {
    let joined = split_name(name).concat();
    if joined == "key" || OPAQUE_PARAMETER_NAMES.contains(&&*joined) {
        return is_opaque(value);
    }
    is_secret_parameter_name(name)
}

/// Returns whether a name of these words describes a secret, such as its type.
fn is_description(words: &[String]) -> bool {
    words.len() > 1
        && words
            .last()
            .is_some_and(|word| DESCRIBING_WORDS.contains(&word.as_str()))
}

/// Returns whether a field of JSON or of a message is secret by its name, or by its name and the form of its value. The
/// `code` and `state` of a message are those of errors and things.
pub(super) fn is_secret_json_field(name: &str, value: &str) -> bool {
    let words = split_name(name);
    has_secret_body_word(&words)
        || words.len() > 1 && OPAQUE_PARAMETER_NAMES.contains(&&*words.concat()) && is_opaque(value)
}

/// Returns whether a field of a form is secret by its name, or by its name and the form of its value.
pub(super) fn is_secret_form_field(name: &str, value: &str) -> bool {
    let words = split_name(name);
    has_secret_body_word(&words)
        || OPAQUE_PARAMETER_NAMES.contains(&&*words.concat()) && is_opaque(value)
}

/// Returns whether a name of these words marks a secret of a body. There, `key` alone is data.
fn has_secret_body_word(words: &[String]) -> bool {
    let is_data_key = words.iter().any(|word| word == "key")
        && !words
            .iter()
            .any(|word| SECRET_KEY_WORDS.contains(&word.as_str()));
    let is_secret =
        |word: &String| is_secret_parameter_word(word) && !(is_data_key && word == "key");
    has_secret_last_word(words) || !is_description(words) && words.iter().any(is_secret)
}

/// Returns whether a number under this name is secret: numbers are secret only under the names of secrets that people
/// type.
pub(super) fn is_secret_number_name(name: &str) -> bool {
    let words = split_name(name);
    words
        .iter()
        .any(|word| TYPED_SECRET_WORDS.contains(&word.as_str()) || word.ends_with("password"))
}

/// Splits `api_key`, `apiKey` or `api%5Fkey` into lower-case words.
fn split_name(name: &str) -> Vec<String> {
    let mut words = String::new();
    let mut last = ' ';
    for c in decode_percent(name).chars() {
        if c.is_ascii_uppercase() && last.is_ascii_lowercase() {
            words.push(' ');
        }
        words.push(if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            ' '
        });
        last = c;
    }
    words.split_ascii_whitespace().map(str::to_owned).collect()
}

fn has_secret_last_word(words: &[String]) -> bool {
    words.last().is_some_and(|word| word == SECRET_LAST_WORD) || words.concat() == "samlresponse"
}

/// Returns whether a text is a word that names secrets, such as `password`.
pub(super) fn is_secret_word(text: &str) -> bool {
    SECRET_PARAMETER_WORDS.contains(&&*text.to_ascii_lowercase())
}

fn is_secret_parameter_word(word: &str) -> bool {
    SECRET_PARAMETER_WORDS.contains(&word)
        || SECRET_PARAMETER_ENDINGS
            .iter()
            .any(|ending| word.ends_with(ending))
}

/// Returns whether a value looks like one that a server has drawn at random, or stands for one.
pub(super) fn is_opaque(value: &str) -> bool {
    let has_digit = value.bytes().any(|b| b.is_ascii_digit());
    is_variable(value)
        || value.len() >= MIN_OPAQUE_BYTES && !consists_of_words(value)
        || value.len() >= MIN_CODE_BYTES && has_digit
}

/// Returns whether a value consists of words that are separated: `insufficient_scope`. Random text of this length has
/// digits, or letters of both cases; codes that people type have other separators.
fn consists_of_words(value: &str) -> bool {
    let separators = ['_', '.'];
    let is_word = |word: &str| {
        word.bytes().all(|b| b.is_ascii_lowercase()) || word.bytes().all(|b| b.is_ascii_uppercase())
    };
    value.contains(separators) && value.split(separators).all(is_word)
}

/// Minimum length of the secret behind the name of an authentication scheme, in bytes, but for
/// `Bearer`: `Basic plan` holds none.
const MIN_CREDENTIAL_BYTES: usize = 8;

/// Returns whether a value is the name of an authentication scheme, followed by a secret. A template field is replaced
/// by a value of each call, so it is not a literal secret.
fn has_credentials(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once(' ') else {
        return false;
    };
    let rest = rest.trim_start();
    let is_field = rest.starts_with("{{") && !rest.starts_with("{{{{");
    let is_long = rest.len() >= MIN_CREDENTIAL_BYTES || scheme.eq_ignore_ascii_case("bearer");
    let is_secret = is_long && !rest.contains(' ');
    is_secret
        && !is_field
        && SECRET_SCHEMES
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known))
}

fn is_known_token(value: &str) -> bool {
    let is_token_byte = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let has_token = |rest: &str| rest.len() >= MIN_TOKEN_BYTES && rest.bytes().all(is_token_byte);
    TOKEN_PREFIXES
        .iter()
        .any(|prefix| value.strip_prefix(prefix).is_some_and(has_token))
}

/// Returns whether a value is a JSON web token in its compact form: a header, which begins with `{"` in Base64, and at
/// least two other parts behind dots (RFC 7515 §7.1).
fn is_json_web_token(value: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_-".contains(&b);
    let mut parts = value.split('.');
    value.starts_with("eyJ")
        && parts.clone().count() >= 3
        && parts.all(|part| part.bytes().all(is_part))
}

/// Decodes the percent-encoded ASCII characters of a parameter's name.
fn decode_percent(name: &str) -> String {
    let mut decoded = String::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = after.get(..2).map(|digits| u8::from_str_radix(digits, 16));
        if let Some(Ok(byte)) = byte
            && byte.is_ascii()
        {
            decoded.push(char::from(byte));
            rest = &after[2..];
        } else {
            decoded.push('%');
            rest = after;
        }
    }
    decoded + rest
}

#[cfg(test)]
mod tests;

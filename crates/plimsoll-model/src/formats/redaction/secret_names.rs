//! Recognises secrets by the names of header fields and query parameters, and by the form of a field's value.

/// Words that mark the names of query parameters with secret values.
const SECRET_PARAMETER_WORDS: [&str; 21] = [
    "accesskey",
    "apikey",
    "assertion",
    "auth",
    "authorization",
    "credential",
    "credentials",
    "jwt",
    "key",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "samlresponse",
    "secret",
    "session",
    "sessionid",
    "sig",
    "signature",
    "token",
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
const SECRET_SCHEMES: [&str; 5] = ["basic", "bearer", "digest", "negotiate", "token"];

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

/// Returns whether one of the words of `api_key`, `apiKey`, `api%5Fkey` or `X-Amz-Signature` indicates a secret.
pub fn is_secret_parameter_name(name: &str) -> bool {
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
    let mut each = words.split(' ').filter(|word| !word.is_empty());
    each.clone().next_back() == Some(SECRET_LAST_WORD)
        || words.replace(' ', "") == "samlresponse"
        || each.any(|word| SECRET_PARAMETER_WORDS.contains(&word))
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
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_recognised_by_words() {
        for name in [
            "Authorization",
            "x-api-key",
            "x-pwd",
            "x-pass",
            "PASS",
            "passphrase",
            "x-pat",
            "sid",
            "2.x-bearer",
        ] {
            assert!(is_secret_field_name(name), "{name}");
        }
        for name in [
            "accept",
            "pass-through",
            "x-bypass",
            "x-pattern",
            "x-side",
            "path",
        ] {
            assert!(!is_secret_field_name(name), "{name}");
        }
    }

    #[test]
    fn secret_values_are_recognised_by_form() {
        for value in [
            "Bearer x",
            "basic bWU6cHc=",
            "sk-0123456789abcdefgh",
            "ghp_0123456789abcdefghij",
            "github_pat_0123456789abcdefghij",
            "eyJhbGciOiJub25lIn0.eyJhIjoxfQ.",
        ] {
            assert!(is_secret_field_value(value), "{value}");
        }
        for value in [
            "",
            "bearer",
            "Bearer {{row.token}}",
            "sk-SK,sk;q=0.9",
            "sk-SK",
            "eyJ",
            "application/json",
            "a.b.c",
            "max-age=0",
        ] {
            assert!(!is_secret_field_value(value), "{value}");
        }
    }

    #[test]
    fn encoded_secret_parameter_names_are_recognised() {
        for name in [
            "api_key",
            "api%5Fkey",
            "%6bey",
            "pass",
            "user_pass",
            "passphrase",
            "client_assertion",
            "SAMLResponse",
            "samlResponse",
        ] {
            assert!(is_secret_parameter_name(name), "{name}");
        }
        for name in ["pass_through", "keyword", "max_tokens", "50%", "a%zz", "%é"] {
            assert!(!is_secret_parameter_name(name), "{name}");
        }
    }
}

//! Quotes command lines for a shell, with environment variables in place of secrets, so that a line can be pasted and
//! never sends a placeholder.
//!
//! Plimsoll itself replaces `$NAME` where it is the whole password or the whole value of a header field, so these words
//! have single quotes. After a scheme such as `Bearer`, the shell replaces the variable, and refuses the line if the
//! variable is not set.

use std::ffi::OsString;

use plimsoll_model::formats::redaction::{self, BodySecrets};

/// Flags whose value is a user with a password, and flags whose value is a header field.
const USER_FLAGS: [&str; 2] = ["-u", "--user"];
const FIELD_FLAGS: [&str; 3] = ["-H", "--header", "--metadata"];

/// Flags whose value is a body, or a part of one.
const BODY_FLAGS: [&str; 10] = [
    "-d",
    "-F",
    "--data",
    "--data-binary",
    "--data-raw",
    "--extra",
    "--form",
    "--json",
    "--message",
    "--body",
];

/// Words between the name of a header field and its secret.
const AUTHORIZATION_SCHEMES: [&str; 4] = ["Bearer", "bearer", "Token", "token"];

/// Returns the words quoted for a shell, ready to paste. Passwords, and values of header fields that usually contain
/// secrets, are replaced by environment variables.
pub(crate) fn quote_for_shell(words: &[OsString]) -> String {
    let mut before = String::new();
    let shown = words.iter().map(|word| {
        let word = word.to_string_lossy();
        let (flag, value) = split_flag(&before, &word);
        let quoted = if USER_FLAGS.contains(&flag) {
            hide_password(value)
        } else if FIELD_FLAGS.contains(&flag) {
            hide_field_value(value)
        } else if BODY_FLAGS.contains(&flag) {
            hide_body(value)
        } else {
            None
        };
        // The flag is shown in front of its value only if both are one word.
        let attached = &word[..word.len() - value.len()];
        let shown = match quoted {
            Some(quoted) => format!("{attached}{quoted}"),
            None => shell_words::quote(&word).into_owned(),
        };
        before = word.into_owned();
        shown
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Splits a word into a flag and its value, which may be attached to the flag; otherwise the flag is the word `before`.
fn split_flag<'a>(before: &'a str, word: &'a str) -> (&'a str, &'a str) {
    if let Some((flag, value)) = word.split_once('=').filter(|_| word.starts_with("--")) {
        return (flag, value);
    }
    let short = USER_FLAGS
        .iter()
        .chain(&FIELD_FLAGS)
        .chain(&BODY_FLAGS)
        .find(|flag| flag.len() == 2 && word.len() > 2 && word.starts_with(**flag));
    match short {
        Some(flag) => (flag, &word[flag.len()..]),
        None => (before, word),
    }
}

/// Returns a body with its secrets in variables, which Plimsoll itself replaces, quoted; `None` if it has no secrets.
fn hide_body(value: &str) -> Option<String> {
    let hidden = BodySecrets::default().replace_secrets(value);
    (hidden != value).then(|| shell_words::quote(&hidden).into_owned())
}

/// Returns a user with the password in a variable, quoted; `None` if there is no password to hide.
fn hide_password(value: &str) -> Option<String> {
    let (user, password) = value.split_once(':')?;
    if is_variable(password) {
        return None;
    }
    Some(shell_words::quote(&format!("{user}:$PASSWORD")).into_owned())
}

/// Returns a header field with its secret in a variable, quoted; `None` if the field has no secret.
fn hide_field_value(field: &str) -> Option<String> {
    let (name, value) = field.split_once(':')?;
    let value = value.trim();
    if !redaction::is_secret_field_name(name) || is_variable(value) || value.contains("{{") {
        return None;
    }
    let scheme = value
        .split_once(' ')
        .filter(|(scheme, _)| AUTHORIZATION_SCHEMES.contains(scheme));
    let is_plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if let Some((scheme, _)) = scheme.filter(|_| is_plain) {
        return Some(format!("\"{name}: {scheme} ${{TOKEN:?}}\""));
    }
    let as_variable = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    let variable: String = name.trim().chars().map(as_variable).collect();
    Some(shell_words::quote(&format!("{name}: ${variable}")).into_owned())
}

/// Returns whether the shell or Plimsoll takes a value from the environment.
fn is_variable(value: &str) -> bool {
    let value = value.trim_start();
    value.starts_with('$') && !value.starts_with("$$") || value.contains("${TOKEN:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(line: &[&str]) -> String {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        quote_for_shell(&words)
    }

    #[test]
    fn secrets_become_variables() {
        for (line, shown) in [
            (&["-u", "joe:hush"][..], "-u 'joe:$PASSWORD'"),
            (&["-ujoe:hush"], "-u'joe:$PASSWORD'"),
            (&["--user=joe:hush"], "--user='joe:$PASSWORD'"),
            (&["-u", "joe:$MINE"], "-u 'joe:$MINE'"),
            (
                &["-H", "Authorization: Bearer hush"],
                "-H \"Authorization: Bearer ${TOKEN:?}\"",
            ),
            (
                &["--metadata", "authorization: hush"],
                "--metadata 'authorization: $AUTHORIZATION'",
            ),
            (
                &["--header=x-api-key: hush"],
                "--header='x-api-key: $X_API_KEY'",
            ),
            (&["-H", "cookie: a=hush; b=c"], "-H 'cookie: $COOKIE'"),
            (
                &["-d", r#"{"password":"hush"}"#],
                r#"-d '{"password":"$PLIMSOLL_BODY_PASSWORD"}'"#,
            ),
            (
                &["--data=a=b&client_secret=hush"],
                "--data='a=b&client_secret=$PLIMSOLL_BODY_CLIENT_SECRET'",
            ),
            (&["-Fpassword=hush"], "-F'password=$PLIMSOLL_BODY_PASSWORD'"),
            (&["-H", "accept: a b"], "-H 'accept: a b'"),
        ] {
            assert_eq!(quoted(line), shown);
        }
    }

    #[test]
    fn words_without_secrets_stay_as_typed() {
        for (line, shown) in [
            (&["-d", "token: a"][..], "-d 'token: a'"),
            (
                &["-X", "POST", "http://a.test/{{id}}"],
                "-X POST http://a.test/{{id}}",
            ),
            (&["--objective", "p99 < 5ms"], "--objective 'p99 < 5ms'"),
        ] {
            assert_eq!(quoted(line), shown);
        }
    }
}

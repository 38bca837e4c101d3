//! Finds the secrets in bodies: JSON, forms (`application/x-www-form-urlencoded`), and either of them within another
//! text, such as a plan or an answer's excerpt.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::secret_names::{is_secret_form_field, is_secret_json_field, is_secret_number_name};
use super::{is_variable, variable_name_for};

/// Prefix of the variables for fields of bodies.
pub const BODY_VARIABLE_PREFIX: &str = "PLIMSOLL_BODY_";

/// Maximum length of a field's name, in bytes.
const MAX_NAME_BYTES: usize = 100;

/// The secrets in the bodies of a plan, each with its variable. Different values of a field have different variables.
#[derive(Clone, Debug, Default)]
pub struct BodySecrets {
    values: BTreeMap<String, String>,
    /// The variables that the plan has already, whose values are not known here.
    taken: BTreeSet<String>,
}

impl BodySecrets {
    /// Keeps the variables that a body contains from being assigned to other values.
    pub fn reserve_variables(&mut self, body: &str) {
        let names = find_variables(body);
        self.taken
            .extend(names.into_iter().map(|name| body[name].to_owned()));
    }

    /// Returns the variables that bodies contained already.
    pub fn reserved_variables(&self) -> impl Iterator<Item = &str> {
        self.taken.iter().map(String::as_str)
    }

    /// Returns a body with environment variables in place of the secrets in its fields.
    pub fn replace_secrets(&mut self, body: &str) -> String {
        let mut text = body.to_owned();
        let hidden: Vec<(Range<usize>, String)> = find_body_secrets(body)
            .into_iter()
            .map(|(name, value)| {
                let variable = self.assign_variable(&body[name], &body[value.clone()]);
                (value, variable)
            })
            .collect();
        for (value, variable) in hidden.into_iter().rev() {
            text.replace_range(value, &format!("${variable}"));
        }
        text
    }

    /// Returns the variable in place of `value`, which is the value of the field `name`; `None` if it is no secret.
    pub fn replace_field(&mut self, name: &str, value: &str) -> Option<String> {
        let variable = is_json_secret(name, value).then(|| self.assign_variable(name, value))?;
        Some(format!("${variable}"))
    }

    /// Returns the variables with their secrets.
    pub fn into_variables(self) -> Vec<(String, String)> {
        self.values.into_iter().collect()
    }

    fn assign_variable(&mut self, name: &str, value: &str) -> String {
        let first = variable_name_for(BODY_VARIABLE_PREFIX, name);
        let mut variable = first.clone();
        for number in 2.. {
            if !self.taken.contains(&variable) {
                let known = self.values.entry(variable.clone());
                if known.or_insert_with(|| value.to_owned()) == value {
                    break;
                }
            }
            variable = format!("{first}_{number}");
        }
        variable
    }
}

/// Replaces the variables of [`BodySecrets`] in a body with their values.
///
/// # Errors
/// Returns which variable is not set.
pub fn fill_body_variables(
    body: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut text = body.to_owned();
    for name in find_variables(body).into_iter().rev() {
        let found = variable(&body[name.clone()]);
        let found = found.ok_or_else(|| {
            format!(
                "the environment variable {} is not set",
                &body[name.clone()]
            )
        })?;
        text.replace_range(name.start - 1..name.end, &found);
    }
    Ok(text)
}

/// Finds the names of the variables of [`BodySecrets`] in a text.
fn find_variables(text: &str) -> Vec<Range<usize>> {
    let is_part = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
    let found = text.match_indices(BODY_VARIABLE_PREFIX);
    let names = found.map(|(start, _)| {
        let length = text.as_bytes()[start..]
            .iter()
            .take_while(|b| is_part(b))
            .count();
        start..start + length
    });
    names
        .filter(|name| text[..name.start].ends_with('$') && name.len() > BODY_VARIABLE_PREFIX.len())
        .collect()
}

/// Finds the secret fields of a body. Returns the ranges of name and value.
fn find_body_secrets(body: &str) -> Vec<(Range<usize>, Range<usize>)> {
    if is_form(body) {
        let mut start = 0;
        let pairs = body.split_inclusive('&').filter_map(|pair| {
            let from = start;
            start += pair.len();
            let pair = pair.trim_end_matches('&').trim_end();
            let equals = from + pair.find('=')?;
            Some((from..equals, equals + 1..from + pair.len()))
        });
        return pairs
            .filter(|(name, value)| is_form_secret(&body[name.clone()], &body[value.clone()]))
            .collect();
    }
    let mut all = find_multipart_secrets(body);
    if all.is_empty() {
        all = find_json_secrets(body);
    }
    all
}

/// Finds the secret parts of a form with files (`multipart/form-data`, RFC 7578). Returns the ranges of name and value.
fn find_multipart_secrets(body: &str) -> Vec<(Range<usize>, Range<usize>)> {
    const NAME_START: &str = "form-data; name=\"";
    let parts = body.match_indices(NAME_START).filter_map(|(at, _)| {
        let name = at + NAME_START.len();
        let name = name..name + body[name..].find('"')?;
        let head_end = body[name.end..].find("\r\n\r\n")?;
        let value = name.end + head_end + 4;
        let length = body[value..].find("\r\n--")?;
        Some((name, value..value + length))
    });
    parts
        .filter(|(name, value)| is_form_secret(&body[name.clone()], &body[value.clone()]))
        .collect()
}

/// Returns whether a body is a form: names and values without blanks.
fn is_form(body: &str) -> bool {
    let first = body.split(['&', '=']).next().unwrap_or_default();
    body.contains('=') && !first.is_empty() && first.bytes().all(is_name_byte)
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.%[]$".contains(&byte)
}

/// Finds the secret fields of JSON objects anywhere in a text. The text may end within a value, and its quotation marks
/// may be escaped, as they are in JSON within a string. Returns the ranges of name and value.
pub(super) fn find_json_secrets(text: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let mut all: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    for (colon, _) in text.match_indices(':') {
        if all.last().is_some_and(|(_, value)| value.contains(&colon)) {
            continue;
        }
        let Some((name, escapes)) = find_json_name(text, colon) else {
            continue;
        };
        let after = &text[colon + 1..];
        let start = text.len() - after.trim_start().len();
        let Some(value) = find_json_value(text, start, escapes, &text[name.clone()]) else {
            continue;
        };
        if is_json_secret(&text[name.clone()], &text[value.clone()]) {
            all.push((name, value));
        }
    }
    all
}

/// Finds the quoted name before the colon at `colon`. Returns its range, and the number of backslashes before each of
/// its quotation marks.
fn find_json_name(text: &str, colon: usize) -> Option<(Range<usize>, usize)> {
    let before = text[..colon].trim_end().strip_suffix('"')?;
    let end = before.trim_end_matches('\\').len();
    let escapes = before.len() - end;
    let length = before[..end]
        .bytes()
        .rev()
        .take(MAX_NAME_BYTES)
        .take_while(|b| is_name_byte(*b))
        .count();
    let start = end - length;
    let opening = text[..start].strip_suffix('"')?;
    let found = opening.len() - opening.trim_end_matches('\\').len();
    (length > 0 && found == escapes).then_some((start..end, escapes))
}

/// Finds the value of the field `name`, which begins at `start`: the inside of a string, or a number if numbers under
/// this name are secret.
fn find_json_value(text: &str, start: usize, escapes: usize, name: &str) -> Option<Range<usize>> {
    let rest = &text[start..];
    let quote = format!("{}\"", "\\".repeat(escapes));
    let Some(inside) = rest.strip_prefix(&*quote) else {
        let length = number_length(rest);
        return (length > 0 && is_secret_number_name(name)).then_some(start..start + length);
    };
    let start = start + quote.len();
    let line = &inside[..inside.find('\n').unwrap_or(inside.len())];
    for (at, _) in line.match_indices('"') {
        let backslashes = at - line[..at].trim_end_matches('\\').len();
        // One more pair of backslashes before the mark stands for one within the value.
        let is_end =
            backslashes <= escapes || (backslashes - escapes).is_multiple_of(2 + 2 * escapes);
        if is_end {
            return Some(start..start + at - backslashes.min(escapes));
        }
    }
    Some(start..start + line.trim_end_matches(['…', '\r']).len())
}

/// Returns the length of the number at the beginning of a text; 0 if a word is there, such as that of a message about a
/// field.
fn number_length(text: &str) -> usize {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    let length = text
        .bytes()
        .take_while(|b| b.is_ascii_digit() || b"+-.eE".contains(b))
        .count();
    if text[length..].starts_with(char::is_alphanumeric) {
        0
    } else {
        length
    }
}

/// Finds the secret fields of forms that are quoted in a text, or begin a line of it.
pub(super) fn find_quoted_form_secrets(text: &str) -> Vec<Range<usize>> {
    let is_end = |c: char| c.is_whitespace() || "\"'`".contains(c);
    let mut all = Vec::new();
    let marks = text.match_indices(['"', '\'', '\n']);
    for start in marks.map(|(mark, _)| mark + 1) {
        let rest = &text[start..];
        let form = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        if is_form(form) {
            let found = find_body_secrets(form).into_iter();
            all.extend(found.map(|(_, value)| start + value.start..start + value.end));
        }
    }
    all
}

/// Returns whether a field of JSON contains a secret as text.
fn is_json_secret(name: &str, value: &str) -> bool {
    is_literal(value) && is_secret_json_field(name, value)
}

/// Returns whether a field of a form contains a secret as text.
fn is_form_secret(name: &str, value: &str) -> bool {
    is_literal(value) && is_secret_form_field(name, value)
}

/// Returns whether a value is text. A value with template fields, or of a variable, is no literal secret.
fn is_literal(value: &str) -> bool {
    let has_fields = value.replace("{{{{", "").contains("{{");
    !value.is_empty() && !has_fields && !is_variable(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_bodies_become_variables() {
        for (body, saved) in [
            (
                r#"{"user":"ada","password" : "h\"us\\","n":1}"#,
                r#"{"user":"ada","password" : "$PLIMSOLL_BODY_PASSWORD","n":1}"#,
            ),
            (
                r#"{"a":{"client_secret":"x:y"},"b":[{"clientSecret":"z"}],"pin":1234}"#,
                r#"{"a":{"client_secret":"$PLIMSOLL_BODY_CLIENT_SECRET"},"b":[{"clientSecret":"$PLIMSOLL_BODY_CLIENTSECRET"}],"pin":$PLIMSOLL_BODY_PIN}"#,
            ),
            (
                "grant_type=refresh_token&refresh_token=r1&client_secret=c%20d",
                "grant_type=refresh_token&refresh_token=$PLIMSOLL_BODY_REFRESH_TOKEN&client_secret=$PLIMSOLL_BODY_CLIENT_SECRET",
            ),
            (
                r#"{"q":"{\"password\":\"a\\\"b\"}"}"#,
                r#"{"q":"{\"password\":\"$PLIMSOLL_BODY_PASSWORD\"}"}"#,
            ),
            ("api_key=x", "api_key=$PLIMSOLL_BODY_API_KEY"),
            (
                "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\nx y\r\n--b--",
                "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\n$PLIMSOLL_BODY_PASSWORD\r\n--b--",
            ),
        ] {
            let mut secrets = BodySecrets::default();
            assert_eq!(secrets.replace_secrets(body), saved);
            assert_eq!(secrets.replace_secrets(saved), saved);
            let variables = secrets.into_variables();
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.clone())
            };
            assert_eq!(fill_body_variables(saved, variable).unwrap(), body);
            let error = fill_body_variables(saved, |_| None).unwrap_err();
            assert!(error.ends_with("is not set"), "{error}");
        }
    }

    #[test]
    fn bodies_without_literal_secrets_stay() {
        for body in [
            "",
            "x",
            r#"{"token":"t-{{uuid}}","key":"k","max_tokens":5,"token":17,"password":""}"#,
            r#"{"error":{"code":"context_length_exceeded","state":"http_404_500"}}"#,
            r#"{"password":null,"session":{"id":"x"},"secret":true}"#,
            r#"unknown field "password": expected a table"#,
            r#"{"pin": 3rd}"#,
            "user=ada&password={{row.password}}",
            "a sentence: password = hush",
            "https://a/?x=1",
            r#"{"password":"$PLIMSOLL_BODY_PASSWORD"}"#,
        ] {
            assert_eq!(BodySecrets::default().replace_secrets(body), body);
        }
    }

    #[test]
    fn variables_of_bodies_are_not_assigned_twice() {
        let mut secrets = BodySecrets::default();
        let saved = r#"{"password":"$PLIMSOLL_BODY_PASSWORD"}"#;
        secrets.reserve_variables(saved);
        let replaced = secrets.replace_secrets(r#"[{"password":"a"},{"password":"b"}]"#);
        let expected = r#"[{"password":"$PLIMSOLL_BODY_PASSWORD_2"},{"password":"$PLIMSOLL_BODY_PASSWORD_3"}]"#;
        assert_eq!(replaced, expected);
        let reserved: Vec<&str> = secrets.reserved_variables().collect();
        assert_eq!(reserved, ["PLIMSOLL_BODY_PASSWORD"]);
        assert_eq!(
            secrets.replace_field("client_secret", "c").as_deref(),
            Some("$PLIMSOLL_BODY_CLIENT_SECRET")
        );
        assert_eq!(secrets.replace_field("comment", "c"), None);
    }
}

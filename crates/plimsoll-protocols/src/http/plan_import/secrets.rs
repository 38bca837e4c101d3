//! Finds secrets of a recording that come from no response. The plan has environment variables or columns of the rows
//! in their place.

use std::collections::BTreeMap;

use plimsoll_model::formats::redaction;

use super::answer_values::to_snake_case;
use super::request_value::{RequestValue, ValueSyntax};
use super::value_classes::{is_credential, is_path_token, split_words};

/// Words in the names of secrets that people type, which may be short.
const PASSWORD_WORDS: [&str; 13] = [
    "cvc",
    "cvv",
    "kennwort",
    "otp",
    "pass",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "pin",
    "pwd",
    "secret",
    "totp",
];

/// Words in the names of credentials that servers issue.
const TOKEN_WORDS: [&str; 6] = [
    "assertion",
    "jsessionid",
    "phpsessid",
    "samlresponse",
    "sid",
    "ticket",
];

/// The minimum length of an authorization code (RFC 6749, section 4.1.2), in bytes. A shorter value with the name
/// `code` is another kind of code.
const MIN_AUTHORIZATION_CODE_BYTES: usize = 16;

/// The minimum length of any other secret, in bytes.
const MIN_SECRET_BYTES: usize = 6;

/// Returns whether a value of a request is secret, judging by its place, name and form.
pub(super) fn is_secret_value(value: &RequestValue) -> bool {
    let text = &*value.value;
    match value.place {
        // A number is secret only under the name of a secret that people type, such as a PIN.
        ValueSyntax::JsonNumber => is_password(&value.name),
        // A path segment is named after the segment before it, which does not show whether the value is secret.
        ValueSyntax::Segment => is_credential(text),
        ValueSyntax::TokenSegment => is_credential(text) || is_path_token(text),
        _ => is_secret_under_name(&value.name, text),
    }
}

/// Returns whether values with this name are secrets that people type.
pub(super) fn is_password(name: &str) -> bool {
    let is_password =
        |word: &String| PASSWORD_WORDS.contains(&word.as_str()) || word.ends_with("password");
    split_words(name).iter().any(is_password)
}

/// Returns whether a value sent under this name is secret.
pub(super) fn is_secret_under_name(name: &str, value: &str) -> bool {
    let words = split_words(name);
    let is_token = |word: &String| word.ends_with("token") || TOKEN_WORDS.contains(&word.as_str());
    let is_token = words.iter().any(is_token);
    let is_grant = name.eq_ignore_ascii_case("code") && value.len() >= MIN_AUTHORIZATION_CODE_BYTES;
    is_password(name)
        || is_credential(value)
        || is_grant
        || (value.len() >= MIN_SECRET_BYTES
            && (is_token || redaction::is_secret_parameter_name(name)))
}

/// The placeholders for a plan's secrets.
#[derive(Debug, Default)]
pub(super) struct SecretPlaceholders {
    /// The prefix of the names of all variables.
    prefix: String,
    /// The secrets, by the names of their variables.
    variables: BTreeMap<String, String>,
    /// The secrets, by the names of their columns.
    columns: BTreeMap<String, String>,
}

impl SecretPlaceholders {
    /// Creates an empty set of placeholders for the plan with this name.
    pub(super) fn new(plan: &str) -> SecretPlaceholders {
        let name = to_snake_case(plan).to_ascii_uppercase();
        let is_usable =
            !name.starts_with("PLIMSOLL") && !name.starts_with(|c: char| c.is_ascii_digit());
        SecretPlaceholders {
            prefix: if is_usable { name } else { "PLAN".to_owned() },
            ..SecretPlaceholders::default()
        }
    }

    /// Returns the environment variable for a secret.
    pub(super) fn assign_variable(&mut self, name: &str, value: &str) -> String {
        let name = format!(
            "{}_{}",
            self.prefix,
            to_snake_case(name).to_ascii_uppercase()
        );
        assign_name(&mut self.variables, &name, value)
    }

    /// Returns the column for a secret that is a value of a request, and chooses the column's name by the value's
    /// place.
    pub(super) fn assign_value_column(&mut self, value: &RequestValue) -> String {
        let is_segment = matches!(
            value.place,
            ValueSyntax::Segment | ValueSyntax::TokenSegment
        );
        match &*value.name {
            "" => self.assign_column("token", &value.value),
            name if is_segment && !split_words(name).contains("token") => {
                self.assign_column(&format!("{name}_token"), &value.value)
            }
            name => self.assign_column(name, &value.value),
        }
    }

    /// Returns the column for a secret.
    pub(super) fn assign_column(&mut self, name: &str, value: &str) -> String {
        assign_name(&mut self.columns, &to_snake_case(name), value)
    }

    /// Returns the variables that the plan needs.
    pub(super) fn variables(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str)
    }

    /// Returns the columns that the plan needs.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// Returns the placeholders of secrets that a text still contains.
    pub(super) fn find_leaked_secrets(&self, text: &str) -> Vec<&str> {
        let all = self.variables.iter().chain(&self.columns);
        let found =
            all.filter(|(_, value)| value.len() >= MIN_SECRET_BYTES && text.contains(&***value));
        found.map(|(name, _)| name.as_str()).collect()
    }
}

/// Returns the name of this value in `known`. Adds the value if it is new; if another value already has the name,
/// appends a number.
fn assign_name(known: &mut BTreeMap<String, String>, name: &str, value: &str) -> String {
    let mut numbered = name.to_owned();
    for number in 2.. {
        let held = known.entry(numbered.clone());
        if held.or_insert_with(|| value.to_owned()) == value {
            break;
        }
        numbered = format!("{name}_{number}");
    }
    numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_or_form() {
        let jwt = format!("eyJ{}.{}.x", "a".repeat(20), "b".repeat(20));
        for (name, value, expected) in [
            ("newPassword", "x", true),
            ("api_key", "abcdefg", true),
            ("csrfmiddlewaretoken", "abcdefg", true),
            ("key", "red", false),
            ("comment", "abcdefg", false),
            ("comment", &*jwt, true),
            ("max_tokens", "100", false),
            ("t", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", true),
        ] {
            assert_eq!(is_secret_under_name(name, value), expected, "{name}");
        }
    }

    #[test]
    fn different_secrets_have_different_names() {
        let mut names = SecretPlaceholders::new("7 shops");
        assert_eq!(
            names.assign_variable("X-Api-Key", "one111"),
            "PLAN_X_API_KEY"
        );
        assert_eq!(
            names.assign_variable("x-api-key", "two222"),
            "PLAN_X_API_KEY_2"
        );
        assert_eq!(
            names.assign_variable("x-api-key", "one111"),
            "PLAN_X_API_KEY"
        );
        assert_eq!(names.assign_column("user[password]", "p"), "user_password");
        assert_eq!(
            names.find_leaked_secrets("a two222 b"),
            ["PLAN_X_API_KEY_2"]
        );
    }
}

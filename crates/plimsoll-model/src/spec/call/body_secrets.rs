//! Replaces the secrets in the bodies of calls by environment variables, as header fields have them, and fills the
//! variables in.
//!
//! A body is any text of a section, except for header fields and URLs, whose secrets have rules of their own.

use toml::{Table, Value};

use super::CallSpec;
use crate::formats::redaction::{BODY_VARIABLE_PREFIX, BodySecrets, fill_body_variables};
use crate::plan::CallPlan;
use crate::spec::{Problems, ResolveContext};

/// Keys of a section or step whose values are no bodies.
const OTHER_KEYS: [&str; 9] = [
    "expect_headers",
    "header",
    "headers",
    "metadata",
    "objective",
    "path",
    "regex",
    "take",
    "target",
];

/// Keys whose tables are messages, so that the keys in them are the names of fields.
const MESSAGE_KEYS: [&str; 2] = ["expect_message", "message"];

/// A function that may change a text of a section, given the text's key in the section, and the name of the field whose
/// value the text is; `None`: the text is a whole body.
type ChangeText<'a> = dyn FnMut(&str, Option<&str>, &mut String) + 'a;

/// Replaces the secrets in the bodies of a section.
pub(in crate::spec) fn replace_body_secrets(section: &mut Table, secrets: &mut BodySecrets) {
    change_texts(section, &mut |_, _, text| secrets.reserve_variables(text));
    change_texts(section, &mut |_, field, text| {
        let replaced = field.and_then(|name| secrets.replace_field(name, text));
        *text = replaced.unwrap_or_else(|| secrets.replace_secrets(text));
    });
}

/// Returns the secrets in the bodies of `typed`, from which `call` was resolved, each with its variable.
pub(in crate::spec) fn collect_body_secrets(
    typed: &CallSpec,
    call: &CallPlan,
    surroundings: &dyn ResolveContext,
) -> Vec<(String, String)> {
    let mut secrets = BodySecrets::default();
    for (protocol, section) in typed.present_sections() {
        // The same text as in a saved plan, so that the same values get the same variables.
        let mut section = (protocol.with_defaults)(section, call);
        replace_body_secrets(&mut section, &mut secrets);
    }
    let reserved: Vec<(String, String)> = secrets
        .reserved_variables()
        .filter_map(|name| Some((name.to_owned(), surroundings.env_variable(name)?)))
        .collect();
    let mut all = secrets.into_variables();
    all.extend(reserved);
    all
}

impl Problems {
    /// Replaces the variables in the bodies of `call` with their values.
    pub(in crate::spec) fn fill_body_variables(
        &mut self,
        call: &mut CallSpec,
        surroundings: &dyn ResolveContext,
    ) {
        for (name, section) in &mut call.sections {
            change_texts(section, &mut |key, _, text| {
                if !text.contains(BODY_VARIABLE_PREFIX) {
                    return;
                }
                let filled = fill_body_variables(text, |name| surroundings.env_variable(name));
                if let Some(filled) = self.ok_or_report(&format!("call.{name}.{key}"), filled) {
                    *text = filled;
                }
            });
        }
    }
}

/// Calls `change` with each text of a section that may be a body, or a part of one.
fn change_texts(section: &mut Table, change: &mut ChangeText<'_>) {
    change_table(section, "", false, change);
}

/// Calls `change` with the texts of the table at the key `place`. `in_message`: the table is a message, or a part of one.
fn change_table(table: &mut Table, place: &str, in_message: bool, change: &mut ChangeText<'_>) {
    // The part of a form has its name and its value under two keys.
    let part = table.get("name").filter(|_| table.contains_key("value"));
    let part = part.and_then(Value::as_str).map(str::to_owned);
    for (key, value) in table.iter_mut() {
        if !in_message && OTHER_KEYS.contains(&key.as_str()) {
            continue;
        }
        let place = match place {
            "" => key.clone(),
            outer => format!("{outer}.{key}"),
        };
        let field = match &part {
            Some(name) if key == "value" => Some(name.as_str()),
            _ => in_message.then_some(key.as_str()),
        };
        let in_message = in_message || MESSAGE_KEYS.contains(&key.as_str());
        change_value(value, (place.as_str(), field), in_message, change);
    }
}

/// Calls `change` with the texts of the value at the key `place`, which is the value of the field `field`.
fn change_value(
    value: &mut Value,
    (place, field): (&str, Option<&str>),
    in_message: bool,
    change: &mut ChangeText<'_>,
) {
    match value {
        Value::String(text) => change(place, field, text),
        Value::Array(values) => {
            for (index, value) in values.iter_mut().enumerate() {
                let place = format!("{place}.{index}");
                change_value(value, (place.as_str(), field), in_message, change);
            }
        }
        Value::Table(table) => change_table(table, place, in_message, change),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use crate::spec::{ResolveContext, plan_secrets, read, resolve};

    /// An environment with two secrets.
    struct SecretContext;

    const SECRETS: [(&str, &str); 2] = [
        ("PLIMSOLL_BODY_CLIENT_SECRET", "hush-two"),
        ("PLIMSOLL_BODY_PASSWORD", "hush-one"),
    ];

    impl ResolveContext for SecretContext {
        fn env_variable(&self, name: &str) -> Option<String> {
            let found = SECRETS.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
        fn read_bytes(&self, _: &Path) -> io::Result<Vec<u8>> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn read(&self, _: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    #[test]
    fn saved_bodies_have_variables() {
        let text = "target = \"grpc://a:1\"\n[call.grpc]\nmethod = \"/a.B/C\"\n\
                    message = { user = \"ada\", password = \"hush-one\", note = '{\"client_secret\":\"hush-two\"}' }\n\
                    [load]\nclients = 1\ncalls = 1\n";
        let typed = read(text).expect("readable");
        assert_eq!(typed.literal_secret_names(), ["body"]);
        assert_eq!(typed.without_secrets().literal_secret_names(), [""; 0]);
        let first = resolve(&typed, &SecretContext).expect("right");
        let secrets = SECRETS.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(plan_secrets(&first), secrets);
        let saved = typed.with_defaults(&first).to_toml().expect("writable");
        assert!(!saved.contains("hush"), "{saved}");
        assert!(saved.contains("$PLIMSOLL_BODY_PASSWORD"), "{saved}");
        // The saved plan is the same run, and is saved as itself.
        let again = read(&saved).expect("readable");
        let resolved = resolve(&again, &SecretContext).expect("right");
        assert_eq!(plan_secrets(&resolved), secrets);
        assert_eq!(again.with_defaults(&resolved).to_toml().unwrap(), saved);
        let unset = read(&text.replace("hush-one", "$PLIMSOLL_BODY_PIN")).expect("readable");
        let problems = resolve(&unset, &SecretContext).expect_err("an unset variable");
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected =
            "`call.grpc.message.password`: the environment variable PLIMSOLL_BODY_PIN is not set";
        assert_eq!(problems, [expected]);
    }
}

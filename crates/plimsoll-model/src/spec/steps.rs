//! `[[steps]]`: a journey's steps. They are at the top level of a plan file, and are moved to the section of their
//! protocol.

use toml::{Table, Value};

use super::protocol;
use super::target::{call_path, section_for_url};
use super::{Problem, Spec};
use crate::formats::redaction::{self, QuerySecrets};

/// The key of the steps, at the top level of a plan and within a section.
pub(super) const STEPS_KEY: &str = "steps";

/// The keys of a step whose URLs may have secrets in their queries, in the order in which secrets are numbered.
pub const URL_KEYS: [&str; 2] = ["path", "target"];

/// Moves the steps of `spec` into the section of their protocol.
///
/// # Errors
/// When the call's protocol has no steps.
pub(super) fn move_steps_into_section(spec: &mut Spec) -> Result<(), Problem> {
    if spec.steps.is_empty() {
        return Ok(());
    }
    let given = spec.call.present_section_names();
    let target = spec.target.as_deref().and_then(section_for_url);
    let wanted = given.first().copied().or(target);
    let with_steps = || protocol::all().filter(|protocol| (protocol.keys)().contains(&STEPS_KEY));
    let found = with_steps()
        .find(|protocol| wanted.is_none_or(|wanted| wanted == protocol.schemes.section));
    let Some(found) = found else {
        let names: Vec<String> = with_steps()
            .map(|protocol| format!("[call.{}]", protocol.schemes.section))
            .collect();
        let problem = format!(
            "[call.{}] has no steps, only {}: give the target a URL of that kind",
            wanted.unwrap_or_default(),
            names.join(", ")
        );
        return Err(Problem::new(STEPS_KEY, problem));
    };
    let steps = std::mem::take(&mut spec.steps).into_iter();
    let steps = Value::Array(steps.map(Value::Table).collect());
    let section = spec.call.sections.entry(found.schemes.section).or_default();
    if section.insert(STEPS_KEY.to_owned(), steps).is_some() {
        let problem = "given twice: write [[steps]] only";
        return Err(Problem::new(STEPS_KEY, problem));
    }
    Ok(())
}

/// Returns the steps of all sections, each with its position in its journey.
pub(super) fn all_steps(spec: &Spec) -> impl Iterator<Item = (usize, &Table)> {
    let sections = spec.call.sections.values();
    let journeys = sections.filter_map(|section| section.get(STEPS_KEY)?.as_array());
    journeys.flat_map(|steps| {
        let tables = steps.iter().enumerate();
        tables.filter_map(|(index, step)| Some((index, step.as_table()?)))
    })
}

/// Replaces the secrets in the queries of a section's steps. A changed step keeps its name: a name that is derived from
/// the path is set explicitly.
pub(super) fn replace_query_secrets(section: &mut Table, secrets: &mut QuerySecrets) {
    let steps = section.get_mut(STEPS_KEY).and_then(Value::as_array_mut);
    for step in steps.into_iter().flatten().filter_map(Value::as_table_mut) {
        let name = step_name(step);
        for key in URL_KEYS {
            let Some(Value::String(url)) = step.get_mut(key) else {
                continue;
            };
            let hidden = secrets.replace_secrets(url);
            if hidden != *url {
                *url = hidden;
                step.insert("name".to_owned(), name.clone().into());
            }
        }
    }
}

/// Returns the name of a step: the given name, or the method of a service without the service, or else method and path
/// of the request without the secrets in its query, or what it does over an open WebSocket.
pub fn step_name(step: &Table) -> String {
    let text = |key: &str| step.get(key).and_then(Value::as_str);
    if let Some(name) = text("name") {
        return name.to_owned();
    }
    if let Some((_, method)) = text("method").and_then(|method| method.rsplit_once('/')) {
        return method.to_owned();
    }
    if let (true, Some(method)) = (step.contains_key("service"), text("method")) {
        return method.to_owned();
    }
    let of_socket = [
        ("send", "send"),
        ("until", "await"),
        ("tokens", "await"),
        ("close", "close"),
    ];
    let mut done = of_socket.iter().filter(|(key, _)| step.contains_key(*key));
    if let (None, Some((_, name))) = (text("path"), done.next()) {
        return (*name).to_owned();
    }
    let has_body = step.contains_key("body") || step.contains_key("body_file");
    let path = text("path").or_else(|| call_path(text("target")?));
    let method = text("method").unwrap_or(if has_body { "POST" } else { "GET" });
    format!(
        "{method} {}",
        redaction::replace_secrets_with_variables(path.unwrap_or("/"))
    )
}

/// Converts the key of a problem to its form in a plan file: `call.http.steps.1.path` becomes `steps.1.path`.
pub(super) fn plan_file_key(key: &str) -> String {
    let mut parts = key.splitn(4, '.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("call"), Some(_), Some(STEPS_KEY), rest) => match rest {
            Some(rest) => format!("{STEPS_KEY}.{rest}"),
            None => STEPS_KEY.to_owned(),
        },
        _ => key.to_owned(),
    }
}

/// Formats a spec as TOML, with its steps at the top level.
///
/// # Errors
/// When a path is not UTF-8.
pub(super) fn to_toml(spec: &Spec) -> Result<String, String> {
    let mut spec = spec.clone();
    for section in spec.call.sections.values_mut() {
        if let Some(Value::Array(steps)) = section.remove(STEPS_KEY) {
            let tables = steps.into_iter().filter_map(|step| match step {
                Value::Table(step) => Some(step),
                _ => None,
            });
            spec.steps = tables.collect::<Vec<Table>>();
        }
    }
    toml::to_string(&spec).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_targets_of_steps_are_hidden() {
        let typed = "[[steps]]\ntarget = \"https://b.test/x?api_key=hush\"\n";
        let mut section: Table = typed.parse().expect("TOML");
        replace_query_secrets(&mut section, &mut QuerySecrets::default());
        let saved = section.to_string();
        assert!(!saved.contains("hush"), "{saved}");
        assert!(saved.contains("$PLIMSOLL_QUERY_API_KEY"), "{saved}");
    }

    #[test]
    fn secrets_of_steps_are_hidden_and_found_again() {
        let typed = "[[steps]]\npath = \"/a?api_key=one&page=2\"\n[[steps]]\npath = \"/b?api_key=two\"\n\
                     [[steps]]\npath = \"/c?api_key=one\"\n[[steps]]\npath = \"/d?api_key=$OWN\"\n";
        let mut section: Table = typed.parse().expect("TOML");
        let mut secrets = QuerySecrets::default();
        let paths = section[STEPS_KEY].as_array().expect("steps").clone();
        paths
            .iter()
            .filter_map(|step| step.get("path")?.as_str())
            .for_each(|path| {
                secrets.replace_secrets(path);
            });
        assert_eq!(
            secrets.into_variables(),
            [
                ("PLIMSOLL_QUERY_API_KEY".to_owned(), "one".to_owned()),
                ("PLIMSOLL_QUERY_API_KEY_2".to_owned(), "two".to_owned()),
            ]
        );
        replace_query_secrets(&mut section, &mut QuerySecrets::default());
        let steps = section[STEPS_KEY].as_array().expect("steps");
        let of = |key: &str| -> Vec<&str> {
            let found = steps.iter().filter_map(|step| step.get(key)?.as_str());
            found.collect()
        };
        assert_eq!(
            of("path"),
            [
                "/a?api_key=$PLIMSOLL_QUERY_API_KEY&page=2",
                "/b?api_key=$PLIMSOLL_QUERY_API_KEY_2",
                "/c?api_key=$PLIMSOLL_QUERY_API_KEY",
                "/d?api_key=$OWN",
            ]
        );
        // Names are those that the record of the run has.
        assert_eq!(
            of("name"),
            [
                "GET /a?api_key=$PLIMSOLL_QUERY_API_KEY&page=2",
                "GET /b?api_key=$PLIMSOLL_QUERY_API_KEY",
                "GET /c?api_key=$PLIMSOLL_QUERY_API_KEY",
            ]
        );
    }
}

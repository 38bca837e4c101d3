//! Parses TOML text to a [`Spec`]. Unknown keys are reported first, all at once.
//!
//! The known keys come from the types themselves, so keys and types always match.

use std::borrow::Cow;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::call::CHECKSUMS_KEY;
use super::lane_table::LaneTable;
use super::problem::reword_list_error;
use super::section_keys::struct_keys;
use super::steps::{self, STEPS_KEY, move_steps_into_section};
use super::{
    ArrivalsTable, CallSpec, FindSpec, LoadSpec, Problem, RampSpec, RowsSpec, Spec, StepSpec,
    TlsSpec, WatchSpec, protocol, suggest,
};

/// Parses the text of a plan file.
///
/// # Errors
/// Returns a syntax error, or else all unknown keys at once, or else the first value of a wrong type.
pub fn read(text: &str) -> Result<Spec, Vec<Problem>> {
    let document = DeTable::parse(text).map_err(|e| vec![from_toml(&e, None)])?;
    let mut problems = Vec::new();
    report_unknown_keys(document.get_ref(), "", &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut spec: Spec =
        toml::from_str(text).map_err(|e| vec![from_toml(&e, Some(document.get_ref()))])?;
    let checked = move_steps_into_section(&mut spec).and_then(|()| {
        let calls = &mut spec.call;
        calls.try_change_sections(|protocol, section| (protocol.check)(section))
    });
    checked.map_err(|mut problem| {
        problem.key = steps::plan_file_key(&problem.key);
        problem.span = find_span(document.get_ref(), &problem.key);
        vec![problem]
    })?;
    Ok(spec)
}

/// Sets the spans of `problems` to the positions of their keys in the text.
pub fn set_spans(text: &str, problems: &mut [Problem]) {
    let Ok(document) = DeTable::parse(text) else {
        return;
    };
    for problem in problems.iter_mut().filter(|p| p.span.is_none()) {
        problem.span = find_span(document.get_ref(), &problem.key);
    }
}

/// Converts a TOML error to a problem; its key is looked up by its span.
fn from_toml(error: &toml::de::Error, document: Option<&DeTable<'_>>) -> Problem {
    let span = error.span();
    let key = match (&span, document) {
        (Some(span), Some(table)) => key_at_span(table, span, ""),
        _ => String::new(),
    };
    let mut problem = Problem::new(key, reword_list_error(error.message()));
    problem.span = span;
    problem
}

/// Returns the dotted key whose value contains `span`.
fn key_at_span(table: &DeTable<'_>, span: &Range<usize>, path: &str) -> String {
    for (key, value) in table {
        let place = value.span();
        if place.start <= span.start && span.end <= place.end {
            let path = join_key(path, key.get_ref());
            return match value.get_ref() {
                DeValue::Table(inner) => {
                    let deeper = key_at_span(inner, span, &path);
                    if deeper.is_empty() { path } else { deeper }
                }
                _ => path,
            };
        }
        // The span of a table that is defined in several parts covers only its header.
        if let DeValue::Table(inner) = value.get_ref() {
            let deeper = key_at_span(inner, span, &join_key(path, key.get_ref()));
            if !deeper.is_empty() {
                return deeper;
            }
        }
    }
    String::new()
}

fn join_key(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Returns the span of the value at `path`, or of the nearest enclosing table that exists.
fn find_span(table: &DeTable<'_>, path: &str) -> Option<Range<usize>> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match value.get_ref() {
        DeValue::Table(inner) => find_span(inner, rest).or_else(|| Some(key.span())),
        DeValue::Array(items) => {
            let (index, within) = rest.split_once('.').unwrap_or((rest, ""));
            let index = index.parse::<usize>().ok();
            let item = index.and_then(|index| items.get(index));
            let span = item.map(|item| match item.get_ref() {
                DeValue::Table(inner) => find_span(inner, within).unwrap_or_else(|| item.span()),
                _ => item.span(),
            });
            span.or_else(|| Some(value.span()))
        }
        _ => Some(value.span()),
    }
}

/// Returns the keys of the table at `path`; `None`: any key is allowed.
fn known_keys(path: &str) -> Option<Cow<'static, [&'static str]>> {
    let keys = match path {
        "call" => {
            let sections = CallSpec::known_section_names();
            return Some(sections.chain([CHECKSUMS_KEY]).collect());
        }
        "" => struct_keys::<Spec>(),
        "tls" => struct_keys::<TlsSpec>(),
        "rows" => struct_keys::<RowsSpec>(),
        "load" => struct_keys::<LoadSpec>(),
        "load.rate" => struct_keys::<RampSpec>(),
        "load.arrivals" => struct_keys::<ArrivalsTable>(),
        "load.steps" => struct_keys::<StepSpec>(),
        "watch" => struct_keys::<WatchSpec>(),
        "find" => struct_keys::<FindSpec>(),
        // A step has the keys of its protocol, which is not known here, so the keys of all protocols are accepted.
        STEPS_KEY => {
            let found = protocol::all().filter_map(|protocol| (protocol.nested_keys)(path));
            let mut keys: Vec<&'static str> = Vec::new();
            for key in found.flatten() {
                if !keys.contains(key) {
                    keys.push(key);
                }
            }
            return Some(keys.into());
        }
        path if path.split('.').next() == Some(STEPS_KEY) => {
            protocol::all().find_map(|protocol| (protocol.nested_keys)(path))?
        }
        path => {
            if let Some(lane) = path.strip_prefix("lanes.") {
                return match lane.split_once('.') {
                    None => Some(struct_keys::<LaneTable>().into()),
                    Some((_, within)) => known_keys(within),
                };
            }
            let path = path.strip_prefix("call.")?;
            match path.split_once('.') {
                None => (protocol::find_by_section(path)?.keys)(),
                Some((section, within)) => {
                    (protocol::find_by_section(section)?.nested_keys)(within)?
                }
            }
        }
    };
    Some(keys.into())
}

fn report_unknown_keys(table: &DeTable<'_>, path: &str, problems: &mut Vec<Problem>) {
    let known = known_keys(path);
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let here = join_key(path, name);
        if let Some(known) = known.as_ref().filter(|known| !known.contains(&name)) {
            let table = if path.is_empty() {
                "at the top of a plan".to_owned()
            } else {
                format!("in [{path}]")
            };
            let mut problem = Problem::new(here, format!("unknown key {table}"));
            problem.help = Some(match suggest(name, known) {
                // The length is `duration` in `[load]`, but `for` in its steps.
                _ if path == "load.steps" && name == "duration" => "did you mean `for`?".to_owned(),
                Some(nearest) => format!("did you mean `{nearest}`?"),
                None => match find_section_with_key(name) {
                    Some((section, key)) if key == name => {
                        format!("`{name}` belongs in [{section}]")
                    }
                    Some((section, key)) => format!("did you mean `{key}` in [{section}]?"),
                    None => format!("the keys here are {}", known.join(", ")),
                },
            });
            problem.span = Some(key.span());
            problems.push(problem);
            continue;
        }
        match value.get_ref() {
            DeValue::Table(inner) => report_unknown_keys(inner, &here, problems),
            DeValue::Array(items) => {
                for inner in items.iter().filter_map(|item| item.get_ref().as_table()) {
                    report_unknown_keys(inner, &here, problems);
                }
            }
            _ => {}
        }
    }
}

/// Returns the section that has a key of this name or a similar one.
fn find_section_with_key(name: &str) -> Option<(String, &'static str)> {
    let mut sections = vec!["load".to_owned()];
    sections.extend(CallSpec::known_section_names().map(|section| format!("call.{section}")));
    sections.extend(["tls", "rows", "watch", "find"].map(str::to_owned));
    let keys: Vec<(String, &'static str)> = sections
        .iter()
        .flat_map(|section| {
            let known = known_keys(section).unwrap_or_default().into_owned();
            known.into_iter().map(|key| (section.clone(), key))
        })
        .collect();
    let key = match keys.iter().find(|(_, key)| *key == name) {
        Some((_, key)) => key,
        None => suggest(name, &keys.iter().map(|(_, key)| *key).collect::<Vec<_>>())?,
    };
    keys.iter().find(|(_, known)| *known == key).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misplaced_key_names_its_section() {
        assert_eq!(find_section_with_key("ca"), Some(("tls".to_owned(), "ca")));
        assert_eq!(
            find_section_with_key("raet"),
            Some(("load".to_owned(), "rate"))
        );
        assert_eq!(find_section_with_key("nothing_like_it"), None);
    }

    #[test]
    fn keys_of_tables_in_lists_have_their_places() {
        let text = "[[steps]]\npath = \"/\"\n[[steps]]\nsend = 3\ntake = { a = 1 }\n";
        let shown = |key: &str| {
            let mut problems = [Problem::new(key, "wrong")];
            set_spans(text, &mut problems);
            problems[0].span.clone().map(|span| &text[span])
        };
        assert_eq!(shown("steps.1.send"), Some("3"));
        assert_eq!(shown("steps.1.take.a"), Some("1"));
        assert_eq!(shown("steps.0.path"), Some("\"/\""));
        assert_eq!(shown("steps.0.gone"), Some("[[steps]]"));
    }

    fn problems(text: &str) -> Vec<String> {
        read(text)
            .expect_err("a wrong plan")
            .iter()
            .map(|p| {
                let at = p.span.clone().map_or("?", |s| &text[s]);
                let help = p.help.as_deref().unwrap_or("");
                format!("{p} [{at}] {help}")
            })
            .collect()
    }

    #[test]
    fn all_unknown_keys_get_suggestions() {
        assert_eq!(
            problems(
                "targt = \"x\"\n[load]\nraet = \"1/s\"\nca = 3\n[call.grpc]\nzzz = 1\n[foo]\n"
            ),
            [
                "`targt`: unknown key at the top of a plan [targt] did you mean `target`?",
                "`load.raet`: unknown key in [load] [raet] did you mean `rate`?",
                "`load.ca`: unknown key in [load] [ca] `ca` belongs in [tls]",
                "`call.grpc.zzz`: unknown key in [call.grpc] [zzz] the keys here are method, message, deadline, metadata",
                "`foo`: unknown key at the top of a plan [foo] the keys here are name, target, seed, requests, traceparent, span_sample, labels, tls, rows, call, steps, load, objective, watch, find, ladder, lanes",
            ]
        );
        assert_eq!(
            problems(
                "[load]\nsteps = [{ rate = \"1/s\", fro = \"10s\", duration = \"1s\" }]\nrate = { form = \"1/s\" }"
            ),
            [
                "`load.steps.fro`: unknown key in [load.steps] [fro] did you mean `for`?",
                "`load.steps.duration`: unknown key in [load.steps] [duration] did you mean `for`?",
                "`load.rate.form`: unknown key in [load.rate] [form] did you mean `from`?",
            ]
        );
    }

    #[test]
    fn missing_unit_error_has_key_and_span() {
        assert_eq!(
            problems("[load]\nrate = \"1/s\"\nduration = 30\n"),
            ["`load.duration`: `30` has no unit: write \"30s\" or \"30ms\" [30] "]
        );
        assert_eq!(
            problems("[load]\nrate = 1000"),
            ["`load.rate`: `1000` has no unit: write \"1000/s\" [1000] "]
        );
        assert_eq!(
            problems("[load]\nrate = { from = \"1/s\", to = 5, over = \"3s\" }"),
            ["`load.rate.to`: `5` has no unit: write \"5/s\" [5] "]
        );
        assert_eq!(
            problems("[load]\nwarmup = \"5 parsecs\""),
            [
                "`load.warmup`: `parsecs` is not a unit of time: use ns, us, ms, s, m or h [\"5 parsecs\"] "
            ]
        );
    }

    #[test]
    fn type_and_syntax_errors_have_spans() {
        let text = "[load]\nclients = \"many\"\n";
        let wrong = read(text).expect_err("a wrong plan");
        assert_eq!(wrong[0].key, "load.clients");
        assert_eq!(&text[wrong[0].span.clone().expect("a place")], "\"many\"");
        let wrong = read("[load\nrate = 1").expect_err("a wrong plan");
        assert!(wrong[0].span.is_some());
        let wrong = read("[load]\nclients = -3").expect_err("a wrong plan");
        assert_eq!(wrong[0].key, "load.clients");
    }

    #[test]
    fn no_text_panics() {
        for text in [
            "",
            "[",
            "a.b.c = 1",
            "load = 3",
            "[call]\ngrpc = []",
            "call.grpc.metadata.x = 3",
            "tls = [[1]]",
            "\u{feff}x",
        ] {
            let _ = read(text);
        }
    }
}

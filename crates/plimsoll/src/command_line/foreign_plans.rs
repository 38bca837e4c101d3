//! Answers `plimsoll run` with a file that is no plan: YAML, JSON, or a file of another tool.

use std::ffi::OsString;
use std::path::Path;

use plimsoll_model::formats::input;
use serde_json::Value;

use crate::command_line::quoting::quote_for_shell;
use crate::command_line::synonyms::command_for_address;
use crate::failure::Failure;

/// Settings of a load: the flag, the unit of a bare number, and the keys that other tools have for it.
const SETTINGS: [(&str, &str, &[&str]); 6] = [
    (
        "--rate",
        "/s",
        &[
            "rate",
            "rps",
            "qps",
            "arrivalRate",
            "arrival_rate",
            "requests_per_second",
        ],
    ),
    (
        "--clients",
        "",
        &[
            "clients",
            "vus",
            "users",
            "concurrency",
            "workers",
            "virtual_users",
        ],
    ),
    ("--connections", "", &["connections"]),
    (
        "--calls",
        "",
        &["calls", "requests", "iterations", "num_requests", "count"],
    ),
    (
        "--duration",
        "s",
        &["duration", "run_time", "runTime", "time"],
    ),
    ("-X", "", &["method"]),
];

/// Keys whose value is the target.
const TARGET_KEYS: [&str; 8] = [
    "target", "url", "base_url", "baseUrl", "host", "endpoint", "address", "uri",
];

/// Answers the words after `run` if the first one names a file in another format; `None` if it may be a plan.
///
/// # Errors
/// When the file is YAML or JSON: the error has the same settings as flags, which write a plan.
pub(crate) fn translate(words: &[&str]) -> Result<Option<Vec<OsString>>, Failure> {
    let Some(file) = words.iter().copied().find(|word| !word.starts_with('-')) else {
        return Ok(None);
    };
    let extension = Path::new(file).extension().and_then(|end| end.to_str());
    let line = |line: &[&str]| Ok(Some(line.iter().map(OsString::from).collect()));
    let format = match extension {
        Some("har") => {
            let plan = format!("{}.toml", file.trim_end_matches(".har"));
            return line(&["import", file, "--out", &plan]);
        }
        Some("jmx") => return line(&["jmeter", "-n", "-t", file]),
        Some("yaml" | "yml") => "YAML",
        Some("json") => "JSON",
        _ => return Ok(None),
    };
    let Ok(text) = input::file_to_string(Path::new(file)) else {
        return Ok(None);
    };
    if text.parse::<toml::Table>().is_ok() {
        return Ok(None);
    }
    if text.contains("scenarios:") || text.contains("phases:") || text.contains("\"scenarios\"") {
        return line(&["artillery", "run", file]);
    }
    if format == "YAML" && text.lines().any(|line| line.starts_with("plan:")) {
        return line(&["drill", "-b", file]);
    }
    if format == "JSON" && text.contains("\"call\"") && text.contains("\"host\"") {
        return line(&["ghz", "--config", file]);
    }
    let settings = if format == "JSON" {
        json_settings(&text)
    } else {
        yaml_settings(&text)
    };
    let ours = load_line(&settings).map_or_else(
        || "any load writes its plan: --save-plan plan.toml".to_owned(),
        |mut ours| {
            // Who only checks a plan starts no load.
            ours.extend(
                words
                    .contains(&"--dry-run")
                    .then(|| OsString::from("--dry-run")),
            );
            format!(
                "the same settings as flags, which write a plan: plimsoll {}",
                quote_for_shell(&ours)
            )
        },
    );
    Err(Failure::usage(
        format_args!("{file}: a plan is TOML, and this is {format}"),
        &ours,
    ))
}

/// Returns the names and values in a JSON text, at any depth.
fn json_settings(text: &str) -> Vec<(String, String)> {
    fn collect(value: &Value, found: &mut Vec<(String, String)>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    match value {
                        Value::String(text) => found.push((name.clone(), text.clone())),
                        Value::Number(number) => found.push((name.clone(), number.to_string())),
                        inner => collect(inner, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    if let Ok(value) = serde_json::from_str(text) {
        collect(&value, &mut found);
    }
    found
}

/// Returns the names and values of the lines `name: value` of a YAML text.
fn yaml_settings(text: &str) -> Vec<(String, String)> {
    let pairs = text.lines().filter_map(|line| {
        let (name, value) = line.trim().trim_start_matches("- ").split_once(':')?;
        let value = value.split(" #").next().unwrap_or_default();
        let value = value.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| (name.trim_matches('"').to_owned(), value.to_owned()))
    });
    pairs.collect()
}

/// Returns the line of a load with the settings, which writes a plan; `None` if they name no target.
fn load_line(settings: &[(String, String)]) -> Option<Vec<OsString>> {
    let find = |keys: &[&str]| {
        let mut all = settings.iter();
        let found = all.find(|(name, _)| keys.contains(&name.as_str()));
        found.map(|(_, value)| value.as_str())
    };
    let target = find(&TARGET_KEYS)?;
    let mut ours = vec![command_for_address(target)?.to_owned(), target.to_owned()];
    for (flag, unit, keys) in SETTINGS {
        let Some(value) = find(keys) else {
            continue;
        };
        let is_default = flag == "-X" && value.eq_ignore_ascii_case("GET");
        // A load with a rate has no clients.
        let is_replaced = flag == "--clients" && ours.iter().any(|word| word == "--rate");
        if is_default || is_replaced {
            continue;
        }
        let unit = if value.parse::<f64>().is_ok() {
            unit
        } else {
            ""
        };
        ours.extend([flag.to_owned(), format!("{value}{unit}")]);
    }
    ours.extend(["--save-plan", "plan.toml"].map(str::to_owned));
    Some(ours.into_iter().map(OsString::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_other_formats_become_flags() {
        plimsoll_protocols::registry::register_protocols();
        let ours = "http http://a.test/ --rate 50/s --duration 2s --save-plan plan.toml";
        for settings in [
            yaml_settings(
                "target: http://a.test/\nrate: 50  # a second\nduration: 2s\nmethod: GET\n",
            ),
            json_settings(
                r#"{"url": "http://a.test/", "load": {"rps": 50, "duration": 2, "vus": 3}}"#,
            ),
        ] {
            let line = load_line(&settings).map(|line| quote_for_shell(&line));
            assert_eq!(line.as_deref(), Some(ours), "{settings:?}");
        }
        assert_eq!(load_line(&yaml_settings("rate: 50\n")), None);
    }

    #[test]
    fn plans_in_other_formats_are_refused() {
        plimsoll_protocols::registry::register_protocols();
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("plan.yaml").display().to_string();
        std::fs::write(&file, "target: http://a.test/\nduration: 2s\n").expect("written");
        let failure = translate(&[&file]).expect_err("YAML");
        assert!(
            failure
                .to_string()
                .contains("a plan is TOML, and this is YAML"),
            "{failure}"
        );
        let failure = translate(&[&file, "--dry-run"]).expect_err("YAML");
        let checked = "--duration 2s --save-plan plan.toml --dry-run";
        assert!(failure.to_string().ends_with(checked), "{failure}");
        std::fs::write(&file, "[load]\nrate = \"5/s\"\n").expect("written");
        assert_eq!(translate(&[&file]).expect("TOML"), None);
        let recording = translate(&["a.har"]).expect("a recording");
        assert!(recording.is_some_and(|line| line[0] == "import"));
    }
}

//! Rewrites flags of other tools that mean something only together, before each flag is replaced on its own.

use std::path::Path;

use clap::Command;
use plimsoll_model::formats::input;

/// Rewrites, in the words after a command, a service and a method as one method, and the stages of an executor of
/// rates as steps. Other words are returned unchanged.
pub(super) fn combine(command: &Command, words: &[&str]) -> Vec<String> {
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let has = |long: &str| (command.get_arguments()).any(|arg| arg.get_long() == Some(long));
    if has("method") && has("metadata") {
        join_service_and_method(&mut words);
    }
    if has("step") {
        stages_to_steps(&mut words);
        rates_to_steps(&mut words);
    }
    if has("http-version") && !has("streams") {
        words = streams_to_clients(&words).unwrap_or(words);
    }
    if has("header") {
        inline_header_files(&mut words, "-H");
    } else if has("metadata") {
        inline_header_files(&mut words, "--metadata");
    }
    words
}

/// Removes a flag with its value, and returns the value.
pub(super) fn take_value(words: &mut Vec<String>, names: &[&str]) -> Option<String> {
    let flag_of = |word: &String| {
        let bare = word.trim_start_matches('-');
        let name = bare.split('=').next().unwrap_or_default().to_owned();
        (bare.len() < word.len()).then_some(name)
    };
    let at = words
        .iter()
        .position(|word| flag_of(word).is_some_and(|name| names.contains(&name.as_str())))?;
    let word = words.remove(at);
    match word.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None if at < words.len() => Some(words.remove(at)),
        None => None,
    }
}

/// Returns the words with the streams of each connection as clients, which share the connections; `None` if the words
/// do not have both numbers.
fn streams_to_clients(words: &[String]) -> Option<Vec<String>> {
    let mut rest = words.to_vec();
    let streams: u64 = take_value(&mut rest, &["streams"])?.parse().ok()?;
    let connections = take_value(&mut rest.clone(), &["c", "connections"])?;
    let clients = streams.checked_mul(connections.parse().ok()?)?;
    rest.extend(["--clients".to_owned(), clients.to_string()]);
    Some(rest)
}

/// Joins `--service a.B --method C` to the method `a.B/C`.
fn join_service_and_method(words: &mut Vec<String>) {
    let is_service = |word: &String| word == "--service" || word.starts_with("--service=");
    if !words.iter().any(is_service) {
        return;
    }
    let service = take_value(words, &["service"]);
    let method = take_value(words, &["method", "m", "call", "rpc"]);
    let joined = match (service, method) {
        (Some(service), Some(method)) if !method.contains(['/', '.']) => {
            format!("{service}/{method}")
        }
        (_, Some(method)) => method,
        (Some(service), None) => service,
        (None, None) => return,
    };
    words.extend(["-m".to_owned(), joined]);
}

/// Turns stages into steps if an executor says that they set a rate: each goes from the rate before to its own.
fn stages_to_steps(words: &mut Vec<String>) {
    let is_executor = |word: &String| word.trim_start_matches('-').starts_with("executor");
    let is_rate = |word: &String| word.contains("arrival-rate");
    if !words.iter().any(is_executor) || !words.iter().any(is_rate) {
        return;
    }
    let mut stages = Vec::new();
    let given = words.clone();
    let mut rest = given.clone();
    while let Some(list) = take_value(&mut rest, &["stage", "stages", "s"]) {
        stages.extend(list.split(',').map(str::to_owned));
    }
    let mut before = take_value(&mut rest, &["start-rate", "startRate"]).unwrap_or("0".to_owned());
    let mut steps = Vec::new();
    for stage in &stages {
        let Some((time, rate)) = stage.split_once(':') else {
            return;
        };
        steps.extend(["--step".to_owned(), format!("{time}:{before}/s..{rate}/s")]);
        rate.clone_into(&mut before);
    }
    if steps.is_empty() {
        return;
    }
    let _ = take_value(&mut rest, &["executor"]);
    rest.extend(steps);
    *words = rest;
}

/// Flags whose value may be several rates, or a first and a last one.
const RATE_FLAGS: [&str; 10] = [
    "rate",
    "rates",
    "rps",
    "qps",
    "tps",
    "request-rate",
    "arrival-rate",
    "ramp",
    "ramp-rate",
    "rate-steps",
];

/// Flags that set the duration of each of several rates.
const STEP_TIME_FLAGS: [&str; 9] = [
    "step-duration",
    "step-time",
    "duration",
    "for",
    "z",
    "time",
    "run-time",
    "test-duration",
    "hold-time",
];

/// Duration of a step if none was typed.
const DEFAULT_STEP_TIME: &str = "10s";

/// Turns several rates, such as `50,100`, into a step for each, and a range, such as `10..100`, into a step that rises.
fn rates_to_steps(words: &mut Vec<String>) {
    let mut rest = words.clone();
    let rates = take_value(&mut rest, &RATE_FLAGS).and_then(|typed| split_rates(&typed));
    let Some(rates) = rates else {
        return;
    };
    let time = take_value(&mut rest, &STEP_TIME_FLAGS);
    let time = time.unwrap_or_else(|| DEFAULT_STEP_TIME.to_owned());
    let unit = if time.parse::<f64>().is_ok() { "s" } else { "" };
    for rate in rates {
        rest.extend(["--step".to_owned(), format!("{time}{unit}:{rate}")]);
    }
    *words = rest;
}

/// Returns the rates of the steps that a list or a range of rates means; `None` for any other value.
pub(super) fn split_rates(text: &str) -> Option<Vec<String>> {
    let rate = |text: &str| {
        let (number, unit) = text.trim().split_once('/').unwrap_or((text.trim(), "s"));
        let is_number = number.parse::<f64>().is_ok_and(|rate| rate >= 0.0);
        (is_number && ["s", "m", "h"].contains(&unit)).then(|| format!("{number}/{unit}"))
    };
    let range = text.split_once("..").or_else(|| text.split_once('-'));
    if let Some((from, to)) = range {
        let to = to.trim_start_matches(['.', '=']);
        return Some(vec![format!("{}..{}", rate(from)?, rate(to)?)]);
    }
    if !text.contains(',') {
        return None;
    }
    text.split(',').map(rate).collect()
}

/// Replaces each file of header fields by its fields. A file that can't be read stays.
fn inline_header_files(words: &mut Vec<String>, flag: &str) {
    const FILE_FLAGS: [&str; 4] = [
        "header-file",
        "headers-file",
        "header_file",
        "metadata-file",
    ];
    let mut rest = words.clone();
    while let Some(file) = take_value(&mut rest, &FILE_FLAGS) {
        let Ok(text) = input::file_to_string(Path::new(&file)) else {
            return;
        };
        let fields = text.lines().map(str::trim);
        for field in fields.filter(|line| line.contains(':') && !line.starts_with('#')) {
            rest.extend([flag.to_owned(), field.to_owned()]);
        }
    }
    *words = rest;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    fn combined(line: &str) -> String {
        plimsoll_protocols::registry::register_protocols();
        let words: Vec<&str> = line.split(' ').collect();
        let root = commands::command();
        let command = root.find_subcommand(words[0]).expect("a command");
        combine(command, &words[1..]).join(" ")
    }

    #[test]
    fn service_and_method_are_one_flag() {
        assert_eq!(
            combined("grpc a:1 --service=a.B --method C -n 5"),
            "a:1 -n 5 -m a.B/C"
        );
        assert_eq!(combined("grpc a:1 --method C"), "a:1 --method C");
    }

    #[test]
    fn several_rates_are_steps() {
        for (line, ours) in [
            (
                "--rate 50,100 --duration 1s",
                "--step 1s:50/s --step 1s:100/s",
            ),
            ("--rps 50/s,6000/m", "--step 10s:50/s --step 10s:6000/m"),
            ("--ramp 10..100 -z 2", "--step 2s:10/s..100/s"),
            ("--rate 10-100 --duration 2s", "--step 2s:10/s..100/s"),
            ("--rate 50 --duration 1s", "--rate 50 --duration 1s"),
            ("--ramp 10s", "--ramp 10s"),
        ] {
            assert_eq!(
                combined(&format!("http http://a {line}")),
                format!("http://a {ours}"),
                "{line}"
            );
        }
    }

    #[test]
    fn header_files_become_fields() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("headers.txt").display().to_string();
        std::fs::write(&file, "X-A: 1\n# none\nX-B: 2\n").expect("written");
        assert_eq!(
            combined(&format!("http http://a --header-file {file}")),
            "http://a -H X-A: 1 -H X-B: 2"
        );
        let missing = "http://a --header-file no/such/file";
        assert_eq!(combined(&format!("http {missing}")), missing);
    }

    #[test]
    fn stages_of_rates_are_steps() {
        assert_eq!(
            combined("http http://a --executor ramping-arrival-rate --stage 5s:50,10s:20"),
            "http://a --step 5s:0/s..50/s --step 10s:50/s..20/s"
        );
        let users = "http://a --stage 5s:50";
        assert_eq!(combined(&format!("http {users}")), users);
    }
}

//! Rewrites flags of other tools that mean something only together, before each flag is replaced on its own.

use clap::Command;

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
    fn stages_of_rates_are_steps() {
        assert_eq!(
            combined("http http://a --executor ramping-arrival-rate --stage 5s:50,10s:20"),
            "http://a --step 5s:0/s..50/s --step 10s:50/s..20/s"
        );
        let users = "http://a --stage 5s:50";
        assert_eq!(combined(&format!("http {users}")), users);
    }
}

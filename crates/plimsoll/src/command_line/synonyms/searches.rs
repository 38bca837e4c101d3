//! Answers lines of `plimsoll find` and `plimsoll ladder` that name an address, with flags of a load, in place of a plan.

use std::collections::BTreeMap;

use clap::Command;
use plimsoll_protocols::registry::{self, COMMAND_ENTRIES};

use super::combined_flags::take_value;
use super::limits::is_time;
use super::{find_counterparts, values, whole_line};
use crate::command_line::possible_translations::find_plimsoll_flag;

/// The plan file in a suggested line.
const PLAN_FILE: &str = "plan.toml";

/// Flags that set the time of a trial or of a step.
const TIME_FLAGS: [&str; 10] = [
    "trial",
    "step-duration",
    "step-time",
    "interval",
    "hold",
    "duration",
    "time",
    "z",
    "run-time",
    "t",
];

/// Flags with a list of rates, and flags with a list of numbers of clients.
const RATE_LIST_FLAGS: [&str; 8] = ["steps", "rates", "rate", "rps", "qps", "levels", "r", "R"];
const CLIENT_LIST_FLAGS: [&str; 8] = [
    "concurrency",
    "clients",
    "vus",
    "users",
    "c",
    "u",
    "connections",
    "parallel",
];

/// Duration of a step if none was typed.
const DEFAULT_STEP_TIME: &str = "10s";
/// Maximum number of steps in a suggested line.
const MAX_STEPS: usize = 20;

/// Returns the line, ready to paste, that does what a line of `find` or `ladder` with one address means; `None` for
/// any other line. `words` begins with the program's name.
pub(crate) fn search_tip(root: &Command, words: &[&str]) -> Option<String> {
    let name = *words.get(1)?;
    let is_help = |word: &&str| ["-h", "--help", "--"].contains(word);
    if words.iter().any(is_help) {
        return None;
    }
    let mut rest: Vec<String> = words[2..].iter().map(|word| (*word).to_owned()).collect();
    let call = CallLine::take_from(root, words[0], &mut rest)?;
    match name {
        "find" => find_line(root, call, rest),
        "ladder" => ladder_line(root, call, rest),
        _ => None,
    }
}

/// Flags with which other tools make a load a search for the highest rate.
const SEARCH_FLAGS: [&str; 9] = [
    "find-max",
    "find-max-rate",
    "find-limit",
    "find-capacity",
    "max-throughput",
    "saturate",
    "auto-rate",
    "autotune",
    "search",
];

/// Returns the lines of a search for a load that has a flag of [`SEARCH_FLAGS`]; `None` for any other line.
pub(super) fn search_flag_tip(root: &Command, unknown: &str, words: &[&str]) -> Option<String> {
    let bare = unknown.trim_start_matches('-');
    if !SEARCH_FLAGS.contains(&bare) {
        return None;
    }
    let (program, rest) = words.split_first()?;
    let mut search = vec![*program, "find"];
    let is_search = |word: &&&str| word.split('=').next() == Some(unknown);
    search.extend(rest.iter().filter(|word| !is_search(word)));
    search_tip(root, &search)
}

/// The command of a call and its target.
struct CallLine<'a> {
    program: &'a str,
    command: String,
    target: String,
}

impl<'a> CallLine<'a> {
    /// Takes the call's command and its only address from the words; `None` if there is not exactly one address.
    fn take_from(root: &Command, program: &'a str, words: &mut Vec<String>) -> Option<Self> {
        let is_command = |word: &String| COMMAND_ENTRIES.iter().any(|entry| entry.name == *word);
        let typed = (words.first().is_some_and(is_command)).then(|| words.remove(0));
        let find = root.find_subcommand("find")?;
        let mut addresses = Vec::new();
        let mut is_value = false;
        for (at, word) in words.iter().enumerate() {
            let is_flag = word.len() > 1 && word.starts_with('-');
            if !is_flag && !is_value && is_address(word) {
                addresses.push(at);
            }
            let own = find_plimsoll_flag(find, word);
            is_value = is_flag && own.is_some_and(|own| own.takes_value);
        }
        let [at] = addresses[..] else {
            return None;
        };
        let target = words.remove(at);
        let command = typed.or_else(|| Some(command_for_address(&target)?.to_owned()))?;
        Some(CallLine {
            program,
            command,
            target,
        })
    }

    /// Returns the line of a load on the target, without the program's name.
    fn with_flags(&self, root: &Command, flags: &[String]) -> Option<String> {
        let mut line = vec![self.program, &self.command, &self.target];
        line.extend(flags.iter().map(String::as_str));
        let replaced = whole_line::replace_flags(root, &line)?;
        Some(format!("plimsoll {}", replaced.text))
    }
}

/// Returns whether a word is a URL or HOST:PORT, with or without a path.
fn is_address(word: &str) -> bool {
    if let Some((scheme, _)) = word.split_once("://") {
        return !scheme.contains('=');
    }
    let authority = word.split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':');
    port.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// Returns the command for a URL, or for an address without a scheme.
pub(crate) fn command_for_address(address: &str) -> Option<&'static str> {
    registry::command_for_url(address).or_else(|| {
        let is_bare = !address.contains("://") && is_address(address);
        is_bare.then(registry::command_for_bare_address)
    })
}

/// Returns the lines that write a plan for a target and search for the highest rate of the plan.
fn find_line(root: &Command, call: CallLine<'_>, words: Vec<String>) -> Option<String> {
    let find = root.find_subcommand("find")?;
    let mut search = Vec::new();
    let mut load = Vec::new();
    let mut left = words.into_iter().peekable();
    while let Some(word) = left.next() {
        let (flag, attached) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => {
                (flag.to_owned(), Some(value.to_owned()))
            }
            _ => (word.clone(), None),
        };
        let bare = flag.trim_start_matches('-').to_owned();
        let next = left.peek().filter(|next| !next.starts_with('-')).cloned();
        let value = attached.clone().or(next);
        let Some(value) = value.filter(|_| flag.starts_with('-')) else {
            load.push(word);
            continue;
        };
        let ours = if TIME_FLAGS.contains(&bare.as_str()) {
            Some("--trial {TIME}")
        } else if flag == "--objective" {
            Some("--objective {LIMIT}")
        } else {
            let mut found = find_counterparts(&bare).filter(|ours| is_search_flag(ours));
            found.find(|ours| values::value_fits(ours, Some(&value)))
        };
        let is_own =
            || ["--precision", "--budget", "--most", "--least", "--users"].contains(&flag.as_str());
        match ours {
            Some(ours) => search.push(values::fill_placeholder(ours, Some(&value))),
            None if is_own() && find_plimsoll_flag(find, &flag).is_some() => {
                search.push(format!("{flag} {}", shell_words::quote(&value)));
            }
            None => {
                load.push(word);
                if attached.is_none() {
                    load.extend(left.next());
                }
                continue;
            }
        }
        if attached.is_none() {
            left.next();
        }
    }
    if !search.iter().any(|flag| flag.starts_with("--objective")) {
        search.insert(0, "--objective 'p99 < 10ms'".to_owned());
    }
    let sets_load = |word: &String| {
        word.starts_with('-') && ["rate", "rps", "qps", "r"].contains(&word.trim_start_matches('-'))
    };
    if !load.iter().any(sets_load) {
        load.extend(["--rate".to_owned(), "100/s".to_owned()]);
    }
    load.extend(["--duration".to_owned(), DEFAULT_STEP_TIME.to_owned()]);
    load.extend([
        "--save-plan".to_owned(),
        PLAN_FILE.to_owned(),
        "--dry-run".to_owned(),
    ]);
    let plan = call.with_flags(root, &load)?;
    Some(format!(
        "a search takes a plan, which a load writes: {plan} && plimsoll find {PLAN_FILE} {}",
        search.join(" ")
    ))
}

/// Returns whether a counterpart is a flag of a search.
fn is_search_flag(ours: &str) -> bool {
    let flags = ["--objective {", "--most", "--least", "--budget"];
    flags.iter().any(|flag| ours.starts_with(flag))
}

/// Returns the line of a load with steps, or a line for each number of clients.
fn ladder_line(root: &Command, call: CallLine<'_>, mut words: Vec<String>) -> Option<String> {
    let time = take_value(&mut words, &TIME_FLAGS).or_else(|| take_step_time(&mut words));
    let time = time.map(|time| {
        if time.parse::<f64>().is_ok() {
            format!("{time}s")
        } else {
            time
        }
    });
    let time = time.unwrap_or(DEFAULT_STEP_TIME.to_owned());
    let clients = take_value(&mut words, &CLIENT_LIST_FLAGS);
    if let Some(list) = clients {
        let lines = list.split(',').map(|count| {
            let mut flags = words.clone();
            flags.extend(["--clients", count, "--duration", &time].map(str::to_owned));
            call.with_flags(root, &flags)
        });
        let lines = lines.collect::<Option<Vec<String>>>()?;
        return Some(format!(
            "each number of clients is a load of its own: {}",
            lines.join(" && ")
        ));
    }
    let rates = match take_value(&mut words, &RATE_LIST_FLAGS) {
        Some(list) => list.split(',').map(str::to_owned).collect(),
        None => take_rate_range(&mut words)?,
    };
    for rate in rates {
        let unit = if rate.parse::<f64>().is_ok() {
            "/s"
        } else {
            ""
        };
        words.extend(["--step".to_owned(), format!("{time}:{rate}{unit}")]);
    }
    Some(format!(
        "several rates at one target are the steps of a load: {}",
        call.with_flags(root, &words)?
    ))
}

/// Takes a step that is a time and no increment of the rate.
fn take_step_time(words: &mut Vec<String>) -> Option<String> {
    let mut rest = words.clone();
    let time = take_value(&mut rest, &["step"]).filter(|value| is_time(value))?;
    *words = rest;
    Some(time)
}

/// Takes a first rate, an increment and a last rate from the words, and returns all rates.
fn take_rate_range(words: &mut Vec<String>) -> Option<Vec<String>> {
    let mut numbers = BTreeMap::new();
    for (key, names) in [
        (
            "start",
            &["start", "from", "min", "min-rate", "start-rate"][..],
        ),
        ("step", &["step", "by", "increment", "step-size"]),
        ("end", &["end", "to", "max", "max-rate", "end-rate"]),
    ] {
        let value: f64 = take_value(words, names)?.parse().ok()?;
        numbers.insert(key, value);
    }
    let (start, step, end) = (numbers["start"], numbers["step"], numbers["end"]);
    let count = ((end - start) / step).floor() + 1.0;
    let is_valid = step > 0.0 && count >= 1.0 && count <= MAX_STEPS as f64;
    is_valid.then(|| {
        (0..count as usize)
            .map(|at| (start + step * at as f64).to_string())
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    fn tip(line: &str) -> Option<String> {
        plimsoll_protocols::registry::register_protocols();
        let words = shell_words::split(&format!("plimsoll {line}")).expect("words of a shell");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        search_tip(&commands::command(), &words)
    }

    #[test]
    fn address_searches_write_a_plan() {
        for (line, ours) in [
            (
                "find http://a.test/ --slo 'p95<80ms' --max-rate 900",
                "plimsoll http http://a.test/ --rate 100/s --duration 10s --save-plan plan.toml --dry-run && \
                 plimsoll find plan.toml --objective 'p95 < 80ms' --most 900/s",
            ),
            (
                "find grpc a.test:1 -m a.B/C -d '{}' --p99 30ms --min 5 --max 90 --duration 2s",
                "plimsoll grpc a.test:1 -m a.B/C -d {} --rate 100/s --duration 10s --save-plan plan.toml --dry-run && \
                 plimsoll find plan.toml --objective 'p99 < 30ms' --least 5/s --most 90/s --trial 2s",
            ),
        ] {
            let said = tip(line).expect(line);
            assert!(said.ends_with(ours), "{line}: {said}");
        }
        assert_eq!(tip("find plan.toml --objective 'p99 < 1s'"), None);
        let line = [
            "plimsoll",
            "http",
            "http://a.test/",
            "--find-max",
            "--p99",
            "50ms",
        ];
        let said = search_flag_tip(&commands::command(), "--find-max", &line).expect("lines");
        assert!(
            said.ends_with("plimsoll find plan.toml --objective 'p99 < 50ms'"),
            "{said}"
        );
    }

    #[test]
    fn rate_ladders_are_load_steps() {
        for (line, ours) in [
            (
                "ladder http://a.test/ --rates 5,10 --duration 2s -H 'x-a: b'",
                "plimsoll http http://a.test/ -H 'x-a: b' --step 2s:5/s --step 2s:10/s",
            ),
            (
                "ladder http://a.test/ --start 20 --step 20 --end 60 --step-duration 3s",
                "plimsoll http http://a.test/ --step 3s:20/s --step 3s:40/s --step 3s:60/s",
            ),
            (
                "ladder http://a.test/ --rates 50,100 --step 1s",
                "plimsoll http http://a.test/ --step 1s:50/s --step 1s:100/s",
            ),
            (
                "ladder grpc a.test:1 --call a.B.C -d '{}' --concurrency 2,8 -z 3s",
                "plimsoll grpc a.test:1 --call a.B.C -d {} --clients 2 --duration 3s && \
                 plimsoll grpc a.test:1 --call a.B.C -d {} --clients 8 --duration 3s",
            ),
        ] {
            let said = tip(line).expect(line);
            assert!(said.ends_with(ours), "{line}: {said}");
        }
        assert_eq!(tip("ladder http://a.test/ http://b.test/ --rate 5/s"), None);
    }
}

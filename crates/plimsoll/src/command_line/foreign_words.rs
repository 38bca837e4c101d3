//! Translates command lines of other tools into Plimsoll's before clap parses them: single flags, and whole lines.
//!
//! A flag with exactly the same meaning is a clap alias, defined with the flag. This module has the flags whose values
//! are bare numbers or are written in another tool's format. A translated line is printed for the user to reuse.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;

use plimsoll_model::formats::quantity::plural;
use plimsoll_model::spec::UrlSchemes;
use plimsoll_protocols::interface::foreign::ForeignTool;
use plimsoll_protocols::registry::{self, COMMAND_ENTRIES};

use crate::command_line::bare_words;
use crate::command_line::foreign_commands;
use crate::command_line::foreign_lines;
use crate::command_line::piped_report;
use crate::command_line::quoting;
use crate::failure::Failure;
use crate::screen::console;

/// Translates the words into Plimsoll's own flags.
///
/// # Errors
/// When a word of another tool's line has no counterpart in Plimsoll, or a value is negative.
pub(crate) fn translate(words: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let (Some(program), Some(command)) = (words.first(), words.get(1).and_then(|w| w.to_str()))
    else {
        return Ok(words);
    };
    let program = program.clone();
    // The tool's name may follow a launcher, as in `openssl s_time` and `python3 summarize.py`.
    let theirs = &words[1 + launcher_length(&words[1..])..];
    let line = match (
        registry::translate_foreign_command(theirs),
        translate_script(theirs)?,
    ) {
        (Some(line), _) => Some(line?.into_iter().map(OsString::from).collect()),
        (None, Some(line)) => Some(line),
        (None, None) => match add_missing_command(&words[1..])? {
            Some(line) => Some(line),
            None => match piped_report::translate(theirs)? {
                Some(line) => Some(line),
                None => match translate_command(theirs)? {
                    Some(line) => Some(line),
                    None => bare_words::translate(theirs)?,
                },
            },
        },
    };
    if let Some(line) = line {
        console::print_notice(format_args!(
            "as: plimsoll {}",
            quoting::quote_for_shell(&line)
        ));
        return translate(std::iter::once(program).chain(line).collect());
    }
    if let [program, command, word] = &words[..]
        && word == "help"
        && command != "help"
        && !Path::new(word).exists()
    {
        return Ok(vec![program.clone(), command.clone(), "--help".into()]);
    }
    reject_negative_values(&words)?;
    let Some(entry) = COMMAND_ENTRIES.iter().find(|entry| entry.name == command) else {
        return Ok(translate_numbers(translate_live_compare(words), None));
    };
    let synonym = |word: OsString| match entry.synonyms.iter().find(|(theirs, _)| word == *theirs) {
        Some((_, ours)) => (*ours).into(),
        None => word,
    };
    let words = words.into_iter().map(synonym).collect();
    let tool = entry.foreign_tool.map(|tool| (tool, entry.schemes().plain));
    Ok(translate_numbers(words, tool))
}

/// Translates a command of another tool, or a whole line of one.
fn translate_command(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    match foreign_commands::translate(words)? {
        Some(line) => Ok(Some(line)),
        None => foreign_lines::translate(words),
    }
}

/// Programs that start a tool named by their first argument.
const LAUNCHERS: [&str; 9] = [
    "openssl", "python3", "python", "bash", "npx", "bunx", "uvx", "sudo", "time",
];

/// Programs that start a tool by a command of theirs. Their own flags come before the tool's name.
const LAUNCHER_COMMANDS: [(&str, &str); 6] = [
    ("docker", "run"),
    ("podman", "run"),
    ("uv", "run"),
    ("pipx", "run"),
    ("pnpm", "dlx"),
    ("yarn", "dlx"),
];

/// Returns the number of words before the tool's name.
fn launcher_length(words: &[OsString]) -> usize {
    let texts: Vec<String> = (words.iter())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let [first, rest @ ..] = &texts[..] else {
        return 0;
    };
    if LAUNCHERS.contains(&first.as_str()) {
        return 1;
    }
    let is_launcher = |command: &String| LAUNCHER_COMMANDS.contains(&(first, command));
    if !rest.first().is_some_and(is_launcher) {
        return 0;
    }
    let names_tool = |at: &usize| {
        registry::find_foreign_line(&texts[*at..]).is_some_and(|line| !line.is_guessed())
    };
    (2..texts.len()).find(names_tool).unwrap_or(0)
}

/// Known load test scripts, with the command that accepts their flags and files.
const KNOWN_LOAD_SCRIPTS: [(&str, &[&str]); 4] = [
    ("grcp_clients.py", &[]),
    ("run_loadtest.sh", &["stack", "run", "sessions"]),
    ("analyze_results.py", &["import"]),
    ("summarize.py", &["import"]),
];

/// Translates a script's line; `None` if the line runs no known script. `words` starts with the script's path.
///
/// # Errors
/// When the line lacks a required argument.
fn translate_script(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let Some((script, flags)) = words.split_first() else {
        return Ok(None);
    };
    let name = Path::new(script).file_name().unwrap_or_default();
    let Some((name, command)) = KNOWN_LOAD_SCRIPTS.iter().find(|(known, _)| name == *known) else {
        return Ok(None);
    };
    if command == &["import"] && flags.is_empty() {
        return Err(Failure::usage(
            format_args!("{name}: the results' file is missing"),
            "write it after the script: plimsoll import FILE makes a run of it and prints its report",
        ));
    }
    if command.is_empty() {
        // The script can call any service, so find the command by the flags, or report that the command is missing.
        return add_missing_command(flags);
    }
    let command = command.iter().map(OsString::from);
    Ok(Some(command.chain(flags.iter().cloned()).collect()))
}

/// Adds the Plimsoll command to flags of another tool that were typed without a command, or after that tool's name.
fn add_missing_command(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let has = |start: &str| {
        let mut bare = texts.iter().map(|text| text.trim_start_matches('-'));
        bare.any(|text| text.starts_with(start))
    };
    let lacks = |command: &str| texts.iter().all(|text| text != command);
    let first = texts.first().map_or("", |first| first);
    let tools = || {
        let all = COMMAND_ENTRIES.iter();
        all.filter_map(|entry| Some((entry.name, entry.foreign_tool?)))
    };
    let of_tool = tools().find(|(_, tool)| tool.name == first);
    if of_tool.is_none() && !first.starts_with('-') {
        return Ok(None);
    }
    let marked = || tools().find(|(command, tool)| has(tool.protocol) && lacks(command));
    let (command, flags): (&[&str], _) = if let Some((command, _)) = of_tool {
        (&[command], &words[1..])
    } else if let Some((command, _)) = marked() {
        (&[command], words)
    } else if has("wsproxy-instances") && lacks("stack") {
        (&["stack", "run", "sessions"], words)
    } else if has(SCRIPT_CLIENTS_FLAG.trim_start_matches('-'))
        && texts.iter().all(|text| !text.contains("://"))
    {
        let UrlSchemes { section, plain, .. } = registry::default_schemes();
        return Err(Failure::usage(
            format_args!("{SCRIPT_CLIENTS_FLAG}: the command and the service are missing"),
            &format!(
                "write them before the flags: plimsoll {section} {plain}://HOST:PORT -m PACKAGE.SERVICE/METHOD"
            ),
        ));
    } else {
        return Ok(None);
    };
    let command = command.iter().map(OsString::from);
    Ok(Some(command.chain(flags.iter().cloned()).collect()))
}

/// Translates `compare --live` into `ladder`, which takes the same arguments.
fn translate_live_compare(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_live = |word: &OsString| word == "--live";
    if words.get(1).is_some_and(|word| word == "compare") && words.iter().any(is_live) {
        words.retain(|word| !is_live(word));
        words[1] = "ladder".into();
    }
    words
}

/// Rejects negative values, which clap would parse as flags.
fn reject_negative_values(words: &[OsString]) -> Result<(), Failure> {
    for pair in words.windows(2) {
        let (Some(flag), Some(value)) = (pair[0].to_str(), pair[1].to_str()) else {
            continue;
        };
        if flag == "--" {
            break;
        }
        let is_flag = flag.starts_with('-') && !flag.contains('=');
        let number = value
            .strip_prefix('-')
            .filter(|rest| starts_like_number(rest));
        if let Some(number) = number.filter(|_| is_flag) {
            return Err(Failure::usage(
                format_args!("{flag}: `{value}` is negative"),
                &format!("write it without the sign, such as {flag} {number}"),
            ));
        }
    }
    Ok(())
}

fn starts_like_number(text: &str) -> bool {
    let text = text.strip_prefix('.').unwrap_or(text);
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// Other tools' flags that take a bare number, whose unit the flag implies: the flag, Plimsoll's flag, and the unit.
const FLAGS_WITH_UNIT: [(&str, &str, &str); 2] =
    [("--rps", "--rate", "/s"), ("--qps", "--rate", "/s")];

/// The flag of the load script `grcp_clients.py` that sets its number of clients. The script prints progress each time
/// that a fixed number of calls has ended, so its translation sets `--progress-every`.
const SCRIPT_CLIENTS_FLAG: &str = "--no-of-clients";

/// Translates flags with bare numbers. `tool`: the tool whose flags the command accepts, and the scheme to use in its
/// URLs.
fn translate_numbers(words: Vec<OsString>, tool: Option<(&ForeignTool, &str)>) -> Vec<OsString> {
    let mut left = VecDeque::from(words);
    let mut ours: Vec<OsString> = Vec::new();
    let (mut is_fleet, mut has_progress) = (false, false);
    let mut threads = None;
    while let Some(word) = left.pop_front() {
        let Some(text) = word.to_str() else {
            ours.push(word);
            continue;
        };
        if text == "--" {
            ours.push(word);
            ours.extend(left);
            break;
        }
        let (flag, attached) = match text.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (text.to_owned(), None),
        };
        is_fleet |= flag == SCRIPT_CLIENTS_FLAG;
        has_progress |= flag == "--progress-every";
        let of_tool = tool.into_iter().flat_map(|(tool, _)| tool.number_flags);
        let mut known = FLAGS_WITH_UNIT.iter().chain(of_tool);
        if let Some((_, own, unit)) = known.find(|(name, ..)| *name == flag) {
            let value = attached.map(OsString::from).or_else(|| left.pop_front());
            ours.push((*own).into());
            ours.extend(value.map(|value| with_unit(value, unit)));
        } else if let Some((tool, _)) = tool
            && flag == tool.threads_flag
            && let Some(number) = attached
                .as_deref()
                .or(left.front().and_then(|word| word.to_str()))
            && let Ok(number) = number.parse::<u16>()
        {
            threads = Some(number);
            if attached.is_none() {
                left.pop_front();
            }
        } else if let Some((tool, _)) = tool
            && flag == "-p"
            && left.front().is_some_and(|value| value == tool.protocol)
        {
            left.pop_front();
        } else if let Some((tool, scheme)) = tool
            && let Some((theirs, rest)) = text.split_once("://")
            && theirs == tool.protocol
        {
            ours.push(format!("{scheme}://{rest}").into());
        } else {
            ours.push(word);
        }
    }
    if is_fleet && !has_progress {
        ours.extend(["--progress-every".into(), "1000".into()]);
    }
    if let Some(threads) = threads {
        translate_threads(&mut ours, threads);
    }
    ours
}

/// Translates another tool's number of threads into a minimum number of connections. Plimsoll's event loops carry
/// thousands of connections each, and more loops than cores would distort the measurement.
fn translate_threads(ours: &mut Vec<OsString>, threads: u16) {
    let sets_connections = |word: &OsString| {
        let text = word.to_string_lossy();
        let flag = text.split('=').next().unwrap_or_default();
        let is_short = flag.starts_with("-c") && !flag.starts_with("--");
        is_short
            || [
                "--connections",
                "--clients",
                "--fleet",
                SCRIPT_CLIENTS_FLAG,
                "--cold",
            ]
            .contains(&flag)
    };
    let given = ours.iter().take_while(|word| *word != "--");
    if threads > 1 && !given.clone().any(sets_connections) {
        let end = given.count();
        let connections = ["--connections".into(), threads.to_string().into()];
        ours.splice(end..end, connections);
    }
    console::print_notice(format_args!(
        "{}: taken as a minimum number of connections; plimsoll chooses the number of workers itself (--workers {threads} sets it)",
        plural(u64::from(threads), "thread")
    ));
}

/// Appends `unit` to a value that is a bare number.
fn with_unit(value: OsString, unit: &str) -> OsString {
    match value.to_str() {
        Some(text) if text.parse::<f64>().is_ok() => format!("{text}{unit}").into(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn become_ours(line: &str) -> Result<String, String> {
        let words = std::iter::once("plimsoll").chain(line.split_whitespace());
        match translate(words.map(OsString::from).collect()) {
            Ok(words) => {
                let words = words.iter().skip(1).map(|w| w.to_string_lossy());
                Ok(words.collect::<Vec<_>>().join(" "))
            }
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn command_lines_of_other_tools_are_translated() {
        for (theirs, expected) in [
            (
                "bolt -D 10 --qps=2000 -c 200 -t 16 -p sofarpc sofarpc://127.0.0.1:12200",
                "bolt --duration 10s --rate 2000/s -c 200 sofa://127.0.0.1:12200",
            ),
            (
                "s_time -connect localhost:4433 -www /test_1k.html -time 30 -ciphersuites TLS_AES_128_GCM_SHA256 -tls1_3 -new",
                "fetch https://localhost:4433/test_1k.html --mode new --clients 1 --duration 30s --insecure \
                 --suite TLS_AES_128_GCM_SHA256 --tls-version 1.3",
            ),
            (
                "s_time -connect localhost:4433 -www test.html -CAfile ca.crt -reuse",
                "fetch https://localhost:4433/test.html --mode resumed --clients 1 --duration 30s --ca ca.crt",
            ),
            (
                "s_server -accept 4433 -cert server.crt -key server.key -WWW",
                "serve files . --listen 0.0.0.0:4433 --tls-cert server.crt --tls-key server.key",
            ),
            ("generate_html.sh f.html 10", "payload 10KiB f.html"),
            (
                "openssl s_time -connect a:1 -www x -CAfile ca.crt -new -time 3",
                "fetch https://a:1/x --mode new --clients 1 --duration 3s --ca ca.crt",
            ),
            (
                "s_time -connect a:1 -new -time 10",
                "fetch https://a:1 --mode new --handshake-only --clients 1 --duration 10s --insecure",
            ),
            (
                "s_time -connect a:1 -tls1_2 -CAfile ca.crt",
                "fetch https://a:1 --mode both --handshake-only --clients 1 --duration 30s --tls-version 1.2 --ca ca.crt",
            ),
            (
                "-D 10 --qps=2000 -c 200 -t 16 -p sofarpc 127.0.0.1:12200",
                "bolt --duration 10s --rate 2000/s -c 200 127.0.0.1:12200",
            ),
            (
                "sofaload -t 16 --qps=100 sofarpc://a:1",
                "bolt --rate 100/s sofa://a:1 --connections 16",
            ),
            ("bolt -t 1 sofa://a:1", "bolt sofa://a:1"),
            (
                "bolt -t=4 --fleet 9 sofa://a:1",
                "bolt --fleet 9 sofa://a:1",
            ),
            ("bolt -t many sofa://a:1", "bolt -t many sofa://a:1"),
            (
                "sofaload -D 10 sofarpc://a:1",
                "bolt --duration 10s sofa://a:1",
            ),
            (
                "--clients 2 --queries 3 --wsproxy-instances 1",
                "stack run sessions --clients 2 --queries 3 --wsproxy-instances 1",
            ),
            (
                "bash ./run_loadtest.sh --clients 2 --fastapi-workers 4",
                "stack run sessions --clients 2 --fastapi-workers 4",
            ),
            (
                "python3 analyze_results.py results/x.csv",
                "import results/x.csv",
            ),
            ("scripts/summarize.py out.txt", "import out.txt"),
            ("-q bolt sofarpc://a:1", "-q bolt sofarpc://a:1"),
            (
                "grpc URL --no-of-clients=100000 --count=1000000",
                "grpc URL --no-of-clients=100000 --count=1000000 --progress-every 1000",
            ),
            ("grpc URL --rps 500 -z 3s", "grpc URL --rate 500/s -z 3s"),
            ("grpc URL --qps 500/m", "grpc URL --rate 500/m"),
            // These words are values, not flags.
            ("grpc URL -- --rps 500", "grpc URL -- --rps 500"),
            ("grpc URL -D 10", "grpc URL -D 10"),
            ("payload help", "payload --help"),
            ("help payload", "help payload"),
        ] {
            assert_eq!(become_ours(theirs).as_deref(), Ok(expected), "{theirs}");
        }
    }

    #[test]
    fn unsupported_foreign_flags_are_reported() {
        for (theirs, why) in [
            ("s_time -time 10", "-connect is needed"),
            ("s_time -connect a:1", "without -www"),
            ("s_time -connect a:1 -reuse -tls1_3", "without -www"),
            ("s_time -verify 1", "`-verify` is not supported"),
            ("s_time -time", "the value is missing"),
            ("s_time -time 1m", "`1m` is not a number"),
            ("s_server -accept 1 -www", "`-www` is not supported"),
            ("s_server -accept 1", "without -WWW"),
            ("s_server -Verify 1 -WWW", "needs -CAfile"),
            ("generate_html.sh f 1k", "takes a file and its size"),
            (
                "--no-of-clients=100000 --count=1000000",
                "the command and the service are missing",
            ),
            (
                "python3 grcp_clients.py --no-of-clients=100000 --count=1000000",
                "the command and the service are missing",
            ),
            ("python3 summarize.py", "the results' file is missing"),
            (
                "grpc URL --duration -5s",
                "--duration: `-5s` is negative; write it without the sign, such as --duration 5s",
            ),
            ("grpc URL -z -.5s", "-z: `-.5s` is negative"),
        ] {
            let said = become_ours(theirs).expect_err(theirs);
            assert!(said.contains(why), "{theirs}: {said}");
        }
    }
}

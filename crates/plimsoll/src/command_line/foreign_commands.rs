//! Translates commands of other tools that Plimsoll calls by another name, such as `diff`, `search` and `replay`, flags
//! in front of the command, and plans in other formats than TOML.

use std::ffi::OsString;

use plimsoll_protocols::registry::{self, COMMAND_ENTRIES};

use crate::command_line::foreign_plans;
use crate::command_line::possible_translations::find_plimsoll_flag;
use crate::command_line::synonyms::command_for_address;
use crate::commands;
use crate::failure::Failure;

/// Commands of Plimsoll, each with the names that other tools have for the same.
const RENAMED_COMMANDS: [(&str, &[&str]); 11] = [
    (
        "compare",
        &[
            "diff",
            "delta",
            "cmp",
            "benchcmp",
            "benchstat",
            "regression",
        ],
    ),
    (
        "find",
        &[
            "search",
            "capacity",
            "find-max",
            "max-rate",
            "max-throughput",
            "saturate",
            "saturation",
            "breakpoint",
            "autotune",
            "knee",
        ],
    ),
    (
        "import",
        &[
            "har",
            "convert",
            "har2plan",
            "openapi",
            "swagger",
            "postman",
            "recording",
        ],
    ),
    (
        "report",
        &[
            "show",
            "summary",
            "summarize",
            "summarise",
            "stats",
            "histogram",
            "percentiles",
            "plot",
            "graph",
            "chart",
        ],
    ),
    (
        "view",
        &[
            "ui",
            "gui",
            "web",
            "dashboard",
            "browse",
            "list",
            "ls",
            "runs",
            "history",
        ],
    ),
    ("watch", &["monitor", "live", "top", "attach", "status"]),
    (
        "check",
        &[
            "ping",
            "probe",
            "health",
            "healthcheck",
            "ready",
            "wait-for",
        ],
    ),
    (
        "serve",
        &["server", "mock", "mock-server", "echo-server", "stub"],
    ),
    ("doctor", &["diagnose", "sysinfo", "preflight"]),
    ("completions", &["completion", "autocomplete"]),
    ("man", &["manual", "docs"]),
];

/// Names of commands that check a plan without a load.
const VALIDATION_COMMANDS: [&str; 6] = [
    "validate",
    "lint",
    "verify",
    "inspect",
    "dry-run",
    "check-config",
];

/// Formats of files that may be typed in front of the file to import, where Plimsoll looks into the file.
const IMPORT_FORMATS: [&str; 5] = ["k6", "har", "openapi", "swagger", "curl"];

/// Words with which other tools print their version.
const VERSION_WORDS: [&str; 5] = ["version", "-v", "-version", "ver", "about"];

/// Methods of requests that may be typed in place of a command.
const METHOD_COMMANDS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// Commands that have no counterpart: their names, the reason, and what to do.
const MISSING_COMMANDS: [(&[&str], &str, &str); 6] = [
    (
        &["cloud", "login", "logout", "account", "auth"],
        "there is no service behind Plimsoll, and no account",
        "a load starts on this machine; --rendezvous shares one among several machines",
    ),
    (
        &["update", "upgrade", "self-update"],
        "Plimsoll does not update itself",
        "install the newer release as this one was installed; plimsoll --version prints which one this is",
    ),
    (
        &["record", "recorder", "capture", "sniff"],
        "Plimsoll records no traffic",
        "a browser saves a session as HAR: plimsoll import session.har --out session.toml",
    ),
    (
        &[
            "worker",
            "agent",
            "master",
            "controller",
            "coordinator",
            "distributed",
        ],
        "no machine leads the others",
        "start the same line on each machine with --rendezvous; --processes divides a load on one machine",
    ),
    (
        &["pause", "resume", "scale"],
        "a load is neither paused nor resized while it runs",
        "--step changes a rate at set times; plimsoll watch follows a load",
    ),
    (
        &["archive", "bundle", "package"],
        "a plan is one file",
        "any load writes its plan: --save-plan plan.toml",
    ),
];

/// Programs that open a socket by hand.
const SOCKET_TOOLS: [&str; 4] = ["wscat", "websocat", "wsdump", "wsta"];

/// Translates a line that begins with a command of other tools; `None` for any other line. `words` does not include the
/// program's name.
///
/// # Errors
/// When the command has no counterpart, or a plan is in another format.
pub(crate) fn translate(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let texts = words.iter().map(|word| word.to_str());
    let Some(texts) = texts.collect::<Option<Vec<&str>>>() else {
        return Ok(None);
    };
    let Some((first, rest)) = texts.split_first() else {
        return Ok(None);
    };
    let line = |line: Vec<String>| Ok(Some(line.into_iter().map(OsString::from).collect()));
    let renamed = |command: &str| {
        let rest = rest.iter().map(|word| (*word).to_owned());
        std::iter::once(command.to_owned())
            .chain(rest)
            .collect::<Vec<String>>()
    };
    if *first == "--" && !rest.is_empty() {
        return Ok(Some(words[1..].to_vec()));
    }
    if VERSION_WORDS.contains(first) && rest.is_empty() {
        return line(vec!["--version".to_owned()]);
    }
    if first.starts_with('-') {
        return Ok(move_flags_back(words, &texts));
    }
    if SOCKET_TOOLS.contains(first) {
        return socket_line(first, rest).map(Some);
    }
    if VALIDATION_COMMANDS.contains(first) {
        let names_plan = rest.iter().any(|word| word.ends_with(".toml"));
        let call = rest.iter().find_map(|word| command_for_address(word));
        let mut ours = renamed(call.filter(|_| !names_plan).unwrap_or("run"));
        ours.push("--dry-run".to_owned());
        return line(ours);
    }
    if *first == "replay" {
        if matches!(rest, [file] if file.ends_with(".har")) {
            return line(complete_renamed("import", renamed("import")));
        }
        return Ok(replay_line(rest));
    }
    if *first == "examples" && rest.is_empty() {
        return line(vec!["--help".to_owned()]);
    }
    if ["import", "convert"].contains(first) && rest.contains(&"postman") {
        return Err(Failure::usage(
            "collections of Postman are not read",
            "plimsoll import reads recordings of a browser (HAR), descriptions of a service (OpenAPI) and curl lines",
        ));
    }
    if let ("import", [format, file]) = (*first, rest)
        && IMPORT_FORMATS.contains(format)
    {
        let ours = vec!["import".to_owned(), (*file).to_owned()];
        return line(complete_renamed("import", ours));
    }
    if let Some((_, reason, instead)) =
        (MISSING_COMMANDS.iter()).find(|(names, ..)| names.contains(first))
    {
        return Err(Failure::usage(
            format_args!("there is no command `{first}`: {reason}"),
            instead,
        ));
    }
    let is_method = METHOD_COMMANDS
        .iter()
        .any(|method| method.eq_ignore_ascii_case(first));
    if is_method && let Some(command) = rest.iter().find_map(|word| command_for_address(word)) {
        let mut ours = renamed(command);
        ours.extend(["-X".to_owned(), first.to_ascii_uppercase()]);
        return line(ours);
    }
    if let Some(command) = registry::command_alias(first) {
        return line(renamed(command));
    }
    if let Some((command, _)) = (RENAMED_COMMANDS.iter()).find(|(_, names)| names.contains(first)) {
        return line(complete_renamed(command, renamed(command)));
    }
    if *first == "run" {
        return foreign_plans::translate(rest);
    }
    Ok(None)
}

/// Adds the arguments that the command requires and other tools do without: the newest run for a report, and the plan
/// that an import writes.
fn complete_renamed(command: &str, mut ours: Vec<String>) -> Vec<String> {
    let is_file = |word: &&String| !word.starts_with('-');
    let file = ours.iter().skip(1).find(is_file).cloned();
    let has_out = ours.iter().any(|word| word.starts_with("--out"));
    match (command, file) {
        ("report", None) => ours.push("LATEST".to_owned()),
        ("import", Some(file)) if file.ends_with(".har") && !has_out => {
            let stem = file.trim_end_matches(".har");
            ours.extend(["--out".to_owned(), format!("{stem}.toml")]);
        }
        _ => {}
    }
    ours
}

/// Moves flags that were typed in front of the command behind it; `None` if there are none, or if the command may be the
/// value of one.
fn move_flags_back(words: &[OsString], texts: &[&str]) -> Option<Vec<OsString>> {
    let is_command = |word: &&str| COMMAND_ENTRIES.iter().any(|entry| entry.name == *word);
    let at = texts.iter().position(is_command)?;
    if texts.contains(&"--") {
        return None;
    }
    let root = commands::command_for_words(&words[at..=at]);
    let command = root.find_subcommand(texts[at])?;
    let (mut next, mut is_foreign) = (0, false);
    while next < at {
        let word = texts[next];
        let flag = word.split('=').next().unwrap_or(word);
        if word.len() < 2 || !word.starts_with('-') {
            return None;
        }
        let global = find_plimsoll_flag(&root, flag);
        is_foreign |= global.is_none();
        let own = global.or_else(|| find_plimsoll_flag(command, flag));
        let is_attached = word.contains('=') || !word.starts_with("--") && word.len() > 2;
        let takes_value = match own {
            Some(own) => own.takes_value,
            None => texts[next + 1..at]
                .first()
                .is_some_and(|next| !next.starts_with('-')),
        };
        next += if takes_value && !is_attached { 2 } else { 1 };
    }
    if next > at || !is_foreign {
        return None;
    }
    let after = &words[at + 1..];
    let ours = words[at..=at].iter().chain(after).chain(&words[..at]);
    Some(ours.cloned().collect())
}

/// Returns the load that sends the requests of a log to a target: `replay FILE --target URL --speed 10`; `None` without
/// a file and a URL.
fn replay_line(rest: &[&str]) -> Option<Vec<OsString>> {
    const SPEED_FLAGS: [&str; 3] = ["speed", "speedup", "rate-factor"];
    const TARGET_FLAGS: [&str; 6] = ["target", "url", "host", "u", "t", "base-url"];
    let (mut file, mut target, mut flags) = (None, None, Vec::new());
    let mut left = rest.iter().copied();
    while let Some(word) = left.next() {
        let (flag, attached) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value)),
            _ => (word, None),
        };
        let bare = flag.trim_start_matches('-');
        let is_flag = bare.len() < flag.len();
        if is_flag && SPEED_FLAGS.contains(&bare) {
            let speed = attached.or_else(|| left.next())?;
            let unit = if speed.parse::<f64>().is_ok() {
                "x"
            } else {
                ""
            };
            flags.extend(["--speed".to_owned(), format!("{speed}{unit}")]);
        } else if is_flag && TARGET_FLAGS.contains(&bare) {
            target = Some(attached.or_else(|| left.next())?);
        } else if !word.starts_with('-') && command_for_address(word).is_some() {
            target = Some(word);
        } else if !word.starts_with('-') && file.is_none() && word.parse::<f64>().is_err() {
            file = Some(word);
        } else {
            flags.push(word.to_owned());
        }
    }
    let (file, target) = (file?, target?);
    let command = command_for_address(target)?;
    let ours = [command, target, "--replay", file].map(OsString::from);
    let flags = flags.into_iter().map(OsString::from);
    Some(ours.into_iter().chain(flags).collect())
}

/// Returns the load that sends the message of a line such as `wscat -c URL -x MESSAGE` once.
///
/// # Errors
/// When the line has no message: messages are typed by hand, and a load has none of these.
fn socket_line(tool: &str, rest: &[&str]) -> Result<Vec<OsString>, Failure> {
    let is_url = |word: &&&str| word.contains("://");
    let url = rest
        .iter()
        .find(is_url)
        .copied()
        .unwrap_or("ws://HOST:PORT/");
    let command = registry::command_for_url(url).unwrap_or(registry::command_for_bare_address());
    let value = |names: &[&str]| {
        let at = rest
            .iter()
            .position(|word| names.contains(&word.trim_start_matches('-')))?;
        rest.get(at + 1).copied()
    };
    let message = value(&["x", "execute"]);
    if let Some(message) = message.filter(|_| rest.iter().any(|word| word.contains("://"))) {
        let ours = [
            command,
            url,
            "-d",
            message,
            "--clients",
            "1",
            "--calls",
            "1",
        ];
        return Ok(ours.map(OsString::from).to_vec());
    }
    Err(Failure::usage(
        format_args!(
            "{tool}: messages are typed by hand there, and a load sends the same one again and again"
        ),
        &format!(
            "write the message into the line: plimsoll {command} {url} -d hello --clients 1 --calls 1"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Option<String> {
        registry::register_protocols();
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let ours = translate(&words).unwrap_or_else(|failure| panic!("{line}: {failure}"))?;
        let ours = ours.iter().map(|word| word.to_string_lossy());
        Some(ours.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn commands_of_other_tools_are_renamed() {
        for (line, ours) in [
            ("version", "--version"),
            ("-v", "--version"),
            ("-- k6 run a.js", "k6 run a.js"),
            ("diff a b", "compare a b"),
            (
                "search http://a.test/ --p99 50ms",
                "find http://a.test/ --p99 50ms",
            ),
            ("validate plan.toml", "run plan.toml --dry-run"),
            ("lint http://a.test/", "http http://a.test/ --dry-run"),
            ("har a.har", "import a.har --out a.toml"),
            ("import k6 a.js", "import a.js"),
            ("import har a.har", "import a.har --out a.toml"),
            ("replay a.har", "import a.har --out a.toml"),
            ("examples", "--help"),
            ("stats", "report LATEST"),
            ("plot runs/a", "report runs/a"),
            ("websocket ws://a.test/ -n 5", "ws ws://a.test/ -n 5"),
            (
                "post http://a.test/ -d x",
                "http http://a.test/ -d x -X POST",
            ),
            (
                "wscat -c ws://a.test/ -x hi",
                "ws ws://a.test/ -d hi --clients 1 --calls 1",
            ),
            (
                "replay access.log --target http://a.test --speed 10",
                "http http://a.test --replay access.log --speed 10x",
            ),
        ] {
            assert_eq!(translated(line).as_deref(), Some(ours), "{line}");
        }
        for ours in [
            "run plan.toml",
            "compare a b",
            "http http://a.test/",
            "-n 5 http://a.test/",
        ] {
            assert_eq!(translated(ours), None, "{ours}");
        }
    }

    #[test]
    fn flags_before_the_command_move_behind_it() {
        for (line, ours) in [
            (
                "--rate 50 --duration 1s http http://a.test/",
                Some("http http://a.test/ --rate 50 --duration 1s"),
            ),
            (
                "-n5 -k http https://a.test/",
                Some("http https://a.test/ -n5 -k"),
            ),
            (
                "--vus 5 http http://a.test/",
                Some("http http://a.test/ --vus 5"),
            ),
            ("--quiet http http://a.test/", None),
            ("--name http http://a.test/", None),
        ] {
            assert_eq!(translated(line).as_deref(), ours, "{line}");
        }
    }

    #[test]
    fn commands_without_counterpart_are_explained() {
        registry::register_protocols();
        for (line, part) in [
            ("login", "no account"),
            ("upgrade", "--version"),
            ("record", "plimsoll import session.har"),
            ("worker", "--rendezvous"),
            ("convert --from postman a.json -o a.yaml", "Postman"),
            ("wscat -c ws://a.test/", "plimsoll ws ws://a.test/ -d hello"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let failure = translate(&words).expect_err(line);
            let said = format!("{failure:?}").replace('│', " ");
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(part), "{line}: {said}");
        }
    }
}

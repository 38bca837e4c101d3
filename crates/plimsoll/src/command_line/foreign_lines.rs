//! Translates command lines that don't name a Plimsoll command: lines of other load tools, and a bare URL.
//!
//! A line of a tool that [`plimsoll_protocols::interface::foreign::command_lines`] knows is translated. If every word
//! has a counterpart, the translated line is run, and the caller prints it. Otherwise nothing is run, and an error
//! shows the translation of the words that have a counterpart, ready to paste.

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use plimsoll_model::formats::input;
use plimsoll_protocols::registry;

use crate::command_line::quoting::quote_for_shell;
use crate::commands;
use crate::failure::Failure;
use crate::screen::console;

/// Translates a line; `None` if it names a Plimsoll command, or is not a line of a known tool. `words` does not include
/// the program's name.
///
/// # Errors
/// When a word of another tool's line has no counterpart.
pub(crate) fn translate(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let texts = words.iter().map(|word| word.to_str().map(str::to_owned));
    let Some(texts) = texts.collect::<Option<Vec<String>>>() else {
        return Ok(None);
    };
    let texts = add_script_tool(texts);
    let texts = add_tool_variables(texts, &|name| std::env::var(name).ok());
    let is_bare = texts.first().is_some_and(|first| is_flag_or_url(first));
    if is_bare && has_command(words) {
        return Ok(None);
    }
    let is_named =
        texts.first().map(String::as_str) != words.first().and_then(|word| word.to_str());
    if let Some(line) = registry::find_foreign_line(&texts)
        && (is_bare || is_named || !has_command(&words[..1]))
    {
        let stdin = line.tool.reads_stdin.then(read_piped_input).flatten();
        let translated = line.translate(stdin)?;
        let ours: Vec<OsString> = translated.words.into_iter().map(OsString::from).collect();
        if translated.reasons.is_empty() {
            for note in &translated.notes {
                console::print_notice(note);
            }
            return Ok(Some(ours));
        }
        for note in &translated.notes {
            console::print_notice(note);
        }
        if let Some(plan) = &translated.plan {
            console::print_notice(format_args!("as a plan, for plimsoll run PLAN:\n\n{plan}"));
        }
        console::print_notice(format_args!(
            "with Plimsoll: plimsoll {}",
            quote_for_shell(&ours)
        ));
        return Err(Failure::usage(
            format_args!(
                "this is a command line of {}: {}",
                line.tool.name(),
                translated.reasons.join("; ")
            ),
            "the line above is for Plimsoll, without the words that have no counterpart: run it as it is, or edit it",
        ));
    }
    if !is_bare {
        return Ok(None);
    }
    let command = texts
        .iter()
        .find_map(|text| registry::command_for_url(text));
    Ok(command.map(|command| {
        let command = OsString::from(command);
        std::iter::once(command)
            .chain(words.iter().cloned())
            .collect()
    }))
}

/// Extensions of script files with the tool that runs such scripts; `plimsoll run` would parse the scripts as plans.
const SCRIPT_TOOLS: [(&str, &str); 3] = [(".js", "k6"), (".ts", "k6"), (".py", "locust")];

/// Puts the tool's name in front of a line that runs a script, such as `run --vus 5 script.js` of k6.
fn add_script_tool(mut texts: Vec<String>) -> Vec<String> {
    if texts.first().is_none_or(|first| first != "run") {
        return texts;
    }
    let tool = SCRIPT_TOOLS
        .iter()
        .find(|(end, _)| texts.iter().any(|text| text.ends_with(end)));
    match tool {
        Some((_, "locust")) => "locust".clone_into(&mut texts[0]),
        Some((_, tool)) => texts.insert(0, (*tool).to_owned()),
        None => {}
    }
    texts
}

/// Variables of other tools that set one of their flags: the tool, and each variable with the spellings of its flag.
type ToolVariables = (
    &'static str,
    &'static [(&'static str, &'static [&'static str])],
);

const TOOL_VARIABLES: [ToolVariables; 2] = [
    (
        "k6",
        &[
            ("K6_VUS", &["vus", "u"]),
            ("K6_DURATION", &["duration", "d"]),
            ("K6_ITERATIONS", &["iterations", "i"]),
            ("K6_STAGES", &["stage", "stages", "s"]),
            ("K6_RPS", &["rps"]),
            ("K6_MAX_REDIRECTS", &["max-redirects"]),
            ("K6_USER_AGENT", &["user-agent"]),
            ("K6_OUT", &["out", "o"]),
            ("K6_SUMMARY_EXPORT", &["summary-export"]),
            ("K6_INSECURE_SKIP_TLS_VERIFY", &["insecure-skip-tls-verify"]),
            ("K6_NO_CONNECTION_REUSE", &["no-connection-reuse"]),
        ],
    ),
    (
        "locust",
        &[
            ("LOCUST_USERS", &["users", "u"]),
            ("LOCUST_SPAWN_RATE", &["spawn-rate", "r"]),
            ("LOCUST_RUN_TIME", &["run-time", "t"]),
            ("LOCUST_HOST", &["host", "H"]),
            ("LOCUST_LOCUSTFILE", &["locustfile", "f"]),
        ],
    ),
];

/// Adds the flags that a tool's variables set, unless they were typed, behind the tool's name. `variable` returns the
/// value of a variable.
fn add_tool_variables(
    mut texts: Vec<String>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let tool = texts.first().map(String::as_str).unwrap_or_default();
    let Some((_, variables)) = TOOL_VARIABLES.iter().find(|(name, _)| *name == tool) else {
        return texts;
    };
    let command_length = if tool == "k6" && texts.get(1).is_some_and(|word| word == "run") {
        2
    } else {
        1
    };
    let is_typed = |spellings: &[&str]| {
        let flags = texts.iter().filter_map(|word| word.strip_prefix('-'));
        let mut names = flags.map(|flag| flag.trim_start_matches('-').split('=').next());
        names.any(|name| name.is_some_and(|name| spellings.contains(&name)))
    };
    let mut added = Vec::new();
    for (name, spellings) in variables.iter().filter(|(_, flags)| !is_typed(flags)) {
        if let Some(value) = variable(name).filter(|value| !value.is_empty()) {
            console::print_notice(format_args!(
                "{name} is a variable of {tool}: --{} {value}",
                spellings[0]
            ));
            added.push(format!("--{}={value}", spellings[0]));
        }
    }
    texts.splice(command_length..command_length, added);
    texts
}

fn is_flag_or_url(word: &str) -> bool {
    word.starts_with('-') || word.contains("://")
}

/// Returns whether one of the words is a Plimsoll command.
fn has_command(words: &[OsString]) -> bool {
    commands::command_for_words(words)
        .get_subcommands()
        .next()
        .is_some()
        || words.iter().any(|word| word == "help")
}

/// Reads standard input to its end; `None` if it is a terminal, or can't be read.
pub(crate) fn read_piped_input() -> Option<String> {
    if io::stdin().is_terminal() {
        return None;
    }
    input::read_stdin_to_string().ok()
}

#[cfg(test)]
mod tests;

//! Parses the command line and records where each value came from.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use plimsoll_model::formats::redaction;

use crate::command_line::foreign_words;
use crate::command_line::help;
use crate::command_line::misread_flags;
use crate::command_line::single_dash;
use crate::command_line::synonyms;
use crate::command_line::variables;
use crate::commands::{self, Cli};
use crate::failure::{Exit, Failure};
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::flag_names;
use crate::settings::origins::{FlagOrigins, Precedence};

/// Former names of flags, accepted as aliases, with the current names.
const RENAMED_FLAGS: [(&str, &str); 1] = [("--turn", "--batch")];

/// Parses the command line, with environment variables as defaults of flags.
///
/// # Errors
/// Returns [`Exit::Done`] after printing help or the version, and [`Exit::Usage`] after printing a usage error.
pub(crate) fn parse(
    typed: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<(Cli, FlagOrigins), Exit> {
    let reported = |failure: Failure| {
        console::print_failure(&failure);
        failure.exit()
    };
    let typed = foreign_words::translate(typed.into_iter().collect()).map_err(reported)?;
    let checked = |(cli, origins, needed): ParsedArguments| match needed {
        Some(failure) => Err(reported(failure)),
        None => Ok((cli, origins)),
    };
    let command = commands::command_for_words(&typed);
    let mistake = single_dash::failure(&command, &typed);
    if let Some(failure) = mistake.or_else(|| misread_flags::misread_flag_failure(&command, &typed))
    {
        return Err(reported(failure));
    }
    if let Ok(parsed) =
        parse_with_fallbacks(commands::command_for_words(&typed), &typed, environment)
    {
        note_renamed_flags(&typed);
        variables::check_variables(environment).map_err(reported)?;
        return checked(parsed);
    }
    // The first parse failed. Parse again with all commands, because help and suggestions in errors name them.
    let parsed = parse_with_fallbacks(commands::command(), &typed, environment).map_err(
        |(error, stand_ins)| {
            let error = synonyms::add_tip(error, &commands::command(), &typed);
            print_clap_error(&error);
            if let Some(variable) = find_invalid_variable(&error, &typed, &stand_ins, environment) {
                console::print_notice(format_args!(
                    "note: the value comes from the environment variable {variable}"
                ));
            }
            if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            }
        },
    )?;
    checked(parsed)
}

/// Prints the current name of each flag that was typed by its former name.
fn note_renamed_flags(typed: &[OsString]) {
    for (old, new) in RENAMED_FLAGS {
        let is_old = |word: &OsString| {
            word.to_str().is_some_and(|word| {
                word.strip_prefix(old)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            })
        };
        if typed.iter().any(is_old) {
            console::print_notice(format_args!("note: `{old}` is called `{new}` now"));
        }
    }
}

/// The parsed command, the origins of its values, and the error about a flag whose value in an env file was rejected.
type ParsedArguments = (Cli, FlagOrigins, Option<Failure>);

/// Prints help or a usage error. Either may show values of flags and variables, so secrets in URLs are masked.
fn print_clap_error(error: &clap::Error) {
    let plain = error.render().to_string();
    match redaction::mask_urls(&plain) {
        Cow::Borrowed(_) => drop(error.print()),
        Cow::Owned(masked) if error.use_stderr() => console::print_line(masked),
        Cow::Owned(masked) => drop(console::print_result(masked)),
    }
}

/// Parses the command line with `command` and the fallback values of the environment.
///
/// # Errors
/// Returns clap's error (help, version or a usage error) with the fallback values that were in use.
fn parse_with_fallbacks(
    command: Command,
    typed: &[OsString],
    environment: &Environment,
) -> Result<ParsedArguments, (clap::Error, FallbackValues)> {
    let mut stand_ins = BTreeMap::new();
    let mut command = with_fallbacks(command, "", environment, &mut stand_ins);
    let own = |word: &&OsString| *word != "--";
    if typed.iter().take_while(own).any(|word| word == "-h") {
        command = help::with_short_help(command);
    }
    let parsed = command.try_get_matches_from_mut(typed).and_then(|matches| {
        check_flag_positions(&matches)?;
        let cli = Cli::from_matches(&matches)?;
        let needed = rejected_value_failure(&command, "", &matches, environment);
        Ok((cli, flag_origins(&command, &matches, &stand_ins), needed))
    });
    parsed.map_err(|error| (error, stand_ins))
}

/// Rejects flags typed before a nested subcommand, which would have no effect.
fn check_flag_positions(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((outer, chosen)) = matches.subcommand() else {
        return Ok(());
    };
    let Some((inner, _)) = chosen.subcommand() else {
        return Ok(());
    };
    let is_typed = |id: &clap::Id| {
        chosen.try_contains_id(id.as_str()).unwrap_or(false)
            && chosen.value_source(id.as_str()) == Some(ValueSource::CommandLine)
            // Global flags are exempt: they have the same effect at every position.
            && !["progress", "quiet", "verbose", "trace", "log_format", "telemetry", "telemetry_header"].contains(&id.as_str())
    };
    match chosen.ids().find(|id| is_typed(id)) {
        None => Ok(()),
        Some(id) => Err(clap::Error::raw(
            clap::error::ErrorKind::ArgumentConflict,
            format!(
                "`{}` of `plimsoll {outer}` can't be used with `{inner}`: write flags of `{inner}` after `{inner}`\n",
                id.as_str().replace('_', "-")
            ),
        )),
    }
}

/// Fallback values in use, by argument id: precedence and name of the variable.
type FallbackValues = BTreeMap<String, (Precedence, String)>;

/// Sets the value of a variable's alias, or of a variable in `.env`, as the default of an argument whose own variable
/// is not set; in clap, variables take precedence over defaults. `path` is the subcommand path without the program's
/// name.
fn with_fallbacks(
    command: Command,
    path: &str,
    environment: &Environment,
    found: &mut FallbackValues,
) -> Command {
    let command = command.mut_args(|arg| {
        // The variable of a repeatable flag contains one value per line.
        let several = matches!(arg.get_action(), ArgAction::Append);
        let arg = if several && arg.get_value_delimiter().is_none() {
            arg.value_delimiter('\n')
        } else {
            arg
        };
        let variable = arg.get_env().and_then(|v| v.to_str()).map(str::to_owned);
        let Some(stand_in) = variable.and_then(|v| environment.fallback_value(&v, path)) else {
            return arg;
        };
        let strength = if stand_in.from_file {
            Precedence::File
        } else {
            Precedence::Alias
        };
        found.insert(arg.get_id().to_string(), (strength, stand_in.variable));
        let is_secret = arg.is_hide_env_values_set();
        arg.default_value(stand_in.value)
            .hide_default_value(is_secret)
    });
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        with_fallbacks(sub, path.trim_start(), environment, found)
    })
}

/// Returns the error about a flag of the chosen command whose value in an env file was rejected. `path` is the
/// subcommand path without the program's name.
fn rejected_value_failure(
    command: &Command,
    path: &str,
    matches: &ArgMatches,
    environment: &Environment,
) -> Option<Failure> {
    if let Some((name, inner)) = matches.subcommand()
        && let Some(chosen) = command.find_subcommand(name)
    {
        let path = format!("{path} {name}");
        return rejected_value_failure(chosen, path.trim_start(), inner, environment);
    }
    let typed = Some(ValueSource::CommandLine);
    let mut untyped = (command.get_arguments())
        .filter(|arg| matches.value_source(arg.get_id().as_str()) != typed);
    untyped.find_map(|arg| environment.rejected_value_failure(arg.get_env()?.to_str()?, path))
}

/// Returns where each flag value of the innermost subcommand came from.
fn flag_origins(
    command: &Command,
    matches: &ArgMatches,
    stand_ins: &FallbackValues,
) -> FlagOrigins {
    if let Some((name, inner)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        return flag_origins(command, inner, stand_ins);
    }
    flag_names::set_command(command);
    let mut origins = BTreeMap::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let origin = match matches.value_source(id) {
            None => continue,
            Some(ValueSource::CommandLine) => (Precedence::CommandLine, String::new()),
            Some(ValueSource::EnvVariable) => {
                let variable = arg.get_env().unwrap_or_default();
                (
                    Precedence::Variable,
                    variable.to_string_lossy().into_owned(),
                )
            }
            _ => match stand_ins.get(id) {
                Some(stand_in) => stand_in.clone(),
                None => continue,
            },
        };
        origins.insert(id.to_owned(), origin);
    }
    FlagOrigins(origins)
}

/// Returns the environment variable that an invalid value came from; `None` if the value was typed.
fn find_invalid_variable(
    error: &clap::Error,
    typed: &[OsString],
    stand_ins: &FallbackValues,
    environment: &Environment,
) -> Option<String> {
    let ContextValue::String(argument) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let flag = argument.split([' ', '=']).next()?.to_owned();
    let mut words = typed.iter().map(|word| word.to_string_lossy());
    let is_typed = words.any(|word| word.split('=').next() == Some(&flag));
    let id = flag.trim_start_matches('-').replace('-', "_");
    if is_typed || !flag.starts_with("--") {
        return None;
    }
    match stand_ins.get(&id) {
        Some((_, variable)) => Some(variable.clone()),
        None => {
            // The flag may have been typed in its short form, so look for the value, not for the flag's name.
            let variable = format!("PLIMSOLL_{}", id.to_uppercase());
            let value = environment.value_with_origin(&variable)?.value;
            let wrong = error.get(ContextKind::InvalidValue)?;
            (*wrong == ContextValue::String(value)).then_some(variable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::command;

    #[test]
    fn clap_definition_passes_debug_assert() {
        command().debug_assert();
    }

    #[test]
    fn single_command_help_matches_full_tree() {
        for mut among in command().get_subcommands().cloned() {
            let words = ["plimsoll", among.get_name()].map(OsString::from);
            let alone = commands::command_for_words(&words);
            let alone: Vec<&Command> = alone.get_subcommands().collect();
            assert_eq!(alone.len(), 1, "{}", among.get_name());
            let help = alone[0].clone().render_long_help().to_string();
            assert_eq!(help, among.render_long_help().to_string());
        }
    }

    #[test]
    fn every_flag_has_its_variable() {
        fn check(command: &Command, path: &str) {
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some())
            {
                let long = arg.get_long().unwrap_or_default();
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let name = long.replace('-', "_").to_uppercase();
                assert_eq!(
                    arg.get_env().and_then(|v| v.to_str()),
                    Some(format!("PLIMSOLL_{name}").as_str()),
                    "{path} --{long}"
                );
            }
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&command(), "plimsoll");
    }

    /// Flags whose values may as well be milliseconds or less, so that a bare number is refused.
    const SHORT_TIMES: [&str; 12] = [
        "spin",
        "tick",
        "resolution",
        "overhead-over",
        "path",
        "pace",
        "delay",
        "token-delay",
        "jitter",
        "busy",
        "busy-poll",
        "processing",
    ];

    /// Appends the flags of `command` and its subcommands that take a time or a rate, each behind the words that name
    /// its command.
    fn add_quantity_flags(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
        for arg in command.get_arguments() {
            let is_quantity = matches!(
                arg.get_value_names(),
                Some([name]) if ["TIME", "RATE"].contains(&name.as_str())
            );
            if let Some(long) = arg.get_long().filter(|_| is_quantity) {
                found.push([path, &[format!("--{long}")]].concat());
            }
        }
        for sub in command.get_subcommands() {
            let path = [path, &[sub.get_name().to_owned()]].concat();
            add_quantity_flags(sub, &path, found);
        }
    }

    #[test]
    fn bare_numbers_are_seconds_or_refused() {
        plimsoll_protocols::registry::register_protocols();
        let mut lines = Vec::new();
        add_quantity_flags(&command(), &["plimsoll".to_owned()], &mut lines);
        assert!(lines.len() > 120, "{}", lines.len());
        for mut line in lines {
            let flag = line[line.len() - 1].clone();
            line.push("2".to_owned());
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let parsed = commands::command_for_words(&words).try_get_matches_from(&words);
            // Errors of another kind, such as a missing URL, come after all values are parsed.
            let refused = (parsed.err())
                .filter(|error| error.kind() == clap::error::ErrorKind::ValueValidation);
            let is_short = SHORT_TIMES.contains(&flag.trim_start_matches('-'));
            match refused.map(|error| error.to_string()) {
                None => assert!(!is_short, "{line:?} is read"),
                Some(said) => {
                    assert!(is_short, "{line:?}: {said}");
                    let right = "`2` has no unit: write \"2s\" or \"2ms\"";
                    assert!(said.contains(right), "{line:?}: {said}");
                }
            }
        }
    }

    /// Every command that makes a load can write its documents itself.
    #[test]
    fn load_commands_have_all_document_flags() {
        fn check(command: &Command, path: &str) -> usize {
            let has = |long: &str| command.get_arguments().any(|a| a.get_long() == Some(long));
            let loads = has("connections");
            for document in ["json", "junit", "markdown", "comment", "html"] {
                assert!(!loads || has(document), "{path} --{document}");
            }
            let subs = command.get_subcommands();
            subs.map(|sub| check(sub, &format!("{path} {}", sub.get_name())))
                .sum::<usize>()
                + usize::from(loads)
        }
        assert!(check(&command(), "plimsoll") > 10);
    }

    #[test]
    fn every_help_text_starts_with_example() {
        fn check(command: &Command, path: &str) {
            let help = command
                .get_before_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.starts_with("Example"), "{path}");
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&command(), "plimsoll");
    }
}

//! Rejects unknown environment variables, so that a misspelt name is an error and not silently ignored.

use std::collections::BTreeSet;

use clap::Command;
use plimsoll_model::formats::redaction::{BODY_VARIABLE_PREFIX, QUERY_VARIABLE_PREFIX};

use crate::commands;
use crate::failure::Failure;
use crate::settings::environment::Environment;
use crate::settings::load_limits::LIMITS_VARIABLE;
use crate::system::stopping::STOP_AT_INPUT_END_VARIABLE;

const VARIABLE_PREFIX: &str = "PLIMSOLL_";

/// Known variables that don't set a flag.
const NON_FLAG_VARIABLES: [&str; 3] = [
    "PLIMSOLL_FAULT",
    STOP_AT_INPUT_END_VARIABLE,
    LIMITS_VARIABLE,
];

/// Prefix of variables that contain secret values for the metadata of a plan's calls.
const METADATA_PREFIX: &str = "PLIMSOLL_METADATA_";

/// Checks all variables whose names start with `PLIMSOLL_`.
///
/// # Errors
/// When a variable sets no flag of any command.
pub(crate) fn check_variables(environment: &Environment) -> Result<(), Failure> {
    let may_be_a_flags = |name: &&str| {
        name.starts_with(VARIABLE_PREFIX)
            && !name.starts_with(METADATA_PREFIX)
            && !name.starts_with(QUERY_VARIABLE_PREFIX)
            && !name.starts_with(BODY_VARIABLE_PREFIX)
            && !is_set_by_kubernetes(name)
    };
    let mut ours = environment.names().filter(may_be_a_flags).peekable();
    if ours.peek().is_none() {
        return Ok(());
    }
    let mut known = BTreeSet::from(NON_FLAG_VARIABLES.map(str::to_owned));
    collect_flag_variables(&commands::command(), &mut known);
    let Some(unknown) = ours.find(|name| !known.contains(*name)) else {
        return Ok(());
    };
    let near = known
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(unknown, name), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.8);
    let help = match near {
        Some((_, name)) => format!("did you mean {name}?"),
        None => "--help lists the variable of every flag; remove this one, or rename it".to_owned(),
    };
    Err(Failure::usage(
        format_args!("{unknown}: no flag has this variable"),
        &help,
    ))
}

fn collect_flag_variables(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    for sub in command.get_subcommands() {
        collect_flag_variables(sub, known);
    }
}

/// Returns whether Kubernetes may have set this variable. Kubernetes sets variables for every service in every
/// container; those for a service named `plimsoll` or `plimsoll-…` start with `PLIMSOLL_`, too.
fn is_set_by_kubernetes(name: &str) -> bool {
    name.ends_with("_PORT") || name.contains("_PORT_") || name.contains("_SERVICE_")
}

#[cfg(test)]
mod tests {

    use super::*;

    fn error_of(name: &str) -> Option<String> {
        let environment = Environment::of(&[(name, "1")]);
        let failure = check_variables(&environment).err()?;
        Some(failure.to_string())
    }

    #[test]
    fn unknown_plimsoll_variable_is_rejected() {
        for known in [
            "PLIMSOLL_RATE",
            "PLIMSOLL_TOKEN_DELAY",
            "PLIMSOLL_METADATA_AUTHORIZATION",
            "PLIMSOLL_QUERY_API_KEY",
            "PLIMSOLL_BODY_PASSWORD",
            "PLIMSOLL_SCORE_SERVICE_HOST",
            "PLIMSOLL_SCORE_PORT",
            "PLIMSOLL_SCORE_PORT_50051_TCP_ADDR",
            "PATH",
        ] {
            assert_eq!(error_of(known), None, "{known}");
        }
        assert_eq!(
            error_of("PLIMSOLL_DURATON").as_deref(),
            Some("PLIMSOLL_DURATON: no flag has this variable; did you mean PLIMSOLL_DURATION?")
        );
        let far = error_of("PLIMSOLL_QQQQQQ").expect("an error");
        assert!(far.contains("--help lists the variable"), "{far}");
    }
}

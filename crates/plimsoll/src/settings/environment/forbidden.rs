//! Variables that env files can't set. The file in the current directory may come from someone other than the user who
//! runs the command, so it is data: it runs nothing, writes nowhere, and lifts no limit.

use std::path::{Component, Path};

const RUNS_COMMAND: &str = "it runs a command";
const LOADS_CODE: &str = "it loads code";
const WRITES_FILE: &str = "it writes a file";
const NAMES_FOLDER: &str = "it says where files are written";
const WRITES_SECRETS: &str = "it writes the secrets of connections to a file";
const LIMITS_CLIENTS: &str = "it limits what clients of `plimsoll mcp` may do";

/// The variables of flags that run code, say which files are written and where, or limit what others may do, each with a
/// reason to show.
const FORBIDDEN_VARIABLES: [(&str, &str); 32] = [
    ("PLIMSOLL_APPLY", RUNS_COMMAND),
    ("PLIMSOLL_BUILD", RUNS_COMMAND),
    ("PLIMSOLL_HEADER_FROM_COMMAND", RUNS_COMMAND),
    ("PLIMSOLL_NEW", RUNS_COMMAND),
    ("PLIMSOLL_OLD", RUNS_COMMAND),
    ("PLIMSOLL_PROGRAM", "it names a program"),
    ("PLIMSOLL_PROXIES", "it names programs"),
    ("PLIMSOLL_SERVE", RUNS_COMMAND),
    ("PLIMSOLL_CODEC", LOADS_CODE),
    ("PLIMSOLL_COMMENT", WRITES_FILE),
    ("PLIMSOLL_ENVELOPE", WRITES_FILE),
    ("PLIMSOLL_EXPORT", WRITES_FILE),
    ("PLIMSOLL_FORCE", "it overwrites files"),
    ("PLIMSOLL_HTML", WRITES_FILE),
    ("PLIMSOLL_JUNIT", WRITES_FILE),
    ("PLIMSOLL_MARKDOWN", WRITES_FILE),
    ("PLIMSOLL_PROMETHEUS", WRITES_FILE),
    ("PLIMSOLL_SAVE_PLAN", WRITES_FILE),
    ("PLIMSOLL_SPANS", WRITES_FILE),
    ("PLIMSOLL_DIR", NAMES_FOLDER),
    ("PLIMSOLL_OUT", NAMES_FOLDER),
    ("PLIMSOLL_OUTPUT_DIR", NAMES_FOLDER),
    ("PLIMSOLL_RENDEZVOUS", NAMES_FOLDER),
    ("PLIMSOLL_RUNS", NAMES_FOLDER),
    ("PLIMSOLL_KEY_LOG", WRITES_SECRETS),
    ("SSLKEYLOGFILE", WRITES_SECRETS),
    ("PLIMSOLL_ALLOW", LIMITS_CLIENTS),
    ("PLIMSOLL_ALLOW_ENV", LIMITS_CLIENTS),
    ("PLIMSOLL_ALLOW_PLAN_CODE", LIMITS_CLIENTS),
    ("PLIMSOLL_MAX_CONNECTIONS", LIMITS_CLIENTS),
    ("PLIMSOLL_MAX_DURATION", LIMITS_CLIENTS),
    ("PLIMSOLL_MAX_RATE", LIMITS_CLIENTS),
];

/// The variable of older load scripts for the folder of their results.
const RESULTS_FOLDER: &str = "OUTPUT_DIR";

/// Returns why an env file can't set `variable` to `value`; `None` if it can.
pub(super) fn find_reason(variable: &str, value: &str) -> Option<&'static str> {
    if variable == RESULTS_FOLDER && !is_below_current_folder(value) {
        return Some("it names a folder outside of the current one");
    }
    FORBIDDEN_VARIABLES
        .iter()
        .find(|(name, _)| *name == variable)
        .map(|(_, why)| *why)
}

/// Returns whether a path, without following links, leads to something in the current directory.
fn is_below_current_folder(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::commands;

    /// The variables of flags that name a folder which is only read.
    const READ_FOLDERS: [&str; 3] = [
        "PLIMSOLL_IMPORT_PATH",
        "PLIMSOLL_RENDEZVOUS_CERTS",
        "PLIMSOLL_TLS_CERTS",
    ];

    /// Collects the variables of flags that run a command, write a file of a given name, by their help, or name a folder
    /// that is not known to be only read.
    fn collect_dangerous_variables(command: &Command, found: &mut Vec<String>) {
        for argument in command.get_arguments() {
            let Some(variable) = argument.get_env() else {
                continue;
            };
            let values = argument.get_value_names().unwrap_or_default();
            let help = argument.get_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            let names_command = values.iter().any(|name| *name == "CMD");
            let names_file = values.iter().any(|name| name.starts_with("FILE"));
            let writes = ["Write ", "Also write ", "Append ", "New file "]
                .iter()
                .any(|verb| help.starts_with(verb));
            let variable = variable.to_string_lossy().into_owned();
            let names_folder = values.iter().any(|name| name.starts_with("DIR"))
                && !READ_FOLDERS.contains(&variable.as_str());
            if names_command || names_folder || names_file && writes {
                found.push(variable);
            }
        }
        for sub in command.get_subcommands() {
            collect_dangerous_variables(sub, found);
        }
    }

    #[test]
    fn env_files_run_and_write_nothing() {
        let mut dangerous = Vec::new();
        collect_dangerous_variables(&commands::command(), &mut dangerous);
        assert!(dangerous.len() > 10, "{dangerous:?}");
        assert!(dangerous.iter().any(|variable| variable == "PLIMSOLL_OUT"));
        for variable in &dangerous {
            assert!(
                find_reason(variable, "x").is_some(),
                "an env file can set {variable}, which runs a command or writes a file"
            );
        }
        for outside in ["/tmp", "../results", "results/../../x"] {
            assert!(find_reason(RESULTS_FOLDER, outside).is_some(), "{outside}");
        }
        assert_eq!(find_reason(RESULTS_FOLDER, "./load/results"), None);
        assert_eq!(find_reason("PLIMSOLL_RATE", "5/s"), None);
    }
}

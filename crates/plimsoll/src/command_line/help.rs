//! Shortens the help of `-h` to one screen; `--help` shows the full help.
//!
//! The short help has the flags that most command lines need, the first example, and a reference to `--help`.

use clap::Command;

/// Ids of the arguments that the short help of load commands shows; these commands have dozens of others.
const COMMON_FLAGS: [&str; 5] = [
    // Flags of the call.
    "method grpc_message proto codec service mode socket queries query rows model body max_tokens goodput for target",
    // Flags of the load and of its objectives.
    "rate clients connections duration calls warmup objective trial budget rounds fail_if",
    // Flags of TLS.
    "ca cert key insecure",
    // Flags of the results.
    "out json junit dry_run",
    // Flags of the program itself.
    "help version quiet",
];

/// Ids of the arguments that only the short help of `track` shows, in addition to [`COMMON_FLAGS`].
const TRACK_FLAGS: [&str; 1] = ["plan old new build serve base candidate bisect"];

/// Ids of the arguments that the short help of `track` leaves out.
const RARE_TRACK_FLAGS: [&str; 1] =
    ["target objective rounds clients calls cert key insecure proto dry_run"];

/// Ids of the arguments that the short help of servers and relays leaves out.
const RARE_SERVER_FLAGS: [&str; 3] = [
    "spin seed reuse_port processes max_streams drain tls_version compressed_certificates suite group lame_duck",
    "request_timeout trusted_proxy proxy_protocol max_queue queue compression redis_ca redis_cert redis_key",
    "api_port stats_port socket_port",
];

fn contains_id(list: &[&str], id: &str) -> bool {
    list.iter()
        .any(|ids| ids.split(' ').any(|known| known == id))
}

const FULL_HELP_HINT: &str =
    "--help prints every flag, with the variable that stands for it, and all examples.";

/// Shortens the help of `command` and of its subcommands.
pub(crate) fn with_short_help(command: Command) -> Command {
    let puts_load = command.get_arguments().any(|a| a.get_id() == "connections");
    let has_versions = command.get_arguments().any(|a| a.get_id() == "bisect");
    let example = command
        .get_before_help()
        .map(|text| first_example(&text.to_string()));
    let command = command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let hidden = match puts_load {
            _ if arg.is_positional() => false,
            _ if has_versions && contains_id(&TRACK_FLAGS, id) => false,
            _ if has_versions && contains_id(&RARE_TRACK_FLAGS, id) => true,
            true => !contains_id(&COMMON_FLAGS, id),
            false => {
                contains_id(&RARE_SERVER_FLAGS, id) || arg.get_help_heading() == Some("Messages")
            }
        };
        arg.hide_env(true).hide_short_help(hidden)
    });
    let command = match example {
        Some(example) => command.before_help(example),
        None => command,
    };
    command
        .after_help(FULL_HELP_HINT)
        .mut_subcommands(with_short_help)
}

/// Returns the first example in the text of a command's examples.
fn first_example(examples: &str) -> String {
    let next = examples.match_indices("\nExample").next();
    let end = next.map_or(examples.len(), |(at, _)| at);
    examples[..end].to_owned()
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::commands;

    /// Maximum lines of a short help page of 100 columns.
    const MAX_SHORT_HELP_LINES: usize = 60;

    #[test]
    fn short_help_fits_one_screen() {
        fn check(command: &mut Command, path: &str, long: &mut Vec<String>) {
            let help = command.render_help().to_string();
            if help.lines().count() > MAX_SHORT_HELP_LINES {
                long.push(format!("{path}: {} lines\n{help}", help.lines().count()));
            }
            assert!(help.contains(FULL_HELP_HINT), "{path}");
            // The `help` command is clap's own.
            let own = |sub: &&mut Command| sub.get_name() != "help";
            for sub in command.get_subcommands_mut().filter(own) {
                let path = format!("{path} {}", sub.get_name());
                check(sub, &path, long);
            }
        }
        let mut command = with_short_help(commands::command()).term_width(100);
        command.build();
        let mut long = Vec::new();
        check(&mut command, "plimsoll", &mut long);
        assert!(long.is_empty(), "{}", long.join("\n"));
    }
}

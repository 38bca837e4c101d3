//! `plimsoll completions`: prints completion scripts for shells.

use clap::{Args, Command, ValueEnum};
use clap_complete::generate;

use crate::failure::{Exit, Failure};
use crate::screen::console;

/// Print a script that completes commands and flags in a shell.
#[derive(Debug, Args)]
#[command(before_help = "Example: for this bash, and for every later one\n  \
        source <(plimsoll completions bash)\n  \
        plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll\n\
        Example: for every later zsh, where ~/.zfunc is in its fpath\n  \
        plimsoll completions zsh > ~/.zfunc/_plimsoll\n\
        Example: for every later fish\n  \
        plimsoll completions fish > ~/.config/fish/completions/plimsoll.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell to print completions for.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn execute(arguments: &CompletionsArguments) -> Result<Exit, Failure> {
    let mut command = without_hidden_commands(&super::command())
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true);
    let shell = match arguments.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut command, "plimsoll", &mut script);
    console::print_result(String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// Returns the command without its hidden subcommands, which would otherwise appear in the completions.
fn without_hidden_commands(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut own = Command::new(command.get_name().to_owned())
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(visible.map(without_hidden_commands));
    if let Some(about) = command.get_about() {
        own = own.about(about.clone());
    }
    own
}

//! Refreshes short-lived credentials: values of header fields and metadata that a shell command prints. The command is
//! rerun at intervals during a run.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::formats::redaction;
use plimsoll_model::rows::template::CommandOutput;

use crate::screen::console;

/// How often a thread that reruns a command checks whether its plan has been dropped.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Whether shell commands and plugins named in plans are run, and whether they are announced first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlanCodePolicy {
    /// The plan is only shown, so its commands and plugins are not run.
    #[default]
    Skipped,
    /// The user started the run: commands are printed, then run.
    Announced,
    /// The parent process has already printed the commands.
    Unannounced,
}

/// Placeholder for the output of a command that is not run.
const NOT_RUN_PLACEHOLDER: &str = "not run";

impl PlanCodePolicy {
    /// Returns the output of a plan's command, or a placeholder if commands are not run.
    ///
    /// # Errors
    /// When the command can't be run, or fails.
    pub(crate) fn run_command(self, command: &str) -> Result<String, String> {
        match self {
            PlanCodePolicy::Skipped => return Ok(NOT_RUN_PLACEHOLDER.to_owned()),
            PlanCodePolicy::Announced => announce_command(command),
            PlanCodePolicy::Unannounced => {}
        }
        run_shell_command(command)
    }
}

/// Prints the plan's command, unless it was printed before.
fn announce_command(command: &str) {
    static ANNOUNCED_COMMANDS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut announced = ANNOUNCED_COMMANDS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if announced.insert(command.to_owned()) {
        console::print_notice(format_args!("running the plan's command: {command}"));
    }
}

/// Returns the output of a shell command without trailing line ends.
///
/// # Errors
/// When the command can't be run, or fails.
fn run_shell_command(command: &str) -> Result<String, String> {
    let ran = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .output();
    let output = ran.map_err(|e| format!("`{command}` can't be run: {e}"))?;
    if !output.status.success() {
        // What the command wrote to stderr may contain the secret.
        return Err(format!(
            "`{command}` ended with {}: run it in a shell to see why",
            output.status
        ));
    }
    let text = String::from_utf8(output.stdout);
    let text = text.map_err(|_| format!("`{command}` printed something that is not text"))?;
    let text = text.trim_end_matches(['\r', '\n']);
    // What a command prints is a credential, which a server may repeat.
    redaction::remember_secret(text);
    Ok(text.to_owned())
}

/// Starts threads that rerun the commands of a plan at their refresh intervals until the plan is dropped.
pub(crate) fn start_refreshing(plan: &Plan) {
    for value in plan.call.command_outputs() {
        let Some(every) = value.refresh else { continue };
        let value = Arc::downgrade(&value);
        let kept = thread::Builder::new().name("credentials".to_owned());
        if let Err(e) = kept.spawn(move || run_refresh_loop(&value, every)) {
            tracing::warn!("a header's command is not run again: {e}");
        }
    }
}

fn run_refresh_loop(value: &Weak<CommandOutput>, every: Duration) {
    let mut waited = Duration::ZERO;
    loop {
        thread::sleep(STOP_POLL_INTERVAL.min(every));
        waited += STOP_POLL_INTERVAL.min(every);
        let Some(value) = value.upgrade() else {
            return;
        };
        if waited < every {
            continue;
        }
        waited = Duration::ZERO;
        let set = run_shell_command(&value.command).and_then(|text| {
            let set = value.set(&text);
            set.map_err(|problem| format!("`{}`: {problem}", value.command))
        });
        if let Err(problem) = set {
            tracing::warn!("the old value is kept: {problem}");
        }
    }
}

//! The commands of protocols, such as `plimsoll grpc`: each is a short form of a plan. Without load flags a small
//! default load is made, so that a target can be tried out without choosing numbers first.

use std::time::Duration;

use clap::{Arg, Args, Command};
use plimsoll_model::spec::{LoadSpec, Spec};
use plimsoll_model::units::Period;
use plimsoll_protocols::registry::{COMMAND_ENTRIES, Entry};
use plimsoll_report::quantity::planned;

use super::picked::{Listed, Picked};
use crate::commands::{asking, report, sweep};
use crate::console;
use crate::environment;
use crate::execution::{self, By, OutputFlags};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::planning;
use crate::problems::Source;
use crate::process::Process;

/// Clients of the default load.
const DEFAULT_CLIENTS: u32 = 10;
/// Duration of the default load.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// What every load takes.
#[derive(Args, Debug)]
pub(crate) struct CallFlags {
    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(super) output: OutputFlags,
}

impl Listed for Entry {
    type Shared = CallFlags;

    fn all() -> &'static [Entry] {
        &COMMAND_ENTRIES
    }

    fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the command with a URL and the protocol's flags.
    fn command(&self) -> Command {
        let target = Arg::new("target")
            .value_name("URL")
            .env("PLIMSOLL_TARGET")
            .help(self.target);
        let command = self.with_flags(Command::new(self.name).arg(target));
        let questions = self.questions.iter().map(|question| question.command());
        command
            .next_help_heading(None::<&str>)
            .subcommands(questions)
            .after_help(format!(
                "{}\n\n{}",
                default_load_help(self),
                environment::VARIABLES_HELP
            ))
    }
}

pub(crate) fn execute(arguments: &Picked<Entry>, process: &Process) -> Result<Exit, Failure> {
    let environment = &process.environment;
    let (entry, CallFlags { load, output }) = (arguments.of, &arguments.shared);
    if let Some((name, typed)) = arguments.typed.subcommand()
        && let Some(question) = entry.questions.iter().find(|known| known.name == name)
    {
        let answer = asking::ask(question, typed, environment)?;
        console::result(answer.text)?;
        return Ok(Exit::Done);
    }
    let mut spec = Spec {
        target: arguments.typed.get_one("target").cloned(),
        ..Spec::default()
    };
    load.apply(&mut spec, &process.origins)?;
    let mut default_load = fill_in_clients(&mut spec.load, entry);
    let export = entry.apply(&arguments.typed, &mut spec, &|name: &str| {
        environment.value(name)
    })?;
    default_load = default_load.or_else(|| fill_in_time(&mut spec.load, entry));
    if spec.ladder.is_some() {
        default_load.into_iter().for_each(console::confirmation);
        return sweep::typed(&spec, output, process);
    }
    let plan = planning::plan(&spec, environment, &Source::Flags)?;
    default_load.into_iter().for_each(console::confirmation);
    execution::execute(&spec, &plan, output, process, By::Machine, |run| {
        report::export_besides(run, export)
    })
}

/// Returns the paragraph about the default load in a command's help.
fn default_load_help(entry: &Entry) -> String {
    let time = planned(DEFAULT_DURATION);
    if entry.schedules_itself {
        format!("Without --for and --duration: connections are held for {time}.")
    } else {
        format!(
            "Without --rate, --replay, --clients, --calls and --duration: {DEFAULT_CLIENTS} clients call for {time} (closed loop)."
        )
    }
}

/// Returns whether any load flag is given.
fn is_given(load: &LoadSpec) -> bool {
    let is_paced = load.rate.is_some()
        || load.steps.is_some()
        || load.clients.is_some()
        || load.recording_key().is_some();
    is_paced || load.duration.is_some() || load.calls.is_some()
}

/// Sets clients and duration of the default load if nothing is given; returns the line that says so. This precedes
/// the protocol's own flags, because the number of connections depends on it.
fn fill_in_clients(load: &mut LoadSpec, entry: &Entry) -> Option<String> {
    if is_given(load) || entry.schedules_itself {
        return None;
    }
    load.clients = Some(DEFAULT_CLIENTS);
    load.duration = Some(Period(DEFAULT_DURATION));
    Some(format!(
        "no load was given: {DEFAULT_CLIENTS} clients for {}; --rate 100/s --duration 30s asks for a steady rate, --clients 50 --calls 10000 for a number of calls",
        planned(DEFAULT_DURATION)
    ))
}

/// Sets the duration of the default load of a protocol that schedules itself, after the protocol's own flags, one of
/// which may set it.
fn fill_in_time(load: &mut LoadSpec, entry: &Entry) -> Option<String> {
    if is_given(load) || !entry.schedules_itself {
        return None;
    }
    load.duration = Some(Period(DEFAULT_DURATION));
    Some(format!(
        "no load was given: connections are held for {}; --connections 5000 --for 1m changes that",
        planned(DEFAULT_DURATION)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> &'static Entry {
        let found = COMMAND_ENTRIES.iter().find(|entry| entry.name == name);
        found.expect("a command")
    }

    #[test]
    fn default_load_is_ten_clients_for_ten_seconds() {
        for entry in COMMAND_ENTRIES
            .iter()
            .filter(|entry| !entry.schedules_itself)
        {
            let mut load = LoadSpec::default();
            let said = fill_in_clients(&mut load, entry).expect("a line");
            assert!(
                said.starts_with("no load was given: 10 clients for 10 s; "),
                "{said}"
            );
            assert!(!said.contains('\n'), "{said}");
            let filled = LoadSpec {
                clients: Some(10),
                duration: Some(Period(Duration::from_secs(10))),
                ..LoadSpec::default()
            };
            assert_eq!(load, filled, "{}", entry.name);
            assert_eq!(fill_in_time(&mut load, entry), None, "{}", entry.name);
        }
    }

    #[test]
    fn hold_duration_defaults_to_ten_seconds() {
        let mut load = LoadSpec::default();
        assert_eq!(fill_in_clients(&mut load, entry("hold")), None);
        let said = fill_in_time(&mut load, entry("hold")).expect("a line");
        assert!(said.contains("held for 10 s;"), "{said}");
        assert_eq!((load.clients, load.rate), (None, None));
    }

    /// An incomplete load is an error that planning reports; completing it could give an unintended load.
    #[test]
    fn partial_load_gets_no_defaults() {
        let http = entry("http");
        for typed in [
            LoadSpec {
                clients: Some(1),
                ..LoadSpec::default()
            },
            LoadSpec {
                calls: Some(1),
                ..LoadSpec::default()
            },
            LoadSpec {
                duration: Some(Period(Duration::from_secs(1))),
                ..LoadSpec::default()
            },
        ] {
            let mut load = typed.clone();
            assert_eq!(fill_in_clients(&mut load, http), None);
            assert_eq!(fill_in_time(&mut load, http), None);
            assert_eq!(load, typed);
        }
    }
}

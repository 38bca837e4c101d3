//! The commands of protocols that own themselves: the quick form of a plan, for each.

use clap::{Arg, Args, Command};
use plimsoll_model::spec::Spec;
use plimsoll_protocols::registry::{ENTRIES, Entry};

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
        &ENTRIES
    }

    fn name(&self) -> &'static str {
        self.name
    }

    /// A URL, and what the protocol takes.
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
            .after_help(environment::HELP)
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
    let export = entry.apply(&arguments.typed, &mut spec, &|name: &str| {
        environment.value(name)
    })?;
    if spec.ladder.is_some() {
        return sweep::typed(&spec, output, process);
    }
    let plan = planning::plan(&spec, environment, &Source::Flags)?;
    execution::execute(&spec, &plan, output, process, By::Machine, |run| {
        report::export_besides(run, export)
    })
}

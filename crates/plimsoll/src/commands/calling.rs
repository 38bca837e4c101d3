//! The commands of protocols that own themselves: the quick form of a plan, for each.

use clap::error::{Error, ErrorKind};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use plimsoll_model::spec::CallSpec;
use plimsoll_protocols::registry::{ENTRIES, Entry};

use crate::commands::asking::{self, Question};
use crate::commands::{report, sweep};
use crate::environment::{self, Environment};
use crate::execution::{self, OutputFlags};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::origins::Origins;
use crate::planning;
use crate::problems::Source;
use crate::process::Process;
use crate::quick;

/// What was typed for one of them.
#[derive(Debug)]
pub(crate) struct Arguments {
    entry: &'static Entry,
    question: Option<Question>,
    /// Its own flags.
    typed: ArgMatches,
    load: LoadFlags,
    pub(crate) output: OutputFlags,
}

/// A URL, what the protocol takes, and what every load takes.
fn command(entry: &Entry) -> Command {
    let target = Arg::new("target")
        .value_name("URL")
        .env("PLIMSOLL_TARGET")
        .help(entry.target);
    let command = entry.with_flags(Command::new(entry.name).arg(target));
    let about = command.get_about().cloned().unwrap_or_default();
    let command = command.next_help_heading(None::<&str>);
    let command = OutputFlags::augment_args(LoadFlags::augment_args(command));
    let command = match entry.reflects {
        true => Question::augment_subcommands(command),
        false => command,
    };
    command.about(about).after_help(environment::HELP)
}

impl Subcommand for Arguments {
    fn augment_subcommands(outer: Command) -> Command {
        outer.subcommands(ENTRIES.iter().map(command))
    }

    fn augment_subcommands_for_update(outer: Command) -> Command {
        Self::augment_subcommands(outer)
    }

    fn has_subcommand(name: &str) -> bool {
        ENTRIES.iter().any(|entry| entry.name == name)
    }
}

impl FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Arguments, Error> {
        let chosen = matches.subcommand().and_then(|(name, typed)| {
            let entry = ENTRIES.iter().find(|entry| entry.name == name)?;
            Some((entry, typed))
        });
        let (entry, typed) = chosen.ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
        let question = typed.subcommand();
        let question = question.map(|_| Question::from_arg_matches(typed));
        Ok(Arguments {
            entry,
            question: question.transpose()?,
            typed: typed.clone(),
            load: LoadFlags::from_arg_matches(typed)?,
            output: OutputFlags::from_arg_matches(typed)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Arguments::from_arg_matches(matches)?;
        Ok(())
    }
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    if let Some(question) = &arguments.question {
        return asking::answer(question, environment);
    }
    let target = arguments.typed.get_one::<String>("target");
    let target = target.map(String::as_str);
    let mut spec = quick::spec(target, CallSpec::default(), &arguments.load, origins)?;
    let variable = |name: &str| environment.get(name).map(|found| found.value);
    let entry = arguments.entry;
    let export = entry.apply(&arguments.typed, &mut spec, &variable)?;
    if spec.ladder.is_some() {
        return sweep::typed(&spec, &arguments.output, environment, process);
    }
    let plan = planning::plan(&spec, environment, &Source::Flags)?;
    execution::execute_then(&spec, &plan, &arguments.output, process, |run| {
        report::export_besides(run, export)
    })
}

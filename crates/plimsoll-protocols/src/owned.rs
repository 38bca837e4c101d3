//! What a protocol that owns itself is: its section, its flags, and what the engine needs for its calls.
//!
//! A protocol's options are one struct: the section of a plan, the flags of its command, their
//! variables, help and defaults are read from it. [`crate::registry`] lists the protocols.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use plimsoll_engine::{EngineError, Finished, Observation, Place, Protocol, Stop};
use plimsoll_model::spec::{self, CallSpec, Of, Section, Spec};
use plimsoll_model::{Plan, input};

/// Called once, it puts the load of this process on the target.
pub type Load<'a> = Box<
    dyn FnOnce(Place<'_>, &Stop, &mut dyn FnMut(Observation<'_>)) -> Result<Finished, EngineError>
        + 'a,
>;

/// What a load is made for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub plan: &'a Plan,
    /// Frames are written down as they are sent and received.
    pub trace: bool,
}

/// A mistake in what was typed, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    pub message: String,
    pub help: String,
}

/// A protocol all of which is in its folder.
pub trait Owned: Section {
    /// The help of the URL: its schemes, in words.
    const TARGET: &str;
    /// What its command takes besides a target and the flags of a load.
    type Flags: Args;

    /// The section that was typed as flags, some of which are another name for what other sections have. With a
    /// ladder in `spec` its rungs are measured, and not one run.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself.
    fn of(flags: Self::Flags, spec: &mut Spec) -> Result<Self, Usage>;

    /// What the engine needs for its calls.
    ///
    /// # Errors
    /// Where it can't make the calls that the plan asks for.
    fn load<'a>(asked: Asked<'a>, call: &Self::Call) -> Result<Load<'a>, String>;
}

/// An [`Owned`] protocol whose types are forgotten.
#[derive(Debug)]
pub struct Entry {
    pub(crate) protocol: &'static dyn spec::Protocol,
    pub target: &'static str,
    flags: fn(Command) -> Command,
    apply: fn(&ArgMatches, &mut Spec) -> Result<(), Usage>,
    pub(crate) load: for<'a> fn(Asked<'a>) -> Option<Result<Load<'a>, String>>,
}

impl Entry {
    pub(crate) const fn of<P: Owned>() -> Entry {
        Entry {
            protocol: const { &Of::<P>::NEW },
            target: P::TARGET,
            flags: P::Flags::augment_args,
            apply: apply::<P>,
            load: load_of::<P>,
        }
    }

    /// Names its section and its command.
    pub fn name(&self) -> &'static str {
        self.protocol.schemes().section
    }

    /// Adds what its command takes to `command`, and describes it.
    pub fn with_flags(&self, command: Command) -> Command {
        (self.flags)(command)
    }

    /// Makes `spec` one of the call that was typed.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself.
    pub fn apply(&self, typed: &ArgMatches, spec: &mut Spec) -> Result<(), Usage> {
        (self.apply)(typed, spec)
    }

    /// The keys of its section that can be typed, longer ones first, with their flags: a key `x_file` is
    /// `@FILE` of the flag of `x`, and where a flag of this name is everybody's it has the protocol's name
    /// before it.
    pub fn flags(&self) -> Vec<(String, String)> {
        let command = self.with_flags(Command::new(self.name()));
        let mut keys = self.protocol.keys().to_vec();
        keys.sort_by_key(|key| std::cmp::Reverse(key.len()));
        let flag = |key: &str| {
            let id = key.strip_suffix("_file").unwrap_or(key);
            let of = format!("{}_{id}", self.name());
            let mut arguments = command.get_arguments();
            let argument = arguments.find(|a| a.get_id() == id || a.get_id() == of.as_str());
            let flag = match argument {
                Some(argument) => format!("--{}", argument.get_long()?),
                // What the URL says may stand in the section.
                None if key == "path" => "URL".to_owned(),
                None => return None,
            };
            Some((format!("call.{}.{key}", self.name()), flag))
        };
        keys.into_iter().filter_map(flag).collect()
    }
}

/// What was typed, or the file that `@FILE` names; `@-` or `-`: what stdin holds.
///
/// # Errors
/// When stdin can't be read, or is no text.
pub(crate) fn text_or_file(
    typed: Option<&str>,
) -> Result<(Option<String>, Option<PathBuf>), Usage> {
    input::text_or_file(typed).map_err(|e| Usage {
        message: format!("@-: can't read stdin: {e}"),
        help: "pipe the text into this command, or name a file: @FILE".to_owned(),
    })
}

fn apply<P: Owned>(typed: &ArgMatches, spec: &mut Spec) -> Result<(), Usage> {
    let flags = P::Flags::from_arg_matches(typed).map_err(|e| Usage {
        message: e.to_string(),
        help: "--help lists what there is".to_owned(),
    })?;
    spec.call = CallSpec::of(&P::of(flags, spec)?).map_err(|problem| Usage {
        message: problem.to_string(),
        help: "give a name that is UTF-8".to_owned(),
    })?;
    Ok(())
}

fn load_of<P: Owned>(asked: Asked<'_>) -> Option<Result<Load<'_>, String>> {
    Some(P::load(asked, asked.plan.call.of_type()?))
}

/// The load of a protocol whose calls share connections, or have one each.
pub fn driven<'a, P>(asked: Asked<'a>, protocol: P) -> Load<'a>
where
    P: Protocol + 'a,
    P::Driver: Send,
{
    let Asked { plan, trace } = asked;
    Box::new(move |place, stop, observe| {
        plimsoll_engine::run(plan, protocol, place, trace, stop, observe)
    })
}

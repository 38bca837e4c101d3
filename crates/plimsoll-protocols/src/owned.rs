//! What a protocol that owns itself is: its section, its flags, and what the engine needs for its calls.
//!
//! A protocol's options are one struct: the section of a plan, the flags of its command, their
//! variables, help and defaults are read from it. [`crate::registry`] lists the protocols.

use std::any::Any;
use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command};
use plimsoll_engine::{EngineError, Finished, Observation, Place, Protocol, Stop, Trace};
use plimsoll_model::plan::{Call as _, Proxy};
use plimsoll_model::run::{Run, Timestamp};
use plimsoll_model::spec::{self, CallSpec, Schemes, Section, Spec};
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Plan, input};

use crate::asked::Ask;
use crate::foreign::lines::LineTool;
use crate::foreign::{Alias, Tool};
pub use crate::unmade::{RequestError, Unmade, Usage};

/// Called once, it puts the load of this process on the target.
pub type Load<'a> = Box<
    dyn FnOnce(Place<'_>, &Stop, &mut dyn FnMut(Observation<'_>)) -> Result<Finished, EngineError>
        + 'a,
>;

/// What a load is made for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What is to be done.
    pub plan: &'a Plan,
    /// Frames are written down as they are sent and received.
    pub trace: bool,
}

/// Reads a variable of the environment.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A format that runs are exported in, and the file or folder to write.
pub type Export = (&'static str, PathBuf);

/// Files in which other tools have what a protocol measures.
#[derive(Debug)]
pub struct Files {
    /// The name by which `report --export` knows them.
    pub name: &'static str,
    /// What they are, behind that name.
    pub about: &'static str,
    /// Writes a run into a folder.
    pub export: fn(&Run, &Path) -> Result<Written, Unread>,
    /// Whether a file is one of them that begins so.
    pub is_it: fn(&Path, &str) -> bool,
    /// Makes a run of a file, in a new directory: the file, the directory, the tool's version, and the time.
    pub import: fn(&Path, &Path, &str, Timestamp) -> Result<Run, Unread>,
}

/// Why a run was not written as other files, or not read from them.
pub type Unread = Box<dyn Error + Send + Sync>;

/// What was written, in words.
#[derive(Debug)]
pub enum Written {
    /// Everything.
    All(String),
    /// Part of it; the text says what is missing, and why.
    Part(String),
}

/// A folder that a plan names, which can't be handed to pods.
#[derive(Clone, Copy, Debug)]
pub struct Folder {
    /// The plan's key, with its section.
    pub key: &'static str,
    /// What to name in its place.
    pub help: &'static str,
}

/// There was no way to a server that had to be asked.
#[derive(Debug)]
pub struct Lost {
    /// What was in the way.
    pub why: Unmade,
    /// How to do without the server.
    pub help: Option<String>,
}

/// A protocol all of which is in its folder.
pub trait Owned: Section {
    /// What the engine needs for its calls.
    ///
    /// # Errors
    /// Where it can't make the calls that the plan asks for, or has no way to a target.
    fn load<'a>(asked: Asked<'a>, call: &Self::Call) -> Result<Load<'a>, Unmade>;

    /// Files in which other tools have what it measures.
    const FOREIGN_FILES: Option<&'static Files> = None;

    /// What is printed below the tables of a run of it; nothing where it is empty.
    fn below_tables(run: &Run) -> String {
        let _ = run;
        String::new()
    }

    /// Answers a question of its own ([`spec::Surroundings::ask`]) by asking the server of `spec`.
    fn ask(_question: &mut dyn Any, _spec: &Spec, _proxy: Option<&Proxy>) -> Option<Lost> {
        None
    }

    /// What to do where no connection came up, in a sentence; `{plain}` and `{secured}` stand for the schemes of the
    /// target, and `{KEY}` for the flag of a key. `None`: what is to be done with any protocol.
    fn advice(_call: &Self::Call, _outcome: Outcome) -> Option<&'static str> {
        None
    }

    /// A folder that the section names.
    fn folder(&self) -> Option<Folder> {
        None
    }
}

/// The flags of a command besides a target and the flags of a load: the quick form of a plan with this section.
pub trait Quick: Args {
    /// What is typed becomes this.
    type Section: Owned;
    /// The command's name.
    const COMMAND_NAME: &str = <Self::Section as Section>::SCHEMES.section;
    /// The help of the URL: its schemes, in words.
    const TARGET_HELP: &str;
    /// What its servers can be asked instead of loading them.
    const SERVER_QUESTIONS: &[Ask] = &[];
    /// Keys of the section that have flags of other names.
    const KEY_FLAGS: &[(&str, &str)] = &[];
    /// Variables of older scripts.
    const VARIABLE_ALIASES: &[Alias] = &[];
    /// Words of other tools, and ours in their place.
    const FLAG_SYNONYMS: &[(&str, &str)] = &[];
    /// The tool whose command lines it understands.
    const FOREIGN_TOOL: Option<&Tool> = None;
    /// The tools whose whole lines become lines of this command.
    const LINE_TOOLS: &'static [&'static LineTool] = &[];

    /// The section that was typed, where some flags are another name for what other sections have. With a
    /// ladder in `spec` its rungs are measured, and not one run.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself.
    fn section(self, spec: &mut Spec, variables: Variables<'_>) -> Result<Self::Section, Usage>;

    /// What its run is written as besides.
    fn export(&self) -> Option<Export> {
        None
    }
}

/// An [`Owned`] protocol whose type is forgotten.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) protocol: &'static spec::Protocol,
    pub(crate) load: for<'a> fn(Asked<'a>) -> Option<Result<Load<'a>, Unmade>>,
    pub(crate) files: Option<&'static Files>,
    pub(crate) below_tables: fn(&Run) -> String,
    pub(crate) ask: fn(&mut dyn Any, &Spec, Option<&Proxy>) -> Option<Lost>,
    pub(crate) advice: fn(&Plan, Outcome) -> Option<&'static str>,
    pub(crate) folder: fn(&CallSpec) -> Option<Folder>,
}

impl Kind {
    pub(crate) const fn of<P: Owned>() -> Kind {
        Kind {
            protocol: const { &spec::Protocol::of::<P>() },
            load: load_of::<P>,
            files: P::FOREIGN_FILES,
            below_tables: P::below_tables,
            ask: P::ask,
            advice: |plan, outcome| P::advice(plan.call.of_type()?, outcome),
            folder: |call| call.get::<P>()?.folder(),
        }
    }
}

type Apply = fn(&ArgMatches, &mut Spec, Variables<'_>) -> Result<Option<Export>, Usage>;

/// A [`Quick`] form whose types are forgotten.
#[derive(Debug)]
pub struct Entry {
    /// The command's name.
    pub name: &'static str,
    /// The help of the URL.
    pub target: &'static str,
    /// The form's [`Quick::SERVER_QUESTIONS`].
    pub questions: &'static [Ask],
    /// The form's [`Quick::VARIABLE_ALIASES`].
    pub aliases: &'static [Alias],
    /// The form's [`Quick::FLAG_SYNONYMS`].
    pub synonyms: &'static [(&'static str, &'static str)],
    /// The form's [`Quick::FOREIGN_TOOL`].
    pub tool: Option<&'static Tool>,
    /// The form's [`Quick::LINE_TOOLS`].
    pub line_tools: &'static [&'static LineTool],
    /// The section's [`Section::SCHEDULES_ITSELF`].
    pub schedules_itself: bool,
    keys: &'static [(&'static str, &'static str)],
    protocol: &'static spec::Protocol,
    flags: fn(Command) -> Command,
    apply: Apply,
}

impl Entry {
    pub(crate) const fn of<F: Quick>() -> Entry {
        Entry {
            name: F::COMMAND_NAME,
            target: F::TARGET_HELP,
            questions: F::SERVER_QUESTIONS,
            keys: F::KEY_FLAGS,
            aliases: F::VARIABLE_ALIASES,
            synonyms: F::FLAG_SYNONYMS,
            tool: F::FOREIGN_TOOL,
            line_tools: F::LINE_TOOLS,
            schedules_itself: F::Section::SCHEDULES_ITSELF,
            protocol: const { &spec::Protocol::of::<F::Section>() },
            flags: F::augment_args,
            apply: apply::<F>,
        }
    }

    /// Returns the schemes of its targets' URLs.
    pub fn schemes(&self) -> &'static Schemes {
        self.protocol.schemes
    }

    /// Adds what its command takes to `command`, and describes it.
    pub fn with_flags(&self, command: Command) -> Command {
        (self.flags)(command)
    }

    /// Makes `spec` one of the call that was typed; what its run is to be written as besides.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself.
    pub fn apply(
        &self,
        typed: &ArgMatches,
        spec: &mut Spec,
        variables: Variables<'_>,
    ) -> Result<Option<Export>, Usage> {
        (self.apply)(typed, spec, variables)
    }

    pub(crate) fn flags(&self) -> Vec<(String, String)> {
        let section = self.protocol.schemes.section;
        flags_of(
            &format!("call.{section}"),
            (self.protocol.keys)(),
            self.keys,
            self.with_flags(Command::new(self.name)),
        )
    }
}

/// The keys of a section that can be typed for `command`, longer ones first, with their flags: a flag's id is the key,
/// with the section's name before it where a flag of this name is everybody's; a key `x_file` is `@FILE` of the flag of
/// `x`. `known` are all keys, and `named` those whose flags have other ids.
pub fn flags_of(
    section: &str,
    known: &[&str],
    named: &[(&str, &str)],
    command: Command,
) -> Vec<(String, String)> {
    let is_known = |key: &str| {
        known
            .iter()
            .any(|known| key.split('.').next() == Some(*known))
    };
    let full = |key: &str| format!("{section}.{key}");
    let own = format!("{}_", section.trim_start_matches("call."));
    let named = named.iter();
    let mut keys: Vec<(String, String)> = named
        .map(|(key, flags)| (full(key), (*flags).to_owned()))
        .collect();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let id = id.strip_prefix(&own).unwrap_or(id);
        for key in [id.to_owned(), format!("{id}_file")] {
            if let Some(long) = argument.get_long().filter(|_| is_known(&key)) {
                keys.push((full(&key), format!("--{long}")));
            }
        }
    }
    // What the URL says may stand in the section.
    if known.contains(&"path") {
        keys.push((full("path"), "URL".to_owned()));
    }
    keys.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    keys
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

fn apply<F: Quick>(
    typed: &ArgMatches,
    spec: &mut Spec,
    variables: Variables<'_>,
) -> Result<Option<Export>, Usage> {
    let flags = F::from_arg_matches(typed)?;
    let export = flags.export();
    spec.call = CallSpec::of(&flags.section(spec, variables)?)?;
    Ok(export)
}

fn load_of<P: Owned>(asked: Asked<'_>) -> Option<Result<Load<'_>, Unmade>> {
    let call: &P::Call = asked.plan.call.of_type()?;
    Some(match call.traced(drawn_trace_ids()) {
        Some(call) => P::load(asked, &call),
        None => P::load(asked, call),
    })
}

/// Trace ids of its own for a load, or for what is asked before it: loads of one plan number their calls alike.
pub(crate) fn drawn_trace_ids() -> TraceIds {
    // What is hashed with keys of the system's randomness is random.
    let random = || RandomState::new().hash_one(());
    TraceIds::new(random(), random())
}

/// The load of a protocol whose calls share connections, or have one each.
pub fn driven<'a, P>(asked: Asked<'a>, protocol: P) -> Load<'a>
where
    P: Protocol + 'a,
    P::Driver: Send,
{
    let Asked { plan, trace } = asked;
    let trace = if trace { Trace::Frames } else { Trace::Nothing };
    Box::new(move |place, stop, observe| {
        plimsoll_engine::run(plan, protocol, place, trace, stop, observe)
    })
}

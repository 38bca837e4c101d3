//! The interface between a protocol's module and the rest of the program: its plan section, its command's
//! flags, and the load that the engine runs.
//!
//! A protocol's options are one struct: the section of a plan and the flags of its command, with their
//! variables, help and defaults, are read from it. [`crate::registry`] lists the protocols and calls them
//! for the binary.

use std::any::Any;
use std::error::Error;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args, Command};
use plimsoll_engine::{
    EngineError, Observation, Protocol, RunCompletion, RunRole, StopFlag, TraceLevel,
};
use plimsoll_model::plan::{Call as _, ForwardProxy};
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::runs::run::{Run, Timestamp};
use plimsoll_model::spec::{self, CallSection, CallSpec, Spec, UrlSchemes};
use plimsoll_model::{Outcome, Plan, formats::input};

use crate::interface::foreign::command_lines::LineTool;
use crate::interface::foreign::{ForeignTool, VariableAlias};
pub use crate::interface::prepare_error::{PrepareError, RequestError, UsageError};
use crate::interface::server_query::{QueryCommand, QueryContext};
use crate::interface::service_offer::ServiceOffer;

/// A load that is ready to run: called once, it runs this process's part of the load against the target.
pub type PreparedLoad<'a> = Box<
    dyn FnOnce(
            RunRole<'_>,
            &StopFlag,
            &mut dyn FnMut(Observation<'_>),
        ) -> Result<RunCompletion, EngineError>
        + 'a,
>;

/// The input from which a protocol prepares a load.
#[derive(Clone, Copy, Debug)]
pub struct PrepareRequest<'a> {
    /// The resolved plan.
    pub plan: &'a Plan,
    /// Whether frames are traced as they are sent and received (`--trace`).
    pub trace: bool,
}

/// A redirect that was followed before a load.
#[derive(Debug)]
pub struct RedirectHop {
    /// The URL that it leads to.
    pub url: String,
    /// The header fields and other credentials that were dropped because the URL has another origin.
    pub dropped: Vec<String>,
}

/// A function that looks up an environment variable.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A format to export the run in, and the file or folder to write.
pub type ExportTarget = (&'static str, PathBuf);

/// A file format of another tool for the results that a protocol measures.
#[derive(Debug)]
pub struct ForeignFormat {
    /// The format's name in `report --export`.
    pub name: &'static str,
    /// A description of the format, printed after its name.
    pub description: &'static str,
    /// Writes a run into a folder.
    pub export: fn(&Run, &Path) -> Result<ExportSummary, ForeignFormatError>,
    /// Returns true if a file with this path and this beginning is in the format.
    pub recognises: fn(&Path, &str) -> bool,
    /// Converts a file to a run. Arguments: the file, the new run directory, the tool's version, the time of the import.
    pub import: fn(&Path, &Path, &str, Timestamp) -> Result<Run, ForeignFormatError>,
}

/// The error of exporting a run to, or importing it from, another tool's format.
pub type ForeignFormatError = Box<dyn Error + Send + Sync>;

/// A kind of file of other tools that a protocol converts to plans.
#[derive(Debug)]
pub struct PlanSource {
    /// The kind of file, such as a recording or a service description.
    pub name: &'static str,
    /// Returns true if a file that begins with this text is of this kind.
    pub recognises: fn(&str) -> bool,
    /// Converts a file to a plan.
    pub import: fn(&PlanImportRequest<'_>) -> Result<PlanImportResult, ForeignFormatError>,
}

/// A request to convert a file to a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanImportRequest<'a> {
    /// The file's whole text.
    pub text: &'a str,
    /// The plan's name.
    pub name: &'a str,
    /// The origin of the target, such as `https://shop.example`. Default: the file's own.
    pub origin: Option<&'a str>,
    /// Whether requests of a recording to other sites than the target's are kept.
    pub all_origins: bool,
    /// Whether images, fonts, style sheets and scripts of a recording are kept.
    pub with_assets: bool,
    /// The operations of a service description that are kept. Default: the operations that only read.
    pub operations: &'a [String],
}

/// A plan that was converted from another tool's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanImportResult {
    /// The plan's text.
    pub plan: String,
    /// Notes about the conversion, including what was left out.
    pub notes: Vec<String>,
    /// The environment variables that the plan needs for secrets.
    pub variables: Vec<String>,
    /// The file of rows that the plan needs if `columns` is not empty.
    pub rows_file: String,
    /// The columns of the rows file that the plan needs for users' secrets.
    pub columns: Vec<String>,
}

/// A summary of an export, in words.
#[derive(Debug)]
pub enum ExportSummary {
    /// The whole run was exported.
    Complete(String),
    /// Some data could not be exported; the text says which, and why.
    Partial(String),
}

/// A local folder that a plan refers to. Kubernetes pods have no access to it.
#[derive(Clone, Copy, Debug)]
pub struct LocalFolder {
    /// The plan's key, including its section.
    pub key: &'static str,
    /// The advice on what to write in the plan instead of the folder.
    pub help: &'static str,
}

/// The error when a server that must be queried before a load cannot be reached.
#[derive(Debug)]
pub struct ServerUnreachable {
    /// The cause.
    pub why: PrepareError,
    /// How to run the load without querying the server.
    pub help: Option<String>,
}

/// A protocol, implemented by its plan section. All code of a protocol is in its own folder.
pub trait ProtocolModule: CallSection {
    /// Prepares a load of this protocol.
    ///
    /// # Errors
    /// Returns an error if the protocol can't make the calls that the plan asks for, or if the target can't be reached.
    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &Self::Call,
    ) -> Result<PreparedLoad<'a>, PrepareError>;

    /// Another tool's file format for this protocol's results.
    const FOREIGN_FORMAT: Option<&'static ForeignFormat> = None;

    /// The kinds of files of other tools that are converted to plans of this protocol.
    const PLAN_SOURCES: &'static [PlanSource] = &[];

    /// Returns the text to print below the tables of a run; an empty string prints nothing.
    fn report_footer(run: &Run) -> String {
        let _ = run;
        String::new()
    }

    /// Queries the server of `spec` for what the plan's resolver asks
    /// ([`spec::ResolveContext::answer_protocol_query`]), and stores the answer in the question. Ignores questions of
    /// other protocols; returns an error if the server can't be reached.
    fn query_server(
        _question: &mut dyn Any,
        _spec: &Spec,
        _proxy: Option<&ForwardProxy>,
    ) -> Option<ServerUnreachable> {
        None
    }

    /// Returns the advice to print when no connection could be established. `{plain}` and `{secured}` stand for the target's
    /// URL schemes, and `{KEY}` for the flag of a key. `None`: the general advice applies.
    fn connect_advice(_call: &Self::Call, _outcome: Outcome) -> Option<&'static str> {
        None
    }

    /// Returns a local folder that the section refers to.
    fn local_folder(&self) -> Option<LocalFolder> {
        None
    }
}

/// The flags of a protocol's command, apart from the target and the load flags that all commands share: a
/// short form of a plan with this section.
pub trait ProtocolCommand: Args {
    /// The plan section that the flags are converted to.
    type Section: ProtocolModule;
    /// The command's name.
    const COMMAND_NAME: &str = <Self::Section as CallSection>::SCHEMES.section;
    /// The help text of the URL argument: the schemes it may have.
    const TARGET_HELP: &str;
    /// Subcommands that query a server instead of loading it.
    const SERVER_QUERIES: &[QueryCommand] = &[];
    /// Keys of the section whose flags have other names, with those flags.
    const RENAMED_KEY_FLAGS: &[(&str, &str)] = &[];
    /// Environment variables of other tools, with the variables of this program that they stand for.
    const VARIABLE_ALIASES: &[VariableAlias] = &[];
    /// Flags of other tools, with the equivalent flags of this command.
    const FLAG_SYNONYMS: &[(&str, &str)] = &[];
    /// The tool whose command lines this command also accepts.
    const FOREIGN_TOOL: Option<&ForeignTool> = None;
    /// The tools whose whole command lines are translated to this command.
    const LINE_TOOLS: &'static [&'static LineTool] = &[];

    /// Converts the flags to a plan section. Flags that stand for keys of other sections are stored in `spec`; if a
    /// flag adds a ladder (a comparison of variants) to `spec`, its variants are measured instead of a single run.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid on its own.
    fn into_section(
        self,
        spec: &mut Spec,
        variables: EnvLookup<'_>,
    ) -> Result<Self::Section, UsageError>;

    /// Returns the maximum number of redirects to follow before the load.
    fn max_redirects(typed: &ArgMatches) -> u32 {
        let _ = typed;
        0
    }

    /// Sends the call of `plan`, which was resolved from `spec`, once. If the response is a redirect, changes `spec` to
    /// call the redirect's target and returns it; `None`: the response is not a redirect.
    ///
    /// # Errors
    /// Returns an error if the server can't be reached, or if the redirect can't be followed.
    fn follow_redirect(
        _plan: &Plan,
        _spec: &mut Spec,
    ) -> Result<Option<RedirectHop>, PrepareError> {
        Ok(None)
    }

    /// Returns the service that this protocol recognises at `address` (a URL, or HOST:PORT), if any.
    fn probe(address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
        let _ = (address, asking);
        None
    }

    /// Returns the format in which the run is exported in addition to the run directory.
    fn export_target(&self) -> Option<ExportTarget> {
        None
    }
}

/// A type-erased [`ProtocolModule`]: a table of its functions.
#[derive(Debug)]
pub(crate) struct ProtocolVtable {
    pub(crate) protocol: &'static spec::CallProtocol,
    pub(crate) load:
        for<'a> fn(PrepareRequest<'a>) -> Option<Result<PreparedLoad<'a>, PrepareError>>,
    pub(crate) foreign_format: Option<&'static ForeignFormat>,
    pub(crate) plan_sources: &'static [PlanSource],
    pub(crate) report_footer: fn(&Run) -> String,
    pub(crate) query_server:
        fn(&mut dyn Any, &Spec, Option<&ForwardProxy>) -> Option<ServerUnreachable>,
    pub(crate) advice: fn(&Plan, Outcome) -> Option<&'static str>,
    pub(crate) folder: fn(&CallSpec) -> Option<LocalFolder>,
}

impl ProtocolVtable {
    pub(crate) const fn new<P: ProtocolModule>() -> ProtocolVtable {
        ProtocolVtable {
            protocol: const { &spec::CallProtocol::new::<P>() },
            load: try_load::<P>,
            foreign_format: P::FOREIGN_FORMAT,
            plan_sources: P::PLAN_SOURCES,
            report_footer: P::report_footer,
            query_server: P::query_server,
            advice: |plan, outcome| P::connect_advice(plan.call.downcast_ref()?, outcome),
            folder: |call| call.get::<P>()?.local_folder(),
        }
    }
}

type ApplyFn =
    fn(&ArgMatches, &mut Spec, EnvLookup<'_>) -> Result<Option<ExportTarget>, UsageError>;

type ProbeFn = fn(&str, QueryContext<'_>) -> Option<ServiceOffer>;

type FollowRedirectFn = fn(&Plan, &mut Spec) -> Result<Option<RedirectHop>, PrepareError>;

/// A type-erased [`ProtocolCommand`].
#[derive(Debug)]
pub struct CommandEntry {
    /// The command's name.
    pub name: &'static str,
    /// The help text of the URL argument.
    pub target: &'static str,
    /// The command's [`ProtocolCommand::SERVER_QUERIES`].
    pub server_queries: &'static [QueryCommand],
    /// The command's [`ProtocolCommand::VARIABLE_ALIASES`].
    pub aliases: &'static [VariableAlias],
    /// The command's [`ProtocolCommand::FLAG_SYNONYMS`].
    pub synonyms: &'static [(&'static str, &'static str)],
    /// The command's [`ProtocolCommand::FOREIGN_TOOL`].
    pub foreign_tool: Option<&'static ForeignTool>,
    /// The command's [`ProtocolCommand::LINE_TOOLS`].
    pub line_tools: &'static [&'static LineTool],
    /// The section's [`CallSection::SCHEDULES_OWN_ARRIVALS`].
    pub schedules_itself: bool,
    keys: &'static [(&'static str, &'static str)],
    protocol: &'static spec::CallProtocol,
    flags: fn(Command) -> Command,
    apply: ApplyFn,
    max_redirects: fn(&ArgMatches) -> u32,
    follow_redirect: FollowRedirectFn,
    probe: ProbeFn,
}

impl CommandEntry {
    pub(crate) const fn new<F: ProtocolCommand>() -> CommandEntry {
        CommandEntry {
            name: F::COMMAND_NAME,
            target: F::TARGET_HELP,
            server_queries: F::SERVER_QUERIES,
            keys: F::RENAMED_KEY_FLAGS,
            aliases: F::VARIABLE_ALIASES,
            synonyms: F::FLAG_SYNONYMS,
            foreign_tool: F::FOREIGN_TOOL,
            line_tools: F::LINE_TOOLS,
            schedules_itself: F::Section::SCHEDULES_OWN_ARRIVALS,
            protocol: const { &spec::CallProtocol::new::<F::Section>() },
            flags: F::augment_args,
            apply: apply::<F>,
            max_redirects: F::max_redirects,
            follow_redirect: F::follow_redirect,
            probe: F::probe,
        }
    }

    /// Returns the URL schemes of the command's targets.
    pub fn schemes(&self) -> &'static UrlSchemes {
        self.protocol.schemes
    }

    /// Adds the command's flags and its description to `command`.
    pub fn with_flags(&self, command: Command) -> Command {
        (self.flags)(command)
    }

    /// Stores the flags in `spec` as a call of this protocol. Returns the format to export the run in, if one was
    /// requested.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid on its own.
    pub fn apply(
        &self,
        typed: &ArgMatches,
        spec: &mut Spec,
        variables: EnvLookup<'_>,
    ) -> Result<Option<ExportTarget>, UsageError> {
        (self.apply)(typed, spec, variables)
    }

    /// Returns the maximum number of redirects to follow before the load.
    pub fn max_redirects(&self, typed: &ArgMatches) -> u32 {
        (self.max_redirects)(typed)
    }

    /// Sends the call of `plan`, which was resolved from `spec`, once. If the response is a redirect, changes `spec` to
    /// call the redirect's target and returns it; `None`: the response is not a redirect.
    ///
    /// # Errors
    /// Returns an error if the server can't be reached, or if the redirect can't be followed.
    pub fn follow_redirect(
        &self,
        plan: &Plan,
        spec: &mut Spec,
    ) -> Result<Option<RedirectHop>, PrepareError> {
        (self.follow_redirect)(plan, spec)
    }

    /// Returns the service that the command's protocol recognises at `address` (a URL, or HOST:PORT), if any.
    pub fn probe(&self, address: &str, asking: QueryContext<'_>) -> Option<ServiceOffer> {
        (self.probe)(address, asking)
    }

    pub(crate) fn flags(&self) -> Vec<(String, String)> {
        let section = self.protocol.schemes.section;
        pair_keys_with_flags(
            &format!("call.{section}"),
            (self.protocol.keys)(),
            self.keys,
            self.with_flags(Command::new(self.name)),
        )
    }
}

/// Returns each key of the section with the flag of `command` that sets it, longest key first. A flag's id is its key,
/// prefixed with the section's name if another flag uses that id; the key `x_file` is set by `@FILE` in the flag of
/// `x`. `known` lists all keys of the section. `named` lists the keys whose flags have other ids, with those flags.
pub fn pair_keys_with_flags(
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
    // A plan may give the path as a key of the section; on the command line it is part of the URL.
    if known.contains(&"path") {
        keys.push((full("path"), "URL".to_owned()));
    }
    keys.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
    keys
}

/// Splits a flag's value into text and file: plain text, or the path after `@`. `@-` and `-` read the text
/// from stdin.
///
/// # Errors
/// Returns an error if stdin can't be read or is not UTF-8.
pub(crate) fn split_text_or_file(
    typed: Option<&str>,
) -> Result<(Option<String>, Option<PathBuf>), UsageError> {
    input::read_text_argument(typed).map_err(|e| UsageError {
        message: format!("@-: can't read stdin: {e}"),
        help: "pipe the text into this command, or name a file: @FILE".to_owned(),
    })
}

fn apply<F: ProtocolCommand>(
    typed: &ArgMatches,
    spec: &mut Spec,
    variables: EnvLookup<'_>,
) -> Result<Option<ExportTarget>, UsageError> {
    let flags = F::from_arg_matches(typed)?;
    let export = flags.export_target();
    spec.call = CallSpec::from_section(&flags.into_section(spec, variables)?)?;
    Ok(export)
}

fn try_load<P: ProtocolModule>(
    asked: PrepareRequest<'_>,
) -> Option<Result<PreparedLoad<'_>, PrepareError>> {
    let call: &P::Call = asked.plan.call.downcast_ref()?;
    Some(match call.with_trace_ids(random_trace_ids()) {
        Some(call) => P::load(asked, &call),
        None => P::load(asked, call),
    })
}

/// Draws random trace ids for one load, or for the queries before it. They must be random, because several loads of one
/// plan give their calls the same numbers.
pub(crate) fn random_trace_ids() -> TraceIds {
    // `RandomState` has random keys, so even a hash of nothing is random.
    let random = || RandomState::new().hash_one(());
    TraceIds::new(random(), random())
}

/// Prepares a load that the engine runs with the driver of `protocol`, with shared connections or one for each call.
pub fn load_with_driver<'a, P>(asked: PrepareRequest<'a>, protocol: P) -> PreparedLoad<'a>
where
    P: Protocol + 'a,
    P::Driver: Send,
{
    let PrepareRequest { plan, trace } = asked;
    let trace = if trace {
        TraceLevel::Frames
    } else {
        TraceLevel::Off
    };
    Box::new(move |place, stop, observe| {
        plimsoll_engine::run(plan, protocol, place, trace, stop, observe)
    })
}

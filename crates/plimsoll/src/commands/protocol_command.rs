//! The commands of protocols, such as `plimsoll grpc`: each is a short form of a plan. Without load flags, a command
//! runs a small default load, so that users can try a target without choosing numbers first.

use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{self, LoadSpec, Spec};
use plimsoll_protocols::registry::{self, COMMAND_ENTRIES, CommandEntry, ExportTarget};
use plimsoll_report::quantity::planned_time;

use super::registry_commands::{EntryInvocation, RegistryEntry};
use crate::commands::{query, redirects, report, sweep};
use crate::failure::{Exit, Failure};
use crate::load::execution::{self, LoadRunner, OutputFlags};
use crate::load::planning;
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::settings::environment::{self, Environment};
use crate::settings::load_flags::LoadFlags;
use crate::settings::origins::FlagOrigins;
use crate::settings::problems::PlanSource;

/// Number of clients in the default load.
const DEFAULT_CLIENTS: u32 = 10;
/// Duration of the default load.
const DEFAULT_DURATION: Duration = Duration::from_secs(10);

/// Flags common to all protocol commands: load flags and output flags.
#[derive(Args, Debug)]
pub(crate) struct CallFlags {
    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(super) output: OutputFlags,
}

impl RegistryEntry for CommandEntry {
    type SharedFlags = CallFlags;

    fn all() -> &'static [CommandEntry] {
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
        let questions = self
            .server_queries
            .iter()
            .map(|question| question.command());
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

pub(crate) fn execute(
    arguments: &EntryInvocation<CommandEntry>,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let environment = &process.environment;
    let (entry, output) = (arguments.entry, &arguments.shared.output);
    if let Some((name, typed)) = arguments.matches.subcommand()
        && let Some(question) = entry.server_queries.iter().find(|known| known.name == name)
    {
        let answer = query::send_query(question, typed, environment)?;
        console::print_result(answer.text)?;
        return Ok(Exit::Done);
    }
    let ResolvedInvocation {
        mut spec,
        default_load,
        export,
    } = resolve_invocation(arguments, &process.origins, environment)?;
    if spec.ladder.is_some() {
        default_load
            .into_iter()
            .for_each(console::print_confirmation);
        return sweep::run_ladder_from_flags(&spec, output, process);
    }
    let mut plan = planning::resolve_plan(&spec, environment, &PlanSource::Flags)?;
    let limit = entry.max_redirects(&arguments.matches);
    if limit > 0 {
        plan = redirects::follow_redirects(entry, limit, (&mut spec, plan), environment)?;
    }
    default_load
        .into_iter()
        .for_each(console::print_confirmation);
    execution::execute(&spec, &plan, output, process, LoadRunner::Local, |run| {
        report::export_if_requested(run, export)
    })
}

/// The spec that a protocol command's flags describe, and where to export the run.
pub(crate) struct ResolvedInvocation {
    pub(crate) spec: Spec,
    /// The message about the default load; `None` if load flags were given.
    default_load: Option<String>,
    export: Option<ExportTarget>,
}

/// Converts the flags of a protocol command to a spec, without sending anything.
///
/// # Errors
/// When a flag's value is invalid.
pub(crate) fn resolve_invocation(
    arguments: &EntryInvocation<CommandEntry>,
    origins: &FlagOrigins,
    environment: &Environment,
) -> Result<ResolvedInvocation, Failure> {
    let entry = arguments.entry;
    let mut spec = Spec {
        target: arguments.matches.get_one("target").cloned(),
        ..Spec::default()
    };
    arguments.shared.load.apply(&mut spec, origins)?;
    if let Some(url) = spec.target.as_deref().and_then(|typed| {
        let (plain, secured) = schemes(entry);
        let is_secured = spec.tls.is_some() || typed.split('/').next()?.ends_with(":443");
        with_scheme(typed, if is_secured { secured } else { plain })
    }) {
        console::print_confirmation(format_args!("target: {url}"));
        spec.target = Some(url);
    }
    let line = abbreviated_command_line(entry, spec.target.as_deref(), &arguments.matches);
    let mut default_load = set_default_load(&mut spec.load, entry, &line);
    let export = entry.apply(&arguments.matches, &mut spec, &|name: &str| {
        environment.value(name)
    })?;
    default_load = default_load
        .or_else(|| set_default_duration(&mut spec.load, entry))
        .or_else(|| set_default_clients(&mut spec.load, entry, &line));
    Ok(ResolvedInvocation {
        spec,
        default_load,
        export,
    })
}

/// Returns the paragraph about the default load in a command's help.
fn default_load_help(entry: &CommandEntry) -> String {
    let time = planned_time(DEFAULT_DURATION);
    if entry.schedules_itself {
        format!("Without --for and --duration: connections are held for {time}.")
    } else {
        format!(
            "Without --rate, --replay and --clients: as many clients as --connections says, or {DEFAULT_CLIENTS}, make call after call (closed loop), without --calls and --duration for {time}."
        )
    }
}

/// Returns whether any load flag is given.
fn has_load_flags(load: &LoadSpec) -> bool {
    let is_paced = load.rate.is_some()
        || load.steps.is_some()
        || load.clients.is_some()
        || load.recording_key().is_some();
    is_paced || load.duration.is_some() || load.calls.is_some()
}

/// Returns the schemes of the command's URLs, plaintext and over TLS.
fn schemes(entry: &CommandEntry) -> (&'static str, &'static str) {
    let own = format!("{}://", entry.name);
    if registry::command_for_url(&own) == Some(entry.name) {
        return spec::schemes_for_url(&own);
    }
    let schemes = entry.schemes();
    (schemes.plain, schemes.secured.unwrap_or(schemes.plain))
}

/// Puts `scheme` in front of HOST:PORT, with or without a path; `None` if the target already has a scheme, or is not
/// of that form.
fn with_scheme(typed: &str, scheme: &str) -> Option<String> {
    let authority = typed.split(['/', '?']).next()?;
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let has_host = authority == "localhost" || authority.contains(['.', ':']);
    let is_address = port.is_none_or(|port| port.parse::<u16>().is_ok());
    let is_url =
        typed.contains("://") || spec::is_unix_socket(typed) || authority.contains(['@', ' ']);
    (has_host && is_address && !authority.starts_with(':') && !is_url)
        .then(|| format!("{scheme}://{typed}"))
}

/// Returns the command line, with an ellipsis in place of its flags.
fn abbreviated_command_line(
    entry: &CommandEntry,
    target: Option<&str>,
    typed: &ArgMatches,
) -> String {
    let is_typed = |id: &str| typed.value_source(id) == Some(ValueSource::CommandLine);
    let mut ids = typed.ids().map(clap::Id::as_str);
    let has_flags = ids.any(|id| id != "target" && is_typed(id));
    let target = target.map_or("URL".into(), shell_words::quote);
    let flags = if has_flags { " …" } else { "" };
    format!("plimsoll {} {target}{flags}", entry.name)
}

/// Sets clients and duration of the default load if no load flag is given, and returns a message about it. Call this
/// before applying the protocol's own flags, which derive a number of connections from the clients.
fn set_default_load(load: &mut LoadSpec, entry: &CommandEntry, line: &str) -> Option<String> {
    if has_load_flags(load) || entry.schedules_itself {
        return None;
    }
    load.clients = Some(DEFAULT_CLIENTS);
    load.duration = Some(Period(DEFAULT_DURATION));
    Some(format!(
        "no load was given: {DEFAULT_CLIENTS} clients for {}. The same, spelled out: {line} --clients {DEFAULT_CLIENTS} --duration {}",
        planned_time(DEFAULT_DURATION),
        Period(DEFAULT_DURATION)
    ))
}

/// Sets the clients of a load that has a duration or a number of calls but neither clients nor a rate: one client per
/// connection, as in other tools. Returns a message about the chosen clients. Call this after applying the protocol's
/// own flags, because some protocols set clients or a rate by default.
fn set_default_clients(load: &mut LoadSpec, entry: &CommandEntry, line: &str) -> Option<String> {
    let is_shaped = load.clients.is_some()
        || load.rate.is_some()
        || load.steps.is_some()
        || load.recording_key().is_some();
    if is_shaped || entry.schedules_itself {
        return None;
    }
    let calls = load
        .calls
        .map_or(u32::MAX, |calls| u32::try_from(calls).unwrap_or(u32::MAX));
    let clients = load
        .connections
        .unwrap_or(DEFAULT_CLIENTS)
        .min(calls)
        .max(1);
    load.clients = Some(clients);
    if load.calls.is_none() && load.duration.is_none() {
        load.duration = Some(Period(DEFAULT_DURATION));
    }
    let many = if clients == 1 {
        "1 client makes".to_owned()
    } else {
        format!("{clients} clients make")
    };
    Some(format!(
        "neither a rate nor clients were given: {many} call after call. The same, spelled out: {line} --clients {clients}; --rate 100/s sends at a rate instead"
    ))
}

/// Sets the default duration for a protocol that schedules its calls itself. Call this after applying the protocol's
/// own flags, because one of them may set the duration.
fn set_default_duration(load: &mut LoadSpec, entry: &CommandEntry) -> Option<String> {
    if has_load_flags(load) || !entry.schedules_itself {
        return None;
    }
    load.duration = Some(Period(DEFAULT_DURATION));
    Some(format!(
        "no load was given: connections are held for {}; --connections 5000 --for 1m changes that",
        planned_time(DEFAULT_DURATION)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> &'static CommandEntry {
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
            let said = set_default_load(&mut load, entry, "plimsoll http URL").expect("a line");
            assert!(
                said.ends_with(
                    "10 clients for 10 s. The same, spelled out: plimsoll http URL --clients 10 --duration 10s"
                ),
                "{said}"
            );
            assert!(!said.contains('\n'), "{said}");
            let filled = LoadSpec {
                clients: Some(10),
                duration: Some(Period(Duration::from_secs(10))),
                ..LoadSpec::default()
            };
            assert_eq!(load, filled, "{}", entry.name);
            assert_eq!(
                set_default_duration(&mut load, entry),
                None,
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn host_and_port_get_scheme_of_command() {
        for (typed, whole) in [
            ("localhost:50051", Some("grpc://localhost:50051")),
            ("10.0.0.1:1/x?y", Some("grpc://10.0.0.1:1/x?y")),
            ("[::1]:5", Some("grpc://[::1]:5")),
            ("localhost", Some("grpc://localhost")),
            ("a.example", Some("grpc://a.example")),
            ("grpcs://a:1", None),
            ("unix:/a", None),
            ("me:hush@a:1", None),
            ("http:/a", None),
            ("100", None),
            (":80", None),
        ] {
            assert_eq!(with_scheme(typed, "grpc").as_deref(), whole, "{typed}");
        }
        plimsoll_protocols::registry::register_protocols();
        assert_eq!(schemes(entry("ws")), ("ws", "wss"));
        assert_eq!(schemes(entry("llm")), ("http", "https"));
        assert_eq!(schemes(entry("bolt")), ("sofa", "sofas"));
    }

    #[test]
    fn hold_duration_defaults_to_ten_seconds() {
        let mut load = LoadSpec::default();
        assert_eq!(
            set_default_load(&mut load, entry("hold"), "plimsoll hold URL"),
            None
        );
        let said = set_default_duration(&mut load, entry("hold")).expect("a line");
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
            assert_eq!(set_default_load(&mut load, http, "plimsoll http URL"), None);
            assert_eq!(set_default_duration(&mut load, http), None);
            assert_eq!(load, typed);
        }
    }
}

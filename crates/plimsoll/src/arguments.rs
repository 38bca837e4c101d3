//! The command line: what may be typed, and where each value came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};

use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{
    ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand,
};

use plimsoll_engine::Address;
use plimsoll_model::plan::UnixSocket;
use serde_json::Value;

use crate::commands;
use crate::console;
use crate::documents::DocumentFlags;
use crate::environment::{self, Environment};
use crate::failure::{Exit, Failure};
use crate::flag_names;
use crate::help;
use crate::logging::Format;
use crate::progress::Wish;
use crate::variables;
use crate::version;
use crate::words;

/// Finds the load line of a secure link: how much traffic it carries before your latency objective breaks.
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll",
    version,
    long_version = version::LONG,
    before_help = "Example: a server, and 1000 calls a second for ten seconds against it\n  \
        plimsoll serve score --listen 127.0.0.1:50051 &\n  \
        plimsoll grpc grpc://127.0.0.1:50051 -m score.ScoreService/GetScore \\\n      \
        -d '{\"json\": \"[0.1, 0.2]\"}' --rate 1000/s --duration 10s",
    after_help = environment::HELP,
    subcommand_required = true,
    arg_required_else_help = true,
    propagate_version = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Chosen,

    /// Progress on stderr: live, lines or none [default: live on a terminal, lines elsewhere].
    #[arg(
        long,
        global = true,
        value_name = "HOW",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "Messages"
    )]
    pub(crate) progress: Wish,

    /// Only results and errors: no progress.
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub(crate) quiet: bool,

    /// Report what happens: connections, TLS, decisions.
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub(crate) verbose: bool,

    /// Report everything: TLS events, frames and state changes of each connection.
    #[arg(long, global = true, help_heading = "Messages")]
    pub(crate) trace: bool,

    /// Tell programs what a run does while it goes on: HOST:PORT to answer scrapes with OpenMetrics at /metrics, or
    /// the URL of an OTLP collector to post metrics to.
    #[arg(long, global = true, value_name = "WHERE", help_heading = "Messages")]
    pub(crate) telemetry: Option<String>,

    /// Messages as text, or json: an object a line [default: text].
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "Messages"
    )]
    pub(crate) log_format: Format,
}

/// Every command. A flag's variable is its name, and one that is given or not takes `1` and `yes` as well as
/// `true`, since flags come from variables too.
pub(crate) fn command() -> Command {
    with_variables(Cli::command())
}

fn with_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let arg = match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        };
        match (arg.get_long(), arg.get_env()) {
            (Some(long), None) => {
                let name = long.replace('-', "_").to_uppercase();
                arg.env(format!("PLIMSOLL_{name}"))
            }
            _ => arg,
        }
    });
    command.mut_subcommands(with_variables)
}

/// Where to listen, as typed for a flag.
///
/// # Errors
/// When it is no address.
pub(crate) fn listening_address(flag: &str, typed: &str) -> Result<Address, Failure> {
    let wrong = |problem: String| {
        Failure::usage(
            format_args!("{flag}: {problem}"),
            "write HOST:PORT, such as 127.0.0.1:50051 or [::]:50051; port 0 takes any free one; or unix:/PATH",
        )
    };
    if let Some(socket) = UnixSocket::parse(typed) {
        return socket.map(Address::Unix).map_err(wrong);
    }
    let addresses = typed
        .to_socket_addrs()
        .map_err(|e| wrong(format!("`{typed}`: {e}")))?;
    // Where a name has both kinds of address, the older one is what others expect.
    let first = addresses.min_by_key(SocketAddr::is_ipv6);
    let first = first.ok_or_else(|| wrong(format!("`{typed}` has no address")))?;
    Ok(Address::Tcp(first))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Chosen {
    Run(commands::run::Arguments),
    Find(commands::find::Arguments),
    Ladder(Box<commands::ladder::Arguments>),
    Sweep(commands::sweep::Arguments),
    #[command(flatten)]
    Call(Box<commands::calling::Arguments>),
    Shard(commands::shard::Arguments),
    Report(commands::report::Arguments),
    Compare(commands::compare::Arguments),
    Import(commands::import::Arguments),
    Merge(commands::merge::Arguments),
    Watch(commands::watch::Arguments),
    View(commands::view::Arguments),
    Slurm(commands::slurm::Arguments),
    Kubernetes(commands::kubernetes::Arguments),
    Check(commands::check::Arguments),
    Serve(commands::serve::Arguments),
    Relay(commands::relay::Arguments),
    Stack(commands::stack::Arguments),
    Certs(commands::certs::Arguments),
    Payload(commands::payload::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

impl Chosen {
    /// What a command that measures leaves for other programs.
    pub(crate) fn documents(&self) -> Option<&DocumentFlags> {
        match self {
            Chosen::Run(arguments) => Some(arguments.output.documents()),
            Chosen::Find(arguments) => Some(&arguments.documents),
            Chosen::Ladder(arguments) => Some(&arguments.climb.documents),
            Chosen::Sweep(arguments) => Some(&arguments.climb.documents),
            Chosen::Call(arguments) => Some(arguments.output.documents()),
            Chosen::Merge(arguments) => Some(&arguments.documents),
            Chosen::Stack(arguments) => arguments.documents(),
            _ => None,
        }
    }
}

/// `--json`, for the commands that a program may read.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Json {
    /// Prints `document` where JSON is wanted, and `text` elsewhere.
    ///
    /// # Errors
    /// When stdout can't be written to.
    pub(crate) fn result(&self, document: &Value, text: impl Display) -> Result<(), Failure> {
        match self.json {
            true => console::result(format_args!("{document}\n")),
            false => console::result(format_args!("{text}\n")),
        }
    }
}

/// How much a value means, the strongest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Strength {
    File,
    Alias,
    Variable,
    CommandLine,
}

/// Where the values of the chosen command came from, by argument id.
#[derive(Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, (Strength, String)>);

impl Origins {
    pub(crate) fn strength(&self, id: &str) -> Option<Strength> {
        self.0.get(id).map(|(strength, _)| *strength)
    }

    /// The variables that took effect, for a person to see.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.0
            .values()
            .filter(|(strength, _)| *strength != Strength::CommandLine)
            .map(|(_, variable)| variable.as_str())
    }
}

/// Reads the command line, with variables standing in for flags.
///
/// # Errors
/// Help and version (already printed) as [`Exit::Done`], mistakes (already reported) as [`Exit::Usage`].
pub(crate) fn parse(
    typed: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Result<(Cli, Origins), Exit> {
    let reported = |failure: Failure| {
        failure.show();
        failure.exit()
    };
    let typed = words::ours(typed.into_iter().collect()).map_err(reported)?;
    let mut stand_ins = BTreeMap::new();
    let mut command = with_stand_ins(self::command(), "", environment, &mut stand_ins);
    let own = |word: &&OsString| *word != "--";
    if typed.iter().take_while(own).any(|word| word == "-h") {
        command = help::short(command);
    }
    let parsed = command.try_get_matches_from_mut(typed).and_then(|matches| {
        check_places(&matches)?;
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, origins(&command, &matches, &stand_ins)))
    });
    if parsed.is_ok() {
        variables::check(&command, environment).map_err(reported)?;
    }
    parsed.map_err(|error| {
        let _ = error.print();
        if let Some(variable) = blamed_variable(&error, &stand_ins, environment) {
            console::notice(format_args!(
                "note: the value is that of {variable} in the environment"
            ));
        }
        if error.use_stderr() {
            Exit::Usage
        } else {
            Exit::Done
        }
    })
}

/// A flag typed before a command's own command would mean nothing to it.
fn check_places(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Some((outer, chosen)) = matches.subcommand() else {
        return Ok(());
    };
    let Some((inner, _)) = chosen.subcommand() else {
        return Ok(());
    };
    let is_typed = |id: &clap::Id| {
        chosen.try_contains_id(id.as_str()).unwrap_or(false)
            && chosen.value_source(id.as_str()) == Some(ValueSource::CommandLine)
            // They mean the same everywhere.
            && !["progress", "quiet", "verbose", "trace", "log_format", "telemetry"].contains(&id.as_str())
    };
    match chosen.ids().find(|id| is_typed(id)) {
        None => Ok(()),
        Some(id) => Err(clap::Error::raw(
            clap::error::ErrorKind::ArgumentConflict,
            format!(
                "`{}` of `plimsoll {outer}` can't be used with `{inner}`: write what belongs to `{inner}` after it\n",
                id.as_str().replace('_', "-")
            ),
        )),
    }
}

/// The stand-ins found: by argument id the value's variable and strength.
type StandIns = BTreeMap<String, (Strength, String)>;

/// Gives every argument whose variable is not set, but whose alias or line in `.env` is,
/// that value as its default. (A default is weaker than clap's own reading of the variable.)
/// `path`: its words after the program's name.
fn with_stand_ins(
    command: Command,
    path: &str,
    environment: &Environment,
    found: &mut StandIns,
) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    let command = command.mut_args(|arg| {
        // A variable has one value; of a flag that is given several times, one a line.
        let several = matches!(arg.get_action(), ArgAction::Append);
        let arg = if several && arg.get_value_delimiter().is_none() {
            arg.value_delimiter('\n')
        } else {
            arg
        };
        let variable = arg.get_env().and_then(|v| v.to_str()).map(str::to_owned);
        let Some(stand_in) = variable.and_then(|v| environment.stand_in(&v, path)) else {
            return arg;
        };
        let strength = if stand_in.from_file {
            Strength::File
        } else {
            Strength::Alias
        };
        found.insert(arg.get_id().to_string(), (strength, stand_in.variable));
        arg.default_value(stand_in.value)
    });
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |sub| {
            with_stand_ins(sub, path.trim_start(), environment, found)
        })
    })
}

/// Of the innermost command.
fn origins(command: &Command, matches: &ArgMatches, stand_ins: &StandIns) -> Origins {
    if let Some((name, inner)) = matches.subcommand()
        && let Some(command) = command.find_subcommand(name)
    {
        return origins(command, inner, stand_ins);
    }
    flag_names::are_of(command);
    let mut origins = BTreeMap::new();
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let origin = match matches.value_source(id) {
            None => continue,
            Some(ValueSource::CommandLine) => (Strength::CommandLine, String::new()),
            Some(ValueSource::EnvVariable) => {
                let variable = arg.get_env().unwrap_or_default();
                (Strength::Variable, variable.to_string_lossy().into_owned())
            }
            _ => match stand_ins.get(id) {
                Some(stand_in) => stand_in.clone(),
                None => continue,
            },
        };
        origins.insert(id.to_owned(), origin);
    }
    Origins(origins)
}

/// The variable behind an invalid value that was not typed.
fn blamed_variable(
    error: &clap::Error,
    stand_ins: &StandIns,
    environment: &Environment,
) -> Option<String> {
    let ContextValue::String(argument) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let flag = argument.split([' ', '=']).next()?.to_owned();
    let typed = std::env::args().any(|word| word.split('=').next() == Some(&flag));
    let id = flag.trim_start_matches('-').replace('-', "_");
    if typed || !flag.starts_with("--") {
        return None;
    }
    match stand_ins.get(&id) {
        Some((_, variable)) => Some(variable.clone()),
        None => {
            // A short flag may have been typed.
            let variable = format!("PLIMSOLL_{}", id.to_uppercase());
            let value = environment.get(&variable)?.value;
            let wrong = error.get(ContextKind::InvalidValue)?;
            (*wrong == ContextValue::String(value)).then_some(variable)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_has_its_variable() {
        fn check(command: &Command, path: &str) {
            for arg in command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some())
            {
                let long = arg.get_long().unwrap_or_default();
                if ["help", "version"].contains(&long) {
                    continue;
                }
                let name = long.replace('-', "_").to_uppercase();
                assert_eq!(
                    arg.get_env().and_then(|v| v.to_str()),
                    Some(format!("PLIMSOLL_{name}").as_str()),
                    "{path} --{long}"
                );
            }
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&command(), "plimsoll");
    }

    /// Whatever puts a load writes its documents itself.
    #[test]
    fn every_command_with_a_load_has_documents() {
        fn check(command: &Command, path: &str) -> usize {
            let has = |long: &str| command.get_arguments().any(|a| a.get_long() == Some(long));
            let loads = has("connections");
            for document in ["json", "junit", "markdown", "html"] {
                assert!(!loads || has(document), "{path} --{document}");
            }
            let subs = command.get_subcommands();
            subs.map(|sub| check(sub, &format!("{path} {}", sub.get_name())))
                .sum::<usize>()
                + usize::from(loads)
        }
        assert!(check(&command(), "plimsoll") > 10);
    }

    #[test]
    fn every_help_begins_with_an_example() {
        fn check(command: &Command, path: &str) {
            let help = command
                .get_before_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.starts_with("Example"), "{path}");
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&command(), "plimsoll");
    }
}

//! Defines the command line: one file per command.

mod asking;
pub(crate) mod assay;
pub(crate) mod calling;
pub(crate) mod certs;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
mod conclusion;
pub(crate) mod find;
pub(crate) mod import;
pub(crate) mod kubernetes;
pub(crate) mod ladder;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod payload;
mod picked;
pub(crate) mod proxies;
pub(crate) mod relay;
mod renewing;
pub(crate) mod report;
pub(crate) mod run;
mod secret;
pub(crate) mod serve;
pub(crate) mod shard;
pub(crate) mod slurm;
pub(crate) mod stack;
pub(crate) mod sweep;
mod tls_flags;
pub(crate) mod view;
pub(crate) mod watch;

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use plimsoll_protocols::registry::{COMMAND_ENTRIES, Entry};

use crate::console;
use crate::credentials::PlanCode;
use crate::documents::{DocumentFlags, Made};
use crate::environment::{self, Environment};
use crate::failure::{Exit, Failure};
use crate::logging::Format;
use crate::origins::Origins;
use crate::process::{Process, stopped_by_signals};
use crate::progress::{Style, Wish};
use crate::shards::{Loads, Meeting};
use crate::telemetry;
use crate::version;
use picked::Picked;

/// Finds the load line of a secure link: how much traffic it carries before your latency objective breaks.
#[derive(Debug, Args)]
#[command(
    version,
    long_version = version::LONG_VERSION,
    before_help = "Example: a server, and 1000 calls a second for ten seconds against it\n  \
        plimsoll serve score --listen 127.0.0.1:50051 &\n  \
        plimsoll grpc grpc://127.0.0.1:50051 -m score.ScoreService/GetScore \\\n      \
        -d '{\"json\": \"[0.1, 0.2]\"}' --rate 1000/s --duration 10s",
    after_help = environment::VARIABLES_HELP,
    subcommand_required = true,
    arg_required_else_help = true,
    propagate_version = true
)]
pub(crate) struct Messages {
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

    /// Report to monitoring during a run: HOST:PORT to answer scrapes with OpenMetrics at /metrics, or the URL of an
    /// OTLP collector to post metrics to.
    #[arg(long, global = true, value_name = "WHERE", help_heading = "Messages")]
    pub(crate) telemetry: Option<String>,

    /// A header field for the collector of --telemetry, 'name: value'; repeatable. 'name: $VARIABLE' takes it from the
    /// environment, as OTEL_EXPORTER_OTLP_HEADERS does.
    #[arg(
        long,
        global = true,
        value_name = "NAME: VALUE",
        requires = "telemetry",
        help_heading = "Messages"
    )]
    pub(crate) telemetry_header: Vec<String>,

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

/// The parsed command line.
#[derive(Debug)]
pub(crate) struct Cli {
    pub(crate) command: Chosen,
    pub(crate) messages: Messages,
}

impl Cli {
    /// # Errors
    /// When values of flags contradict each other.
    pub(crate) fn of(matches: &ArgMatches) -> Result<Cli, clap::Error> {
        let chosen = matches.subcommand().and_then(|(name, typed)| {
            let verb = verbs().find(|verb| verb.name == name)?;
            Some((verb.read)(typed))
        });
        Ok(Cli {
            command: chosen.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))??,
            messages: Messages::from_arg_matches(matches)?,
        })
    }
}

/// Returns the command line with all commands. A flag's variable is derived from its name, and a boolean flag accepts
/// `1` and `yes` as well as `true`, because its value may come from a variable.
pub(crate) fn command() -> Command {
    with(|_| true)
}

/// Returns the command line with only the commands named in `words`, which suffices to parse them: building all
/// commands would raise a start from 1.5 to 4 ms of CPU time and a relay's memory by 3 MB.
pub(crate) fn command_of(words: &[OsString]) -> Command {
    with(|name| words.iter().any(|word| word == name))
}

fn with(wanted: impl Fn(&str) -> bool) -> Command {
    let wanted = verbs().filter(|verb| wanted(verb.name));
    let own = wanted.map(|verb| (verb.flags)(Command::new(verb.name)));
    with_variables(Messages::augment_args(Command::new("plimsoll")).subcommands(own))
}

/// Flags whose values from variables or `.env` are hidden in help.
const SECRET_FLAGS: [&str; 6] = [
    "header",
    "metadata",
    "proxy",
    "redis",
    "rendezvous-token",
    "telemetry-header",
];

fn with_variables(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let arg = match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        };
        let arg = match arg.get_long() {
            Some(long) if SECRET_FLAGS.contains(&long) => arg.hide_env_values(true),
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

/// The chosen command with its arguments.
#[derive(Debug)]
pub(crate) enum Chosen {
    Run(run::Arguments),
    Find(find::Arguments),
    Ladder(Box<ladder::Arguments>),
    Sweep(sweep::Arguments),
    Call(Box<Picked<Entry>>),
    Shard(shard::Arguments),
    Report(report::Arguments),
    Compare(compare::Arguments),
    Assay(assay::Arguments),
    Import(import::Arguments),
    Merge(merge::Arguments),
    Watch(watch::Arguments),
    View(view::Arguments),
    Slurm(slurm::Arguments),
    Kubernetes(kubernetes::Arguments),
    Check(check::Arguments),
    Serve(serve::Arguments),
    Relay(relay::Arguments),
    Stack(stack::Arguments),
    Proxies(proxies::Arguments),
    Certs(certs::Arguments),
    Payload(payload::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// Parses the matches of one command.
type Read = dyn Fn(&ArgMatches) -> Result<Chosen, clap::Error>;

/// A command's name, flags and parser.
struct Verb {
    name: &'static str,
    flags: Box<dyn Fn(Command) -> Command>,
    read: Box<Read>,
}

impl Verb {
    fn of<A: Args + 'static>(name: &'static str, chosen: fn(A) -> Chosen) -> Verb {
        Verb {
            name,
            flags: Box::new(A::augment_args),
            read: Box::new(move |typed| A::from_arg_matches(typed).map(chosen)),
        }
    }

    fn of_protocol(entry: &'static Entry) -> Verb {
        Verb {
            name: entry.name,
            flags: Box::new(|_| picked::command(entry)),
            read: Box::new(|typed| Ok(Chosen::Call(Box::new(Picked::new(entry, typed)?)))),
        }
    }
}

/// Returns all commands in the order of help.
fn verbs() -> impl Iterator<Item = Verb> {
    let measuring = [
        Verb::of("run", Chosen::Run),
        Verb::of("find", Chosen::Find),
        Verb::of("ladder", Chosen::Ladder),
        Verb::of("sweep", Chosen::Sweep),
    ];
    let others = [
        Verb::of("shard", Chosen::Shard),
        Verb::of("report", Chosen::Report),
        Verb::of("compare", Chosen::Compare),
        Verb::of("assay", Chosen::Assay),
        Verb::of("import", Chosen::Import),
        Verb::of("merge", Chosen::Merge),
        Verb::of("watch", Chosen::Watch),
        Verb::of("view", Chosen::View),
        Verb::of("slurm", Chosen::Slurm),
        Verb::of("kubernetes", Chosen::Kubernetes),
        Verb::of("check", Chosen::Check),
        Verb::of("serve", Chosen::Serve),
        Verb::of("relay", Chosen::Relay),
        Verb::of("stack", Chosen::Stack),
        Verb::of("proxies", Chosen::Proxies),
        Verb::of("certs", Chosen::Certs),
        Verb::of("payload", Chosen::Payload),
        Verb::of("completions", Chosen::Completions),
        Verb::of("man", Chosen::Man),
    ];
    let calls = COMMAND_ENTRIES.iter().map(Verb::of_protocol);
    measuring.into_iter().chain(calls).chain(others)
}

impl Chosen {
    /// Returns the document flags of a measuring command.
    pub(crate) fn documents(&self) -> Option<&DocumentFlags> {
        match self {
            Chosen::Run(arguments) => Some(&arguments.output.documents),
            Chosen::Find(arguments) => Some(&arguments.documents),
            Chosen::Ladder(arguments) => Some(&arguments.climb.documents),
            Chosen::Sweep(arguments) => Some(&arguments.climb.documents),
            Chosen::Call(arguments) => Some(&arguments.shared.output.documents),
            Chosen::Merge(arguments) => Some(&arguments.documents),
            Chosen::Stack(arguments) => arguments.documents(),
            _ => None,
        }
    }

    /// Returns whether commands and plugins of its plan are run, and announced.
    pub(crate) fn plan_code(&self) -> PlanCode {
        let only_shown = match self {
            Chosen::Run(run) => run.output.dry_run,
            Chosen::Find(find) => find.dry_run,
            Chosen::Ladder(ladder) => ladder.climb.dry_run,
            Chosen::Sweep(sweep) => sweep.climb.dry_run,
            Chosen::Call(call) => {
                call.shared.output.dry_run || call.typed.subcommand_name().is_some()
            }
            Chosen::Stack(stack) => stack.only_shows(),
            Chosen::Shard(_) => return PlanCode::Unannounced,
            // Commands of loads made on other machines run there.
            _ => true,
        };
        if only_shown {
            PlanCode::Skipped
        } else {
            PlanCode::Announced
        }
    }

    /// Returns this shard's context; `None` if this process is not a shard.
    ///
    /// # Errors
    /// When it can't be determined which shard this is.
    fn meeting(&self, environment: &Environment) -> Result<Option<Meeting>, Failure> {
        let (shards, loads, dry_run) = match self {
            Chosen::Run(run) => (&run.shards, Loads::One, run.output.dry_run),
            Chosen::Find(find) => (&find.shards, Loads::Series, find.dry_run),
            Chosen::Ladder(ladder) => (&ladder.climb.shards, Loads::Series, ladder.climb.dry_run),
            Chosen::Sweep(sweep) => (&sweep.climb.shards, Loads::Series, sweep.climb.dry_run),
            _ => return Ok(None),
        };
        if dry_run && loads == Loads::Series {
            return Ok(None);
        }
        let meeting = Meeting::of(shards, loads, environment)?;
        if let Some(meeting) = meeting.as_ref().filter(|_| dry_run) {
            meeting.is_not_awaited();
        }
        Ok(meeting)
    }
}

/// Runs the command and writes the requested documents, including those of measurements made before an error.
///
/// # Errors
/// When the command fails, or a document can't be written.
pub(crate) fn execute(
    cli: Cli,
    origins: &Origins,
    environment: &Environment,
) -> Result<Exit, Failure> {
    let documents = cli.command.documents().cloned();
    let made = Made::default();
    let meeting = cli.command.meeting(environment)?;
    let meeting = meeting.as_ref();
    let ended = Meeting::attend(meeting, || {
        documents.as_ref().map_or(Ok(()), DocumentFlags::check)?;
        carry_out(cli, origins, environment, &made, meeting)
    });
    telemetry::end();
    let delivered = documents.map_or(Ok(()), |documents| documents.deliver(&made, environment));
    match (ended, delivered) {
        (Ok(exit), delivered) => delivered.map(|()| exit),
        (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(other)) => {
            console::failure(&other);
            Err(failure)
        }
    }
}

fn carry_out(
    cli: Cli,
    origins: &Origins,
    environment: &Environment,
    made: &Made,
    meeting: Option<&Meeting>,
) -> Result<Exit, Failure> {
    let Cli { command, messages } = cli;
    let loads = !matches!(command, Chosen::Watch(_) | Chosen::Kubernetes(_));
    let leads = loads && !matches!(command, Chosen::Shard(_));
    let process = || -> Result<Process, Failure> {
        let variables: Vec<&str> = origins.variables().collect();
        if !variables.is_empty() && !messages.quiet {
            console::notice(format_args!(
                "from the environment: {}",
                variables.join(", ")
            ));
        }
        let logging = messages.verbose || messages.trace;
        // Only the supervisor of a multi-process load exports telemetry.
        if let Some(wanted) = messages.telemetry.as_deref().filter(|_| leads) {
            telemetry::start(wanted, &messages.telemetry_header, environment)?;
        }
        let stop = stopped_by_signals(loads)?;
        if let Some(meeting) = meeting {
            meeting.heed(&stop);
        }
        Ok(Process {
            progress: if messages.quiet {
                Style::None
            } else {
                messages.progress.style(logging)?
            },
            verbose: messages.verbose,
            trace: messages.trace,
            stop,
            made: made.clone(),
            origins: origins.clone(),
            environment: environment.clone(),
        })
    };
    match command {
        Chosen::Run(arguments) => run::execute(&arguments, &process()?, meeting),
        Chosen::Find(arguments) => find::execute(&arguments, &process()?, meeting),
        Chosen::Ladder(arguments) => ladder::execute(&arguments, &process()?, meeting),
        Chosen::Sweep(arguments) => sweep::execute(&arguments, &process()?, meeting),
        Chosen::Shard(arguments) => shard::execute(&arguments, &process()?),
        Chosen::Stack(arguments) => stack::execute(&arguments, process),
        Chosen::Call(arguments) => calling::execute(&arguments, &process()?),
        Chosen::Report(arguments) => report::execute(&arguments, origins),
        Chosen::Compare(arguments) => compare::execute(&arguments),
        Chosen::Assay(arguments) => assay::execute(&arguments),
        Chosen::Import(arguments) => import::execute(&arguments),
        Chosen::Merge(arguments) => merge::execute(&arguments, made),
        Chosen::View(arguments) => view::execute(&arguments),
        Chosen::Watch(arguments) => watch::execute(&arguments, &process()?),
        Chosen::Serve(arguments) => serve::execute(arguments, environment),
        Chosen::Relay(arguments) => relay::execute(&arguments, environment),
        Chosen::Slurm(arguments) => slurm::execute(&arguments),
        Chosen::Kubernetes(arguments) => kubernetes::execute(&arguments, made, process),
        Chosen::Check(arguments) => check::execute(&arguments, environment),
        Chosen::Proxies(arguments) => proxies::execute(&arguments),
        Chosen::Certs(arguments) => certs::execute(&arguments),
        Chosen::Payload(arguments) => payload::execute(&arguments),
        Chosen::Completions(arguments) => completions::execute(&arguments),
        Chosen::Man(arguments) => man::execute(&arguments),
    }
}

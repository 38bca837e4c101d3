//! Defines the command line: one file per command.
//!
//! This file is long because the list of all commands, with their help, and what measuring commands share are here.

pub(crate) mod assay;
pub(crate) mod certs;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod explain;
mod final_counts;
pub(crate) mod find;
pub(crate) mod import;
pub(crate) mod kubernetes;
pub(crate) mod ladder;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod merge;
pub(crate) mod payload;
pub(crate) mod price;
pub(crate) mod protocol_command;
pub(crate) mod proxies;
mod query;
pub(crate) mod redirects;
mod registry_commands;
mod relay;
pub(crate) mod report;
pub(crate) mod run;
mod secret;
pub(crate) mod serve;
pub(crate) mod shard;
mod sighup_reload;
pub(crate) mod slurm;
pub(crate) mod stack;
pub(crate) mod sweep;
mod tls_flags;
pub(crate) mod track;
pub(crate) mod view;
pub(crate) mod watch;

use std::ffi::OsString;

use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use plimsoll_protocols::registry::{COMMAND_ENTRIES, CommandEntry};

use crate::failure::{Exit, Failure};
use crate::load::documents::{DocumentFlags, OutputDirs};
use crate::load::process::{ProcessContext, stop_on_signals};
use crate::screen::console;
use crate::screen::logging::LogFormat;
use crate::screen::progress::{ProgressMode, ProgressStyle};
use crate::settings::credentials::PlanCodePolicy;
use crate::settings::environment::{self, Environment};
use crate::settings::origins::FlagOrigins;
use crate::shards::{LoadSequence, ShardContext};
use crate::system::version;
use crate::telemetry;
use registry_commands::EntryInvocation;

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
pub(crate) struct MessageFlags {
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
    pub(crate) progress: ProgressMode,

    /// Print only results and errors, no progress.
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub(crate) quiet: bool,

    /// Log connections, TLS and decisions.
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub(crate) verbose: bool,

    /// Log everything: TLS events, frames and state changes of each connection.
    #[arg(long, global = true, help_heading = "Messages")]
    pub(crate) trace: bool,

    /// Export metrics during a run: HOST:PORT to answer scrapes with OpenMetrics at /metrics, or the URL of an OTLP
    /// collector to post metrics to.
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

    /// Format of messages: text, or json with one object per line [default: text].
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
    pub(crate) log_format: LogFormat,
}

/// The parsed command line.
#[derive(Debug)]
pub(crate) struct Cli {
    pub(crate) command: ParsedCommand,
    pub(crate) messages: MessageFlags,
}

impl Cli {
    /// Converts clap's matches to the parsed command line.
    ///
    /// # Errors
    /// When values of flags contradict each other.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Cli, clap::Error> {
        let chosen = matches.subcommand().and_then(|(name, typed)| {
            let verb = command_definitions().find(|verb| verb.name == name)?;
            Some((verb.read)(typed))
        });
        Ok(Cli {
            command: chosen.ok_or_else(|| clap::Error::new(ErrorKind::MissingSubcommand))??,
            messages: MessageFlags::from_arg_matches(matches)?,
        })
    }
}

/// Returns the command line with all commands. A flag's variable is derived from its name, and a boolean flag accepts
/// `1` and `yes` as well as `true`, because its value may come from a variable.
pub(crate) fn command() -> Command {
    build_command(|_| true)
}

/// Returns the command line with only the commands named in `words`, which are enough to parse `words`. Building all
/// commands would raise the CPU time of a start from 1.5 to 4 ms, and a relay's memory by 3 MB.
pub(crate) fn command_for_words(words: &[OsString]) -> Command {
    build_command(|name| words.iter().any(|word| word == name))
}

fn build_command(wanted: impl Fn(&str) -> bool) -> Command {
    let wanted = command_definitions().filter(|verb| wanted(verb.name));
    let own = wanted.map(|verb| (verb.flags)(Command::new(verb.name)));
    with_variables(MessageFlags::augment_args(Command::new("plimsoll")).subcommands(own))
}

/// Flags whose values, if set by variables or `.env`, are not shown in help.
const SECRET_FLAGS: [&str; 7] = [
    "user",
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
pub(crate) enum ParsedCommand {
    Run(run::RunArguments),
    Find(find::FindArguments),
    Ladder(Box<ladder::LadderArguments>),
    Sweep(sweep::SweepArguments),
    Track(Box<track::TrackArguments>),
    Call(Box<EntryInvocation<CommandEntry>>),
    Shard(shard::ShardArguments),
    Report(report::ReportArguments),
    Explain(explain::ExplainArguments),
    Compare(compare::CompareArguments),
    Assay(assay::AssayArguments),
    Import(import::ImportArguments),
    Merge(merge::MergeArguments),
    Watch(watch::WatchArguments),
    View(view::ViewArguments),
    Mcp(mcp::McpArguments),
    Slurm(slurm::SlurmArguments),
    Kubernetes(kubernetes::KubernetesArguments),
    Check(check::CheckArguments),
    Doctor(doctor::DoctorArguments),
    Serve(serve::ServeArguments),
    Relay(relay::RelayArguments),
    Stack(stack::StackArguments),
    Proxies(proxies::ProxiesArguments),
    Price(price::PriceArguments),
    Certs(certs::CertsArguments),
    Payload(payload::PayloadArguments),
    Completions(completions::CompletionsArguments),
    Man(man::ManArguments),
}

/// A function that converts clap's matches of one command.
type MatchesParser = dyn Fn(&ArgMatches) -> Result<ParsedCommand, clap::Error>;

/// A command's name, flags and parser.
struct CommandDefinition {
    name: &'static str,
    flags: Box<dyn Fn(Command) -> Command>,
    read: Box<MatchesParser>,
}

impl CommandDefinition {
    fn for_arguments<A: Args + 'static>(
        name: &'static str,
        chosen: fn(A) -> ParsedCommand,
    ) -> CommandDefinition {
        CommandDefinition {
            name,
            flags: Box::new(A::augment_args),
            read: Box::new(move |typed| A::from_arg_matches(typed).map(chosen)),
        }
    }

    fn for_protocol(entry: &'static CommandEntry) -> CommandDefinition {
        CommandDefinition {
            name: entry.name,
            flags: Box::new(|_| registry_commands::command(entry)),
            read: Box::new(|typed| {
                Ok(ParsedCommand::Call(Box::new(EntryInvocation::new(
                    entry, typed,
                )?)))
            }),
        }
    }
}

/// Returns all commands in the order in which the help lists them.
fn command_definitions() -> impl Iterator<Item = CommandDefinition> {
    let measuring = [
        CommandDefinition::for_arguments("run", ParsedCommand::Run),
        CommandDefinition::for_arguments("find", ParsedCommand::Find),
        CommandDefinition::for_arguments("ladder", ParsedCommand::Ladder),
        CommandDefinition::for_arguments("sweep", ParsedCommand::Sweep),
        CommandDefinition::for_arguments("track", ParsedCommand::Track),
    ];
    let others = [
        CommandDefinition::for_arguments("shard", ParsedCommand::Shard),
        CommandDefinition::for_arguments("report", ParsedCommand::Report),
        CommandDefinition::for_arguments("explain", ParsedCommand::Explain),
        CommandDefinition::for_arguments("compare", ParsedCommand::Compare),
        CommandDefinition::for_arguments("assay", ParsedCommand::Assay),
        CommandDefinition::for_arguments("import", ParsedCommand::Import),
        CommandDefinition::for_arguments("merge", ParsedCommand::Merge),
        CommandDefinition::for_arguments("watch", ParsedCommand::Watch),
        CommandDefinition::for_arguments("view", ParsedCommand::View),
        CommandDefinition::for_arguments("mcp", ParsedCommand::Mcp),
        CommandDefinition::for_arguments("slurm", ParsedCommand::Slurm),
        CommandDefinition::for_arguments("kubernetes", ParsedCommand::Kubernetes),
        CommandDefinition::for_arguments("check", ParsedCommand::Check),
        CommandDefinition::for_arguments("doctor", ParsedCommand::Doctor),
        CommandDefinition::for_arguments("serve", ParsedCommand::Serve),
        CommandDefinition::for_arguments("relay", ParsedCommand::Relay),
        CommandDefinition::for_arguments("stack", ParsedCommand::Stack),
        CommandDefinition::for_arguments("proxies", ParsedCommand::Proxies),
        CommandDefinition::for_arguments("price", ParsedCommand::Price),
        CommandDefinition::for_arguments("certs", ParsedCommand::Certs),
        CommandDefinition::for_arguments("payload", ParsedCommand::Payload),
        CommandDefinition::for_arguments("completions", ParsedCommand::Completions),
        CommandDefinition::for_arguments("man", ParsedCommand::Man),
    ];
    let calls = COMMAND_ENTRIES.iter().map(CommandDefinition::for_protocol);
    measuring.into_iter().chain(calls).chain(others)
}

impl ParsedCommand {
    /// Returns the flags for documents about the results; `None` if the command makes no measurements.
    pub(crate) fn document_flags(&self) -> Option<&DocumentFlags> {
        match self {
            ParsedCommand::Run(arguments) => Some(&arguments.output.documents),
            ParsedCommand::Find(arguments) => Some(&arguments.documents),
            ParsedCommand::Ladder(arguments) => Some(&arguments.ladder.documents),
            ParsedCommand::Sweep(arguments) => Some(&arguments.ladder.documents),
            ParsedCommand::Track(arguments) => Some(arguments.document_flags()),
            ParsedCommand::Call(arguments) => Some(&arguments.shared.output.documents),
            ParsedCommand::Merge(arguments) => Some(&arguments.documents),
            ParsedCommand::Stack(arguments) => arguments.document_flags(),
            _ => None,
        }
    }

    /// Checks that spans are requested only from a command that makes a single run.
    ///
    /// # Errors
    /// When spans are requested from a command that makes several runs.
    fn check_spans(&self, documents: &DocumentFlags) -> Result<(), Failure> {
        match self {
            ParsedCommand::Find(_)
            | ParsedCommand::Ladder(_)
            | ParsedCommand::Sweep(_)
            | ParsedCommand::Track(_) => documents.spans.reject_several_runs(),
            _ => Ok(()),
        }
    }

    /// Returns whether shell commands and plugins in this command's plan are run, and whether that is announced first.
    pub(crate) fn plan_code(&self) -> PlanCodePolicy {
        let only_shown = match self {
            ParsedCommand::Run(run) => run.output.dry_run,
            ParsedCommand::Find(find) => find.dry_run,
            ParsedCommand::Ladder(ladder) => ladder.ladder.dry_run,
            ParsedCommand::Sweep(sweep) => sweep.ladder.dry_run,
            ParsedCommand::Track(track) => track.is_dry_run(),
            ParsedCommand::Call(call) => {
                call.shared.output.dry_run || call.matches.subcommand_name().is_some()
            }
            ParsedCommand::Stack(stack) => stack.generates_no_load(),
            ParsedCommand::Shard(_) => return PlanCodePolicy::Unannounced,
            // The other commands don't run code from a plan in this process.
            _ => true,
        };
        if only_shown {
            PlanCodePolicy::Skipped
        } else {
            PlanCodePolicy::Announced
        }
    }

    /// Returns this shard's context; `None` if this process is not a shard.
    ///
    /// # Errors
    /// When it can't be determined which shard this is.
    fn shard_context(&self, environment: &Environment) -> Result<Option<ShardContext>, Failure> {
        let (shards, loads, dry_run) = match self {
            ParsedCommand::Run(run) => (&run.shards, LoadSequence::Single, run.output.dry_run),
            ParsedCommand::Find(find) => (&find.shards, LoadSequence::Series, find.dry_run),
            ParsedCommand::Ladder(ladder) => (
                &ladder.ladder.shards,
                LoadSequence::Series,
                ladder.ladder.dry_run,
            ),
            ParsedCommand::Sweep(sweep) => (
                &sweep.ladder.shards,
                LoadSequence::Series,
                sweep.ladder.dry_run,
            ),
            _ => return Ok(None),
        };
        if dry_run && loads == LoadSequence::Series {
            return Ok(None);
        }
        let meeting = ShardContext::from_flags(shards, loads, environment)?;
        if let Some(meeting) = meeting.as_ref().filter(|_| dry_run) {
            meeting.mark_joined();
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
    origins: &FlagOrigins,
    environment: &Environment,
) -> Result<Exit, Failure> {
    let documents = cli.command.document_flags().cloned();
    let made = OutputDirs::default();
    let meeting = cli.command.shard_context(environment)?;
    let meeting = meeting.as_ref();
    let ended = ShardContext::run_and_report_failure(meeting, || {
        if let Some(documents) = &documents {
            documents.check(environment)?;
            cli.command.check_spans(documents)?;
        }
        run_command(cli, origins, environment, &made, meeting)
    });
    telemetry::finish();
    let delivered = documents.map_or(Ok(()), |documents| {
        documents.write_all_documents(&made, environment)
    });
    match (ended, delivered) {
        (Ok(exit), delivered) => delivered.map(|()| exit),
        (Err(failure), Ok(())) => Err(failure),
        (Err(failure), Err(other)) => {
            console::print_failure(&other);
            Err(failure)
        }
    }
}

fn run_command(
    cli: Cli,
    origins: &FlagOrigins,
    environment: &Environment,
    made: &OutputDirs,
    meeting: Option<&ShardContext>,
) -> Result<Exit, Failure> {
    let Cli { command, messages } = cli;
    let loads = !matches!(
        command,
        ParsedCommand::Watch(_) | ParsedCommand::Kubernetes(_)
    );
    let leads = loads && !matches!(command, ParsedCommand::Shard(_));
    let process = || -> Result<ProcessContext, Failure> {
        let variables: Vec<&str> = origins.used_variables().collect();
        if !variables.is_empty() && !messages.quiet {
            console::print_notice(format_args!(
                "from the environment: {}",
                variables.join(", ")
            ));
        }
        let logging = messages.verbose || messages.trace;
        // Telemetry is exported by the supervisor of a multi-process load, not by its processes.
        if let Some(wanted) = messages.telemetry.as_deref().filter(|_| leads) {
            telemetry::start(wanted, &messages.telemetry_header, environment)?;
        }
        let stop = stop_on_signals(loads)?;
        if let Some(meeting) = meeting {
            meeting.set_stop_flag(&stop);
        }
        Ok(ProcessContext {
            progress: if messages.quiet {
                ProgressStyle::None
            } else {
                messages.progress.style(logging)?
            },
            verbose: messages.verbose,
            trace: messages.trace,
            stop,
            output_dirs: made.clone(),
            origins: origins.clone(),
            environment: environment.clone(),
        })
    };
    match command {
        ParsedCommand::Run(arguments) => run::execute(&arguments, &process()?, meeting),
        ParsedCommand::Find(arguments) => find::execute(&arguments, &process()?, meeting),
        ParsedCommand::Ladder(arguments) => ladder::execute(&arguments, &process()?, meeting),
        ParsedCommand::Sweep(arguments) => sweep::execute(&arguments, &process()?, meeting),
        ParsedCommand::Track(arguments) => track::execute(&arguments, &process()?),
        ParsedCommand::Shard(arguments) => shard::execute(&arguments, &process()?),
        ParsedCommand::Stack(arguments) => stack::execute(&arguments, process),
        ParsedCommand::Call(arguments) => protocol_command::execute(&arguments, &process()?),
        ParsedCommand::Report(arguments) => report::execute(&arguments, origins, environment),
        ParsedCommand::Explain(arguments) => explain::execute(&arguments),
        ParsedCommand::Compare(arguments) => compare::execute(&arguments),
        ParsedCommand::Assay(arguments) => assay::execute(&arguments),
        ParsedCommand::Import(arguments) => import::execute(&arguments),
        ParsedCommand::Merge(arguments) => merge::execute(&arguments, made),
        ParsedCommand::View(arguments) => view::execute(&arguments),
        ParsedCommand::Mcp(arguments) => mcp::execute(&arguments),
        ParsedCommand::Watch(arguments) => watch::execute(&arguments, &process()?),
        ParsedCommand::Serve(arguments) => serve::execute(arguments, environment),
        ParsedCommand::Relay(arguments) => relay::execute(&arguments, environment),
        ParsedCommand::Slurm(arguments) => slurm::execute(&arguments),
        ParsedCommand::Kubernetes(arguments) => kubernetes::execute(&arguments, made, process),
        ParsedCommand::Check(arguments) => check::execute(&arguments, environment),
        ParsedCommand::Doctor(arguments) => doctor::execute(&arguments, &process()?),
        ParsedCommand::Proxies(arguments) => proxies::execute(&arguments),
        ParsedCommand::Price(arguments) => price::execute(&arguments),
        ParsedCommand::Certs(arguments) => certs::execute(&arguments),
        ParsedCommand::Payload(arguments) => payload::execute(&arguments),
        ParsedCommand::Completions(arguments) => completions::execute(&arguments),
        ParsedCommand::Man(arguments) => man::execute(&arguments),
    }
}

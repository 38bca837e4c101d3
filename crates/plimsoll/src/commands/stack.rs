//! `plimsoll stack`: starts and stops a complete token-streaming stack on this machine.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use plimsoll_model::formats::input;
use plimsoll_model::formats::units::Period;
use plimsoll_model::plan::WatchedProcess;
use plimsoll_model::spec::Spec;
use plimsoll_protocols::registry::QueryFlags;
use plimsoll_stack::sessions::{Stack, StackLimits, StackTopology, is_healthy};

use crate::commands::report;
use crate::failure::{Exit, Failure};
use crate::load::documents::DocumentFlags;
use crate::load::documents::JsonFlag;
use crate::load::execution::{self, LoadRunner, OutputFlags};
use crate::load::planning;
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::settings::load_flags::LoadFlags;
use crate::settings::problems::PlanSource;
use crate::system::descriptors;

const LOG_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Start a stack of servers on this machine, inspect it, and stop it.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: redis, haproxy, two backends and three gateways; then a load; then the end\n  \
        plimsoll stack up sessions --backends 2 --gateways 3\n  \
        plimsoll session session://127.0.0.1:8080 --socket ws://127.0.0.1:8081 --clients 1000 --queries 3\n  \
        plimsoll stack down sessions\n\
        Example: all of that in one\n  \
        plimsoll stack run sessions --clients 1000 --queries 10\n\
        Example: the same without redis and haproxy, in one server process\n  \
        plimsoll stack run sessions --embedded --clients 1000 --queries 10",
    arg_required_else_help = true,
    subcommand_required = true
)]
pub(crate) struct StackArguments {
    #[command(subcommand)]
    action: StackAction,
}

#[derive(Debug, Subcommand)]
enum StackAction {
    Up(StackUpArguments),
    Status(StackStatusArguments),
    Logs(StackLogsArguments),
    /// Stop the processes that were started, and no others.
    #[command(before_help = "Example: plimsoll stack down sessions")]
    Down(StackLocation),
    Run(Box<StackRunArguments>),
}

/// A stack that can be started.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum StackName {
    /// HTTP API, Redis, WebSocket gateways and a balancer: sessions whose tokens stream.
    Sessions,
}

#[derive(Debug, Args)]
struct StackLocation {
    /// The stack to start.
    #[arg(value_enum)]
    stack: StackName,

    /// The folder for the stack's state, configurations and logs.
    #[arg(long, value_name = "DIR", default_value = "stacks/sessions")]
    dir: PathBuf,
}

#[derive(Debug, Args)]
struct TopologyFlags {
    /// Number of backends (plimsoll serve llm).
    #[arg(
        long, alias = "fastapi-instances", value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    backends: u16,

    /// Number of gateways (plimsoll relay gateway).
    #[arg(
        long, alias = "wsproxy-instances", value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    gateways: u16,

    /// Number of balancers that share the ports [default: enough for the sessions, given the limit of open files per
    /// process].
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=16)
    )]
    balancers: Option<u16>,

    /// Use Redis 7's sharded channels, which use less of Redis's CPU.
    #[arg(long, conflicts_with = "embedded")]
    sharded: bool,

    /// Delay before each token.
    #[arg(long, value_name = "TIME", default_value = "50ms")]
    token_delay: Period,

    /// Port of the balancer for API requests.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    api_port: u16,

    /// Port of the balancer for WebSockets.
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    socket_port: u16,

    /// Port of the balancer's statistics page, /stats.
    #[arg(long, value_name = "PORT", default_value_t = 8404)]
    stats_port: u16,

    /// Port of Redis; backends and gateways listen on the ports after it.
    #[arg(
        long, value_name = "PORT", default_value_t = 7400,
        value_parser = clap::value_parser!(u16).range(1..=65_000)
    )]
    first_port: u16,

    /// Run backend and gateway in one process, on --api-port and --socket-port: needs neither redis nor haproxy.
    #[arg(long)]
    embedded: bool,

    /// Maximum number of concurrent sessions that the servers must allow [default: the load's clients if known, or
    /// 10000].
    #[arg(long, value_name = "N")]
    sessions: Option<u32>,
}

const DEFAULT_SESSIONS: u32 = 10_000;

/// Start everything and wait until it is healthy.
#[derive(Debug, Args)]
#[command(
    before_help = "Example: plimsoll stack up sessions --backends 2 --workers 4 --gateways 3"
)]
struct StackUpArguments {
    #[command(flatten)]
    place: StackLocation,

    #[command(flatten)]
    topology: TopologyFlags,

    /// Number of threads of each backend and each gateway.
    #[arg(
        long, aliases = ["server-workers", "fastapi-workers"], value_name = "N",
        default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    workers: u16,
}

/// Show each process: alive, healthy, address, log.
#[derive(Debug, Args)]
#[command(before_help = "Example: plimsoll stack status sessions")]
struct StackStatusArguments {
    #[command(flatten)]
    place: StackLocation,

    #[command(flatten)]
    json: JsonFlag,
}

/// Print the logs of all processes.
#[derive(Debug, Args)]
#[command(before_help = "Example: plimsoll stack logs sessions --follow")]
struct StackLogsArguments {
    #[command(flatten)]
    place: StackLocation,

    /// Keep printing new lines.
    #[arg(short, long)]
    follow: bool,
}

/// Start a stack, run a load on it, print the report, and stop the stack.
#[derive(Debug, Args)]
#[command(before_help = "Example: plimsoll stack run sessions --clients 1000 --queries 10",
    after_help = crate::settings::environment::VARIABLES_HELP)]
struct StackRunArguments {
    #[command(flatten)]
    place: StackLocation,

    #[command(flatten)]
    topology: TopologyFlags,

    /// Threads of each backend and each gateway; --workers sets the threads of the load.
    #[arg(
        long, alias = "fastapi-workers", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    server_workers: u16,

    #[command(flatten)]
    queries: QueryFlags,

    /// Start the stack and leave it running, like `stack up`.
    #[arg(long, group = "instead")]
    up_only: bool,

    /// Print the logs of a running stack, like `stack logs`.
    #[arg(long, group = "instead")]
    logs: bool,

    /// Stop a running stack, like `stack down`.
    #[arg(long, group = "instead")]
    down: bool,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    output: OutputFlags,
}

impl StackArguments {
    /// Returns the flags for documents about the results (JSON, HTML, …); `None` if the command generates no load.
    pub(crate) fn document_flags(&self) -> Option<&DocumentFlags> {
        match &self.action {
            StackAction::Run(arguments) => Some(&arguments.output.documents),
            _ => None,
        }
    }

    /// Returns whether the command generates no load: true for all commands except `run`, and for a dry run.
    pub(crate) fn generates_no_load(&self) -> bool {
        match &self.action {
            StackAction::Run(arguments) => arguments.output.dry_run,
            _ => true,
        }
    }
}

pub(crate) fn execute(
    arguments: &StackArguments,
    process: impl FnOnce() -> Result<ProcessContext, Failure>,
) -> Result<Exit, Failure> {
    match &arguments.action {
        StackAction::Up(arguments) => start_detached(
            &arguments.place,
            &arguments.topology,
            arguments.workers,
            None,
        ),
        StackAction::Status(arguments) => show_status(arguments),
        StackAction::Logs(arguments) => print_logs(&arguments.place.dir, arguments.follow),
        StackAction::Down(place) => stop_stack(&place.dir),
        StackAction::Run(arguments) if arguments.up_only => {
            let (flags, workers) = (&arguments.topology, arguments.server_workers);
            start_detached(&arguments.place, flags, workers, arguments.client_count())
        }
        StackAction::Run(arguments) if arguments.logs => print_logs(&arguments.place.dir, false),
        StackAction::Run(arguments) if arguments.down => stop_stack(&arguments.place.dir),
        StackAction::Run(arguments) => run(arguments, &process()?),
    }
}

impl StackRunArguments {
    /// Returns the number of concurrent sessions of the load, if known.
    fn client_count(&self) -> Option<u32> {
        self.load.keys.clients.or(self.load.fleet)
    }
}

/// Starts a stack and leaves it running.
fn start_detached(
    place: &StackLocation,
    flags: &TopologyFlags,
    workers: u16,
    clients: Option<u32>,
) -> Result<Exit, Failure> {
    let stack = start_stack(place, flags, workers, clients)?;
    let stats = stack
        .stats
        .map(|at| format!(", statistics http://{at}/stats"));
    console::print_result(format_args!(
        "sessions: API {}, sockets ws://{}{}\n",
        QueryFlags::api_url(stack.api),
        stack.sockets,
        stats.unwrap_or_default()
    ))?;
    Ok(Exit::Done)
}

fn stop_stack(dir: &Path) -> Result<Exit, Failure> {
    let mut stack = Stack::load(dir).map_err(Failure::error)?;
    let ended = stack.down(dir).map_err(Failure::error)?;
    let processes = if ended == 1 { "process" } else { "processes" };
    console::print_result(format_args!("sessions: {ended} {processes} ended\n"))?;
    Ok(Exit::Done)
}

/// Starts a stack. `clients` is the number of concurrent sessions of the load, if known.
fn start_stack(
    place: &StackLocation,
    flags: &TopologyFlags,
    workers: u16,
    clients: Option<u32>,
) -> Result<Stack, Failure> {
    let StackName::Sessions = place.stack;
    descriptors::raise_limit()?;
    let plimsoll = std::env::current_exe()
        .map_err(|e| Failure::error(format_args!("can't find the running binary: {e}")))?;
    let sessions = flags.sessions.max(clients).unwrap_or(DEFAULT_SESSIONS);
    let limits = StackLimits::for_this_machine();
    let topology = StackTopology {
        backends: flags.backends,
        gateways: flags.gateways,
        workers,
        sharded: flags.sharded,
        token_delay: flags.token_delay.to_string(),
        api: flags.api_port,
        sockets: flags.socket_port,
        stats: flags.stats_port,
        first_port: flags.first_port,
        sessions,
        balancers: flags
            .balancers
            .unwrap_or_else(|| limits.required_balancer_count(sessions)),
        embedded: flags.embedded,
    };
    for problem in limits.problems(&topology) {
        console::print_notice(format_args!("note: {problem}"));
    }
    Stack::up(&place.dir, &plimsoll, &topology).map_err(Failure::error)
}

fn run(arguments: &StackRunArguments, process: &ProcessContext) -> Result<Exit, Failure> {
    let (flags, workers) = (&arguments.topology, arguments.server_workers);
    let mut stack = start_stack(&arguments.place, flags, workers, arguments.client_count())?;
    let carried_out = run_load(arguments, &stack, process);
    let ended = stack.down(&arguments.place.dir).map_err(Failure::error);
    let exit = carried_out?;
    ended?;
    Ok(exit)
}

fn run_load(
    arguments: &StackRunArguments,
    stack: &Stack,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let mut spec = Spec::default();
    arguments
        .queries
        .apply(&mut spec, stack.api, stack.sockets)?;
    arguments.load.apply(&mut spec, &process.origins)?;
    let mut plan = planning::resolve_plan(&spec, &process.environment, &PlanSource::Flags)?;
    if spec.watch.is_none() {
        // Watch all processes of the stack, because only the balancers listen on the target's port.
        plan.watch = WatchedProcess::Started;
    }
    execution::execute(
        &spec,
        &plan,
        &arguments.output,
        process,
        LoadRunner::Local,
        |run| report::export_if_requested(run, arguments.queries.export_target()),
    )
}

fn show_status(arguments: &StackStatusArguments) -> Result<Exit, Failure> {
    let stack = Stack::load(&arguments.place.dir).map_err(Failure::error)?;
    let mut all_well = true;
    let (mut list, mut lines) = (Vec::new(), Vec::new());
    for p in &stack.processes {
        let path = (p.name != "redis").then_some("/health");
        let word = match (p.is_alive(), is_healthy(p.address, path)) {
            (true, true) => "healthy",
            (true, false) => "unhealthy",
            (false, _) => "gone",
        };
        all_well &= word == "healthy";
        let (address, log) = (p.address.to_string(), p.log.display());
        lines.push(format!(
            "{:<12} {word:<10} pid {:<8} {address:<22} {log}",
            p.name, p.pid
        ));
        list.push(serde_json::json!({
            "name": p.name, "state": word, "pid": p.pid, "address": address, "log": p.log,
        }));
    }
    arguments
        .json
        .print_result(&list.into(), lines.join("\n"))?;
    Ok(if all_well { Exit::Done } else { Exit::Error })
}

fn print_logs(dir: &Path, follow: bool) -> Result<Exit, Failure> {
    let stack = Stack::load(dir).map_err(Failure::error)?;
    let mut read: Vec<u64> = vec![0; stack.processes.len()];
    loop {
        for (process, read) in stack.processes.iter().zip(&mut read) {
            let mut text = String::new();
            let opened = input::open_file(&process.log).and_then(|mut file| {
                file.seek(SeekFrom::Start(*read))?;
                file.read_to_string(&mut text)
            });
            if let Err(e) = opened {
                return Err(Failure::error(format_args!(
                    "{}: {e}",
                    process.log.display()
                )));
            }
            *read += text.len() as u64;
            for line in text.lines() {
                console::print_result(format_args!("{}: {line}\n", process.name))?;
            }
        }
        if !follow {
            return Ok(Exit::Done);
        }
        std::thread::sleep(LOG_POLL_INTERVAL);
    }
}

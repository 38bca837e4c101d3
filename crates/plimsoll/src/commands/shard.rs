//! `plimsoll shard`: a process of a multi-process load, started by its supervisor.
//!
//! The process exchanges messages ([`wire`](crate::load::multiprocess::wire)) with the supervisor on stdin and stdout,
//! and stops when its input ends. The supervisor watches the server, writes the run and judges it.

use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use clap::Args;
use plimsoll_engine::worker::ConnectSummary;
use plimsoll_engine::{Clock, RunRole};
use plimsoll_model::plan::{Shard, WatchedProcess};
use plimsoll_model::rows::recording::Recording;

use crate::failure::{Exit, Failure};
use crate::load::multiprocess::wire::{
    FinishReport, HEARTBEAT_INTERVAL, ReadyReport, ShardMessage, SupervisorMessage,
    send_observation,
};
use crate::load::planning;
use crate::load::planning::read_plan_file;
use crate::load::process::ProcessContext;
use crate::load::protocols;
use crate::settings::problems::PlanSource;
use crate::system::threads;

/// Run as one of several processes that share a load; other commands start these processes.
#[derive(Debug, Args)]
#[command(
    hide = true,
    before_help = "Example: the second of three; it waits on its standard input for a beginning\n  \
        plimsoll shard runs/fleet/plan.toml --index 1 --of 3 --origin 0"
)]
pub(crate) struct ShardArguments {
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// Index of this process, from 0.
    #[arg(long, value_name = "I")]
    index: u32,

    /// Number of processes.
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    of: u32,

    /// Zero of the clock that all processes share, in nanoseconds of this machine's monotonic clock.
    #[arg(long, value_name = "NS")]
    origin: u64,

    /// Number of worker threads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: u16,

    /// Local address to connect from; repeatable.
    #[arg(long, value_name = "ADDRESS")]
    source: Vec<IpAddr>,
}

pub(crate) fn execute(
    arguments: &ShardArguments,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    if arguments.index >= arguments.of {
        return Err(Failure::usage(
            format_args!("--index {} --of {}", arguments.index, arguments.of),
            "shards are numbered from 0: --index must be less than --of",
        ));
    }
    send_heartbeats()?;
    match run_shard_load(arguments, process) {
        Ok(end) => send_message(&ShardMessage::Finished(end)),
        Err(failure) if failure.exit() == Exit::Defect => {
            send_message(&ShardMessage::Defect(failure.to_string()))
        }
        // Send the failure to the supervisor, which prints it.
        Err(failure) => send_message(&ShardMessage::Failed(failure.to_string())),
    }
    Ok(Exit::Done)
}

fn run_shard_load(
    arguments: &ShardArguments,
    process: &ProcessContext,
) -> Result<FinishReport, Failure> {
    let orders = receive_orders(process)?;
    let (spec, text) = read_plan_file(&arguments.plan)?;
    let source = PlanSource::from_file(&arguments.plan, &text);
    let mut plan = planning::resolve_plan(&spec, &process.environment, &source)?;
    plan.watch = WatchedProcess::Nothing;
    plan.load.processes = None;
    plan.load.workers = Some(arguments.workers);
    plan.load.source_addresses.clone_from(&arguments.source);
    let load = process.prepare(&plan)?;
    let mut start = |established: &ConnectSummary, workers: u32| {
        send_message(&ShardMessage::Ready(ReadyReport::new(established, workers)));
        match orders.recv() {
            Ok(SupervisorMessage::Begin(at)) => Some(at),
            Ok(SupervisorMessage::Stop) | Err(_) => None,
        }
    };
    let place = RunRole::Shard {
        shard: Shard {
            index: arguments.index,
            of: arguments.of,
        },
        clock: Clock::from_origin(arguments.origin),
        start: &mut start,
    };
    let finished = load(place, &process.stop, &mut |event| {
        send_observation(&event, |message| send_message(&message));
    })
    .map_err(|e| protocols::start_failure(e, &plan))?;
    if let Some(lost) = plan
        .load
        .recording
        .as_ref()
        .and_then(Recording::missing_data_reason)
    {
        return Err(Failure::error(lost));
    }
    Ok(FinishReport::from_completion(finished))
}

/// Starts a thread that reads the supervisor's orders.
fn receive_orders(process: &ProcessContext) -> Result<mpsc::Receiver<SupervisorMessage>, Failure> {
    let (sender, orders) = mpsc::channel();
    let stop = process.stop.clone();
    threads::start("orders", move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else {
                tracing::warn!("unknown order: {line:?}");
                continue;
            };
            if order == SupervisorMessage::Stop {
                stop.request();
            }
            // Ignore errors: the receiver is dropped once the load has started.
            let _ = sender.send(order);
        }
        // The supervisor is gone and nobody needs the measurements, so stop immediately.
        stop.request();
        stop.request();
    })?;
    Ok(orders)
}

/// Starts a thread that sends heartbeats, so that the supervisor can detect a stalled process.
fn send_heartbeats() -> Result<(), Failure> {
    threads::start("heartbeat", || {
        loop {
            send_message(&ShardMessage::Alive);
            thread::sleep(HEARTBEAT_INTERVAL);
        }
    })
    .map(drop)
}

/// Sends a message to the supervisor. Errors are ignored: if the supervisor is gone, this process's standard input
/// ends, which stops the process.
fn send_message(message: &ShardMessage) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", message.to_line()).and_then(|()| out.flush());
}

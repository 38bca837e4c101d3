//! Supervises the processes that share a load: starts them, gives them a common start time, merges their reports, and
//! stops them.
//!
//! The merged intervals look as if one process had run the load, so reports need no special case. If a process dies,
//! the run ends; earlier measurements are kept, and the run says what is missing. If a process stalls and stops sending
//! even heartbeats, it is killed after a timeout, and the run continues without it, with a note. Until then the
//! intervals of the other processes are passed on to the run's recorder, and figures that arrive late are added to a
//! later interval. No child outlives this process, because each child stops when its standard input ends.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use plimsoll_engine::host::resources::{ResourceMeter, WatchedProcesses, find_server_processes};
use plimsoll_engine::worker::{ConnectSummary, StopUrgency};
use plimsoll_engine::{Clock, EngineError, Observation, RunCompletion, RunRole, StopFlag, defect};
use plimsoll_model::plan::Shard;
use plimsoll_model::spec::plan_secrets;
use plimsoll_model::{Plan, Time};

use super::aggregation::IntervalAggregator;
use super::server_memory::ServerMemory;
use super::wire::{ShardMessage, SupervisorMessage};
use super::{MultiprocessLoad, ProcessLayout};
use crate::failure::Exit;
use crate::load::process::ProcessContext;
use crate::load::protocols::initial_connection_count;
use crate::screen::console;
use crate::system::child::PipedChild;

/// How often the connection count is reported and stop requests are passed on.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long a process may take to exit after an immediate stop request before it is killed.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Time without a message after which a process counts as stalled; heartbeats are due every half second.
const MAX_SILENCE: Duration = Duration::from_secs(5);

/// Time without a message after which a starting process, which has sent no message yet, counts as stalled.
const MAX_STARTUP_SILENCE: Duration = Duration::from_secs(30);

/// Time without a message after which a process counts as stalled if it has been requested to stop immediately.
const MAX_SHUTDOWN_SILENCE: Duration = Duration::from_secs(1);

/// Maximum wait for late processes after the end of an interval, seconds; then the interval is recorded without their
/// figures.
const MAX_INTERVAL_DELAY_S: u64 = 2;

/// Runs a plan, or one shard's share of it, in several processes.
///
/// # Errors
/// When the load can't start, or a process fails or stalls. Intervals observed before the error are valid.
pub(crate) fn run(
    MultiprocessLoad {
        plan,
        layout: spread,
        plan_file,
    }: MultiprocessLoad<'_>,
    place: RunRole<'_>,
    process: &ProcessContext,
    stop: &StopFlag,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<RunCompletion, EngineError> {
    let addresses = plimsoll_engine::resolve(&plan.target)?;
    let server = find_server_processes(&plan.watch, &addresses);
    let memory = ServerMemory::start(server.as_ref());
    let (whole, clock, start) = match place {
        RunRole::Standalone => (Shard::WHOLE_RUN, Clock::new(), None),
        RunRole::Shard {
            shard,
            clock,
            start,
        } => (shard, clock, Some(start)),
    };
    let (sender, heard) = mpsc::channel();
    let mut members = Vec::new();
    for index in 0..spread.processes {
        let shard = Shard {
            index,
            of: spread.processes,
        };
        let part = whole.sub_shard(index, spread.processes);
        let command = shard_command(plan, spread, part, clock, plan_file, process);
        members.push(ShardProcess::start(command, shard, sender.clone())?);
    }
    drop(sender);
    let mut supervisor = Supervisor {
        aggregator: IntervalAggregator::new(members.len()),
        children: members,
        messages: heard,
        clock,
        begins_at: Time::NEVER,
        checked_at: clock.now(),
        queue_drained: false,
        client: ResourceMeter::new(WatchedProcesses::this_process()),
        server: server.map(ResourceMeter::new),
        memory,
        ordered_level: StopUrgency::Run,
        ordered_at: Time::NEVER,
        observe,
    };
    let (established, workers) = supervisor.wait_until_ready(plan, stop)?;
    supervisor.memory.read_while_idle();
    let begin = match start {
        None => {
            let attempted = u64::from(established.open + established.failed);
            established.require_any(&plan.target.url, attempted)?;
            // Choose a start time far enough ahead for every process to receive it in time.
            clock.now() + Duration::from_millis(200 + 10 * supervisor.children.len() as u64)
        }
        Some(start) => start(&established, workers).ok_or(EngineError::Interrupted)?,
    };
    supervisor.begin_measurement(begin, workers, &established);
    supervisor.run_to_completion(stop)?;
    Ok(RunCompletion {
        interrupted: stop.level() != StopUrgency::Run,
        workers,
        established,
        watched_pids: supervisor
            .server
            .as_ref()
            .map_or_else(Vec::new, |server| server.pids().to_vec()),
        negotiated: supervisor.aggregator.negotiated_tls(),
    })
}

fn shard_command(
    plan: &Plan,
    spread: &ProcessLayout,
    shard: Shard,
    clock: Clock,
    plan_file: &Path,
    process: &ProcessContext,
) -> Result<Command, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["shard", "--quiet"])
        .arg(plan_file)
        .args(["--index", &shard.index.to_string()])
        .args(["--of", &shard.of.to_string()])
        .args(["--origin", &clock.origin_ns().to_string()])
        .args(["--workers", &spread.workers.unwrap_or(1).to_string()]);
    for source in &spread.sources {
        command.args(["--source", &source.to_string()]);
    }
    if process.verbose {
        command.arg("--verbose");
    }
    if process.trace {
        command.arg("--trace");
    }
    // Pass secrets as environment variables, because the plan file in the run directory contains none.
    command.envs(plan_secrets(plan));
    Ok(command)
}

/// A child process that runs one share of the load.
struct ShardProcess {
    shard: Shard,
    child: PipedChild,
    /// Number of messages received from the process, counted by the reading thread.
    message_count: Arc<AtomicU64>,
    last_message_count: u64,
    /// Time since the last message.
    silence: Duration,
    has_finished: bool,
    is_gone: bool,
}

/// A process's index and its message; the message is `None` once the process's output has ended.
type ChildMessage = (usize, Option<Result<ShardMessage, String>>);

impl ShardProcess {
    fn start(
        command: Result<Command, std::io::Error>,
        shard: Shard,
        sender: Sender<ChildMessage>,
    ) -> Result<ShardProcess, EngineError> {
        let failed = |e: std::io::Error| EngineError::Shard {
            index: shard.index,
            of: shard.of,
            problem: format!("can't be started: {e}"),
        };
        let pulse = Arc::new(AtomicU64::new(0));
        let beat = Arc::clone(&pulse);
        let heard = move |line: Option<std::io::Result<String>>| {
            beat.fetch_add(u64::from(line.is_some()), Ordering::Relaxed);
            let message = line.map(|line| {
                let line = line.map_err(|e| e.to_string());
                line.and_then(|line| ShardMessage::from_line(&line))
            });
            let wrong = message.as_ref().is_some_and(Result::is_err);
            // Sending fails if the receiver was dropped because the run has been abandoned; then stop reading.
            sender.send((shard.index as usize, message)).is_ok() && !wrong
        };
        let child = command.and_then(|mut command| PipedChild::start(&mut command, heard));
        Ok(ShardProcess {
            shard,
            child: child.map_err(failed)?,
            message_count: pulse,
            last_message_count: 0,
            silence: Duration::ZERO,
            has_finished: false,
            is_gone: false,
        })
    }

    fn send(&mut self, order: SupervisorMessage) {
        if let Some(stdin) = &mut self.child.stdin
            && writeln!(stdin, "{}", serde_json::json!(order)).is_err()
        {
            // Writing fails if the process has exited, which the reading thread reports.
            self.child.stdin = None;
        }
    }

    /// Marks the process as gone: its later messages are ignored, and its standard input is closed so that it stops.
    fn mark_gone(&mut self) {
        (self.is_gone, self.child.stdin) = (true, None);
    }

    fn shard_error(&self, problem: String) -> EngineError {
        EngineError::Shard {
            index: self.shard.index,
            of: self.shard.of,
            problem,
        }
    }
}

/// The supervisor of the processes of one load.
struct Supervisor<'a, 'o> {
    children: Vec<ShardProcess>,
    messages: Receiver<ChildMessage>,
    aggregator: IntervalAggregator,
    clock: Clock,
    /// Start time of the load.
    begins_at: Time,
    /// When the processes were last checked for silence.
    checked_at: Time,
    /// Whether the message queue was empty at the last poll. If it was not, a missing interval may still be in it.
    queue_drained: bool,
    client: ResourceMeter,
    server: Option<ResourceMeter>,
    memory: ServerMemory,
    /// The stop level last sent to the processes, sent at `ordered_at`.
    ordered_level: StopUrgency,
    ordered_at: Time,
    observe: &'a mut (dyn FnMut(Observation<'_>) + 'o),
}

/// How a child process ended.
enum ChildStatus {
    Exited,
    Failed(EngineError),
    /// The process stalled and was killed.
    Stalled(EngineError),
}

impl Supervisor<'_, '_> {
    /// Waits until every process has opened its connections and is ready to start.
    fn wait_until_ready(
        &mut self,
        plan: &Plan,
        stop: &StopFlag,
    ) -> Result<(ConnectSummary, u32), EngineError> {
        let wanted = initial_connection_count(plan);
        let mut shown = self.clock.now();
        while !self.aggregator.is_ready() {
            match self.handle_next_message(stop) {
                Some((_, ChildStatus::Failed(error) | ChildStatus::Stalled(error))) => {
                    return Err(match stop.level() {
                        StopUrgency::Run => error,
                        _ => EngineError::Interrupted,
                    });
                }
                Some((_, ChildStatus::Exited)) => return Err(EngineError::Interrupted),
                None => {}
            }
            let now = self.clock.now();
            if now.since(shown) >= 250_000_000 {
                shown = now;
                (self.observe)(Observation::Connecting {
                    open: self.aggregator.open_connection_count(),
                    wanted,
                });
            }
        }
        if stop.level() != StopUrgency::Run {
            return Err(EngineError::Interrupted);
        }
        Ok(self.aggregator.connect_summary())
    }

    fn begin_measurement(&mut self, at: Time, workers: u32, established: &ConnectSummary) {
        // Restart the CPU meters, so that the CPU time of connecting is not counted as CPU time of the load.
        self.client.restart();
        if let Some(server) = &mut self.server {
            server.restart();
        }
        (self.observe)(Observation::Started {
            workers,
            connections: u64::from(established.open),
            lead: at.duration_since(self.clock.now()),
        });
        self.begins_at = at;
        let begin = SupervisorMessage::Begin(self.begins_at);
        self.children.iter_mut().for_each(|m| m.send(begin));
    }

    /// Processes messages until the last process has ended.
    fn run_to_completion(&mut self, stop: &StopFlag) -> Result<(), EngineError> {
        let mut failure = None;
        while self.children.iter().any(|m| !m.is_gone) {
            match self.handle_next_message(stop) {
                Some((index, ChildStatus::Failed(error))) => {
                    // Stop the other processes, because the planned load needs this process's share.
                    console::print_notice(format_args!("{error}; stopping the others"));
                    self.aggregator.intervals.mark_ended(index);
                    self.send_stop_requests(StopUrgency::Graceful);
                    failure.get_or_insert(error);
                }
                Some((index, ChildStatus::Stalled(error))) => {
                    // Continue with the other processes: the run reports which share of the load is missing.
                    console::print_notice(format_args!("{error}; the run goes on without it"));
                    self.aggregator.intervals.mark_ended(index);
                    failure.get_or_insert(error);
                }
                Some((_, ChildStatus::Exited)) | None => {}
            }
            self.emit_intervals();
        }
        self.aggregator.intervals.mark_all_ended();
        self.emit_intervals();
        failure.map_or(Ok(()), Err)
    }

    /// Processes one message, or returns after the poll interval without one.
    fn handle_next_message(&mut self, stop: &StopFlag) -> Option<(usize, ChildStatus)> {
        self.send_stop_requests(stop.level());
        if self.ordered_level == StopUrgency::Now
            && self.clock.now() > self.ordered_at + SHUTDOWN_GRACE
        {
            for member in self.children.iter_mut().filter(|m| !m.is_gone) {
                member.child.kill();
            }
        }
        if let Some(index) = self.find_stalled() {
            return Some((index, self.kill_stalled(index)));
        }
        let waiting = self.messages.try_recv().ok();
        self.queue_drained = waiting.is_none();
        let heard = match waiting {
            Some(heard) => Ok(heard),
            None => self.messages.recv_timeout(POLL_INTERVAL),
        };
        // A disconnected channel needs no handling, because every process has already reported its end.
        let (index, message) = heard.ok()?;
        if matches!(message, Some(Ok(ShardMessage::Defect(_)))) {
            defect::count_panic_of_other_process();
        }
        if self.children[index].is_gone {
            return None;
        }
        let problem = match message {
            None => return Some((index, self.on_exit(index))),
            Some(
                Err(problem) | Ok(ShardMessage::Failed(problem) | ShardMessage::Defect(problem)),
            ) => problem,
            Some(Ok(message)) => {
                self.handle_measurement(index, message);
                return None;
            }
        };
        // The process has reported that it can't continue, or has sent an invalid message.
        let member = &mut self.children[index];
        member.mark_gone();
        Some((index, ChildStatus::Failed(member.shard_error(problem))))
    }

    /// Returns the index of the first process that has been silent for too long. Time in which this process itself did
    /// not run is not counted, because children can't send while the whole machine is suspended.
    fn find_stalled(&mut self) -> Option<usize> {
        let now = self.clock.now();
        let passed = now.duration_since(self.checked_at);
        if passed < POLL_INTERVAL {
            return None;
        }
        self.checked_at = now;
        for member in &mut self.children {
            let beats = member.message_count.load(Ordering::Relaxed);
            member.silence = if beats == member.last_message_count {
                member.silence + passed.min(2 * POLL_INTERVAL)
            } else {
                Duration::ZERO
            };
            member.last_message_count = beats;
        }
        let ordered = self.ordered_level;
        let stands_still = |m: &ShardProcess| {
            let patience = match (ordered, m.last_message_count) {
                (StopUrgency::Now, _) => MAX_SHUTDOWN_SILENCE,
                (_, 0) => MAX_STARTUP_SILENCE,
                _ => MAX_SILENCE,
            };
            !m.is_gone && m.silence >= patience
        };
        self.children.iter().position(stands_still)
    }

    /// Kills the stalled process, which would send a backlog of stale intervals if it resumed.
    fn kill_stalled(&mut self, index: usize) -> ChildStatus {
        let member = &mut self.children[index];
        member.mark_gone();
        member.child.kill();
        ChildStatus::Stalled(member.shard_error(format!(
            "is stalled: it has sent nothing for {} s (stopped, swapped out, or without CPU time); what it did after its last whole second is unknown",
            member.silence.as_secs()
        )))
    }

    fn handle_measurement(&mut self, index: usize, message: ShardMessage) {
        let member = &mut self.children[index];
        if let ShardMessage::Finished(end) = &message {
            member.has_finished = !end.interrupted || self.ordered_level != StopUrgency::Run;
        }
        self.aggregator.add_message(index, message);
    }

    /// Handles the end of a process's output.
    fn on_exit(&mut self, index: usize) -> ChildStatus {
        let member = &mut self.children[index];
        member.mark_gone();
        if member.has_finished {
            return ChildStatus::Exited;
        }
        let how = match member.child.reap() {
            Ok(Some(status)) => {
                if status.code() == Some(i32::from(Exit::Defect.code())) {
                    defect::count_panic_of_other_process();
                }
                describe_exit(status)
            }
            Ok(None) => "stopped sending".to_owned(),
            Err(e) => e.to_string(),
        };
        ChildStatus::Failed(member.shard_error(format!(
            "{how} before the end of the run; what it did after its last whole second is unknown"
        )))
    }

    fn send_stop_requests(&mut self, level: StopUrgency) {
        while self.ordered_level < level {
            self.ordered_level = match self.ordered_level {
                StopUrgency::Run => StopUrgency::Graceful,
                _ => StopUrgency::Now,
            };
            self.ordered_at = self.clock.now();
            self.children
                .iter_mut()
                .for_each(|m| m.send(SupervisorMessage::Stop));
        }
    }

    /// Passes on to the observer the intervals that all processes have completed and, if the message queue is empty,
    /// overdue intervals.
    fn emit_intervals(&mut self) {
        let seconds = self.clock.now().duration_since(self.begins_at).as_secs();
        let late = seconds
            .checked_sub(1 + MAX_INTERVAL_DELAY_S)
            .filter(|_| self.queue_drained);
        while let Some((mut record, requests)) = self.aggregator.intervals.next(late) {
            let own = self.client.read().unwrap_or_default();
            record.client = Some(record.client.unwrap_or_default().combine(own));
            record.server = self.server.as_mut().and_then(ResourceMeter::read);
            self.memory.add_to_readings(&mut record.memory);
            (self.observe)(Observation::Interval(&record, &requests));
        }
    }
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (_, Some(0)) => "stopped".to_owned(),
        (_, Some(code)) => format!("ended with exit code {code}"),
        _ => "ended".to_owned(),
    }
}

//! The processes that share a load: started, brought to one beginning, heard, stopped.
//!
//! What they measured is added up interval by interval and observed as one process's work
//! would be, so everything behind it is the same. A process that dies ends the run: what
//! all had measured until then stands, and the run says what is missing. None outlives
//! this one: at the end of its input each stops by itself.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use plimsoll_engine::resources::{Meter, Watched, server_of};
use plimsoll_engine::worker::{Established, StopLevel};
use plimsoll_engine::{Clock, Finished, Observation, RunError, Stop};
use plimsoll_model::plan::{Reuse, Shard};
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::merge::InStep;
use plimsoll_model::run::{self, IntervalRecord, NegotiatedTls};
use plimsoll_model::spec::secrets;
use plimsoll_model::{Plan, Time};

use super::Spread;
use super::server_memory::ServerMemory;
use super::wire::{End, Ready, Said, Told};
use crate::console;
use crate::execution::Session;

/// How often connecting is told, and signals are passed on.
const TURN: Duration = Duration::from_millis(100);

/// How long a process may take to end that was told to end at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Carries `plan`, which is in the run directory `dir`, out with several processes.
///
/// # Errors
/// When the load could not begin, or a process failed. Everything observed until then
/// stands.
pub(crate) fn run(
    plan: &Plan,
    spread: &Spread,
    dir: &Path,
    session: &Session,
    stop: &Stop,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<Finished, RunError> {
    let address = plimsoll_engine::resolve(&plan.target)?;
    let server = server_of(plan.watch, address);
    let memory = ServerMemory::before(server.as_ref());
    let clock = Clock::new();
    let (tell, heard) = mpsc::channel();
    let mut members = Vec::new();
    for index in 0..spread.processes {
        let shard = Shard {
            index,
            of: spread.processes,
        };
        let command = command(plan, spread, shard, clock, dir, session);
        members.push(Member::start(command, shard, tell.clone())?);
    }
    drop(tell);
    let mut crew = Crew {
        intervals: InStep::new(members.len()),
        members,
        heard,
        clock,
        client: Meter::new(Watched::own()),
        server: server.map(Meter::new),
        memory,
        told: StopLevel::Run,
        told_at: Time::NEVER,
        last_end: Duration::ZERO,
        observe,
    };
    let (established, workers) = crew.muster(plan, stop)?;
    crew.begin(workers, &established);
    crew.hear_out(stop)?;
    let negotiated = crew.members.iter_mut().find_map(|m| m.negotiated.take());
    Ok(Finished {
        interrupted: stop.level() != StopLevel::Run,
        workers,
        established,
        watched_pids: crew
            .server
            .as_ref()
            .map_or_else(Vec::new, |server| server.pids().to_vec()),
        negotiated,
    })
}

fn command(
    plan: &Plan,
    spread: &Spread,
    shard: Shard,
    clock: Clock,
    dir: &Path,
    session: &Session,
) -> Result<Command, std::io::Error> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["shard", "--quiet"])
        .arg(dir.join(run::file::PLAN))
        .args(["--index", &shard.index.to_string()])
        .args(["--of", &shard.of.to_string()])
        .args(["--origin", &clock.origin_ns().to_string()])
        .args(["--workers", &spread.workers.unwrap_or(1).to_string()]);
    for source in &spread.sources {
        command.args(["--source", &source.to_string()]);
    }
    if session.verbose {
        command.arg("--verbose");
    }
    if session.trace {
        command.arg("--trace");
    }
    command
        // The plan in the run directory has none of them.
        .envs(secrets(plan))
        // Ctrl-C reaches this process alone, which passes on what it means.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Ok(command)
}

/// One of the processes. Killed when dropped, unless it has ended.
struct Member {
    shard: Shard,
    child: Child,
    /// `None` once it can't be told anything any more.
    stdin: Option<ChildStdin>,
    connecting: u64,
    ready: Option<Ready>,
    requests: Vec<RequestRecord>,
    /// What was not over at the end of its last interval: a process that dies leaves it so.
    last: u64,
    in_flight: u64,
    backlog: u64,
    finished: bool,
    negotiated: Option<NegotiatedTls>,
    gone: bool,
}

/// A message of the process of that number; `None`: there will be no more.
type Heard = (usize, Option<Result<Said, String>>);

impl Member {
    fn start(
        command: Result<Command, std::io::Error>,
        shard: Shard,
        tell: Sender<Heard>,
    ) -> Result<Member, RunError> {
        let failed = |e: std::io::Error| RunError::Shard {
            index: shard.index,
            of: shard.of,
            problem: format!("can't be started: {e}"),
        };
        let mut child = command.and_then(|mut c| c.spawn()).map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let index = shard.index as usize;
        thread::spawn(move || {
            for line in stdout
                .map(BufReader::new)
                .into_iter()
                .flat_map(BufRead::lines)
            {
                let said = line
                    .map_err(|e| e.to_string())
                    .and_then(|line| Said::from_line(&line));
                let wrong = said.is_err();
                // Nobody listens once the run is given up.
                if tell.send((index, Some(said))).is_err() || wrong {
                    break;
                }
            }
            let _ = tell.send((index, None));
        });
        Ok(Member {
            shard,
            child,
            stdin,
            connecting: 0,
            ready: None,
            requests: Vec::new(),
            last: 0,
            in_flight: 0,
            backlog: 0,
            finished: false,
            negotiated: None,
            gone: false,
        })
    }

    fn tell(&mut self, what: Told) {
        if let Some(stdin) = &mut self.stdin
            && writeln!(stdin, "{}", what.to_line()).is_err()
        {
            // It has ended, which is heard on the other pipe.
            self.stdin = None;
        }
    }

    fn failed(&self, problem: String) -> RunError {
        RunError::Shard {
            index: self.shard.index,
            of: self.shard.of,
            problem,
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The parts of one interval.
#[derive(Default)]
struct Part {
    record: IntervalRecord,
    requests: Vec<RequestRecord>,
}

struct Crew<'a, 'o> {
    members: Vec<Member>,
    heard: Receiver<Heard>,
    intervals: InStep<Part>,
    clock: Clock,
    client: Meter,
    server: Option<Meter>,
    memory: ServerMemory,
    /// What the processes were told of the run's end, and when.
    told: StopLevel,
    told_at: Time,
    last_end: Duration,
    observe: &'a mut (dyn FnMut(Observation<'_>) + 'o),
}

/// What became of a process.
enum Fate {
    Goes,
    Ends,
    Fails(RunError),
}

impl Crew<'_, '_> {
    /// Waits until every process is ready to begin.
    fn muster(&mut self, plan: &Plan, stop: &Stop) -> Result<(Established, u32), RunError> {
        let wanted = match plan.load.reuse {
            Reuse::Always => u64::from(plan.load.connections),
            Reuse::Never => 0,
        };
        let mut shown = self.clock.now();
        while self.members.iter().any(|m| m.ready.is_none()) {
            match self.turn(stop) {
                Some((_, Fate::Fails(error))) => {
                    return Err(match stop.level() {
                        StopLevel::Run => error,
                        _ => RunError::Interrupted,
                    });
                }
                Some((_, Fate::Ends)) => return Err(RunError::Interrupted),
                Some((_, Fate::Goes)) | None => {}
            }
            let now = self.clock.now();
            if now.since(shown) >= 250_000_000 {
                shown = now;
                (self.observe)(Observation::Connecting {
                    open: self.members.iter().map(|m| m.connecting).sum(),
                    wanted,
                });
            }
        }
        if stop.level() != StopLevel::Run {
            return Err(RunError::Interrupted);
        }
        let mut established = Established::default();
        let mut workers = 0;
        for ready in self.members.iter().filter_map(|m| m.ready.as_ref()) {
            workers += ready.workers;
            established.add(Established {
                open: ready.open,
                failed: ready.failed,
                failure: ready.outcome(),
            });
        }
        let attempted = u64::from(established.open + established.failed);
        established.check(&plan.target.url, attempted)?;
        Ok((established, workers))
    }

    fn begin(&mut self, workers: u32, established: &Established) {
        self.memory.held();
        // What the connecting took is not the load's.
        self.client.restart();
        if let Some(server) = &mut self.server {
            server.restart();
        }
        (self.observe)(Observation::Started {
            workers,
            connections: u64::from(established.open),
        });
        // Far enough ahead that every process hears of it in time.
        let notice = Duration::from_millis(200 + 10 * self.members.len() as u64);
        let begin = Told::Begin(self.clock.now() + notice);
        self.members.iter_mut().for_each(|m| m.tell(begin));
    }

    /// Hears the processes until the last has ended.
    fn hear_out(&mut self, stop: &Stop) -> Result<(), RunError> {
        let mut failure = None;
        while self.members.iter().any(|m| !m.gone) {
            if let Some((index, Fate::Fails(error))) = self.turn(stop) {
                // No process measures alone what all were to measure together.
                let text = format!("{error}; the others are stopped");
                console::tell(&text);
                self.intervals.ended(index);
                self.tell_all(StopLevel::Graceful);
                failure.get_or_insert(error);
            }
            self.emit();
        }
        self.intervals.all_ended();
        self.emit();
        failure.map_or(Ok(()), Err)
    }

    /// One message, or a moment without any.
    fn turn(&mut self, stop: &Stop) -> Option<(usize, Fate)> {
        self.tell_all(stop.level());
        if self.told == StopLevel::Now && self.clock.now() > self.told_at + PATIENCE {
            for member in self.members.iter_mut().filter(|m| !m.gone) {
                let _ = member.child.kill();
            }
        }
        let (index, said) = match self.heard.recv_timeout(TURN) {
            Ok(heard) => heard,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                // Each said that it was gone before.
                return None;
            }
        };
        let fate = match said {
            None => self.gone(index),
            Some(Err(problem)) => self.gives_up(index, problem),
            Some(Ok(Said::Failed(problem))) => self.gives_up(index, problem),
            Some(Ok(said)) => {
                self.take(index, said);
                Fate::Goes
            }
        };
        Some((index, fate))
    }

    fn take(&mut self, index: usize, said: Said) {
        let member = &mut self.members[index];
        match said {
            Said::Connecting(open) => member.connecting = open,
            Said::Ready(ready) => {
                member.connecting = u64::from(ready.open);
                member.ready = Some(ready);
            }
            Said::Request(request) => member.requests.push(request),
            Said::Interval(interval) => {
                member.last = interval.index;
                (member.in_flight, member.backlog) = (interval.in_flight, interval.backlog);
                let part = self.intervals.part(index, interval.index);
                part.record.merge(&interval);
                part.requests.append(&mut member.requests);
            }
            Said::Finished(End {
                interrupted,
                negotiated,
            }) => {
                member.finished = !interrupted || self.told != StopLevel::Run;
                member.negotiated = negotiated;
                (member.in_flight, member.backlog) = (0, 0);
                self.intervals.ended(index);
            }
            Said::Failed(_) => {}
        }
    }

    /// A process can't go on.
    fn gives_up(&mut self, index: usize, problem: String) -> Fate {
        let member = &mut self.members[index];
        if member.gone {
            return Fate::Goes;
        }
        (member.gone, member.stdin) = (true, None);
        Fate::Fails(member.failed(problem))
    }

    /// A process has ended.
    fn gone(&mut self, index: usize) -> Fate {
        let member = &mut self.members[index];
        if member.gone {
            return Fate::Goes;
        }
        (member.gone, member.stdin) = (true, None);
        if member.finished {
            return Fate::Ends;
        }
        let status = member.child.wait();
        let how = status.map_or_else(|e| e.to_string(), how_it_ended);
        Fate::Fails(member.failed(format!(
            "{how} before its time; what it did after its last whole second is not known"
        )))
    }

    fn tell_all(&mut self, level: StopLevel) {
        while self.told < level {
            self.told = match self.told {
                StopLevel::Run => StopLevel::Graceful,
                _ => StopLevel::Now,
            };
            self.told_at = self.clock.now();
            self.members.iter_mut().for_each(|m| m.tell(Told::Stop));
        }
    }

    /// Pass on the intervals that every process has left behind.
    fn emit(&mut self) {
        while let Some((index, part)) = self.intervals.next_whole() {
            let mut record = part.record;
            let end = record.end_offset().max(self.last_end);
            record.index = index;
            record.start_offset = self.last_end;
            record.length = end - self.last_end;
            self.last_end = end;
            // The calls that a dead process had begun are neither over nor undone.
            let lost = |m: &&Member| m.gone && !m.finished && m.last < index;
            for lost in self.members.iter().filter(lost) {
                record.in_flight += lost.in_flight;
                record.backlog += lost.backlog;
            }
            let own = self.client.read().unwrap_or_default();
            record.client = Some(record.client.unwrap_or_default().plus(own));
            record.server = self.server.as_mut().and_then(Meter::read);
            self.memory.add(&mut record.memory);
            (self.observe)(Observation::Interval(&record, &part.requests));
        }
    }
}

fn how_it_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (_, Some(0)) => "stopped".to_owned(),
        (_, Some(code)) => format!("ended with exit code {code}"),
        _ => "ended".to_owned(),
    }
}

//! The conductor itself: brings workers to one beginning, and puts together what they hand over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use plimsoll_model::plan::{Plan, Shard, TokenCounter};
use plimsoll_model::record::Interval;
use plimsoll_model::run::merge::InStep;
use plimsoll_model::run::{IntervalRecord, NegotiatedTls};

use super::hands::{Message, Shared};
use super::holding::Holding;
use super::{Finished, Observation, Place, end_at_once};
use crate::clock::Clock;
use crate::error::EngineError;
use crate::event_loop::{Established, StopLevel, WorkerInterval};
use crate::machine::MachineMeter;
use crate::resources::Meter;

/// One interval, as far as workers have handed it over.
#[derive(Default)]
pub(super) struct Pending {
    merged: Interval,
    end_ns: u64,
    in_flight: u64,
    backlog: u64,
    connections: u64,
    busiest_ns: u64,
    used_ns: u64,
}

/// Where a worker stood at the end of its last interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    interval: u64,
    /// Calls that were not over: one that panics later leaves them so.
    in_flight: u64,
    backlog: u64,
    /// It ended without its last interval.
    lost: bool,
}

pub(super) struct Conductor<'a, 'o> {
    pub(super) shared: Arc<Shared>,
    pub(super) messages: Receiver<Message>,
    pub(super) spares: Vec<Sender<Interval>>,
    pub(super) clock: Clock,
    pub(super) client: Meter,
    pub(super) server: Option<Meter>,
    pub(super) machine: MachineMeter,
    pub(super) holding: Option<Holding>,
    pub(super) shard: Shard,
    /// Other loads go on in this process: its CPU is not this load's.
    pub(super) among_others: bool,
    pub(super) token_counter: Option<TokenCounter>,
    pub(super) intervals: InStep<Pending>,
    pub(super) standing: Vec<Standing>,
    pub(super) negotiated: Option<NegotiatedTls>,
    pub(super) observe: &'a mut (dyn FnMut(Observation<'_>) + 'o),
}

impl Drop for Conductor<'_, '_> {
    /// Where the observer panics, nothing would end the load.
    fn drop(&mut self) {
        if thread::panicking() {
            end_at_once(&self.shared.stop);
        }
    }
}

impl Conductor<'_, '_> {
    pub(super) fn conduct(
        &mut self,
        plan: &Plan,
        place: Place<'_>,
        workers: u32,
        wanted: u64,
    ) -> Result<Finished, EngineError> {
        let established = self.await_connections(workers, wanted)?;
        if let Some(holding) = &self.holding {
            holding.settle();
            self.read_memory();
        }
        let start = match place {
            Place::Alone => {
                let url = &plan.target.url;
                established.check(url, wanted)?;
                // Far enough ahead that every worker sees it in time.
                self.clock.now() + Duration::from_millis(100)
            }
            Place::Shard { start, .. } => {
                start(&established, workers).ok_or(EngineError::Interrupted)?
            }
        };
        // What the connecting took is not the load's.
        self.machine.restart();
        self.client.restart();
        if let Some(server) = &mut self.server {
            server.restart();
        }
        (self.observe)(Observation::Started {
            workers,
            connections: u64::from(established.open),
        });
        self.shared.start.store(start.0, Ordering::Release);

        let mut last_end = 0;
        let mut failure = None;
        loop {
            match self.messages.recv() {
                Ok(Message::Interval(interval, used_ns)) => {
                    self.take(*interval, used_ns);
                    self.emit(&mut last_end);
                }
                Ok(Message::Failed(e)) => {
                    self.shared.stop.request();
                    failure.get_or_insert(EngineError::Loop(e));
                }
                Ok(Message::Defect(worker, defect)) => {
                    // The others count their calls in flight to their end.
                    self.shared.stop.request();
                    self.gone(worker);
                    self.emit(&mut last_end);
                    failure.get_or_insert(EngineError::Defect(defect));
                }
                Ok(Message::Established(_)) => {}
                // Every worker has ended.
                Err(_) => break,
            }
        }
        self.intervals.all_ended();
        self.emit(&mut last_end);
        if let Some(failure) = failure {
            return Err(failure);
        }
        Ok(Finished {
            interrupted: self.shared.stop.level() != StopLevel::Run,
            workers,
            established,
            watched_pids: self
                .server
                .as_ref()
                .map_or_else(Vec::new, |server| server.pids().to_vec()),
            negotiated: self.negotiated.take(),
        })
    }

    fn await_connections(&mut self, workers: u32, wanted: u64) -> Result<Established, EngineError> {
        let mut total = Established::default();
        let mut missing = workers;
        while missing > 0 {
            match self.messages.recv_timeout(Duration::from_millis(250)) {
                Ok(Message::Established(one)) => {
                    missing -= 1;
                    total.add(one);
                }
                Ok(Message::Failed(e)) => return Err(EngineError::Loop(e)),
                Ok(Message::Defect(_, defect)) => return Err(EngineError::Defect(defect)),
                Ok(Message::Interval(..)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let open = self.shared.connections.load(Ordering::Relaxed);
                    (self.observe)(Observation::Connecting {
                        open: u64::try_from(open).unwrap_or(0),
                        wanted,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let lost = "a worker ended before its connections were up";
                    return Err(EngineError::Loop(io::Error::other(lost)));
                }
            }
        }
        if self.shared.stop.level() != StopLevel::Run {
            return Err(EngineError::Interrupted);
        }
        Ok(total)
    }

    fn read_memory(&mut self) {
        let open = || u64::try_from(self.shared.connections.load(Ordering::Relaxed)).unwrap_or(0);
        if let Some(holding) = &mut self.holding {
            holding.read(open);
        }
    }

    fn take(&mut self, mut from: WorkerInterval, used_ns: u64) {
        if let Some(counter) = &self.token_counter {
            from.recorded.count_tokens(counter);
        }
        // Workers are numbered over all processes.
        let worker = (from.worker / self.shard.of) as usize;
        self.negotiated = match (self.negotiated.take(), from.negotiated) {
            (Some(known), Some(more)) => Some(known.with(more)),
            (known, more) => known.or(more),
        };
        let pending = self.intervals.part(worker, u64::from(from.index));
        pending.merged.merge(&from.recorded);
        pending.end_ns = pending.end_ns.max(from.end_ns);
        pending.in_flight += from.in_flight;
        pending.backlog += from.backlog;
        pending.connections += u64::from(from.connections);
        pending.busiest_ns = pending.busiest_ns.max(from.busy_ns);
        pending.used_ns += used_ns;
        self.standing[worker] = Standing {
            interval: u64::from(from.index),
            in_flight: from.in_flight,
            backlog: from.backlog,
            lost: false,
        };
        if from.last {
            self.intervals.ended(worker);
            // What is in flight now stays so: it is in this interval, and in those after it.
            self.standing[worker].lost = from.in_flight + from.backlog > 0;
        }
        let mut spare = from.recorded;
        spare.clear();
        // A worker that has ended takes no spare.
        let _ = self.spares[worker].send(spare);
    }

    /// A worker has panicked; nothing more comes of it.
    fn gone(&mut self, worker: u32) {
        let worker = (worker / self.shard.of) as usize;
        self.intervals.ended(worker);
        self.standing[worker].lost = true;
    }

    /// Pass on the intervals that every worker has left behind.
    fn emit(&mut self, last_end: &mut u64) {
        while let Some((index, pending)) = self.intervals.next_whole() {
            self.read_memory();
            // The run format counts in µs: in whole ones the run's figures are the same
            // whether they come from memory or from the files.
            let end = (pending.end_ns / 1000 * 1000).max(*last_end);
            let length = end - *last_end;
            let lost = self
                .standing
                .iter()
                .filter(|s| s.lost && s.interval < index);
            let (in_flight, backlog) = lost.fold((0, 0), |(calls, waiting), s| {
                (calls + s.in_flight, waiting + s.backlog)
            });
            let Interval {
                stages,
                details,
                requests,
                turns,
                ..
            } = pending.merged;
            let mut client = self.client.read().unwrap_or_default();
            if self.among_others {
                client = client.of_cpu(pending.used_ns / 1000);
            }
            let record = IntervalRecord {
                index,
                start_offset: Duration::from_nanos(*last_end),
                length: Duration::from_nanos(length),
                stages: (0u8..)
                    .zip(stages)
                    .filter_map(|(stage, record)| Some((stage, *record?)))
                    .filter(|(_, record)| !record.is_empty())
                    .collect(),
                in_flight: pending.in_flight + in_flight,
                backlog: pending.backlog + backlog,
                connections_open: pending.connections,
                busiest_worker_ratio: pending.busiest_ns as f64 / length.max(1) as f64,
                client: Some(client),
                server: self.server.as_mut().and_then(Meter::read),
                machine: Some(
                    self.machine
                        .read(self.server.as_ref().map_or(&[], Meter::pids)),
                ),
                memory: self.holding.as_mut().map(Holding::take).unwrap_or_default(),
                details,
                turns,
            };
            *last_end = end;
            (self.observe)(Observation::Interval(&record, &requests));
        }
    }
}

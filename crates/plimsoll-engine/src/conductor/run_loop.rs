//! The [`Conductor`]: starts the load on all workers at once, and merges the intervals that they send.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use plimsoll_model::plan::{Plan, Shard, TokenCounter};
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::runs::run::merge::IntervalMerger;
use plimsoll_model::runs::run::{IntervalRecord, NegotiatedTls, ResourceUsage};

use super::idle_memory::IdleMemorySampler;
use super::worker_handle::{SharedRunState, WorkerMessage};
use super::{Observation, RunCompletion, RunRole, request_immediate_stop};
use crate::clock::Clock;
use crate::error::EngineError;
use crate::event_loop::{ConnectSummary, StopUrgency, WorkerInterval};
use crate::host::machine_meter::MachineMeter;
use crate::host::resources::ResourceMeter;

pub(super) struct Conductor<'a, 'o> {
    pub(super) shared: Arc<SharedRunState>,
    pub(super) messages: Receiver<WorkerMessage>,
    pub(super) spares: Vec<Sender<RecordedInterval>>,
    pub(super) clock: Clock,
    pub(super) client: ResourceMeter,
    pub(super) server: Option<ResourceMeter>,
    pub(super) machine: MachineMeter,
    pub(super) idle_memory: Option<IdleMemorySampler>,
    pub(super) shard: Shard,
    /// Whether other loads run in this process, so that the process's CPU time is not this load's alone.
    pub(super) shares_process: bool,
    pub(super) token_counter: Option<TokenCounter>,
    pub(super) intervals: IntervalMerger,
    pub(super) negotiated: Option<NegotiatedTls>,
    pub(super) observe: &'a mut (dyn FnMut(Observation<'_>) + 'o),
}

impl Drop for Conductor<'_, '_> {
    /// Stops the workers if the observer panics, since the panic alone would not stop them.
    fn drop(&mut self) {
        if thread::panicking() {
            request_immediate_stop(&self.shared.stop);
        }
    }
}

impl Conductor<'_, '_> {
    pub(super) fn run(
        &mut self,
        plan: &Plan,
        role: RunRole<'_>,
        workers: u32,
        wanted: u64,
    ) -> Result<RunCompletion, EngineError> {
        let established = self.await_connections(workers, wanted)?;
        if let Some(holding) = &self.idle_memory {
            holding.wait_until_settled();
            self.read_memory();
        }
        let start = match role {
            RunRole::Standalone => {
                let url = &plan.target.url;
                established.require_any(url, wanted)?;
                // The start is far enough in the future for every worker to see it in time.
                self.clock.now() + Duration::from_millis(100)
            }
            RunRole::Shard { start, .. } => {
                start(&established, workers).ok_or(EngineError::Interrupted)?
            }
        };
        // Resources used while connecting do not count towards the load.
        self.machine.restart();
        self.client.restart();
        if let Some(server) = &mut self.server {
            server.restart();
        }
        (self.observe)(Observation::Started {
            workers,
            connections: u64::from(established.open),
            lead: start.duration_since(self.clock.now()),
        });
        self.shared.start.store(start.0, Ordering::Release);

        let mut failure = None;
        loop {
            match self.messages.recv() {
                Ok(WorkerMessage::Interval(interval, used_ns)) => {
                    self.add_interval(*interval, used_ns);
                    self.emit_intervals();
                }
                Ok(WorkerMessage::Failed(e)) => {
                    self.shared.stop.request();
                    failure.get_or_insert(EngineError::Loop(e));
                }
                Ok(WorkerMessage::Defect(worker, defect)) => {
                    // The other workers still finish and record their calls in flight.
                    self.shared.stop.request();
                    self.intervals.mark_ended(self.local_worker_index(worker));
                    self.emit_intervals();
                    failure.get_or_insert(EngineError::Defect(defect));
                }
                Ok(WorkerMessage::Established(_)) => {}
                // Every worker has ended.
                Err(_) => break,
            }
        }
        self.intervals.mark_all_ended();
        self.emit_intervals();
        if let Some(failure) = failure {
            return Err(failure);
        }
        Ok(RunCompletion {
            interrupted: self.shared.stop.level() != StopUrgency::Run,
            workers,
            established,
            watched_pids: self
                .server
                .as_ref()
                .map_or_else(Vec::new, |server| server.pids().to_vec()),
            negotiated: self.negotiated.take(),
        })
    }

    fn await_connections(
        &mut self,
        workers: u32,
        wanted: u64,
    ) -> Result<ConnectSummary, EngineError> {
        let mut total = ConnectSummary::default();
        let mut missing = workers;
        while missing > 0 {
            match self.messages.recv_timeout(Duration::from_millis(250)) {
                Ok(WorkerMessage::Established(one)) => {
                    missing -= 1;
                    total.add(one);
                }
                Ok(WorkerMessage::Failed(e)) => return Err(EngineError::Loop(e)),
                Ok(WorkerMessage::Defect(_, defect)) => return Err(EngineError::Defect(defect)),
                Ok(WorkerMessage::Interval(..)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let open = self.shared.connections.load(Ordering::Relaxed);
                    (self.observe)(Observation::Connecting {
                        open: u64::try_from(open).unwrap_or(0),
                        wanted,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let lost = "a worker ended before its connections were established";
                    return Err(EngineError::Loop(io::Error::other(lost)));
                }
            }
        }
        if self.shared.stop.level() != StopUrgency::Run {
            return Err(EngineError::Interrupted);
        }
        Ok(total)
    }

    fn read_memory(&mut self) {
        let open = || u64::try_from(self.shared.connections.load(Ordering::Relaxed)).unwrap_or(0);
        if let Some(holding) = &mut self.idle_memory {
            holding.read(open);
        }
    }

    fn add_interval(&mut self, mut from: WorkerInterval, used_ns: u64) {
        if let Some(counter) = &self.token_counter {
            from.recorded.count_tokens(counter);
        }
        let source = self.local_worker_index(from.worker);
        let all = self.negotiated.take().into_iter().chain(from.negotiated);
        self.negotiated = all.reduce(NegotiatedTls::merge);
        let (recorded, requests) = IntervalRecord::from_worker(&from.recorded);
        // The run format stores microseconds. Rounding here makes figures equal whether they come from memory or from
        // files.
        let end = Duration::from_micros(from.end_ns / 1000);
        let length = Duration::from_nanos(from.length_ns).min(end);
        let record = IntervalRecord {
            index: u64::from(from.index),
            start_offset: end - length,
            length,
            in_flight: from.in_flight,
            backlog: from.backlog,
            connections_open: u64::from(from.connections),
            users: from.users,
            busiest_worker_ratio: from.busy_ns as f64 / from.length_ns.max(1) as f64,
            client: Some(ResourceUsage {
                cpu_user_us: used_ns / 1000,
                cpu_system_us: Some(0),
                ..ResourceUsage::default()
            }),
            ..recorded
        };
        self.intervals.add(source, record, requests);
        if from.is_last {
            self.intervals.mark_ended(source);
        }
        let mut spare = from.recorded;
        spare.clear();
        // A send fails only if the worker has ended.
        let _ = self.spares[source].send(spare);
    }

    /// Returns a worker's index in this process; `worker` counts over all processes.
    fn local_worker_index(&self, worker: u32) -> usize {
        (worker / self.shard.of) as usize
    }

    /// Reports to the observer the intervals that all workers have completed.
    fn emit_intervals(&mut self) {
        while let Some((mut record, requests)) = self.intervals.next(None) {
            self.read_memory();
            let mut client = self.client.read().unwrap_or_default();
            if self.shares_process {
                let workers = record.client.and_then(|workers| workers.cpu_us());
                client = client.with_cpu_time(workers.unwrap_or(0));
            }
            record.client = Some(client);
            record.server = self.server.as_mut().and_then(ResourceMeter::read);
            let pids = self.server.as_ref().map_or(&[][..], ResourceMeter::pids);
            record.machine = Some(self.machine.read(pids));
            record.memory = self
                .idle_memory
                .as_mut()
                .map(IdleMemorySampler::take_readings)
                .unwrap_or_default();
            (self.observe)(Observation::Interval(&record, &requests));
        }
    }
}

//! The recorder: where a worker puts what it measured.
//!
//! One a worker, never shared, so recording is a few additions without lock or
//! allocation (memory for a stage is taken at its first record). Once an interval the
//! worker swaps out what was recorded with [`Recorder::take`] and hands it over.

use crate::measure::{CallMeasures, Count, TimeMeasure};
use crate::record::{
    AddressCounts, AddressTally, DETAILS_PER_OUTCOME, Detail, Interval, RequestRecord, SlowCall,
    StageRecord, TurnBegan, add_detail,
};
use crate::template::TraceIds;
use crate::{ConnectPhases, Outcome, Sample, Time};

/// What carried the request of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The worker's number of the connection; `None`: it is gone.
    pub connection: Option<u32>,
    /// The number that the request's trace ids are made of.
    pub traced_as: u64,
}

/// Calls whose requests have trace ids.
#[derive(Clone, Copy, Debug)]
struct Traces {
    ids: TraceIds,
    worker: u32,
    /// The run's start.
    start: Time,
}

/// Records calls and connections of one worker.
#[derive(Debug)]
pub struct Recorder {
    current: Interval,
    stages: usize,
    /// More is kept of calls than is added up: of each, or of the slowest.
    looks_at_calls: bool,
    keep_requests: bool,
    /// The slowest calls are kept; `None`: they are not.
    traces: Option<Traces>,
    /// Texts handed out already, so that each leaves the worker once a run.
    known_details: Vec<Detail>,
    /// What was handed out already: calls that ended well, and bytes received.
    taken: (u64, u64),
}

impl Recorder {
    /// A recorder for a plan of so many stages.
    pub fn new(stages: usize) -> Recorder {
        let mut current = Interval::default();
        current.stages.resize(stages, None);
        Recorder {
            current,
            stages,
            looks_at_calls: false,
            keep_requests: false,
            traces: None,
            known_details: Vec::new(),
            taken: (0, 0),
        }
    }

    /// Keeps one record a call as well, or does not.
    #[must_use]
    pub fn keeping_requests(mut self, keep: bool) -> Recorder {
        self.keep_requests = keep;
        self.looks_at_calls |= keep;
        self
    }

    /// Keeps the slowest calls as well, whose requests have these ids: of this `worker`, in a run that began at
    /// `start`.
    pub fn keep_slowest(&mut self, ids: TraceIds, worker: u32, start: Time) {
        self.traces = Some(Traces { ids, worker, start });
        self.looks_at_calls = true;
    }

    /// A call that was not sent has ended.
    pub fn call(&mut self, s: &Sample) {
        self.sent_call(s, None);
    }

    /// A call over a connection that outlives it has ended.
    #[inline]
    pub fn sent_call(&mut self, s: &Sample, carried: Option<Carried>) {
        let record = self.current.stage_mut(s.stage);
        if s.has_one_time() {
            record.call_of_one_time(s);
        } else {
            record.call(s);
        }
        if self.looks_at_calls {
            self.look(s, carried);
            self.keep(s, None, || None);
        }
    }

    /// As [`Recorder::sent_call`], with what the protocol measured of the call besides. It is
    /// kept with the call, and not added to the stage's counts and times.
    pub fn measured_call(
        &mut self,
        s: &Sample,
        counts: &[(Count, u64)],
        times: &[(TimeMeasure, u64)],
        carried: Option<Carried>,
    ) {
        self.current.stage_mut(s.stage).call(s);
        if self.looks_at_calls {
            self.look(s, carried);
            self.keep(s, None, || Some(Box::new(CallMeasures::new(counts, times))));
        }
    }

    /// Keeps a call that is one of the slowest.
    fn look(&mut self, s: &Sample, carried: Option<Carried>) {
        let (Some(traces), Some(carried)) = (self.traces, carried) else {
            return;
        };
        let slowest = &mut self.current.stage_mut(s.stage).slowest;
        if slowest.admits(s.response_ns()) {
            slowest.add(SlowCall {
                response_ns: s.response_ns(),
                service_ns: s.service_ns(),
                due_ns: s.arrival.since(traces.start),
                outcome: s.outcome,
                worker: traces.worker,
                connection: carried.connection,
                trace_id: traces.ids.trace(carried.traced_as),
            });
        }
    }

    fn keep(
        &mut self,
        sample: &Sample,
        phases: Option<ConnectPhases>,
        measures: impl FnOnce() -> Option<Box<CallMeasures>>,
    ) {
        if self.keep_requests {
            self.current.requests.push(RequestRecord {
                sample: *sample,
                phases,
                measures: measures(),
            });
        }
    }

    /// A call that had its own connection has ended: counts the call and, where it came
    /// up, the connection. The call's `sent` is the moment after the connection's phases.
    /// `carried`: `None` where it was not sent.
    pub fn cold_call(&mut self, s: &Sample, p: &ConnectPhases, carried: Option<Carried>) {
        self.current.stage_mut(s.stage).cold_call(s, p);
        if self.looks_at_calls {
            self.look(s, carried);
            self.keep(s, Some(*p), || None);
        }
    }

    /// Calls that have ended well, and bytes received, of the whole run.
    pub fn so_far(&self) -> (u64, u64) {
        let recorded = self.current.recorded();
        recorded.fold(self.taken, |(ok, bytes), (_, stage)| {
            (ok + stage.ok(), bytes + stage.bytes_received)
        })
    }

    /// A turn of the load begins.
    pub fn turn_began(&mut self, turn: TurnBegan) {
        self.current.turns.push(turn);
    }

    /// What is recorded of a stage, to count one more of something.
    #[inline]
    pub fn stage(&mut self, stage: u8) -> &mut StageRecord {
        self.current.stage_mut(stage)
    }

    /// A connection that several calls will use has come up.
    pub fn connection(&mut self, stage: u8, p: &ConnectPhases) {
        self.current.stage_mut(stage).connection(p);
    }

    /// The number to count at `address` with; the same for the same address.
    pub fn address(&mut self, address: &str) -> u32 {
        let tallies = &mut self.current.addresses;
        let number = tallies.iter().position(|tally| *tally.address == *address);
        let number = number.unwrap_or_else(|| {
            tallies.push(AddressTally::new(address.into(), self.stages));
            tallies.len() - 1
        });
        number as u32
    }

    #[inline]
    fn at(&mut self, address: u32, stage: u8) -> Option<&mut AddressCounts> {
        let tally = self.current.addresses.get_mut(address as usize)?;
        tally.stages.get_mut(usize::from(stage))
    }

    /// A call ended on a connection to the address; nothing is counted at an address without
    /// a number.
    #[inline]
    pub fn call_at(&mut self, address: u32, stage: u8, outcome: Outcome) {
        if let Some(counts) = self.at(address, stage) {
            counts.calls += 1;
            counts.errors += u64::from(outcome.is_error());
        }
    }

    /// A connection to the address came up.
    pub fn connection_at(&mut self, address: u32, stage: u8) {
        if let Some(counts) = self.at(address, stage) {
            counts.connections += 1;
        }
    }

    /// A connection to the address could not be made, or not before one to another.
    pub fn connect_failure_at(&mut self, address: u32, stage: u8) {
        if let Some(counts) = self.at(address, stage) {
            counts.connect_failures += 1;
        }
    }

    /// The generator stood still while `n` calls were under way or due, which can have lengthened
    /// their times by `ns` nanoseconds at most.
    pub fn delayed(&mut self, stage: u8, ns: u64, n: u64) {
        self.current.stage_mut(stage).delayed.record_n(ns, n);
    }

    /// A call that ended ok had taken `ns` nanoseconds at least, not counting what the generator can have added.
    #[inline]
    pub fn response_low(&mut self, stage: u8, ns: u64) {
        self.current.stage_mut(stage).response_low.record(ns);
    }

    /// The run ended with a call that had been due for `ns` nanoseconds and was not sent.
    pub fn cut_off(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.not_started += 1;
        record.cut_off.record(ns);
    }

    /// A call's first message from the server came `ns` nanoseconds after the call's send.
    #[inline]
    pub fn first_message(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.messages.get_or_insert_default().received += 1;
        record.measures.record(TimeMeasure::FirstMessage, ns);
    }

    /// A message from the server came `ns` nanoseconds after the one before it.
    #[inline]
    pub fn inter_message(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.messages.get_or_insert_default().received += 1;
        record.measures.record(TimeMeasure::InterMessage, ns);
    }

    /// `n` messages were sent on a call that has ended.
    pub fn messages_sent(&mut self, stage: u8, n: u64) {
        if n > 0 {
            let record = self.current.stage_mut(stage);
            record.messages.get_or_insert_default().sent += n;
        }
    }

    /// An answer whose tokens are to be counted.
    pub fn text(&mut self, stage: u8, text: String) {
        self.current.texts.push((stage, text));
    }

    /// Counts what the protocol counts besides its calls.
    #[inline]
    pub fn count(&mut self, stage: u8, count: Count, n: u64) {
        self.current.stage_mut(stage).measures.add(count, n);
    }

    /// Records a time, in nanoseconds, that the protocol measures besides its calls.
    #[inline]
    pub fn time(&mut self, stage: u8, measure: TimeMeasure, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.measures.record(measure, ns);
    }

    /// The text of a failure. The first few distinct texts of an outcome are kept.
    pub fn detail(&mut self, outcome: Outcome, text: &str) {
        let enough = |detail: &&Detail| detail.code == outcome;
        if self.known_details.iter().filter(enough).count() < DETAILS_PER_OUTCOME
            && add_detail(&mut self.known_details, outcome, text)
        {
            add_detail(&mut self.current.details, outcome, text);
        }
    }

    /// What was recorded since the last take, to be merged into what has room for all: until
    /// then the times of calls that have but one are in one place. `spare` is an emptied
    /// interval (see [`Interval::clear`]) whose memory is used for what comes.
    pub fn take(&mut self, spare: Option<Interval>) -> Interval {
        let mut next = spare.unwrap_or_default();
        debug_assert!(next.is_empty(), "a spare interval must be cleared");
        self.taken = self.so_far();
        if next.stages.len() < self.current.stages.len() {
            next.stages.resize(self.current.stages.len(), None);
        }
        // The numbers of addresses stay as they are.
        for tally in &self.current.addresses[next.addresses.len()..] {
            let tally = AddressTally::new(tally.address.clone(), self.stages);
            next.addresses.push(tally);
        }
        std::mem::replace(&mut self.current, next)
    }
}

#[cfg(test)]
mod tests;

//! The recorder, to which a worker adds its measurements.
//!
//! Each worker has its own recorder, so recording takes a few additions without locks or allocation (a stage's memory
//! is allocated at its first record). Once per interval, the worker removes the records with
//! [`Recorder::take_interval`] and passes them on.

use crate::formats::redaction;
use crate::metrics::measure::{CallMeasures, Count, TimeMeasure};
use crate::records::record::{
    AddressCounts, BatchStart, CallSampler, FailureDetail, MAX_DETAILS_PER_OUTCOME,
    RecordedInterval, RequestRecord, SampledCall, SpanFacts, StageRecord, StepRecord, TracedCall,
    WorkerAddressCounts, add_detail,
};
use crate::rows::template::TraceIds;
use crate::{CallSample, ConnectPhases, Outcome, Time};

/// The connection and trace number of a call's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestContext {
    /// The connection's number within its worker; `None`: it no longer exists.
    pub connection: Option<u32>,
    /// The number from which the request's trace ids are generated, if the request carries several calls (the upgrade
    /// of a WebSocket, for example); `None`: they are generated from the call's number.
    pub shared_trace_number: Option<u64>,
    /// The number of the journey's step; `None`: the call belongs to no journey.
    pub step: Option<u32>,
}

/// Settings of calls whose requests have trace ids.
#[derive(Clone, Debug)]
pub struct CallTracing {
    /// The trace ids of the requests.
    pub ids: TraceIds,
    /// The worker's number, unique over all processes and shards.
    pub worker: u32,
    /// The start of the run.
    pub start: Time,
    /// The wall-clock time at [`Time::ZERO`], nanoseconds since 1970.
    pub unix_zero_ns: u64,
    /// Chooses the sample; `None`: only the slowest calls are kept.
    pub sampler: Option<CallSampler>,
}

impl CallTracing {
    fn trace_call(
        &self,
        s: &CallSample,
        phases: Option<&ConnectPhases>,
        carried: RequestContext,
    ) -> TracedCall {
        let trace_number = carried.shared_trace_number.unwrap_or(s.number);
        let sent_id = self.ids.span_id(trace_number);
        // Calls that share a request need different span ids.
        let (span_id, parent_span_id) = match carried.shared_trace_number {
            None => (sent_id, None),
            Some(_) => (sent_id.child_id(s.number), Some(sent_id)),
        };
        TracedCall {
            response_ns: s.response_ns(),
            service_ns: s.service_ns(),
            due_ns: s.arrival.since(self.start),
            outcome: s.outcome,
            worker: self.worker,
            connection: carried.connection,
            trace_id: self.ids.trace_id(trace_number),
            span: Some(SpanFacts {
                number: s.number,
                span_id,
                parent_span_id,
                due_unix_ns: self.unix_zero_ns.saturating_add(s.arrival.0),
                first_byte_ns: s.first_byte_ns(),
                bytes_sent: s.bytes_sent,
                bytes_received: s.bytes_received,
                step: carried.step,
                phases: phases.copied(),
            }),
        }
    }
}

/// A recorder of the calls and connections of one worker.
#[derive(Debug)]
pub struct Recorder {
    current: RecordedInterval,
    stages: usize,
    /// Whether calls are examined individually, because each one is logged or the slowest are kept.
    needs_calls: bool,
    keep_requests: bool,
    /// The settings for keeping the slowest calls and, if it has a sampler, a sample of all calls; `None`: neither is
    /// kept.
    tracing: Option<CallTracing>,
    /// Texts that were passed on with earlier intervals, so that each is passed on only once in a run.
    known_details: Vec<FailureDetail>,
    /// Totals of the intervals that were passed on: the number of calls that ended ok, and the number of bytes
    /// received.
    totals_taken: (u64, u64),
}

impl Recorder {
    /// Creates a recorder for a plan with this many stages.
    pub fn new(stages: usize) -> Recorder {
        let mut current = RecordedInterval::default();
        current.stages.resize(stages, None);
        Recorder {
            current,
            stages,
            needs_calls: false,
            keep_requests: false,
            tracing: None,
            known_details: Vec::new(),
            totals_taken: (0, 0),
        }
    }

    /// Sets whether every call is logged as well.
    #[must_use]
    pub fn with_request_log(mut self, keep: bool) -> Recorder {
        self.keep_requests = keep;
        self.needs_calls |= keep;
        self
    }

    /// Makes the recorder keep the slowest calls with their trace ids, and a sample of all calls if `tracing` has a
    /// sampler.
    pub fn enable_tracing(&mut self, tracing: CallTracing) {
        self.tracing = Some(tracing);
        self.needs_calls = true;
    }

    /// Records the end of a call that was not sent.
    pub fn record_call(&mut self, s: &CallSample) {
        self.record_sent_call(s, None);
    }

    /// Records the end of a call on a shared connection.
    #[inline]
    pub fn record_sent_call(&mut self, s: &CallSample, carried: Option<RequestContext>) {
        let record = self.current.stage_mut(s.stage);
        if s.has_equal_times() {
            record.add_call_with_equal_times(s);
        } else {
            record.add_call(s);
        }
        if self.needs_calls {
            self.keep_traced_call(s, None, carried);
            self.log_call(s, None, || None);
        }
    }

    /// Like [`Recorder::record_sent_call`], with the protocol's measures of the call. They are stored in the call's log
    /// entry and not added to the stage's totals.
    pub fn record_call_with_measures(
        &mut self,
        s: &CallSample,
        counts: &[(Count, u64)],
        times: &[(TimeMeasure, u64)],
        carried: Option<RequestContext>,
    ) {
        self.current.stage_mut(s.stage).add_call(s);
        if self.needs_calls {
            self.keep_traced_call(s, None, carried);
            self.log_call(s, None, || Some(Box::new(CallMeasures::new(counts, times))));
        }
    }

    /// Counts a call of a journey's step as due. `names`: the names of all steps of the journey.
    pub fn count_due_step_call(&mut self, stage: u8, step: usize, names: &[String]) {
        self.step_record(stage, step, names).due += 1;
    }

    /// Records the end of a call for its step of a journey, in addition to [`Recorder::record_call_with_measures`].
    pub fn record_step_call(&mut self, sample: &CallSample, step: usize, names: &[String]) {
        self.step_record(sample.stage, step, names).add_call(sample);
    }

    /// Records that a user's journey of `calls` calls succeeded, `ns` nanoseconds after the user was due.
    pub fn record_journey(&mut self, stage: u8, ns: u64, calls: u64) {
        let record = self.current.stage_mut(stage);
        record.measures.record(TimeMeasure::Journey, ns);
        record.longest_journey = record.longest_journey.max(calls);
    }

    fn step_record(&mut self, stage: u8, step: usize, names: &[String]) -> &mut StepRecord {
        let steps = &mut self.current.stage_mut(stage).steps;
        if steps.is_empty() {
            *steps = StepRecord::empty_records(names);
        }
        &mut steps[step]
    }

    /// Keeps the call if it is among the slowest, or may be in the sample.
    fn keep_traced_call(
        &mut self,
        s: &CallSample,
        phases: Option<&ConnectPhases>,
        carried: Option<RequestContext>,
    ) {
        let (Some(tracing), Some(carried)) = (&mut self.tracing, carried) else {
            return;
        };
        let stage = self.current.stage_mut(s.stage);
        let is_slow = stage.slowest.may_include(s.response_ns());
        let sampler = tracing.sampler.as_mut();
        let rank = sampler.and_then(|sampler| sampler.rank_if_sampled(s.number, s.stage));
        if !is_slow && rank.is_none() {
            return;
        }
        let call = tracing.trace_call(s, phases, carried);
        if is_slow {
            stage.slowest.add(call);
        }
        if let Some(rank) = rank {
            stage.sampled.add(SampledCall { rank, call });
        }
    }

    fn log_call(
        &mut self,
        sample: &CallSample,
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

    /// Records the end of a call that opened a new connection: counts the call and, if it was established, the
    /// connection. The sample's `sent` is the end of the connection's phases. `carried` is `None` if the call was not
    /// sent.
    pub fn record_cold_call(
        &mut self,
        s: &CallSample,
        p: &ConnectPhases,
        carried: Option<RequestContext>,
    ) {
        self.current.stage_mut(s.stage).add_cold_call(s, p);
        if self.needs_calls {
            self.keep_traced_call(s, Some(p), carried);
            self.log_call(s, Some(*p), || None);
        }
    }

    /// Returns the number of calls that ended ok, and of bytes received, since the start of the run.
    pub fn running_totals(&self) -> (u64, u64) {
        let recorded = self.current.recorded_stages();
        recorded.fold(self.totals_taken, |(ok, bytes), (_, stage)| {
            (ok + stage.ok_calls(), bytes + stage.bytes_received)
        })
    }

    /// Records the start of a batch.
    pub fn record_batch_start(&mut self, turn: BatchStart) {
        self.current.turns.push(turn);
    }

    /// Returns the record of a stage, for counting directly.
    #[inline]
    pub fn stage_mut(&mut self, stage: u8) -> &mut StageRecord {
        self.current.stage_mut(stage)
    }

    /// Records that a shared connection was established.
    pub fn record_connection(&mut self, stage: u8, p: &ConnectPhases) {
        self.current.stage_mut(stage).add_connection(p);
    }

    /// Returns the number under which connections and calls to `address` are counted. It stays the same for the whole
    /// run.
    pub fn address_number(&mut self, address: &str) -> u32 {
        let tallies = &mut self.current.addresses;
        let number = tallies.iter().position(|tally| *tally.address == *address);
        let number = number.unwrap_or_else(|| {
            tallies.push(WorkerAddressCounts::new(address.into(), self.stages));
            tallies.len() - 1
        });
        number as u32
    }

    #[inline]
    fn address_counts(&mut self, address: u32, stage: u8) -> Option<&mut AddressCounts> {
        let tally = self.current.addresses.get_mut(address as usize)?;
        tally.stages.get_mut(usize::from(stage))
    }

    /// Counts the end of a call on a connection to the address; an address without a number is ignored.
    #[inline]
    pub fn count_call_at_address(&mut self, address: u32, stage: u8, outcome: Outcome) {
        if let Some(counts) = self.address_counts(address, stage) {
            counts.calls += 1;
            counts.errors += u64::from(outcome.is_error());
        }
    }

    /// Counts an established connection to the address.
    pub fn count_connection_to_address(&mut self, address: u32, stage: u8) {
        if let Some(counts) = self.address_counts(address, stage) {
            counts.connections += 1;
        }
    }

    /// Counts a connection to the address that failed, or that lost the race against another address.
    pub fn count_connect_failure_to_address(&mut self, address: u32, stage: u8) {
        if let Some(counts) = self.address_counts(address, stage) {
            counts.connect_failures += 1;
        }
    }

    /// Records that the generator paused while `n` calls were in flight or due, which can have lengthened their times
    /// by at most `ns` nanoseconds.
    pub fn record_pause(&mut self, stage: u8, ns: u64, n: u64) {
        self.current.stage_mut(stage).delayed.record_n(ns, n);
    }

    /// Records the lower bound `ns` of the response time of a call that ended ok, without the delay that the generator
    /// can have added.
    #[inline]
    pub fn record_response_lower_bound(&mut self, stage: u8, ns: u64) {
        self.current.stage_mut(stage).response_low.record(ns);
    }

    /// Records that the run ended with an unsent call that had been due for `ns` nanoseconds.
    pub fn record_cut_off_call(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.not_started += 1;
        record.cut_off.record(ns);
    }

    /// Records that a call's first message from the server arrived `ns` nanoseconds after the call's send.
    #[inline]
    pub fn record_first_message(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.messages.get_or_insert_default().received += 1;
        record.measures.record(TimeMeasure::FirstMessage, ns);
    }

    /// Records that a message from the server arrived `ns` nanoseconds after the previous one.
    #[inline]
    pub fn record_message_gap(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.messages.get_or_insert_default().received += 1;
        record.measures.record(TimeMeasure::InterMessage, ns);
    }

    /// Counts `n` messages that were sent on a call that has ended.
    pub fn count_messages_sent(&mut self, stage: u8, n: u64) {
        if n > 0 {
            let record = self.current.stage_mut(stage);
            record.messages.get_or_insert_default().sent += n;
        }
    }

    /// Stores an answer whose tokens are to be counted.
    pub fn push_answer_text(&mut self, stage: u8, text: String) {
        self.current.texts.push((stage, text));
    }

    /// Adds `n` to a counter that only some protocols have.
    #[inline]
    pub fn add_protocol_count(&mut self, stage: u8, count: Count, n: u64) {
        self.current.stage_mut(stage).measures.add(count, n);
    }

    /// Records a time, in nanoseconds, that only some protocols have.
    #[inline]
    pub fn record_protocol_time(&mut self, stage: u8, measure: TimeMeasure, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.measures.record(measure, ns);
    }

    /// Records the text of a failure without its secrets: it may contain an excerpt of an answer that repeats them. The
    /// first few distinct texts of each outcome are kept.
    pub fn add_failure_detail(&mut self, outcome: Outcome, text: &str) {
        let of_outcome = self.known_details.iter();
        let mut of_outcome = of_outcome.filter(|detail| detail.code == outcome);
        if of_outcome.clone().count() >= MAX_DETAILS_PER_OUTCOME
            || of_outcome.any(|detail| detail.text == text)
        {
            return;
        }
        let text = redaction::mask_urls(text);
        if add_detail(&mut self.known_details, outcome, &text) {
            add_detail(&mut self.current.details, outcome, &text);
        }
    }

    /// Returns everything that was recorded since the last call of this function. The interval must be merged into
    /// another one before it is read: until then, times that belong to several histograms are stored only once. `spare`
    /// is an emptied interval (see [`RecordedInterval::clear`]) whose memory is reused.
    pub fn take_interval(&mut self, spare: Option<RecordedInterval>) -> RecordedInterval {
        let mut next = spare.unwrap_or_default();
        debug_assert!(next.is_empty(), "a spare interval must be cleared");
        self.totals_taken = self.running_totals();
        if next.stages.len() < self.current.stages.len() {
            next.stages.resize(self.current.stages.len(), None);
        }
        // Addresses keep their numbers, so the next interval needs a tally for each of them.
        for tally in &self.current.addresses[next.addresses.len()..] {
            let tally = WorkerAddressCounts::new(tally.address.clone(), self.stages);
            next.addresses.push(tally);
        }
        std::mem::replace(&mut self.current, next)
    }
}

#[cfg(test)]
mod tests;

//! Records of a part of a run: histograms and counters by stage.
//!
//! Invariant: merging is adding. Records of workers, intervals and shards may be merged in any order and grouping with
//! the same result. A [`crate::records::recorder::Recorder`] fills them; [`crate::runs::run`] stores them.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::metrics::measure::{CallMeasures, StageMeasures, TimeMeasure};
use crate::{CallSample, ConnectPhases, Outcome};

mod addresses;
mod batch_start;
mod failure_details;
mod message_counts;
mod outcome_counts;
mod sampled_calls;
mod slowest_calls;
mod steps;
mod tokens;
mod traced_call;

pub use crate::metrics::times::{MAX_TIME_NS, SIGNIFICANT_DIGITS, TimeHistogram};
pub use addresses::{AddressCounts, WorkerAddressCounts};
pub use batch_start::{BatchStart, BatchTotals};
pub use failure_details::{FailureDetail, MAX_DETAILS_PER_OUTCOME};
pub(crate) use failure_details::{add_detail, merge_details};
pub use message_counts::MessageCounts;
pub use outcome_counts::OutcomeCounts;
pub use sampled_calls::{CallSampler, MAX_SAMPLED_CALLS, SampledCall, SampledCalls};
pub use slowest_calls::{MAX_SLOWEST_CALLS, SlowestCalls};
pub(crate) use steps::STEP_TIMES_BY_KEY;
pub use steps::StepRecord;
pub use traced_call::{SpanFacts, TracedCall};

/// The record of one stage.
///
/// Every call that was due is in exactly one count: `due = outcomes.total() + not_started + in flight`.
///
/// The counts are the fields of a line of `intervals.jsonl`; some are left out where they are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// Calls that were due.
    pub due: u64,
    /// Calls that were due and abandoned: the run ended before they were sent, or the generator noticed them after
    /// their deadline.
    pub not_started: u64,
    /// `DEADLINE_EXCEEDED` calls that were not sent: the deadline passed while they waited for a connection or a
    /// stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expired_unsent: u64,
    /// Open loop: calls that waited because every open connection was at its limit of concurrent calls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_for_stream: u64,
    /// Open loop: calls that waited because no connection was open.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited_for_connection: u64,
    /// Answers that arrived after the call's deadline; these calls are among the `DEADLINE_EXCEEDED` ones.
    pub late: u64,
    /// Calls that ended, by outcome.
    pub outcomes: OutcomeCounts,
    /// Connections made with a full handshake (or without TLS).
    pub connections_full: u64,
    /// Connections made with a resumed TLS session.
    pub connections_resumed: u64,
    /// Full handshakes of a worker's first connection, for which there was no ticket yet, where sessions are resumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_first: u64,
    /// Connections, full or resumed, whose server asked for a second `ClientHello` (HelloRetryRequest).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_retried: u64,
    /// Connections, full or resumed, with a new certificate: a server's that was not seen before in the run, or the
    /// client's, reloaded because it was replaced on disk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub certificates_replaced: u64,
    /// Shared connections that were open and were lost; their replacements are counted above.
    #[serde(default)]
    pub connections_lost: u64,
    /// Shared connections that the peer closed before they carried a call.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_unused: u64,
    /// Shared connections, of those that were lost, that the peer closed after they had been idle for a while.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_idle_closed: u64,
    /// Failed attempts to connect; they are not calls.
    pub connect_failures: OutcomeCounts,
    /// Counts by address, where the target has a name or several addresses; a worker's own counts are in
    /// [`RecordedInterval::addresses`] until they are merged.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, AddressCounts>,
    /// The slowest calls, where requests carry trace ids.
    #[serde(default, skip_serializing_if = "SlowestCalls::is_empty")]
    pub slowest: SlowestCalls,
    /// The highest number of calls in a journey that succeeded; 0: no journey succeeded, or the number is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub longest_journey: u64,
    /// Calls that may be in the run's random sample of calls; empty if the plan asks for no sample.
    #[serde(default, skip_serializing_if = "SampledCalls::is_empty")]
    pub sampled: SampledCalls,
    /// Payload bytes of requests.
    pub bytes_sent: u64,
    /// Payload bytes of answers.
    pub bytes_received: u64,
    /// Counts of messages; `None` until a message of a stream is counted.
    #[serde(flatten)]
    pub messages: Option<MessageCounts>,
    /// The records of a journey's steps, in the plan's order; empty where calls don't belong to journeys.
    #[serde(skip)]
    pub steps: Vec<StepRecord>,
    /// Time from the arrival to the end; calls that ended ok.
    #[serde(skip)]
    pub response: TimeHistogram,
    /// Lower bound of `response`, had the generator sent the call when it was due and read its answer when it arrived;
    /// calls that ended ok, in loads whose workers know when bytes reached this host.
    #[serde(skip)]
    pub response_low: TimeHistogram,
    /// Time from the actual send to the end; calls that ended ok.
    #[serde(skip)]
    pub service: TimeHistogram,
    /// Time from the actual send to the first byte of the answer; calls that ended ok.
    #[serde(skip)]
    pub first_byte: TimeHistogram,
    /// Time from the arrival to the end; calls that did not end ok.
    #[serde(skip)]
    pub failed: TimeHistogram,
    /// Time from the arrival to the actual send, for all calls. For calls that open a new connection, it ends when
    /// connecting starts.
    #[serde(skip)]
    pub lag: TimeHistogram,
    /// Time from the arrival until the generator noticed it: the part of the lag that the generator itself caused.
    #[serde(skip)]
    pub pacing: TimeHistogram,
    /// For each call that was in flight or due during a pause of the generator, an upper bound of the delay that the
    /// pause and the resulting backlog can have added.
    #[serde(skip)]
    pub delayed: TimeHistogram,
    /// Times of calls that the end of the run cut off, in flight or unsent: from the arrival to the end of the run.
    #[serde(skip)]
    pub cut_off: TimeHistogram,
    /// Times of connections, messages of streams, and measures that only some protocols have.
    #[serde(skip)]
    pub measures: StageMeasures,
    /// Times of calls whose response time, service time and time to first byte are equal, as for nearly all calls of a
    /// closed loop. They are recorded once, and merged into all three histograms.
    #[serde(skip)]
    pub one_times: TimeHistogram,
}

type TimesSelector = fn(&StageRecord) -> &TimeHistogram;
type TimesSelectorMut = fn(&mut StageRecord) -> &mut TimeHistogram;

/// The histograms of calls, by their keys in a line of `intervals.jsonl`.
pub(crate) const TIMES_BY_KEY: [(&str, TimesSelector, TimesSelectorMut); 9] = [
    ("response_ns", |r| &r.response, |r| &mut r.response),
    (
        "response_low_ns",
        |r| &r.response_low,
        |r| &mut r.response_low,
    ),
    ("service_ns", |r| &r.service, |r| &mut r.service),
    ("first_byte_ns", |r| &r.first_byte, |r| &mut r.first_byte),
    ("failed_ns", |r| &r.failed, |r| &mut r.failed),
    ("lag_ns", |r| &r.lag, |r| &mut r.lag),
    ("pacing_ns", |r| &r.pacing, |r| &mut r.pacing),
    ("delayed_ns", |r| &r.delayed, |r| &mut r.delayed),
    ("cut_off_ns", |r| &r.cut_off, |r| &mut r.cut_off),
];

/// Returns whether the number is 0, so that serialisation leaves it out.
pub(crate) fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl StageRecord {
    #[inline]
    pub(crate) fn add_call(&mut self, s: &CallSample) {
        self.count_call(s);
        self.lag.record(s.lag_ns());
        self.record_times(s);
    }

    /// Counts a call whose [three times are equal](CallSample::has_equal_times).
    #[inline]
    pub(crate) fn add_call_with_equal_times(&mut self, s: &CallSample) {
        self.count_call(s);
        self.one_times.record(s.response_ns());
    }

    #[inline]
    fn count_call(&mut self, s: &CallSample) {
        self.outcomes.add(s.outcome, 1);
        self.bytes_sent += u64::from(s.bytes_sent);
        self.bytes_received += u64::from(s.bytes_received);
    }

    #[inline]
    fn record_times(&mut self, s: &CallSample) {
        if s.outcome.is_ok() {
            self.response.record(s.response_ns());
            self.service.record(s.service_ns());
            self.first_byte.record(s.first_byte_ns());
        } else {
            self.failed.record(s.response_ns());
            if s.outcome.is_abandoned() {
                self.cut_off.record(s.response_ns());
            }
        }
    }

    /// Counts a call that opened a new connection. The connection is counted if it was established.
    pub(crate) fn add_cold_call(&mut self, s: &CallSample, p: &ConnectPhases) {
        self.count_call(s);
        // The connection's setup is recorded in its phases, so it is not part of the lag.
        self.lag.record(s.lag_ns().saturating_sub(p.total_ns()));
        self.record_times(s);
        if s.outcome.is_ok() || p.ready_ns > 0 {
            self.add_connection(p);
        }
        if s.outcome.is_ok() {
            let total_ns = p.total_ns() + s.service_ns();
            self.measures.record(TimeMeasure::ColdTotal, total_ns);
        }
    }

    pub(crate) fn add_connection(&mut self, p: &ConnectPhases) {
        if p.resumed {
            self.connections_resumed += 1;
        } else {
            self.connections_full += 1;
        }
        self.connections_retried += u64::from(p.retried);
        self.certificates_replaced += u64::from(p.replaced);
        for (measure, ns) in [
            (TimeMeasure::Resolve, p.resolve_ns),
            (TimeMeasure::Connect, p.connect_ns),
            (TimeMeasure::Handshake, p.handshake_ns),
            (TimeMeasure::Ready, p.ready_ns),
        ] {
            if ns > 0 {
                self.measures.record(measure, ns);
            }
        }
        self.measures.record(TimeMeasure::Connection, p.total_ns());
    }

    /// Returns the number of calls that ended ok.
    pub fn ok_calls(&self) -> u64 {
        self.outcomes.get(Outcome::Ok)
    }

    /// Returns the number of calls that ended, with or without an error.
    pub fn ended_calls(&self) -> u64 {
        self.outcomes.total()
    }

    /// Returns the number of calls that ended with an error.
    pub fn errors(&self) -> u64 {
        self.ended_calls() - self.ok_calls() - self.cut_off_call_count()
    }

    /// Returns the number of calls that were sent, and abandoned because the run ended.
    pub fn cut_off_call_count(&self) -> u64 {
        let given_up = self.outcomes.iter().filter(|(o, _)| o.is_abandoned());
        given_up.map(|(_, n)| n).sum()
    }

    /// Returns the number of calls that were abandoned because the run ended or the generator noticed them too late,
    /// which is not the target's fault.
    pub fn abandoned_calls(&self) -> u64 {
        self.not_started + self.cut_off_call_count()
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &StageRecord) {
        self.due += other.due;
        self.not_started += other.not_started;
        self.expired_unsent += other.expired_unsent;
        self.waited_for_stream += other.waited_for_stream;
        self.waited_for_connection += other.waited_for_connection;
        self.late += other.late;
        self.outcomes.merge(&other.outcomes);
        self.connections_full += other.connections_full;
        self.connections_resumed += other.connections_resumed;
        self.connections_first += other.connections_first;
        self.connections_retried += other.connections_retried;
        self.certificates_replaced += other.certificates_replaced;
        self.connections_lost += other.connections_lost;
        self.connections_unused += other.connections_unused;
        self.connections_idle_closed += other.connections_idle_closed;
        self.connect_failures.merge(&other.connect_failures);
        for (address, counts) in &other.addresses {
            self.add_address_counts(address, counts);
        }
        self.slowest.merge(&other.slowest);
        self.longest_journey = self.longest_journey.max(other.longest_journey);
        self.sampled.merge(&other.sampled);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        for (_, of, of_mut) in TIMES_BY_KEY {
            of_mut(self).merge(of(other));
        }
        if !other.one_times.is_empty() {
            for times in [&mut self.response, &mut self.service, &mut self.first_byte] {
                times.merge(&other.one_times);
            }
            self.lag.record_n(0, other.one_times.len());
        }
        if let Some(theirs) = other.messages {
            self.messages.get_or_insert_default().merge(theirs);
        }
        steps::merge(&mut self.steps, &other.steps);
        self.measures.merge(&other.measures);
    }

    fn add_address_counts(&mut self, address: &str, counts: &AddressCounts) {
        match self.addresses.get_mut(address) {
            Some(ours) => ours.merge(counts),
            None => {
                self.addresses.insert(address.to_owned(), *counts);
            }
        }
    }

    /// Resets the record and keeps its memory.
    pub fn clear(&mut self) {
        let mut kept = StageRecord {
            one_times: std::mem::take(&mut self.one_times),
            measures: std::mem::take(&mut self.measures),
            steps: std::mem::take(&mut self.steps),
            ..StageRecord::default()
        };
        kept.one_times.clear();
        kept.measures.clear();
        steps::clear(&mut kept.steps);
        for (_, _, of_mut) in TIMES_BY_KEY {
            let times = of_mut(&mut kept);
            *times = std::mem::take(of_mut(self));
            times.clear();
        }
        *self = kept;
    }

    /// Returns whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.due == 0
            && self.not_started == 0
            && self.late == 0
            && self.ended_calls() == 0
            && self.connections_full == 0
            && self.connections_resumed == 0
            && self.connections_lost == 0
            && self.connections_unused == 0
            && self.connections_idle_closed == 0
            && self.connect_failures.total() == 0
            && self.addresses.is_empty()
            && self.pacing.is_empty()
            && self.delayed.is_empty()
            && self.messages.is_none()
            && self.measures.is_empty()
    }
}

/// The record of one call, where every call is recorded. As JSON, it is a line of `requests.jsonl.zst`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// When the call was due, sent and ended, and its outcome.
    #[serde(flatten)]
    pub sample: CallSample,
    /// The phases of the call's own connection; `None` where connections are shared.
    #[serde(flatten)]
    pub phases: Option<ConnectPhases>,
    /// Measures that only some protocols have.
    #[serde(flatten, deserialize_with = "deserialize_measures")]
    pub measures: Option<Box<CallMeasures>>,
}

/// Deserialises the measures of a call; `None` for the many calls that have none.
fn deserialize_measures<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Box<CallMeasures>>, D::Error> {
    let measures = CallMeasures::deserialize(from)?;
    Ok((measures != CallMeasures::default()).then(|| Box::new(measures)))
}

impl RequestRecord {
    /// Formats the record as a line of `requests.jsonl.zst`, without line feed.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).expect("the line's keys are strings")
    }

    /// Parses a line of `requests.jsonl.zst`.
    ///
    /// # Errors
    /// Returns the reason if the text is not such a line.
    pub fn from_line(text: &str) -> Result<RequestRecord, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }
}

/// The records of one worker, or of several merged, in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedInterval {
    /// Records by the number of the plan's stage; `None` where nothing was recorded.
    pub stages: Vec<Option<Box<StageRecord>>>,
    /// Texts of failures: the first few distinct ones of each outcome.
    pub details: Vec<FailureDetail>,
    /// One record per call, where calls are recorded.
    pub requests: Vec<RequestRecord>,
    /// A worker's counts for each address, indexed by the number of the address.
    pub addresses: Vec<WorkerAddressCounts>,
    /// The texts of a worker's answers whose tokens have not been counted yet, with the numbers of their stages.
    pub texts: Vec<(u8, String)>,
    /// One entry for each batch, where the load runs in batches and CPU clocks are read.
    pub turns: Vec<BatchStart>,
}

/// Allocates a stage's record. This is a separate function so that the lookup is small enough to be inlined.
#[cold]
fn new_stage_record() -> Box<StageRecord> {
    Box::default()
}

impl RecordedInterval {
    /// Returns the record of `stage`, creating it if needed.
    #[inline]
    pub fn stage_mut(&mut self, stage: u8) -> &mut StageRecord {
        let index = usize::from(stage);
        if index >= self.stages.len() {
            self.stages.resize(index + 1, None);
        }
        self.stages[index].get_or_insert_with(new_stage_record)
    }

    /// Returns the stages in which something was recorded.
    pub fn recorded_stages(&self) -> impl Iterator<Item = (u8, &StageRecord)> {
        (0u8..=u8::MAX)
            .zip(&self.stages)
            .filter_map(|(i, s)| s.as_deref().filter(|s| !s.is_empty()).map(|s| (i, s)))
    }

    /// Adds the records of `other`.
    pub fn merge(&mut self, other: &RecordedInterval) {
        for (stage, theirs) in other.recorded_stages() {
            self.stage_mut(stage).merge(theirs);
        }
        for detail in &other.details {
            add_detail(&mut self.details, detail.code, &detail.text);
        }
        self.requests.extend_from_slice(&other.requests);
        self.turns.extend_from_slice(&other.turns);
        for tally in &other.addresses {
            for (stage, counts) in (0u8..).zip(&tally.stages) {
                if !counts.is_empty() {
                    self.stage_mut(stage)
                        .add_address_counts(&tally.address, counts);
                }
            }
        }
    }

    /// Resets the interval and keeps its memory.
    pub fn clear(&mut self) {
        self.stages
            .iter_mut()
            .flatten()
            .for_each(|stage| stage.clear());
        self.details.clear();
        self.requests.clear();
        self.texts.clear();
        self.turns.clear();
        self.addresses
            .iter_mut()
            .for_each(WorkerAddressCounts::clear);
    }

    /// Returns whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.recorded_stages().next().is_none()
            && self.details.is_empty()
            && self.requests.is_empty()
            && self.texts.is_empty()
            && self.turns.is_empty()
            && self.addresses.iter().all(WorkerAddressCounts::is_empty)
    }
}

#[cfg(test)]
mod tests;

//! The recorder: where a worker puts what it measured.
//!
//! One a worker, never shared, so recording is a few additions without lock or
//! allocation (memory for a stage is taken at its first record). Once an interval the
//! worker swaps out what was recorded with [`Recorder::take`] and hands it over.

use crate::measure::{CallMeasures, Count, TimeMeasure};
use crate::record::{
    AddressCounts, AddressTally, DETAILS_PER_OUTCOME, Interval, RequestRecord, TurnBegan,
    add_detail,
};
use crate::{ConnectPhases, Outcome, Sample};

/// Records calls and connections of one worker.
#[derive(Debug)]
pub struct Recorder {
    current: Interval,
    stages: usize,
    keep_requests: bool,
    /// Texts handed out already, so that each leaves the worker once a run.
    known_details: Vec<(Outcome, String)>,
}

impl Recorder {
    /// A recorder for a plan of so many stages; `keep_requests`: one record a call as well.
    pub fn new(stages: usize, keep_requests: bool) -> Recorder {
        let mut current = Interval::default();
        current.stages.resize(stages, None);
        Recorder {
            current,
            stages,
            keep_requests,
            known_details: Vec::new(),
        }
    }

    /// A call over a connection that outlives it has ended.
    #[inline]
    pub fn call(&mut self, s: &Sample) {
        let record = self.current.stage_mut(s.stage);
        if s.has_one_time() {
            record.call_of_one_time(s);
        } else {
            record.call(s);
        }
        if self.keep_requests {
            self.keep(s, None, None);
        }
    }

    /// As [`Recorder::call`], with what the protocol measured of the call besides. It is
    /// kept with the call, and not added to the stage's counts and times.
    pub fn measured_call(
        &mut self,
        s: &Sample,
        counts: &[(Count, u64)],
        times: &[(TimeMeasure, u64)],
    ) {
        self.current.stage_mut(s.stage).call(s);
        if self.keep_requests {
            self.keep(s, None, Some(Box::new(CallMeasures::new(counts, times))));
        }
    }

    fn keep(
        &mut self,
        sample: &Sample,
        phases: Option<ConnectPhases>,
        measures: Option<Box<CallMeasures>>,
    ) {
        self.current.requests.push(RequestRecord {
            sample: *sample,
            phases,
            measures,
        });
    }

    /// A call that had its own connection has ended: counts the call and, where it came
    /// up, the connection. The call's `sent` is the moment after the connection's phases.
    pub fn cold_call(&mut self, s: &Sample, p: &ConnectPhases) {
        self.current.stage_mut(s.stage).cold_call(s, p);
        if self.keep_requests {
            self.keep(s, Some(*p), None);
        }
    }

    /// A turn of the load begins.
    pub fn turn_began(&mut self, turn: TurnBegan) {
        self.current.turns.push(turn);
    }

    /// A connection that several calls will use has come up.
    pub fn connection(&mut self, stage: u8, p: &ConnectPhases) {
        self.current.stage_mut(stage).connection(p);
    }

    /// The connection of the call that was recorded last was a worker's first, in a run that
    /// resumes sessions.
    pub fn first_connection(&mut self, stage: u8) {
        self.current.stage_mut(stage).connections_first += 1;
    }

    /// A connection that several calls used was lost.
    pub fn connection_lost(&mut self, stage: u8) {
        self.current.stage_mut(stage).connections_lost += 1;
    }

    /// A connection that several calls were to use ended, and none had used it.
    pub fn connection_unused(&mut self, stage: u8) {
        self.current.stage_mut(stage).connections_unused += 1;
    }

    /// A connection that several calls would have used could not be made.
    pub fn connect_failure(&mut self, stage: u8, outcome: Outcome) {
        self.current
            .stage_mut(stage)
            .connect_failures
            .add(outcome, 1);
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

    /// The loop noticed an arrival `ns` nanoseconds after it was due.
    #[inline]
    pub fn pacing(&mut self, stage: u8, ns: u64) {
        self.current.stage_mut(stage).pacing.record(ns);
    }

    /// The generator stood still while `n` calls were under way or due, which can have lengthened
    /// their times by `ns` nanoseconds at most.
    pub fn delayed(&mut self, stage: u8, ns: u64, n: u64) {
        self.current.stage_mut(stage).delayed.record_n(ns, n);
    }

    /// The time of `n` arrivals has come.
    #[inline]
    pub fn due(&mut self, stage: u8, n: u64) {
        self.current.stage_mut(stage).due += n;
    }

    /// `n` calls that were due will never be sent.
    pub fn not_started(&mut self, stage: u8, n: u64) {
        self.current.stage_mut(stage).not_started += n;
    }

    /// The run ended with a call that had been due for `ns` nanoseconds and was not sent.
    pub fn cut_off(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.not_started += 1;
        record.cut_off.record(ns);
    }

    /// The deadline of a call passed while it waited for a connection or a stream; the call itself
    /// is recorded as any other.
    pub fn expired_unsent(&mut self, stage: u8) {
        self.current.stage_mut(stage).expired_unsent += 1;
    }

    /// A call has to wait before it can be sent: for a stream on one of the connections that are
    /// up, or, where none is, for a connection.
    pub fn waited(&mut self, stage: u8, is_any_up: bool) {
        let record = self.current.stage_mut(stage);
        match is_any_up {
            true => record.waited_for_stream += 1,
            false => record.waited_for_connection += 1,
        }
    }

    /// An answer came after its call's deadline.
    pub fn late(&mut self, stage: u8) {
        self.current.stage_mut(stage).late += 1;
    }

    /// A call's first message from the server came `ns` nanoseconds after the call's send.
    #[inline]
    pub fn first_message(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        let messages = record.messages.get_or_insert_default();
        messages.received += 1;
        messages.first_message.record(ns);
    }

    /// A message from the server came `ns` nanoseconds after the one before it.
    #[inline]
    pub fn inter_message(&mut self, stage: u8, ns: u64) {
        let record = self.current.stage_mut(stage);
        let messages = record.messages.get_or_insert_default();
        messages.received += 1;
        messages.inter_message.record(ns);
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
        let record = self.current.stage_mut(stage);
        record.measures.get_or_insert_default().add(count, n);
    }

    /// Records a time, in nanoseconds, that the protocol measures besides its calls.
    #[inline]
    pub fn time(&mut self, stage: u8, measure: TimeMeasure, ns: u64) {
        let record = self.current.stage_mut(stage);
        record.measures.get_or_insert_default().record(measure, ns);
    }

    /// The text of a failure. The first few distinct texts of an outcome are kept.
    pub fn detail(&mut self, outcome: Outcome, text: &str) {
        let enough = |(o, _): &&(Outcome, String)| *o == outcome;
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
mod tests {
    use super::*;
    use crate::Time;

    fn sample(number: u64, outcome: Outcome) -> Sample {
        Sample {
            number,
            arrival: Time(1_000),
            sent: Time(3_000),
            first_byte: Time(8_000),
            done: Time(9_000),
            stage: 1,
            outcome,
            bytes_sent: 10,
            bytes_received: 20,
        }
    }

    #[test]
    fn what_a_protocol_counts_and_sends_is_kept_and_nothing_is_nothing() {
        let mut recorder = Recorder::new(1, false);
        recorder.messages_sent(0, 0);
        assert_eq!(recorder.take(None).recorded().count(), 0);
        recorder.count(0, Count::SessionsOk, 2);
        recorder.count(0, Count::SessionsOk, 3);
        recorder.messages_sent(0, 4);
        let interval = recorder.take(None);
        let (_, record) = interval.recorded().next().unwrap();
        assert_eq!(record.measures.as_ref().unwrap().of(Count::SessionsOk), 5);
        assert_eq!(record.messages.as_ref().unwrap().sent, 4);
    }

    #[test]
    fn a_failed_call_does_not_enter_the_response_times() {
        let mut recorder = Recorder::new(2, true);
        recorder.due(1, 3);
        recorder.call(&sample(0, Outcome::Ok));
        recorder.call(&sample(1, Outcome::Reset));
        recorder.not_started(1, 1);
        let interval = recorder.take(None);
        let (stage, record) = interval.recorded().next().unwrap();
        assert_eq!(stage, 1);
        assert_eq!((record.response.len(), record.failed.len()), (1, 1));
        assert_eq!(record.lag.len(), 2);
        assert_eq!((record.ok(), record.errors()), (1, 1));
        assert_eq!(record.due, record.ended() + record.not_started);
        assert_eq!(record.response.histogram().unwrap().max(), 8_003);
        assert_eq!(record.service.histogram().unwrap().max(), 6_003);
        assert_eq!(record.first_byte.histogram().unwrap().max(), 5_003);
        assert_eq!((record.bytes_sent, record.bytes_received), (20, 40));
        assert_eq!(interval.requests.len(), 2);
        assert!(recorder.take(Some(Interval::default())).is_empty());
    }

    #[test]
    fn a_call_with_one_time_is_recorded_as_any_other() {
        let at_once = Sample {
            arrival: Time(3_000),
            first_byte: Time(9_000),
            ..sample(0, Outcome::Ok)
        };
        let others = [
            sample(1, Outcome::Ok),
            Sample {
                first_byte: Time(8_000),
                ..at_once
            },
            Sample {
                outcome: Outcome::Reset,
                ..at_once
            },
        ];
        assert!(at_once.has_one_time() && others.iter().all(|other| !other.has_one_time()));
        let mut recorder = Recorder::new(2, true);
        let mut expected = Interval::default();
        for call in [at_once, at_once].iter().chain(&others) {
            recorder.call(call);
            expected.stage_mut(1).call(call);
        }
        let mut recorded = recorder.take(None);
        assert_eq!(recorded.requests.len(), 5);
        let mut merged = Interval::default();
        merged.merge(&recorded);
        assert_eq!(merged.stages[1], expected.stages[1]);
        recorded.clear();
        assert!(recorded.is_empty());
        merged.merge(&recorded);
        assert_eq!(merged.stages[1], expected.stages[1]);
    }

    #[test]
    fn the_messages_of_streams_are_merged_and_cleared() {
        let mut recorder = Recorder::new(1, false);
        recorder.first_message(0, 5_000);
        recorder.inter_message(0, 700);
        recorder.inter_message(0, 900);
        recorder.messages_sent(0, 0);
        recorder.messages_sent(0, 4);
        let mut interval = recorder.take(None);
        let mut total = Interval::default();
        total.merge(&interval);
        total.merge(&interval);
        let messages = total.stages[0].as_deref().unwrap().messages.as_deref();
        let messages = messages.unwrap();
        assert_eq!((messages.sent, messages.received), (8, 6));
        assert_eq!(messages.first_message.len(), 2);
        assert_eq!(messages.inter_message.histogram().unwrap().max(), 900);
        interval.clear();
        assert!(interval.is_empty());
    }

    type Counts = fn(&mut Recorder);

    #[test]
    fn everything_is_counted_where_it_belongs() {
        let mut recorder = Recorder::new(2, false);
        // Each a different number of times.
        for n in 0..16 {
            let calls: [(u64, Counts); 13] = [
                (2, |r| r.first_connection(1)),
                (3, |r| r.connection_lost(1)),
                (4, |r| r.connection_unused(1)),
                (5, |r| r.connect_failure(1, Outcome::Reset)),
                (6, |r| r.due(1, 10)),
                (7, |r| r.not_started(1, 10)),
                (8, |r| r.cut_off(1, 5)),
                (9, |r| r.expired_unsent(1)),
                (10, |r| r.waited(1, true)),
                (11, |r| r.waited(1, false)),
                (12, |r| r.late(1)),
                (13, |r| r.pacing(1, 5)),
                (14, |r| r.delayed(1, 5, 2)),
            ];
            for (most, count) in calls {
                if n < most {
                    count(&mut recorder);
                }
            }
        }
        let mut total = Interval::default();
        let mut taken = recorder.take(None);
        total.merge(&taken);
        total.merge(&taken);
        assert!(total.stages[0].is_none());
        let record = total.stages[1].as_deref().unwrap();
        assert_eq!(record.connections_first, 2 * 2);
        assert_eq!(record.connections_lost, 2 * 3);
        assert_eq!(record.connections_unused, 2 * 4);
        assert_eq!(record.connect_failures.of(Outcome::Reset), 2 * 5);
        assert_eq!(record.due, 2 * 60);
        assert_eq!(record.not_started, 2 * (70 + 8));
        assert_eq!(record.cut_off.len(), 2 * 8);
        assert_eq!(record.expired_unsent, 2 * 9);
        assert_eq!(record.waited_for_stream, 2 * 10);
        assert_eq!(record.waited_for_connection, 2 * 11);
        assert_eq!(record.late, 2 * 12);
        assert_eq!(record.pacing.len(), 2 * 13);
        assert_eq!(record.delayed.len(), 2 * 28);
        taken.clear();
        assert!(taken.is_empty());
    }

    #[test]
    fn a_cold_calls_connection_is_not_lag() {
        let phases = ConnectPhases {
            resolve_ns: 0,
            connect_ns: 500,
            handshake_ns: 1_000,
            ready_ns: 300,
            resumed: true,
            retried: true,
            replaced: true,
        };
        let mut recorder = Recorder::new(1, false);
        recorder.cold_call(&sample(0, Outcome::Ok), &phases);
        recorder.cold_call(
            &sample(1, Outcome::ConnectRefused),
            &ConnectPhases::default(),
        );
        let interval = recorder.take(None);
        let record = interval.stages[1].as_deref().unwrap();
        assert_eq!(record.lag.histogram().unwrap().min(), 200);
        assert_eq!(
            (record.connections_resumed, record.connections_full),
            (1, 0)
        );
        assert_eq!(record.connections_retried, 1);
        assert_eq!(record.certificates_replaced, 1);
        let times = record.phases.as_deref().unwrap();
        assert!(times.resolve.is_empty());
        assert_eq!(times.total.histogram().unwrap().max(), 1_800);
        assert_eq!(times.cold_total.histogram().unwrap().max(), 7_803);
    }

    #[test]
    fn calls_and_connections_are_counted_at_their_address() {
        let mut recorder = Recorder::new(2, false);
        let (first, second) = (recorder.address("a"), recorder.address("b"));
        assert_eq!(recorder.address("a"), first);
        recorder.connection_at(second, 0);
        recorder.connect_failure_at(first, 0);
        recorder.call_at(second, 1, Outcome::Ok);
        recorder.call_at(second, 1, Outcome::CutOff);
        recorder.call_at(second, 1, Outcome::Reset);
        recorder.call_at(u32::MAX, 1, Outcome::Ok);
        let mut other = Recorder::new(2, false);
        let same = other.address("b");
        other.call_at(same, 1, Outcome::Ok);
        let mut total = Interval::default();
        let mut taken = recorder.take(None);
        for interval in [&taken, &other.take(None)] {
            total.merge(interval);
        }
        let counts =
            |stage: usize, address| total.stages[stage].as_deref().unwrap().addresses[address];
        assert_eq!((counts(1, "b").calls, counts(1, "b").errors), (4, 1));
        assert_eq!(
            (counts(0, "b").connections, counts(0, "a").connect_failures),
            (1, 1)
        );
        // Numbers hold for a run, whatever memory is used again.
        taken.clear();
        assert!(taken.is_empty());
        let third = recorder.address("c");
        recorder.take(Some(taken));
        recorder.call_at(third, 1, Outcome::Ok);
        let mut total = Interval::default();
        total.merge(&recorder.take(None));
        assert_eq!(total.stages[1].as_deref().unwrap().addresses["c"].calls, 1);
    }

    #[test]
    fn a_cleared_interval_is_reused() {
        let mut recorder = Recorder::new(2, true);
        recorder.call(&sample(0, Outcome::Ok));
        recorder.detail(Outcome::Reset, "peer");
        let mut first = recorder.take(None);
        let mut total = Interval::default();
        total.merge(&first);
        first.clear();
        assert!(first.is_empty());
        recorder.call(&sample(1, Outcome::Ok));
        let second = recorder.take(Some(first));
        recorder.detail(Outcome::Reset, "peer");
        total.merge(&second);
        assert_eq!(total.stages[1].as_ref().unwrap().response.len(), 2);
        assert_eq!(total.details, [(Outcome::Reset, "peer".to_owned())]);
        recorder.call(&sample(2, Outcome::Ok));
        let third = recorder.take(None);
        assert!(third.details.is_empty(), "each text leaves the worker once");
        assert_eq!(third.stages[1].as_ref().unwrap().response.len(), 1);
    }
}

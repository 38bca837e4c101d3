//! Merges the intervals of several sources: the workers of a process, the processes of a load, the shards of a run.
//!
//! Invariants: Merging is adding, so the order of the parts makes no difference. Every call that a source has reported
//! is in exactly one interval that is passed on. Calls that were in flight in the last report of a source that has
//! ended stay in flight to the end. A process merges the intervals of its workers with this module, and a supervisor
//! merges those of processes or shards.

use std::ops::Add;
use std::time::Duration;

use crate::records::record::{RecordedInterval, RequestRecord, merge_details};

use super::interval::{IntervalRecord, ResourceUsage};
use super::memory::merge_readings;
use super::users::UserLevels;

/// A merger of the intervals of several sources. An interval is complete once every source has moved past it. A caller
/// that can't wait for a late source gets the incomplete interval.
#[derive(Debug)]
pub struct IntervalMerger {
    sources: Vec<MergeSource>,
    /// The merged parts of each interval and their calls, in ascending order.
    pending: Vec<(IntervalRecord, Vec<RequestRecord>)>,
    /// The first interval that has not been passed on.
    next: u64,
    last_end: Duration,
}

#[derive(Clone, Debug, Default)]
struct MergeSource {
    /// The latest interval that the source has reported.
    last: Option<u64>,
    /// The values at the end of that interval.
    open: SourceGauges,
    has_ended: bool,
}

/// Gauges of a source at the end of an interval. The later interval's values replace the earlier ones'.
#[derive(Clone, Copy, Debug, Default)]
struct SourceGauges {
    in_flight: u64,
    backlog: u64,
    connections: u64,
    users: Option<UserLevels>,
    client: ResourceUsage,
}

impl SourceGauges {
    fn from_interval(interval: &IntervalRecord) -> SourceGauges {
        SourceGauges {
            in_flight: interval.in_flight,
            backlog: interval.backlog,
            connections: interval.connections_open,
            users: interval.users,
            client: interval.client.unwrap_or_default(),
        }
    }

    /// Subtracts these values from `interval`, to which they were added before.
    fn subtract_from(&self, interval: &mut IntervalRecord) {
        interval.in_flight = interval.in_flight.saturating_sub(self.in_flight);
        interval.backlog = interval.backlog.saturating_sub(self.backlog);
        interval.connections_open = interval.connections_open.saturating_sub(self.connections);
        let users = interval.users.zip(self.users);
        interval.users = users.map_or(interval.users, |(all, own)| Some(all.without_present(own)));
        if let Some(client) = &mut interval.client {
            client.rss_bytes = client.rss_bytes.saturating_sub(self.client.rss_bytes);
            client.descriptors = client.descriptors.saturating_sub(self.client.descriptors);
            client.threads = client.threads.saturating_sub(self.client.threads);
        }
    }
}

impl IntervalMerger {
    /// Creates a merger of this many sources, numbered from 0.
    pub fn new(sources: usize) -> IntervalMerger {
        IntervalMerger {
            sources: vec![MergeSource::default(); sources],
            pending: Vec::new(),
            next: 0,
            last_end: Duration::ZERO,
        }
    }

    /// Adds the record of `source` for an interval; the source will not report earlier intervals afterwards. Late
    /// records are added to the first interval that has not been passed on.
    pub fn add(&mut self, source: usize, mut part: IntervalRecord, requests: Vec<RequestRecord>) {
        let from = &mut self.sources[source];
        part.index = part.index.max(self.next);
        let (last, open) = (from.last.replace(part.index), from.open);
        from.open = SourceGauges::from_interval(&part);
        let place = self
            .pending
            .binary_search_by_key(&part.index, |(i, _)| i.index);
        match place {
            Ok(at) => {
                let (merged, calls) = &mut self.pending[at];
                if last == Some(part.index) {
                    open.subtract_from(merged);
                    part.memory.clear();
                }
                merged.merge(&part);
                calls.extend(requests);
            }
            Err(at) => self.pending.insert(at, (part, requests)),
        }
    }

    /// Marks `source` as ended.
    pub fn mark_ended(&mut self, source: usize) {
        self.sources[source].has_ended = true;
    }

    /// Marks all sources as ended.
    pub fn mark_all_ended(&mut self) {
        self.sources.iter_mut().for_each(|s| s.has_ended = true);
    }

    /// Returns the next interval that every source has moved past; it starts at the end of the previous one. If `late`
    /// is given, intervals up to this number are returned even if they are incomplete.
    pub fn next(&mut self, late: Option<u64>) -> Option<(IntervalRecord, Vec<RequestRecord>)> {
        let reached = |s: &MergeSource| if s.has_ended { Some(u64::MAX) } else { s.last };
        let complete_until = self.sources.iter().map(reached).min().flatten();
        let first = self.pending.first()?.0.index;
        if complete_until.max(late) < Some(first) {
            return None;
        }
        let (mut merged, requests) = self.pending.remove(0);
        self.next = first + 1;
        let end = merged.end_offset().max(self.last_end);
        merged.start_offset = self.last_end;
        merged.length = end - self.last_end;
        self.last_end = end;
        // For a source that has ended or is late, use the gauges of its last report.
        let missing = |s: &&MergeSource| s.last.is_some_and(|last| last < first);
        for source in self.sources.iter().filter(missing) {
            merged.in_flight += source.open.in_flight;
            merged.backlog += source.open.backlog;
            let present = source.open.users.map(UserLevels::present);
            merged.users = combine_users(merged.users, present);
        }
        Some((merged, requests))
    }
}

/// Returns the sum of the users of two sources, of which either may have none.
fn combine_users(ours: Option<UserLevels>, theirs: Option<UserLevels>) -> Option<UserLevels> {
    ours.into_iter().chain(theirs).reduce(UserLevels::combine)
}

impl ResourceUsage {
    /// Returns the sum of the resources of two processes.
    #[must_use]
    pub fn combine(self, other: ResourceUsage) -> ResourceUsage {
        ResourceUsage {
            cpu_user_us: self.cpu_user_us + other.cpu_user_us,
            cpu_system_us: self
                .cpu_system_us
                .zip(other.cpu_system_us)
                .map(|(a, b)| a + b),
            rss_bytes: self.rss_bytes + other.rss_bytes,
            rss_bytes_before: self
                .rss_bytes_before
                .into_iter()
                .chain(other.rss_bytes_before)
                .reduce(Add::add),
            descriptors: self.descriptors + other.descriptors,
            threads: self.threads + other.threads,
        }
    }
}

impl IntervalRecord {
    /// Converts a worker's record of an interval to an [`IntervalRecord`], whose remaining fields are empty, and
    /// returns its calls as well.
    pub fn from_worker(by_worker: &RecordedInterval) -> (IntervalRecord, Vec<RequestRecord>) {
        // Merging completes the histograms: a worker records a time that belongs to several histograms only once.
        let mut all = RecordedInterval::default();
        all.merge(by_worker);
        let record = IntervalRecord {
            stages: (0u8..)
                .zip(all.stages)
                .filter_map(|(stage, record)| Some((stage, *record?)))
                .filter(|(_, record)| !record.is_empty())
                .collect(),
            details: all.details,
            batches: all.turns,
            ..IntervalRecord::default()
        };
        (record, all.requests)
    }

    /// Merges another process's record of the same interval. The order of merging makes no difference. The interval
    /// extends from the earlier start to the later end.
    pub fn merge(&mut self, other: &IntervalRecord) {
        let end = self.end_offset().max(other.end_offset());
        self.start_offset = if self.length.is_zero() {
            other.start_offset
        } else {
            self.start_offset.min(other.start_offset)
        };
        self.length = end.saturating_sub(self.start_offset);
        for (stage, theirs) in &other.stages {
            match self.stages.binary_search_by_key(stage, |(s, _)| *s) {
                Ok(at) => self.stages[at].1.merge(theirs),
                Err(at) => self.stages.insert(at, (*stage, theirs.clone())),
            }
        }
        self.in_flight += other.in_flight;
        self.backlog += other.backlog;
        self.connections_open += other.connections_open;
        self.users = combine_users(self.users, other.users);
        self.busiest_worker_ratio = self.busiest_worker_ratio.max(other.busiest_worker_ratio);
        let both = |ours: Option<ResourceUsage>, theirs| {
            ours.into_iter()
                .chain(theirs)
                .reduce(ResourceUsage::combine)
        };
        self.client = both(self.client, other.client);
        self.server = both(self.server, other.server);
        match (&mut self.machine, &other.machine) {
            (Some(ours), Some(theirs)) => ours.merge_same_machine(theirs),
            (ours, theirs) => *ours = ours.take().or_else(|| theirs.clone()),
        }
        merge_readings(&mut self.memory, &other.memory);
        merge_details(&mut self.details, &other.details);
        self.batches.extend_from_slice(&other.batches);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::records::record::{CallSampler, FailureDetail, MAX_SLOWEST_CALLS};
    use crate::records::recorder::{CallTracing, RequestContext};
    use crate::rows::template::TraceIds;
    use crate::runs::run::{MachineUse, MemoryPhase, MemoryReading, OtherProcess, ProcessMemory};
    use crate::{CallSample, Outcome, Recorder, Time};

    #[test]
    fn interval_waits_for_every_source() {
        let mut merger = IntervalMerger::new(2);
        let add = |merger: &mut IntervalMerger, source, index, connections_open| {
            let part = IntervalRecord {
                index,
                connections_open,
                ..IntervalRecord::default()
            };
            merger.add(source, part, Vec::new());
        };
        let next = |merger: &mut IntervalMerger, late| {
            let (record, _) = merger.next(late)?;
            Some((record.index, record.connections_open))
        };
        add(&mut merger, 0, 0, 1);
        add(&mut merger, 0, 1, 10);
        assert_eq!(next(&mut merger, None), None);
        add(&mut merger, 1, 0, 2);
        assert_eq!(next(&mut merger, None), Some((0, 3)));
        assert_eq!(next(&mut merger, None), None);
        assert_eq!(next(&mut merger, Some(0)), None);
        // A source that reported nothing for an interval has moved past it as well.
        add(&mut merger, 1, 2, 20);
        assert_eq!(next(&mut merger, None), Some((1, 10)));
        merger.mark_ended(0);
        assert_eq!(next(&mut merger, None), Some((2, 20)));
        add(&mut merger, 1, 3, 5);
        merger.mark_all_ended();
        assert_eq!(next(&mut merger, None), Some((3, 5)));
        assert_eq!(next(&mut merger, None), None);
    }

    #[test]
    fn late_source_keeps_in_flight_count() {
        let part = |index: u64, in_flight| IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            in_flight,
            users: Some(UserLevels {
                in_flight,
                in_flight_max: in_flight + 1,
                in_flight_us: in_flight * 1_000_000,
                ..UserLevels::default()
            }),
            ..IntervalRecord::default()
        };
        let mut merger = IntervalMerger::new(2);
        merger.add(0, part(0, 1), Vec::new());
        merger.add(1, part(0, 7), Vec::new());
        merger.add(0, part(1, 2), Vec::new());
        let next = |merger: &mut IntervalMerger, late| {
            let (record, _) = merger.next(late)?;
            let users = record.users.expect("users");
            assert_eq!(users.in_flight, record.in_flight);
            Some((record.index, record.in_flight))
        };
        assert_eq!(next(&mut merger, None), Some((0, 8)));
        assert_eq!(next(&mut merger, None), None);
        // The second source is late.
        assert_eq!(next(&mut merger, Some(1)), Some((1, 9)));
        merger.add(1, part(1, 6), Vec::new());
        merger.add(1, part(2, 5), Vec::new());
        merger.add(0, part(2, 0), Vec::new());
        assert_eq!(next(&mut merger, None), Some((2, 5)));
        merger.mark_ended(1);
        merger.add(0, part(3, 3), Vec::new());
        assert_eq!(next(&mut merger, None), Some((3, 8)));
    }

    /// The records of one recorder, and of `of` recorders, for the same calls.
    fn recorded(of: u64) -> (IntervalRecord, Vec<IntervalRecord>) {
        let record = |numbers: &mut dyn Iterator<Item = u64>| {
            let mut recorder = Recorder::new(3);
            recorder.enable_tracing(CallTracing {
                ids: TraceIds::new(1, 2),
                worker: 0,
                start: Time(0),
                unix_zero_ns: 0,
                sampler: Some(CallSampler::new(1, 1_000, vec![false])),
            });
            for number in numbers {
                let stage = (number % 3) as u8;
                recorder.stage_mut(stage).due += 1;
                let outcome = match number % 17 {
                    0 => Outcome::Reset,
                    _ => Outcome::Ok,
                };
                let sample = CallSample {
                    number,
                    arrival: Time(number * 1_000),
                    sent: Time(number * 1_000 + number % 7),
                    first_byte: Time(number * 1_300),
                    done: Time(number * 1_500 + 77),
                    stage,
                    outcome,
                    bytes_sent: 3,
                    bytes_received: number as u32,
                };
                let carried = RequestContext {
                    connection: (number % 5 != 0).then_some(number as u32 % 5),
                    shared_trace_number: None,
                    step: None,
                };
                recorder.record_sent_call(&sample, Some(carried));
            }
            let taken = recorder.take_interval(None);
            IntervalRecord {
                index: 4,
                start_offset: Duration::from_secs(4),
                length: Duration::from_secs(1),
                stages: taken
                    .recorded_stages()
                    .map(|(i, s)| (i, s.clone()))
                    .collect(),
                ..IntervalRecord::default()
            }
        };
        let whole = record(&mut (0..1_000));
        let parts = (0..of)
            .map(|shard| record(&mut (0..1_000).filter(|n| n % of == shard)))
            .collect();
        (whole, parts)
    }

    #[test]
    fn shard_merge_is_order_independent() {
        for of in [1, 2, 3, 7] {
            let (whole, mut parts) = recorded(of);
            for turn in 0..of {
                parts.rotate_left(turn as usize);
                let mut merged = IntervalRecord {
                    index: 4,
                    ..IntervalRecord::default()
                };
                // Through the text format, as between processes.
                for part in &parts {
                    merged.merge(&IntervalRecord::from_line(&part.to_line()).unwrap());
                }
                assert_eq!(merged, whole, "{of} shards, turned by {turn}");
                let mut slowest = merged.stages.iter().map(|(_, record)| &record.slowest);
                assert!(slowest.all(|s| s.calls().len() == MAX_SLOWEST_CALLS));
            }
        }
    }

    #[test]
    fn merge_ties_are_order_independent() {
        let part = |shard: u32| IntervalRecord {
            length: Duration::from_secs(1),
            machine: Some(MachineUse {
                busiest: Some(OtherProcess {
                    name: "plimsoll".to_owned(),
                    pid: 100 + shard as i32,
                    cpu_us: 200_000,
                }),
                ..MachineUse::default()
            }),
            memory: vec![MemoryReading {
                moment: MemoryPhase::Held,
                connections: 1,
                client: None,
                server: Some(ProcessMemory {
                    rss_bytes: 4_096,
                    pss_bytes: u64::from(shard),
                    private_bytes: 0,
                }),
                kernel: None,
            }],
            details: (0..4)
                .map(|text| FailureDetail {
                    code: Outcome::Reset,
                    text: format!("{}", (text * 7 + shard) % 9),
                })
                .collect(),
            ..IntervalRecord::default()
        };
        let mut parts: Vec<IntervalRecord> = (0..5).map(part).collect();
        let mut first = None;
        for _ in 0..parts.len() {
            parts.rotate_left(1);
            let mut merged = IntervalRecord::default();
            parts.iter().for_each(|part| merged.merge(part));
            assert_eq!(*first.get_or_insert_with(|| merged.clone()), merged);
        }
    }

    #[test]
    fn merge_sums_gauges_but_not_ratios() {
        let one = |from_ms, length_ms, ratio| IntervalRecord {
            start_offset: Duration::from_millis(from_ms),
            length: Duration::from_millis(length_ms),
            in_flight: 2,
            backlog: 3,
            connections_open: 5,
            busiest_worker_ratio: ratio,
            client: Some(ResourceUsage {
                rss_bytes: 10,
                ..ResourceUsage::default()
            }),
            ..IntervalRecord::default()
        };
        let mut merged = IntervalRecord::default();
        merged.merge(&one(1_000, 1_000, 0.25));
        merged.merge(&one(1_001, 1_009, 0.75));
        assert_eq!(
            (merged.start_offset, merged.end_offset()),
            (Duration::from_secs(1), Duration::from_millis(2_010))
        );
        assert_eq!(
            (merged.in_flight, merged.backlog, merged.connections_open),
            (4, 6, 10)
        );
        assert!((merged.busiest_worker_ratio - 0.75).abs() < 1e-9);
        assert_eq!(merged.client.unwrap().rss_bytes, 20);
        assert_eq!(merged.server, None);
    }
}

//! Intervals of several recorders put together: of a process's workers, of a run's shards.
//!
//! Invariant: merging is adding, so the order in which parts come changes nothing; and an
//! interval is whole once every recorder has left it behind, though whoever can't wait for one
//! that is late takes it as it is. Pure; the conductor and the
//! command that spreads a run over processes call it.

use crate::record::merge_details;

use super::interval::{IntervalRecord, Resources};
use super::memory::merge_readings;

/// Parts of intervals from several sources, held back until every source has given its own.
#[derive(Debug)]
pub struct InStep<T> {
    /// The last interval that each source has given; `u64::MAX` once it has ended.
    reached: Vec<Option<u64>>,
    /// In the order of their numbers.
    pending: Vec<(u64, T)>,
}

impl<T: Default> InStep<T> {
    pub fn new(sources: usize) -> InStep<T> {
        InStep {
            reached: vec![None; sources],
            pending: Vec::new(),
        }
    }

    /// Where `source` adds its part of interval `index`, having none left of those before.
    pub fn part(&mut self, source: usize, index: u64) -> &mut T {
        self.reached[source] = Some(index);
        let at = match self.pending.binary_search_by_key(&index, |(i, _)| *i) {
            Ok(at) => at,
            Err(at) => {
                self.pending.insert(at, (index, T::default()));
                at
            }
        };
        &mut self.pending[at].1
    }

    /// Nothing more comes of `source`.
    pub fn ended(&mut self, source: usize) {
        self.reached[source] = Some(u64::MAX);
    }

    /// Nothing more comes at all.
    pub fn all_ended(&mut self) {
        self.reached.fill(Some(u64::MAX));
    }

    /// The next interval that every source has left behind.
    pub fn next_whole(&mut self) -> Option<(u64, T)> {
        let complete = (*self.reached.iter().min()?)?;
        let first = self.pending.first()?.0;
        (first <= complete).then(|| self.pending.remove(0))
    }

    /// The next interval up to `latest`, as far as there are parts of it. What comes of it
    /// later is to be added to a later one.
    pub fn next_until(&mut self, latest: u64) -> Option<(u64, T)> {
        let first = self.pending.first()?.0;
        (first <= latest).then(|| self.pending.remove(0))
    }
}

impl Resources {
    /// What two processes used together.
    #[must_use]
    pub fn plus(self, other: Resources) -> Resources {
        Resources {
            cpu_user_us: self.cpu_user_us + other.cpu_user_us,
            cpu_system_us: self
                .cpu_system_us
                .zip(other.cpu_system_us)
                .map(|(a, b)| a + b),
            rss_bytes: self.rss_bytes + other.rss_bytes,
            rss_bytes_before: match (self.rss_bytes_before, other.rss_bytes_before) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            },
            descriptors: self.descriptors + other.descriptors,
            threads: self.threads + other.threads,
        }
    }
}

impl IntervalRecord {
    /// Add what another process recorded in the same interval, in whatever order. The interval
    /// reaches from the earlier beginning to the later end.
    pub fn merge(&mut self, other: &IntervalRecord) {
        let end = self.end_offset().max(other.end_offset());
        self.start_offset = match self.length.is_zero() {
            true => other.start_offset,
            false => self.start_offset.min(other.start_offset),
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
        self.busiest_worker_ratio = self.busiest_worker_ratio.max(other.busiest_worker_ratio);
        let both = |ours: Option<Resources>, theirs: Option<Resources>| match (ours, theirs) {
            (Some(ours), Some(theirs)) => Some(ours.plus(theirs)),
            (ours, theirs) => ours.or(theirs),
        };
        self.client = both(self.client, other.client);
        self.server = both(self.server, other.server);
        match (&mut self.machine, &other.machine) {
            (Some(ours), Some(theirs)) => ours.beside(theirs),
            (ours, theirs) => *ours = ours.take().or_else(|| theirs.clone()),
        }
        merge_readings(&mut self.memory, &other.memory);
        merge_details(&mut self.details, &other.details);
        self.turns.extend_from_slice(&other.turns);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::run::{MachineUse, MemoryReading, Moment, OtherProcess, ProcessMemory};
    use crate::{Outcome, Recorder, Sample, Time};

    #[test]
    fn an_interval_is_whole_when_every_source_has_left_it_behind() {
        let mut steps: InStep<u32> = InStep::new(2);
        *steps.part(0, 0) += 1;
        *steps.part(0, 1) += 10;
        assert_eq!(steps.next_whole(), None);
        *steps.part(1, 0) += 2;
        assert_eq!(steps.next_whole(), Some((0, 3)));
        assert_eq!(steps.next_whole(), None);
        assert_eq!(steps.next_until(0), None);
        // A source that slept through an interval has left it behind as well.
        *steps.part(1, 2) += 20;
        assert_eq!(steps.next_whole(), Some((1, 10)));
        steps.ended(0);
        assert_eq!(steps.next_whole(), Some((2, 20)));
        *steps.part(1, 3) += 5;
        steps.all_ended();
        assert_eq!(steps.next_whole(), Some((3, 5)));
        assert_eq!(steps.next_whole(), None);
    }

    /// What one recorder, and what each of `of`, would have had of the same calls.
    fn recorded(of: u64) -> (IntervalRecord, Vec<IntervalRecord>) {
        let record = |numbers: &mut dyn Iterator<Item = u64>| {
            let mut recorder = Recorder::new(3);
            for number in numbers {
                let stage = (number % 3) as u8;
                recorder.due(stage, 1);
                let outcome = match number % 17 {
                    0 => Outcome::Reset,
                    _ => Outcome::Ok,
                };
                recorder.call(&Sample {
                    number,
                    arrival: Time(number * 1_000),
                    sent: Time(number * 1_000 + number % 7),
                    first_byte: Time(number * 1_300),
                    done: Time(number * 1_500 + 77),
                    stage,
                    outcome,
                    bytes_sent: 3,
                    bytes_received: number as u32,
                });
            }
            let taken = recorder.take(None);
            IntervalRecord {
                index: 4,
                start_offset: Duration::from_secs(4),
                length: Duration::from_secs(1),
                stages: taken.recorded().map(|(i, s)| (i, s.clone())).collect(),
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
    fn shards_merged_are_the_whole_in_whatever_order() {
        for of in [1, 2, 3, 7] {
            let (whole, mut parts) = recorded(of);
            for turn in 0..of {
                parts.rotate_left(turn as usize);
                let mut merged = IntervalRecord {
                    index: 4,
                    ..IntervalRecord::default()
                };
                // Through the text, as between processes.
                for part in &parts {
                    merged.merge(&IntervalRecord::from_line(&part.to_line()).unwrap());
                }
                assert_eq!(merged, whole, "{of} shards, turned by {turn}");
            }
        }
    }

    #[test]
    fn texts_and_processes_of_equal_weight_are_the_same_in_whatever_order() {
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
                moment: Moment::Held,
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
                .map(|text| (Outcome::Reset, format!("{}", (text * 7 + shard) % 9)))
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
    fn what_stands_at_an_end_is_added_and_ratios_are_not() {
        let one = |from_ms, length_ms, ratio| IntervalRecord {
            start_offset: Duration::from_millis(from_ms),
            length: Duration::from_millis(length_ms),
            in_flight: 2,
            backlog: 3,
            connections_open: 5,
            busiest_worker_ratio: ratio,
            client: Some(Resources {
                rss_bytes: 10,
                ..Resources::default()
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

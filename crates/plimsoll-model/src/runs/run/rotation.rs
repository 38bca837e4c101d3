//! The cost of certificate rotation during a run: the seconds around each rotation compared with all other seconds.
//!
//! [`RotationTotals`] adds up intervals one by one, as part of [`super::summary::RunTotals`]. An interval counts as
//! around a rotation if a certificate was replaced in this interval or in an adjacent one.

use std::time::Duration;

use serde::Serialize;

use super::interval::IntervalRecord;
use super::times_summary::TimesSummary;
use crate::TimeMeasure;
use crate::records::record::TimeHistogram;

/// Figures of the intervals around certificate rotations, and of all other intervals, without warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RotationSummary {
    /// Intervals in which a certificate was replaced.
    pub intervals: u64,
    /// These intervals and the adjacent ones.
    pub around: RotationPart,
    /// All other intervals.
    pub rest: RotationPart,
}

/// Figures of a group of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RotationPart {
    /// The total length of the intervals, µs.
    pub length_us: u64,
    /// Calls that ended, ok or not.
    pub calls: u64,
    /// Calls among these that ended with an error.
    pub errors: u64,
    /// Failed attempts to connect; they are not calls.
    pub connect_failures: u64,
    /// Connections made, with full or resumed handshakes.
    pub connections: u64,
    /// The TLS handshake's times; `None`: there was no handshake.
    pub handshake: Option<TimesSummary>,
    /// The client's CPU time per call, µs. `None`, here and in the next field: not known.
    pub client_cpu_us_per_call: Option<f64>,
    /// The watched server's CPU time per call, µs.
    pub server_cpu_us_per_call: Option<f64>,
}

/// The sums of a group of intervals.
#[derive(Clone, Debug, Default)]
struct IntervalSums {
    length: Duration,
    calls: u64,
    errors: u64,
    connect_failures: u64,
    connections: u64,
    handshake: TimeHistogram,
    /// CPU time of client and server, µs; `None`: not known for one of the intervals.
    cpu: [Option<u64>; 2],
}

impl IntervalSums {
    /// Sums up an interval; `None`: the interval belongs to the warm-up, or nothing happened in it.
    fn from_interval(
        warms_up: impl Fn(u8) -> bool,
        interval: &IntervalRecord,
    ) -> Option<IntervalSums> {
        if interval.stages.is_empty() || interval.stages.iter().any(|(s, _)| warms_up(*s)) {
            return None;
        }
        let mut part = IntervalSums {
            length: interval.length,
            cpu: [interval.client, interval.server].map(|used| used?.cpu_us()),
            ..IntervalSums::default()
        };
        for (_, record) in &interval.stages {
            part.calls += record.ok_calls() + record.errors();
            part.errors += record.errors();
            part.connect_failures += record.connect_failures.total();
            part.connections += record.connections_full + record.connections_resumed;
            part.handshake
                .merge(record.measures.times(TimeMeasure::Handshake));
        }
        Some(part)
    }

    fn merge(&mut self, other: &IntervalSums) {
        self.length += other.length;
        self.calls += other.calls;
        self.errors += other.errors;
        self.connect_failures += other.connect_failures;
        self.connections += other.connections;
        self.handshake.merge(&other.handshake);
        for (ours, theirs) in self.cpu.iter_mut().zip(other.cpu) {
            *ours = ours.zip(theirs).map(|(a, b)| a + b);
        }
    }

    fn summary(&self) -> RotationPart {
        let per_call = |cpu: Option<u64>| {
            let cpu = cpu.filter(|_| self.calls > 0)?;
            Some((cpu as f64 / self.calls as f64 * 1e3).round() / 1e3)
        };
        RotationPart {
            length_us: u64::try_from(self.length.as_micros()).unwrap_or(u64::MAX),
            calls: self.calls,
            errors: self.errors,
            connect_failures: self.connect_failures,
            connections: self.connections,
            handshake: TimesSummary::from_times(&self.handshake),
            client_cpu_us_per_call: per_call(self.cpu[0]),
            server_cpu_us_per_call: per_call(self.cpu[1]),
        }
    }
}

fn add_to_group(to: &mut Option<IntervalSums>, more: &IntervalSums) {
    match to {
        Some(part) => part.merge(more),
        None => *to = Some(more.clone()),
    }
}

/// The sums of a run's intervals, grouped by whether they are around a rotation.
#[derive(Clone, Debug, Default)]
pub(super) struct RotationTotals {
    intervals: u64,
    around: Option<IntervalSums>,
    rest: Option<IntervalSums>,
    /// The last interval, whose group depends on the next one.
    last: Option<IntervalSums>,
    /// Whether a certificate was replaced in the last interval.
    was_just_replaced: bool,
}

impl RotationTotals {
    /// Adds an interval. `warms_up`: returns whether the stage of this number is warm-up.
    pub(super) fn add(&mut self, warms_up: impl Fn(u8) -> bool, interval: &IntervalRecord) {
        let Some(part) = IntervalSums::from_interval(warms_up, interval) else {
            return;
        };
        let mut stages = interval.stages.iter();
        if stages.any(|(_, record)| record.certificates_replaced > 0) {
            self.intervals += 1;
            if let Some(last) = self.last.take() {
                add_to_group(&mut self.around, &last);
            }
            add_to_group(&mut self.around, &part);
            self.was_just_replaced = true;
        } else if std::mem::take(&mut self.was_just_replaced) {
            add_to_group(&mut self.around, &part);
        } else if let Some(last) = self.last.replace(part) {
            add_to_group(&mut self.rest, &last);
        }
    }

    /// Returns the figures; `None`: no certificate was replaced.
    pub(super) fn summary(&self) -> Option<RotationSummary> {
        let mut rest = self.rest.clone();
        if let Some(last) = &self.last {
            add_to_group(&mut rest, last);
        }
        (self.intervals > 0).then(|| RotationSummary {
            intervals: self.intervals,
            around: self.around.clone().unwrap_or_default().summary(),
            rest: rest.unwrap_or_default().summary(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::run::ResourceUsage;
    use crate::{CallSample, ConnectPhases, Outcome, RecordedInterval, Recorder, Time};

    /// Second `index`: this many calls on new connections, each with a handshake of `handshake_us`.
    fn second(index: u64, calls: u64, handshake_us: u64, replaced: bool) -> IntervalRecord {
        let mut recorder = Recorder::new(1);
        for i in 0..calls {
            let phases = ConnectPhases {
                handshake_ns: handshake_us * 1_000,
                replaced: replaced && i == 0,
                ..ConnectPhases::default()
            };
            let at = Time(index * 1_000_000_000 + i);
            let sample = CallSample {
                number: i,
                arrival: at,
                sent: at,
                first_byte: at.plus_nanos(1_000),
                done: at.plus_nanos(1_000),
                stage: 0,
                outcome: if replaced && i == 1 {
                    Outcome::Reset
                } else {
                    Outcome::Ok
                },
                bytes_sent: 1,
                bytes_received: 1,
            };
            recorder.record_cold_call(&sample, &phases, None);
        }
        let mut taken = RecordedInterval::default();
        taken.merge(&recorder.take_interval(None));
        let used = |cpu_user_us| ResourceUsage {
            cpu_user_us,
            cpu_system_us: Some(0),
            ..ResourceUsage::default()
        };
        IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            stages: taken
                .recorded_stages()
                .map(|(i, s)| (i, s.clone()))
                .collect(),
            in_flight: 0,
            backlog: 0,
            connections_open: 0,
            users: None,
            busiest_worker_ratio: 0.0,
            client: Some(used(calls * handshake_us)),
            server: (index != 2).then(|| used(calls)),
            machine: None,
            memory: Vec::new(),
            details: Vec::new(),
            batches: Vec::new(),
        }
    }

    fn summary(seconds: &[(u64, bool)]) -> Option<RotationSummary> {
        let mut rotations = RotationTotals::default();
        for (index, (handshake_us, replaced)) in (0..).zip(seconds) {
            rotations.add(|_| false, &second(index, 10, *handshake_us, *replaced));
        }
        rotations.summary()
    }

    #[test]
    fn rotation_intervals_are_summarized_separately() {
        assert_eq!(summary(&[(100, false), (100, false)]), None);
        let two = [
            (100, false),
            (100, false),
            (100, false),
            (300, false),
            (300, true),
            (300, true),
            (300, false),
            (100, false),
        ];
        let summary = summary(&two).expect("there were two");
        assert_eq!(summary.intervals, 2);
        let RotationSummary { around, rest, .. } = summary;
        assert_eq!((around.length_us, rest.length_us), (4_000_000, 4_000_000));
        assert_eq!((around.calls, rest.calls), (40, 40));
        assert_eq!((around.errors, rest.errors), (2, 0));
        // In each of the two seconds one connection failed.
        assert_eq!((around.connections, rest.connections), (38, 40));
        let p50 = |part: &RotationPart| part.handshake.and_then(|times| times.p50_us).unwrap();
        assert!((p50(&around) - 300.0).abs() < 1.0, "{around:?}");
        assert!((p50(&rest) - 100.0).abs() < 1.0, "{rest:?}");
        assert_eq!(around.client_cpu_us_per_call, Some(300.0));
        assert_eq!(around.server_cpu_us_per_call, Some(1.0));
        // The CPU time of one of its seconds is not known.
        assert_eq!(rest.server_cpu_us_per_call, None);
    }

    #[test]
    fn boundary_rotation_has_one_neighbour() {
        for seconds in [
            [(100, true), (100, false), (100, false)],
            [(100, false), (100, false), (100, true)],
        ] {
            let summary = summary(&seconds).expect("there was one");
            assert_eq!(summary.around.calls, 20);
            assert_eq!(summary.rest.calls, 10);
        }
    }
}

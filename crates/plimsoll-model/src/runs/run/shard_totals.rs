//! Adds up a shard's intervals, for its [`ShardFigures`], while they are merged with those of other shards.

use std::time::Duration;

use crate::records::record::{StageRecord, TimeHistogram};
use crate::statistics::quantile::quantile;

use super::count_check::CountCheck;
use super::header::RunHeader;
use super::health::{GeneratorStats, find_problems};
use super::interval::IntervalRecord;
use super::shards::{ShardFigures, ShardState};

/// The totals of a shard's intervals.
#[derive(Clone, Debug, Default)]
pub struct ShardTotals {
    /// The record of the stages that are not warm-up, with only the times that the figures need.
    record: StageRecord,
    observed: GeneratorStats,
    duration: Duration,
    cpu_us: u64,
    is_cpu_known: bool,
    connections_open_max: u64,
    /// The comparison of the calls that were due with those accounted for, over all stages.
    check: CountCheck,
}

impl ShardTotals {
    /// Adds another interval of the shard.
    pub fn add(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        self.connections_open_max = self.connections_open_max.max(interval.connections_open);
        self.check.in_flight = interval.in_flight;
        self.check.backlog = interval.backlog;
        let mut counts = false;
        for (stage, record) in &interval.stages {
            self.check.add(record);
            if header.is_warmup(*stage) {
                continue;
            }
            counts = true;
            self.record.due += record.due;
            self.record.not_started += record.not_started;
            self.record.outcomes.merge(&record.outcomes);
            self.record.connect_failures.merge(&record.connect_failures);
            self.record.response.merge(&record.response);
            self.record.lag.merge(&record.lag);
            self.record.pacing.merge(&record.pacing);
            self.record.cut_off.merge(&record.cut_off);
        }
        if counts {
            self.observed.add(header, interval);
            self.duration += interval.length;
            if let Some(cpu) = interval.client.and_then(|c| c.cpu_us()) {
                self.cpu_us += cpu;
                self.is_cpu_known = true;
            }
        }
    }

    /// Describes a contradiction in the counts of a shard that has ended, in which every call that was due must be
    /// counted exactly once.
    pub fn find_contradiction(&self) -> Option<String> {
        let (due, accounted) = (self.check.due, self.check.accounted_calls());
        (due != accounted).then(|| {
            format!("its counts contradict each other: {due} calls were scheduled, and {accounted} are accounted for")
        })
    }

    /// Returns the figures of shard number `shard`; the caller sets the shard's state and reason.
    pub fn figures(&self, header: &RunHeader, shard: u32) -> ShardFigures {
        let seconds = self.duration.as_secs_f64();
        let per_second = |n: f64| (seconds > 0.0).then(|| (n / seconds * 1e3).round() / 1e3);
        let p99 = |times: &TimeHistogram| Some(quantile(times.histogram()?, 0.99)? as f64 / 1e3);
        let limits = find_problems(&self.record, header, &self.observed, None)
            .into_iter()
            .filter(|p| p.invalidates && p.kind.is_generator_limit());
        ShardFigures {
            shard,
            state: ShardState::Complete,
            reason: None,
            due: self.record.due,
            ok: self.record.ok_calls(),
            errors: self.record.errors(),
            not_started: self.record.not_started,
            achieved_per_s: per_second(self.record.ended_calls() as f64),
            response_p99_us: p99(&self.record.response),
            lag_p99_us: p99(&self.record.lag),
            pacing_p99_us: p99(&self.record.pacing),
            cores_used: per_second(self.cpu_us as f64 / 1e6).filter(|_| self.is_cpu_known),
            busiest_worker_ratio: self.observed.busiest_ratio,
            connections_open_max: self.connections_open_max,
            clock_offset_us: None,
            clock_uncertainty_us: None,
            limits: limits.map(|p| p.text).collect(),
        }
    }
}

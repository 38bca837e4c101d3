//! What each shard of a run did, beside the whole: one that was at its limit makes the whole
//! invalid, however well the others did.
//!
//! [`ShardTotals`] adds a shard's intervals up while they are merged, and [`ShardFigures`] stands
//! in the head of `run.json`, since the merged intervals no longer know it. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::record::{StageRecord, Times};
use crate::statistics::quantile::quantile;

use super::header::RunHeader;
use super::health::{HealthProblem, Observed, ProblemKind, health};
use super::interval::IntervalRecord;

/// How a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardState {
    /// It carried its part out.
    Complete,
    /// It was stopped before its time, and handed over what it had measured.
    Stopped,
    /// It failed, and reported why.
    Failed,
    /// It fell silent.
    Lost,
}

/// One shard in `run.json`. Without warm-up, like the run's totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardFigures {
    /// From 0.
    pub shard: u32,
    pub state: ShardState,
    /// Why, where it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub due: u64,
    pub ok: u64,
    pub errors: u64,
    pub not_started: u64,
    /// Calls that ended, by the time over which they were recorded.
    pub achieved_per_s: Option<f64>,
    pub response_p99_us: Option<f64>,
    /// From when calls were due to when they were sent.
    pub lag_p99_us: Option<f64>,
    /// How late the shard noticed that calls were due.
    pub pacing_p99_us: Option<f64>,
    /// Cores that its processes used, of CPU time by time passed.
    pub cores_used: Option<f64>,
    /// The share of a core that its busiest worker used, at most.
    pub busiest_worker_ratio: f64,
    pub connections_open_max: u64,
    /// The rendezvous store's clock less the shard's, and how far from that it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_offset_us: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_uncertainty_us: Option<u64>,
    /// Why the shard was at its own limit: each makes the run invalid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
}

impl ShardFigures {
    /// The problems of a run that had these shards.
    pub(super) fn problems(shards: &[ShardFigures]) -> Vec<HealthProblem> {
        let limited = shards
            .iter()
            .flat_map(|s| s.limits.iter().map(move |l| (s.shard, l)));
        limited
            .map(|(shard, text)| HealthProblem {
                kind: ProblemKind::ShardLimited,
                invalidates: true,
                text: format!("shard {shard} of {}: {text}", shards.len()),
            })
            .collect()
    }
}

/// A shard's intervals, added up.
#[derive(Clone, Debug, Default)]
pub struct ShardTotals {
    /// Of the stages that count; with the times that the figures need, and no others.
    record: StageRecord,
    observed: Observed,
    lasted: Duration,
    cpu_us: u64,
    cpu_known: bool,
    connections_open_max: u64,
}

impl ShardTotals {
    pub fn add(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        self.connections_open_max = self.connections_open_max.max(interval.connections_open);
        let mut counts = false;
        for (stage, record) in &interval.stages {
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
        }
        if counts {
            self.observed.add(interval);
            self.lasted += interval.length;
            if let Some(cpu) = interval.client.and_then(|c| c.cpu_us()) {
                self.cpu_us += cpu;
                self.cpu_known = true;
            }
        }
    }

    /// The figures of shard number `shard`; how it ended is the caller's to fill in.
    pub fn figures(&self, header: &RunHeader, shard: u32) -> ShardFigures {
        let seconds = self.lasted.as_secs_f64();
        let per_second = |n: f64| (seconds > 0.0).then(|| (n / seconds * 1e3).round() / 1e3);
        let p99 = |times: &Times| Some(quantile(times.histogram()?, 0.99)? as f64 / 1e3);
        let limits = health(
            &self.record,
            header.is_open(),
            header.tick(),
            &self.observed,
        )
        .into_iter()
        .filter(|p| p.invalidates && p.kind.is_generator_limit());
        ShardFigures {
            shard,
            state: ShardState::Complete,
            reason: None,
            due: self.record.due,
            ok: self.record.ok(),
            errors: self.record.errors(),
            not_started: self.record.not_started,
            achieved_per_s: per_second(self.record.ended() as f64),
            response_p99_us: p99(&self.record.response),
            lag_p99_us: p99(&self.record.lag),
            pacing_p99_us: p99(&self.record.pacing),
            cores_used: per_second(self.cpu_us as f64 / 1e6).filter(|_| self.cpu_known),
            busiest_worker_ratio: self.observed.busiest_ratio,
            connections_open_max: self.connections_open_max,
            clock_offset_us: None,
            clock_uncertainty_us: None,
            limits: limits.map(|p| p.text).collect(),
        }
    }
}

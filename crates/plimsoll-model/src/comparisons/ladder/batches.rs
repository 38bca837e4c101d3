//! Costs that the rungs (variants) of a ladder add, measured in batches of tens of calls while the servers of all rungs
//! run at the same time.
//!
//! A batch is so short that a disturbance of the machine affects the batches of all rungs in a round alike, so values
//! are compared within rounds: the p50 by the medians of batches in the same round ([`crate::statistics::paired`]), CPU
//! time in the same way, with clocks that are read when a batch begins; and the p99 by a bootstrap of whole blocks of
//! rounds (Künsch 1989). Times are service times, so that the generator's lateness is not part of them.
//!
//! A busy machine can slow one rung down for longer than a round (for example, if another process occupies its server's
//! core). Adjacent rounds are then correlated and carry less information than independent ones: intervals are widened
//! accordingly ([`crate::statistics::autocorrelation`]).
//!
//! Where servers are restarted several times, intervals are widened by the variance between their processes too
//! ([`replicates`]).

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use super::throughput::ThroughputSample;
use super::{ALPHA, BatchPercentiles, LadderMetric, LadderRecord, SliceResult};
use crate::metrics::sample::CallSample;
use crate::plan::BatchSchedule;
use crate::records::record::{BatchStart, RequestRecord};
use crate::runs::run::IntervalRecord;
use crate::statistics::paired::PairedDifference;

mod differences;
mod percentiles;
mod replicates;
mod token_times;

use differences::{cpu_difference, median_difference, p99_difference};
use percentiles::{pooled_quantile_us, round_median_us};
pub use replicates::MIN_REPLICATES;
use replicates::mean;
use token_times::TokenTimes;

/// Default calls in a batch. In shorter batches the server is idle for longer between calls, and wakes from a deeper
/// sleep, so a call costs more; from about twenty calls on the cost is stable.
pub const DEFAULT_BATCH_CALLS: u32 = 20;

/// Calls at the start of a batch that do not count: the server may be asleep and caches cold.
pub const DEFAULT_DISCARDED_CALLS: u32 = 2;

/// The metrics whose differences are computed from the batches of any calls.
pub const COMPARED_METRICS: [LadderMetric; 4] = [
    LadderMetric::P50,
    LadderMetric::P99,
    LadderMetric::ClientCpu,
    LadderMetric::ServerCpu,
];

/// The metrics whose differences are also computed from batches if the calls stream tokens.
const TOKEN_METRICS: [LadderMetric; 2] = [LadderMetric::FirstToken, LadderMetric::TimePerToken];

/// Returns whether differences of the metric are computed from batches.
pub fn is_compared(metric: LadderMetric) -> bool {
    COMPARED_METRICS.contains(&metric) || TOKEN_METRICS.contains(&metric)
}

/// How a ladder was measured in batches, and the differences between its rungs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchesRecord {
    /// Calls in a batch.
    pub calls: u32,
    /// Calls at the start of each batch that do not count.
    #[serde(alias = "left_out")]
    pub warmup_calls: u32,
    /// Rounds in which every rung had a batch, and most calls of each batch ended ok.
    pub rounds: usize,
    /// Replicates, each with restarted servers. With only 1, differences apply to the particular processes that were
    /// measured.
    #[serde(default = "default_replicates", alias = "sittings")]
    pub replicates: usize,
    /// Number of replicates below which gates stay undecided, because intervals then don't include the differences
    /// between processes of one version.
    #[serde(
        default = "default_replicates",
        skip_serializing_if = "is_single_replicate"
    )]
    pub required_replicates: usize,
    /// Whether the machine's cores were kept awake between calls.
    #[serde(default)]
    pub kept_awake: bool,
    /// The planned resolution of the p50 of adjacent rungs, µs; left out where batches were measured for a fixed time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_us: Option<f64>,
    /// Error probability of all differences of batches together, over all interim analyses.
    #[serde(default = "default_alpha")]
    pub alpha: f64,
    /// The differences of every rung to the one below it and to the first.
    pub differences: Vec<RungDifference>,
}

fn default_replicates() -> usize {
    1
}

fn is_single_replicate(number: &usize) -> bool {
    *number == 1
}

fn default_alpha() -> f64 {
    ALPHA
}

/// The difference of two rungs, in the metric's unit. The intervals of a ladder are simultaneous.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RungDifference {
    /// The index of the upper rung, from 0.
    pub of: usize,
    /// The index of the lower rung.
    pub to: usize,
    /// The metric, for which [`is_compared`] holds.
    pub metric: LadderMetric,
    /// The upper rung's value minus the lower one's.
    #[serde(flatten)]
    pub paired: PairedDifference,
}

/// The measurements of one rung.
#[derive(Clone, Debug)]
pub struct RungMeasurement {
    calls: u32,
    discarded_calls: u32,
    /// Whether each of the plan's stages is warm-up.
    warmup: Vec<bool>,
    /// Service times in nanoseconds of the measured calls that ended ok, by round.
    times_by_round: Vec<Vec<u64>>,
    /// Times of the tokens of the same calls.
    tokens: TokenTimes,
    /// The first round of each replicate.
    replicate_starts: Vec<usize>,
    /// CPU clock readings of the current group of batches, in order.
    batch_starts: Vec<BatchStart>,
    /// CPU time by round.
    cpu_by_round: Vec<Option<BatchCpuTime>>,
}

/// CPU time of one batch, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BatchCpuTime {
    client_ns: u64,
    server_ns: Option<u64>,
    /// Closed loop: the calls that ended ok, the bytes received, and the length of the batch in nanoseconds.
    closed_loop_totals: Option<(u64, u64, u64)>,
}

impl RungMeasurement {
    /// Creates an empty measurement. `warmup`: which of the plan's stages are warm-up.
    pub fn new(turns: BatchSchedule, left_out: u32, warmup: Vec<bool>) -> RungMeasurement {
        RungMeasurement {
            calls: turns.calls.max(1),
            discarded_calls: left_out,
            warmup,
            times_by_round: Vec::new(),
            tokens: TokenTimes::default(),
            replicate_starts: vec![0],
            batch_starts: Vec::new(),
            cpu_by_round: Vec::new(),
        }
    }

    /// Appends another group's measurements to those of each rung.
    pub fn extend(all: &mut [RungMeasurement], more: Vec<RungMeasurement>) {
        let rounds = round_count(all);
        for (before, after) in all.iter_mut().zip(more) {
            // Pad the shorter rungs, so that a round has the same index in every rung.
            before.times_by_round.resize(rounds, Vec::new());
            before.times_by_round.extend(after.times_by_round);
            before.tokens.append(rounds, after.tokens);
            before.cpu_by_round.resize(rounds, None);
            before.cpu_by_round.extend(after.cpu_by_round);
        }
    }

    /// Appends the measurements of another replicate, with restarted servers.
    pub fn extend_with_replicate(all: &mut [RungMeasurement], more: Vec<RungMeasurement>) {
        let first = round_count(all);
        for measured in &mut *all {
            measured.replicate_starts.push(first);
        }
        RungMeasurement::extend(all, more);
    }

    /// Ends a group of batches. A batch's client CPU time is counted until the worker's next batch begins, and its
    /// server CPU time until the next batch of any rung with the same server begins. `servers`: process ids of each
    /// rung's server; empty if the server may do other work as well.
    pub fn end_batch_group(all: &mut [RungMeasurement], servers: &[&[i32]]) {
        let clock = |rung: usize| servers.get(rung).copied().unwrap_or_default();
        let own = |rung: usize| {
            let is_in = |pid: &i32| clock(rung).contains(pid);
            let mut others = (0..all.len()).filter(|other| clock(*other) != clock(rung));
            // If a process of this server also serves another rung, its CPU time can't be attributed to one of them.
            !clock(rung).is_empty() && !others.any(|other| clock(other).iter().any(is_in))
        };
        let next: Vec<Vec<u64>> = (0..all.len())
            .map(|rung| {
                let same = (0..all.len()).filter(|other| clock(*other) == clock(rung));
                let readings = same
                    .filter(|_| own(rung))
                    .flat_map(|same| &all[same].batch_starts);
                let mut readings: Vec<u64> = readings.filter_map(|began| began.server_ns).collect();
                readings.sort_unstable();
                readings
            })
            .collect();
        for (rung, next_ns) in all.iter_mut().zip(next) {
            for two in rung.batch_starts.windows(2) {
                let (began, next) = (two[0], two[1]);
                let round = began.batch as usize;
                // A batch counted in calls needs the reading of the very next batch; one of fixed time ends at the next
                // reading, even if the worker slept through a batch in between.
                if next.batch != began.batch + 1 && began.done.is_none() {
                    continue;
                }
                if round >= rung.cpu_by_round.len() {
                    rung.cpu_by_round.resize(round + 1, None);
                }
                let server_ns = began.server_ns.and_then(|at| {
                    let next = next_ns.partition_point(|ns| *ns <= at);
                    Some(next_ns.get(next)? - at)
                });
                rung.cpu_by_round[round] = Some(BatchCpuTime {
                    client_ns: next.client_ns.saturating_sub(began.client_ns),
                    server_ns,
                    closed_loop_totals: began.done.zip(next.done).map(|(began, next)| {
                        (
                            next.ok - began.ok,
                            next.bytes_received - began.bytes_received,
                            next.ended_ns.saturating_sub(began.began_ns),
                        )
                    }),
                });
            }
            rung.batch_starts.clear();
        }
    }

    /// Returns the mean CPU time of the server for a call, over the measured batches, in µs.
    pub fn server_cpu_us_per_call(&self) -> Option<f64> {
        let turns = (0..self.cpu_by_round.len())
            .filter_map(|n| self.cpu_us_per_call(LadderMetric::ServerCpu, n));
        let turns: Vec<f64> = turns.collect();
        (!turns.is_empty()).then(|| mean(&turns))
    }

    fn is_warmup(&self, stage: u8) -> bool {
        self.warmup.get(usize::from(stage)) == Some(&true)
    }

    /// Adds one call of the rung's run, with the times of its tokens.
    pub fn add_request(&mut self, request: &RequestRecord) {
        let round = self.add_call(&request.sample);
        if let Some((round, measures)) = round.zip(request.measures.as_deref()) {
            self.tokens.add(round, measures);
        }
    }

    /// Adds one call of the rung's run; returns its round, or `None` if the call does not count.
    pub fn add_call(&mut self, sample: &CallSample) -> Option<usize> {
        let calls = u64::from(self.calls);
        let round = usize::try_from(sample.number / calls).unwrap_or(usize::MAX);
        if self.is_warmup(sample.stage)
            || !sample.outcome.is_ok()
            || sample.number % calls < u64::from(self.discarded_calls)
        {
            return None;
        }
        if round >= self.times_by_round.len() {
            self.times_by_round.resize(round + 1, Vec::new());
        }
        self.times_by_round[round].push(sample.service_ns());
        Some(round)
    }

    /// Adds one interval of the rung's run.
    pub fn add_interval(&mut self, interval: &IntervalRecord) {
        for turn in &interval.batches {
            match self
                .batch_starts
                .binary_search_by_key(&turn.batch, |t| t.batch)
            {
                Ok(at) => self.batch_starts[at].add_worker(turn),
                Err(at) => self.batch_starts.insert(at, *turn),
            }
        }
    }

    /// Returns the closed loop's batches, except for the first `warmup` ones. `slot`: time between the starts of two
    /// batches.
    pub fn closed_loop_batches(&self, warmup: usize, slot: Duration) -> Vec<ThroughputSample> {
        let measured = self.cpu_by_round.iter().skip(warmup).flatten();
        let of = |used: &BatchCpuTime| {
            let (ok, bytes_received, length_ns) = used.closed_loop_totals?;
            Some(ThroughputSample {
                elapsed_s: length_ns as f64 / 1e9,
                ok,
                bytes_received,
                client_cpu_us: Some(used.client_ns as f64 / 1e3),
                server_cpu_us: used.server_ns.map(|ns| ns as f64 / 1e3),
                overran: u128::from(length_ns) > slot.as_nanos(),
            })
        };
        measured.filter_map(of).collect()
    }

    /// Returns a quantile of all measured calls, in µs; `None`: too few calls.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        pooled_quantile_us(&self.times_by_round, q)
    }

    /// Returns the percentiles of all measured calls.
    pub fn percentiles(&self) -> BatchPercentiles {
        BatchPercentiles {
            p50_us: self.quantile_us(0.5),
            p99_us: self.quantile_us(0.99),
            tokens: self.tokens.figures(),
        }
    }

    /// Replaces the percentiles of `slice`, which is the run of these calls, by those of the measured calls.
    pub fn refine_percentiles(&self, slice: &mut SliceResult) {
        let all = self.percentiles();
        slice.p50_us = all.p50_us.or(slice.p50_us);
        slice.p99_us = all.p99_us;
        if let (Some(tokens), Some(of_run)) = (all.tokens, &mut slice.tokens) {
            of_run.first_p50_us = tokens.first_p50_us.or(of_run.first_p50_us);
            of_run.per_token_p50_us = tokens.per_token_p50_us.or(of_run.per_token_p50_us);
        }
    }

    /// Returns whether the rung's batch of that round has enough calls.
    fn has_enough_calls(&self, round: usize) -> bool {
        let counting = self.calls.saturating_sub(self.discarded_calls) as usize;
        let ended = self.times_by_round.get(round).map_or(0, Vec::len);
        ended > 0 && 2 * ended >= counting
    }

    /// Returns the median of the metric's times in a round, in µs.
    fn median_us(&self, metric: LadderMetric, round: usize) -> Option<f64> {
        match metric {
            LadderMetric::P50 => round_median_us(&self.times_by_round, round),
            _ => round_median_us(self.tokens.by_round(metric), round),
        }
    }

    /// Returns the CPU time per call of the rung's batch in a round, in µs. `None`: some calls of the batch were
    /// neither measured nor discarded.
    fn cpu_us_per_call(&self, metric: LadderMetric, round: usize) -> Option<f64> {
        let counting = self.calls.saturating_sub(self.discarded_calls) as usize;
        let used = self.cpu_by_round.get(round).copied().flatten()?;
        let ns = match metric {
            LadderMetric::ClientCpu => used.client_ns,
            LadderMetric::ServerCpu => used.server_ns?,
            _ => return None,
        };
        let is_complete = self.times_by_round.get(round).map_or(0, Vec::len) == counting;
        is_complete.then(|| ns as f64 / 1e3 / f64::from(self.calls))
    }
}

/// Returns the metrics whose differences are computed: those of tokens only if a rung has them.
fn compared_metrics(rungs: &[RungMeasurement]) -> Vec<LadderMetric> {
    let is_streamed = |metric: &LadderMetric| rungs.iter().any(|rung| rung.tokens.has(*metric));
    let of_tokens = TOKEN_METRICS.into_iter().filter(is_streamed);
    COMPARED_METRICS.into_iter().chain(of_tokens).collect()
}

fn round_count(rungs: &[RungMeasurement]) -> usize {
    rungs
        .iter()
        .map(|m| m.times_by_round.len())
        .max()
        .unwrap_or(0)
}

/// Returns the rounds that every rung has, by replicate. A replicate with less than half the rounds of the longest one
/// is left out.
fn rounds_by_replicate(rungs: &[RungMeasurement]) -> Vec<Vec<usize>> {
    let starts: &[usize] = rungs.first().map_or(&[], |rung| &rung.replicate_starts);
    let ends = starts.iter().skip(1).copied().chain([round_count(rungs)]);
    let has = |round: &usize| rungs.iter().all(|rung| rung.has_enough_calls(*round));
    let mut all: Vec<Vec<usize>> = starts
        .iter()
        .zip(ends)
        .map(|(start, end)| (*start..end).filter(has).collect())
        .collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    all.retain(|rounds| 2 * rounds.len() >= most.max(1));
    all
}

impl BatchesRecord {
    /// Computes the differences of every rung to the one below it and to the first.
    ///
    /// `alpha`: error probability of all intervals together, including those of `other_metrics` further metrics, which
    /// are not measured in batches. `seed`: the seed of the bootstrap.
    pub fn from_measurements(
        rungs: &[RungMeasurement],
        alpha: f64,
        other_metrics: usize,
        seed: u64,
    ) -> BatchesRecord {
        let (calls, left_out) = rungs
            .first()
            .map_or((0, 0), |r| (r.calls, r.discarded_calls));
        let rounds = rounds_by_replicate(rungs);
        let pairs: Vec<(usize, usize)> = LadderRecord::reported_pairs(rungs.len()).collect();
        // `alpha` is half of the ladder's total error probability. Half of `alpha` is shared equally by all metrics, a
        // quarter goes to the p50, and a quarter to the CPU time of both ends.
        let of_pair = alpha / pairs.len().max(1) as f64;
        let metrics = compared_metrics(rungs);
        let each = of_pair / (metrics.len() + other_metrics) as f64;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut differences = Vec::new();
        for (of, to) in pairs {
            let (upper, lower) = (&rungs[of], &rungs[to]);
            for metric in metrics.iter().copied() {
                let found = match metric {
                    LadderMetric::P50 => {
                        median_difference(upper, lower, metric, &rounds, each + of_pair / 2.0)
                    }
                    LadderMetric::FirstToken | LadderMetric::TimePerToken => {
                        median_difference(upper, lower, metric, &rounds, each)
                    }
                    LadderMetric::P99 => p99_difference(upper, lower, &rounds, each, &mut random),
                    _ => cpu_difference(upper, lower, metric, &rounds, each + of_pair / 4.0),
                };
                differences.extend(found.map(|paired| RungDifference {
                    of,
                    to,
                    metric,
                    paired,
                }));
            }
        }
        BatchesRecord {
            calls,
            warmup_calls: left_out,
            rounds: rounds.iter().map(Vec::len).sum(),
            replicates: rounds.len().max(1),
            required_replicates: 1,
            kept_awake: false,
            wanted_us: None,
            alpha,
            differences,
        }
    }

    /// Returns whether the planned resolution has been reached.
    pub fn has_reached_resolution(&self) -> bool {
        let reached = |wanted| self.resolution_us().is_some_and(|us| us <= wanted);
        self.wanted_us.is_none_or(reached)
    }

    /// Returns the difference of rung `of` from rung `to`, where it is known.
    pub fn difference(
        &self,
        of: usize,
        to: usize,
        metric: LadderMetric,
    ) -> Option<PairedDifference> {
        let mut all = self.differences.iter();
        let found = all.find(|d| (d.of, d.to, d.metric) == (of, to, metric));
        found.map(|d| d.paired)
    }

    /// Returns half the width of the widest p50 interval of adjacent rungs, in µs: the smallest difference that the
    /// ladder can distinguish from zero.
    pub fn resolution_us(&self) -> Option<f64> {
        let neighbours = self
            .differences
            .iter()
            .filter(|d| d.metric == LadderMetric::P50 && d.of == d.to + 1);
        neighbours
            .map(|d| (d.paired.high - d.paired.low) / 2.0)
            .max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests;

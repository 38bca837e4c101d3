//! The ladder: variants of one plan (rungs), measured alternately in short slices, and the cost that each adds to the
//! one below it.
//!
//! Slices are grouped in rounds. A round has one slice of every rung, in random order, so that drift of the machine
//! affects all rungs alike. Differences are taken within rounds, and their confidence intervals are simultaneous: in 95
//! of 100 ladders of equal rungs no difference is reported. This module does no measuring: `plimsoll ladder` measures,
//! and reports read the record (`ladder.json`).

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::crypto_speeds::{CryptoSpeeds, CryptoWork, HandshakeWork, PrimitiveCosts};
use crate::objective::RunVerdict;
use crate::runs::run::{CommonConditions, Run, RunError, summary::ResourcesSummary};
use crate::schedule;
use crate::statistics::paired::{PairedDifference, min_pairs, paired_difference};
use crate::statistics::rank::median_of_unsorted;
use crate::{formats::document, formats::input};

pub mod batches;
pub mod composition;
mod connection_cost;
mod consistency;
mod gate;
mod slice;
pub mod throughput;

pub use crate::metrics::gate::{ExtraMeasurement, Gate, LadderMetric, LadderUnit};
use batches::BatchesRecord;
pub use connection_cost::{ConnectionCost, PercentileEstimate};
pub use gate::{GateObstacle, GateOutcome, GateResult};
pub use slice::{SliceMemory, SliceResult, TcpTraffic, TokenFigures};

/// The record's file name in the directory of a ladder.
pub const FILE_NAME: &str = "ladder.json";

/// Probability that a ladder of equal rungs reports any difference at all. It is half of the 5 % that reports state,
/// which leaves a margin for the slight correlation of adjacent slices.
pub const ALPHA: f64 = 0.025;

/// The throughput of a slice and its CPU cost, for tables of throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceThroughput {
    /// Time from the end of the warm-up to the last call's end, seconds.
    pub elapsed_s: f64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Connections made with a full handshake, or without TLS.
    pub connections_full: u64,
    /// Connections made with a resumed session.
    pub connections_resumed: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// The client's CPU time for the measured calls, µs; `None`: not known.
    pub client_cpu_us: Option<f64>,
    /// The watched server's CPU time for the measured calls, µs; `None`: not known.
    pub server_cpu_us: Option<f64>,
    /// The cipher suite of the first handshake.
    pub suite: Option<String>,
    /// The key-exchange group of the same handshake; `None`: the handshake exchanged no keys.
    pub group: Option<String>,
    /// Lower bound of the client's CPU time for a call (one fetch of a file), from its cryptography alone
    /// ([`crate::crypto_speeds`]), µs.
    pub client_floor_us: Option<f64>,
    /// The same bound for the server.
    pub server_floor_us: Option<f64>,
    /// The batches, where several configurations were measured alternately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<throughput::ThroughputSample>,
}

impl SliceThroughput {
    /// Summarises `run`. `verified`: signatures that the client verifies in a full handshake.
    pub fn from_run(run: &Run, limits: &CryptoSpeeds, verified: f64) -> SliceThroughput {
        let total = &run.summary.total;
        let tls = run.header.tls.clone().unwrap_or_default();
        let warmup = run.header.warmup_length().as_secs_f64();
        let end = run.summary.elapsed_us.unwrap_or(0) as f64 / 1e6;
        let each = |n: u64| n as f64 / total.ok.max(1) as f64;
        let work = CryptoWork {
            suite: &tls.suite,
            group: tls.group.as_deref(),
            connections: each(total.connections_full + total.connections_resumed),
            full_handshakes: each(total.connections_full),
            verified_signatures: verified,
            bytes: each(total.bytes_received),
        };
        let cpu = |used: Option<ResourcesSummary>| {
            let used = used?;
            Some(used.cpu_user_us + used.cpu_system_us?)
        };
        SliceThroughput {
            elapsed_s: (end - warmup).max(0.0),
            ok: total.ok,
            connections_full: total.connections_full,
            connections_resumed: total.connections_resumed,
            bytes_received: total.bytes_received,
            client_cpu_us: cpu(total.client),
            server_cpu_us: cpu(total.server),
            client_floor_us: limits.min_client_cpu_us(&work),
            server_floor_us: limits.min_server_cpu_us(&work),
            suite: (!tls.suite.is_empty()).then_some(tls.suite),
            group: tls.group,
            turns: Vec::new(),
        }
    }
}

/// One variant of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// The name in reports, unique in the ladder.
    pub name: String,
    /// The settings that distinguish the rung: axis and value, as the user wrote them.
    pub settings: BTreeMap<String, String>,
    /// The server's TLS implementation and cryptography library. Left out where not known, and for plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_tls: Option<String>,
    /// The proxy in front of the server, with its version and TLS library. Left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// The cryptographic work of each new connection, where its cost was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake: Option<HandshakeWork>,
    /// The p99 of connection setup over all slices together, because a single slice has too few connections.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connection_p99: BTreeMap<ExtraMeasurement, PercentileEstimate>,
    /// The rung's slices in the order of the rounds.
    pub slices: Vec<SliceResult>,
    /// Percentiles over all replicates and batches; left out where there is only one replicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_turns: Option<BatchPercentiles>,
    /// Additional measurements, where rungs are measured in batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<ExtraMeasurement, Vec<SliceResult>>,
}

/// Percentiles of the service times of all batches together, µs; averaging the percentiles of replicates would be
/// wrong. `None`: too few calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchPercentiles {
    /// The median.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// Percentiles of token times; left out where the calls stream no tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenFigures>,
}

impl Rung {
    /// Returns the slices in which the metric was measured.
    fn slices_for(&self, metric: LadderMetric) -> &[SliceResult] {
        match metric.source_measurement() {
            None => &self.slices,
            Some(part) => match self.parts.get(&part) {
                Some(slices) => slices,
                // In a ladder without batches, memory is measured in the ordinary slices, because the server is
                // restarted for each.
                None if matches!(
                    metric,
                    LadderMetric::ClientMemory | LadderMetric::ServerMemory
                ) =>
                {
                    &self.slices
                }
                None => &[],
            },
        }
    }

    /// Returns the share of calls that failed, 0 to 1; `None`: no call ended, or the counts are not known.
    fn failed_share(&self) -> Option<f64> {
        let ok: Option<u64> = self.slices.iter().map(|slice| slice.ok).sum();
        let errors: u64 = self.slices.iter().map(|slice| slice.errors).sum();
        slice::failed_share(ok?, errors)
    }

    /// Returns the bytes that TCP carries for a connection without its calls, and for a call on an open connection.
    /// `part`: the measurement with one call per connection.
    ///
    /// Both are computed from two loads that differ in their number of calls per connection: `part` and the main load.
    fn bytes_per_connection_and_call(&self, part: ExtraMeasurement) -> Option<(f64, f64)> {
        let carried =
            |slices: &[SliceResult]| TcpTraffic::sum(slices.iter().filter_map(|s| s.carried));
        let slices = self.parts.get(&part)?;
        if part == ExtraMeasurement::Resumed && slices.iter().any(|slice| slice.not_resumed) {
            return None;
        }
        let often = carried(slices)?;
        let kept = carried(&self.slices)?;
        let each = |c: TcpTraffic| {
            let connections = c.connections as f64;
            (c.bytes as f64 / connections, c.calls as f64 / connections)
        };
        // Each connection of `part` carries one call, so only the other load's calls per connection are needed.
        let ((often, _), (kept, many)) = (each(often), each(kept));
        // With a similar number of calls per connection, the costs of a connection and of a call cannot be told apart.
        if many < 2.0 {
            return None;
        }
        let call = (kept - often) / (many - 1.0);
        Some((often - call, call))
    }

    /// Returns the median over the slices, in the metric's unit.
    pub fn median(&self, metric: LadderMetric) -> Option<f64> {
        match (metric, self.in_turns) {
            (LadderMetric::P50, Some(all)) => all.p50_us,
            (LadderMetric::P99, Some(all)) => all.p99_us,
            (LadderMetric::FirstToken, Some(all)) => all.tokens?.first_p50_us,
            (LadderMetric::TimePerToken, Some(all)) => all.tokens?.per_token_p50_us,
            (LadderMetric::ConnectionBytes, _) => self
                .bytes_per_connection_and_call(ExtraMeasurement::Connections)
                .map(|(new, _)| new),
            (LadderMetric::ResumedBytes, _) => self
                .bytes_per_connection_and_call(ExtraMeasurement::Resumed)
                .map(|(new, _)| new),
            (LadderMetric::ToolCallLength, _) => self
                .bytes_per_connection_and_call(ExtraMeasurement::Connections)
                .map(|(_, call)| call),
            _ => {
                let slices = self.slices_for(metric).iter();
                median_of_unsorted(slices.filter_map(|s| s.value(metric)).collect())
            }
        }
    }
}

/// A rung that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRung {
    /// The rung's name.
    pub name: String,
    /// The reason, a sentence.
    pub reason: String,
}

/// The cost that one rung adds to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AddedCost {
    /// A significant difference with its interval, in the metric's unit.
    Significant(PairedDifference),
    /// The interval contains zero.
    NotSignificant(PairedDifference),
    /// A counted value without uncertainty.
    Exact(f64),
    /// Both rungs were measured in too few rounds.
    TooFewRounds,
}

/// The record of a ladder, with the slices that were measured so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LadderRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The plan's name.
    pub name: String,
    /// The version of Plimsoll that measured.
    pub tool_version: String,
    /// When the first slice began.
    pub started_at: Timestamp,
    /// Conditions that all slices share; `None`: an older version did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<CommonConditions>,
    /// Length of a slice, or of a group of batches, in seconds.
    pub slice_s: f64,
    /// The seed of the order of slices.
    pub seed: u64,
    /// The client's TLS implementation and cryptography library. Left out where all rungs are plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<String>,
    /// CPU cost of the client's cryptographic operations; left out unless rungs differ in the operations they need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primitives: Option<PrimitiveCosts>,
    /// The rungs, the lowest first; differences are relative to the lowest.
    pub rungs: Vec<Rung>,
    /// Rungs that can't be measured on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedRung>,
    /// Whether a signal ended the ladder before all rounds had been measured.
    pub interrupted: bool,
    /// Why rungs were measured in slices; left out where they were measured in batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliced_because: Option<String>,
    /// Cryptographic speeds of the machine, with which results are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<CryptoSpeeds>,
    /// The batches, where the servers of all rungs ran at the same time; each rung then has one slice for each
    /// replicate or group of batches.
    #[serde(default, alias = "turns", skip_serializing_if = "Option::is_none")]
    pub batches: Option<BatchesRecord>,
    /// Limits on how far a rung's figures may exceed the first rung's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
}

impl LadderRecord {
    /// Returns the pairs of rungs whose difference is reported: every rung with the one below it and with the first.
    pub fn reported_pairs(rungs: usize) -> impl Iterator<Item = (usize, usize)> {
        (1..rungs).flat_map(|of| match of {
            1 => vec![(1, 0)],
            _ => vec![(of, of - 1), (of, 0)],
        })
    }

    /// Returns whether most slices were generator-limited, so that the figures may describe the generator. In batches,
    /// lateness affects all rungs alike and cancels out in differences.
    pub fn is_generator_limited(&self) -> bool {
        if self.batches.is_some() {
            return false;
        }
        let slices = || self.rungs.iter().flat_map(|r| &r.slices);
        2 * slices().filter(|s| s.is_generator_limited()).count() > slices().count()
    }

    /// Returns the worst verdict of all slices with objectives and of all gates. An undecided gate counts as
    /// inconclusive, and so does a ladder that did not reach its planned resolution.
    pub fn conclusion(&self) -> Option<RunVerdict> {
        let slices = self.rungs.iter().flat_map(|r| &r.slices);
        let mut found: Vec<RunVerdict> = slices.filter_map(|s| s.conclusion).collect();
        found.extend(
            self.evaluate_gates()
                .iter()
                .map(|gated| match gated.outcome {
                    GateOutcome::Within => RunVerdict::Pass,
                    GateOutcome::Beyond => RunVerdict::Fail,
                    GateOutcome::Undecided => RunVerdict::Invalid,
                }),
        );
        let resolved = self
            .batches
            .as_ref()
            .is_none_or(BatchesRecord::has_reached_resolution);
        found.extend((!resolved).then_some(RunVerdict::Invalid));
        [RunVerdict::Fail, RunVerdict::Invalid, RunVerdict::Pass]
            .into_iter()
            .find(|conclusion| found.contains(conclusion))
    }

    /// Returns the error probability of all differences together that are computed from slices. If the ladder has
    /// batches as well, it is half of the ladder's error probability; the other half belongs to the batches.
    fn slice_alpha(&self) -> f64 {
        self.batches.as_ref().map_or(ALPHA, |batches| batches.alpha)
    }

    /// Returns the probability, in percent, that all intervals contain the true differences.
    pub fn confidence_percent(&self) -> f64 {
        100.0 * (1.0 - 2.0 * self.slice_alpha())
    }

    /// Returns the number of reported differences.
    fn reported_difference_count(&self) -> usize {
        let measured = LadderMetric::ALL
            .iter()
            // Reports show the memory of proxies, but no difference of it is computed.
            .filter(|m| !m.is_exact() && **m != LadderMetric::ProxyMemory)
            .filter(|m| self.rungs.iter().any(|r| r.median(**m).is_some()))
            .count();
        Self::reported_pairs(self.rungs.len()).count() * measured.max(1)
    }

    /// Returns the cost that rung `of` adds to rung `to`, compared round by round.
    pub fn added_cost(&self, of: usize, to: usize, metric: LadderMetric) -> AddedCost {
        let added = |found: Option<PairedDifference>| match found {
            Some(d) if d.excludes_zero() => AddedCost::Significant(d),
            Some(d) => AddedCost::NotSignificant(d),
            None => AddedCost::TooFewRounds,
        };
        let (Some(upper), Some(lower)) = (self.rungs.get(of), self.rungs.get(to)) else {
            return AddedCost::TooFewRounds;
        };
        if metric.is_exact() {
            return match (upper.median(metric), lower.median(metric)) {
                (Some(upper), Some(lower)) => AddedCost::Exact(upper - lower),
                _ => AddedCost::TooFewRounds,
            };
        }
        if let Some(turns) = &self.batches
            && metric.source_measurement().is_none()
            && !metric.is_compared_by_run()
        {
            return added(turns.difference(of, to, metric));
        }
        let differences: Vec<f64> = upper
            .slices_for(metric)
            .iter()
            .zip(lower.slices_for(metric))
            .filter_map(|(u, l)| Some(u.value(metric)? - l.value(metric)?))
            .collect();
        let alpha = self.slice_alpha() / self.reported_difference_count().max(1) as f64;
        added(paired_difference(&differences, alpha))
    }

    /// Writes `ladder.json` in `dir` atomically.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Reads the ladder in `dir`.
    ///
    /// # Errors
    /// When there is no ladder, it was written in another version of the format, or its numbers contradict each other.
    pub fn load(dir: &Path) -> Result<LadderRecord, RunError> {
        document::read_checked(&dir.join(FILE_NAME), consistency::check)
    }

    /// Returns whether `dir` contains a ladder.
    pub fn exists_in(dir: &Path) -> bool {
        input::is_plain_file(&dir.join(FILE_NAME))
    }
}

/// Returns the minimum number of rounds in which a ladder of slices can report a difference of every metric.
pub fn min_rounds(rungs: usize) -> usize {
    min_rounds_for_metrics(rungs, SLICE_METRIC_COUNT)
}

/// Maximum number of metrics whose differences a ladder of slices reports: p50, p99, CPU of client, server and proxies,
/// memory of client and server, and three times of tokens.
const SLICE_METRIC_COUNT: usize = 10;

/// Returns the minimum number of rounds in which a difference of each of `metrics` metrics can be reported.
pub fn min_rounds_for_metrics(rungs: usize, metrics: usize) -> usize {
    let pairs = (2 * rungs).saturating_sub(3).max(1);
    min_pairs(ALPHA / (pairs * metrics.max(1)) as f64)
}

/// Returns the rungs in the order in which their slices are measured: round by round, each round shuffled from `seed`.
pub fn slice_order(rungs: usize, rounds: usize, seed: u64) -> Vec<Vec<usize>> {
    let of = u32::try_from(rungs).unwrap_or(u32::MAX);
    let round = |round| schedule::batches::shuffle_batches(of, round, seed);
    (0..rounds as u64)
        .map(|n| round(n).into_iter().map(|rung| rung as usize).collect())
        .collect()
}

#[cfg(test)]
mod tests;

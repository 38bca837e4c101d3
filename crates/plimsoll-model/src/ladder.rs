//! The ladder: variants of one plan (rungs), measured in turn in short slices, and what each
//! adds to the one below it.
//!
//! Slices come in rounds: every rung once, in random order, so that drift of the machine
//! falls on all alike. Differences are taken within rounds, and their intervals hold together:
//! in 95 of 100 ladders of equal rungs not one difference is claimed. Pure: `plimsoll ladder`
//! measures, and reports read the record (`ladder.json`).

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits::{Handshake, Limits, Primitives, Work};
use crate::objective::Conclusion;
use crate::run::{Conditions, Run, RunError, summary::ResourcesSummary};
use crate::schedule;
use crate::statistics::paired::{Paired, fewest_pairs, paired};
use crate::statistics::rank::median_of;
use crate::{document, input};

mod checked;
mod gate;
pub mod pieces;
mod price;
mod slice;
pub mod turns;

pub use crate::gate::{Gate, Metric, Part, Unit};
pub use gate::{Gated, Passage};
pub use price::{Percentile, Price};
pub use slice::{Carried, Slice};
use turns::TurnsRecord;

/// The name of the file.
pub const FILE_NAME: &str = "ladder.json";

/// How often a ladder of equal rungs may claim any difference at all: half of the 5 % that
/// reports speak of, since slices next to each other are not quite independent.
pub const ALPHA: f64 = 0.025;

/// What a slice carried, and what that cost: for tables of throughput.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Volume {
    /// Time from the end of the warm-up to the last call's end, seconds.
    pub elapsed_s: f64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Connections made with a full handshake, or without TLS.
    pub connections_full: u64,
    /// Connections made with a resumed session.
    pub connections_resumed: u64,
    /// Bytes of messages.
    pub bytes_received: u64,
    /// The client's CPU for the calls that count, µs; `None`: not known.
    pub client_cpu_us: Option<f64>,
    /// The same of the watched server.
    pub server_cpu_us: Option<f64>,
    /// What the first handshake agreed on.
    pub suite: Option<String>,
    /// The key-exchange group of the same handshake; `None`: it had none.
    pub group: Option<String>,
    /// The least that crypto alone takes of such a fetch ([`crate::limits`]), µs.
    pub client_floor_us: Option<f64>,
    /// The same at the server.
    pub server_floor_us: Option<f64>,
    /// Turn by turn, where links took turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<pieces::Piece>,
}

impl Volume {
    /// What `run` carried; `verified` signatures are checked in a full handshake.
    pub fn of(run: &Run, limits: &Limits, verified: f64) -> Volume {
        let total = &run.summary.total;
        let tls = run.header.tls.clone().unwrap_or_default();
        let warmup = run.header.warmup().as_secs_f64();
        let end = run.summary.elapsed_us.unwrap_or(0) as f64 / 1e6;
        let each = |n: u64| n as f64 / total.ok.max(1) as f64;
        let work = Work {
            suite: &tls.suite,
            group: tls.group.as_deref(),
            connections: each(total.connections_full + total.connections_resumed),
            full: each(total.connections_full),
            verified,
            bytes: each(total.bytes_received),
        };
        let cpu = |used: Option<ResourcesSummary>| {
            let used = used?;
            Some(used.cpu_user_us + used.cpu_system_us?)
        };
        Volume {
            elapsed_s: (end - warmup).max(0.0),
            ok: total.ok,
            connections_full: total.connections_full,
            connections_resumed: total.connections_resumed,
            bytes_received: total.bytes_received,
            client_cpu_us: cpu(total.client),
            server_cpu_us: cpu(total.server),
            client_floor_us: limits.client_floor_us(&work),
            server_floor_us: limits.server_floor_us(&work),
            suite: (!tls.suite.is_empty()).then_some(tls.suite),
            group: tls.group,
            turns: Vec::new(),
        }
    }
}

/// One variant of the plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    /// What reports call it: unique in the ladder.
    pub name: String,
    /// What sets it apart: axis and value, as typed.
    pub settings: BTreeMap<String, String>,
    /// Whose TLS its server speaks, with whose cryptography. Left out where that is not known, and of
    /// plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_tls: Option<String>,
    /// The proxy on the way, with its version and its TLS library. Left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// What each of its new connections asks of the cryptography, where their price was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshake: Option<Handshake>,
    /// The p99 of making a connection, over all slices together: none of them has enough for one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connection_p99: BTreeMap<Part, Percentile>,
    /// The rung's slices in the order of the rounds.
    pub slices: Vec<Slice>,
    /// Over all sittings and stretches; left out where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_turns: Option<InTurns>,
    /// What was measured besides, where rungs take turns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<Part, Vec<Slice>>,
}

/// Service times of all turns together, µs: percentiles of sittings are not averaged. `None`: too few calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InTurns {
    /// The median.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
}

impl Rung {
    /// The slices that have the metric.
    fn slices_of(&self, metric: Metric) -> &[Slice] {
        match metric.part() {
            None => &self.slices,
            Some(part) => match self.parts.get(&part) {
                Some(slices) => slices,
                // A server that was started afresh for each slice of a ladder of slices.
                None if matches!(metric, Metric::ClientMemory | Metric::ServerMemory) => {
                    &self.slices
                }
                None => &[],
            },
        }
    }

    /// What a connection of `part`, and a call on one that is up, carry in bytes.
    ///
    /// Both are known from two loads that differ in how many calls a connection has.
    fn bytes(&self, part: Part) -> Option<(f64, f64)> {
        let carried = |slices: &[Slice]| Carried::sum(slices.iter().filter_map(|s| s.carried));
        let slices = self.parts.get(&part)?;
        if part == Part::Resumed && slices.iter().any(|slice| slice.not_resumed) {
            return None;
        }
        let often = carried(slices)?;
        let kept = carried(&self.slices)?;
        let each = |c: Carried| {
            let connections = c.connections as f64;
            (c.bytes as f64 / connections, c.calls as f64 / connections)
        };
        // Of these each carries one call; a warm-up's are not among them.
        let ((often, _), (kept, many)) = (each(often), each(kept));
        // With about as many calls on both there is nothing to tell them apart by.
        if many < 2.0 {
            return None;
        }
        let call = (kept - often) / (many - 1.0);
        Some((often - call, call))
    }

    /// The median over the slices, in the metric's unit.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        match (metric, self.in_turns) {
            (Metric::P50, Some(all)) => all.p50_us,
            (Metric::P99, Some(all)) => all.p99_us,
            (Metric::ConnectionBytes, _) => self.bytes(Part::Connections).map(|(new, _)| new),
            (Metric::ResumedBytes, _) => self.bytes(Part::Resumed).map(|(new, _)| new),
            (Metric::CallBytes, _) => self.bytes(Part::Connections).map(|(_, call)| call),
            _ => {
                let slices = self.slices_of(metric).iter();
                median_of(slices.filter_map(|s| s.value(metric)).collect())
            }
        }
    }
}

/// A rung that was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The rung's name.
    pub name: String,
    /// Why it was not measured; a sentence.
    pub reason: String,
}

/// What one rung adds to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Added {
    /// Clearly more or less: the difference with its interval, in the metric's unit.
    Clear(Paired),
    /// The interval holds zero.
    NoneSeen(Paired),
    /// Counted, not estimated.
    Counted(f64),
    /// Too few rounds in which both were measured.
    TooFew,
}

/// A ladder, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LadderRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The plan's name.
    pub name: String,
    /// The version of the Plimsoll that measured.
    pub tool_version: String,
    /// When the first rung began.
    pub started_at: Timestamp,
    /// `None`: an older Plimsoll did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// How long a slice, or in turns a stretch, was measured.
    pub slice_s: f64,
    /// The seed of the order of slices.
    pub seed: u64,
    /// Whose TLS the client speaks, with whose cryptography. Left out where all rungs are plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<String>,
    /// What the client's cryptography takes in memory, where rungs differ in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primitives: Option<Primitives>,
    /// The lowest first; differences are stated to it.
    pub rungs: Vec<Rung>,
    /// Rungs that this machine could not measure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    /// A signal ended it before all rounds were measured.
    pub interrupted: bool,
    /// Why rungs had slices of their own; left out where they took turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sliced_because: Option<String>,
    /// What the machine can do in memory, where links are compared with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Where all rungs were up together and took turns; each then has a slice for every sitting or stretch.
    #[serde(default, alias = "turns", skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsRecord>,
    /// What rungs may take more than the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
}

impl LadderRecord {
    /// The differences that a ladder of so many rungs states: of every rung to the one below it
    /// and to the first.
    pub fn pairs(rungs: usize) -> impl Iterator<Item = (usize, usize)> {
        (1..rungs).flat_map(|of| match of {
            1 => vec![(1, 0)],
            _ => vec![(of, of - 1), (of, 0)],
        })
    }

    /// Most slices were generator-limited: the figures may be the generator's. Where rungs took
    /// turns, what was late was late for all of them, and is in no difference.
    pub fn is_generator_limited(&self) -> bool {
        if self.turns.is_some() {
            return false;
        }
        let slices = || self.rungs.iter().flat_map(|r| &r.slices);
        2 * slices().filter(|s| s.is_generator_limited()).count() > slices().count()
    }

    /// What all slices with objectives, and all gates, come to together: the worst of them. A gate that
    /// is undecided is inconclusive, as a resolution that was not reached is.
    pub fn conclusion(&self) -> Option<Conclusion> {
        let slices = self.rungs.iter().flat_map(|r| &r.slices);
        let mut found: Vec<Conclusion> = slices.filter_map(|s| s.conclusion).collect();
        found.extend(self.gated().iter().map(|gated| match gated.passage {
            Passage::Within => Conclusion::Pass,
            Passage::Beyond => Conclusion::Fail,
            Passage::Undecided => Conclusion::Invalid,
        }));
        let resolved = self.turns.as_ref().is_none_or(TurnsRecord::is_resolved);
        found.extend((!resolved).then_some(Conclusion::Invalid));
        [Conclusion::Fail, Conclusion::Invalid, Conclusion::Pass]
            .into_iter()
            .find(|conclusion| found.contains(conclusion))
    }

    /// How many differences are stated: of every rung to the one below and to the first.
    fn stated(&self) -> usize {
        let measured = Metric::ALL
            .iter()
            // Memory of proxies is shown and never compared.
            .filter(|m| !m.is_exact() && **m != Metric::ProxyMemory)
            .filter(|m| self.rungs.iter().any(|r| r.median(**m).is_some()))
            .count();
        Self::pairs(self.rungs.len()).count() * measured.max(1)
    }

    /// What rung `of` adds to rung `to`, round by round.
    pub fn added(&self, of: usize, to: usize, metric: Metric) -> Added {
        let added = |found: Option<Paired>| match found {
            Some(d) if d.is_clear() => Added::Clear(d),
            Some(d) => Added::NoneSeen(d),
            None => Added::TooFew,
        };
        let (Some(upper), Some(lower)) = (self.rungs.get(of), self.rungs.get(to)) else {
            return Added::TooFew;
        };
        if metric.is_exact() {
            return match (upper.median(metric), lower.median(metric)) {
                (Some(upper), Some(lower)) => Added::Counted(upper - lower),
                _ => Added::TooFew,
            };
        }
        if let Some(turns) = &self.turns
            && metric.part().is_none()
        {
            return added(turns.difference(of, to, metric));
        }
        let differences: Vec<f64> = upper
            .slices_of(metric)
            .iter()
            .zip(lower.slices_of(metric))
            .filter_map(|(u, l)| Some(u.value(metric)? - l.value(metric)?))
            .collect();
        added(paired(&differences, ALPHA / self.stated().max(1) as f64))
    }

    /// Write `ladder.json` in `dir`, whole or not at all.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Read the ladder in `dir`.
    ///
    /// # Errors
    /// When there is none, it was written in another version of the format, or its numbers contradict each other.
    pub fn load(dir: &Path) -> Result<LadderRecord, RunError> {
        document::read_checked(&dir.join(FILE_NAME), checked::check)
    }

    /// Whether `dir` holds a ladder.
    pub fn is_in(dir: &Path) -> bool {
        input::is_entry(&dir.join(FILE_NAME))
    }
}

/// The rounds that a ladder of so many rungs needs to claim a difference of every metric.
pub fn fewest_rounds(rungs: usize) -> usize {
    rounds_for(rungs, IN_SLICES)
}

/// Metrics that a ladder of slices states.
const IN_SLICES: usize = 6;

/// The rounds that so many rungs need to claim a difference of each of so many metrics.
pub fn rounds_for(rungs: usize, metrics: usize) -> usize {
    let pairs = (2 * rungs).saturating_sub(3).max(1);
    fewest_pairs(ALPHA / (pairs * metrics.max(1)) as f64)
}

/// The rungs in the order in which their slices are measured: round by round, each round in
/// an order of its own, from `seed`.
pub fn order(rungs: usize, rounds: usize, seed: u64) -> Vec<Vec<usize>> {
    let of = u32::try_from(rungs).unwrap_or(u32::MAX);
    let round = |round| schedule::turns::order(of, round, seed);
    (0..rounds as u64)
        .map(|n| round(n).into_iter().map(|rung| rung as usize).collect())
        .collect()
}

#[cfg(test)]
mod tests;

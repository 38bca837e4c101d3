//! What rungs add that were up together and measured in turns of tens of calls.
//!
//! A turn is so short that whatever disturbs the machine disturbs the turns of all rungs in a
//! round alike, so rounds are what is compared: the p50 by the medians of turns in the same round
//! ([`crate::statistics::paired`]), and so is CPU, whose clocks are read when a turn begins; the p99 by a bootstrap of whole
//! blocks of rounds (Künsch 1989). Times are service times: what the generator was late is no rung's.
//!
//! A busy machine can treat one rung worse than another for longer than a round (its server waits
//! behind another process). Rounds next to each other are then alike, and show less than as many that
//! are independent: intervals are wider by what that adds to the variance ([`crate::statistics::autocorrelation`]).
//!
//! Where servers are started afresh several times, intervals are also as wide as what differs between
//! their processes asks for ([`sittings`]).

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::{Deserialize, Serialize};

use super::pieces::Piece;
use super::{LadderRecord, Metric};
use crate::plan::Turns;
use crate::record::TurnBegan;
use crate::run::IntervalRecord;
use crate::sample::Sample;
use crate::statistics::paired::Paired;
use crate::statistics::quantile::is_supported;
use crate::statistics::rank::median_of;

mod differences;
mod sittings;

use differences::{cpu, p50, p99};
pub use sittings::FEWEST_SITTINGS;
use sittings::mean;

/// Calls a turn, unless the plan says otherwise: a server that is called a third as often sleeps
/// deeper, so turns of single calls come out dearer; from some twenty on the costs stay the same.
pub const DEFAULT_TURN_CALLS: u32 = 20;

/// Calls that begin a turn and do not count: they find a server asleep and caches cold.
pub const LEFT_OUT: u32 = 2;

/// What turns are compared by.
pub const COMPARED_METRICS: [Metric; 4] = [
    Metric::P50,
    Metric::P99,
    Metric::ClientCpu,
    Metric::ServerCpu,
];

/// How a ladder was measured whose rungs took turns, and what they add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnsRecord {
    /// Calls a turn.
    pub calls: u32,
    /// The first calls of each turn that do not count.
    #[serde(alias = "left_out")]
    pub left_out: u32,
    /// Rounds in which every rung had its turn, and most of its calls ended well.
    pub rounds: usize,
    /// In as many, each with servers that were started afresh; 1: differences are those of the processes that
    /// were measured.
    #[serde(default = "one", alias = "sittings")]
    pub sittings: usize,
    /// The machine's cores were kept from falling asleep between calls.
    #[serde(default)]
    pub kept_awake: bool,
    /// How well the p50s of neighbouring rungs were to be resolved, µs; left out where turns were
    /// taken for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_us: Option<f64>,
    /// The differences of every rung to the one below it and to the first.
    pub differences: Vec<Difference>,
}

fn one() -> usize {
    1
}

/// What one rung adds to another, in the metric's unit. The intervals of a ladder hold together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The upper rung, from 0.
    pub of: usize,
    /// The lower rung.
    pub to: usize,
    /// One of [`COMPARED_METRICS`].
    pub metric: Metric,
    /// How much the upper rung takes more.
    #[serde(flatten)]
    pub paired: Paired,
}

/// What the calls of one rung came to.
#[derive(Clone, Debug)]
pub struct Measured {
    calls: u32,
    left_out: u32,
    /// Whether each of the plan's stages is warm-up.
    warmup: Vec<bool>,
    /// Service times in nanoseconds of the calls that count and ended well, by round.
    rounds: Vec<Vec<u64>>,
    /// The first round of each sitting.
    sittings: Vec<usize>,
    /// Readings of CPU clocks in this stretch, in the order of its turns.
    began: Vec<TurnBegan>,
    /// CPU by round.
    used: Vec<Option<Used>>,
}

/// CPU of one turn, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Used {
    client_ns: u64,
    server_ns: Option<u64>,
    /// A closed loop's calls that ended well, the bytes that it received, and how long it was.
    done: Option<(u64, u64, u64)>,
}

impl Measured {
    /// `warmup`: which of the plan's stages do not count.
    pub fn new(turns: Turns, left_out: u32, warmup: Vec<bool>) -> Measured {
        Measured {
            calls: turns.calls.max(1),
            left_out,
            warmup,
            rounds: Vec::new(),
            sittings: vec![0],
            began: Vec::new(),
            used: Vec::new(),
        }
    }

    /// Adds what the rungs came to in another stretch of turns, rung by rung.
    pub fn extend(all: &mut [Measured], more: Vec<Measured>) {
        let rounds = longest(all);
        for (before, after) in all.iter_mut().zip(more) {
            // So that a round is the same one of every rung.
            before.rounds.resize(rounds, Vec::new());
            before.rounds.extend(after.rounds);
            before.used.resize(rounds, None);
            before.used.extend(after.used);
        }
    }

    /// The same, with servers that were started afresh: another sitting.
    pub fn extend_afresh(all: &mut [Measured], more: Vec<Measured>) {
        let first = longest(all);
        for measured in &mut *all {
            measured.sittings.push(first);
        }
        Measured::extend(all, more);
    }

    /// All turns of a stretch are over: what each used is what the clocks went on by until the next turn of
    /// the same worker, and of any rung with the same server. `servers`: the process ids of each rung's, where no
    /// other work of theirs is known to hide among the turns.
    pub fn end(all: &mut [Measured], servers: &[&[i32]]) {
        let clock = |rung: usize| servers.get(rung).copied().unwrap_or_default();
        let own = |rung: usize| {
            let is_in = |pid: &i32| clock(rung).contains(pid);
            let mut others = (0..all.len()).filter(|other| clock(*other) != clock(rung));
            // Where some processes of a server are another's too, no turn has it to itself.
            !clock(rung).is_empty() && !others.any(|other| clock(other).iter().any(is_in))
        };
        let next: Vec<Vec<u64>> = (0..all.len())
            .map(|rung| {
                let same = (0..all.len()).filter(|other| clock(*other) == clock(rung));
                let readings = same.filter(|_| own(rung)).flat_map(|same| &all[same].began);
                let mut readings: Vec<u64> = readings.filter_map(|began| began.server_ns).collect();
                readings.sort_unstable();
                readings
            })
            .collect();
        for (rung, next_ns) in all.iter_mut().zip(next) {
            for two in rung.began.windows(2) {
                let (began, next) = (two[0], two[1]);
                let round = began.turn as usize;
                // The next reading says what a turn of time came to, even where one was slept through.
                if next.turn != began.turn + 1 && began.done.is_none() {
                    continue;
                }
                if round >= rung.used.len() {
                    rung.used.resize(round + 1, None);
                }
                let server_ns = began.server_ns.and_then(|at| {
                    let next = next_ns.partition_point(|ns| *ns <= at);
                    Some(next_ns.get(next)? - at)
                });
                rung.used[round] = Some(Used {
                    client_ns: next.client_ns.saturating_sub(began.client_ns),
                    server_ns,
                    done: began.done.zip(next.done).map(|(began, next)| {
                        (
                            next.ok - began.ok,
                            next.bytes_received - began.bytes_received,
                            next.ended_ns.saturating_sub(began.began_ns),
                        )
                    }),
                });
            }
            rung.began.clear();
        }
    }

    /// CPU of the server a call, on average over the turns that count, in µs.
    pub fn server_cpu_us_per_call(&self) -> Option<f64> {
        let turns = (0..self.used.len()).filter_map(|n| self.cpu_us_per_call(Metric::ServerCpu, n));
        let turns: Vec<f64> = turns.collect();
        (!turns.is_empty()).then(|| mean(&turns))
    }

    fn warms_up(&self, stage: u8) -> bool {
        self.warmup.get(usize::from(stage)) == Some(&true)
    }

    /// One call of the rung's run.
    pub fn call(&mut self, sample: &Sample) {
        let calls = u64::from(self.calls);
        let round = usize::try_from(sample.number / calls).unwrap_or(usize::MAX);
        if self.warms_up(sample.stage)
            || !sample.outcome.is_ok()
            || sample.number % calls < u64::from(self.left_out)
        {
            return;
        }
        if round >= self.rounds.len() {
            self.rounds.resize(round + 1, Vec::new());
        }
        self.rounds[round].push(sample.service_ns());
    }

    /// One interval of the rung's run.
    pub fn interval(&mut self, interval: &IntervalRecord) {
        for turn in &interval.turns {
            match self.began.binary_search_by_key(&turn.turn, |t| t.turn) {
                Ok(at) => self.began[at].beside(turn),
                Err(at) => self.began.insert(at, *turn),
            }
        }
    }

    /// What the turns of a closed loop carried, without the first ones that warmed up. `slot`: from one's beginning to
    /// the next one's.
    pub fn carried(&self, warmup: usize, slot: Duration) -> Vec<Piece> {
        let measured = self.used.iter().skip(warmup).flatten();
        let of = |used: &Used| {
            let (ok, bytes_received, length_ns) = used.done?;
            Some(Piece {
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

    /// A quantile of all calls that count, in µs; `None`: too few of them.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        let mut times: Vec<u64> = self.rounds.iter().flatten().copied().collect();
        if !is_supported(times.len() as u64, q) {
            return None;
        }
        times.sort_unstable();
        // Nearest rank.
        let rank = (times.len() as f64 * q).ceil() as usize;
        times.get(rank.max(1) - 1).map(|ns| *ns as f64 / 1e3)
    }

    /// The turn of that round has enough calls to stand for it.
    fn has(&self, round: usize) -> bool {
        let counting = self.calls.saturating_sub(self.left_out) as usize;
        let ended = self.rounds.get(round).map_or(0, Vec::len);
        ended > 0 && 2 * ended >= counting
    }

    fn median_us(&self, round: usize) -> Option<f64> {
        let times = self.rounds[round].iter().map(|ns| *ns as f64);
        median_of(times.collect()).map(|ns| ns / 1e3)
    }

    /// CPU a call of a turn whose calls all count, or were left out; in µs.
    fn cpu_us_per_call(&self, metric: Metric, round: usize) -> Option<f64> {
        let counting = self.calls.saturating_sub(self.left_out) as usize;
        let used = self.used.get(round).copied().flatten()?;
        let ns = match metric {
            Metric::ClientCpu => used.client_ns,
            Metric::ServerCpu => used.server_ns?,
            _ => return None,
        };
        let whole = self.rounds.get(round).map_or(0, Vec::len) == counting;
        whole.then(|| ns as f64 / 1e3 / f64::from(self.calls))
    }
}

fn longest(rungs: &[Measured]) -> usize {
    rungs.iter().map(|m| m.rounds.len()).max().unwrap_or(0)
}

/// The rounds that every rung has, by sitting. What a sitting came to that was ended before its half says too
/// little to stand beside the others.
fn rounds_by_sitting(rungs: &[Measured]) -> Vec<Vec<usize>> {
    let starts: &[usize] = rungs.first().map_or(&[], |rung| &rung.sittings);
    let ends = starts.iter().skip(1).copied().chain([longest(rungs)]);
    let has = |round: &usize| rungs.iter().all(|rung| rung.has(*round));
    let mut all: Vec<Vec<usize>> = starts
        .iter()
        .zip(ends)
        .map(|(start, end)| (*start..end).filter(has).collect())
        .collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    all.retain(|rounds| 2 * rounds.len() >= most.max(1));
    all
}

impl TurnsRecord {
    /// What the rungs add to each other: each to the one below it and to the first.
    ///
    /// `alpha`: of all the intervals together, `besides` those that the ladder states for other
    /// metrics than turns have. `seed`: of the bootstrap.
    pub fn of(rungs: &[Measured], alpha: f64, besides: usize, seed: u64) -> TurnsRecord {
        let (calls, left_out) = rungs.first().map_or((0, 0), |r| (r.calls, r.left_out));
        let rounds = rounds_by_sitting(rungs);
        let pairs: Vec<(usize, usize)> = LadderRecord::pairs(rungs.len()).collect();
        // `alpha` is half of what a ladder may claim in all. Its metrics share that equally; the other half
        // is for those that turns are taken for: half of it for the p50, half for the CPU of both ends.
        let of_pair = alpha / pairs.len().max(1) as f64;
        let each = of_pair / (COMPARED_METRICS.len() + besides) as f64;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut differences = Vec::new();
        for (of, to) in pairs {
            let (upper, lower) = (&rungs[of], &rungs[to]);
            for metric in COMPARED_METRICS {
                let found = match metric {
                    Metric::P50 => p50(upper, lower, &rounds, each + of_pair / 2.0),
                    Metric::P99 => p99(upper, lower, &rounds, each, &mut random),
                    _ => cpu(upper, lower, metric, &rounds, each + of_pair / 4.0),
                };
                differences.extend(found.map(|paired| Difference {
                    of,
                    to,
                    metric,
                    paired,
                }));
            }
        }
        TurnsRecord {
            calls,
            left_out,
            rounds: rounds.iter().map(Vec::len).sum(),
            sittings: rounds.len().max(1),
            kept_awake: false,
            wanted_us: None,
            differences,
        }
    }

    /// What was wanted has been reached.
    pub fn is_resolved(&self) -> bool {
        let reached = |wanted| self.resolution_us().is_some_and(|us| us <= wanted);
        self.wanted_us.is_none_or(reached)
    }

    /// What `of` adds to `to`, where that is known.
    pub fn difference(&self, of: usize, to: usize, metric: Metric) -> Option<Paired> {
        let mut all = self.differences.iter();
        let found = all.find(|d| (d.of, d.to, d.metric) == (of, to, metric));
        found.map(|d| d.paired)
    }

    /// Half the width of the widest interval of the p50s of neighbouring rungs, in µs: the
    /// smallest cost that the ladder could distinguish from none.
    pub fn resolution_us(&self) -> Option<f64> {
        let neighbours = self
            .differences
            .iter()
            .filter(|d| d.metric == Metric::P50 && d.of == d.to + 1);
        neighbours
            .map(|d| (d.paired.high - d.paired.low) / 2.0)
            .max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests;

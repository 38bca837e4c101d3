//! When each call is due: a pure function of the plan's load and its seed.
//!
//! The schedule is the only issuer of arrival times. It knows nothing of the target, of
//! clocks or of workers, so a late system can't slow it down. Its invariant: for every
//! `n`, the shares `share(0, n) … share(n - 1, n)` together are exactly `share(0, 1)`, so
//! a run spread over workers or machines sends what one worker alone would have sent.
//! The worker loop calls it, and the recorder asks it where a stage begins.
//!
//! Evenly spaced arrivals are computed from their number, never by adding gaps, so there
//! is no drift. Each stage begins anew: its first arrival is at its start. A ramp is the
//! inverse of the rate's integral. A Poisson process is one unit-rate sequence of
//! exponential gaps, stretched by the same integral, and so are gaps of a gamma distribution.
//!
//! Several loads may share one schedule in [`turns`]: together they send what one would.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::plan::{self, Load, Spacing, Turns};

mod gaps;
mod recorded;
pub mod turns;

use gaps::Gaps;
use recorded::{Replay, Replayed};
use turns::Deal;

/// One call that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its place in the load's whole schedule, warm-up included, from 0.
    pub number: u64,
    /// Nanoseconds since the schedule's start.
    pub at: u64,
    /// Index into the plan's stages.
    pub stage: u8,
}

/// The bounds of one stage. Nanoseconds since the schedule's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageBounds {
    /// Inclusive.
    pub start: u64,
    /// Exclusive; `None`: until the plan's number of calls is reached.
    pub end: Option<u64>,
    /// Its calls do not count.
    pub warmup: bool,
}

/// All arrivals of a run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schedule {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None`: closed loop, no arrivals.
    spacing: Option<Spacing>,
    seed: u64,
    calls: Option<u64>,
    /// Numbers below are those of the schedule that all loads share.
    turns: Option<Turns>,
    bounds: Vec<StageBounds>,
    pieces: Vec<Piece>,
    /// Evenly spaced only: the end of all numbers.
    end_number: u64,
    /// Recorded arrivals only.
    replay: Option<Replay>,
}

/// A stage as arithmetic.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    /// The last nanosecond that belongs to the stage.
    last: u64,
    /// Arrivals a second at the start.
    from: f64,
    /// Change of that rate a second.
    slope: f64,
    /// The rate's integral over the stage: expected arrivals.
    total: f64,
    /// Evenly spaced only: the first number, and the first of the next stage.
    first: u64,
    next: u64,
    warmup: bool,
}

impl Piece {
    /// Returns when the integral of the rate reaches `arrivals`. Nanoseconds since the schedule's start.
    #[inline]
    fn at(&self, arrivals: f64) -> u64 {
        // For whole numbers below 2^32 the product is exact: 10^9 = 5^9 · 2^9 and 5^9 needs 21 bits.
        let ns = if self.slope == 0.0 {
            arrivals * 1e9 / self.from
        } else if arrivals == 0.0 {
            0.0
        } else {
            // The root of from·t + slope·t²/2 = arrivals, in the form that does not cancel.
            let root = (self.from * self.from + 2.0 * self.slope * arrivals)
                .max(0.0)
                .sqrt();
            2e9 * arrivals / (self.from + root)
        };
        // A cast truncates, saturates, and makes NaN zero.
        self.start.saturating_add((ns + 0.5) as u64).min(self.last)
    }
}

impl Schedule {
    /// The schedule of `load`. `seed` matters for random arrivals only.
    ///
    /// Rates that are not above zero give no arrivals.
    pub fn new(load: &Load, seed: u64) -> Schedule {
        let spacing = match load.arrivals {
            plan::Arrivals::Open(spacing) => Some(spacing),
            plan::Arrivals::Closed { .. } => None,
        };
        let mut start = 0u64;
        let mut number = 0u64;
        let mut warmup_calls = 0u64;
        let mut bounds = Vec::with_capacity(load.stages.len());
        let mut pieces = Vec::with_capacity(load.stages.len());
        for stage in &load.stages {
            let end = stage
                .duration
                .map(|d| start.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)));
            bounds.push(StageBounds {
                start,
                end,
                warmup: stage.warmup,
            });
            let (from, to) = match load.turns.and_then(|turns| turns.slot) {
                Some(slot) => (1.0 / slot.as_secs_f64(), 1.0 / slot.as_secs_f64()),
                None => (stage.rate_from, stage.rate_to),
            };
            let (from, to) = (sane(from), sane(to));
            let (slope, total) = match stage.duration {
                Some(d) if !d.is_zero() => {
                    let seconds = d.as_secs_f64();
                    ((to - from) / seconds, (from + to) / 2.0 * seconds)
                }
                Some(_) => (0.0, 0.0),
                None if from > 0.0 => (0.0, f64::INFINITY),
                None => (0.0, 0.0),
            };
            // 0.1/s for 10s is one arrival, whatever the floating point says.
            let count = (total - 1e-9).ceil().max(0.0) as u64;
            let next = number.saturating_add(count);
            if stage.warmup {
                warmup_calls = warmup_calls.saturating_add(count);
            }
            pieces.push(Piece {
                start,
                last: end.unwrap_or(u64::MAX).saturating_sub(1).max(start),
                from,
                slope,
                total,
                first: number,
                next,
                warmup: stage.warmup,
            });
            number = next;
            start = end.unwrap_or(u64::MAX);
        }
        let end_number = match load.calls {
            Some(calls) => number.min(warmup_calls.saturating_add(calls)),
            None => number,
        };
        Schedule {
            inner: Arc::new(Inner {
                spacing,
                seed,
                calls: load.calls,
                turns: load.turns,
                bounds,
                pieces,
                end_number,
                replay: Replay::of(load),
            }),
        }
    }

    /// The arrivals whose number leaves `index` when divided by `of`, in order. It ends
    /// with the last stage, or with the plan's last call. Closed loop: empty, or the beginnings of its turns.
    pub fn share(&self, index: u32, of: u32) -> Arrivals {
        let of = of.max(1);
        let piece = self.inner.pieces.first().copied();
        let usable = index < of && piece.is_some();
        let deal = self.inner.turns.map(Deal::new);
        let number = u64::from(index);
        let pace = match (self.inner.spacing, deal) {
            _ if !usable => Pace::Ended,
            (Some(Spacing::Recorded), _) => match &self.inner.replay {
                Some(replay) => Pace::Recorded(Box::new(replay.from(number))),
                None => Pace::Ended,
            },
            (Some(spacing @ (Spacing::Poisson | Spacing::Gamma(_))), deal) => {
                Pace::Random(Box::new(Random {
                    rng: ChaCha8Rng::seed_from_u64(self.inner.seed),
                    gaps: Gaps::of(spacing),
                    deal,
                    number: 0,
                    until_mine: index,
                    of,
                    passed: 0.0,
                    measured_left: self.inner.calls.unwrap_or(u64::MAX),
                }))
            }
            (_, Some(deal)) => Pace::Dealt(Box::new(Dealt { deal, number })),
            (Some(Spacing::Constant), None) => Pace::Even { number },
            (None, None) => Pace::Ended,
        };
        Arrivals {
            inner: Arc::clone(&self.inner),
            pace,
            step: u64::from(of),
            stage: 0,
            piece: piece.unwrap_or(EMPTY_PIECE),
        }
    }

    /// The stage that the moment `ns` (since the schedule's start) lies in; `None` after the end.
    pub fn stage_at(&self, ns: u64) -> Option<u8> {
        self.inner
            .bounds
            .iter()
            .position(|b| b.end.is_none_or(|end| ns < end))
            .map(|i| i as u8)
    }

    /// Returns the bounds of each stage, in order.
    pub fn stage_bounds(&self) -> &[StageBounds] {
        &self.inner.bounds
    }

    /// When the last stage ends, in nanoseconds since the schedule's start; `None` where
    /// only the number of calls ends it. Evenly spaced arrivals that reach the number of
    /// calls before end there, one gap after the last.
    pub fn end(&self) -> Option<u64> {
        let inner = &self.inner;
        let stages_end = inner.bounds.last().map_or(Some(0), |b| b.end);
        if let Some(replay) = &inner.replay {
            return Some(replay.end());
        }
        if inner.spacing == Some(Spacing::Constant) {
            let cut = inner
                .pieces
                .iter()
                .find(|p| inner.end_number >= p.first && inner.end_number < p.next);
            if let Some(piece) = cut {
                return Some(piece.at((inner.end_number - piece.first) as f64));
            }
        }
        stages_end
    }
}

/// A rate that arithmetic can stand.
fn sane(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

const EMPTY_PIECE: Piece = Piece {
    start: 0,
    last: 0,
    from: 0.0,
    slope: 0.0,
    total: 0.0,
    first: 0,
    next: 0,
    warmup: false,
};

/// One share of a schedule, in order. `nth` of evenly spaced arrivals takes constant time.
#[derive(Clone, Debug)]
pub struct Arrivals {
    inner: Arc<Inner>,
    pace: Pace,
    step: u64,
    stage: usize,
    /// A copy of the current stage's arithmetic.
    piece: Piece,
}

#[derive(Clone, Debug)]
enum Pace {
    Even { number: u64 },
    Dealt(Box<Dealt>),
    Random(Box<Random>),
    Recorded(Box<Replayed>),
    Ended,
}

/// Evenly spaced arrivals of a schedule that several loads share.
#[derive(Clone, Debug)]
struct Dealt {
    deal: Deal,
    /// The number of this share's next arrival among the load's own.
    number: u64,
}

#[derive(Clone, Debug)]
struct Random {
    rng: ChaCha8Rng,
    gaps: Gaps,
    /// The load's part of the turns, where several loads share the schedule.
    deal: Option<Deal>,
    /// The number of the next arrival, whoever's it is.
    number: u64,
    /// Arrivals of others before the next of this share.
    until_mine: u32,
    of: u32,
    /// Unit-rate time since the current stage's start.
    passed: f64,
    measured_left: u64,
}

impl Arrivals {
    /// Goes to the next stage; false where there is none.
    #[cold]
    fn next_stage(&mut self) -> bool {
        match self.inner.pieces.get(self.stage + 1) {
            Some(piece) => {
                self.stage += 1;
                self.piece = *piece;
                true
            }
            None => {
                self.pace = Pace::Ended;
                false
            }
        }
    }

    #[inline]
    fn next_even(&mut self, number: u64) -> Option<Arrival> {
        self.pace = Pace::Even {
            number: number.saturating_add(self.step),
        };
        self.numbered(number, number)
    }

    fn next_dealt(&mut self) -> Option<Arrival> {
        let Pace::Dealt(dealt) = &mut self.pace else {
            return None;
        };
        let number = dealt.number;
        let shared = dealt.deal.shared(number);
        dealt.number = number.saturating_add(self.step);
        self.numbered(number, shared)
    }

    /// `shared`: its number in the schedule, of which this load may have but a part.
    #[inline]
    fn numbered(&mut self, number: u64, shared: u64) -> Option<Arrival> {
        if shared >= self.inner.end_number {
            self.pace = Pace::Ended;
            return None;
        }
        while shared >= self.piece.next {
            if !self.next_stage() {
                return None;
            }
        }
        Some(Arrival {
            number,
            at: self.piece.at((shared - self.piece.first) as f64),
            stage: self.stage as u8,
        })
    }

    fn next_random(&mut self) -> Option<Arrival> {
        loop {
            let Pace::Random(random) = &mut self.pace else {
                return None;
            };
            let mut passed = random.passed + random.gaps.next(&mut random.rng);
            // A gap goes on in the next stage, at that one's rate.
            while passed >= self.piece.total {
                passed -= self.piece.total;
                if !self.next_stage() {
                    return None;
                }
            }
            let Pace::Random(random) = &mut self.pace else {
                return None;
            };
            random.passed = passed;
            if !self.piece.warmup {
                if random.measured_left == 0 {
                    self.pace = Pace::Ended;
                    return None;
                }
                random.measured_left -= 1;
            }
            let shared = random.number;
            random.number += 1;
            let own = match &mut random.deal {
                None => Some(shared),
                Some(deal) => deal.own(shared),
            };
            let Some(number) = own else {
                continue;
            };
            if random.until_mine == 0 {
                random.until_mine = random.of - 1;
                return Some(Arrival {
                    number,
                    at: self.piece.at(passed),
                    stage: self.stage as u8,
                });
            }
            random.until_mine -= 1;
        }
    }
}

impl Arrivals {
    fn next_recorded(&mut self) -> Option<Arrival> {
        let Pace::Recorded(replayed) = &mut self.pace else {
            return None;
        };
        let Some((number, at)) = replayed.next(self.step) else {
            self.pace = Pace::Ended;
            return None;
        };
        let ends = &self.inner.bounds[self.stage..];
        self.stage += ends
            .iter()
            .take_while(|stage| stage.end.is_some_and(|end| end <= at))
            .count();
        Some(Arrival {
            number,
            at,
            stage: self.stage as u8,
        })
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        match self.pace {
            Pace::Even { number } => self.next_even(number),
            Pace::Dealt(_) => self.next_dealt(),
            Pace::Random(_) => self.next_random(),
            Pace::Recorded(_) => self.next_recorded(),
            Pace::Ended => None,
        }
    }

    fn nth(&mut self, n: usize) -> Option<Arrival> {
        if let Pace::Even { number } = self.pace {
            return self.next_even(number.saturating_add(self.step.saturating_mul(n as u64)));
        }
        for _ in 0..n {
            self.next()?;
        }
        self.next()
    }
}

#[cfg(test)]
mod tests;

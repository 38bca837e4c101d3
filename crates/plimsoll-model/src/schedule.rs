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
//! exponential gaps, stretched by the same integral.
//!
//! Several loads may share one schedule in [`turns`]: together they send what one would.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::plan::{self, Load, Spacing, Turns};

pub mod turns;

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

/// Where one stage lies. Nanoseconds since the schedule's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageBounds {
    pub start: u64,
    /// Exclusive; `None`: until the plan's number of calls is reached.
    pub end: Option<u64>,
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
    /// Evenly spaced only: arrivals of the warm-up stages, and the end of all numbers.
    warmup_calls: u64,
    end_number: u64,
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
    /// When the integral of the rate reaches `arrivals`. Nanoseconds since the schedule's start.
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
    /// The schedule of `load`. `seed` matters for Poisson arrivals only.
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
            let (from, to) = (sane(stage.rate_from), sane(stage.rate_to));
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
                warmup_calls,
                end_number,
            }),
        }
    }

    /// The arrivals whose number leaves `index` when divided by `of`, in order. It ends
    /// with the last stage, or with the plan's last call. Closed loop: empty.
    pub fn share(&self, index: u32, of: u32) -> Arrivals {
        let of = of.max(1);
        let piece = self.inner.pieces.first().copied();
        let usable = index < of && piece.is_some();
        let deal = self.inner.turns.map(Deal::new);
        let pace = match self.inner.spacing {
            Some(Spacing::Constant) if usable => match deal {
                None => Pace::Even {
                    number: u64::from(index),
                },
                Some(deal) => Pace::Dealt(Box::new(Dealt {
                    deal,
                    number: u64::from(index),
                })),
            },
            Some(Spacing::Poisson) if usable => Pace::Poisson(Box::new(Poisson {
                rng: ChaCha8Rng::seed_from_u64(self.inner.seed),
                deal,
                number: 0,
                until_mine: index,
                of,
                passed: 0.0,
                measured_left: self.inner.calls.unwrap_or(u64::MAX),
            })),
            _ => Pace::Ended,
        };
        Arrivals {
            inner: Arc::clone(&self.inner),
            pace,
            step: u64::from(of),
            stage: 0,
            piece: piece.unwrap_or(NOTHING),
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

    /// Where each stage lies, in order.
    pub fn stage_bounds(&self) -> &[StageBounds] {
        &self.inner.bounds
    }

    /// When the last stage ends, in nanoseconds since the schedule's start; `None` where
    /// only the number of calls ends it. Evenly spaced arrivals that reach the number of
    /// calls before end there, one gap after the last.
    pub fn end(&self) -> Option<u64> {
        let inner = &self.inner;
        let stages_end = inner.bounds.last().map_or(Some(0), |b| b.end);
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

    /// Calls that are not warm-up: exact for even spacing, the mean for Poisson arrivals,
    /// the plan's number of calls in a closed loop; `None` where nothing says.
    pub fn expected_calls(&self) -> Option<u64> {
        let inner = &self.inner;
        match inner.spacing {
            None => inner.calls,
            Some(Spacing::Constant) => {
                let (mut warmup, mut end) = (inner.warmup_calls, inner.end_number);
                if let Some(mut deal) = inner.turns.map(Deal::new) {
                    (warmup, end) = (deal.before(warmup), deal.before(end));
                }
                Some(end.saturating_sub(warmup)).filter(|&n| n < u64::MAX / 2)
            }
            Some(Spacing::Poisson) => {
                let mean: f64 = inner
                    .pieces
                    .iter()
                    .filter(|p| !p.warmup)
                    .map(|p| p.total)
                    .sum();
                let calls = inner.calls.unwrap_or(u64::MAX);
                let (share, of) = inner.turns.map_or((1, 1), |turns| {
                    (u64::from(turns.share.max(1)), u64::from(turns.of.max(1)))
                });
                Some(calls.min(mean.round() as u64))
                    .filter(|&n| n < u64::MAX)
                    .map(|n| n * share / of)
            }
        }
    }
}

/// A rate that arithmetic can stand.
fn sane(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

const NOTHING: Piece = Piece {
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
    Poisson(Box<Poisson>),
    Ended,
}

/// Evenly spaced arrivals of a schedule that several loads share.
#[derive(Clone, Debug)]
struct Dealt {
    deal: Deal,
    /// Of the load's own, the next of this share.
    number: u64,
}

#[derive(Clone, Debug)]
struct Poisson {
    rng: ChaCha8Rng,
    /// Where several loads share the schedule.
    deal: Option<Deal>,
    /// Of the next arrival, whoever's it is.
    number: u64,
    /// Arrivals of others before the next of this share.
    until_mine: u32,
    of: u32,
    /// Unit-rate time since the current stage's start.
    passed: f64,
    measured_left: u64,
}

impl Poisson {
    /// A gap of the unit-rate process: exponential, mean 1.
    #[inline]
    fn gap(&mut self) -> f64 {
        // 53 bits in [0, 1), so the logarithm's argument is in (0, 1].
        let uniform = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        -(1.0 - uniform).ln()
    }
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
        if number >= self.inner.end_number {
            self.pace = Pace::Ended;
            return None;
        }
        while number >= self.piece.next {
            if !self.next_stage() {
                return None;
            }
        }
        self.pace = Pace::Even {
            number: number.saturating_add(self.step),
        };
        Some(Arrival {
            number,
            at: self.piece.at((number - self.piece.first) as f64),
            stage: self.stage as u8,
        })
    }

    fn next_dealt(&mut self) -> Option<Arrival> {
        let Pace::Dealt(dealt) = &mut self.pace else {
            return None;
        };
        let number = dealt.number;
        let shared = dealt.deal.shared(number);
        dealt.number = number.saturating_add(self.step);
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

    fn next_poisson(&mut self) -> Option<Arrival> {
        loop {
            let Pace::Poisson(poisson) = &mut self.pace else {
                return None;
            };
            let mut passed = poisson.passed + poisson.gap();
            // A stage's end cuts the gap: the process has no memory.
            while passed >= self.piece.total {
                passed -= self.piece.total;
                if !self.next_stage() {
                    return None;
                }
            }
            let Pace::Poisson(poisson) = &mut self.pace else {
                return None;
            };
            poisson.passed = passed;
            if !self.piece.warmup {
                if poisson.measured_left == 0 {
                    self.pace = Pace::Ended;
                    return None;
                }
                poisson.measured_left -= 1;
            }
            let shared = poisson.number;
            poisson.number += 1;
            let own = match &mut poisson.deal {
                None => Some(shared),
                Some(deal) => deal.own(shared),
            };
            let Some(number) = own else {
                continue;
            };
            if poisson.until_mine == 0 {
                poisson.until_mine = poisson.of - 1;
                return Some(Arrival {
                    number,
                    at: self.piece.at(passed),
                    stage: self.stage as u8,
                });
            }
            poisson.until_mine -= 1;
        }
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        match self.pace {
            Pace::Even { number } => self.next_even(number),
            Pace::Dealt(_) => self.next_dealt(),
            Pace::Poisson(_) => self.next_poisson(),
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::plan::{Reuse, Stage};

    fn load(spacing: Spacing, stages: Vec<Stage>, calls: Option<u64>) -> Load {
        Load {
            arrivals: plan::Arrivals::Open(spacing),
            stages,
            connections: 1,
            reuse: Reuse::Always,
            calls,
            deadline: None,
            connect_timeout: Duration::from_secs(10),
            connect_rate: None,
            connection_lifetime: None,
            calls_per_connection: None,
            resolve_interval: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            processes: None,
            workers: None,
            precision: None,
            spin: Duration::ZERO,
            tick: Duration::ZERO,
            read_buffer: 128 << 10,
            source_addresses: Vec::new(),
            turns: None,
            count_bytes: false,
            last_core: false,
        }
    }

    fn stage(warmup: bool, millis: u64, from: f64, to: f64) -> Stage {
        Stage {
            name: "stage".into(),
            warmup,
            duration: Some(Duration::from_millis(millis)),
            rate_from: from,
            rate_to: to,
        }
    }

    fn all(schedule: &Schedule) -> Vec<Arrival> {
        schedule.share(0, 1).collect()
    }

    #[test]
    fn constant_arrivals_are_at_start_plus_k_over_rate() {
        let schedule = Schedule::new(
            &load(
                Spacing::Constant,
                vec![
                    stage(true, 1_000, 3.0, 3.0),
                    stage(false, 2_000, 1000.0, 1000.0),
                ],
                None,
            ),
            1,
        );
        let arrivals = all(&schedule);
        assert_eq!(arrivals.len(), 3 + 2000);
        assert_eq!(arrivals[1].at, 333_333_333);
        assert_eq!(arrivals[2].at, 666_666_667);
        for (k, arrival) in arrivals[3..].iter().enumerate() {
            assert_eq!(arrival.at, 1_000_000_000 + k as u64 * 1_000_000);
            assert_eq!(arrival.stage, 1);
        }
        assert_eq!(schedule.expected_calls(), Some(2000));
        assert_eq!(schedule.end(), Some(3_000_000_000));
        assert_eq!(schedule.stage_at(999_999_999), Some(0));
        assert_eq!(schedule.stage_at(1_000_000_000), Some(1));
        assert_eq!(schedule.stage_at(3_000_000_000), None);
    }

    #[test]
    fn a_small_rate_has_the_right_count() {
        let schedule = Schedule::new(
            &load(
                Spacing::Constant,
                vec![stage(false, 10_000, 0.1, 0.1)],
                None,
            ),
            1,
        );
        assert_eq!(all(&schedule).len(), 1);
        let schedule = Schedule::new(
            &load(
                Spacing::Constant,
                vec![stage(false, 10_000, 0.0, 0.0)],
                None,
            ),
            1,
        );
        assert_eq!(all(&schedule).len(), 0);
    }

    #[test]
    fn calls_end_the_schedule_and_warmup_does_not_count() {
        for spacing in [Spacing::Constant, Spacing::Poisson] {
            let schedule = Schedule::new(
                &load(
                    spacing,
                    vec![
                        stage(true, 1_000, 100.0, 100.0),
                        stage(false, 10_000, 100.0, 100.0),
                    ],
                    Some(250),
                ),
                7,
            );
            let measured = all(&schedule).iter().filter(|a| a.stage == 1).count();
            assert_eq!(measured, 250, "{spacing:?}");
            assert_eq!(schedule.expected_calls(), Some(250));
        }
        let schedule = Schedule::new(
            &load(
                Spacing::Constant,
                vec![
                    stage(true, 1_000, 100.0, 100.0),
                    stage(false, 10_000, 100.0, 100.0),
                ],
                Some(250),
            ),
            7,
        );
        assert_eq!(schedule.end(), Some(3_500_000_000));
    }

    #[test]
    fn no_drift_after_a_thousand_million_calls() {
        let hours = 6 * 3_600 * 1_000;
        for rate in [50_000.0, 30_000.0, 49_999.0] {
            let schedule = Schedule::new(
                &load(
                    Spacing::Constant,
                    vec![stage(false, hours, rate, rate)],
                    None,
                ),
                1,
            );
            let k = 600_000_000u64;
            let far = schedule
                .share(0, 1)
                .nth(k as usize)
                .expect("within six hours");
            let exact = (u128::from(k) * 1_000_000_000 + rate as u128 / 2) / rate as u128;
            assert_eq!(far.number, k);
            assert_eq!(u128::from(far.at), exact, "rate {rate}");
        }
        let schedule = Schedule::new(
            &load(
                Spacing::Constant,
                vec![stage(false, hours * 2, 50_000.0, 50_000.0)],
                None,
            ),
            1,
        );
        let far = schedule
            .share(1, 2)
            .nth(500_000_000)
            .expect("within twelve hours");
        assert_eq!((far.number, far.at), (1_000_000_001, 20_000_000_020_000));
    }

    #[test]
    fn a_ramp_follows_its_integral() {
        for (from, to) in [(0.0, 1000.0), (1000.0, 0.0), (200.0, 900.0)] {
            let schedule = Schedule::new(
                &load(
                    Spacing::Constant,
                    vec![stage(false, 10_000, from, to)],
                    None,
                ),
                1,
            );
            let arrivals = all(&schedule);
            assert_eq!(arrivals.len() as f64, (from + to) / 2.0 * 10.0);
            for probe in [1.0f64, 2.5, 5.0, 9.0, 9.99] {
                let due = arrivals
                    .iter()
                    .filter(|a| (a.at as f64) < probe * 1e9)
                    .count();
                let integral = from * probe + (to - from) * probe * probe / 20.0;
                assert!(
                    (due as f64 - integral).abs() <= 1.0,
                    "{from}→{to} at {probe}s: {due} for {integral}"
                );
            }
            assert!(arrivals.windows(2).all(|w| w[0].at <= w[1].at));
        }
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_spread_of_an_exponential() {
        let schedule = Schedule::new(
            &load(
                Spacing::Poisson,
                vec![stage(false, 200_000, 1000.0, 1000.0)],
                None,
            ),
            42,
        );
        let arrivals = all(&schedule);
        let n = arrivals.len() as f64;
        // Five standard deviations of a Poisson count of mean 200,000.
        assert!((n - 200_000.0).abs() < 5.0 * 200_000f64.sqrt(), "{n}");
        let gaps: Vec<f64> = arrivals
            .windows(2)
            .map(|w| (w[1].at - w[0].at) as f64 / 1e6)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.012, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.03, "variance {variance}");
    }

    #[test]
    fn expected_are_the_calls_that_are_no_warm_up_as_far_as_they_are_known() {
        let endless = Stage {
            duration: None,
            ..stage(false, 0, 10.0, 10.0)
        };
        let timed = vec![
            stage(true, 1_000, 50.0, 50.0),
            stage(false, 3_000, 10.0, 31.0),
        ];
        let expected = |spacing, stages: &[Stage], calls| {
            Schedule::new(&load(spacing, stages.to_vec(), calls), 1).expected_calls()
        };
        for spacing in [Spacing::Constant, Spacing::Poisson] {
            // Their mean rate is 20.5 a second.
            let of_all = expected(spacing, &timed, None).unwrap();
            assert!((61..=62).contains(&of_all), "{spacing:?}: {of_all}");
            assert_eq!(expected(spacing, &timed, Some(7)), Some(7));
            let endless = std::slice::from_ref(&endless);
            assert_eq!(expected(spacing, endless, None), None, "{spacing:?}");
            assert_eq!(expected(spacing, endless, Some(7)), Some(7));
        }
    }

    #[test]
    fn a_seed_decides_the_poisson_sequence() {
        let load = load(
            Spacing::Poisson,
            vec![stage(false, 1_000, 1000.0, 1000.0)],
            None,
        );
        assert_eq!(all(&Schedule::new(&load, 5)), all(&Schedule::new(&load, 5)));
        assert_ne!(all(&Schedule::new(&load, 5)), all(&Schedule::new(&load, 6)));
    }

    #[test]
    fn poisson_arrivals_follow_a_ramp() {
        let schedule = Schedule::new(
            &load(
                Spacing::Poisson,
                vec![stage(false, 100_000, 0.0, 2000.0)],
                None,
            ),
            3,
        );
        let arrivals = all(&schedule);
        let first_half = arrivals.iter().filter(|a| a.at < 50_000_000_000).count() as f64;
        assert!(
            (first_half - 25_000.0).abs() < 5.0 * 25_000f64.sqrt(),
            "{first_half}"
        );
        let whole = arrivals.len() as f64;
        assert!(
            (whole - 100_000.0).abs() < 5.0 * 100_000f64.sqrt(),
            "{whole}"
        );
    }

    #[test]
    fn a_closed_loop_has_stages_and_no_arrivals() {
        let mut load = load(
            Spacing::Constant,
            vec![stage(true, 1_000, 0.0, 0.0)],
            Some(10),
        );
        load.stages.push(Stage {
            duration: None,
            ..stage(false, 0, 0.0, 0.0)
        });
        load.arrivals = plan::Arrivals::Closed {
            clients: 4,
            think: Duration::ZERO,
        };
        let schedule = Schedule::new(&load, 1);
        assert_eq!(schedule.share(0, 1).next(), None);
        assert_eq!(schedule.stage_at(5), Some(0));
        assert_eq!(schedule.stage_at(u64::MAX), Some(1));
        assert_eq!(schedule.end(), None);
        assert_eq!(schedule.expected_calls(), Some(10));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn shares_partition_the_whole(
            poisson in any::<bool>(),
            seed in any::<u64>(),
            of in 1u32..9,
            calls in prop::option::of(1u64..2_000),
            stages in prop::collection::vec((any::<bool>(), 1u64..1_500, 0.0f64..3_000.0, 0.0f64..3_000.0), 1..5),
        ) {
            let mut stages: Vec<Stage> =
                stages.into_iter().map(|(w, ms, from, to)| stage(w, ms, from, to)).collect();
            stages.sort_by_key(|s| !s.warmup);
            let spacing = if poisson { Spacing::Poisson } else { Spacing::Constant };
            let schedule = Schedule::new(&load(spacing, stages, calls), seed);
            let whole = all(&schedule);
            let mut merged: Vec<Arrival> = (0..of).flat_map(|i| schedule.share(i, of)).collect();
            merged.sort_by_key(|a| a.number);
            prop_assert_eq!(&merged, &whole);
            for (i, arrival) in whole.iter().enumerate() {
                prop_assert_eq!(arrival.number, i as u64);
                prop_assert_eq!(schedule.stage_at(arrival.at), Some(arrival.stage));
            }
            prop_assert!(whole.windows(2).all(|w| w[0].at <= w[1].at));
            if !poisson {
                let measured = whole
                    .iter()
                    .filter(|a| !schedule.stage_bounds()[usize::from(a.stage)].warmup)
                    .count();
                prop_assert_eq!(schedule.expected_calls(), Some(measured as u64));
            }
        }

        /// Loads that take turns send together, arrival by arrival, what one would have sent: each
        /// its turn in every round, whole turns at a time.
        #[test]
        fn turns_partition_the_whole(
            poisson in any::<bool>(),
            seed in any::<u64>(),
            of in 1u32..6,
            calls in 1u32..40,
            workers in 1u32..4,
            total in prop::option::of(1u64..2_000),
            stages in prop::collection::vec((any::<bool>(), 1u64..1_500, 0.0f64..3_000.0, 0.0f64..3_000.0), 1..4),
        ) {
            let mut stages: Vec<Stage> =
                stages.into_iter().map(|(w, ms, from, to)| stage(w, ms, from, to)).collect();
            stages.sort_by_key(|s| !s.warmup);
            let spacing = if poisson { Spacing::Poisson } else { Spacing::Constant };
            let mut load = load(spacing, stages, total);
            let whole = all(&Schedule::new(&load, seed));
            let mut dealt = Vec::new();
            for index in 0..of {
                load.turns = Some(Turns { of, index, share: 1, calls, seed });
                let schedule = Schedule::new(&load, seed);
                let mut own: Vec<Arrival> =
                    (0..workers).flat_map(|w| schedule.share(w, workers)).collect();
                own.sort_by_key(|a| a.number);
                prop_assert!(own.iter().zip(0..).all(|(a, n)| a.number == n));
                if !poisson {
                    let counting = own
                        .iter()
                        .filter(|a| !schedule.stage_bounds()[usize::from(a.stage)].warmup)
                        .count();
                    prop_assert_eq!(schedule.expected_calls(), Some(counting as u64));
                }
                dealt.extend(own.into_iter().map(|a| (a.at, a.stage, index, a.number)));
            }
            dealt.sort_unstable();
            let times = |(at, stage, ..): &(u64, u8, u32, u64)| (*at, *stage);
            let arrivals: Vec<(u64, u8)> = whole.iter().map(|a| (a.at, a.stage)).collect();
            prop_assert_eq!(dealt.iter().map(times).collect::<Vec<_>>(), arrivals);
            // By places in the shared schedule; two arrivals at one moment may come in either order.
            if whole.windows(2).all(|w| w[0].at < w[1].at) {
                for (place, (.., index, number)) in dealt.iter().enumerate() {
                    let round = place as u64 / u64::from(of * calls);
                    let turn = place % (of * calls) as usize / calls as usize;
                    prop_assert_eq!(turns::order(of, round, seed)[turn], *index);
                    prop_assert_eq!(number / u64::from(calls), round);
                }
            }
        }

        /// Loads with shares of a schedule send together what one would have, each exactly its share of
        /// every round.
        #[test]
        fn weights_partition_the_whole(
            seed in any::<u64>(),
            shares in prop::collection::vec(1u32..8, 1..5),
            calls in 1u32..5,
            workers in 1u32..4,
            rounds in 1u64..20,
        ) {
            let of: u32 = shares.iter().sum();
            let whole_rounds = u64::from(of * calls) * rounds;
            let mut load = load(Spacing::Constant, vec![stage(false, 60_000, 1_000.0, 1_000.0)], Some(whole_rounds));
            let mut dealt = Vec::new();
            let mut index = 0;
            for share in shares {
                load.turns = Some(Turns { of, index, share, calls, seed });
                let schedule = Schedule::new(&load, seed);
                let own: Vec<u64> = (0..workers)
                    .flat_map(|w| schedule.share(w, workers))
                    .map(|a| a.at)
                    .collect();
                prop_assert_eq!(own.len() as u64, u64::from(share * calls) * rounds);
                prop_assert_eq!(schedule.expected_calls(), Some(own.len() as u64));
                dealt.extend(own);
                index += share;
            }
            dealt.sort_unstable();
            load.turns = None;
            let whole: Vec<u64> = Schedule::new(&load, seed).share(0, 1).map(|a| a.at).collect();
            prop_assert_eq!(dealt, whole);
        }

        #[test]
        fn even_spacing_is_even(rate in 0.5f64..200_000.0, ms in 1u64..2_000) {
            let schedule = Schedule::new(&load(Spacing::Constant, vec![stage(false, ms, rate, rate)], None), 1);
            let gap = 1e9 / rate;
            for pair in schedule.share(0, 1).take(5_000).collect::<Vec<_>>().windows(2) {
                prop_assert!(((pair[1].at - pair[0].at) as f64 - gap).abs() <= 1.0);
            }
        }
    }
}

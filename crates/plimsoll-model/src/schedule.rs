//! When each call is due: a pure function of the plan's load and its seed.
//!
//! The schedule is the only source of arrival times. It knows nothing about the target, clocks or workers, so a slow
//! system can't slow it down. Invariant: for every `n`, the shares `share(0, n) … share(n - 1, n)` together are exactly
//! `share(0, 1)`, so a run that is split over workers or machines sends the same calls as a single worker. The workers'
//! event loops iterate over the schedule, and the recorder gets the bounds of stages from it.
//!
//! Evenly spaced arrivals are computed from their number, never by adding gaps, so there is no drift. Each stage starts
//! with an arrival, independently of the previous stage. A ramp uses the inverse of the rate's integral. A Poisson
//! process is a sequence of exponential gaps with mean 1, which the same integral maps to times; gaps of a gamma
//! distribution are mapped in the same way.
//!
//! Several loads may share one schedule in batches ([`batches`]): together they send the same calls as a single load.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::plan::{self, ArrivalSpacing, BatchSchedule, LoadPlan};

pub mod batches;
mod gaps;
mod replay;

use batches::BatchAssignment;
use gaps::RenewalGaps;
use replay::{ReplayArrivals, ReplaySchedule};

/// One call and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The call's position in the load's whole schedule, warm-up included, from 0.
    pub number: u64,
    /// Nanoseconds since the schedule's start.
    pub at: u64,
    /// Index into the plan's stages.
    pub stage: u8,
}

/// The bounds of one stage, in nanoseconds since the schedule's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageBounds {
    /// The start, inclusive.
    pub start: u64,
    /// The end, exclusive; `None`: the stage lasts until the plan's number of calls is reached.
    pub end: Option<u64>,
    /// Whether the stage is warm-up.
    pub warmup: bool,
}

/// All arrivals of a run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schedule {
    inner: Arc<ScheduleInner>,
}

#[derive(Debug)]
struct ScheduleInner {
    /// `None`: closed loop, no arrivals.
    spacing: Option<ArrivalSpacing>,
    seed: u64,
    calls: Option<u64>,
    /// This load's share of the batches. Arrival numbers in the fields below count the arrivals of all loads that share
    /// the schedule.
    batches: Option<BatchSchedule>,
    bounds: Vec<StageBounds>,
    segments: Vec<RateSegment>,
    /// Evenly spaced arrivals only: one more than the last arrival's number.
    end_number: u64,
    /// The replayed recording; `None`: arrivals are not recorded.
    replay: Option<ReplaySchedule>,
}

/// A stage's arrivals as a linear rate function. Times are nanoseconds since the schedule's start.
#[derive(Clone, Copy, Debug)]
struct RateSegment {
    start: u64,
    /// The last nanosecond that belongs to the stage.
    last: u64,
    /// Arrivals per second at the start.
    from: f64,
    /// Change of the rate per second.
    slope: f64,
    /// The rate's integral over the stage, which is the expected number of arrivals.
    total: f64,
    /// Evenly spaced arrivals only: the numbers of the first arrivals of this stage and of the next stage.
    first: u64,
    next: u64,
    warmup: bool,
}

impl RateSegment {
    /// Returns the time at which the integral of the rate reaches `arrivals`, in nanoseconds since the schedule's
    /// start.
    #[inline]
    fn time_after_arrivals(&self, arrivals: f64) -> u64 {
        // For whole numbers below 2^32 the product is exact: 10^9 = 5^9 · 2^9 and 5^9 needs 21 bits.
        let ns = if self.slope == 0.0 {
            arrivals * 1e9 / self.from
        } else if arrivals == 0.0 {
            0.0
        } else {
            // The root of from·t + slope·t²/2 = arrivals, in the form without catastrophic cancellation.
            let root = (self.from * self.from + 2.0 * self.slope * arrivals)
                .max(0.0)
                .sqrt();
            2e9 * arrivals / (self.from + root)
        };
        // The cast truncates, saturates, and turns NaN into zero.
        self.start.saturating_add((ns + 0.5) as u64).min(self.last)
    }
}

impl Schedule {
    /// Creates the schedule of `load`. Only random arrivals use `seed`.
    ///
    /// Rates that are not above zero give no arrivals.
    pub fn new(load: &LoadPlan, seed: u64) -> Schedule {
        let spacing = match load.arrivals {
            plan::ArrivalModel::Open(spacing) => Some(spacing),
            plan::ArrivalModel::Closed { .. } => None,
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
            let (from, to) = match load.batches.and_then(|turns| turns.slot) {
                Some(slot) => (1.0 / slot.as_secs_f64(), 1.0 / slot.as_secs_f64()),
                None => (stage.rate_from, stage.rate_to),
            };
            let (from, to) = (sanitize_rate(from), sanitize_rate(to));
            let (slope, total) = match stage.duration {
                Some(d) if !d.is_zero() => {
                    let seconds = d.as_secs_f64();
                    ((to - from) / seconds, (from + to) / 2.0 * seconds)
                }
                Some(_) => (0.0, 0.0),
                None if from > 0.0 => (0.0, f64::INFINITY),
                None => (0.0, 0.0),
            };
            // The small constant corrects rounding errors: a rate of 0.1/s for 10 s must give exactly one arrival.
            let count = (total - 1e-9).ceil().max(0.0) as u64;
            let next = number.saturating_add(count);
            if stage.warmup {
                warmup_calls = warmup_calls.saturating_add(count);
            }
            pieces.push(RateSegment {
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
            inner: Arc::new(ScheduleInner {
                spacing,
                seed,
                calls: load.calls,
                batches: load.batches,
                bounds,
                segments: pieces,
                end_number,
                replay: ReplaySchedule::from_load(load),
            }),
        }
    }

    /// Returns the arrivals whose number modulo `of` is `index`, in order, up to the end of the last stage or the
    /// plan's last call. A closed loop has no arrivals: the iterator is empty or, if loads share batches, yields when
    /// each batch starts.
    pub fn share(&self, index: u32, of: u32) -> ArrivalIter {
        let of = of.max(1);
        let piece = self.inner.segments.first().copied();
        let usable = index < of && piece.is_some();
        let deal = self.inner.batches.map(BatchAssignment::new);
        let number = u64::from(index);
        let pace = match (self.inner.spacing, deal) {
            _ if !usable => ArrivalSource::Ended,
            (Some(ArrivalSpacing::Recorded), _) => match &self.inner.replay {
                Some(replay) => ArrivalSource::Recorded(Box::new(replay.arrivals_from(number))),
                None => ArrivalSource::Ended,
            },
            (Some(spacing @ (ArrivalSpacing::Poisson | ArrivalSpacing::Gamma(_))), deal) => {
                ArrivalSource::Random(Box::new(RandomArrivals {
                    rng: ChaCha8Rng::seed_from_u64(self.inner.seed),
                    gaps: RenewalGaps::from_spacing(spacing),
                    assignment: deal,
                    number: 0,
                    others_before_next: index,
                    share_count: of,
                    elapsed_gaps: 0.0,
                    measured_left: self.inner.calls.unwrap_or(u64::MAX),
                }))
            }
            (_, Some(deal)) => ArrivalSource::Batched(Box::new(BatchedArrivals {
                assignment: deal,
                number,
            })),
            (Some(ArrivalSpacing::Constant), None) => ArrivalSource::Even { number },
            (None, None) => ArrivalSource::Ended,
        };
        ArrivalIter {
            inner: Arc::clone(&self.inner),
            source: pace,
            step: u64::from(of),
            stage: 0,
            segment: piece.unwrap_or(EMPTY_SEGMENT),
            cut_at: None,
        }
    }

    /// Returns the stage at `ns` since the schedule's start; `None` after the end.
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

    /// Returns the end of the last stage, in nanoseconds since the schedule's start. `None`: only the number of calls
    /// ends the stage. If evenly spaced arrivals reach the number of calls earlier, the end is one gap after the last
    /// arrival.
    pub fn end(&self) -> Option<u64> {
        let inner = &self.inner;
        let stages_end = inner.bounds.last().map_or(Some(0), |b| b.end);
        if let Some(replay) = &inner.replay {
            return Some(replay.end_ns());
        }
        if inner.spacing == Some(ArrivalSpacing::Constant) {
            let cut = inner
                .segments
                .iter()
                .find(|p| inner.end_number >= p.first && inner.end_number < p.next);
            if let Some(piece) = cut {
                return Some(piece.time_after_arrivals((inner.end_number - piece.first) as f64));
            }
        }
        stages_end
    }
}

/// Replaces a negative, infinite or NaN rate with zero.
fn sanitize_rate(rate: f64) -> f64 {
    if rate.is_finite() { rate.max(0.0) } else { 0.0 }
}

const EMPTY_SEGMENT: RateSegment = RateSegment {
    start: 0,
    last: 0,
    from: 0.0,
    slope: 0.0,
    total: 0.0,
    first: 0,
    next: 0,
    warmup: false,
};

/// Iterator over one share of a schedule, in order. For evenly spaced arrivals, `nth` takes constant time.
#[derive(Clone, Debug)]
pub struct ArrivalIter {
    inner: Arc<ScheduleInner>,
    source: ArrivalSource,
    step: u64,
    stage: usize,
    /// A copy of the current stage's rate function.
    segment: RateSegment,
    /// The time that [`ArrivalIter::first_excess_time`] returns.
    cut_at: Option<u64>,
}

#[derive(Clone, Debug)]
enum ArrivalSource {
    Even { number: u64 },
    Batched(Box<BatchedArrivals>),
    Random(Box<RandomArrivals>),
    Recorded(Box<ReplayArrivals>),
    Ended,
}

/// Evenly spaced arrivals of a schedule that several loads share in batches.
#[derive(Clone, Debug)]
struct BatchedArrivals {
    assignment: BatchAssignment,
    /// The number of this share's next arrival, counting only the arrivals of this load.
    number: u64,
}

#[derive(Clone, Debug)]
struct RandomArrivals {
    rng: ChaCha8Rng,
    gaps: RenewalGaps,
    /// The load's share of the batches, where several loads share the schedule.
    assignment: Option<BatchAssignment>,
    /// The number of the next arrival of any share.
    number: u64,
    /// Arrivals of other shares before the next one of this share.
    others_before_next: u32,
    share_count: u32,
    /// Time since the current stage's start, in units of the mean gap.
    elapsed_gaps: f64,
    measured_left: u64,
}

impl ArrivalIter {
    /// Returns the time of the first arrival beyond the plan's number of calls, in nanoseconds since the schedule's
    /// start. `None`: the iterator has not reached it, or arrivals are evenly spaced, for which [`Schedule::end`]
    /// returns the end.
    pub fn first_excess_time(&self) -> Option<u64> {
        self.cut_at
    }

    /// Moves on to the next stage; returns false if there is none.
    #[cold]
    fn next_stage(&mut self) -> bool {
        match self.inner.segments.get(self.stage + 1) {
            Some(piece) => {
                self.stage += 1;
                self.segment = *piece;
                true
            }
            None => {
                self.source = ArrivalSource::Ended;
                false
            }
        }
    }

    #[inline]
    fn next_evenly_spaced(&mut self, number: u64) -> Option<Arrival> {
        self.source = ArrivalSource::Even {
            number: number.saturating_add(self.step),
        };
        self.make_arrival(number, number)
    }

    fn next_batched(&mut self) -> Option<Arrival> {
        let ArrivalSource::Batched(dealt) = &mut self.source else {
            return None;
        };
        let number = dealt.number;
        let shared = dealt.assignment.shared_arrival_number(number);
        dealt.number = number.saturating_add(self.step);
        self.make_arrival(number, shared)
    }

    /// Returns the arrival that is number `number` of this load and number `shared` of the schedule of all loads.
    #[inline]
    fn make_arrival(&mut self, number: u64, shared: u64) -> Option<Arrival> {
        if shared >= self.inner.end_number {
            self.source = ArrivalSource::Ended;
            return None;
        }
        while shared >= self.segment.next {
            if !self.next_stage() {
                return None;
            }
        }
        Some(Arrival {
            number,
            at: self
                .segment
                .time_after_arrivals((shared - self.segment.first) as f64),
            stage: self.stage as u8,
        })
    }

    fn next_random(&mut self) -> Option<Arrival> {
        loop {
            let ArrivalSource::Random(random) = &mut self.source else {
                return None;
            };
            let mut passed = random.elapsed_gaps + random.gaps.next(&mut random.rng);
            // A gap that crosses into the next stage continues at that stage's rate.
            while passed >= self.segment.total {
                passed -= self.segment.total;
                if !self.next_stage() {
                    return None;
                }
            }
            let ArrivalSource::Random(random) = &mut self.source else {
                return None;
            };
            random.elapsed_gaps = passed;
            if !self.segment.warmup {
                if random.measured_left == 0 {
                    self.cut_at = Some(self.segment.time_after_arrivals(passed));
                    self.source = ArrivalSource::Ended;
                    return None;
                }
                random.measured_left -= 1;
            }
            let shared = random.number;
            random.number += 1;
            let own = match &mut random.assignment {
                None => Some(shared),
                Some(deal) => deal.own_arrival_number(shared),
            };
            let Some(number) = own else {
                continue;
            };
            if random.others_before_next == 0 {
                random.others_before_next = random.share_count - 1;
                return Some(Arrival {
                    number,
                    at: self.segment.time_after_arrivals(passed),
                    stage: self.stage as u8,
                });
            }
            random.others_before_next -= 1;
        }
    }
}

impl ArrivalIter {
    fn next_recorded(&mut self) -> Option<Arrival> {
        let ArrivalSource::Recorded(replayed) = &mut self.source else {
            return None;
        };
        let Some((number, at)) = replayed.next(self.step) else {
            self.source = ArrivalSource::Ended;
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

impl Iterator for ArrivalIter {
    type Item = Arrival;

    #[inline]
    fn next(&mut self) -> Option<Arrival> {
        match self.source {
            ArrivalSource::Even { number } => self.next_evenly_spaced(number),
            ArrivalSource::Batched(_) => self.next_batched(),
            ArrivalSource::Random(_) => self.next_random(),
            ArrivalSource::Recorded(_) => self.next_recorded(),
            ArrivalSource::Ended => None,
        }
    }

    fn nth(&mut self, n: usize) -> Option<Arrival> {
        if let ArrivalSource::Even { number } = self.source {
            return self
                .next_evenly_spaced(number.saturating_add(self.step.saturating_mul(n as u64)));
        }
        for _ in 0..n {
            self.next()?;
        }
        self.next()
    }
}

#[cfg(test)]
mod tests;

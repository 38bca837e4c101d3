//! How closely the delivered load followed the plan: sent arrivals compared with scheduled ones.
//!
//! The measure is the Kolmogorov distance: the greatest difference, at any time of the run, between the number of calls
//! that had become due and the number that had been sent, as a share of all calls. The recorded lateness bounds it from
//! both sides. A call that is due but not yet sent at some time either became due within the last `a`, or is sent more
//! than `a` late. So for every `a`, the number of such calls is at most the number of calls that become due within `a`,
//! plus the number that were sent more than `a` late. The smallest of these sums is the upper bound. The sum of all
//! lateness is the number of unsent calls integrated over time, and the greatest number of unsent calls is at least
//! their mean, which gives the lower bound.

use std::time::Duration;

use serde::Serialize;

use crate::records::instrument::TailCounts;
use crate::records::record::{StageRecord, TimeHistogram};
use crate::statistics::quantile::quantile;

use super::header::RunHeader;

/// Probability that a window contains more arrivals of a Poisson process than the upper bound.
const EXCESS_PROBABILITY: f64 = 1e-12;

/// Maximum difference between the times at which a worker ends an interval and the interval's nominal end.
const MAX_INTERVAL_SKEW: Duration = Duration::from_millis(100);

/// Relative precision of times in histograms.
const HISTOGRAM_PRECISION: f64 = 1e-3;

/// Ratio of consecutive lengths of the windows that are tried.
const WINDOW_LENGTH_RATIO: f64 = 1.05;

/// How much of an open loop's load was sent, and how late calls were sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DeliverySummary {
    /// Calls that were due.
    pub asked: u64,
    /// Calls among them that were sent, or failed because no connection was available.
    pub sent: u64,
    /// `sent / asked`.
    pub sent_share: f64,
    /// Lower and upper bound of the Kolmogorov distance of scheduled and sent arrivals: the greatest share of all
    /// calls that were due and not sent at the same time (0–1).
    pub distance: [f64; 2],
    /// The part of `distance` that the generator itself caused: the same bounds, for calls that were due but that the
    /// generator had not noticed.
    pub generator_distance: [f64; 2],
    /// The 99th percentile of the lateness of sent calls.
    pub lateness_p99_us: Option<f64>,
    /// The greatest lateness of a sent call.
    pub lateness_max_us: f64,
}

/// The arrivals that a plan schedules.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScheduledArrivals {
    /// The highest rate of the schedule.
    peak_per_s: f64,
    is_poisson: bool,
    stages: usize,
}

impl ScheduledArrivals {
    /// Returns the arrivals of those stages of `header` for which `wanted` returns true; `None` where the plan does not
    /// schedule calls: in closed loops, in runs of other tools, and where arrivals are users who make several calls
    /// each.
    pub(super) fn from_header(
        header: &RunHeader,
        wanted: impl Fn(u8) -> bool,
    ) -> Option<ScheduledArrivals> {
        let are_calls = header.cold || header.connections.is_some();
        if !header.is_open_loop() || !are_calls {
            return None;
        }
        let stages = (0..=u8::MAX).zip(&header.planned_stages);
        let stages = stages.filter(|(stage, _)| wanted(*stage));
        let rates: Option<Vec<f64>> = stages
            .map(|(_, planned)| Some(planned.rate_from_per_s?.max(planned.rate_to_per_s?)))
            .collect();
        let rates = rates?;
        let own_peak = rates.iter().copied().reduce(f64::max)?;
        Some(ScheduledArrivals {
            peak_per_s: own_peak / header.schedule_share.unwrap_or(1.0),
            is_poisson: header.arrivals.as_deref() == Some("poisson"),
            stages: rates.len(),
        })
    }

    /// Returns an upper bound of how many of `all` arrivals fall within a window of `ns`.
    fn max_arrivals_within(&self, ns: u64, all: u64) -> f64 {
        let expected = self.peak_per_s * ns as f64 / 1e9;
        // A stage's first arrival may immediately follow the last one of the previous stage.
        let begun = self.stages as f64;
        if self.is_poisson {
            poisson_upper_bound(expected, EXCESS_PROBABILITY / all.max(1) as f64) + begun
        } else {
            (expected * (1.0 + 1e-12)).floor() + begun
        }
    }
}

/// Returns a number that a Poisson variable of mean `mean` exceeds with probability `chance` at most (Chernoff's
/// bound).
fn poisson_upper_bound(mean: f64, chance: f64) -> f64 {
    if mean <= 0.0 {
        return 0.0;
    }
    let is_enough = |x: f64| x - mean - x * (x / mean).ln() <= chance.ln();
    let (mut low, mut high) = (mean, 2.0 * mean + 1.0);
    while !is_enough(high) {
        high *= 2.0;
    }
    while high - low > 0.5 {
        let middle = f64::midpoint(low, high);
        if is_enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high.ceil()
}

/// Returns the mean number of calls that were due and unnoticed during an interval, given how long it took to notice
/// each call (`pacing`). The mean is a lower bound of the highest number at any moment.
pub(super) fn mean_unnoticed_calls(pacing: &TimeHistogram, length: Duration) -> f64 {
    let (mut sum_ns, mut latest_ns) = (0.0, 0);
    pacing.for_each_bucket(|ns, n| {
        sum_ns += ns as f64 * n as f64;
        latest_ns = latest_ns.max(ns);
    });
    let span = length + 2 * MAX_INTERVAL_SKEW + Duration::from_nanos(latest_ns);
    sum_ns * (1.0 - HISTOGRAM_PRECISION) / span.as_nanos() as f64
}

/// Returns an upper bound of how many calls were due and not sent at the same time, given how late calls were sent and
/// that `unsent` calls were never sent.
fn max_unsent_at_once(
    late: &TailCounts,
    unsent: u64,
    arrivals: &ScheduledArrivals,
    due: u64,
) -> f64 {
    let mut least = late.len() as f64;
    let mut tried = 0.0;
    for (ns, later) in late.counts_by_length() {
        if later > 0 && (ns as f64) < tried * WINDOW_LENGTH_RATIO {
            continue;
        }
        tried = ns as f64;
        least = least.min(arrivals.max_arrivals_within(ns, due) + later as f64);
    }
    least + unsent as f64
}

/// Returns the number of calls in `record` that were not sent because the generator noticed them too late.
pub(super) fn count_calls_noticed_too_late(record: &StageRecord) -> u64 {
    // The other unsent calls were noticed in time, and waited for the target until the run ended.
    let ended = record
        .cut_off
        .len()
        .saturating_sub(record.cut_off_call_count());
    record.not_started.saturating_sub(ended)
}

/// Returns both bounds as shares of `all`, rounded outward.
fn shares_rounded_outward([low, high]: [f64; 2], all: u64) -> [f64; 2] {
    const ROUNDING_STEPS: f64 = 1e6;
    let share = |n: f64| (n / all as f64).clamp(0.0, 1.0) * ROUNDING_STEPS;
    let high = share(high).ceil() / ROUNDING_STEPS;
    [(share(low).floor() / ROUNDING_STEPS).min(high), high]
}

impl DeliverySummary {
    /// Compares the sent calls with `arrivals`. `unnoticed`: a lower bound of the number of due calls that the
    /// generator had not noticed at one time. `duration`: how long calls were sent. `None`: no call was due.
    pub(super) fn new(
        record: &StageRecord,
        arrivals: &ScheduledArrivals,
        unnoticed: f64,
        duration: Duration,
    ) -> Option<DeliverySummary> {
        let due = record.due;
        if due == 0 {
            return None;
        }
        let unsent = (record.not_started + record.expired_unsent).min(due);
        let late = count_calls_noticed_too_late(record);
        let own_low = unnoticed.max(late as f64);
        let own_high = max_unsent_at_once(&TailCounts::new(&record.pacing), late, arrivals, due);
        let lag = record.lag.histogram();
        let sum_ns = lag.map_or(0.0, |h| h.mean() * h.len() as f64) * (1.0 - HISTOGRAM_PRECISION);
        let mean_unsent = if duration.is_zero() {
            0.0
        } else {
            sum_ns / duration.as_nanos() as f64
        };
        let low = own_low.max(unsent as f64).max(mean_unsent);
        let high = max_unsent_at_once(&TailCounts::new(&record.lag), unsent, arrivals, due);
        let micros = |ns: u64| ns as f64 / 1e3;
        Some(DeliverySummary {
            asked: due,
            sent: due - unsent,
            sent_share: (due - unsent) as f64 / due as f64,
            distance: shares_rounded_outward([low, high], due),
            generator_distance: shares_rounded_outward([own_low, own_high], due),
            lateness_p99_us: lag.and_then(|h| quantile(h, 0.99)).map(micros),
            lateness_max_us: lag.map_or(0.0, |h| micros(h.max())),
        })
    }

    /// Returns the bounds of the load's fidelity: 1 minus the [distance](DeliverySummary::distance).
    pub fn fidelity(&self) -> [f64; 2] {
        let [low, high] = self.distance;
        [1.0 - high, 1.0 - low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn constant(peak_per_s: f64) -> ScheduledArrivals {
        ScheduledArrivals {
            peak_per_s,
            is_poisson: false,
            stages: 1,
        }
    }

    /// A record of calls that are noticed and sent late by these nanoseconds.
    fn sent_late(late_ns: impl IntoIterator<Item = u64>) -> StageRecord {
        let mut record = StageRecord::default();
        for ns in late_ns {
            record.due += 1;
            record.pacing.record(ns);
            record.lag.record(ns);
        }
        record
    }

    fn delivery(
        record: &StageRecord,
        arrivals: ScheduledArrivals,
        seconds: u64,
    ) -> DeliverySummary {
        let lasted = Duration::from_secs(seconds);
        let unnoticed = mean_unnoticed_calls(&record.pacing, lasted);
        DeliverySummary::new(record, &arrivals, unnoticed, lasted).unwrap()
    }

    #[test]
    fn pause_distance_is_bounded_from_both_sides() {
        // 1,000/s for 2 s, with a generator pause of 500 ms: 500 of 2,000 calls are waiting at its end.
        let pause = (0..500).map(|i| (500 - i) * MS);
        let record = sent_late(pause.chain((0..1_500).map(|_| 1_000)));
        let found = delivery(&record, constant(1_000.0), 2);
        let [low, high] = found.distance;
        assert!((0.25..0.252).contains(&high), "{high}");
        // The sum of their lateness is 125 s, over 2.7 s: a mean of 46 calls.
        assert!(low > 0.02 && low < 0.25, "{low}");
        assert_eq!((found.asked, found.sent), (2_000, 2_000));
        assert!(found.lateness_p99_us.unwrap() > 450e3);
        assert!((found.lateness_max_us - 500e3).abs() < 500.0);
    }

    #[test]
    fn punctual_load_has_almost_no_distance() {
        let found = delivery(&sent_late((0..10_000).map(|_| 20_000)), constant(1e3), 10);
        assert!(found.distance[1] <= 1e-4, "{:?}", found.distance);
        assert!(found.fidelity()[0] >= 0.9999);
        // A few late calls never wait at the same time, whenever they occur.
        let few = (0..10_000).map(|i| if i % 1_000 == 0 { 900 * MS } else { 20_000 });
        let found = delivery(&sent_late(few), constant(1e3), 10);
        assert!(found.distance[1] <= 1.2e-3, "{:?}", found.distance);
    }

    #[test]
    fn unsent_calls_count_on_both_sides() {
        let mut record = sent_late((0..900).map(|_| 10_000));
        (record.due, record.not_started) = (1_000, 100);
        let found = delivery(&record, constant(1e3), 1);
        assert_eq!((found.sent, found.sent_share), (900, 0.9));
        assert!(found.distance[0] >= 0.1 && found.distance[1] < 0.102);
        assert_eq!(found.generator_distance, found.distance);
        // Calls that were waiting for the target when the run ended are not the generator's fault.
        record.cut_off.record_n(MS, 100);
        let found = delivery(&record, constant(1e3), 1);
        assert!(found.distance[0] >= 0.1 && found.generator_distance[1] < 0.002);
    }

    #[test]
    fn chernoff_bound_exceeds_poisson_quantile() {
        // 1 − F(20) of a mean of 5 is 8.1e-8, and 1 − F(29) of a mean of 10 is 3.5e-7.
        assert!(poisson_upper_bound(5.0, 8.1e-8) >= 20.0);
        assert!(poisson_upper_bound(10.0, 3.5e-7) >= 29.0);
        assert!(poisson_upper_bound(10.0, 3.5e-7) <= 35.0);
        assert_eq!(poisson_upper_bound(0.0, 1e-9), 0.0);
        let large = poisson_upper_bound(1e6, 1e-12);
        assert!((1.006e6..1.009e6).contains(&large), "{large}");
    }

    /// Loads with random lateness of each call and random pauses of the generator.
    #[test]
    fn distance_interval_holds_true_distance() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for seed in 0..300 {
            let is_poisson = seed % 2 == 1;
            let mut due = Vec::new();
            let mut at = 0;
            for i in 0..1_000 {
                let uniform = (random(1 << 30) + 1) as f64 / (1_u64 << 30) as f64;
                at = if is_poisson {
                    at + (-uniform.ln() * 1e6) as u64
                } else {
                    i * MS
                };
                due.push(at);
            }
            let mut free = 0;
            let (rare, longest) = (20 + random(400), 1 + random(300 * MS));
            let sends: Vec<u64> = due
                .iter()
                .map(|due| {
                    let pause = if random(rare) == 0 {
                        random(longest)
                    } else {
                        0
                    };
                    free = free.max(*due + random(30_000)) + pause;
                    free
                })
                .collect();
            let behind = |at: u64| {
                let by = |times: &[u64]| times.partition_point(|time| *time < at);
                by(&due) - by(&sends)
            };
            let truth = sends.iter().map(|at| behind(*at)).max().unwrap_or(0) as f64 / 1e3;
            let record = sent_late(due.iter().zip(&sends).map(|(due, sent)| sent - due));
            let lasted = Duration::from_nanos(*sends.last().unwrap());
            let arrivals = ScheduledArrivals {
                is_poisson,
                ..constant(1e3)
            };
            let unnoticed = mean_unnoticed_calls(&record.pacing, lasted);
            let found = DeliverySummary::new(&record, &arrivals, unnoticed, lasted).unwrap();
            let [low, high] = found.distance;
            assert!(
                low <= truth && truth <= high,
                "seed {seed}: {truth} of {low} to {high}"
            );
        }
    }
}

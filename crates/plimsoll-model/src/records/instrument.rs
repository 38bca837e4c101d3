//! Instrument intervals: lower and upper bounds of what times would have been had the generator been on time.
//!
//! A response time counts from when its call was due, so it includes the generator's own lateness in sending the call
//! and in reading its answer: the measured value is the upper bound. The records hold how many calls lateness can have
//! lengthened by more than `a` ([`StageRecord::pacing`], [`StageRecord::delayed`]). Leaving out that many of the
//! slowest calls, and subtracting `a` from all others, gives a lower bound of the true percentile, whichever calls
//! were the late ones; the lower bound that is used is the largest over all `a` (Makarov 1982).
//!
//! [`crate::objective`] judges by the same counts, with failures among the calls.

use crate::records::record::{StageRecord, TimeHistogram};

/// Number of values of lateness that are tried per octave (from a value to its double).
const LATENESS_STEPS_PER_OCTAVE: u32 = 6;
/// The smallest lateness above 0 that is tried, in nanoseconds.
const MIN_LATENESS_NS: u64 = 1_000;
/// Number of equal steps into which a lateness is divided to try each split between sending and reading.
const LATENESS_SPLIT_STEPS: u64 = 8;

/// The longest delay in reading an answer that can go unrecorded, in nanoseconds: a wait and the work after it, each
/// too short to count as a pause. Lower bounds that were recorded for each call already allow for this delay; it is
/// subtracted from bounds that are computed from the records of all calls together.
pub(crate) const MAX_UNRECORDED_DELAY_NS: u64 = 2_000_000;

/// Returns how many of `n` times may be longer than their quantile `p` (0–1).
pub(crate) fn max_count_beyond_quantile(p: f64, n: u64) -> u64 {
    // The factor corrects a product that floating-point rounding put just above a whole number.
    let within = (p * n as f64 * (1.0 - 1e-12)).ceil() as u64;
    n - within.min(n)
}

/// Counts of the times that are longer than a given length, computed in a single pass over a histogram.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailCounts {
    /// The lowest and the highest value of each non-empty bucket, and the number of longer times.
    buckets: Vec<(u64, u64, u64)>,
    len: u64,
}

impl TailCounts {
    pub(crate) fn new(times: &TimeHistogram) -> TailCounts {
        let Some(histogram) = times.histogram() else {
            return TailCounts::default();
        };
        let len = histogram.len();
        let mut longer = len;
        let buckets = histogram.iter_recorded().map(|bucket| {
            longer -= bucket.count_at_value();
            let greatest = bucket.value_iterated_to();
            (histogram.lowest_equivalent(greatest), greatest, longer)
        });
        TailCounts {
            buckets: buckets.collect(),
            len,
        }
    }

    /// Returns how many times are longer than `ns`, as [`TimeHistogram::count_longer_than`] does.
    pub(crate) fn count_longer_than(&self, ns: u64) -> u64 {
        match self.buckets.partition_point(|(least, ..)| *least <= ns) {
            0 => self.len,
            n => self.buckets[n - 1].2,
        }
    }

    /// Returns the shortest time that is exceeded by at most `n` of the times; 0 if there are no more than `n`.
    fn value_exceeded_by_at_most(&self, n: u64) -> u64 {
        if n >= self.len {
            return 0;
        }
        let at = self.buckets.partition_point(|(_, _, longer)| *longer > n);
        self.buckets.get(at).map_or(0, |(_, greatest, _)| *greatest)
    }

    /// Returns the lengths of the times, ascending, each with the number of longer times.
    pub(crate) fn counts_by_length(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter();
        buckets.map(|(_, greatest, longer)| (*greatest, *longer))
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn max(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, greatest, _)| *greatest)
    }
}

/// How many calls the generator can have lengthened, and by how much.
#[derive(Clone, Debug, Default)]
pub struct LatenessBounds {
    /// Lengths in nanoseconds, from 0, each with the number of calls that can have been lengthened by more.
    steps: Vec<(u64, u64)>,
    /// The sum of all lateness, in nanoseconds.
    sum_ns: f64,
    /// The greatest delay until the generator noticed that a call was due, in nanoseconds.
    max_pacing_ns: u64,
    /// The longest pause of the generator, in nanoseconds.
    max_pause_ns: u64,
}

impl LatenessBounds {
    /// Computes the bounds from the lateness that is recorded in `record`.
    pub fn from_record(record: &StageRecord) -> LatenessBounds {
        let (sent, read) = (
            TailCounts::new(&record.pacing),
            TailCounts::new(&record.delayed),
        );
        let sum =
            |times: &TimeHistogram| times.histogram().map_or(0.0, |h| h.mean() * h.len() as f64);
        let longest = sent.max().saturating_add(read.max());
        let exact = [0, sent.max(), read.max(), longest];
        let mut steps: Vec<(u64, u64)> = lateness_values_up_to(longest)
            .chain(exact)
            .map(|length| (length, max_lengthened_count(&sent, &read, length)))
            .collect();
        steps.sort_unstable();
        LatenessBounds {
            steps,
            sum_ns: sum(&record.pacing) + sum(&record.delayed),
            max_pacing_ns: sent.max(),
            max_pause_ns: read.max(),
        }
    }

    /// Returns how many journeys the lateness of their calls can have lengthened, and by how much.
    ///
    /// A journey is lengthened by the sum of its calls' lateness. So if a journey was lengthened by more than `a`, at
    /// least one of its `n` calls was lengthened by more than `a / n`. Also, at most `sum / a` journeys can have been
    /// lengthened by more than `a`, where `sum` is all lateness together.
    pub fn from_journeys(record: &StageRecord) -> LatenessBounds {
        let of_calls = LatenessBounds::from_record(record);
        let calls = match record.longest_journey {
            0 => u64::MAX,
            calls => calls,
        };
        let lengthened = |length: u64| {
            let with_late_call = of_calls.count_longer_than(length / calls);
            let fitting = of_calls.sum_ns / length as f64;
            with_late_call.min(fitting as u64)
        };
        let of_each = of_calls.steps.iter().map(|(length, _)| *length);
        let mut steps: Vec<(u64, u64)> = of_each
            .map(|length| length.saturating_mul(calls))
            .chain(lateness_values_up_to(of_calls.sum_ns as u64))
            .map(|length| (length, lengthened(length)))
            .collect();
        steps.sort_unstable();
        LatenessBounds { steps, ..of_calls }
    }

    /// Returns how many calls can have been lengthened by more than `ns`.
    pub fn count_longer_than(&self, ns: u64) -> u64 {
        match self.steps.partition_point(|(length, _)| *length <= ns) {
            0 => 0,
            n => self.steps[n - 1].1,
        }
    }

    /// Returns the values of lateness to try, each with the number of calls that can have been lengthened by more.
    pub(crate) fn lateness_steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let none = self.steps.is_empty().then_some((0, 0));
        self.steps.iter().copied().chain(none)
    }

    /// Returns the sum of all lateness, in nanoseconds.
    pub(crate) fn sum_ns(&self) -> f64 {
        self.sum_ns
    }

    /// Returns the greatest delay until a due call was noticed, or the longest pause, in nanoseconds.
    pub fn max_lateness_ns(&self) -> u64 {
        self.max_pacing_ns.max(self.max_pause_ns)
    }

    /// Returns the lower bound, in nanoseconds, of the value that at most `beyond` of the times in `tail` exceed.
    fn lower_bound(&self, tail: &TailCounts, beyond: u64) -> u64 {
        self.lateness_steps()
            .map(|(length, calls)| {
                tail.value_exceeded_by_at_most(beyond + calls)
                    .saturating_sub(length)
            })
            .max()
            .unwrap_or(0)
    }
}

/// Returns the values of lateness to try, in nanoseconds: [`LATENESS_STEPS_PER_OCTAVE`] in each octave, ending with the first
/// one above `longest`.
fn lateness_values_up_to(longest: u64) -> impl Iterator<Item = u64> {
    let octaves = (MIN_LATENESS_NS.max(longest) / MIN_LATENESS_NS).ilog2() + 2;
    (0..octaves * LATENESS_STEPS_PER_OCTAVE)
        .map(|n| {
            MIN_LATENESS_NS as f64 * (f64::from(n) / f64::from(LATENESS_STEPS_PER_OCTAVE)).exp2()
        })
        .map(|ns| ns as u64)
}

/// Returns how many calls sending and reading together can have lengthened by more than `length`: however `length` is
/// split between the two, at least one of them exceeded its part.
fn max_lengthened_count(sent: &TailCounts, read: &TailCounts, length: u64) -> u64 {
    // Lateness of sending beyond this is due to a pause, which the lateness of reading already counts.
    const MIN_PAUSE_NS: u64 = 1_000_000;
    let parts = (0..=LATENESS_SPLIT_STEPS).map(|part| length / LATENESS_SPLIT_STEPS * part);
    parts
        .chain([length, length.min(MIN_PAUSE_NS)])
        .map(|of_sending| {
            sent.count_longer_than(of_sending) + read.count_longer_than(length - of_sending)
        })
        .min()
        .unwrap_or(0)
}

/// Lower bounds of the statistics of a set of times; the measured values are the upper bounds.
#[derive(Clone, Debug)]
pub struct LowerBounds<'a> {
    lateness: &'a LatenessBounds,
    tail: TailCounts,
    mean_ns: f64,
    /// Known lower bounds of the individual times, and their mean.
    individual_bounds: Option<(TailCounts, f64)>,
}

impl<'a> LowerBounds<'a> {
    /// Computes the bounds of `times` of calls that `lateness` can have lengthened.
    pub fn new(times: &TimeHistogram, lateness: &'a LatenessBounds) -> LowerBounds<'a> {
        LowerBounds {
            lateness,
            tail: TailCounts::new(times),
            mean_ns: mean_ns(times),
            individual_bounds: None,
        }
    }

    /// Computes the bounds of response times, whose individual lower bounds may be known.
    pub fn from_response_times(
        record: &StageRecord,
        lateness: &'a LatenessBounds,
    ) -> LowerBounds<'a> {
        let least =
            response_lower_bounds(record).map(|times| (TailCounts::new(times), mean_ns(times)));
        LowerBounds {
            individual_bounds: least,
            ..LowerBounds::new(&record.response, lateness)
        }
    }

    /// Returns the lower bound of the quantile `p` (0–1), in nanoseconds.
    pub fn quantile(&self, p: f64) -> u64 {
        self.lower_bound_exceeded_by_at_most(max_count_beyond_quantile(p, self.tail.len))
    }

    /// Returns the lower bound of the largest time, in nanoseconds.
    pub fn max(&self) -> u64 {
        self.lower_bound_exceeded_by_at_most(0)
    }

    /// Returns the lower bound of the value that at most `n` of the times exceed, in nanoseconds.
    fn lower_bound_exceeded_by_at_most(&self, n: u64) -> u64 {
        let of_all = self.lateness.lower_bound(&self.tail, n);
        self.individual_bounds.as_ref().map_or(of_all, |(tail, _)| {
            let of_all = of_all.saturating_sub(MAX_UNRECORDED_DELAY_NS);
            of_all.max(tail.value_exceeded_by_at_most(n))
        })
    }

    /// Returns the lower bound of the mean, in nanoseconds.
    pub fn mean(&self) -> f64 {
        let of_each = self.lateness.sum_ns / self.tail.len.max(1) as f64;
        let of_all = (self.mean_ns - of_each).max(0.0);
        self.individual_bounds
            .as_ref()
            .map_or(of_all, |(_, mean_ns)| {
                (of_all - MAX_UNRECORDED_DELAY_NS as f64).max(*mean_ns)
            })
    }
}

fn mean_ns(times: &TimeHistogram) -> f64 {
    times.histogram().map_or(0.0, |h| h.mean())
}

/// Returns the lower bounds of the individual response times; `None` if not all of them are known.
pub(crate) fn response_lower_bounds(record: &StageRecord) -> Option<&TimeHistogram> {
    let least = &record.response_low;
    (!least.is_empty() && least.len() == record.response.len()).then_some(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Generates whole numbers below `below` from a seed.
    struct SeededRng(u64);

    impl SeededRng {
        fn below(&mut self, below: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        }
    }

    fn times(values: impl IntoIterator<Item = u64>) -> TimeHistogram {
        let mut times = TimeHistogram::default();
        values.into_iter().for_each(|ns| times.record(ns));
        times
    }

    #[test]
    fn tail_counts_match_histogram() {
        let mut random = SeededRng(1);
        let times = times((0..2_000).map(|_| random.below(50 * MS)));
        let tail = TailCounts::new(&times);
        for _ in 0..2_000 {
            let ns = random.below(60 * MS);
            assert_eq!(
                tail.count_longer_than(ns),
                times.count_longer_than(ns),
                "{ns}"
            );
        }
        let h = times.histogram().unwrap();
        for p in [0.5, 0.9, 0.95, 0.99, 0.999] {
            let on_time = LatenessBounds::default();
            let low = LowerBounds::new(&times, &on_time).quantile(p);
            assert_eq!(low, h.value_at_quantile(p), "{p}");
        }
    }

    #[test]
    fn lower_end_excludes_pause_delayed_calls() {
        let mut record = StageRecord::default();
        record.response.record_n(5 * MS, 900);
        record.response.record_n(50 * MS, 60);
        record.delayed.record_n(80 * MS, 70);
        let lateness = LatenessBounds::from_record(&record);
        assert_eq!(lateness.count_longer_than(79 * MS), 70);
        assert_eq!(lateness.count_longer_than(81 * MS), 0);
        let low = LowerBounds::new(&record.response, &lateness);
        assert_eq!(low.quantile(0.5) / MS, 5);
        assert_eq!(low.quantile(0.99) / MS, 5);
        assert_eq!(low.max() / MS, 5);
    }

    /// Journeys of 10 ms with four calls each, all of which were sent 0.3 ms late.
    #[test]
    fn journeys_sum_lateness_of_their_calls() {
        let mut record = StageRecord {
            longest_journey: 4,
            ..StageRecord::default()
        };
        record.pacing.record_n(300_000, 400);
        let journeys = times([11_200_000; 100]);
        let low = |record: &StageRecord| {
            let lateness = LatenessBounds::from_journeys(record);
            let low = LowerBounds::new(&journeys, &lateness);
            (low.quantile(0.5), low.quantile(0.99), low.mean() as u64)
        };
        // A histogram's bucket is up to 0.1 % wide.
        let is_near = |ns: u64| (9_950_000..=10_015_000).contains(&ns);
        let (p50, p99, mean) = low(&record);
        assert!(is_near(p50) && is_near(p99), "{p50} {p99}");
        assert!((9_980_000..10_010_000).contains(&mean), "{mean}");
        // Where the number of calls is not known, the sum of all lateness is still a bound.
        record.longest_journey = 0;
        let (p50, p99, _) = low(&record);
        assert!((8_000_000..10_000_000).contains(&p50), "{p50}");
        assert!(p99 < 10_000_000, "{p99}");
    }

    #[test]
    fn minimum_call_times_bound_lower_end() {
        let mut record = StageRecord::default();
        record.response.record_n(9 * MS, 100);
        // Any of the calls may have been late, but each is known to have been late by at most 2 ms.
        record.pacing.record_n(4 * MS, 100);
        record.response_low.record_n(7 * MS, 100);
        let lateness = LatenessBounds::from_record(&record);
        let low = LowerBounds::from_response_times(&record, &lateness);
        assert_eq!(low.quantile(0.5) / MS, 7);
        assert_eq!(low.max() / MS, 7);
        assert!((6.9e6..7.1e6).contains(&low.mean()));
        // One more call has no known lower bound, so none of them are used.
        record.response.record(9 * MS);
        record.pacing.record(4 * MS);
        let lateness = LatenessBounds::from_record(&record);
        let low = LowerBounds::from_response_times(&record, &lateness);
        assert_eq!(low.quantile(0.5) / MS, 5);
    }

    #[test]
    fn lower_end_excludes_late_reads_without_pauses() {
        let mut record = StageRecord::default();
        record.response.record_n(1_140_000, 100);
        record.pacing.record_n(4_000, 100);
        // Each answer was read 60 µs after it had come.
        record.response_low.record_n(1_076_000, 100);
        let lateness = LatenessBounds::from_record(&record);
        let low = LowerBounds::from_response_times(&record, &lateness);
        assert_eq!(low.quantile(0.5) / 10_000, 107);
        assert_eq!(low.max() / 10_000, 107);
        assert!((1.07e6..1.08e6).contains(&low.mean()), "{}", low.mean());
    }

    /// Calls are sent late and read late, by lengths that are not known for each call.
    #[test]
    fn lower_end_never_exceeds_truth() {
        for seed in 0..1_000 {
            let mut random = SeededRng(seed);
            let mut record = StageRecord::default();
            let mut truth = Vec::new();
            let (burst, worst) = (1 + random.below(40), 1 + random.below(20 * MS));
            for _ in 0..500 {
                let own = MS + random.below(4 * MS) * (1 + 20 * u64::from(random.below(50) == 0));
                let is_late = |random: &mut SeededRng| random.below(40) < burst;
                // The longest calls are late more often, which is the worst case.
                let sent = if is_late(&mut random) || own > 20 * MS {
                    random.below(worst)
                } else {
                    random.below(20_000)
                };
                let read = if is_late(&mut random) {
                    random.below(worst)
                } else {
                    0
                };
                record.pacing.record(sent);
                if read > 0 {
                    record.delayed.record(read);
                }
                record.response.record(own + sent + read);
                truth.push(own);
            }
            truth.sort_unstable();
            let lateness = LatenessBounds::from_record(&record);
            let low = LowerBounds::new(&record.response, &lateness);
            let high = record.response.histogram().unwrap();
            for p in [0.5, 0.9, 0.99] {
                let own = truth[(p * 500.0_f64).ceil() as usize - 1];
                let (low, high) = (low.quantile(p), high.value_at_quantile(p));
                // Histograms keep three digits.
                let range = low - low / 1_000..=high + high / 1_000;
                assert!(range.contains(&own), "seed {seed}, {p}: {own} {range:?}");
            }
            let mean = truth.iter().sum::<u64>() as f64 / 500.0;
            assert!(low.mean() <= mean * 1.001, "seed {seed}");
        }
    }
}

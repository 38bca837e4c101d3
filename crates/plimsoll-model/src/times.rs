//! A histogram of times, made when the first is recorded.

use std::fmt;

use hdrhistogram::Histogram;

/// The longest time a histogram resolves: one hour. Longer times count as one hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

/// Significant decimal digits kept of a time.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// A histogram of times in nanoseconds (1 ns to 1 h, 3 significant digits), which takes
/// memory (270 KB) only once something is recorded.
#[derive(Clone, Default)]
pub struct Times(Option<Histogram<u64>>);

impl Times {
    /// Count one time. Above an hour it counts as an hour.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram_mut().saturating_record(ns.min(LONGEST_NS));
    }

    /// Count one time `n` times.
    pub(crate) fn record_n(&mut self, ns: u64, n: u64) {
        self.histogram_mut()
            .saturating_record_n(ns.min(LONGEST_NS), n);
    }

    #[inline]
    fn histogram_mut(&mut self) -> &mut Histogram<u64> {
        self.0.get_or_insert_with(new_histogram)
    }

    /// The histogram, if anything was ever recorded.
    pub fn histogram(&self) -> Option<&Histogram<u64>> {
        self.0.as_ref().filter(|h| !h.is_empty())
    }

    /// How many times were recorded.
    pub fn len(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// No time was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many times are longer than `ns`, as far as the histogram's resolution goes.
    pub fn longer_than(&self, ns: u64) -> u64 {
        self.histogram().map_or(0, |h| {
            h.len() - h.count_between(0, ns.min(LONGEST_NS)).min(h.len())
        })
    }

    /// Add the counts of `other`.
    pub fn merge(&mut self, other: &Times) {
        if let Some(theirs) = other.histogram() {
            self.histogram_mut()
                .add(theirs)
                .expect("every histogram of times has the same bounds");
        }
    }

    /// Forget everything, keep the memory.
    pub fn clear(&mut self) {
        if let Some(histogram) = self.0.as_mut().filter(|h| !h.is_empty()) {
            histogram.reset();
        }
    }
}

impl From<&Histogram<u64>> for Times {
    /// The counts of `histogram`, whatever its bounds.
    fn from(histogram: &Histogram<u64>) -> Times {
        let mut times = Times::default();
        for bucket in histogram.iter_recorded() {
            times.record_n(bucket.value_iterated_to(), bucket.count_at_value());
        }
        times
    }
}

impl PartialEq for Times {
    fn eq(&self, other: &Times) -> bool {
        self.histogram() == other.histogram()
    }
}

impl fmt::Debug for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.histogram() {
            None => f.write_str("Times(empty)"),
            Some(h) => write!(f, "Times({} in {}..={} ns)", h.len(), h.min(), h.max()),
        }
    }
}

#[cold]
fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

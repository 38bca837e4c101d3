//! A histogram of times, whose memory is allocated when the first time is recorded.

use std::fmt;
use std::sync::OnceLock;

use hdrhistogram::Histogram;

/// The longest time that a histogram resolves: one hour. Longer times count as one hour.
pub const MAX_TIME_NS: u64 = 3_600_000_000_000;

/// Number of significant decimal digits of times.
pub const SIGNIFICANT_DIGITS: u8 = 3;

/// Maximum number of buckets of packed times; a larger number is merged faster as a histogram.
const MAX_PACKED_BUCKETS: usize = 1024;

/// A histogram of times in nanoseconds (1 ns to 1 h, 3 significant digits). Its memory (270 KB) is allocated with the
/// first recorded time. Times that were read from a file stay in a packed form until their histogram is needed. The
/// packed form takes memory only for their distinct values.
#[derive(Clone, Default)]
pub struct TimeHistogram(HistogramStorage);

#[derive(Clone, Default)]
enum HistogramStorage {
    #[default]
    None,
    Histogram(Histogram<u64>),
    Packed(Box<PackedHistogram>),
}

/// Times in a sparse form, as in a file.
#[derive(Clone, Default)]
struct PackedHistogram {
    /// A value of each non-empty bucket, ascending, with its count.
    buckets: Vec<(u64, u64)>,
    len: u64,
    /// The same times as a histogram, created when it is first needed.
    histogram: OnceLock<Histogram<u64>>,
}

impl PackedHistogram {
    fn histogram(&self) -> &Histogram<u64> {
        self.histogram.get_or_init(|| {
            let mut histogram = new_histogram();
            self.add_to_histogram(&mut histogram);
            histogram
        })
    }

    fn add_to_histogram(&self, histogram: &mut Histogram<u64>) {
        for (ns, n) in &self.buckets {
            histogram.saturating_record_n(*ns, *n);
        }
    }

    /// Returns the times of `self` and `other`, merged.
    fn merged_with(&self, other: &PackedHistogram) -> PackedHistogram {
        let mut buckets = Vec::with_capacity(self.buckets.len() + other.buckets.len());
        let (mut ours, mut theirs) = (&self.buckets[..], &other.buckets[..]);
        while let ([(a, n), rest_a @ ..], [(b, m), rest_b @ ..]) = (ours, theirs) {
            buckets.push((
                (*a).min(*b),
                if a <= b { *n } else { 0 } + if b <= a { *m } else { 0 },
            ));
            if a <= b {
                ours = rest_a;
            }
            if b <= a {
                theirs = rest_b;
            }
        }
        buckets.extend_from_slice(ours);
        buckets.extend_from_slice(theirs);
        PackedHistogram {
            buckets,
            len: self.len + other.len,
            histogram: OnceLock::new(),
        }
    }
}

impl TimeHistogram {
    /// Counts one time. A time above an hour counts as an hour.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram_mut().saturating_record(ns.min(MAX_TIME_NS));
    }

    /// Counts one time `n` times.
    pub(crate) fn record_n(&mut self, ns: u64, n: u64) {
        self.histogram_mut()
            .saturating_record_n(ns.min(MAX_TIME_NS), n);
    }

    #[inline]
    fn histogram_mut(&mut self) -> &mut Histogram<u64> {
        if !matches!(self.0, HistogramStorage::Histogram(_)) {
            self.unpack();
        }
        match &mut self.0 {
            HistogramStorage::Histogram(histogram) => histogram,
            HistogramStorage::None | HistogramStorage::Packed(_) => unreachable!("it was unpacked"),
        }
    }

    #[cold]
    fn unpack(&mut self) {
        let mut histogram = new_histogram();
        if let HistogramStorage::Packed(packed) = &self.0 {
            packed.add_to_histogram(&mut histogram);
        }
        self.0 = HistogramStorage::Histogram(histogram);
    }

    /// Calls `visit` with a time of each bucket, ascending, and the count of the bucket.
    pub(crate) fn for_each_bucket(&self, mut visit: impl FnMut(u64, u64)) {
        match &self.0 {
            HistogramStorage::None => {}
            HistogramStorage::Histogram(histogram) => histogram
                .iter_recorded()
                .for_each(|bucket| visit(bucket.value_iterated_to(), bucket.count_at_value())),
            HistogramStorage::Packed(packed) => {
                // The packed value of a bucket is converted to the greatest value in it, which a histogram reports.
                let buckets = packed.buckets.iter();
                buckets.for_each(|(ns, n)| visit(highest_in_bucket(*ns), *n));
            }
        }
    }

    /// Returns the histogram; `None`: nothing was recorded.
    pub fn histogram(&self) -> Option<&Histogram<u64>> {
        match &self.0 {
            HistogramStorage::None => None,
            HistogramStorage::Histogram(histogram) => Some(histogram).filter(|h| !h.is_empty()),
            HistogramStorage::Packed(packed) => Some(packed.histogram()),
        }
    }

    /// Returns the number of times.
    pub fn len(&self) -> u64 {
        match &self.0 {
            HistogramStorage::None => 0,
            HistogramStorage::Histogram(histogram) => histogram.len(),
            HistogramStorage::Packed(packed) => packed.len,
        }
    }

    /// Returns whether no time was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many times are longer than `ns`, within the histogram's resolution.
    pub fn count_longer_than(&self, ns: u64) -> u64 {
        self.histogram().map_or(0, |h| {
            h.len() - h.count_between(0, ns.min(MAX_TIME_NS)).min(h.len())
        })
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &TimeHistogram) {
        match (&mut self.0, &other.0) {
            (_, HistogramStorage::None) => {}
            (HistogramStorage::None, HistogramStorage::Packed(_)) => *self = other.clone(),
            (HistogramStorage::Packed(ours), HistogramStorage::Packed(theirs))
                if ours.buckets.len() + theirs.buckets.len() <= MAX_PACKED_BUCKETS =>
            {
                **ours = ours.merged_with(theirs);
            }
            (_, HistogramStorage::Packed(theirs)) => theirs.add_to_histogram(self.histogram_mut()),
            (_, HistogramStorage::Histogram(theirs)) if theirs.is_empty() => {}
            (_, HistogramStorage::Histogram(theirs)) => self
                .histogram_mut()
                .add(theirs)
                .expect("every histogram of times has the same bounds"),
        }
    }

    /// Removes all times and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.0 {
            HistogramStorage::Histogram(histogram) if !histogram.is_empty() => histogram.reset(),
            HistogramStorage::Histogram(_) | HistogramStorage::None => {}
            HistogramStorage::Packed(_) => self.0 = HistogramStorage::None,
        }
    }
}

impl FromIterator<(u64, u64)> for TimeHistogram {
    /// Collects times in nanoseconds, ascending, each with its count. The sum of the counts must fit into a `u64`.
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(counts: I) -> TimeHistogram {
        let mut packed = PackedTimes::default();
        for (ns, n) in counts {
            packed.push(ns, n);
        }
        packed.finish()
    }
}

/// Collects times that are read one after another, without a histogram in between.
#[derive(Default)]
pub(crate) struct PackedTimes(PackedHistogram);

impl PackedTimes {
    /// Adds a time in nanoseconds, not below the one before it, with its count. The sum of the counts must fit into a
    /// `u64`.
    #[inline]
    pub(crate) fn push(&mut self, ns: u64, n: u64) {
        if n == 0 {
            return;
        }
        let ns = lowest_in_bucket(ns.min(MAX_TIME_NS));
        self.0.len += n;
        match self.0.buckets.last_mut() {
            Some((last, count)) if *last == ns => *count += n,
            _ => self.0.buckets.push((ns, n)),
        }
    }

    /// Returns the histogram of all times.
    pub(crate) fn finish(self) -> TimeHistogram {
        if self.0.len == 0 {
            TimeHistogram::default()
        } else {
            TimeHistogram(HistogramStorage::Packed(Box::new(self.0)))
        }
    }
}

/// Returns the number of low-order bits of `ns` that the histogram does not resolve.
fn unresolved_bits(ns: u64) -> u32 {
    /// Values below the smallest power of two that is at least 2 · 10³ are exact.
    const EXACT_BITS: u32 = (2 * 10_u64.pow(SIGNIFICANT_DIGITS as u32))
        .next_power_of_two()
        .ilog2();
    (u64::BITS - ns.leading_zeros()).saturating_sub(EXACT_BITS)
}

/// Returns the lowest value in the bucket of `ns`, in the histogram's layout.
fn lowest_in_bucket(ns: u64) -> u64 {
    let bits = unresolved_bits(ns);
    ns >> bits << bits
}

/// Returns the highest value in the bucket of `ns`, in the histogram's layout.
fn highest_in_bucket(ns: u64) -> u64 {
    ns | ((1 << unresolved_bits(ns)) - 1)
}

impl PartialEq for TimeHistogram {
    fn eq(&self, other: &TimeHistogram) -> bool {
        self.histogram() == other.histogram()
    }
}

impl fmt::Debug for TimeHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.histogram() {
            None => f.write_str("Times(empty)"),
            Some(h) => write!(f, "Times({} in {}..={} ns)", h.len(), h.min(), h.max()),
        }
    }
}

#[cold]
fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_TIME_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that the histogram accepts")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times from below a microsecond to over an hour, some of them repeated.
    fn values(from: u64) -> Vec<(u64, u64)> {
        let mut ns = from;
        let grow = std::iter::from_fn(|| {
            ns += ns / 3 + 1;
            Some((ns, ns % 5))
        });
        grow.take_while(|(ns, _)| *ns < 2 * MAX_TIME_NS).collect()
    }

    fn recorded(values: &[(u64, u64)]) -> TimeHistogram {
        let mut times = TimeHistogram::default();
        for (ns, n) in values.iter().filter(|(_, n)| *n > 0) {
            times.record_n(*ns, *n);
        }
        times
    }

    #[test]
    fn bucket_bounds_match_histogram() {
        let histogram = new_histogram();
        for (ns, _) in values(0).into_iter().chain(values(2_040)) {
            let ns = ns.min(MAX_TIME_NS);
            assert_eq!(
                lowest_in_bucket(ns),
                histogram.lowest_equivalent(ns),
                "{ns}"
            );
            assert_eq!(
                highest_in_bucket(ns),
                histogram.highest_equivalent(ns),
                "{ns}"
            );
        }
    }

    #[test]
    fn packed_times_merge_like_recorded_times() {
        let parts = [values(0), values(17), values(1_000_000), Vec::new()];
        let mut all = TimeHistogram::default();
        let packed: Vec<TimeHistogram> =
            parts.iter().map(|p| p.iter().copied().collect()).collect();
        for (part, packed) in parts.iter().zip(&packed) {
            assert_eq!(*packed, recorded(part));
            assert_eq!(packed.len(), recorded(part).len());
            all.merge(&recorded(part));
        }
        let mut merged = TimeHistogram::default();
        packed.iter().for_each(|p| merged.merge(p));
        assert_eq!(merged, all);
        assert!(matches!(merged.0, HistogramStorage::Packed(_)));
        let mut mixed = recorded(&parts[2]);
        packed[..2].iter().for_each(|p| mixed.merge(p));
        assert_eq!(mixed, all);
        merged.record(5);
        all.record(5);
        assert_eq!(merged, all);
        let mut cleared = packed[0].clone();
        cleared.clear();
        assert!(cleared.is_empty() && cleared.histogram().is_none());
    }

    #[test]
    fn many_packed_buckets_convert_to_histogram() {
        let part = |from: u64| -> TimeHistogram { (from..from + 900).map(|ns| (ns, 1)).collect() };
        let mut merged = part(0);
        merged.merge(&part(450));
        assert!(matches!(merged.0, HistogramStorage::Histogram(_)));
        assert_eq!(merged.len(), 1_800);
    }
}

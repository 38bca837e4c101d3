//! The distribution of times: percentiles from 10 to 99, and counts in buckets whose bounds are round numbers.

use super::quantile::quantile;
use hdrhistogram::Histogram;

/// The percentiles that [`percentiles`] returns.
pub const PERCENTILE_RANKS: [u8; 11] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99];

/// Returns each of [`PERCENTILE_RANKS`] with its value; `None`: the sample is too small.
pub fn percentiles(histogram: &Histogram<u64>) -> impl Iterator<Item = (u8, Option<u64>)> {
    PERCENTILE_RANKS
        .into_iter()
        .map(|percent| (percent, quantile(histogram, f64::from(percent) / 100.0)))
}

/// The number of values above `from` and up to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The lower bound, exclusive.
    pub from: u64,
    /// The upper bound, inclusive.
    pub to: u64,
    /// The number of values.
    pub count: u64,
}

/// Returns at most `most` buckets from the smallest value to the largest. Their width is 1, 2 or 5 times a power of
/// ten. Empty buckets are included, so that the shape of the distribution is preserved. The counts add up to the
/// histogram's count.
pub fn buckets(histogram: &Histogram<u64>, most: u64) -> Vec<Bucket> {
    if histogram.is_empty() || most == 0 {
        return Vec::new();
    }
    let (min, max) = (histogram.min().saturating_sub(1), histogram.max());
    let mut widths = (0..19u32).flat_map(|power| [1, 2, 5].map(|m| m * 10u64.pow(power)));
    let fits = |width: &u64| max.div_ceil(*width) - min / *width <= most;
    let Some(width) = widths.find(fits) else {
        return Vec::new();
    };
    let first = min / width;
    let count = (max.div_ceil(width) - first).max(1);
    let mut buckets: Vec<Bucket> = (first..first + count)
        .map(|i| Bucket {
            from: i * width,
            to: (i + 1) * width,
            count: 0,
        })
        .collect();
    for value in histogram.iter_recorded() {
        // Within the histogram's resolution, a recorded value represents all values up to it.
        let at = value.value_iterated_to().div_ceil(width).saturating_sub(1);
        let at = at.clamp(first, first + count - 1) - first;
        buckets[at as usize].count += value.count_at_value();
    }
    buckets
}

/// The largest ratio of the largest value to the smallest at which [`spread_buckets`] have one width.
const MAX_LINEAR_RATIO: u64 = 10;

/// Returns at most `most` buckets, the first and the last of which are not empty. If the largest value is more than ten
/// times the smallest, the bounds grow as 1, 2, 5, 10, or as 1, 10, 100 where those are too many; otherwise the buckets
/// have one width, as those of [`buckets`].
pub fn spread_buckets(histogram: &Histogram<u64>, most: u64) -> Vec<Bucket> {
    let is_narrow = histogram.max() <= histogram.min().max(1).saturating_mul(MAX_LINEAR_RATIO);
    let growing = [&[1, 2, 5][..], &[1]]
        .into_iter()
        .filter(|_| !is_narrow && !histogram.is_empty())
        .find_map(|digits| growing_buckets(histogram, most, digits));
    let mut buckets = growing.unwrap_or_else(|| buckets(histogram, most));
    let end = buckets.iter().rposition(|bucket| bucket.count > 0);
    buckets.truncate(end.map_or(0, |end| end + 1));
    let empty = buckets.iter().take_while(|bucket| bucket.count == 0);
    let begin = empty.count();
    buckets.split_off(begin)
}

/// Returns buckets whose bounds are `digits` times powers of ten; `None` if there are more than `most`.
fn growing_buckets(histogram: &Histogram<u64>, most: u64, digits: &[u64]) -> Option<Vec<Bucket>> {
    let powers = (0..19_u32).map(|power| 10_u64.pow(power));
    let bounds: Vec<u64> = powers
        .flat_map(|power| digits.iter().map(move |digit| digit * power))
        .collect();
    let index_of = |value: u64| bounds.partition_point(|bound| *bound < value);
    let (first, last) = (index_of(histogram.min()), index_of(histogram.max()));
    if last >= bounds.len() || (last - first) as u64 >= most {
        return None;
    }
    let mut buckets: Vec<Bucket> = (first..=last)
        .map(|i| Bucket {
            from: if i == 0 { 0 } else { bounds[i - 1] },
            to: bounds[i],
            count: 0,
        })
        .collect();
    for value in histogram.iter_recorded() {
        let at = index_of(value.value_iterated_to()).clamp(first, last) - first;
        buckets[at].count += value.count_at_value();
    }
    Some(buckets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        for value in values {
            histogram.record(value).unwrap();
        }
        histogram
    }

    #[test]
    fn buckets_are_contiguous_and_complete() {
        assert!(buckets(&of([]), 10).is_empty());
        let one = buckets(&of([7]), 10);
        assert_eq!(one.iter().map(|b| b.count).sum::<u64>(), 1);
        assert!(one.iter().any(|b| b.from < 7 && 7 <= b.to && b.count == 1));
        let even = buckets(&of(1..=1000), 10);
        assert_eq!(even.len(), 10);
        assert!(even.iter().all(|b| b.to - b.from == 100 && b.count == 100));
        for (values, most) in [
            (vec![900_000_000, 905_000_000, 1_300_000_000], 12),
            (vec![1, 3_600_000_000_000], 20),
            (vec![100, 100, 100], 5),
        ] {
            let buckets = buckets(&of(values.iter().copied()), most);
            assert!(buckets.len() as u64 <= most, "{buckets:?}");
            let sum: u64 = buckets.iter().map(|b| b.count).sum();
            assert_eq!(sum, values.len() as u64, "{buckets:?}");
            assert!(buckets.windows(2).all(|two| two[0].to == two[1].from));
        }
    }

    #[test]
    fn wide_samples_have_growing_buckets() {
        let shape = |values: &[u64], most| {
            let buckets = spread_buckets(&of(values.iter().copied()), most);
            let shape: Vec<(u64, u64, u64)> =
                buckets.iter().map(|b| (b.from, b.to, b.count)).collect();
            shape
        };
        assert_eq!(
            shape(&[400, 900, 901, 1_500, 9_000], 12),
            [
                (200, 500, 1),
                (500, 1_000, 2),
                (1_000, 2_000, 1),
                (2_000, 5_000, 0),
                (5_000, 10_000, 1)
            ]
        );
        assert_eq!(
            shape(&[3, 900, 70_000], 5),
            [
                (1, 10, 1),
                (10, 100, 0),
                (100, 1_000, 1),
                (1_000, 10_000, 0),
                (10_000, 100_000, 1)
            ]
        );
        // One width where values are close together, and where even powers of ten are too many.
        assert_eq!(shape(&[510, 700], 2), [(500, 600, 1), (600, 700, 1)]);
        let sparse = spread_buckets(&of([1, 3_600_000_000_000]), 5);
        assert!(sparse.len() <= 5, "{sparse:?}");
        assert_eq!(sparse.iter().map(|b| b.count).sum::<u64>(), 2);
        assert!(spread_buckets(&of([]), 12).is_empty());
    }

    #[test]
    fn small_samples_omit_unsupported_percentiles() {
        let percents = |n: u64| {
            let histogram = of(1..=n);
            let found = percentiles(&histogram).filter(|(_, value)| value.is_some());
            found.map(|(percent, _)| percent).collect::<Vec<_>>()
        };
        assert!(percents(5).is_empty());
        assert!(percents(40).contains(&90) && !percents(40).contains(&99));
        assert_eq!(percents(1000), PERCENTILE_RANKS);
    }
}

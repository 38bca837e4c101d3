//! Statistics of times that are known only to lie between two bounds.

/// Lower and upper bounds of times, sorted separately, ns.
///
/// A statistic that increases with every time lies between the statistic of the lower bounds and that of the upper
/// bounds.
#[derive(Clone, Debug, Default)]
pub(super) struct TimeBounds {
    low: Vec<u64>,
    high: Vec<u64>,
}

impl TimeBounds {
    pub(super) fn from_times(times: impl Iterator<Item = [u64; 2]>) -> TimeBounds {
        let (mut low, mut high): (Vec<u64>, Vec<u64>) =
            times.map(|[low, high]| (low, high)).unzip();
        low.sort_unstable();
        high.sort_unstable();
        TimeBounds { low, high }
    }

    pub(super) fn len(&self) -> u64 {
        self.low.len() as u64
    }

    /// Returns the bounds of a percentile in µs, with the same rank as in histograms; `None` if there are no times.
    pub(super) fn percentile(&self, percent: f64) -> Option<[f64; 2]> {
        // Shrink the rank slightly: 99.9 % of 1,000 must give rank 999 in spite of rounding errors.
        let rank = percent * self.low.len() as f64 / 100.0 * (1.0 - 4.0 * f64::EPSILON);
        let rank = rank.ceil().max(1.0) as usize;
        let at = |ends: &[u64]| ends.get(rank - 1).map(|ns| *ns as f64 / 1e3);
        Some([at(&self.low)?, at(&self.high)?])
    }

    /// Returns the bounds of the mean in µs.
    pub(super) fn mean(&self) -> Option<[f64; 2]> {
        let mean = |ends: &[u64]| {
            let sum: f64 = ends.iter().map(|ns| *ns as f64).sum();
            sum / ends.len() as f64 / 1e3
        };
        (!self.low.is_empty()).then(|| [mean(&self.low), mean(&self.high)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_uses_histogram_rank() {
        let bounds = TimeBounds::from_times((1..=1000).rev().map(|n| [n * 1000, n * 1000 + 500]));
        assert_eq!(bounds.len(), 1000);
        assert_eq!(bounds.percentile(50.0), Some([500.0, 500.5]));
        assert_eq!(bounds.percentile(99.9), Some([999.0, 999.5]));
        assert_eq!(bounds.percentile(100.0), Some([1000.0, 1000.5]));
        assert_eq!(bounds.mean(), Some([500.5, 501.0]));
        assert_eq!(TimeBounds::default().percentile(50.0), None);
        assert_eq!(TimeBounds::default().mean(), None);
    }
}

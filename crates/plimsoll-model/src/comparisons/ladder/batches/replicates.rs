//! Separates differences of variants from differences of the particular processes that were measured.
//!
//! Two processes of one program differ for as long as they live: they have different physical pages, heaps and
//! placements on cores. More batches only measure that particular difference more precisely. So the servers of a ladder
//! are restarted several times, and each of these *replicates* gives one value of a difference. The spread of the
//! values contains everything that differs between replicates, so an interval of their location is valid for any
//! processes: Wilcoxon's interval, in which equal rungs differ no more often than alpha whatever the distribution, or
//! Student's where there are too few values for Wilcoxon's. A few values can be alike by chance, while the batches give
//! a lower bound of the uncertainty. Hence the wider of the two intervals is reported: it misses the true difference no
//! more often than the interval of replicates alone, whatever the processes' share of the variance.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::statistics::paired::{PairedDifference, paired_difference};

/// Minimum number of replicates: with fewer, the intervals would be several times wider.
pub const MIN_REPLICATES: usize = 5;

/// Widens `found`, the interval from the batches of all replicates, to the interval from one value per replicate, if
/// that one is wider. `None`: too few replicates have a value.
pub(super) fn widen_by_replicates(
    found: PairedDifference,
    replicates: usize,
    values: &[f64],
    alpha: f64,
) -> Option<PairedDifference> {
    if replicates < MIN_REPLICATES {
        return Some(found);
    }
    if values.len() < MIN_REPLICATES {
        return None;
    }
    let spread = paired_difference(values, alpha).or_else(|| student_interval(values, alpha))?;
    Some(PairedDifference {
        low: found.low.min(spread.low),
        high: found.high.max(spread.high),
        ..found
    })
}

/// Returns the mean of independent values with Student's interval. `None`: fewer than two values.
pub(super) fn student_interval(values: &[f64], alpha: f64) -> Option<PairedDifference> {
    let (n, shift) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - shift).powi(2)).sum();
    let students = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    let half = students.inverse_cdf(1.0 - alpha / 2.0) * (squares / (n - 1.0) / n).sqrt();
    Some(PairedDifference {
        shift,
        low: shift - half,
        high: shift + half,
    })
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

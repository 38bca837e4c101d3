//! How far a difference is that of two variants, and not only of the processes that were measured.
//!
//! Two processes of one program differ for as long as they live: each has physical pages, a heap and a
//! placement of its own. However many turns they take, their difference is known better and better, and is
//! theirs. So the servers of a ladder are started afresh several times, and each of these *sittings* has one
//! value of a difference. The values' spread holds all that differs between sittings, so an interval of their
//! location is one for whichever processes serve: Wilcoxon's, by which equal rungs differ no more often than
//! alpha however the values are distributed, and Student's where they are too few for that. Few values can be
//! alike by chance; turns show better than they do how well a difference is known at least. Hence the wider of
//! both intervals is stated: it misses the truth no more often than the sittings' own, whatever part of the
//! spread is the processes'.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::statistics::paired::{Paired, paired};

/// Fewer say too little of what processes differ by: their intervals would be several times wider.
pub const FEWEST_SITTINGS: usize = 5;

/// The interval of a difference, `found` in the turns of all sittings, with that of its values in each of
/// them. `None`: it is not known of enough of them.
pub(super) fn over(found: Paired, sittings: usize, values: &[f64], alpha: f64) -> Option<Paired> {
    if sittings < FEWEST_SITTINGS {
        return Some(found);
    }
    if values.len() < FEWEST_SITTINGS {
        return None;
    }
    let spread = paired(values, alpha).or_else(|| students(values, alpha))?;
    Some(Paired {
        low: found.low.min(spread.low),
        high: found.high.max(spread.high),
        ..found
    })
}

/// The mean of independent values, with Student's interval. `None`: fewer than two.
pub(super) fn students(values: &[f64], alpha: f64) -> Option<Paired> {
    let (n, shift) = (values.len() as f64, mean(values));
    let squares: f64 = values.iter().map(|value| (value - shift).powi(2)).sum();
    let students = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    let half = students.inverse_cdf(1.0 - alpha / 2.0) * (squares / (n - 1.0) / n).sqrt();
    Some(Paired {
        shift,
        low: shift - half,
        high: shift + half,
    })
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

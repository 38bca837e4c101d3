//! Finds the points at which a series of figures, one figure per run, changes its level.
//!
//! The candidates are those of Hunter (Fleming et al., *Hunter: Using Change Point Detection to Hunt for Performance
//! Regressions*, ICPE 2023), which Apache Otava continues: in windows of [`WINDOW_RUNS`] runs, each of which begins
//! half a window after the previous one or at the last candidate, the series is divided where the energy statistic of
//! E-divisive means is largest (Matteson and James, *A nonparametric approach for multiple change point analysis of
//! multivariate data*, JASA 2014, with α = 1), as long as Student's t-test of both parts has a p-value of at most
//! [`MAX_CANDIDATE_P_VALUE`]. Unlike in Hunter, the second part does not end with the window, but where the statistic
//! is largest, so that a change is also found if it is reverted later.
//!
//! Two steps differ from Hunter's, because histories of load tests have outliers. The statistic is that of ranks (Deb
//! and Sen, *Multivariate rank-based distribution-free nonparametric testing*, JASA 2023), so that a disturbed run has
//! no more weight than any other. And the candidates are judged by the permutation test of Matteson and James instead
//! of Hunter's t-test: the runs of the two neighbouring segments are shuffled, and the best position in each shuffled
//! series is compared with the candidate. A t-test would ignore that the position was chosen as the best one. As in
//! Hunter, the weakest candidate is removed until all are significant, because each removal changes the segments of its
//! neighbours. The remaining ones are moved by a few runs to where the figures themselves change most.
//!
//! [`MAX_FALSE_ALARM_PROBABILITY`] applies to the whole series, whatever its length: the permitted p-value is divided
//! by the number of windows (Bonferroni). The only assumption is that runs are exchangeable as long as nothing changes;
//! their figures may have any distribution. Everything is deterministic: the shuffles have a fixed seed. The time is
//! linear in the number of runs as long as nothing changes; each change costs [`SHUFFLES_PER_WINDOW`] shuffles per
//! window.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::rank::median_of_unsorted;

/// Number of runs in a window, and maximum number of runs on either side of a change by which it is judged.
pub const WINDOW_RUNS: usize = 50;

/// Minimum number of runs between two changes, and before the first and after the last one. With fewer, two disturbed
/// runs would count as a change.
pub const MIN_SEGMENT_RUNS: usize = 4;

/// Maximum number of runs by which a change is moved to its exact position.
const MAX_REFINEMENT_RUNS: usize = 5;

/// Maximum probability of finding a change in a series without one (0–1).
pub const MAX_FALSE_ALARM_PROBABILITY: f64 = 0.02;

/// Maximum p-value of the t-test of a candidate's ranks.
const MAX_CANDIDATE_P_VALUE: f64 = 0.01;

/// Minimum number of shuffles for a change to be significant.
const MIN_SHUFFLES: usize = 999;

/// Number of shuffles per window: enough for p-values down to half of the permitted one.
const SHUFFLES_PER_WINDOW: usize = 100;

/// A point at which a series changes its level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangePoint {
    /// The index of the first value after the change.
    pub index: usize,
    /// The index of the first value by which the change was judged, at most [`WINDOW_RUNS`] before the change and not
    /// before the previous change.
    pub first: usize,
    /// The index after the last value by which the change was judged, at most [`WINDOW_RUNS`] after the change and not
    /// after the next change.
    pub end: usize,
    /// The probability that a random order of these values has a position that looks at least as much like a change,
    /// times the number of windows of the series; at most [`MAX_FALSE_ALARM_PROBABILITY`].
    pub p_value: f64,
}

/// Returns the changes of `values`, in order.
///
/// A series with an infinite or NaN value is not analysed and has no changes.
pub fn change_points(values: &[f64]) -> Vec<ChangePoint> {
    if values.iter().any(|value| !value.is_finite()) {
        return Vec::new();
    }
    let windows = values.len().div_ceil(WINDOW_RUNS / 2);
    let candidates = remove_close_pairs(values, find_candidates(values));
    keep_significant_candidates(values, candidates, windows)
}

/// A position at which a series may change.
#[derive(Clone, Copy, Debug)]
struct CandidatePoint {
    index: usize,
    /// The end of the values after the position for which the energy statistic is largest.
    end: usize,
    /// The energy statistic of the values on both sides.
    energy: f64,
}

/// Returns the candidates of all windows, in order.
fn find_candidates(values: &[f64]) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    let mut start = 0;
    while start < values.len() {
        let end = (start + WINDOW_RUNS).min(values.len());
        let inside = find_candidates_in_window(&ranks(&values[start..end]));
        let last = inside.iter().max().map(|index| start + index);
        found.extend(inside.iter().map(|index| start + index));
        start = (start + WINDOW_RUNS / 2).max(last.unwrap_or(0));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Divides a window of ranks repeatedly, each time at the best position of all its parts, until the best position is
/// not a candidate.
fn find_candidates_in_window(window: &[f64]) -> Vec<usize> {
    let whole = 0..window.len();
    let mut parts = vec![whole];
    let mut found = Vec::new();
    loop {
        let best = parts.iter().enumerate().filter_map(|(i, part)| {
            let candidate = best_division(&window[part.clone()])?;
            Some((i, part.start, candidate))
        });
        // Of equally good candidates, the first is used.
        let best = best.reduce(|best, next| {
            if next.2.energy > best.2.energy {
                next
            } else {
                best
            }
        });
        let Some((part, first, candidate)) = best else {
            return found;
        };
        let (index, end) = (first + candidate.index, first + candidate.end);
        if t_test(&window[first..index], &window[index..end]) > MAX_CANDIDATE_P_VALUE {
            return found;
        }
        let end = parts[part].end;
        found.push(index);
        parts.splice(part..=part, [first..index, index..end]);
    }
}

/// Returns the position with the largest energy statistic of the values before it and of some values after it; `None`:
/// there are too few values. The values after it may end before the part does, so that a change is also found if it is
/// reverted later.
fn best_division(part: &[f64]) -> Option<CandidatePoint> {
    let n = part.len();
    // For each position, the sum of distances within the values before it, and that within the values from it to the
    // current end.
    let mut before = vec![0.0; n + 1];
    let mut after = vec![0.0; n + 1];
    let mut best: Option<CandidatePoint> = None;
    for end in 1..=n {
        let mut to_last = 0.0;
        for place in (0..end - 1).rev() {
            to_last += (part[place] - part[end - 1]).abs();
            after[place] += to_last;
        }
        before[end] = after[0];
        for place in MIN_SEGMENT_RUNS..=end.saturating_sub(MIN_SEGMENT_RUNS) {
            let within = [before[place], after[place]];
            let energy = energy_statistic([place, end - place], within, before[end]);
            if energy > best.map_or(0.0, |best| best.energy) {
                best = Some(CandidatePoint {
                    index: place,
                    end,
                    energy,
                });
            }
        }
    }
    best
}

/// Returns the energy statistic of two groups, given their sizes, the sums of distances within each group, and the sum
/// of all distances.
fn energy_statistic([n, m]: [usize; 2], [in_first, in_second]: [f64; 2], all: f64) -> f64 {
    let (n, m) = (n as f64, m as f64);
    let between = all - in_first - in_second;
    2.0 / (n + m)
        * (between - m / (n - 1.0).max(1.0) * in_first - n / (m - 1.0).max(1.0) * in_second)
}

/// Returns the p-value of Student's two-sided t-test for groups of equal variance.
fn t_test(a: &[f64], b: &[f64]) -> f64 {
    let mean = |group: &[f64]| group.iter().sum::<f64>() / group.len() as f64;
    let squares = |group: &[f64], mean: f64| group.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (n, m) = (a.len() as f64, b.len() as f64);
    let freedom = n + m - 2.0;
    let variance = (squares(a, mean_a) + squares(b, mean_b)) / freedom;
    let error = (variance * (1.0 / n + 1.0 / m)).sqrt();
    let difference = (mean_a - mean_b).abs();
    if difference == 0.0 || freedom < 1.0 {
        return 1.0;
    }
    if error == 0.0 {
        return 0.0;
    }
    StudentsT::new(0.0, 1.0, freedom).map_or(1.0, |t| 2.0 * t.sf(difference / error))
}

/// Removes candidates that are too close to another one, since overlapping windows may find the same change at two
/// positions. Of each pair, the candidate that better divides the values around both is kept.
fn remove_close_pairs(values: &[f64], mut candidates: Vec<usize>) -> Vec<usize> {
    let close = |found: &[usize]| {
        found
            .windows(2)
            .position(|w| w[1] - w[0] < MIN_SEGMENT_RUNS)
    };
    while let Some(i) = close(&candidates) {
        let first = i.checked_sub(1).map_or(0, |before| candidates[before]);
        let end = candidates.get(i + 2).copied().unwrap_or(values.len());
        let [a, b] = [candidates[i], candidates[i + 1]].map(|index| {
            let (first, end) = limit_to_window(first, index, end);
            ShuffledValues::new(&ranks(&values[first..end])).energy_at(index - first)
        });
        candidates.remove(if b > a { i } else { i + 1 });
    }
    candidates
}

/// Limits a segment on either side of `index` to the runs of a window.
fn limit_to_window(first: usize, index: usize, end: usize) -> (usize, usize) {
    let first = first.max(index.saturating_sub(WINDOW_RUNS));
    (first, end.min(index + WINDOW_RUNS))
}

/// Removes the weakest candidate repeatedly until all remaining ones are significant.
fn keep_significant_candidates(
    values: &[f64],
    candidates: Vec<usize>,
    windows: usize,
) -> Vec<ChangePoint> {
    let judge = |first: usize, index: usize, end: usize| {
        let (first, end) = limit_to_window(first, index, end);
        let p_value = permutation_test(&values[first..end], index - first, windows);
        ChangePoint {
            index,
            first,
            end,
            p_value,
        }
    };
    let neighbours = |all: &[usize], i: usize| {
        let first = i.checked_sub(1).map_or(0, |before| all[before]);
        (first, all.get(i + 1).copied().unwrap_or(values.len()))
    };
    let mut indices = candidates;
    let mut found: Vec<ChangePoint> = Vec::new();
    for i in 0..indices.len() {
        let (first, end) = neighbours(&indices, i);
        found.push(judge(first, indices[i], end));
    }
    loop {
        let weakest = (0..found.len()).reduce(|a, b| {
            if found[b].p_value > found[a].p_value {
                b
            } else {
                a
            }
        });
        let Some(weakest) = weakest.filter(|i| found[*i].p_value > MAX_FALSE_ALARM_PROBABILITY)
        else {
            return refine_positions(values, found);
        };
        indices.remove(weakest);
        found.remove(weakest);
        for i in [weakest.checked_sub(1), Some(weakest)]
            .into_iter()
            .flatten()
        {
            if i < found.len() {
                let (first, end) = neighbours(&indices, i);
                found[i] = judge(first, indices[i], end);
            }
        }
    }
}

/// Moves each change to the position within [`MAX_REFINEMENT_RUNS`] where the values differ least from the medians of both
/// sides (Bai, *Least absolute deviation estimation of a shift*, Econometric Theory 1995). Ranks alone can't
/// distinguish a small value before a drop from the values after it.
fn refine_positions(values: &[f64], mut found: Vec<ChangePoint>) -> Vec<ChangePoint> {
    for i in 0..found.len() {
        let previous = i.checked_sub(1).map_or(0, |before| found[before].index);
        let next = found.get(i + 1).map_or(values.len(), |after| after.index);
        let (first, end) = limit_to_window(previous, found[i].index, next);
        let index = found[i].index;
        let lowest = (first + MIN_SEGMENT_RUNS).max(index.saturating_sub(MAX_REFINEMENT_RUNS));
        let highest = (end - MIN_SEGMENT_RUNS).min(index + MAX_REFINEMENT_RUNS);
        let cost = |place: usize| {
            absolute_deviation(&values[first..place]) + absolute_deviation(&values[place..end])
        };
        let best = (lowest..=highest).map(|place| (place, cost(place)));
        let best = best.fold((index, cost(index)), |best, next| {
            if next.1 < best.1 { next } else { best }
        });
        found[i].index = best.0;
    }
    let indices: Vec<usize> = found.iter().map(|change| change.index).collect();
    for (i, change) in found.iter_mut().enumerate() {
        let previous = i.checked_sub(1).map_or(0, |before| indices[before]);
        let next = indices.get(i + 1).copied().unwrap_or(values.len());
        (change.first, change.end) = limit_to_window(previous, change.index, next);
    }
    found
}

/// Returns the sum of the distances between the values and their median.
fn absolute_deviation(values: &[f64]) -> f64 {
    let median = median_of_unsorted(values.to_vec()).unwrap_or(0.0);
    values.iter().map(|value| (value - median).abs()).sum()
}

/// Returns the probability that the best position in shuffled values is at least as good as `index` in `values`, times
/// the number of windows. Shuffling ends once the p-value is clearly too large (Besag and Clifford, *Sequential Monte
/// Carlo p-values*, 1991).
fn permutation_test(values: &[f64], index: usize, windows: usize) -> f64 {
    let n = values.len();
    if index < MIN_SEGMENT_RUNS || n - index < MIN_SEGMENT_RUNS {
        return 1.0;
    }
    let mut shuffle = ShuffledValues::new(&ranks(values));
    // The factor is a tolerance: sums of the same distances in another order differ in their last digits.
    let found = shuffle.energy_at(index) * (1.0 - 1e-9);
    if found <= 0.0 {
        return 1.0;
    }
    let shuffles = MIN_SHUFFLES.max(SHUFFLES_PER_WINDOW * windows);
    let permitted = MAX_FALSE_ALARM_PROBABILITY / windows as f64 * (shuffles + 1) as f64;
    let enough = permitted as usize + 10;
    let mut as_good = 0;
    for made in 1..=shuffles {
        shuffle.shuffle();
        as_good += usize::from(shuffle.best_energy() >= found);
        if as_good >= enough {
            return (as_good as f64 / made as f64 * windows as f64)
                .clamp(2.0 * MAX_FALSE_ALARM_PROBABILITY, 1.0);
        }
    }
    ((as_good + 1) as f64 / (shuffles + 1) as f64 * windows as f64).min(1.0)
}

/// Values that are shuffled repeatedly.
struct ShuffledValues {
    /// Each value, with the sum of its distances from all others.
    values: Vec<(f64, f64)>,
    order: Vec<f64>,
    all: f64,
    state: u64,
}

impl ShuffledValues {
    fn new(values: &[f64]) -> ShuffledValues {
        let distances = |value: &f64| {
            values
                .iter()
                .map(|other| (value - other).abs())
                .sum::<f64>()
        };
        let values: Vec<(f64, f64)> = values.iter().map(|v| (*v, distances(v))).collect();
        ShuffledValues {
            order: values.iter().map(|(value, _)| *value).collect(),
            all: values.iter().map(|(_, sum)| sum).sum::<f64>() / 2.0,
            values,
            state: 0,
        }
    }

    /// Shuffles the values once more (Fisher and Yates).
    fn shuffle(&mut self) {
        for i in (1..self.values.len()).rev() {
            let other = self.next_below(i + 1);
            self.values.swap(i, other);
        }
        for (place, (value, _)) in self.order.iter_mut().zip(&self.values) {
            *place = *value;
        }
    }

    /// Returns a random number below `below` (SplitMix64).
    fn next_below(&mut self, below: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * below as u128) >> 64) as usize
    }

    /// Calls `see` with each position that has enough values on both sides, and with its energy statistic.
    fn for_each_energy(&self, mut see: impl FnMut(usize, f64)) {
        let n = self.values.len();
        let (mut in_first, mut between) = (0.0, 0.0);
        for (i, (value, to_all)) in self.values.iter().enumerate() {
            let place = i + 1;
            let to_first = sum_of_distances(*value, &self.order[..i]);
            in_first += to_first;
            between += to_all - 2.0 * to_first;
            if place >= MIN_SEGMENT_RUNS && n - place >= MIN_SEGMENT_RUNS {
                let in_second = self.all - in_first - between;
                see(
                    place,
                    energy_statistic([place, n - place], [in_first, in_second], self.all),
                );
            }
        }
    }

    fn best_energy(&self) -> f64 {
        let mut best = 0.0_f64;
        self.for_each_energy(|_, energy| best = best.max(energy));
        best
    }

    fn energy_at(&self, index: usize) -> f64 {
        let mut at = 0.0;
        self.for_each_energy(|place, energy| {
            if place == index {
                at = energy;
            }
        });
        at
    }
}

/// Returns the sum of the distances between `value` and `others`. It is computed as four sums, which the processor can
/// add in parallel.
fn sum_of_distances(value: f64, others: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let chunks = others.chunks_exact(4);
    let rest: f64 = chunks
        .remainder()
        .iter()
        .map(|other| (value - other).abs())
        .sum();
    for chunk in chunks {
        for (sum, other) in sums.iter_mut().zip(chunk) {
            *sum += (value - other).abs();
        }
    }
    rest + sums.iter().sum::<f64>()
}

/// Returns the rank of each value, from 1; equal values have the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 + 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests;

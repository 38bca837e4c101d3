//! Estimates where the load line lies: a probability for every rate, given the results of all trials.
//!
//! Each trial is weighted by its information. A verdict shows on which side of its rate the line is, with an
//! uncertainty from the server's variation between trials and within the trial; the shorter the trial, the larger it is
//! (probabilistic bisection: Waeber, Frazier and Henderson 2013). A trial that measured the growth of the queue shows
//! the throughput: a server that is never idle completes calls at its capacity, and the queue is a random walk
//! reflected at zero (Harrison, *Brownian Motion and Stochastic Flow Systems*, 1.8).
//!
//! Either the line is the capacity, or objectives are missed at a rate below the capacity. Both hypotheses are kept
//! until trials decide between them. The variation between trials is also unknown, so the estimate averages over its
//! possible values.

use statrs::distribution::{ContinuousCDF, Normal};

use super::bounds::{is_beyond_generator_limit, is_contradicted};
use super::growth::{MAX_TOLERATED_GROWTH, critical_standard_errors};
use super::{SearchGoal, Trial, TrialPurpose, TrialVerdict};

/// The number of rate ranges (cells), and the maximum number of passes that make them narrower where their weight is
/// high.
const CELL_COUNT: usize = 128;
const MAX_PASSES: usize = 5;
/// The share of the cells that are placed where the line may be. The share [`CAPACITY_CELL_SHARE`] of the cells is
/// placed where the capacity may be, and the remaining cells cover all rates.
const LINE_CELL_SHARE: f64 = 0.5;
/// Cells are narrow enough when none has more of the total weight than this.
const MAX_CELL_WEIGHT: f64 = 0.03;
const CAPACITY_CELL_SHARE: f64 = 0.25;
/// Assumed standard deviations of the target between trials, in multiples of the precision, each with its prior
/// probability where throughput is measured. Otherwise all are equally probable.
const SPREAD_PRIORS: [(f64, f64); 4] = [(0.05, 0.45), (0.3, 0.4), (1.5, 0.12), (7.0, 0.03)];
/// A probability that is too low to make a difference.
const NEGLIGIBLE_PROBABILITY: f64 = 1e-7;
/// Probability that a trial is uninformative because the machine hiccuped.
const HICCUP_PROBABILITY: f64 = 0.005;
/// The prior probability that the line is the capacity, and the same probability if no trial missed the objectives and
/// only queues grew.
const CAPACITY_PRIOR: f64 = 0.6;
const CAPACITY_PRIOR_WITHOUT_MISSES: f64 = 0.97;
/// Highest capacity that is considered, in multiples of a line below it.
const MAX_CAPACITY_RATIO: f64 = 4.0;
/// If the offered rate exceeds the throughput by more than this factor, the overloaded server may carry less than its
/// capacity, so the trial only hints at the capacity.
pub(super) const OVERLOAD_RATIO: f64 = 1.25;
/// How far an overloaded target's throughput may be below its capacity, as a share, while objectives are still met.
const OVERLOAD_UNCERTAINTY: f64 = 0.04;
/// Growth below this many standard errors is not a sign of a queue.
const MIN_GROWTH_STANDARD_ERRORS: f64 = 1.0;

/// The information from one trial.
struct TrialEvidence {
    rate: f64,
    /// Whether the objectives were met; `None`: a longer trial contradicts the verdict.
    met: Option<bool>,
    /// Whether the queue grew, and whether it grew although the objectives were met.
    grew: bool,
    only_grew: bool,
    /// The growth of the queue and its first reading, relative to the rate; `None`: the trial does not measure the
    /// capacity.
    growth: Option<f64>,
    first: f64,
    /// Variance of the throughput within the trial, relative to the rate.
    within: f64,
    /// Factor by which the standard deviation between trials applies to this trial; it is lower for longer trials.
    spread_factor: f64,
}

/// A range of rates (as logarithms), with weights of the hypotheses about it.
#[derive(Clone, Copy)]
struct RateCell {
    from: f64,
    to: f64,
    /// The weight of the hypothesis that the capacity is the line and lies in this range, and the weight of a line in
    /// this range that is below the capacity.
    capacity: f64,
    below: f64,
    /// The likelihood of the measured throughput for a capacity in this range.
    throughput_likelihood: f64,
}

impl RateCell {
    fn middle(&self) -> f64 {
        f64::midpoint(self.from, self.to)
    }

    fn width(&self) -> f64 {
        self.to - self.from
    }

    fn line_weight(&self) -> f64 {
        self.capacity + self.below
    }
}

/// For each rate, the probability that it is the load line.
pub(super) struct LoadLineEstimate {
    /// The cells in ascending order of rate; their weights add up to 1.
    cells: Vec<RateCell>,
    /// The target's standard deviation between trials, relative to the rate.
    spread: f64,
    dispersion: f64,
    /// Largest growth of a queue that is tolerated, relative to the rate: a fixed share of the search's precision.
    tolerated_growth: f64,
    trial_s: f64,
}

impl LoadLineEstimate {
    /// Estimates the line from `trials`; `None`: all trials are on the same side of the line.
    pub(super) fn new(goal: &SearchGoal, trials: &[Trial]) -> Option<LoadLineEstimate> {
        LoadLineEstimate::from_trials(goal, trials, false)
    }

    /// Estimates like [`LoadLineEstimate::new`], but also counts trials that longer trials contradict.
    pub(super) fn with_contradicted_trials(
        goal: &SearchGoal,
        trials: &[Trial],
    ) -> Option<LoadLineEstimate> {
        LoadLineEstimate::from_trials(goal, trials, true)
    }

    fn from_trials(
        goal: &SearchGoal,
        trials: &[Trial],
        outlasted: bool,
    ) -> Option<LoadLineEstimate> {
        let dispersion = estimate_dispersion(trials);
        let evidence = collect_evidence(goal, trials, dispersion, outlasted);
        let sides = |met| {
            let rates = evidence.iter().filter(move |e| e.met == Some(met));
            rates.map(|e| e.rate)
        };
        let highest_met = sides(true).max_by(f64::total_cmp)?;
        let lowest_missed = sides(false).min_by(f64::total_cmp)?;
        let highest = evidence
            .iter()
            .filter(|e| e.growth.is_some())
            .map(|e| e.rate)
            .fold(highest_met.max(lowest_missed), f64::max);
        let from = (highest_met.min(lowest_missed) * 0.6).ln();
        let to = (highest * 1.4).ln();
        let edge = |i: usize| from + (to - from) * i as f64 / CELL_COUNT as f64;
        let mut edges: Vec<f64> = (0..=CELL_COUNT).map(edge).collect();
        let (mut cells, mut spread) = weigh_cells(goal, &evidence, &edges);
        for pass in 1..MAX_PASSES {
            let heaviest = cells.iter().map(RateCell::line_weight).fold(0.0, f64::max);
            let fine =
                heaviest < MAX_CELL_WEIGHT * cells.iter().map(RateCell::line_weight).sum::<f64>();
            // At least three passes, because the first, coarse passes may have missed a peak.
            if fine && pass > 2 {
                break;
            }
            edges = refine_cell_edges(&cells);
            (cells, spread) = weigh_cells(goal, &evidence, &edges);
        }
        let all: f64 = cells.iter().map(RateCell::line_weight).sum();
        for cell in &mut cells {
            cell.capacity /= all;
            cell.below /= all;
        }
        (all > 0.0).then_some(LoadLineEstimate {
            cells,
            spread,
            dispersion,
            tolerated_growth: MAX_TOLERATED_GROWTH * goal.precision,
            trial_s: goal.trial_s,
        })
    }

    /// Returns the rate below which the line lies with probability `share`.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let mut sum = 0.0;
        for cell in &self.cells {
            let weight = cell.line_weight();
            if weight > 0.0 && sum + weight >= share {
                let part = ((share - sum) / weight).clamp(0.0, 1.0);
                return (cell.from + cell.width() * part).exp();
            }
            sum += weight;
        }
        self.cells.last().map_or(0.0, |cell| cell.to.exp())
    }

    /// Returns the width of the central interval of probability `share`, relative to its median.
    pub(super) fn width(&self, share: f64) -> f64 {
        let tail = (1.0 - share) / 2.0;
        (self.quantile(1.0 - tail) - self.quantile(tail)) / self.quantile(0.5)
    }

    /// Returns the probability that the line is the capacity.
    pub(super) fn capacity_probability(&self) -> f64 {
        self.cells.iter().map(|c| c.capacity).sum()
    }

    /// Returns the standard error of the throughput over `calls` calls, relative to the rate.
    pub(super) fn standard_error(&self, calls: f64) -> f64 {
        (self.dispersion / calls.max(1.0)).sqrt()
    }

    /// Predicts trials of this length at rates near `middle`.
    pub(super) fn predict_trials(&self, middle: f64, length_s: f64) -> TrialPrediction<'_> {
        let mood = self.spread * (self.trial_s / length_s).sqrt();
        let within = self.standard_error(middle * length_s);
        let blur = within.hypot(mood).max(1e-9);
        TrialPrediction {
            lines: self
                .cells
                .iter()
                .filter(|c| c.line_weight() > NEGLIGIBLE_PROBABILITY)
                .collect(),
            blur,
            insignificant_growth: (self.tolerated_growth
                + critical_standard_errors(length_s.floor().max(3.0)) * within)
                / blur,
            measured: self.dispersion > 0.0,
        }
    }
}

/// Predicted results of trials.
pub(super) struct TrialPrediction<'a> {
    lines: Vec<&'a RateCell>,
    /// The standard deviation of the throughput, relative to the rate.
    blur: f64,
    /// The largest growth that is not yet significant, in standard deviations.
    insignificant_growth: f64,
    /// Whether trials measure the growth of queues.
    measured: bool,
}

impl TrialPrediction<'_> {
    /// Returns the probability that a trial at `rate` meets the objectives, and the probability that, in addition, the
    /// rate is within `near` of the line, relative to the line.
    pub(super) fn pass_probabilities(&self, rate: f64, near: f64) -> (f64, f64) {
        let normal = Normal::standard();
        let at = rate.ln();
        // The lowest and the highest line (as logarithms) that are within `near` of the rate.
        let least = (rate / (1.0 + near)).ln();
        let most = (rate / (1.0 - near).max(f64::MIN_POSITIVE)).ln();
        let (mut passes, mut succeeds) = (0.0, 0.0);
        for cell in &self.lines {
            let room = (cell.middle() - at) / self.blur;
            let carries = if self.measured {
                reflected_walk_cdf(&normal, 0.0, self.insignificant_growth, -room)
            } else {
                normal.cdf(room + self.insignificant_growth)
            };
            let capacity = cell.capacity * carries;
            let chance = capacity + cell.below * normal.cdf(room);
            let inside = cell.to.min(most) - cell.from.max(least);
            passes += chance;
            succeeds += chance * (inside / cell.width()).clamp(0.0, 1.0);
        }
        (passes, succeeds)
    }
}

/// Returns the variance of the throughput in a second, relative to its mean (the squared coefficient of variation of
/// service times), from the trials in which the server was never idle.
fn estimate_dispersion(trials: &[Trial]) -> f64 {
    // Before there is data, assume a value between those of constant and exponential service times.
    let (mut squares, mut degrees) = (0.5, 1.0);
    if trials.iter().all(|t| t.growth.is_none()) {
        return 0.0;
    }
    for trial in trials {
        let Some(growth) = trial.growth else { continue };
        let n = f64::from(growth.increments);
        let carried = (trial.rate_per_s - growth.per_s).max(1.0);
        let own = growth.error_per_s.powi(2) * n / carried * (n - 1.0);
        if growth.per_s > growth.error_per_s * MIN_GROWTH_STANDARD_ERRORS {
            squares += own;
            degrees += n - 1.0;
        }
    }
    squares / degrees
}

fn collect_evidence(
    goal: &SearchGoal,
    trials: &[Trial],
    dispersion: f64,
    outlasted: bool,
) -> Vec<TrialEvidence> {
    let mut all: Vec<TrialEvidence> = Vec::new();
    for trial in trials.iter().filter(|t| t.purpose != TrialPurpose::Curve) {
        let met = match &trial.verdict {
            TrialVerdict::Met => true,
            TrialVerdict::Missed { .. } | TrialVerdict::Growing => false,
            TrialVerdict::GeneratorLimited { .. }
                if is_beyond_generator_limit(trials, trial.rate_per_s) =>
            {
                false
            }
            TrialVerdict::GeneratorLimited { .. } | TrialVerdict::TooFewCalls { .. } => continue,
        };
        let limited = matches!(trial.verdict, TrialVerdict::GeneratorLimited { .. });
        let growth = trial.growth.filter(|_| !limited);
        let clear = growth.is_some_and(|g| g.is_significant(trial.rate_per_s, goal.precision));
        let carried = growth.map_or(trial.rate_per_s, |g| trial.rate_per_s - g.per_s);
        let overloaded = trial.rate_per_s > OVERLOAD_RATIO * carried;
        let only_grew = trial.verdict == TrialVerdict::Growing;
        let measures = growth.filter(|_| carried > 0.0 && (only_grew || !overloaded));
        let calls = measures.map(|g| carried * f64::from(g.increments));
        let doubt = if overloaded {
            OVERLOAD_UNCERTAINTY
        } else {
            0.0
        };
        all.push(TrialEvidence {
            rate: trial.rate_per_s,
            met: (!met || outlasted || !is_contradicted(trials, trial)).then_some(met),
            grew: clear,
            only_grew,
            growth: measures.map(|g| g.per_s / trial.rate_per_s),
            first: measures.map_or(0.0, |g| {
                g.first / f64::from(g.increments) / trial.rate_per_s
            }),
            within: calls.map_or(0.0, |n| dispersion / n + 0.25 / (n * n) + doubt * doubt),
            spread_factor: (goal.trial_s / trial.length_s).sqrt(),
        });
    }
    all
}

/// Returns the edges of the same number of new cells, which are narrower where there is more weight.
fn refine_cell_edges(cells: &[RateCell]) -> Vec<f64> {
    let sum = |of: fn(&RateCell) -> f64| cells.iter().map(of).sum::<f64>();
    let (line, carried, width) = (
        sum(RateCell::line_weight),
        sum(|c| c.throughput_likelihood),
        sum(RateCell::width),
    );
    let part = |weight: f64, of: f64| if of > 0.0 { weight / of } else { 0.0 };
    let wanted = |cell: &RateCell| {
        LINE_CELL_SHARE * part(cell.line_weight(), line)
            + CAPACITY_CELL_SHARE * part(cell.throughput_likelihood, carried)
            + (1.0 - LINE_CELL_SHARE - CAPACITY_CELL_SHARE) * part(cell.width(), width)
    };
    let step = cells.iter().map(wanted).sum::<f64>() / CELL_COUNT as f64;
    let mut edges: Vec<f64> = cells.iter().take(1).map(|c| c.from).collect();
    let mut sum = 0.0;
    for cell in cells {
        let share = wanted(cell);
        while edges.len() < CELL_COUNT && sum + share >= step * edges.len() as f64 {
            let part = (step * edges.len() as f64 - sum) / share;
            edges.push(cell.from + cell.width() * part);
        }
        sum += share;
    }
    edges.extend(cells.last().map(|c| c.to));
    edges
}

/// Returns the cells between `edges` with their weights, and the mean standard deviation between trials.
fn weigh_cells(
    goal: &SearchGoal,
    evidence: &[TrialEvidence],
    edges: &[f64],
) -> (Vec<RateCell>, f64) {
    let normal = Normal::standard();
    let sure = |p: f64| HICCUP_PROBABILITY + (1.0 - HICCUP_PROBABILITY) * p;
    let mut cells: Vec<RateCell> = edges
        .windows(2)
        .map(|edge| RateCell {
            from: edge[0],
            to: edge[1],
            capacity: 0.0,
            below: 0.0,
            throughput_likelihood: 0.0,
        })
        .collect();
    let grid: Vec<f64> = cells.iter().map(RateCell::middle).collect();
    let (mut spreads, mut total) = (0.0, 0.0);
    let measured = evidence
        .iter()
        .any(|e| e.growth.is_some_and(|g| g > e.within.sqrt()));
    let missed = evidence
        .iter()
        .any(|e| e.met == Some(false) && !e.only_grew);
    let capacity_prior = if missed {
        CAPACITY_PRIOR
    } else {
        CAPACITY_PRIOR_WITHOUT_MISSES
    };
    for (share, prior) in SPREAD_PRIORS {
        let prior = if measured { prior } else { 1.0 };
        let spread = share * goal.precision;
        // Likelihoods for each rate. `carried`: of the measured throughput, if the rate is the capacity. `as_capacity`:
        // of the verdicts, if the rate is both the line and the capacity. `as_below`: of the verdicts, if the rate is
        // the line and the capacity is higher.
        let mut carried = vec![1.0_f64; grid.len()];
        let mut as_capacity = vec![1.0_f64; grid.len()];
        let mut as_below = vec![1.0_f64; grid.len()];
        for e in evidence {
            let blur = (e.within + (spread * e.spread_factor).powi(2)).sqrt();
            let at = e.rate.ln();
            for (i, x) in grid.iter().enumerate() {
                if let Some(growth) = e.growth {
                    let drift = 1.0 - (x - at).exp();
                    let queue = (e.first, e.first + growth);
                    carried[i] *= walk_density(&normal, queue, e.within.sqrt(), drift, blur);
                }
                let Some(met) = e.met else { continue };
                let room = if met { x - at } else { at - x } / blur;
                let side = sure(normal.cdf(room));
                as_below[i] *= side;
                // If the growth is known, it determines the capacity, so the verdict is not needed for that.
                if e.growth.is_none() || (!met && !e.grew) {
                    as_capacity[i] *= side;
                }
            }
        }
        // For a line below the capacity, the capacity may be anywhere above the line.
        let mut above = 0.0;
        for (i, cell) in cells.iter_mut().enumerate().rev() {
            let carried = carried[i] * cell.width();
            above += carried;
            let capacity = prior * capacity_prior * as_capacity[i] * carried;
            let below = prior * (1.0 - capacity_prior) * as_below[i] * above * cell.width()
                / MAX_CAPACITY_RATIO.ln();
            cell.capacity += capacity;
            cell.below += below;
            cell.throughput_likelihood += carried;
            spreads += spread * (capacity + below);
            total += capacity + below;
        }
    }
    (cells, if total > 0.0 { spreads / total } else { 0.0 })
}

/// Returns the probability that a random walk ends at `end` or below. The walk starts at `first`, has drift `drift` and
/// standard deviation 1, and is reflected at zero.
fn reflected_walk_cdf(normal: &Normal, first: f64, end: f64, drift: f64) -> f64 {
    normal.cdf(end - first - drift) - reflection_term(normal, first, end, drift)
}

/// Returns e^(2·drift·end) · Φ(−end − first − drift), computed so that the first factor does not overflow.
fn reflection_term(normal: &Normal, first: f64, end: f64, drift: f64) -> f64 {
    match end + first + drift {
        far if far > 5.0 => (2.0 * drift * end - far * far / 2.0).exp() / far / SQRT_TWO_PI,
        far => (2.0 * drift * end).exp() * normal.cdf(-far),
    }
}

/// Returns the density with which a reflected random walk of standard deviation `blur` moves from the first to the
/// second value of `queue`; if the second is below `least`, the probability of ending below `least`. All values are
/// relative to the rate.
fn walk_density(normal: &Normal, queue: (f64, f64), least: f64, drift: f64, blur: f64) -> f64 {
    let density = |z: f64| (-z * z / 2.0).exp() / SQRT_TWO_PI;
    let (first, end, drift) = (queue.0 / blur, queue.1 / blur, drift / blur);
    let p = if queue.1 < least {
        reflected_walk_cdf(normal, first, least / blur, drift)
    } else {
        let straight = density(end - first - drift);
        let back = (-2.0 * drift * first - (end + first - drift).powi(2) / 2.0).exp() / SQRT_TWO_PI;
        (straight + back - 2.0 * drift * reflection_term(normal, first, end, drift)) / blur
    };
    HICCUP_PROBABILITY / 10.0 + (1.0 - HICCUP_PROBABILITY) * p.max(0.0)
}

/// √(2π)
const SQRT_TWO_PI: f64 = 2.506_628_274_631;

#[cfg(test)]
mod tests {
    use super::*;

    /// A walk ends at a value that is too small to resolve, or at one above that.
    #[test]
    fn walk_end_probabilities_sum_to_one() {
        let normal = Normal::standard();
        let least = 0.02;
        for (first, drift, blur) in [
            (0.0, 0.3, 0.2),
            (0.4, -0.3, 0.25),
            (1.0, 0.0, 0.5),
            (0.1, 1.0, 0.1),
        ] {
            let p = |end: f64| walk_density(&normal, (first, end), least, drift, blur);
            let step = blur / 400.0;
            let above: f64 = (0..8_000)
                .map(|n| p(least + (f64::from(n) + 0.5) * step) * step)
                .sum();
            // The probability of hiccups is spread over all ends and belongs to no single one.
            let whole = p(0.0) + above - HICCUP_PROBABILITY / 10.0 * (1.0 + 8_000.0 * step);
            assert!(
                (whole - (1.0 - HICCUP_PROBABILITY)).abs() < 0.01,
                "{first}, {drift}, {blur}: {whole}"
            );
        }
    }
}

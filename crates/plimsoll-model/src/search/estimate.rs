//! Where the line lies, given how all trials ended: a probability for every rate.
//!
//! Each trial weighs as much as it knows. One that met the objectives, or missed them, says on
//! which side of its rate the line is, blurred by the server's spread from trial to trial and
//! within the trial: the shorter, the more (probabilistic bisection: Waeber, Frazier and Henderson
//! 2013). One that measured how the queue grew says what the target carried: while a server is
//! never idle it ends as many calls as it can, and the queue it leaves is a random walk that is
//! reflected at zero (Harrison, *Brownian Motion and Stochastic Flow Systems*, 1.8).
//!
//! The line is either the capacity, or objectives break below it; both are held possible until
//! the trials tell them apart. Their spread is not known either: it is averaged over.

use statrs::distribution::{ContinuousCDF, Normal};

use super::bounds::{is_generators, is_outlasted};
use super::growth::SMALL;
use super::{Goal, Purpose, Trial, Verdict};

/// Rates that are weighed at once, and how often the range is narrowed to where the weight is.
const RATES: usize = 140;
const PASSES: usize = 6;
/// Rates with less weight than this, relative to the heaviest, are left out.
const LEAST_WEIGHT: f64 = 1e-6;
/// Spreads of the target from trial to trial that are held possible, in parts of the precision,
/// and how probable they are before any trial, where what it carries is measured. Where it isn't,
/// one is as probable as another.
const SPREADS: [(f64, f64); 4] = [(0.05, 0.45), (0.3, 0.4), (1.5, 0.12), (7.0, 0.03)];
/// A trial says nothing this often: the machine hiccuped.
const HICCUP: f64 = 0.005;
/// The chance, before any trial, that the line is the capacity; and where every rate that was too
/// high met the objectives all the same, and only its queue grew.
const CAPACITY: f64 = 0.6;
const ONLY_GREW: f64 = 0.97;
/// A capacity lies at most so many times above a line that isn't one.
const HIGHEST_CAPACITY: f64 = 4.0;
/// What a server carries when more than this many times as much is asked of it may be less than
/// it can: such a trial is a hint where to look, and no measurement.
pub(super) const OVERLOAD: f64 = 1.25;
/// How far from what it can that may be where objectives are met all the same, in parts of it.
const OVERLOADED_DOUBT: f64 = 0.04;
/// Less growth than this, in standard errors, shows no queue.
const NO_GROWTH: f64 = 1.0;
/// The confirmation's trend test in standard errors, about.
const TREND_ROOM: f64 = 2.3;

/// What a trial knows.
struct Evidence {
    rate: f64,
    /// Its side of the line; `None`: a longer trial said otherwise.
    met: Option<bool>,
    /// Its queue grew; and it met the objectives all the same.
    grew: bool,
    only_grew: bool,
    /// Of the queue, in parts of the rate, where it measures the capacity.
    growth: Option<f64>,
    /// Variance of what was carried within the trial, in parts of the rate.
    within: f64,
    /// How the spread from trial to trial evens out with its length.
    mood: f64,
}

/// The probability of every rate to be the line.
pub(super) struct Estimate {
    /// Rate, and its weight as the capacity and as a line below it. Weights add up to 1.
    rates: Vec<(f64, f64, f64)>,
    /// Of the target from trial to trial, in parts of the rate.
    spread: f64,
    dispersion: f64,
    /// Growth that is within the precision, in parts of the rate.
    unseen: f64,
    trial_s: f64,
}

impl Estimate {
    /// `outlasted`: trials count though longer ones said otherwise. `None`: nothing is known of
    /// one side.
    pub(super) fn of(goal: &Goal, trials: &[Trial], outlasted: bool) -> Option<Estimate> {
        let dispersion = dispersion(trials);
        let evidence = evidence(goal, trials, dispersion, outlasted);
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
        let mut from = (highest_met.min(lowest_missed) * 0.6).ln();
        let mut to = (highest * 1.4).ln();
        let mut weighed = Vec::new();
        let mut spread = 0.0;
        for _ in 0..PASSES {
            let step = (to - from) / (RATES - 1) as f64;
            let grid: Vec<f64> = (0..RATES).map(|i| from + step * i as f64).collect();
            (weighed, spread) = weigh(goal, &evidence, &grid, step);
            let heaviest = weighed.iter().map(|w| w.1 + w.2).fold(0.0, f64::max);
            let carries = weighed.iter().map(|w| w.3).fold(0.0, f64::max);
            let heavy = |w: &(f64, f64, f64, f64)| {
                w.1 + w.2 > LEAST_WEIGHT * heaviest || w.3 > LEAST_WEIGHT * carries && carries > 0.0
            };
            let first = weighed
                .iter()
                .position(|w| w.1 + w.2 > LEAST_WEIGHT * heaviest);
            let last = weighed.iter().rposition(heavy);
            let (Some(first), Some(last)) = (first, last) else {
                break;
            };
            let narrower = (
                grid[first.saturating_sub(1)],
                grid[(last + 1).min(RATES - 1)],
            );
            let fine = step < goal.precision * SPREADS[0].0 / 2.0;
            if fine || narrower.1 - narrower.0 > 0.8 * (to - from) {
                break;
            }
            (from, to) = narrower;
        }
        let all: f64 = weighed.iter().map(|w| w.1 + w.2).sum();
        (all > 0.0).then(|| Estimate {
            rates: weighed
                .into_iter()
                .map(|(x, capacity, below, _)| (x.exp(), capacity / all, below / all))
                .collect(),
            spread,
            dispersion,
            unseen: SMALL * goal.precision,
            trial_s: goal.trial_s,
        })
    }

    /// The rate below which the line lies with this probability.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let mut sum = 0.0;
        let mut before = self.rates[0].0;
        for (rate, capacity, below) in &self.rates {
            let weight = capacity + below;
            if sum + weight >= share {
                let part = ((share - sum) / weight).clamp(0.0, 1.0);
                return before + (rate - before) * part;
            }
            sum += weight;
            before = *rate;
        }
        before
    }

    /// How wide the middle `share` of the probability is, in parts of its median.
    pub(super) fn width(&self, share: f64) -> f64 {
        let tail = (1.0 - share) / 2.0;
        (self.quantile(1.0 - tail) - self.quantile(tail)) / self.quantile(0.5)
    }

    /// The probability that the line is the capacity.
    pub(super) fn is_capacity(&self) -> f64 {
        self.rates.iter().map(|r| r.1).sum()
    }

    /// The standard error of what is carried within so many calls, in parts of the rate.
    pub(super) fn within(&self, calls: f64) -> f64 {
        (self.dispersion / calls.max(1.0)).sqrt()
    }

    /// The probability that a trial meets the objectives.
    pub(super) fn passes(&self, rate: f64, length_s: f64) -> f64 {
        let mood = self.spread * (self.trial_s / length_s).sqrt();
        let within = self.within(rate * length_s);
        let blur = within.hypot(mood).max(1e-9);
        let unseen = (TREND_ROOM * within).max(self.unseen);
        let normal = Normal::standard();
        self.rates
            .iter()
            .map(|(line, capacity, below)| {
                let room = (line / rate).ln() / blur;
                capacity * normal.cdf(room + unseen / blur) + below * normal.cdf(room)
            })
            .sum()
    }
}

/// The variance of what is carried in a second, in parts of its mean (service times' squared
/// coefficient of variation), from the trials in which the server was never idle.
fn dispersion(trials: &[Trial]) -> f64 {
    // Before there are figures: a tenth of one.
    let (mut squares, mut degrees) = (0.05, 0.1);
    let (mut rough, mut rough_degrees) = (0.0, 0.0);
    for trial in trials {
        let Some(growth) = trial.growth else { continue };
        let n = f64::from(growth.increments);
        let carried = (trial.rate_per_s - growth.per_s).max(1.0);
        let own = growth.error_per_s.powi(2) * n / carried * (n - 1.0);
        if growth.per_s > growth.error_per_s * NO_GROWTH {
            squares += own;
            degrees += n - 1.0;
        }
        rough += own;
        rough_degrees += n - 1.0;
    }
    match () {
        () if degrees > 1.0 => squares / degrees,
        () if rough_degrees > 0.0 => rough / rough_degrees,
        () => 0.0,
    }
}

fn evidence(goal: &Goal, trials: &[Trial], dispersion: f64, outlasted: bool) -> Vec<Evidence> {
    let mut all: Vec<Evidence> = Vec::new();
    for trial in trials.iter().filter(|t| t.purpose != Purpose::Curve) {
        let met = match &trial.verdict {
            Verdict::Met => true,
            Verdict::Missed { .. } | Verdict::Growing => false,
            Verdict::GeneratorLimited { .. } if is_generators(trials, trial.rate_per_s) => false,
            Verdict::GeneratorLimited { .. } => continue,
        };
        let limited = matches!(trial.verdict, Verdict::GeneratorLimited { .. });
        let growth = trial.growth.filter(|_| !limited);
        let clear = growth.is_some_and(|g| g.is_clear(trial.rate_per_s, goal.precision));
        let carried = growth.map_or(trial.rate_per_s, |g| trial.rate_per_s - g.per_s);
        let overloaded = trial.rate_per_s > OVERLOAD * carried;
        let only_grew = trial.verdict == Verdict::Growing;
        let measures = growth.filter(|_| carried > 0.0 && (only_grew || !overloaded));
        let calls = measures.map(|g| carried * f64::from(g.increments));
        let doubt = if overloaded { OVERLOADED_DOUBT } else { 0.0 };
        all.push(Evidence {
            rate: trial.rate_per_s,
            met: (!met || outlasted || !is_outlasted(trials, trial)).then_some(met),
            grew: clear,
            only_grew,
            growth: measures.map(|g| g.per_s / trial.rate_per_s),
            within: calls.map_or(0.0, |n| dispersion / n + 0.25 / (n * n) + doubt * doubt),
            mood: (goal.trial_s / trial.length_s).sqrt(),
        });
    }
    all
}

/// Of every rate (its logarithm): the weights as the capacity and as a line below it, and how
/// well it explains what was carried. And the mean spread.
fn weigh(
    goal: &Goal,
    evidence: &[Evidence],
    grid: &[f64],
    step: f64,
) -> (Vec<(f64, f64, f64, f64)>, f64) {
    let normal = Normal::standard();
    let sure = |p: f64| HICCUP + (1.0 - HICCUP) * p;
    let mut weights: Vec<(f64, f64, f64, f64)> = grid.iter().map(|x| (*x, 0.0, 0.0, 0.0)).collect();
    let (mut spreads, mut total) = (0.0, 0.0);
    let measured = evidence
        .iter()
        .any(|e| e.growth.is_some_and(|g| g > e.within.sqrt()));
    let missed = evidence
        .iter()
        .any(|e| e.met == Some(false) && !e.only_grew);
    let capacity_prior = if missed { CAPACITY } else { ONLY_GREW };
    for (share, prior) in SPREADS {
        let prior = if measured { prior } else { 1.0 };
        let spread = share * goal.precision;
        // How well each rate, as the capacity, explains what was carried; and each rate, as the
        // line, on which side of it the trials ended.
        let mut carried = vec![1.0_f64; grid.len()];
        let mut as_capacity = vec![1.0_f64; grid.len()];
        let mut as_below = vec![1.0_f64; grid.len()];
        for e in evidence {
            let blur = (e.within + (spread * e.mood).powi(2)).sqrt();
            let at = e.rate.ln();
            for (i, x) in grid.iter().enumerate() {
                if let Some(growth) = e.growth {
                    let drift = 1.0 - (x - at).exp();
                    carried[i] *= walk(&normal, growth, e.within.sqrt(), drift, blur);
                }
                let Some(met) = e.met else { continue };
                let room = if met { x - at } else { at - x } / blur;
                let side = sure(normal.cdf(room));
                as_below[i] *= side;
                // Where the growth is known it says all that there is to say of a capacity.
                if e.growth.is_none() || (!met && !e.grew) {
                    as_capacity[i] *= side;
                }
            }
        }
        // A capacity anywhere above the line.
        let reach = (HIGHEST_CAPACITY.ln() / step).max(1.0);
        let mut above = 0.0;
        for i in (0..grid.len()).rev() {
            above += carried[i];
            let capacity = prior * capacity_prior * as_capacity[i] * carried[i];
            let below = prior * (1.0 - capacity_prior) * as_below[i] * above / reach;
            weights[i].1 += capacity;
            weights[i].2 += below;
            weights[i].3 += carried[i];
            spreads += spread * (capacity + below);
            total += capacity + below;
        }
    }
    (weights, if total > 0.0 { spreads / total } else { 0.0 })
}

/// The density of a random walk at its end, of drift `drift`, deviation `blur` and reflected at
/// zero; where it ends below `least` the probability of so little. In parts of the rate.
fn walk(normal: &Normal, end: f64, least: f64, drift: f64, blur: f64) -> f64 {
    let density = |z: f64| (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let drift = drift / blur;
    // e^(2·drift·end) · Φ(−end − drift), where the factors alone would not fit a float.
    let mirrored = |end: f64| match end + drift {
        far if far > 5.0 => density(end - drift) / far,
        far => (2.0 * drift * end).exp() * normal.cdf(-far),
    };
    let p = if end < least {
        let end = least / blur;
        normal.cdf(end - drift) - mirrored(end)
    } else {
        let end = end / blur;
        (2.0 * density(end - drift) - 2.0 * drift * mirrored(end)) / blur
    };
    HICCUP / 10.0 + (1.0 - HICCUP) * p.max(0.0)
}

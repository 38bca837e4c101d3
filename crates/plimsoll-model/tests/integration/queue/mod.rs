//! Simulated servers with a queue, for the search: calls are served in order, one at a time, with random service times
//! and a random capacity.
//!
//! The line of a server without an objective on time is its capacity, 1 / E(service time): the highest rate at which
//! its queue does not grow without bound. With a limit on a percentile it is the highest rate at which that percentile
//! of a very long load is within the limit. Where service times are exponential, so are response times, and the line
//! is known analytically.
//!
//! Used by `search_queue.rs` and `examples/search_study.rs`. Seeds are random and printed; `SEARCH_SEED=…`
//! repeats them.
//!
//! This file is long because a simulated server and its analytic results belong together.

#![allow(
    dead_code,
    clippy::print_stdout,
    reason = "the figures are for people who change the search, and the test needs a part of this"
)]

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_model::search::{
    BacklogGrowth, SearchGoal, SearchResult, SearchStep, Trial, TrialVerdict, next_step,
};
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

const BUDGET_S: f64 = 60.0;
const PRECISION: f64 = 0.01;
/// Standard deviation of the capacity between trials of 5 s, relative to it.
const CAPACITY_DEVIATION: f64 = 0.001;
const WARMUP_S: f64 = 1.0;
/// Time that a trial needs to connect, and for the pause before the next one. Seconds.
const TRIAL_OVERHEAD_S: f64 = 0.5;

/// A small random number generator (Steele, Lea and Flood 2014: SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Service times of mean 1, as equally probable quantiles of their distribution.
struct ServiceTimes {
    name: &'static str,
    times: Vec<f64>,
    /// The coefficient of variation.
    cv: f64,
}

impl ServiceTimes {
    fn of(name: &'static str, quantile: impl Fn(f64) -> f64) -> ServiceTimes {
        const QUANTILES: usize = 8_192;
        let mut times: Vec<f64> = (0..QUANTILES)
            .map(|i| quantile((i as f64 + 0.5) / QUANTILES as f64))
            .collect();
        let mean = times.iter().sum::<f64>() / QUANTILES as f64;
        times.iter_mut().for_each(|t| *t /= mean);
        let variance = times.iter().map(|t| (t - 1.0).powi(2)).sum::<f64>() / QUANTILES as f64;
        ServiceTimes {
            name,
            times,
            cv: variance.sqrt(),
        }
    }

    fn constant() -> ServiceTimes {
        ServiceTimes::of("constant", |_| 1.0)
    }

    fn exponential() -> ServiceTimes {
        ServiceTimes::of("exponential", |p| -(1.0 - p).ln())
    }

    /// Pareto-distributed with index 2.2.
    fn heavy() -> ServiceTimes {
        ServiceTimes::of("heavy-tailed", |p| (1.0 - p).powf(-1.0 / 2.2))
    }
}

/// A server with an objective, and the load line that follows from them.
pub(crate) struct Row {
    name: &'static str,
    service: ServiceTimes,
    pub(crate) capacity_per_s: f64,
    /// Standard deviation of the capacity between trials of 5 s, relative to it.
    mood: f64,
    /// Whether calls arrive as a Poisson process rather than evenly spaced.
    poisson: bool,
    /// The limit of the 99th percentile of response times, seconds.
    pub(crate) p99_s: Option<f64>,
    line_per_s: f64,
    /// Maximum deviation of a result from the line, relative to the line.
    room: f64,
}

/// Part of the budget that is left for measuring after probes, warm-ups and pauses. Seconds.
const MEASURING_S: f64 = 38.0;
/// The variance of a line that is estimated from verdicts, relative to one estimated from measured times: π / 2, the
/// asymptotic efficiency of a mean relative to a median.
const VERDICT_VARIANCE_RATIO: f64 = std::f64::consts::FRAC_PI_2;

/// Returns how close the line of an objective can be found *and* confirmed in 95 of 100 searches, in standard errors of
/// all calls that the budget has time for.
///
/// A trial at the line itself meets its objective in one of two cases (more, where few busy periods fit into it and
/// most have fewer slow calls than their mean), so the confirmed rate has to be below the line by the confirmation's
/// uncertainty; and it is known no better than the trials before the confirmation allow. With a perfect model of the
/// server, the optimal division of time between the two, and normal distributions: three standard errors in 50 of 100.
pub(crate) fn attainable() -> f64 {
    (6..40)
        .map(|half| f64::from(half) / 2.0)
        .find(|errors| attainable_share(*errors) >= 0.95)
        .expect("some width is enough")
}

/// Returns the highest probability that a line within this many standard errors is confirmed.
fn attainable_share(errors: f64) -> f64 {
    const STEPS: i32 = 80;
    let normal = Normal::standard();
    let mut best = 0.0_f64;
    for confirmation_length_s in (2..30).map(f64::from) {
        let deviation =
            (BUDGET_S * VERDICT_VARIANCE_RATIO / (MEASURING_S - confirmation_length_s)).sqrt();
        let scatter = (BUDGET_S / confirmation_length_s).sqrt();
        for margin in (0..40).map(|i| f64::from(i) / 4.0) {
            let share: f64 = (-STEPS..STEPS)
                .map(|i| (f64::from(i) + 0.5) * 4.0 / f64::from(STEPS))
                .map(|z| (z, deviation * z - margin))
                .filter(|(_, off)| off.abs() <= errors)
                .map(|(z, off)| normal.pdf(z) * normal.cdf(-off / scatter))
                .sum();
            best = best.max(share * 4.0 / f64::from(STEPS));
        }
    }
    best
}

/// Returns how many calls a search can make at its line.
fn calls_in_budget(line_per_s: f64) -> f64 {
    BUDGET_S * line_per_s
}

impl Row {
    /// Returns a row whose line is the capacity. A search finds it to the precision, or to three standard errors of the
    /// mean service time of all calls that the budget has time for.
    fn capacity(service: ServiceTimes, capacity_per_s: f64) -> Row {
        Row {
            name: service.name,
            room: (3.0 * service.cv / calls_in_budget(capacity_per_s).sqrt()).max(PRECISION),
            service,
            capacity_per_s,
            mood: CAPACITY_DEVIATION,
            poisson: false,
            p99_s: None,
            line_per_s: capacity_per_s,
        }
    }

    /// Returns a row whose line follows from a limit on the p99, with exponential service times. Response times are
    /// exponential too, with rate a = ln(100) / limit at the line λ of a capacity μ: for Poisson arrivals μ − λ = a,
    /// for evenly spaced ones μ (1 − σ) = a where σ = e^(−a/λ) (Gross and Harris, *Fundamentals of Queueing Theory*,
    /// 2.2 and 5.3).
    ///
    /// A search finds the line to the precision, or to the attainable number of standard errors ([`attainable`]) of a
    /// line estimated from the share of slow calls among all that the budget has time for, which are correlated.
    /// `slow_error` is the standard error of that share for a million calls, relative to it ([`slow_error`]).
    fn p99(
        (poisson, capacity_per_s, p99_s, slow_error): (bool, f64, f64, f64),
        attainable: f64,
    ) -> Row {
        let line = |p99_s: f64| {
            let a = 100.0_f64.ln() / p99_s;
            if poisson {
                capacity_per_s - a
            } else {
                -a / (-a / capacity_per_s).ln_1p()
            }
        };
        let line_per_s = line(p99_s);
        // The share of calls slower than the limit is proportional to its −ln(100)th power.
        let change = (line(p99_s * 1.001) / line_per_s).ln() / 0.001;
        let error =
            slow_error * (1e6 / calls_in_budget(line_per_s)).sqrt() * change / 100.0_f64.ln();
        Row {
            name: if poisson { "p99, Poisson" } else { "p99" },
            service: ServiceTimes::exponential(),
            capacity_per_s,
            mood: CAPACITY_DEVIATION,
            poisson,
            p99_s: Some(p99_s),
            line_per_s,
            room: (attainable * error).max(PRECISION),
        }
    }

    /// Returns a row of a server without any variance.
    pub(crate) fn quiet(capacity_per_s: f64) -> Row {
        Row {
            mood: 0.0,
            ..Row::capacity(ServiceTimes::constant(), capacity_per_s)
        }
    }

    /// Returns a row whose objective is missed only when the queue begins to grow, so that the line is the capacity.
    fn loose_objective(service: ServiceTimes, capacity_per_s: f64, p99_s: f64) -> Row {
        Row {
            p99_s: Some(p99_s),
            ..Row::capacity(service, capacity_per_s)
        }
    }

    pub(crate) fn capacities() -> Vec<Row> {
        let mut rows = Vec::new();
        for service in [
            ServiceTimes::constant,
            ServiceTimes::exponential,
            ServiceTimes::heavy,
        ] {
            rows.extend([200.0, 2_000.0, 10_000.0, 50_000.0].map(|c| Row::capacity(service(), c)));
        }
        rows
    }

    pub(crate) fn objectives() -> Vec<Row> {
        let attainable = attainable();
        let mut rows = vec![Row::loose_objective(
            ServiceTimes::exponential(),
            2_000.0,
            0.5,
        )];
        rows.extend(OBJECTIVES.map(|row| Row::p99(row, attainable)));
        rows
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/s", self.name, self.capacity_per_s)?;
        if let Some(p99_s) = self.p99_s {
            write!(
                f,
                " p99 < {} ms, line {:.1}/s",
                p99_s * 1e3,
                self.line_per_s
            )?;
        }
        write!(f, ", within {:.2} %", self.room * 100.0)
    }
}

/// Whether arrivals are Poisson; capacity per second; limit of the p99 in seconds; [`slow_error`].
const OBJECTIVES: [(bool, f64, f64, f64); 8] = [
    (false, 200.0, 0.115, 0.130),
    (false, 2_000.0, 0.01, 0.108),
    (false, 10_000.0, 0.005, 0.299),
    (false, 50_000.0, 0.002, 0.622),
    (true, 200.0, 0.115, 0.085),
    (true, 2_000.0, 0.01, 0.073),
    (true, 10_000.0, 0.005, 0.203),
    (true, 50_000.0, 0.002, 0.386),
];

/// A server in one search.
struct Server<'a> {
    row: &'a Row,
    random: Random,
}

/// Arrival times at a rate, in seconds.
struct Arrivals {
    rate: f64,
    poisson: bool,
    number: u64,
    due_s: f64,
}

impl Arrivals {
    fn advance(&mut self, random: &mut Random) {
        self.number += 1;
        if self.poisson {
            self.due_s -= random.uniform().ln() / self.rate;
        } else {
            self.due_s = self.number as f64 / self.rate;
        }
    }
}

impl Server<'_> {
    /// Simulates a trial: returns whether it met the objective, how the queue grew, and how long it took.
    fn run_trial(&mut self, rate: f64, length_s: f64) -> (bool, Option<BacklogGrowth>, f64) {
        let mood = 1.0 + self.row.mood * self.random.normal() * (5.0 / length_s).sqrt();
        let unit_s = 1.0 / (self.row.capacity_per_s * mood);
        let end_s = WARMUP_S + length_s;
        let limit_s = self.row.p99_s.unwrap_or(f64::INFINITY);
        let most_slow = (rate * length_s * 0.01) as u64;
        let mut slow = 0;
        let mut free_s = 0.0_f64;
        let mut intervals: Vec<IntervalRecord> = Vec::new();
        // Ends of calls, for the number in flight at the end of each second.
        let mut ends: VecDeque<f64> = VecDeque::new();
        let times = &self.row.service.times;
        let mask = times.len() as u64 - 1;
        let mut second = 1.0;
        let mut last_s = end_s;
        let mut arrivals = Arrivals {
            rate,
            poisson: self.row.poisson,
            number: 0,
            due_s: 0.0,
        };
        loop {
            let due_s = arrivals.due_s;
            if due_s >= second || due_s >= end_s {
                while ends.front().is_some_and(|end| *end <= second) {
                    ends.pop_front();
                }
                intervals.push(IntervalRecord {
                    index: intervals.len() as u64,
                    start_offset: Duration::from_secs_f64(second - 1.0),
                    length: Duration::from_secs(1),
                    in_flight: ends.len() as u64,
                    ..IntervalRecord::default()
                });
                // Like a real trial: a lost one is stopped a second after the warm-up.
                if slow > most_slow && second >= WARMUP_S + 1.0 {
                    last_s = second;
                    break;
                }
                second += 1.0;
                if due_s >= end_s {
                    break;
                }
                continue;
            }
            let time = times[(self.random.next() & mask) as usize] * unit_s;
            free_s = free_s.max(due_s) + time;
            while ends.front().is_some_and(|end| *end <= due_s) {
                ends.pop_front();
            }
            ends.push_back(free_s);
            slow += u64::from(due_s >= WARMUP_S && free_s - due_s > limit_s);
            arrivals.advance(&mut self.random);
        }
        let growth = BacklogGrowth::from_intervals(
            &intervals,
            Duration::from_secs_f64(WARMUP_S),
            Duration::from_secs_f64(end_s),
        );
        let drain_s = (free_s - last_s).clamp(0.0, 4.0 * limit_s.min(0.5));
        (
            slow <= most_slow,
            growth,
            last_s + drain_s + TRIAL_OVERHEAD_S,
        )
    }
}

/// Runs a complete search.
pub(crate) fn search_for(row: &Row, budget_s: f64) -> (SearchResult, Vec<Trial>) {
    let random = Random(1);
    search(&mut Server { row, random }, budget_s)
}

fn search(server: &mut Server<'_>, budget_s: f64) -> (SearchResult, Vec<Trial>) {
    let goal = SearchGoal {
        budget_s,
        precision: PRECISION,
        curve: false,
        // The minimum for a p99.
        least_calls: if server.row.p99_s.is_some() { 388 } else { 0 },
        ..SearchGoal::default()
    };
    let mut trials: Vec<Trial> = Vec::new();
    loop {
        assert!(trials.len() < 500, "the search does not end");
        let (purpose, rate_per_s, length) = match next_step(&goal, &trials) {
            SearchStep::Done(finding) => return (*finding, trials),
            SearchStep::Try {
                purpose,
                rate_per_s,
                length,
            } => (purpose, rate_per_s, length),
        };
        let length_s = length.as_secs_f64();
        let (met, growth, took_s) = server.run_trial(rate_per_s, length_s);
        let grew = growth.is_some_and(|g| g.is_significant(rate_per_s, goal.precision));
        let verdict = match (met, grew) {
            (true, false) => TrialVerdict::Met,
            (true, true) => TrialVerdict::Growing,
            (false, _) => TrialVerdict::Missed {
                objectives: vec!["p99".into()],
                errors: false,
            },
        };
        trials.push(Trial {
            purpose,
            rate_per_s,
            length_s,
            took_s,
            verdict,
            achieved_per_s: Some(rate_per_s),
            errors_share: Some(0.0),
            growth,
            ..Trial::default()
        });
    }
}

/// How many searches found the line, confirmed it, and covered it.
#[derive(Default)]
pub(crate) struct Score {
    pub(crate) near: u64,
    pub(crate) confirmed: u64,
    pub(crate) both: u64,
    pub(crate) held: u64,
    /// The deviation of each result from the line, relative to the line.
    pub(crate) off: Vec<f64>,
}

impl Score {
    /// Returns the deviation above the line that this share of searches does not exceed.
    fn off(&self, share: f64) -> f64 {
        let mut sorted = self.off.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (share * sorted.len() as f64) as usize;
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share| self.off(share) * 100.0;
        write!(
            f,
            "{} near, {} confirmed, {} both, {} held of {}; off {:.2} {:.2} {:.2} {:.2} {:.2} % (2.5, 16, 50, 84 and 97.5 of 100)",
            self.near,
            self.confirmed,
            self.both,
            self.held,
            self.off.len(),
            percent(0.025),
            percent(0.16),
            percent(0.5),
            percent(0.84),
            percent(0.975),
        )
    }
}

/// Runs this many searches. `examples`: the number of wrong ones that are printed with their trials.
pub(crate) fn score(row: &Row, seed: u64, seeds: u64, mut examples: u64) -> Score {
    let mut score = Score::default();
    for i in 0..seeds {
        let mut draw = Random(seed ^ row.capacity_per_s.to_bits() ^ row.room.to_bits());
        draw.0 = draw.0.wrapping_add(i.wrapping_mul(0x9e6c_63d0_876a_68e5));
        let mut server = Server {
            row,
            random: Random(draw.next()),
        };
        let (found, trials) = search(&mut server, BUDGET_S);
        let line = row.line_per_s;
        let off = found.line_per_s.map_or(-1.0, |l| l / line - 1.0);
        let near = off.abs() <= row.room;
        let held = found.low_per_s.is_some_and(|low| low <= line)
            && found.high_per_s.is_none_or(|high| line <= high);
        score.near += u64::from(near);
        score.confirmed += u64::from(found.confirmed);
        score.both += u64::from(near && found.confirmed);
        score.held += u64::from(held);
        score.off.push(off);
        if examples > 0 && !(near && found.confirmed && held) {
            examples -= 1;
            println!(
                "  off {:.2} %, confirmed {}, from {:.1?} to {:.1?}",
                off * 100.0,
                found.confirmed,
                found.low_per_s,
                found.high_per_s
            );
            for t in &trials {
                let grew = t.growth.map(|g| (g.per_s, g.error_per_s));
                println!(
                    "    {:?} {:.1}/s ({:.2} %) {:.1} s of {:.1}: {:?} {grew:.2?}",
                    t.purpose,
                    t.rate_per_s,
                    (t.rate_per_s / line - 1.0) * 100.0,
                    t.length_s,
                    t.took_s,
                    t.verdict
                );
            }
        }
    }
    println!("{row}: {score}");
    score
}

/// Returns the seed that was asked for, or a random one.
pub(crate) fn seed() -> u64 {
    let given = std::env::var("SEARCH_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("SEARCH_SEED={seed}");
    seed
}

impl Row {
    /// Prints the basis of the bound of a line by an objective: that a long run has 1 % of slow calls at the line,
    /// their variance, and how often trials meet the objective there.
    pub(crate) fn print_arithmetic(&self, seed: u64) {
        const TRIALS: u32 = 400;
        let Some(p99_s) = self.p99_s.filter(|_| self.line_per_s < self.capacity_per_s) else {
            return;
        };
        let error = slow_error(self, p99_s, seed);
        println!(
            "  slow error {error:.3}, {} standard errors attainable",
            attainable()
        );
        for off in [-self.room, 0.0, self.room] {
            for length_s in [5.0, 10.0] {
                let mut server = Server {
                    row: self,
                    random: Random(seed ^ 1),
                };
                let rate = self.line_per_s * (1.0 + off);
                let met = (0..TRIALS).filter(|_| server.run_trial(rate, length_s).0);
                let share = met.count() as f64 / f64::from(TRIALS) * 100.0;
                println!("  {share:.0} % of trials of {length_s} s at {rate:.1}/s meet it");
            }
        }
    }
}

/// Returns the standard error of the share of calls slower than `p99_s`, relative to it, in a million calls at the
/// line: from the spread of batches.
fn slow_error(row: &Row, p99_s: f64, seed: u64) -> f64 {
    const BATCHES: usize = 400;
    const CALLS: u64 = 50_000;
    let mut random = Random(seed);
    let mask = row.service.times.len() as u64 - 1;
    let mut arrivals = Arrivals {
        rate: row.line_per_s,
        poisson: row.poisson,
        number: 0,
        due_s: 0.0,
    };
    let mut free_s = 0.0_f64;
    let shares: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let mut slow = 0;
            for _ in 0..CALLS {
                let time = row.service.times[(random.next() & mask) as usize];
                free_s = free_s.max(arrivals.due_s) + time / row.capacity_per_s;
                slow += u64::from(free_s - arrivals.due_s > p99_s);
                arrivals.advance(&mut random);
            }
            slow as f64 / CALLS as f64
        })
        .collect();
    let mean = shares.iter().sum::<f64>() / BATCHES as f64;
    println!("  share of slow calls at the line: {:.3} %", mean * 100.0);
    let squares: f64 = shares.iter().map(|s| (s / mean - 1.0).powi(2)).sum();
    (squares / (BATCHES - 1) as f64 * CALLS as f64 / 1e6).sqrt()
}

//! Checks the claims of `compare` over many comparisons of simulated runs: equal groups hardly ever differ, and of
//! different ones the right rows do.
//!
//! Seeds are random and printed; `COMPARE_SEED=… cargo test …` repeats a run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests; seeds are printed"
)]

use crate::runs;

use std::hash::{BuildHasher as _, RandomState};

use plimsoll_model::runs::run::{Run, RunEnding};
use plimsoll_report::compare::compare;
use runs::{Fixture, finished};

/// A small random number generator (Steele, Lea and Flood 2014: SplitMix64).
struct Random(u64);

impl Random {
    fn seeded() -> Random {
        let seed = match std::env::var("COMPARE_SEED") {
            Ok(seed) => seed.parse().unwrap(),
            Err(_) => RandomState::new().hash_one(0),
        };
        println!("COMPARE_SEED={seed}");
        Random(seed)
    }

    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

fn group(name: &str, runs: usize) -> Vec<Run> {
    (0..runs)
        .map(|i| {
            finished(
                Fixture::steady(&format!("{name}{i}")),
                RunEnding::complete(),
            )
        })
        .collect()
}

/// Gives every run the figures of a service that takes `by` times as long: a deviation that all figures share, noise
/// of each, and occasionally a bad moment that affects the tails.
fn simulate_figures(group: &mut [Run], by: f64, shared: f64, random: &mut Random) {
    for run in group {
        let mood = 1.0 + shared * random.normal();
        let bad = if random.uniform() < 0.1 { 1.4 } else { 1.0 };
        let mut of = |value: f64, noise: f64| value * by * mood * (1.0 + noise * random.normal());
        let total = &mut run.summary.total;
        let response = total.response.as_mut().unwrap();
        response.mean_us = of(1_000.0, 0.01);
        response.p50_us = Some(of(900.0, 0.01));
        response.p90_us = Some(of(1_500.0, 0.02));
        response.p99_us = Some(of(4_000.0 * bad, 0.06));
        response.p99_9_us = Some(of(9_000.0 * bad, 0.15));
        let client = total.client.as_mut().unwrap();
        client.cpu_us_per_call = Some(of(20.0, 0.02));
        total.achieved_per_s = Some(1_000.0 * (1.0 + 0.0001 * random.normal()));
        total.success_share = Some(1.0);
    }
}

/// Returns the number of comparisons in which any row differs.
fn differ(comparisons: u32, shared: f64, runs: usize, random: &mut Random) -> u32 {
    let (mut a, mut b) = (group("a", runs), group("b", runs));
    let mut differ = 0;
    for _ in 0..comparisons {
        simulate_figures(&mut a, 1.0, shared, random);
        simulate_figures(&mut b, 1.0, shared, random);
        let compared = compare(&a, &b).unwrap();
        assert!(compared.has_enough_runs(), "{} rows", compared.judged_rows);
        differ += u32::from(compared.rows.iter().any(|row| row.is_better().is_some()));
    }
    differ
}

#[test]
fn equal_runs_rarely_differ() {
    let mut random = Random::seeded();
    // Rows that are correlated, and rows that are independent.
    for (shared, runs) in [(0.03, 8), (0.0, 8), (0.0, 12)] {
        let (mut all, mut differing) = (1_000, differ(1_000, shared, runs, &mut random));
        // By chance, one in twenty exceeds 65 of 1,000 once in a hundred times, and 325 of 5,000 once in a million
        // times.
        if differing > 65 {
            all += 4_000;
            differing += differ(4_000, shared, runs, &mut random);
        }
        println!("any row differs in {differing} of {all} ({runs} a side, shared {shared})");
        assert!(differing <= all * 65 / 1_000, "{differing} of {all}");
    }
}

#[test]
fn ten_percent_slowdown_is_detected() {
    let mut random = Random::seeded();
    let (mut a, mut b) = (group("a", 8), group("b", 8));
    let found = (0..200)
        .filter(|_| {
            simulate_figures(&mut a, 1.0, 0.02, &mut random);
            simulate_figures(&mut b, 1.1, 0.02, &mut random);
            let compared = compare(&a, &b).unwrap();
            let worse = |name| {
                let row = compared.rows.iter().find(|r| r.metric == name).unwrap();
                row.is_better() == Some(false)
            };
            worse("response mean") && worse("response p50")
        })
        .count();
    println!("found in {found} of 200");
    assert!(found >= 180, "{found} of 200");
}

#[test]
fn verdict_p_value_and_interval_agree() {
    let mut random = Random::seeded();
    let (mut a, mut b) = (group("a", 8), group("b", 8));
    for _ in 0..200 {
        simulate_figures(&mut a, 1.0, 0.02, &mut random);
        simulate_figures(&mut b, 1.03, 0.02, &mut random);
        for row in compare(&a, &b).unwrap().rows {
            let d = row.difference.unwrap();
            let outside = d.low > 0.0 || d.high < 0.0;
            assert_eq!(row.is_better().is_some(), outside, "{row:?}");
            assert_eq!(d.p_value <= 0.05, outside, "{row:?}");
        }
    }
}

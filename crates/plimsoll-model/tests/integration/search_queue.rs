//! The search against simulated servers with a queue.
//!
//! A search that is right in 95 of 100 may be right in fewer of a few hundred, so this fails only where that has a
//! probability below one in a million ([`min_successes`]), for each row and for all together.
//! `examples/search_study.rs` uses more seeds and requires 95 % of each row.

use crate::path;
use crate::queue;

use plimsoll_model::search::{Trial, TrialVerdict};
use queue::{Row, score, search_for, seed};
use snapbox::{assert_data_eq, file};
use statrs::distribution::{Binomial, DiscreteCDF};

/// Returns the number of successes out of `n` that is reached with all but a probability of one in a million if each
/// has 95 %.
fn min_successes(n: u64) -> u64 {
    let right = Binomial::new(0.95, n).expect("95 % is a probability");
    (0..n).find(|k| right.cdf(*k) > 1e-6).unwrap_or(n)
}

/// Rates and lengths of trials are pure arithmetic: this snapshot detects errors in it even where the line would still
/// be found.
#[test]
fn queue_search_paths_match_snapshot() {
    let slow = |row: &Row| row.capacity_per_s <= 2_000.0;
    let rows = Row::capacities().into_iter().chain(Row::objectives());
    let mut paths = String::new();
    for row in rows.filter(slow) {
        for budget_s in [60.0, 200.0] {
            let name = format!("{row}, budget {budget_s} s");
            paths += &path::path(&name, &search_for(&row, budget_s));
        }
    }
    assert_data_eq!(paths, file!["path/with_queue.txt"]);
}

#[test]
fn load_line_confirmed_within_one_minute() {
    const SEEDS: u64 = 20;
    let seed = seed();
    let mut wrong = Vec::new();
    let (mut both, mut held, mut all) = (0, 0, 0);
    for row in Row::capacities() {
        let score = score(&row, seed, SEEDS, 0);
        if score.both.min(score.held) < min_successes(SEEDS) {
            wrong.push(format!("{row}: {score}"));
        }
        (both, held, all) = (both + score.both, held + score.held, all + SEEDS);
    }
    assert!(wrong.is_empty(), "SEARCH_SEED={seed}: {}", wrong.join("\n"));
    assert!(
        both.min(held) >= min_successes(all),
        "SEARCH_SEED={seed}: {both} found and {held} held of {all}"
    );
}

/// Two increments can't show their own variance well enough to detect an excess of 1 to 8 calls a second over a
/// capacity of 200/s, so probes there pass. The search must not rely on them.
#[test]
fn misleading_probes_do_not_widen_bounds() {
    for capacity_per_s in [197.0, 200.0, 2_000.0, 10_000.0] {
        for budget_s in [60.0, 90.0, 300.0] {
            let (found, trials) = search_for(&Row::quiet(capacity_per_s), budget_s);
            let parts = |per_s: Option<f64>| per_s.unwrap_or(f64::NAN) / capacity_per_s;
            let (low, line, high) = (
                parts(found.low_per_s),
                parts(found.line_per_s),
                parts(found.high_per_s),
            );
            println!("{capacity_per_s}/s in {budget_s} s: {low:.4} {line:.4} {high:.4}");
            let context = format!("{budget_s} s: {found:?}\n{trials:#?}");
            assert!(found.confirmed, "{context}");
            assert!((0.985..=1.0).contains(&low), "{context}");
            assert!((1.0..=1.03).contains(&high), "{context}");
            assert!((0.99..=1.0025).contains(&line), "{context}");
            let hidden = |t: &&Trial| {
                t.verdict == TrialVerdict::Met
                    && t.length_s > 4.0
                    && t.rate_per_s > 1.02 * capacity_per_s
            };
            assert_eq!(trials.iter().filter(hidden).count(), 0, "{context}");
        }
    }
}

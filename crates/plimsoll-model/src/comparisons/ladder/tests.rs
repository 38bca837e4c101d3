use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::comparisons::ladder::batches::BatchesRecord;

/// A ladder of rungs that add these costs (µs) each, on a machine with noise and drift.
fn simulated(adds: &[f64], rounds: usize, seed: u64) -> LadderRecord {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || (f64::from(random.next_u32()) + 0.5) / 4_294_967_296.0;
    let mut rungs: Vec<Rung> = adds
        .iter()
        .map(|add| Rung {
            name: format!("+{add}"),
            ..Rung::default()
        })
        .collect();
    let mut elapsed = 0.0_f64;
    for round in slice_order(adds.len(), rounds, seed) {
        let mut slices = vec![None; adds.len()];
        for rung in round {
            elapsed += 1.0;
            // The machine slows down by 20 %, oscillates, and has occasional slow moments.
            let drift = 1.0 + 0.2 * elapsed / 60.0 + 0.05 * (elapsed / 7.0).sin();
            let level: f64 = adds[..=rung].iter().sum::<f64>() + 200.0;
            let mut noisy = |spread: f64| {
                let normal =
                    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
                let slow = if uniform() < 0.05 { 1.5 } else { 1.0 };
                Some(level * drift * slow * (1.0 + spread * normal))
            };
            slices[rung] = Some(SliceResult {
                p50_us: noisy(0.02),
                p99_us: noisy(0.15),
                client_cpu_us_per_call: noisy(0.03),
                server_cpu_us_per_call: noisy(0.03),
                valid: true,
                ..SliceResult::default()
            });
        }
        for (rung, slice) in rungs.iter_mut().zip(slices) {
            rung.slices.extend(slice);
        }
    }
    LadderRecord {
        schema_version: crate::runs::run::SCHEMA_VERSION,
        name: "simulated".into(),
        tool_version: "0".into(),
        slice_s: 1.0,
        seed,
        rungs,
        ..LadderRecord::default()
    }
}

fn claims(ladder: &LadderRecord) -> usize {
    (1..ladder.rungs.len())
        .flat_map(|of| [(of, of - 1), (of, 0)])
        .flat_map(|(of, to)| LadderMetric::ALL.map(|m| ladder.added_cost(of, to, m)))
        .filter(|a| matches!(a, AddedCost::Significant(_)))
        .count()
}

#[test]
fn equal_rungs_match_in_95_percent() {
    let equal = (0..200)
        .filter(|seed| claims(&simulated(&[0.0; 3], min_rounds(3), *seed)) == 0)
        .count();
    assert!(equal >= 190, "{equal} of 200");
}

#[test]
fn added_cost_is_found_within_interval() {
    let mut found = 0;
    let mut held = 0;
    for seed in 0..100 {
        let ladder = simulated(&[0.0, 40.0, 60.0], 20, seed);
        match ladder.added_cost(1, 0, LadderMetric::P50) {
            AddedCost::Significant(d) => {
                found += 1;
                // Drift scales the added costs by up to a quarter.
                held += usize::from(d.low <= 52.0 && d.high >= 38.0);
            }
            other => assert!(!matches!(other, AddedCost::TooFewRounds)),
        }
    }
    // A slow moment of the first rung can hide a difference; more rounds would reveal it.
    assert!(found >= 60, "{found} of 100 found");
    assert!(held * 100 >= found * 95, "{held} of {found} held");
}

#[test]
fn too_few_rounds_claim_nothing() {
    let ladder = simulated(&[0.0, 500.0], 3, 1);
    assert_eq!(
        ladder.added_cost(1, 0, LadderMetric::P50),
        AddedCost::TooFewRounds
    );
    assert_eq!(min_rounds(2), 10);
    assert_eq!(min_rounds(3), 12);
}

#[test]
fn each_round_shuffles_all_rungs() {
    let rounds = slice_order(4, 50, 7);
    for round in &rounds {
        let mut sorted = round.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
    }
    let first = |rung| rounds.iter().filter(|r| r[0] == rung).count();
    assert!((0..4).all(|rung| first(rung) >= 4));
    assert_eq!(slice_order(4, 50, 7), rounds);
}

#[test]
fn ladder_record_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    let ladder = simulated(&[0.0, 1.0], 2, 3);
    ladder.write(dir.path()).unwrap();
    let read = LadderRecord::load(dir.path()).unwrap();
    assert_eq!(read.rungs.len(), 2);
    assert!(LadderRecord::exists_in(dir.path()));
}

/// A batch has too few gaps between tokens for their p99.
#[test]
fn token_gaps_are_compared_by_replicate() {
    let mut ladder = simulated(&[0.0, 40.0], 20, 5);
    for (rung, gap_us) in ladder.rungs.iter_mut().zip([2_000.0, 9_000.0]) {
        for (nth, slice) in rung.slices.iter_mut().enumerate() {
            slice.tokens = Some(TokenFigures {
                gap_p99_us: Some(gap_us + nth as f64),
                ..TokenFigures::default()
            });
        }
    }
    ladder.batches = Some(BatchesRecord::from_measurements(&[], ALPHA, 0, 1));
    let AddedCost::Significant(gap) = ladder.added_cost(1, 0, LadderMetric::TokenGap) else {
        panic!("{:?}", ladder.added_cost(1, 0, LadderMetric::TokenGap));
    };
    assert!(gap.low <= 7_000.0 && gap.high >= 7_000.0, "{gap:?}");
    assert_eq!(
        ladder.added_cost(1, 0, LadderMetric::P50),
        AddedCost::TooFewRounds
    );
}

#[test]
fn token_gates_need_calls_that_stream() {
    let mut ladder = simulated(&[0.0, 40.0], 20, 5);
    ladder.gates = vec!["first_token +1ms".parse().unwrap()];
    let obstacle = ladder.evaluate_gates()[0].obstacle;
    assert_eq!(obstacle, Some(GateObstacle::NotMeasured));
    for slice in ladder.rungs.iter_mut().flat_map(|rung| &mut rung.slices) {
        slice.tokens = Some(TokenFigures {
            first_p50_us: slice.p50_us,
            ..TokenFigures::default()
        });
    }
    let result = &ladder.evaluate_gates()[0];
    assert_eq!(
        (result.obstacle, result.outcome),
        (None, GateOutcome::Within)
    );
}

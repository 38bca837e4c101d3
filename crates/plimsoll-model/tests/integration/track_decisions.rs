//! Tests of decisions about two versions. The services are simulated, and all decides that decides in a measurement:
//! intervals, their division over interim looks, gates and verdicts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "the documentation reports these figures"
)]

use plimsoll_model::comparisons::ladder::batches::{
    BatchesRecord, RungDifference, RungMeasurement,
};
use plimsoll_model::comparisons::ladder::{
    GateOutcome, LadderMetric, LadderRecord, Rung, SliceResult,
};
use plimsoll_model::comparisons::track::{
    DEFAULT_GATES, ERROR_PROBABILITY, ErrorBudget, TrackJudgement, VersionComparison,
};
use plimsoll_model::plan::BatchSchedule;
use plimsoll_model::records::record::BatchStart;
use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_model::statistics::paired::PairedDifference;
use plimsoll_model::{CallSample, Outcome, Time};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Interim looks at the intervals: 20 s each of a budget of 3 minutes.
const LOOKS: u32 = 9;
/// Restarts of both servers between two looks.
const REPLICATES: u64 = 5;
/// Rounds of a replicate at 1,000 calls a second.
const ROUNDS: u64 = 100;
const CALLS: u32 = 20;

/// What a new version does to the old one's times and CPU time.
#[derive(Clone, Copy)]
struct VersionChange {
    /// Factor of the times of all calls.
    time: f64,
    /// Factor of the server's CPU time.
    cpu: f64,
}

const UNCHANGED: VersionChange = VersionChange {
    time: 1.0,
    cpu: 1.0,
};

/// Independent numbers from 0 to 1, and normal ones.
struct Draws(ChaCha8Rng);

impl Draws {
    fn uniform(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0
    }

    /// Box–Muller transform.
    fn normal(&mut self) -> f64 {
        let (a, b) = (self.uniform(), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// One replicate of both versions: a service of 2 ms whose times have a lognormal tail, on a machine whose speed drifts
/// by a fifth and which takes some milliseconds away now and then. Processes of one program differ by half a percent.
fn replicate(change: VersionChange, draws: &mut Draws, begin: u64) -> Vec<RungMeasurement> {
    let versions = [UNCHANGED, change];
    let mut rungs: Vec<RungMeasurement> = (0..2)
        .map(|index| {
            let turns = BatchSchedule {
                of: 2,
                index,
                share: 1,
                calls: CALLS,
                seed: begin,
                read_cpu: true,
                slot: None,
            };
            RungMeasurement::new(turns, 2, vec![false])
        })
        .collect();
    let process = [0, 1].map(|_| (1.0 + 0.005 * draws.normal(), 1.0 + 0.005 * draws.normal()));
    let mut spent_ns = [0.0, 0.0];
    let mut starts = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let machine = 1.0 + 0.2 * ((begin + round) as f64 / 300.0).sin();
        let first = (draws.uniform() < 0.5) as usize;
        for rung in [first, 1 - first] {
            starts[rung].push(BatchStart {
                batch: round,
                client_ns: 0,
                server_ns: Some(spent_ns[rung] as u64),
                done: None,
            });
            for call in 0..u64::from(CALLS) {
                let stall = if draws.uniform() < 0.001 {
                    4e6 * draws.uniform()
                } else {
                    0.0
                };
                let own = 2e6 * machine * versions[rung].time * process[rung].0;
                let ns = own * (0.15 * draws.normal()).exp() + stall;
                let done = Time(ns as u64);
                rungs[rung].add_call(&CallSample {
                    number: round * u64::from(CALLS) + call,
                    arrival: Time(0),
                    sent: Time(0),
                    first_byte: done,
                    done,
                    stage: 0,
                    outcome: Outcome::Ok,
                    bytes_sent: 0,
                    bytes_received: 0,
                });
                let cpu = 2e5 * versions[rung].cpu * process[rung].1;
                spent_ns[rung] += cpu * machine.sqrt() * (0.8 + 0.4 * draws.uniform());
            }
        }
    }
    for (rung, batches) in rungs.iter_mut().zip(starts) {
        rung.add_interval(&IntervalRecord {
            batches,
            ..IntervalRecord::default()
        });
    }
    RungMeasurement::end_batch_group(&mut rungs, &[&[1], &[2]]);
    rungs
}

/// Measures until the gates are decided, as `plimsoll track` does.
fn compared(change: VersionChange, seed: u64) -> VersionComparison {
    let mut draws = Draws(ChaCha8Rng::seed_from_u64(seed));
    let mut all: Vec<RungMeasurement> = Vec::new();
    let mut ladder = LadderRecord {
        rungs: vec![Rung::default(), Rung::default()],
        gates: DEFAULT_GATES.map(|gate| gate.parse().unwrap()).into(),
        ..LadderRecord::default()
    };
    for look in 1..=LOOKS {
        for _ in 0..REPLICATES {
            let begin = draws.0.next_u64() % 1_000_000;
            let more = replicate(change, &mut draws, begin);
            if all.is_empty() {
                all = more;
            } else {
                RungMeasurement::extend_with_replicate(&mut all, more);
            }
        }
        let alpha = ERROR_PROBABILITY / 2.0 / f64::from(LOOKS);
        ladder.batches = Some(BatchesRecord::from_measurements(&all, alpha, 0, seed));
        for (rung, measured) in ladder.rungs.iter_mut().zip(&all) {
            rung.slices = vec![SliceResult {
                p50_us: measured.quantile_us(0.5),
                p99_us: measured.quantile_us(0.99),
                server_cpu_us_per_call: measured.server_cpu_us_per_call(),
                ..SliceResult::default()
            }];
        }
        let found = VersionComparison::from_ladder(&ladder, ".".to_owned(), ERROR_PROBABILITY);
        if found.verdict != TrackJudgement::Undecided || look == LOOKS {
            return found;
        }
    }
    unreachable!("the last look returns");
}

/// Returns how many of `n` comparisons ended with each verdict: not slower, slower, undecided.
fn verdicts(change: VersionChange, n: u64, seed: u64) -> [usize; 3] {
    let half = |from: u64, to: u64| {
        let mut counts = [0; 3];
        for pull_request in from..to {
            counts[match compared(change, seed + pull_request).verdict {
                TrackJudgement::NotSlower => 0,
                TrackJudgement::Slower => 1,
                TrackJudgement::Undecided => 2,
            }] += 1;
        }
        counts
    };
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(0, n / 2));
        let own = half(n / 2, n);
        (other.join().unwrap(), own)
    });
    let counts = [0, 1, 2].map(|i| first[i] + second[i]);
    println!("{n}: not slower, slower, undecided: {counts:?}");
    counts
}

/// Returns how many comparisons a test makes: `default`, or as many as the variable says.
fn count(default: u64) -> u64 {
    let given = std::env::var("TRACKS").ok();
    given.map_or(default, |text| text.parse().unwrap())
}

/// Asserts that at least nine in ten comparisons find a change, or all but one of a few.
fn assert_is_found(change: VersionChange, seed: u64) {
    let n = count(3);
    let [_, slower, _] = verdicts(change, n, seed);
    assert!(slower as u64 + (n / 10).max(1) >= n, "{slower} of {n}");
}

/// `TRACKS=200` makes as many as the documentation reports.
#[test]
fn unchanged_versions_are_hardly_ever_slower() {
    let n = count(6);
    let [not_slower, slower, _] = verdicts(UNCHANGED, n, 1_000);
    assert!(slower as u64 <= n / 200, "{slower} of {n}");
    assert!(not_slower as u64 * 10 >= n * 8, "{not_slower} of {n}");
}

#[test]
fn three_percent_more_cpu_is_found() {
    let change = VersionChange {
        cpu: 1.03,
        ..UNCHANGED
    };
    assert_is_found(change, 2_000);
}

#[test]
fn five_percent_longer_times_are_found() {
    let change = VersionChange {
        time: 1.05,
        ..UNCHANGED
    };
    assert_is_found(change, 3_000);
}

/// At the limit itself a version may be called slower by chance: at most half of the error probability.
#[test]
fn change_at_limit_is_rarely_called_slower() {
    let change = VersionChange {
        cpu: 1.015,
        ..UNCHANGED
    };
    let n = count(1);
    let [_, slower, _] = verdicts(change, n, 4_000);
    assert!(slower as u64 <= n / 20, "{slower} of {n}");
}

#[test]
fn failing_version_is_not_judged_by_its_times() {
    let batches = BatchesRecord {
        calls: 20,
        warmup_calls: 2,
        rounds: 100,
        replicates: 5,
        required_replicates: 5,
        kept_awake: false,
        wanted_us: None,
        alpha: ERROR_PROBABILITY / 2.0,
        differences: vec![RungDifference {
            of: 1,
            to: 0,
            metric: LadderMetric::P50,
            paired: PairedDifference {
                shift: 0.0,
                low: -1.0,
                high: 1.0,
            },
        }],
    };
    let rung = |errors| Rung {
        slices: vec![SliceResult {
            p50_us: Some(1_000.0),
            ok: Some(1_000 - errors),
            errors,
            ..SliceResult::default()
        }],
        ..Rung::default()
    };
    let verdict_of = |errors| {
        let ladder = LadderRecord {
            rungs: vec![rung(0), rung(errors)],
            batches: Some(batches.clone()),
            gates: vec!["p50 +1%".parse().unwrap()],
            ..LadderRecord::default()
        };
        let gated = ladder.evaluate_gates();
        let is_decided = gated[0].outcome != GateOutcome::Undecided;
        assert_eq!(is_decided, gated[0].obstacle.is_none());
        VersionComparison::from_ladder(&ladder, ".".to_owned(), 0.01).verdict
    };
    assert_eq!(verdict_of(10), TrackJudgement::NotSlower);
    assert_eq!(verdict_of(11), TrackJudgement::Undecided);
}

#[test]
fn shares_of_search_never_exceed_whole() {
    for commits in [1, 2, 3, 6, 8, 100, 1_000] {
        let mut budget = ErrorBudget::new(ERROR_PROBABILITY);
        let mut spent = budget.spend(commits);
        let mut left = commits;
        while left > 1 {
            let share = budget.spend(left);
            // No step of a search without skipped commits has less than half of an equal share.
            let steps = commits.max(2).next_power_of_two().trailing_zeros() + 1;
            let equal = ERROR_PROBABILITY / f64::from(steps + 1);
            assert!(share > equal / 2.0, "{commits}: {share}");
            spent += share;
            left = left.div_ceil(2);
        }
        // Commits that can't be built make a search as long as it likes.
        spent += (0..50).map(|_| budget.spend(2)).sum::<f64>();
        assert!(spent <= ERROR_PROBABILITY, "{commits}: {spent}");
    }
}

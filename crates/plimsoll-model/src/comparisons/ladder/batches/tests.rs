//! Tests of ladders in batches.
//!
//! This file is long because all tests share one simulated machine.

use rand_chacha::rand_core::RngCore;

use super::*;
use crate::comparisons::ladder::ALPHA;
use crate::schedule::batches::shuffle_batches;
use crate::{formats::time::Time, metrics::outcome::Outcome};

/// Rungs that add these costs each, on a machine with noise, drift, and bursts in which another process or the
/// hypervisor takes the CPU away for some rounds.
struct NoisyMachine<'a> {
    adds_us: &'a [f64],
    rounds: u64,
    calls: u32,
    /// Additional cost of one rung for about ten rounds, µs.
    disturbance_us: f64,
    /// Number of replicates that the rounds are divided into.
    replicates: u64,
    /// Standard deviation of processes of the same program, in time and in CPU time of either end, µs per call.
    process_us: f64,
}

/// Two equal rungs.
const EQUAL: NoisyMachine<'_> = NoisyMachine {
    adds_us: &[0.0, 0.0],
    rounds: 600,
    calls: 10,
    disturbance_us: 0.0,
    replicates: 1,
    process_us: 0.0,
};

/// Deviation of a process from others of the same program.
#[derive(Clone, Copy, Default)]
struct ProcessOffsets {
    time_us: f64,
    client_us: f64,
    server_us: f64,
}

impl NoisyMachine<'_> {
    fn measured(&self, seed: u64) -> Vec<RungMeasurement> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut uniform = move || (f64::from(random.next_u32()) + 0.5) / 4_294_967_296.0;
        let of = self.adds_us.len() as u32;
        let mut all: Vec<RungMeasurement> = Vec::new();
        let mut luck = vec![0.0; of as usize];
        let (mut elapsed, mut burst_until, mut burst) = (0.0_f64, 0.0, 1.0);
        for sitting in 0..self.replicates {
            let seed = seed.wrapping_add(sitting);
            let turns = |index| BatchSchedule {
                of,
                index,
                share: 1,
                calls: self.calls,
                seed,
                read_cpu: true,
                slot: None,
            };
            let mut rungs: Vec<RungMeasurement> = (0..of)
                .map(|index| RungMeasurement::new(turns(index), 2, vec![false]))
                .collect();
            let mut processes = vec![ProcessOffsets::default(); of as usize];
            if self.process_us > 0.0 {
                let mut apart = || self.process_us * normal(&mut uniform);
                for process in &mut processes {
                    *process = ProcessOffsets {
                        time_us: apart(),
                        client_us: apart(),
                        server_us: apart(),
                    };
                }
            }
            let mut spent = vec![(0.0, 0.0); of as usize];
            for round in 0..self.rounds / self.replicates {
                for luck in &mut luck {
                    if uniform() < 0.1 {
                        *luck = self.disturbance_us * uniform();
                    }
                }
                for rung in shuffle_batches(of, round, seed) {
                    let rung = rung as usize;
                    let (add, process) =
                        (self.adds_us[..=rung].iter().sum::<f64>(), processes[rung]);
                    rungs[rung].batch_starts.push(BatchStart {
                        batch: round,
                        client_ns: (spent[rung].0 * 1e3) as u64,
                        server_ns: Some((spent[rung].1 * 1e3) as u64),
                        done: None,
                    });
                    for call in 0..self.calls {
                        elapsed += 1.0;
                        if elapsed > burst_until && uniform() < 0.000_2 {
                            burst_until = elapsed + 400.0 * uniform();
                            burst = 1.0 + 3.0 * uniform();
                        }
                        let machine = 1.0
                            + 0.2 * (elapsed / 9_000.0).sin()
                            + if elapsed < burst_until {
                                burst * uniform()
                            } else {
                                0.0
                            };
                        let stolen = if uniform() < 0.002 {
                            4_000.0 * uniform()
                        } else {
                            0.0
                        };
                        let own = 120.0 * machine - 6.0 * uniform().ln();
                        let us = own + add + stolen + luck[rung] + process.time_us;
                        let ns = (us * 1e3) as u64;
                        rungs[rung].add_call(&CallSample {
                            number: round * u64::from(self.calls) + u64::from(call),
                            arrival: Time(0),
                            sent: Time(0),
                            first_byte: Time(ns),
                            done: Time(ns),
                            stage: 0,
                            outcome: Outcome::Ok,
                            bytes_sent: 0,
                            bytes_received: 0,
                        });
                        let mut cpu =
                            |own: f64| (own + add / 2.0) * machine * (0.95 + 0.1 * uniform());
                        spent[rung].0 += cpu(20.0 + process.client_us);
                        spent[rung].1 += cpu(25.0 + process.server_us);
                    }
                }
            }
            let servers: Vec<[i32; 1]> = (0..of as i32).map(|pid| [pid]).collect();
            let servers: Vec<&[i32]> = servers.iter().map(<[i32; 1]>::as_slice).collect();
            RungMeasurement::end_batch_group(&mut rungs, &servers);
            match sitting {
                0 => all = rungs,
                _ => RungMeasurement::extend_with_replicate(&mut all, rungs),
            }
        }
        all
    }

    fn ladder(&self, seed: u64) -> BatchesRecord {
        BatchesRecord::from_measurements(&self.measured(seed), ALPHA, 0, seed)
    }
}

/// Box–Muller transform.
fn normal(uniform: &mut impl FnMut() -> f64) -> f64 {
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

fn fresh() -> u64 {
    let given = std::env::var("LADDER_SEED").ok();
    let seed = given.map_or_else(
        || {
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap()
                .as_nanos() as u64
        },
        |text| text.parse().unwrap(),
    );
    println!("LADDER_SEED={seed}");
    seed
}

/// Equal rungs are distinguished in at most the promised share of `LADDERS` ladders.
fn assert_rarely_differs(machine: &NoisyMachine<'_>) {
    let given = std::env::var("LADDERS").ok();
    let ladders: u64 = given.map_or(100, |text| text.parse().unwrap());
    let seed = fresh();
    let claimed = (0..ladders)
        .filter(|n| {
            let found = machine.ladder(seed.wrapping_add(n << 16)).differences;
            found.iter().any(|d| d.paired.excludes_zero())
        })
        .count();
    println!("claimed in {claimed} of {ladders}");
    // The promise is 5 of 100; more than 18 happen by chance once in two million times.
    let promised = ladders as f64 * 0.05;
    let most = promised + 6.0 * (promised * 0.95).sqrt();
    assert!(claimed as f64 <= most, "{claimed} of {ladders}");
}

#[test]
fn equal_rungs_rarely_differ() {
    assert_rarely_differs(&NoisyMachine {
        adds_us: &[0.0, 0.0, 0.0],
        rounds: 200,
        calls: 20,
        ..EQUAL
    });
}

#[test]
fn equal_rungs_with_drift_rarely_differ() {
    assert_rarely_differs(&NoisyMachine {
        rounds: 660,
        disturbance_us: 60.0,
        ..EQUAL
    });
}

/// Like a ladder of 5 s.
const REPLICATES: NoisyMachine<'_> = NoisyMachine {
    rounds: 250,
    calls: 20,
    replicates: 10,
    ..EQUAL
};

#[test]
fn equal_replicated_rungs_rarely_differ() {
    assert_rarely_differs(&REPLICATES);
}

#[test]
fn equal_rungs_rarely_differ_across_processes() {
    assert_rarely_differs(&NoisyMachine {
        process_us: 0.35,
        ..REPLICATES
    });
}

/// The deviation is far larger than what batches resolve: a single replicate would report it in every ladder.
#[test]
fn large_process_variation_shows_no_difference() {
    let much = NoisyMachine {
        process_us: 5.0,
        ..REPLICATES
    };
    assert_rarely_differs(&much);
    let seed = fresh();
    let one = NoisyMachine {
        replicates: 1,
        ..much
    };
    let claimed = (0..20).filter(|n| {
        let found = one.ladder(seed.wrapping_add(*n)).differences;
        found.iter().any(|d| d.paired.excludes_zero())
    });
    assert!(claimed.count() >= 15);
}

#[test]
fn missing_replicate_count_means_one() {
    let mut kept = serde_json::to_value(EQUAL.ladder(1)).unwrap();
    kept.as_object_mut().unwrap().remove("replicates").unwrap();
    let read: BatchesRecord = serde_json::from_value(kept).unwrap();
    assert_eq!(read.replicates, 1);
}

#[test]
fn names_of_first_format_version_are_read() {
    let record = LadderRecord {
        batches: Some(EQUAL.ladder(1)),
        ..LadderRecord::default()
    };
    let text = serde_json::to_string(&record).unwrap();
    let mut first = text.clone();
    for (new, old) in [
        ("batches", "turns"),
        ("warmup_calls", "left_out"),
        ("replicates", "sittings"),
    ] {
        let renamed = first.replace(&format!("\"{new}\":"), &format!("\"{old}\":"));
        assert_ne!(renamed, first, "{new}");
        first = renamed;
    }
    let read: LadderRecord = serde_json::from_str(&first).unwrap();
    let expected: LadderRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(read, expected);
    assert!(read.batches.is_some());
}

/// An interrupted replicate would give a less precise difference than the others.
#[test]
fn incomplete_replicate_is_excluded() {
    let mut rungs = REPLICATES.measured(1);
    let more = |rounds| {
        NoisyMachine {
            rounds,
            replicates: 1,
            ..REPLICATES
        }
        .measured(2)
    };
    RungMeasurement::extend_with_replicate(&mut rungs, more(10));
    RungMeasurement::extend_with_replicate(&mut rungs, more(20));
    let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, 1);
    assert_eq!((record.replicates, record.rounds), (11, 270));
}

/// Like a ladder of 20 s.
const LONG: NoisyMachine<'_> = NoisyMachine {
    rounds: 1_000,
    replicates: 20,
    ..REPLICATES
};

#[test]
fn small_difference_shows_between_varying_processes() {
    for (adds_us, fewest) in [(5.0, 18), (2.0, 15)] {
        let seed = fresh();
        let (mut found, mut held, mut resolved) = (0, 0, 0.0);
        for n in 0..20 {
            let machine = NoisyMachine {
                adds_us: &[0.0, adds_us],
                process_us: 0.35,
                ..LONG
            };
            let record = machine.ladder(seed.wrapping_add(n << 16));
            assert_eq!((record.replicates, record.rounds), (20, 1_000));
            let d = record.difference(1, 0, LadderMetric::P50).unwrap();
            found += usize::from(d.low > 0.0);
            held += usize::from(d.low <= adds_us && d.high >= adds_us);
            resolved += record.resolution_us().unwrap() / 20.0;
        }
        println!("{adds_us} µs found in {found} of 20, held in {held}; resolved to ±{resolved:.2}");
        assert!(found >= fewest && held >= 14, "found {found}, held {held}");
        assert!(resolved < 1.0, "{resolved}");
    }
}

#[test]
fn replication_costs_little_resolution() {
    let seed = fresh();
    let resolved = |sittings| -> f64 {
        let machine = NoisyMachine {
            replicates: sittings,
            ..LONG
        };
        let ladders = (0..20).map(|n| machine.ladder(seed.wrapping_add(n << 16)));
        ladders.map(|record| record.resolution_us().unwrap()).sum()
    };
    let ratio = resolved(20) / resolved(1);
    println!("{ratio}");
    assert!((0.9..1.4).contains(&ratio), "{ratio}");
}

#[test]
fn small_difference_shows_on_noisy_machine() {
    let machine = NoisyMachine {
        adds_us: &[0.0, 5.0],
        rounds: 400,
        calls: 20,
        ..EQUAL
    };
    let seed = fresh();
    let (mut found, mut held) = (0, 0);
    for n in 0..40 {
        let record = machine.ladder(seed.wrapping_add(n));
        assert_eq!(record.rounds, 400);
        let d = record.difference(1, 0, LadderMetric::P50).unwrap();
        found += usize::from(d.excludes_zero() && (d.shift - 5.0).abs() <= 1.5);
        held += usize::from(d.low <= 5.0 && d.high >= 5.0);
        assert!(record.resolution_us().unwrap() < 5.0);
        let cpu = record.difference(1, 0, LadderMetric::ClientCpu).unwrap();
        assert!(cpu.low < 3.5 && cpu.high > 2.0, "{cpu:?}");
    }
    // The promise is 95 %; fewer than 29 happen by chance once in two million times.
    assert!(
        found >= 29 && held >= 29,
        "found {found}, held {held}, of 40"
    );
}

#[test]
fn slow_tail_shows_only_in_p99() {
    let seed = fresh();
    let mut found = 0;
    for n in 0..20 {
        let machine = NoisyMachine {
            rounds: 400,
            calls: 20,
            ..EQUAL
        };
        let mut rungs = machine.measured(seed.wrapping_add(n));
        // One call in eighteen of every round.
        for round in &mut rungs[1].times_by_round {
            round[4] += 9_000_000;
        }
        let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, seed);
        let d = record.difference(1, 0, LadderMetric::P99).unwrap();
        found += usize::from(d.low > 0.0 && d.low <= d.shift && d.shift <= d.high);
        let p50 = record.difference(1, 0, LadderMetric::P50).unwrap();
        assert!(p50.shift < 3.0, "{p50:?}");
    }
    assert!(found >= 12, "{found} of 20");
}

#[test]
fn failed_and_warmup_calls_are_excluded() {
    let turns = BatchSchedule {
        of: 2,
        index: 0,
        share: 1,
        calls: 4,
        seed: 1,
        read_cpu: true,
        slot: None,
    };
    let sample = |number, stage, outcome| CallSample {
        number,
        arrival: Time(0),
        sent: Time(0),
        first_byte: Time(1_000 * number),
        done: Time(1_000 * number),
        stage,
        outcome,
        bytes_sent: 0,
        bytes_received: 0,
    };
    let mut measured = RungMeasurement::new(turns, 1, vec![true, false]);
    for number in 0..4 {
        measured.add_call(&sample(number, 0, Outcome::Ok));
    }
    for number in 4..8 {
        measured.add_call(&sample(number, 1, Outcome::Ok));
    }
    measured.add_call(&sample(9, 1, Outcome::Ok));
    measured.add_call(&sample(10, 1, Outcome::ConnectFailed));
    assert_eq!(
        measured.times_by_round,
        [vec![], vec![5_000, 6_000, 7_000], vec![9_000]]
    );
    assert!(
        !measured.has_enough_calls(0)
            && measured.has_enough_calls(1)
            && !measured.has_enough_calls(2)
            && !measured.has_enough_calls(3)
    );
    assert_eq!(measured.median_us(LadderMetric::P50, 1), Some(6.0));
}

/// Two rungs with one batch of one call per round, alternately, with their clock readings at its start.
fn two_rungs(servers: [[u64; 4]; 2]) -> Vec<RungMeasurement> {
    let rung = |server_ns: [u64; 4]| {
        let turns = BatchSchedule {
            of: 2,
            index: 0,
            share: 1,
            calls: 1,
            seed: 1,
            read_cpu: true,
            slot: None,
        };
        let mut measured = RungMeasurement::new(turns, 0, vec![false]);
        measured.times_by_round = vec![vec![1]; 4];
        let read = (0..).zip(server_ns).map(|(turn, ns)| BatchStart {
            batch: turn,
            client_ns: 7_000 * turn,
            server_ns: Some(ns),
            done: None,
        });
        measured.batch_starts = read.collect();
        measured
    };
    servers.map(rung).into()
}

fn server_us(measured: &RungMeasurement) -> Vec<Option<f64>> {
    let of = |round| measured.cpu_us_per_call(LadderMetric::ServerCpu, round);
    (0..4).map(of).collect()
}

#[test]
fn shared_server_cpu_is_split_by_batch() {
    // 20 µs for a batch of the first rung, 30 µs for one of the second.
    let shared = || {
        two_rungs([
            [1_000, 51_000, 101_000, 151_000],
            [21_000, 71_000, 121_000, 171_000],
        ])
    };
    let mut rungs = shared();
    RungMeasurement::end_batch_group(&mut rungs, &[&[7, 8], &[7, 8]]);
    assert_eq!(
        server_us(&rungs[0]),
        [Some(20.0), Some(20.0), Some(20.0), None]
    );
    assert_eq!(
        server_us(&rungs[1]),
        [Some(30.0), Some(30.0), Some(30.0), None]
    );
    assert_eq!(
        rungs[0].cpu_us_per_call(LadderMetric::ClientCpu, 1),
        Some(7.0)
    );
    assert_eq!(rungs[1].server_cpu_us_per_call(), Some(30.0));

    let mut rungs = two_rungs([
        [1_000, 21_000, 41_000, 61_000],
        [500, 30_500, 60_500, 90_500],
    ]);
    RungMeasurement::end_batch_group(&mut rungs, &[&[7], &[8]]);
    assert_eq!(rungs[0].server_cpu_us_per_call(), Some(20.0));
    assert_eq!(rungs[1].server_cpu_us_per_call(), Some(30.0));

    // Other work of the servers may be included.
    let mut rungs = shared();
    RungMeasurement::end_batch_group(&mut rungs, &[]);
    assert_eq!(rungs[0].server_cpu_us_per_call(), None);

    // Process 8 serves both rungs, so its CPU time can't be attributed.
    let mut rungs = shared();
    RungMeasurement::end_batch_group(&mut rungs, &[&[7, 8], &[8]]);
    assert_eq!(rungs[0].server_cpu_us_per_call(), None);
    assert_eq!(rungs[1].server_cpu_us_per_call(), None);
}

#[test]
fn bursty_cpu_cost_counts_in_difference() {
    let mut rungs = EQUAL.measured(fresh());
    // One batch in ten collects garbage.
    for used in rungs[1].cpu_by_round.iter_mut().step_by(10).flatten() {
        used.client_ns += 2_000_000;
    }
    let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, 1);
    let d = record.difference(1, 0, LadderMetric::ClientCpu).unwrap();
    assert!((15.0..25.0).contains(&d.shift) && d.low > 10.0, "{d:?}");
}

#[test]
fn coarse_cpu_clock_yields_no_difference() {
    let mut rungs = EQUAL.measured(fresh());
    for (rung, ticks) in rungs.iter_mut().zip([1, 2]) {
        for used in rung.cpu_by_round.iter_mut().flatten() {
            used.client_ns = ticks * 4_000_000;
        }
    }
    let record = BatchesRecord::from_measurements(&rungs, ALPHA, 0, 1);
    assert_eq!(record.difference(1, 0, LadderMetric::ClientCpu), None);
    assert!(record.difference(1, 0, LadderMetric::P50).is_some());
}

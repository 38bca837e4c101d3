use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::plan::{BatchSchedule, LoadStage};

fn load(spacing: ArrivalSpacing, stages: Vec<LoadStage>, calls: Option<u64>) -> LoadPlan {
    LoadPlan {
        arrivals: plan::ArrivalModel::Open(spacing),
        stages,
        calls,
        ..LoadPlan::default()
    }
}

fn stage(warmup: bool, millis: u64, from: f64, to: f64) -> LoadStage {
    LoadStage {
        name: "stage".into(),
        warmup,
        duration: Some(Duration::from_millis(millis)),
        rate_from: from,
        rate_to: to,
    }
}

fn all(schedule: &Schedule) -> Vec<Arrival> {
    schedule.share(0, 1).collect()
}

#[test]
fn constant_arrivals_are_evenly_spaced() {
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Constant,
            vec![
                stage(true, 1_000, 3.0, 3.0),
                stage(false, 2_000, 1000.0, 1000.0),
            ],
            None,
        ),
        1,
    );
    let arrivals = all(&schedule);
    assert_eq!(arrivals.len(), 3 + 2000);
    assert_eq!(arrivals[1].at, 333_333_333);
    assert_eq!(arrivals[2].at, 666_666_667);
    for (k, arrival) in arrivals[3..].iter().enumerate() {
        assert_eq!(arrival.at, 1_000_000_000 + k as u64 * 1_000_000);
        assert_eq!(arrival.stage, 1);
    }
    assert_eq!(schedule.end(), Some(3_000_000_000));
    assert_eq!(schedule.stage_at(999_999_999), Some(0));
    assert_eq!(schedule.stage_at(1_000_000_000), Some(1));
    assert_eq!(schedule.stage_at(3_000_000_000), None);
}

#[test]
fn low_rate_yields_exact_call_count() {
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Constant,
            vec![stage(false, 10_000, 0.1, 0.1)],
            None,
        ),
        1,
    );
    assert_eq!(all(&schedule).len(), 1);
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Constant,
            vec![stage(false, 10_000, 0.0, 0.0)],
            None,
        ),
        1,
    );
    assert_eq!(all(&schedule).len(), 0);
}

#[test]
fn call_limit_excludes_warmup() {
    for spacing in [ArrivalSpacing::Constant, ArrivalSpacing::Poisson] {
        let schedule = Schedule::new(
            &load(
                spacing,
                vec![
                    stage(true, 1_000, 100.0, 100.0),
                    stage(false, 10_000, 100.0, 100.0),
                ],
                Some(250),
            ),
            7,
        );
        let measured = all(&schedule).iter().filter(|a| a.stage == 1).count();
        assert_eq!(measured, 250, "{spacing:?}");
    }
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Constant,
            vec![
                stage(true, 1_000, 100.0, 100.0),
                stage(false, 10_000, 100.0, 100.0),
            ],
            Some(250),
        ),
        7,
    );
    assert_eq!(schedule.end(), Some(3_500_000_000));
}

#[test]
fn long_schedules_do_not_drift() {
    let hours = 6 * 3_600 * 1_000;
    for rate in [50_000.0, 30_000.0, 49_999.0] {
        let schedule = Schedule::new(
            &load(
                ArrivalSpacing::Constant,
                vec![stage(false, hours, rate, rate)],
                None,
            ),
            1,
        );
        let k = 600_000_000u64;
        let far = schedule
            .share(0, 1)
            .nth(k as usize)
            .expect("within six hours");
        let exact = (u128::from(k) * 1_000_000_000 + rate as u128 / 2) / rate as u128;
        assert_eq!(far.number, k);
        assert_eq!(u128::from(far.at), exact, "rate {rate}");
    }
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Constant,
            vec![stage(false, hours * 2, 50_000.0, 50_000.0)],
            None,
        ),
        1,
    );
    let far = schedule
        .share(1, 2)
        .nth(500_000_000)
        .expect("within twelve hours");
    assert_eq!((far.number, far.at), (1_000_000_001, 20_000_000_020_000));
}

#[test]
fn a_ramp_follows_its_integral() {
    for (from, to) in [(0.0, 1000.0), (1000.0, 0.0), (200.0, 900.0)] {
        let schedule = Schedule::new(
            &load(
                ArrivalSpacing::Constant,
                vec![stage(false, 10_000, from, to)],
                None,
            ),
            1,
        );
        let arrivals = all(&schedule);
        assert_eq!(arrivals.len() as f64, (from + to) / 2.0 * 10.0);
        for probe in [1.0f64, 2.5, 5.0, 9.0, 9.99] {
            let due = arrivals
                .iter()
                .filter(|a| (a.at as f64) < probe * 1e9)
                .count();
            let integral = from * probe + (to - from) * probe * probe / 20.0;
            assert!(
                (due as f64 - integral).abs() <= 1.0,
                "{from}→{to} at {probe}s: {due} for {integral}"
            );
        }
        assert!(arrivals.windows(2).all(|w| w[0].at <= w[1].at));
    }
}

#[test]
fn poisson_gaps_are_exponential() {
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Poisson,
            vec![stage(false, 200_000, 1000.0, 1000.0)],
            None,
        ),
        42,
    );
    let arrivals = all(&schedule);
    let n = arrivals.len() as f64;
    // Five standard deviations of a Poisson count of mean 200,000.
    assert!((n - 200_000.0).abs() < 5.0 * 200_000f64.sqrt(), "{n}");
    let gaps: Vec<f64> = arrivals
        .windows(2)
        .map(|w| (w[1].at - w[0].at) as f64 / 1e6)
        .collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    assert!((mean - 1.0).abs() < 0.012, "mean {mean}");
    assert!((variance - 1.0).abs() < 0.03, "variance {variance}");
}

#[test]
fn random_arrivals_say_when_their_count_cuts_them_off() {
    for spacing in [ArrivalSpacing::Poisson, ArrivalSpacing::Gamma(0.25)] {
        let of = |calls| {
            let stages = vec![stage(false, 100_000, 20.0, 20.0)];
            Schedule::new(&load(spacing, stages, Some(calls)), 7)
        };
        let (fewer, more) = (of(20), of(21));
        let next = all(&more)[20].at;
        for share in 0..3 {
            let mut arrivals = fewer.share(share, 3);
            assert_eq!(arrivals.first_excess_time(), None);
            while arrivals.next().is_some() {}
            // The arrival that one call more would have brought, in every share.
            assert_eq!(arrivals.first_excess_time(), Some(next), "{spacing:?}");
        }
    }
}

#[test]
fn gamma_gaps_have_mean_and_variance() {
    for shape in [0.25, 1.0, 4.0] {
        let stages = vec![stage(false, 100_000, 1000.0, 1000.0)];
        let arrivals = all(&Schedule::new(
            &load(ArrivalSpacing::Gamma(shape), stages, None),
            42,
        ));
        // A count's variance is that of the gaps: 1 / shape for each.
        let n = arrivals.len() as f64;
        assert!(
            (n - 100_000.0).abs() < 5.0 * (100_000.0 / shape).sqrt(),
            "{shape}: {n}"
        );
        let pairs = arrivals.windows(2);
        let gaps: Vec<f64> = pairs.map(|w| (w[1].at - w[0].at) as f64 / 1e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (mean - 1.0).abs() < 5.0 * (1.0 / shape / n).sqrt(),
            "{shape}: {mean}"
        );
        assert!((variance * shape - 1.0).abs() < 0.1, "{shape}: {variance}");
    }
}

/// Bursts start at an arbitrary moment of the process: the longer a gap is, the more likely a run is to start in it, so
/// short runs too have as many arrivals as their rate says.
#[test]
fn short_gamma_runs_have_arrivals_of_their_rate() {
    const RUNS: u64 = 4_000;
    let short = load(
        ArrivalSpacing::Gamma(0.25),
        vec![stage(false, 5_000, 1.0, 1.0)],
        None,
    );
    let counts = (0..RUNS).map(|seed| all(&Schedule::new(&short, seed)).len() as f64);
    let counts: Vec<f64> = counts.collect();
    let mean = counts.iter().sum::<f64>() / RUNS as f64;
    let variance = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / RUNS as f64;
    let error = (variance / RUNS as f64).sqrt();
    // A process that began with an arrival would have 1.5 more.
    assert!((mean - 5.0).abs() < 5.0 * error, "{mean} ± {error}");
}

#[test]
fn measured_call_count_excludes_warmup() {
    let endless = LoadStage {
        duration: None,
        ..stage(false, 0, 10.0, 10.0)
    };
    let timed = vec![
        stage(true, 1_000, 50.0, 50.0),
        stage(false, 3_000, 10.0, 31.0),
    ];
    let measured = |load: &LoadPlan| {
        let schedule = Schedule::new(load, 1);
        let warms_up = |a: &Arrival| schedule.stage_bounds()[usize::from(a.stage)].warmup;
        let arrivals = schedule.share(0, 1).take(10_000);
        arrivals.filter(|a| !warms_up(a)).count()
    };
    // The stages' mean rate is 20.5 per second.
    let of_all = measured(&load(ArrivalSpacing::Constant, timed.clone(), None));
    assert!((61..=62).contains(&of_all), "{of_all}");
    for spacing in [
        ArrivalSpacing::Constant,
        ArrivalSpacing::Poisson,
        ArrivalSpacing::Gamma(0.3),
    ] {
        assert_eq!(measured(&load(spacing, timed.clone(), Some(7))), 7);
        let endless = vec![endless.clone()];
        assert_eq!(measured(&load(spacing, endless.clone(), None)), 10_000);
        assert_eq!(measured(&load(spacing, endless, Some(7))), 7);
    }
    // Two batches of five calls.
    let mut in_turns = load(
        ArrivalSpacing::Constant,
        vec![stage(false, 10_000, 20.0, 20.0)],
        None,
    );
    in_turns.batches = Some(BatchSchedule {
        of: 5,
        index: 1,
        share: 2,
        calls: 4,
        seed: 9,
        read_cpu: false,
        slot: None,
    });
    assert_eq!(measured(&in_turns), 80);
}

#[test]
fn seed_determines_random_sequence() {
    for spacing in [ArrivalSpacing::Poisson, ArrivalSpacing::Gamma(0.25)] {
        let load = load(spacing, vec![stage(false, 1_000, 1000.0, 1000.0)], None);
        let drawn = |seed| all(&Schedule::new(&load, seed));
        assert_eq!(drawn(5), drawn(5));
        assert_ne!(drawn(5), drawn(6));
    }
}

#[test]
fn poisson_arrivals_follow_a_ramp() {
    let schedule = Schedule::new(
        &load(
            ArrivalSpacing::Poisson,
            vec![stage(false, 100_000, 0.0, 2000.0)],
            None,
        ),
        3,
    );
    let arrivals = all(&schedule);
    let first_half = arrivals.iter().filter(|a| a.at < 50_000_000_000).count() as f64;
    assert!(
        (first_half - 25_000.0).abs() < 5.0 * 25_000f64.sqrt(),
        "{first_half}"
    );
    let whole = arrivals.len() as f64;
    assert!(
        (whole - 100_000.0).abs() < 5.0 * 100_000f64.sqrt(),
        "{whole}"
    );
}

#[test]
fn closed_loop_has_stages_but_no_arrivals() {
    let mut load = load(
        ArrivalSpacing::Constant,
        vec![stage(true, 1_000, 0.0, 0.0)],
        Some(10),
    );
    load.stages.push(LoadStage {
        duration: None,
        ..stage(false, 0, 0.0, 0.0)
    });
    load.arrivals = plan::ArrivalModel::Closed {
        clients: 4,
        think: Duration::ZERO,
    };
    let schedule = Schedule::new(&load, 1);
    assert_eq!(schedule.share(0, 1).next(), None);
    assert_eq!(schedule.stage_at(5), Some(0));
    assert_eq!(schedule.stage_at(u64::MAX), Some(1));
    assert_eq!(schedule.end(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shares_partition_the_whole(
        poisson in any::<bool>(),
        seed in any::<u64>(),
        of in 1u32..9,
        calls in prop::option::of(1u64..2_000),
        stages in prop::collection::vec((any::<bool>(), 1u64..1_500, 0.0f64..3_000.0, 0.0f64..3_000.0), 1..5),
    ) {
        let mut stages: Vec<LoadStage> =
            stages.into_iter().map(|(w, ms, from, to)| stage(w, ms, from, to)).collect();
        stages.sort_by_key(|s| !s.warmup);
        let spacing = if poisson { ArrivalSpacing::Poisson } else { ArrivalSpacing::Constant };
        let schedule = Schedule::new(&load(spacing, stages, calls), seed);
        let whole = all(&schedule);
        let mut merged: Vec<Arrival> = (0..of).flat_map(|i| schedule.share(i, of)).collect();
        merged.sort_by_key(|a| a.number);
        prop_assert_eq!(&merged, &whole);
        for (i, arrival) in whole.iter().enumerate() {
            prop_assert_eq!(arrival.number, i as u64);
            prop_assert_eq!(schedule.stage_at(arrival.at), Some(arrival.stage));
        }
        prop_assert!(whole.windows(2).all(|w| w[0].at <= w[1].at));
    }

    /// Loads that share a schedule in batches together send, arrival by arrival, what one load would have sent, and
    /// each has a complete batch in every round.
    #[test]
    fn batches_partition_the_whole(
        poisson in any::<bool>(),
        seed in any::<u64>(),
        of in 1u32..6,
        calls in 1u32..40,
        workers in 1u32..4,
        total in prop::option::of(1u64..2_000),
        stages in prop::collection::vec((any::<bool>(), 1u64..1_500, 0.0f64..3_000.0, 0.0f64..3_000.0), 1..4),
    ) {
        let mut stages: Vec<LoadStage> =
            stages.into_iter().map(|(w, ms, from, to)| stage(w, ms, from, to)).collect();
        stages.sort_by_key(|s| !s.warmup);
        let spacing = if poisson { ArrivalSpacing::Poisson } else { ArrivalSpacing::Constant };
        let mut load = load(spacing, stages, total);
        let whole = all(&Schedule::new(&load, seed));
        let mut dealt = Vec::new();
        for index in 0..of {
            load.batches = Some(BatchSchedule { of, index, share: 1, calls, seed, read_cpu: false, slot: None });
            let schedule = Schedule::new(&load, seed);
            let mut own: Vec<Arrival> =
                (0..workers).flat_map(|w| schedule.share(w, workers)).collect();
            own.sort_by_key(|a| a.number);
            prop_assert!(own.iter().zip(0..).all(|(a, n)| a.number == n));
            dealt.extend(own.into_iter().map(|a| (a.at, a.stage, index, a.number)));
        }
        dealt.sort_unstable();
        let times = |(at, stage, ..): &(u64, u8, u32, u64)| (*at, *stage);
        let arrivals: Vec<(u64, u8)> = whole.iter().map(|a| (a.at, a.stage)).collect();
        prop_assert_eq!(dealt.iter().map(times).collect::<Vec<_>>(), arrivals);
        // Compared by positions in the shared schedule; two arrivals at the same moment may come in either order.
        if whole.windows(2).all(|w| w[0].at < w[1].at) {
            for (place, (.., index, number)) in dealt.iter().enumerate() {
                let round = place as u64 / u64::from(of * calls);
                let turn = place % (of * calls) as usize / calls as usize;
                prop_assert_eq!(batches::shuffle_batches(of, round, seed)[turn], *index);
                prop_assert_eq!(number / u64::from(calls), round);
            }
        }
    }

    /// Loads with unequal shares of a schedule together send what one load would have sent, each exactly its share of
    /// every round.
    #[test]
    fn weights_partition_the_whole(
        seed in any::<u64>(),
        shares in prop::collection::vec(1u32..8, 1..5),
        calls in 1u32..5,
        workers in 1u32..4,
        rounds in 1u64..20,
    ) {
        let of: u32 = shares.iter().sum();
        let whole_rounds = u64::from(of * calls) * rounds;
        let mut load = load(ArrivalSpacing::Constant, vec![stage(false, 60_000, 1_000.0, 1_000.0)], Some(whole_rounds));
        let mut dealt = Vec::new();
        let mut index = 0;
        for share in shares {
            load.batches = Some(BatchSchedule { of, index, share, calls, seed, read_cpu: false, slot: None });
            let schedule = Schedule::new(&load, seed);
            let own: Vec<u64> = (0..workers)
                .flat_map(|w| schedule.share(w, workers))
                .map(|a| a.at)
                .collect();
            prop_assert_eq!(own.len() as u64, u64::from(share * calls) * rounds);
            dealt.extend(own);
            index += share;
        }
        dealt.sort_unstable();
        load.batches = None;
        let whole: Vec<u64> = Schedule::new(&load, seed).share(0, 1).map(|a| a.at).collect();
        prop_assert_eq!(dealt, whole);
    }

    #[test]
    fn even_spacing_has_equal_gaps(rate in 0.5f64..200_000.0, ms in 1u64..2_000) {
        let schedule = Schedule::new(&load(ArrivalSpacing::Constant, vec![stage(false, ms, rate, rate)], None), 1);
        let gap = 1e9 / rate;
        for pair in schedule.share(0, 1).take(5_000).collect::<Vec<_>>().windows(2) {
            prop_assert!(((pair[1].at - pair[0].at) as f64 - gap).abs() <= 1.0);
        }
    }
}

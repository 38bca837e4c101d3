//! The search against simulated servers of known capacity, by verdicts alone.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::path;

use plimsoll_model::search::{
    LimitingFactor, SearchGoal, SearchResult, SearchStep, Trial, TrialPurpose, TrialVerdict,
    next_step,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use snapbox::{assert_data_eq, file};

/// A server as a function from a trial's rate (calls a second) and length (seconds) to its verdict.
type Server<'a> = dyn FnMut(f64, f64) -> TrialVerdict + 'a;

const ASIDE_S: f64 = 0.7;

fn missed_objective() -> TrialVerdict {
    TrialVerdict::Missed {
        objectives: vec!["p99 < 10ms".into()],
        errors: false,
    }
}

fn met_if(met: bool) -> TrialVerdict {
    if met {
        TrialVerdict::Met
    } else {
        missed_objective()
    }
}

fn search(goal: &SearchGoal, server: &mut Server<'_>) -> (SearchResult, Vec<Trial>) {
    goal.check().unwrap();
    let mut trials = Vec::new();
    loop {
        assert!(trials.len() < 500, "the search does not end");
        match next_step(goal, &trials) {
            SearchStep::Done(finding) => return (*finding, trials),
            SearchStep::Try {
                purpose,
                rate_per_s,
                length,
            } => {
                assert!((goal.least_per_s..=goal.most_per_s).contains(&rate_per_s));
                let length_s = length.as_secs_f64();
                let verdict = server(rate_per_s, length_s);
                // Latency rises towards the capacity, as in a queue.
                let p99 = 1_000.0 / (1.0 - (rate_per_s / 3_000.0).min(0.999));
                trials.push(Trial {
                    purpose,
                    rate_per_s,
                    length_s,
                    took_s: length_s + ASIDE_S,
                    verdict,
                    achieved_per_s: Some(rate_per_s),
                    p99_us: Some(p99),
                    errors_share: Some(0.0),
                    ..Trial::default()
                });
            }
        }
    }
}

fn goal() -> SearchGoal {
    SearchGoal {
        budget_s: 1_000.0,
        ..SearchGoal::default()
    }
}

/// A standard normal value (Box–Muller).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let mut uniform = || (f64::from(random.next_u32()) + 0.5) / 4_294_967_296.0;
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

/// Rates and lengths of trials are pure arithmetic: this snapshot detects errors in it even where the line would still
/// be found.
#[test]
fn verdict_search_paths_match_snapshot() {
    let mut paths = String::new();
    for (noise, precision, budget_s, hiccups) in [
        (0.0, 0.01, 1_000.0, 0),
        (0.0, 0.05, 40.0, 0),
        (0.004, 0.01, 1_000.0, 0),
        (0.004, 0.01, 60.0, 5),
        (0.02, 0.01, 300.0, 0),
        (0.02, 0.05, 300.0, 7),
        (0.05, 0.02, 120.0, 0),
    ] {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let goal = SearchGoal {
            precision,
            budget_s,
            curve: hiccups == 0,
            ..SearchGoal::default()
        };
        let mut made = 0;
        let went = search(&goal, &mut |rate, length_s| {
            made += 1;
            if hiccups > 0 && made % hiccups == 0 {
                return TrialVerdict::GeneratorLimited {
                    reason: "late".into(),
                };
            }
            let spread = noise * (goal.trial_s / length_s).sqrt();
            met_if(rate <= 1_234.5 * (1.0 + spread * normal(&mut random)))
        });
        let name = format!(
            "noise {noise}, precision {precision}, budget {budget_s} s, a hiccup each {hiccups}"
        );
        paths += &path::path(&name, &went);
    }
    assert_data_eq!(paths, file!["path/by_verdict.txt"]);
}

#[test]
fn sharp_capacity_found_from_any_start() {
    for capacity in [3.7, 99.0, 100.0, 101.3, 1_987.0, 47_111.0, 1_234_567.0] {
        for start_per_s in [1.0, 100.0, 5_000.0] {
            for precision in [0.001, 0.01, 0.05] {
                let goal = SearchGoal {
                    start_per_s,
                    precision,
                    ..goal()
                };
                let (found, trials) = search(&goal, &mut |rate, _| met_if(rate <= capacity));
                let line = found.line_per_s.unwrap();
                assert!(
                    line <= capacity && line >= capacity * (1.0 - 1.05 * precision),
                    "{line} for {capacity} from {start_per_s} within {precision}"
                );
                assert!(found.high_per_s.unwrap() > capacity);
                assert!(found.confirmed && !found.budget_spent, "{found:?}");
                assert!(found.width.unwrap() <= precision);
                assert!(matches!(found.limit, LimitingFactor::Objective { .. }));
                assert!(trials.len() < 80, "{} trials", trials.len());
            }
        }
    }
}

#[test]
fn noisy_capacity_is_found_within_precision() {
    // Capacity varies between trials; a longer trial averages it out.
    let within = |noise: f64, precision: f64| {
        (0..100_u32)
            .filter(|seed| {
                let mut random = ChaCha8Rng::seed_from_u64(u64::from(*seed));
                let capacity = 1_000.0 + 13.7 * f64::from(*seed);
                let goal = SearchGoal {
                    precision,
                    trials: 5,
                    curve: false,
                    ..goal()
                };
                let (found, _) = search(&goal, &mut |rate, length_s| {
                    let spread = noise * (goal.trial_s / length_s).sqrt();
                    met_if(rate <= capacity * (1.0 + spread * normal(&mut random)))
                });
                let line = found.line_per_s.unwrap();
                (line / capacity - 1.0).abs() <= precision
            })
            .count()
    };
    for (noise, precision) in [(0.002, 0.01), (0.004, 0.01), (0.01, 0.03), (0.02, 0.05)] {
        let right = within(noise, precision);
        assert!(
            right >= 95,
            "{right} of 100 with noise {noise}, precision {precision}"
        );
    }
}

#[test]
fn stated_bounds_contain_noisy_capacity() {
    // The wider the noise, the more trials a search makes: 100 seeds, of which at least 95 cover it too, take minutes
    // on a busy machine.
    for noise in [0.005, 0.02, 0.05] {
        let held = (0..50_u32)
            .filter(|seed| {
                let mut random = ChaCha8Rng::seed_from_u64(1_000 + u64::from(*seed));
                let capacity = 800.0 + 31.0 * f64::from(*seed);
                let goal = SearchGoal {
                    trials: 5,
                    curve: false,
                    ..goal()
                };
                let (found, _) = search(&goal, &mut |rate, length_s| {
                    let spread = noise * (goal.trial_s / length_s).sqrt();
                    met_if(rate <= capacity * (1.0 + spread * normal(&mut random)))
                });
                let low = found.low_per_s.unwrap();
                let high = found.high_per_s.unwrap();
                low <= capacity && capacity <= high
            })
            .count();
        assert!(held >= 48, "{held} of 50 with noise {noise}");
    }
}

#[test]
fn slowly_filling_queue_is_not_capacity() {
    // Just above the capacity a queue grows by the excess; a short trial ends before the objective's 100 ms of waiting
    // are reached.
    let capacity = 1_000.0;
    let (found, trials) = search(&goal(), &mut |rate, length_s| {
        met_if((rate / capacity - 1.0) * length_s < 0.1)
    });
    let line = found.line_per_s.unwrap();
    let sustained = capacity * (1.0 + 0.1 / 15.0);
    assert!(line <= sustained && line >= sustained * 0.98, "{line}");
    assert!(found.confirmed);
    assert!(
        trials
            .iter()
            .any(|t| t.purpose == TrialPurpose::Confirm && t.verdict != TrialVerdict::Met)
    );
}

#[test]
fn generator_limit_is_not_target_limit() {
    for generator in [300.0, 990.0, 1_000.0, 5_000.0] {
        let (found, _) = search(&goal(), &mut |rate, _| {
            if rate > generator {
                TrialVerdict::GeneratorLimited {
                    reason: "a worker used 99 % of a core".into(),
                }
            } else {
                met_if(rate <= 1_500.0)
            }
        });
        let line = found.line_per_s.unwrap();
        if generator < 1_500.0 {
            assert!(
                matches!(found.limit, LimitingFactor::Generator { .. }),
                "{found:?}"
            );
            assert!(found.generator_limit_per_s.unwrap() > generator);
            assert_eq!((found.high_per_s, found.width), (None, None));
            assert!(line <= generator && line >= generator * 0.98);
        } else {
            assert!(matches!(found.limit, LimitingFactor::Objective { .. }));
            assert_eq!(found.generator_limit_per_s, None);
            assert!((1_484.0..=1_500.0).contains(&line));
        }
    }
}

#[test]
fn single_generator_hiccup_is_ignored() {
    let mut trial = 0;
    let (found, _) = search(&goal(), &mut |rate, _| {
        trial += 1;
        if trial % 6 == 0 {
            return TrialVerdict::GeneratorLimited {
                reason: "the generator noticed arrivals late".into(),
            };
        }
        met_if(rate <= 700.0)
    });
    let line = found.line_per_s.unwrap();
    assert!((0.99 * 700.0..=700.0).contains(&line), "{line}");
    assert!(
        matches!(found.limit, LimitingFactor::Objective { .. }),
        "{found:?}"
    );
}

#[test]
fn error_limit_differs_from_latency_limit() {
    let (found, _) = search(&goal(), &mut |rate, _| {
        if rate <= 640.0 {
            TrialVerdict::Met
        } else {
            TrialVerdict::Missed {
                objectives: vec!["errors < 0.1%".into()],
                errors: true,
            }
        }
    });
    assert_eq!(found.limit, LimitingFactor::ServerErrors);
}

#[test]
fn search_reports_reached_range_limit() {
    let goal = SearchGoal {
        least_per_s: 10.0,
        most_per_s: 3_000.0,
        ..goal()
    };
    let (found, _) = search(&goal, &mut |_, _| TrialVerdict::Met);
    assert_eq!(
        (found.line_per_s, found.limit),
        (Some(3_000.0), LimitingFactor::MostRate)
    );
    assert!(found.confirmed);
    assert_eq!(found.high_per_s, None);
    let (found, _) = search(&goal, &mut |_, _| missed_objective());
    assert_eq!(
        (found.line_per_s, found.limit),
        (None, LimitingFactor::LeastRate)
    );
    assert!(!found.confirmed);
}

#[test]
fn search_confirms_result_within_budget() {
    for budget_s in [3.0, 8.0, 20.0, 31.0, 45.0, 60.0, 90.0, 120.0, 200.0] {
        let goal = SearchGoal { budget_s, ..goal() };
        let (found, trials) = search(&goal, &mut |rate, _| met_if(rate <= 1_987.0));
        let took: f64 = trials.iter().map(|t| t.took_s).sum();
        assert!(took <= budget_s, "{took} of {budget_s}");
        if budget_s >= 31.0 {
            assert!(found.confirmed, "{budget_s}: {found:?}");
        }
        if budget_s <= 60.0 {
            assert!(found.budget_spent);
        }
        if let Some(line) = found.line_per_s {
            assert!(line <= 1_987.0);
        }
    }
}

#[test]
fn curve_spans_idle_to_overload_with_knee() {
    let (found, trials) = search(
        &SearchGoal {
            start_per_s: 2_000.0,
            ..goal()
        },
        &mut |rate, _| met_if(rate <= 2_900.0),
    );
    let lowest = trials.iter().map(|t| t.rate_per_s).fold(f64::MAX, f64::min);
    let highest = trials.iter().map(|t| t.rate_per_s).fold(0.0, f64::max);
    assert!(lowest < 400.0 && highest > 3_000.0, "{lowest} {highest}");
    let knee = found.knee.unwrap();
    assert!((1_500.0..2_950.0).contains(&knee.rate_per_s), "{knee:?}");
}

#[test]
fn invalid_goal_errors_suggest_fix() {
    let wrong = |change: fn(&mut SearchGoal)| {
        let mut goal = goal();
        change(&mut goal);
        goal.check().unwrap_err().to_string()
    };
    assert!(wrong(|g| g.precision = 0.0).contains("use 0.05% to 50%"));
    assert!(wrong(|g| g.trial_s = 1.0).contains("trial lengths must not decrease"));
    assert!(wrong(|g| g.start_per_s = 0.5).contains("rates must rise"));
    assert!(wrong(|g| g.trials = 0).starts_with("trials: 0 trials"));
}

/// The reported result never contradicts its trials.
#[test]
fn no_result_contradicts_its_trials() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..400_u32 {
        let mut random = ChaCha8Rng::seed_from_u64(70_000 + u64::from(seed));
        let mut uniform = || f64::from(random.next_u32()) / 4_294_967_296.0;
        let capacity = 10_f64.powf(uniform() * 4.0);
        let noise = 0.2 * uniform() * uniform();
        let goal = SearchGoal {
            budget_s: 5.0 + 200.0 * uniform() * uniform(),
            precision: 0.02,
            least_per_s: 2.0,
            most_per_s: 50_000.0,
            curve: seed % 3 == 0,
            ..SearchGoal::default()
        };
        let hiccups = 0.1 * uniform();
        let limit = 10_f64.powf(uniform() * 6.0);
        let (found, trials) = search(&goal, &mut |rate, length_s| {
            let spread = noise * (goal.trial_s / length_s).sqrt();
            if rate > limit || f64::from(random.next_u32()) / 4_294_967_296.0 < hiccups {
                return TrialVerdict::GeneratorLimited {
                    reason: "late".into(),
                };
            }
            match rate <= capacity * (1.0 + spread * normal(&mut random)) {
                true => TrialVerdict::Met,
                false if seed % 2 == 0 => TrialVerdict::Growing,
                false => missed_objective(),
            }
        });
        let context = format!("seed {seed}: {found:?}\n{trials:#?}");
        let met_at = |rate: f64, purpose: TrialPurpose| {
            let is = |t: &&Trial| t.rate_per_s == rate && t.purpose >= purpose;
            trials
                .iter()
                .filter(is)
                .any(|t| t.verdict == TrialVerdict::Met)
        };
        let line = found.line_per_s;
        if let Some(line) = line {
            assert!(
                met_at(line, TrialPurpose::Curve),
                "the line met nothing: {context}"
            );
            assert_eq!(
                found.confirmed,
                met_at(line, TrialPurpose::Confirm),
                "{context}"
            );
            assert!(found.low_per_s.unwrap() <= line, "{context}");
            assert!(found.high_per_s.is_none_or(|high| high > line), "{context}");
        } else {
            assert!(!found.confirmed, "{context}");
            assert_eq!((found.low_per_s, found.width), (None, None), "{context}");
        }
        let above = |of: fn(&TrialVerdict) -> bool| {
            let higher = |t: &&Trial| line.is_none_or(|line| t.rate_per_s > line);
            trials.iter().filter(higher).any(|t| of(&t.verdict))
        };
        match &found.limit {
            LimitingFactor::Objective { .. } => {
                assert!(
                    above(|v| matches!(v, TrialVerdict::Missed { .. })),
                    "{context}"
                )
            }
            LimitingFactor::Queue => assert!(above(|v| *v == TrialVerdict::Growing), "{context}"),
            LimitingFactor::Generator { .. } => {
                let is = |v: &TrialVerdict| matches!(v, TrialVerdict::GeneratorLimited { .. });
                assert!(above(is) && found.high_per_s.is_none(), "{context}");
            }
            LimitingFactor::MostRate => assert_eq!(line, Some(goal.most_per_s), "{context}"),
            LimitingFactor::LeastRate => assert!(line.is_none(), "{context}"),
            LimitingFactor::NotReached | LimitingFactor::ServerErrors => {}
        }
        kinds.insert(format!(
            "{:?} {}",
            std::mem::discriminant(&found.limit),
            line.is_some()
        ));
    }
    assert!(kinds.len() >= 6, "{kinds:?}");
}

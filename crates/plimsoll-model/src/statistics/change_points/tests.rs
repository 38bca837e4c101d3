use super::*;

/// Draws series with a lognormal spread of `spread`, in which a share of `outliers` is 1.2 to 2.2 times as large.
struct Draws {
    normal: ShuffledValues,
    spread: f64,
    outliers: f64,
}

impl Draws {
    fn new(seed: u64, spread: f64, outliers: f64) -> Draws {
        let mut normal = ShuffledValues::new(&[]);
        normal.state = seed.wrapping_mul(0x1234_5678_9abc_def1);
        Draws {
            normal,
            spread,
            outliers,
        }
    }

    fn uniform(&mut self) -> f64 {
        (self.normal.next_below(1 << 40) as f64 + 0.5) / (1_u64 << 40) as f64
    }

    fn around(&mut self, level: f64) -> f64 {
        let (u, v) = (self.uniform(), self.uniform());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let is_outlier = self.uniform() < self.outliers;
        let factor = if is_outlier {
            1.2 + self.uniform()
        } else {
            1.0
        };
        level * factor * (self.spread * normal).exp()
    }

    fn series(&mut self, levels: &[(usize, f64)]) -> Vec<f64> {
        let mut all = Vec::new();
        for (runs, level) in levels {
            all.extend((0..*runs).map(|_| self.around(*level)));
        }
        all
    }
}

fn indices(values: &[f64]) -> Vec<usize> {
    change_points(values).iter().map(|c| c.index).collect()
}

#[test]
fn false_alarms_are_as_rare_as_promised() {
    for (runs, outliers, series) in [(20, 0.0, 1000), (60, 0.05, 1000), (200, 0.02, 100)] {
        let alarm = |seed: &u64| {
            let values = Draws::new(*seed, 0.02, outliers).series(&[(runs, 5_000.0)]);
            !change_points(&values).is_empty()
        };
        let alarms = (0..series).filter(alarm).count() as f64;
        let promised = MAX_FALSE_ALARM_PROBABILITY * series as f64;
        // A series of one window has exactly the promised rate, so that its count scatters about it.
        let scatter = if runs > WINDOW_RUNS / 2 {
            0.0
        } else {
            3.0 * promised.sqrt()
        };
        assert!(
            alarms <= promised + scatter,
            "{runs} runs: {alarms} of {series}"
        );
    }
}

#[test]
fn small_step_is_found_after_ten_runs() {
    for (outliers, at_least, near_at_least) in [(0.0, 282, 245), (0.03, 255, 205)] {
        let (mut found, mut near) = (0, 0);
        for seed in 0..300 {
            let levels = [(10, 5_000.0), (10, 5_250.0)];
            let all = indices(&Draws::new(seed, 0.02, outliers).series(&levels));
            found += usize::from(!all.is_empty());
            near += usize::from(all.iter().any(|index| index.abs_diff(10) <= 1));
        }
        assert!(found >= at_least, "{outliers}: {found} of 300");
        assert!(near >= near_at_least, "{outliers}: {near} of 300");
    }
}

#[test]
fn steps_are_found_where_they_are() {
    for seed in 0..20 {
        let mut draws = Draws::new(seed, 0.02, 0.0);
        let levels = [(30, 1.0), (25, 1.2), (40, 1.0), (100, 0.8), (12, 1.0)];
        let found = indices(&draws.series(&levels));
        let near = found.iter().zip([30, 55, 95, 195]);
        assert_eq!(found.len(), 4, "{seed}: {found:?}");
        assert!(
            near.map(|(a, b)| a.abs_diff(b)).all(|off| off <= 1),
            "{found:?}"
        );
    }
}

#[test]
fn change_that_is_taken_back_is_found() {
    for seed in 0..20 {
        let mut draws = Draws::new(seed, 0.01, 0.0);
        let levels = [(25, 5_000.0), (12, 5_600.0), (9, 5_000.0), (40, 4_400.0)];
        assert_eq!(indices(&draws.series(&levels)), [25, 37, 46], "{seed}");
    }
}

#[test]
fn change_has_neighbouring_segments_and_probability() {
    let values = Draws::new(2, 0.02, 0.0).series(&[(70, 1.0), (30, 1.2), (30, 1.0)]);
    let [first, second] = change_points(&values)[..] else {
        panic!("two changes");
    };
    assert_eq!((first.first, first.index, first.end), (20, 70, 100));
    assert_eq!((second.first, second.index, second.end), (70, 100, 130));
    // Six windows of 50 runs, and 999 shuffles, none of which looked as much like a change.
    assert!((first.p_value - 6.0 / 1000.0).abs() < 1e-12);
}

#[test]
fn constant_and_short_series_have_no_changes() {
    assert_eq!(indices(&[]), [0; 0]);
    assert_eq!(indices(&[5.0; 100]), [0; 0]);
    assert_eq!(indices(&[1.0, 1.0, 1.0, 9.0, 9.0, 9.0]), [0; 0]);
    let infinite = [vec![1.0; 20], vec![f64::INFINITY; 20]].concat();
    assert_eq!(indices(&infinite), [0; 0]);
    // Without any noise, five runs a side suffice: 2 of 252 orders look like this.
    let steps = |n: usize| [vec![1.0; n], vec![2.0; n]].concat();
    assert_eq!(indices(&steps(4)), [0; 0]);
    assert_eq!(indices(&steps(5)), [5]);
}

#[test]
fn few_disturbed_runs_are_no_change() {
    for disturbed in [59..60, 30..32] {
        let marked = |seed: &u64| {
            let mut values = Draws::new(*seed, 0.02, 0.0).series(&[(60, 1.0)]);
            values[disturbed.clone()].fill(9.0);
            !change_points(&values).is_empty()
        };
        let marked = (0..100).filter(marked).count();
        assert!(marked <= 5, "{disturbed:?}: {marked} of 100");
    }
}

#[test]
fn order_of_magnitude_does_not_matter() {
    let values = Draws::new(4, 0.02, 0.02).series(&[(30, 1.0), (30, 1.1)]);
    let expected = change_points(&values);
    for factor in [1e-9, 1e12] {
        let scaled: Vec<f64> = values.iter().map(|value| value * factor).collect();
        assert_eq!(change_points(&scaled), expected);
    }
}

/// The energy statistic by its definition (Matteson and James, equation 5, with α = 1).
#[test]
fn energy_matches_its_definition() {
    let values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5];
    let distance = |a: &[f64], b: &[f64]| -> f64 {
        let each = a
            .iter()
            .map(|a| b.iter().map(|b| (a - b).abs()).sum::<f64>());
        each.sum()
    };
    let by_definition = |place: usize, end: usize| {
        let (a, b) = (&values[..place], &values[place..end]);
        let (n, m) = (a.len() as f64, b.len() as f64);
        let within = |group: &[f64], size: f64| distance(group, group) / (size * (size - 1.0));
        let mean = 2.0 / (n * m) * distance(a, b) - within(a, n) - within(b, m);
        mean * n * m / (n + m)
    };
    for place in 4..=5 {
        let computed = ShuffledValues::new(&values).energy_at(place);
        assert!((computed - by_definition(place, 9)).abs() < 1e-12);
    }
    let best = best_division(&values).expect("a division");
    let all = [(4, 8), (4, 9), (5, 9)].map(|(place, end)| by_definition(place, end));
    let expected = all.into_iter().fold(0.0, f64::max);
    assert!((best.energy - expected.max(0.0)).abs() < 1e-12);
}

/// The p-value that SciPy 1.15 has for the groups [1, 2, 4, 7] and [3, 5, 9, 10, 12] (`scipy.stats`).
#[test]
fn t_test_matches_scipy() {
    let p = t_test(&[1.0, 2.0, 4.0, 7.0], &[3.0, 5.0, 9.0, 10.0, 12.0]);
    assert!((p - 0.092_446_997_721_566_67).abs() < 1e-9, "{p}");
    assert_eq!(t_test(&[1.0; 4], &[2.0; 4]), 0.0);
    assert_eq!(t_test(&[1.0; 4], &[1.0; 4]), 1.0);
}

#[test]
fn equal_values_share_their_mean_rank() {
    assert_eq!(ranks(&[7.0, 5.0, 7.0, 1.0]), [3.5, 2.0, 3.5, 1.0]);
}

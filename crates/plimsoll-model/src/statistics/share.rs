//! The interval of a share that was estimated from independent draws.

/// The quantile of the normal distribution for a two-sided 95 % interval.
const Z_95_PERCENT: f64 = 1.959_963_984_540_054;

/// Returns the 95 % confidence interval of a share (0 to 1), given `hits` in `draws`: Wilson's score interval for a
/// binomial proportion. Without draws, it is the whole range.
pub fn share_interval(hits: u64, draws: u64) -> [f64; 2] {
    if draws == 0 {
        return [0.0, 1.0];
    }
    let (n, hits) = (draws as f64, hits.min(draws) as f64);
    let share = hits / n;
    let scale = 1.0 + Z_95_PERCENT * Z_95_PERCENT / n;
    let middle = (share + Z_95_PERCENT * Z_95_PERCENT / (2.0 * n)) / scale;
    let half = Z_95_PERCENT / scale
        * (share * (1.0 - share) / n + Z_95_PERCENT * Z_95_PERCENT / (4.0 * n * n)).sqrt();
    // Set the bounds 0 and 1 exactly, which rounding would miss.
    let low = if hits == 0.0 {
        0.0
    } else {
        (middle - half).max(0.0)
    };
    let high = if hits == n {
        1.0
    } else {
        (middle + half).min(1.0)
    };
    [low, high]
}

/// Returns the 95 % interval of `second.0 × share of second − first.0 × share of first`, where each argument is a
/// factor with the hits and draws of its share: Newcombe's method, which combines the intervals of both shares.
pub fn difference_interval(first: (f64, u64, u64), second: (f64, u64, u64)) -> [f64; 2] {
    let bounds = |(factor, hits, draws): (f64, u64, u64)| {
        let [low, high] = share_interval(hits, draws);
        let share = if draws == 0 {
            0.0
        } else {
            hits as f64 / draws as f64
        };
        (factor * share, factor * low, factor * high)
    };
    let ((a, a_low, a_high), (b, b_low, b_high)) = (bounds(first), bounds(second));
    let difference = b - a;
    [
        difference - (b - b_low).hypot(a_high - a),
        difference + (b_high - b).hypot(a - a_low),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_interval_agrees_with_published_values() {
        // Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I: method 3.
        for (hits, draws, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let [found_low, found_high] = share_interval(hits, draws);
            assert!(
                (found_low - low).abs() < 1e-4,
                "{hits}/{draws}: {found_low}"
            );
            assert!(
                (found_high - high).abs() < 1e-4,
                "{hits}/{draws}: {found_high}"
            );
        }
        assert_eq!(share_interval(0, 0), [0.0, 1.0]);
        assert_eq!(share_interval(7, 7)[1], 1.0);
    }

    #[test]
    fn difference_interval_agrees_with_published_values() {
        // Newcombe (1998), "Interval estimation for the difference between independent proportions", table II: method
        // 10, 56/70 − 48/80.
        let [low, high] = difference_interval((1.0, 48, 80), (1.0, 56, 70));
        assert!(
            (low - 0.0524).abs() < 1e-4 && (high - 0.3339).abs() < 1e-4,
            "{low} {high}"
        );
        let [low, high] = difference_interval((10.0, 50, 100), (20.0, 25, 100));
        assert!(low < 0.0 && high > 0.0, "{low} {high}");
    }
}

//! Objectives as typed: `"p99" = "< 10ms"`.

use crate::plan::{Metric, Objective};
use crate::units::{Period, Rate};

const METRICS: &str = "p50 … p99.99, mean, errors, rate or \"lag p99\"";

/// Reads one line of `[objective]`.
///
/// # Errors
/// What is wrong with the metric or its limit, and what would be right.
pub(super) fn parse(metric: &str, limit: &str) -> Result<Objective, String> {
    let words: Vec<&str> = metric.split_whitespace().collect();
    let parsed = match words.as_slice() {
        ["mean"] => Metric::Mean,
        ["errors"] => Metric::Errors,
        ["rate"] => Metric::Rate,
        ["lag", p] => Metric::Lag(percentile(p)?),
        [p] if p.starts_with('p') => Metric::Percentile(percentile(p)?),
        _ => return Err(format!("`{metric}` is not a metric: use {METRICS}")),
    };
    let limit = limit.trim();
    let (below, value) = match (limit.strip_prefix('<'), limit.strip_prefix('>')) {
        (Some(value), _) => (true, value),
        (_, Some(value)) => (false, value),
        _ => {
            return Err(format!(
                "`{limit}` is not a limit: begin with < or >, as in \"< 10ms\""
            ));
        }
    };
    // "<=" is understood: with measured values the two are the same.
    let value = value.strip_prefix('=').unwrap_or(value).trim();
    let number = match parsed {
        Metric::Errors => share(value)?,
        Metric::Rate => value.parse::<Rate>().map_err(|e| e.to_string())?.0,
        _ => value
            .parse::<Period>()
            .map_err(|e| e.to_string())?
            .0
            .as_nanos() as f64,
    };
    Ok(Objective {
        metric: parsed,
        below,
        limit: number,
        text: format!(
            "{} {} {value}",
            words.join(" "),
            if below { '<' } else { '>' }
        ),
    })
}

fn percentile(text: &str) -> Result<f64, String> {
    text.strip_prefix('p')
        .filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))
        .and_then(|digits| digits.parse::<f64>().ok())
        .filter(|p| *p > 0.0 && *p < 100.0)
        .ok_or_else(|| format!("`{text}` is not a percentile: use p50, p99 or p99.9"))
}

/// `"0.1%"` as 0.001.
fn share(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .and_then(|percent| percent.trim().parse::<f64>().ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("`{text}` is not a share of the calls: write \"< 0.1%\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read() {
        assert_eq!(
            parse("p99", "< 10ms"),
            Ok(Objective {
                metric: Metric::Percentile(99.0),
                below: true,
                limit: 10e6,
                text: "p99 < 10ms".into()
            })
        );
        let errors = parse("errors", "<0.1%").expect("right");
        assert_eq!((errors.metric, errors.limit), (Metric::Errors, 0.001));
        let rate = parse("rate", ">= 950/s").expect("right");
        assert_eq!(
            (rate.metric, rate.below, rate.limit),
            (Metric::Rate, false, 950.0)
        );
        assert_eq!(
            parse("lag  p99.9", "< 100us").expect("right").metric,
            Metric::Lag(99.9)
        );
    }

    #[test]
    fn wrong_objectives_say_what_is_right() {
        for (metric, limit, needle) in [
            ("p100", "< 1ms", "not a percentile"),
            ("pfoo", "< 1ms", "not a percentile"),
            ("speed", "< 1ms", "`speed` is not a metric"),
            ("p99", "10ms", "begin with < or >"),
            ("p99", "< 10", "has no unit"),
            ("errors", "< 0.1", "write \"< 0.1%\""),
            ("rate", "> 100", "has no unit"),
        ] {
            let error = parse(metric, limit).expect_err(metric);
            assert!(error.contains(needle), "{metric} {limit}: {error}");
        }
    }
}

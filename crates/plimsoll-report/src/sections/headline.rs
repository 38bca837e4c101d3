//! Formats a run's response times as the first sentence of each report. A time has an instrument interval if the
//! generator's own delays leave it uncertain.

use plimsoll_model::records::instrument::LatenessBounds;
use plimsoll_model::runs::run::health::ConnectionsNeeded;
use plimsoll_model::runs::run::{InstrumentSummary, Run, TimesSummary};

use crate::quantity::{count, planned_time, plural, time};
use crate::sections::settled_calls::{settled_calls, unanswered_calls};

/// The percentiles of the first sentence. With too few calls for the first of them, the mean is shown instead.
const HEADLINE_PERCENTILES: [&str; 3] = ["p50", "p90", "p99"];

/// Describes the response times, and why some are uncertain. Returns `None` if no call succeeded.
pub(crate) fn describe_latency(run: &Run) -> Option<String> {
    let total = &run.summary.total;
    let response = total.response?;
    let told = latency_figures(&response);
    let mut parts = vec![told.certain.join(", ")];
    parts.push(told.uncertain.join(", "));
    parts.retain(|part| !part.is_empty());
    let mut text = parts.join("; ");
    if !told.uncertain.is_empty() {
        text += &uncertainty_reason(run);
    }
    if let Some(needed) = ConnectionsNeeded::new(&run.measured_record(), &run.header) {
        text = format!("{text}; calls waited for connections: {needed}");
    }
    let (failed, cut_off) = (total.errors, unanswered_calls(total));
    let of = plural(settled_calls(total), "call");
    let without = match (failed, cut_off) {
        (0, 0) => None,
        (_, 0) => Some(format!("{} of {of} failed", count(failed))),
        (0, _) => Some(format!("{} of {of} were cut off", count(cut_off))),
        _ => Some(format!(
            "of {of} {} failed and {} were cut off",
            count(failed),
            count(cut_off)
        )),
    };
    if let Some(without) = without {
        text = format!("{without}; of the others {text}");
    }
    Some(format!("{text}."))
}

struct LatencyFigures {
    certain: Vec<String>,
    uncertain: Vec<String>,
}

fn latency_figures(times: &TimesSummary) -> LatencyFigures {
    let mut told = LatencyFigures {
        certain: Vec::new(),
        uncertain: Vec::new(),
    };
    let intervals = times.instrument.map(|instrument| instrument.percentiles());
    let known = times.percentiles().into_iter().enumerate();
    let known = known.filter(|(_, (name, _))| HEADLINE_PERCENTILES.contains(name));
    let mut known: Vec<(&str, f64, Option<[f64; 2]>)> = known
        .filter_map(|(i, (name, us))| Some((name, us?, intervals.and_then(|all| all[i].1))))
        .collect();
    if known.is_empty() {
        let interval = times.instrument.map(|instrument| instrument.mean_us);
        known.push(("mean", times.mean_us, interval));
    }
    for (name, us, interval) in known {
        match interval {
            Some(interval) if !is_narrow(interval) => {
                told.uncertain
                    .push(format!("{name} {}", format_interval(interval)));
            }
            Some([low, high]) if time(low) != time(high) => {
                // The time is shown with as many digits as its interval leaves certain.
                let three = |us| round_to_digits(us, 3, f64::round);
                let known = if three(low) == three(high) {
                    three(high)
                } else {
                    round_to_two_digits(high)
                };
                told.certain
                    .push(format!("{name} {}", format_short_time(known)));
            }
            _ => told.certain.push(format!("{name} {}", time(us))),
        }
    }
    told
}

/// Returns why the response times are uncertain.
fn uncertainty_reason(run: &Run) -> String {
    let greatest = LatenessBounds::from_record(&run.measured_record()).max_lateness_ns();
    let tick = run.header.tick_length();
    if u128::from(greatest) <= tick.as_nanos() {
        format!(", because calls left together every {}", planned_time(tick))
    } else {
        format!(
            ", because the generator was up to {} late",
            format_short_time(round_to_two_digits(greatest as f64 / 1e3))
        )
    }
}

/// Formats a value, or its interval if the interval is wider than two significant digits allow. In microseconds.
pub(crate) fn format_value_or_interval(us: f64, interval: Option<[f64; 2]>) -> String {
    match interval.filter(|interval| !is_narrow(*interval)) {
        Some(interval) => format_interval(interval)
            .replace("between ", "")
            .replace(" and ", " to "),
        None => time(us),
    }
}

/// Returns whether both ends of an interval agree to two significant digits or differ by at most 1 %.
pub(crate) fn is_narrow([low, high]: [f64; 2]) -> bool {
    round_to_two_digits(low) == round_to_two_digits(high) || high - low <= high / 100.0
}

/// Rounds `us` to two significant digits.
fn round_to_two_digits(us: f64) -> f64 {
    round_to_digits(us, 2, f64::round)
}

/// Rounds `us` to `figures` significant digits.
fn round_to_digits(us: f64, figures: u8, round: fn(f64) -> f64) -> f64 {
    if us <= 0.0 {
        return 0.0;
    }
    let step = 10_f64.powf(us.log10().floor() + 1.0 - f64::from(figures));
    round(us / step) * step
}

/// Formats an interval as "between 8.1 and 9.3 ms": with two significant digits, rounded outward.
fn format_interval([low, high]: [f64; 2]) -> String {
    let (low, high) = (
        round_to_digits(low, 2, f64::floor),
        round_to_digits(high, 2, f64::ceil),
    );
    let (from, to) = (format_short_time(low), format_short_time(high));
    if low <= 0.0 {
        return format!("at most {to}");
    }
    let number = match (from.split_once(' '), to.split_once(' ')) {
        (Some((number, one)), Some((_, other))) if one == other => number,
        _ => &from,
    };
    format!("between {number} and {to}")
}

/// Formats a time with two significant digits, without trailing zeros.
fn format_short_time(us: f64) -> String {
    let text = time(us);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
        _ => text,
    }
}

/// Returns the intervals of `times` if one of them is wider than two significant digits allow.
pub(crate) fn wide_intervals(times: &TimesSummary) -> Option<InstrumentSummary> {
    let instrument = times.instrument?;
    let mut all = instrument.percentiles().into_iter().filter_map(|(_, i)| i);
    let is_wide = all.any(|interval| !is_narrow(interval)) || !is_narrow(instrument.mean_us);
    is_wide.then_some(instrument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_rounds_outward_unless_narrow() {
        assert_eq!(
            format_interval([8_137.0, 9_301.0]),
            "between 8.1 and 9.4 ms"
        );
        assert_eq!(
            format_interval([870.0, 1_200.0]),
            "between 870 µs and 1.2 ms"
        );
        assert_eq!(format_interval([0.0, 1_200.0]), "at most 1.2 ms");
        assert_eq!(
            format_value_or_interval(5_231.0, Some([5_160.0, 5_231.0])),
            "5.23 ms"
        );
        assert_eq!(
            format_value_or_interval(9_301.0, Some([8_137.0, 9_301.0])),
            "8.1 to 9.4 ms"
        );
        assert!(is_narrow([199_500.0, 202_000.0]));
        assert!(!is_narrow([5_100.0, 5_231.0]));
    }
}

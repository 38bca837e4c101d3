//! Translates limits as other tools write them, such as `p(95)<200` and `rate<0.01`, to Plimsoll's objectives.

const TIME_UNITS: [&str; 7] = ["ns", "us", "µs", "ms", "s", "m", "h"];

/// Metrics of other tools that are a share of failed calls.
const ERROR_METRICS: [&str; 14] = [
    "errors",
    "error",
    "error_rate",
    "error-rate",
    "errorrate",
    "err",
    "rate",
    "fail",
    "fails",
    "failed",
    "failures",
    "failure_rate",
    "fail_ratio",
    "http_req_failed",
];

/// Metrics of other tools that are a number of calls per second.
const RATE_METRICS: [&str; 4] = ["rps", "qps", "throughput", "tps"];

/// Returns the objective that a limit such as `p95<200ms`, `http_req_duration=p(95)<200` or `rate<0.01` means; `None`
/// if it can't be read. Bare numbers are milliseconds, or a share of the calls.
pub(super) fn objective_from_limit(text: &str) -> Option<String> {
    parse_limit(text, false)
}

/// Returns the objective that is missed when a condition such as `p99>500ms` holds; `None` if it can't be read.
pub(super) fn objective_from_failure(text: &str) -> Option<String> {
    parse_limit(text, true)
}

/// Returns whether a text is a number with a unit of time, such as `5s`.
pub(crate) fn is_time(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < text.len() && TIME_UNITS.contains(&unit)
}

/// Returns a quantity with Plimsoll's unit for one with a unit of other tools, such as `100rps` or `2sec`; `None` for
/// any other text.
pub(super) fn plain_quantity(text: &str) -> Option<String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    let value: f64 = number.parse().ok()?;
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "rps" | "qps" | "tps" | "req/s" | "reqs/s" | "r/s" | "ps" | "hz" | "/sec" | "/second" => {
            "/s"
        }
        "rpm" | "req/min" | "r/m" | "/min" | "/minute" => "/m",
        "msec" | "msecs" | "millis" | "milliseconds" => "ms",
        "sec" | "secs" | "second" | "seconds" => "s",
        "min" | "mins" | "minute" | "minutes" => "m",
        "hr" | "hrs" | "hour" | "hours" => "h",
        "k" | "k/s" => return Some((value * 1000.0).to_string()),
        _ => return None,
    };
    Some(format!("{number}{unit}"))
}

fn parse_limit(text: &str, is_failure: bool) -> Option<String> {
    let compact: String = text.split_whitespace().collect();
    let Some(at) = compact.find(['<', '>']) else {
        // `p99=50ms` names a limit, and no condition.
        let (metric, value) = compact.split_once('=')?;
        return time_objective(&time_statistic(metric)?, value).filter(|_| !is_failure);
    };
    let (metric, rest) = compact.split_at(at);
    let (is_upper, value) = (rest.starts_with('<'), rest[1..].trim_start_matches('='));
    // The metric may follow the name of what is measured: `http_req_duration=p(95)`, `http.response_time.p99`.
    let metric = metric.rsplit(['=', ':']).next().unwrap_or(metric);
    let is_upper = is_upper != is_failure;
    if ERROR_METRICS.contains(&metric) {
        return error_objective(value).filter(|_| is_upper);
    }
    if RATE_METRICS.contains(&metric) {
        let number: f64 = value.trim_end_matches("/s").parse().ok()?;
        return (!is_upper).then(|| format!("rate > {number}/s"));
    }
    let statistic = time_statistic(metric)?;
    is_upper.then(|| time_objective(&statistic, value))?
}

/// Returns the objective that limits a time, such as `p99 < 50ms`; a bare number is milliseconds.
pub(super) fn time_objective(statistic: &str, limit: &str) -> Option<String> {
    let unit = match limit {
        limit if is_time(limit) => "",
        limit if limit.parse::<f64>().is_ok() => "ms",
        _ => return None,
    };
    Some(format!("{statistic} < {limit}{unit}"))
}

/// Returns the objective that limits errors to a share, which may be written `1%` or `0.01`.
pub(super) fn error_objective(share: &str) -> Option<String> {
    let number: f64 = share.trim_end_matches('%').parse().ok()?;
    let percent = if share.ends_with('%') || number > 1.0 {
        number
    } else {
        // Rounds away the digits that a product of decimal fractions gets.
        (number * 1e8).round() / 1e6
    };
    Some(format!("errors < {percent}%"))
}

/// Returns Plimsoll's name of a statistic of the response time; `None` if it is not one.
fn time_statistic(metric: &str) -> Option<String> {
    let metric = metric.replace(['(', ')'], "");
    let name = metric.rsplit('.').find(|part| {
        // `latency.p99.9` ends with a number that belongs to the percentile.
        !part.chars().all(|c| c.is_ascii_digit())
    })?;
    match name {
        "avg" | "mean" | "average" => return Some("mean".to_owned()),
        "med" | "median" => return Some("p50".to_owned()),
        _ => {}
    }
    let from = metric.rfind(name)?;
    let number = metric[from..].strip_prefix('p')?;
    let number = if number == "999" { "99.9" } else { number };
    number.parse::<f64>().ok()?;
    Some(format!("p{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_other_tools_become_objectives() {
        for (limit, ours) in [
            ("p95<250ms", "p95 < 250ms"),
            ("p(95)<250", "p95 < 250ms"),
            ("p(99.9) <= 1s", "p99.9 < 1s"),
            ("http_req_duration=p(90)<300", "p90 < 300ms"),
            ("http_req_failed=rate<0.05", "errors < 5%"),
            ("error_rate < 2%", "errors < 2%"),
            ("latency.p99.9<5ms", "p99.9 < 5ms"),
            ("p999<5", "p99.9 < 5ms"),
            ("avg<20ms", "mean < 20ms"),
            ("p99=1us", "p99 < 1us"),
            ("rps>500", "rate > 500/s"),
        ] {
            assert_eq!(
                objective_from_limit(limit).as_deref(),
                Some(ours),
                "{limit}"
            );
        }
        for other in [
            "p99", "p99<fast", "p99>5ms", "checks<1", "max<5ms", "count<10",
        ] {
            assert_eq!(objective_from_limit(other), None, "{other}");
        }
    }

    #[test]
    fn units_of_other_tools_are_replaced() {
        let read =
            ["100rps", "6000rpm", "2sec", "1.5k", "5s", "k", "body.json"].map(plain_quantity);
        let expected = [
            Some("100/s"),
            Some("6000/m"),
            Some("2s"),
            Some("1500"),
            None,
            None,
            None,
        ];
        assert_eq!(read.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn failure_conditions_become_their_opposites() {
        let read = objective_from_failure;
        assert_eq!(read("p99>250ms").as_deref(), Some("p99 < 250ms"));
        assert_eq!(read("errors>1%").as_deref(), Some("errors < 1%"));
        assert_eq!(read("p99<250ms"), None);
    }
}

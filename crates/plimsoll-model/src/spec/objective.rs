//! Parses objectives: `"p99" = "< 10ms"`.

use super::steps::{self, STEPS_KEY};
use super::{Problems, Spec};
use crate::formats::suggest::suggest;
use crate::formats::units::{ByteSize, Period, Rate};
use crate::metrics::measure::{Count, TimeMeasure};
use crate::plan::{
    ArrivalModel, CallPlan, ConnectionEnd, LoadPlan, Metric, Objective, Statistic, TimeMetric,
};

const METRIC_NAMES: &str = "p50 … p99.99, mean, errors, users_failed, rate, fidelity, resumed, finish.length or another reason why models end answers, or a percentile or mean of another time, such as lag.p99 or ttft.mean; of connections that are held client.memory and server.memory";

/// Times by their names in an objective, in addition to the names of [`TimeMeasure`].
const TIME_METRICS_BY_NAME: [(&str, TimeMetric); 9] = [
    ("response", TimeMetric::Response),
    ("service", TimeMetric::Service),
    ("first_byte", TimeMetric::FirstByte),
    ("lag", TimeMetric::Lag),
    ("connection", TimeMetric::Measure(TimeMeasure::Connection)),
    ("ttft", TimeMetric::FirstToken),
    (
        "message_gap",
        TimeMetric::Measure(TimeMeasure::InterMessage),
    ),
    ("tpot", TimeMetric::Measure(TimeMeasure::TokenMean)),
    ("itl", TimeMetric::Measure(TimeMeasure::TokenGap)),
];

/// An objective as it is written in a plan.
pub(super) struct WrittenObjective<'a> {
    /// The key of the objective's table, such as `objective` or `steps.1.objective`.
    table: String,
    metric: &'a str,
    limit: &'a str,
    /// The name of the journey's step to which the objective applies; `None`: it applies to the whole load.
    step: Option<String>,
}

/// Returns the objectives of `spec`: those of the whole load, then those of each step.
pub(super) fn written_objectives(spec: &Spec) -> impl Iterator<Item = WrittenObjective<'_>> {
    let whole = spec
        .objective
        .iter()
        .map(|(metric, limit)| WrittenObjective {
            table: "objective".to_owned(),
            metric,
            limit,
            step: None,
        });
    whole.chain(steps::all_steps(spec).flat_map(|(index, step)| {
        let given = step.get("objective").and_then(toml::Value::as_table);
        let limits = given.into_iter().flatten();
        limits.filter_map(move |(metric, limit)| {
            Some(WrittenObjective {
                table: format!("{STEPS_KEY}.{index}.objective"),
                metric,
                limit: limit.as_str()?,
                step: Some(steps::step_name(step)),
            })
        })
    }))
}

impl WrittenObjective<'_> {
    /// Parses the objective.
    ///
    /// # Errors
    /// When the metric or the limit is invalid, or the metric is not measured for each step.
    pub(super) fn parse(&self) -> Result<Objective, String> {
        let parsed = parse(self.metric, self.limit)?;
        let Some(step) = &self.step else {
            return Ok(parsed);
        };
        let is_measured = match parsed.metric {
            Metric::Errors => true,
            Metric::Time(timed, _) => [TimeMetric::Response, TimeMetric::Service].contains(&timed),
            _ => false,
        };
        if !is_measured {
            return Err(format!(
                "`{}` is not measured for each step: use p50 … p99.99 or mean of the response time, service.p99 and \
                 its like, or errors",
                self.metric
            ));
        }
        let (metric, limit) = parsed.text.split_once(' ').unwrap_or((&parsed.text, ""));
        Ok(Objective {
            text: format!("{metric} of {step} {limit}"),
            step: Some(step.clone()),
            ..parsed
        })
    }
}

/// Parses one entry of `[objective]`, whose key is like `p99`, `lag.p99`, `ttft.p99 at step 2`.
///
/// # Errors
/// When the metric or the limit is invalid; the message says what would be valid.
pub(super) fn parse(metric: &str, limit: &str) -> Result<Objective, String> {
    let (metric, stage) = match metric.split_once(" at ") {
        Some((metric, stage)) => (metric.trim(), Some(stage.trim())),
        None => (metric.trim(), None),
    };
    if stage == Some("") {
        return Err(format!(
            "`{metric} at`: name the stage, as in \"p99 at step 2\""
        ));
    }
    let parsed = match metric {
        "errors" => Metric::Errors,
        "users_failed" => Metric::FailedUsers,
        "rate" => Metric::Rate,
        "fidelity" => Metric::Fidelity,
        "resumed" => Metric::Resumed,
        "client.memory" | "client memory" => Metric::Memory(ConnectionEnd::Client),
        "server.memory" | "server memory" => Metric::Memory(ConnectionEnd::Server),
        _ => {
            // A blank is accepted in place of the dot.
            let words = match metric.split_once(' ') {
                None => metric
                    .split_once('.')
                    .filter(|(time, _)| !is_percentile(time)),
                words => words,
            };
            match words {
                None => Metric::Time(TimeMetric::Response, parse_statistic(metric, metric)?),
                Some(("finish", reason)) => Metric::Finish(parse_finish_reason(reason.trim())?),
                Some((name, figure)) => {
                    let timed = parse_time_metric(name, figure)?;
                    Metric::Time(timed, parse_statistic(metric, figure)?)
                }
            }
        }
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
    // "<=" is accepted and judged like "<"; reports show the operator that the user wrote.
    let (or_equal, value) = match value.strip_prefix('=') {
        Some(value) => ("=", value.trim()),
        None => ("", value.trim()),
    };
    let number = match parsed {
        Metric::Errors => parse_share(value, "calls: write \"< 0.1%\"")?,
        Metric::FailedUsers => parse_share(value, "users: write \"< 1%\"")?,
        Metric::Fidelity => parse_share(value, "load: write \"> 99%\"")?,
        Metric::Resumed => parse_share(value, "handshakes: write \">= 100%\"")?,
        Metric::Finish(_) => parse_share(value, "answers: write \"< 5%\"")?,
        Metric::Rate => value.parse::<Rate>()?.0,
        Metric::Memory(_) => value.parse::<ByteSize>()?.0 as f64,
        _ => value.parse::<Period>()?.0.as_nanos() as f64,
    };
    Ok(Objective {
        metric: parsed,
        is_upper: below,
        limit: number,
        stage: stage.map(str::to_owned),
        step: None,
        text: format!(
            "{}{} {}{or_equal} {value}",
            metric.split_whitespace().collect::<Vec<_>>().join("."),
            stage.map_or_else(String::new, |stage| format!(" at {stage}")),
            if below { '<' } else { '>' }
        ),
    })
}

/// Returns whether the text is a percentile such as `p99` or `p99.9`.
fn is_percentile(text: &str) -> bool {
    text.strip_prefix('p')
        .is_some_and(|digits| digits.parse::<f64>().is_ok())
}

fn parse_time_metric(name: &str, statistic: &str) -> Result<TimeMetric, String> {
    let known = TIME_METRICS_BY_NAME
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, timed)| *timed);
    let mut measured = TimeMeasure::all().filter(|measure| measure.is_protocol_specific());
    known
        .or_else(|| measured.find(|m| m.key() == name).map(TimeMetric::Measure))
        .ok_or_else(|| {
            let names: Vec<&str> = TIME_METRICS_BY_NAME
                .iter()
                .map(|(name, _)| *name)
                .chain(
                    TimeMeasure::all()
                        .filter(|m| m.is_protocol_specific())
                        .map(TimeMeasure::key),
                )
                .collect();
            match suggest(name, &names) {
                Some(nearest) => format!(
                    "`{name}` is not a time: did you mean {nearest}.{}?",
                    statistic.trim()
                ),
                None => format!("`{name}` is not a time: use one of {}", names.join(", ")),
            }
        })
}

/// Parses the reason for which a model ended its answer, such as `length`.
fn parse_finish_reason(name: &str) -> Result<Count, String> {
    let mut known = Count::FINISH_REASONS.into_iter();
    known
        .find(|count| count.finish_reason() == name)
        .ok_or_else(|| {
            let names = Count::FINISH_REASONS
                .map(Count::finish_reason)
                .join(", finish.");
            format!("`finish.{name}` is not a valid finish reason: use finish.{names}")
        })
}

fn parse_statistic(metric: &str, text: &str) -> Result<Statistic, String> {
    match text.trim() {
        "mean" => Ok(Statistic::Mean),
        p if p.starts_with('p') => parse_percentile(p).map(Statistic::Percentile),
        _ => Err(format!("`{metric}` is not a metric: use {METRIC_NAMES}")),
    }
}

fn parse_percentile(text: &str) -> Result<f64, String> {
    text.strip_prefix('p')
        .filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))
        .and_then(|digits| digits.parse::<f64>().ok())
        .filter(|p| *p > 0.0 && *p < 100.0)
        .ok_or_else(|| format!("`{text}` is not a percentile: use p50, p99 or p99.9"))
}

/// Parses `"0.1%"` as 0.001.
pub(super) fn parse_percent(text: &str) -> Option<f64> {
    text.strip_suffix('%')
        .and_then(|percent| percent.trim().parse::<f64>().ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
}

/// Parses a share. The error message contains `of`: the whole to which the share refers, and what would be valid.
fn parse_share(text: &str, of: &str) -> Result<f64, String> {
    parse_percent(text).ok_or_else(|| format!("`{text}` is not a share of the {of}"))
}

/// Returns why `metric` can't be measured for `call`; `None`: it can.
fn missing_metric_reason(call: &CallPlan, metric: Metric) -> Option<&'static str> {
    match metric {
        Metric::FailedUsers if call.calls_per_user().is_none() => {
            Some("each call is on its own, so there are no users: limit errors")
        }
        Metric::Time(TimeMetric::Measure(TimeMeasure::Journey), _)
            if call.max_calls_per_journey().is_none() =>
        {
            Some(
                "the calls are no journeys, which have [[steps]]: limit the response time, as in p99",
            )
        }
        metric => call.missing_metric_reason(metric),
    }
}

impl Problems {
    /// Resolves the objectives. `call` and `load`: the resolved call, and the resolved load with its stages, if they
    /// are valid.
    pub(super) fn resolve_objectives(
        &mut self,
        spec: &Spec,
        call: Option<&CallPlan>,
        load: Option<&LoadPlan>,
    ) -> Vec<Objective> {
        let mut objectives = Vec::new();
        for written in written_objectives(spec) {
            let key = format!("{}.{}", written.table, written.metric);
            let Some(objective) = self.ok_or_report(&key, written.parse()) else {
                continue;
            };
            if let (Some(stage), Some(load)) = (&objective.stage, load)
                && !load.stages.iter().any(|s| !s.warmup && s.name == *stage)
            {
                let names: Vec<String> = load
                    .stages
                    .iter()
                    .filter(|s| !s.warmup)
                    .map(|s| format!("\"{}\"", s.name))
                    .collect();
                self.add(
                    key,
                    format!(
                        "no stage is called \"{stage}\": the stages of this load are {}",
                        names.join(", ")
                    ),
                );
                continue;
            }
            let is_closed =
                load.is_some_and(|load| matches!(load.arrivals, ArrivalModel::Closed { .. }));
            if objective.metric == Metric::Fidelity && is_closed {
                self.add(
                    key,
                    "calls of a closed loop are due when its clients are free, so there are no arrivals to compare: give a rate",
                );
                continue;
            }
            if objective.metric == Metric::Resumed && !spec.resumes_tls() {
                self.add(
                    key,
                    "no sessions are resumed: request it with tls.resume = true (fetch: --mode resumed)",
                );
                continue;
            }
            if let Some(why) = call.and_then(|call| missing_metric_reason(call, objective.metric)) {
                self.add(key, why);
                continue;
            }
            objectives.push(objective);
        }
        objectives
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objectives_are_read() {
        assert_eq!(
            parse("p99", "< 10ms"),
            Ok(Objective {
                metric: Metric::Time(TimeMetric::Response, Statistic::Percentile(99.0)),
                stage: None,
                step: None,
                is_upper: true,
                limit: 10e6,
                text: "p99 < 10ms".into()
            })
        );
        let errors = parse("errors", "<0.1%").expect("right");
        assert_eq!((errors.metric, errors.limit), (Metric::Errors, 0.001));
        let rate = parse("rate", ">= 950/s").expect("right");
        assert_eq!(
            (rate.metric, rate.is_upper, rate.limit),
            (Metric::Rate, false, 950.0)
        );
        for typed in ["finish.length", "finish length"] {
            let finish = parse(typed, "< 5%").expect("right");
            assert_eq!(
                (finish.metric, finish.limit),
                (Metric::Finish(Count::FinishLength), 0.05)
            );
            assert_eq!(finish.text, "finish.length < 5%");
        }
        let fidelity = parse("fidelity", "> 99%").expect("right");
        assert_eq!(
            (fidelity.metric, fidelity.is_upper, fidelity.limit),
            (Metric::Fidelity, false, 0.99)
        );
        let resumed = parse("resumed", ">= 100%").expect("right");
        assert_eq!(
            (resumed.metric, resumed.is_upper, resumed.limit),
            (Metric::Resumed, false, 1.0)
        );
        assert_eq!(resumed.text, "resumed >= 100%");
        for typed in ["client.memory", "client memory"] {
            let memory = parse(typed, "< 2.1kB").expect("right");
            assert_eq!(
                (memory.metric, memory.limit),
                (Metric::Memory(ConnectionEnd::Client), 2_100.0)
            );
            assert_eq!(memory.text, "client.memory < 2.1kB");
        }
        assert_eq!(
            parse("lag  p99.9", "< 100us").expect("right").metric,
            Metric::Time(TimeMetric::Lag, Statistic::Percentile(99.9))
        );
    }

    #[test]
    fn objectives_accept_times_and_stages() {
        for (text, timed, statistic) in [
            ("p99.9", TimeMetric::Response, Statistic::Percentile(99.9)),
            ("mean", TimeMetric::Response, Statistic::Mean),
            (
                "service.p50",
                TimeMetric::Service,
                Statistic::Percentile(50.0),
            ),
            (
                "ttft.p99",
                TimeMetric::FirstToken,
                Statistic::Percentile(99.0),
            ),
            ("lag.p99.9", TimeMetric::Lag, Statistic::Percentile(99.9)),
            ("lag.mean", TimeMetric::Lag, Statistic::Mean),
            (
                "token_gap.p99",
                TimeMetric::Measure(TimeMeasure::TokenGap),
                Statistic::Percentile(99.0),
            ),
            (
                "itl.p99",
                TimeMetric::Measure(TimeMeasure::TokenGap),
                Statistic::Percentile(99.0),
            ),
            (
                "tpot.mean",
                TimeMetric::Measure(TimeMeasure::TokenMean),
                Statistic::Mean,
            ),
        ] {
            let found = parse(text, "< 5ms").expect(text);
            assert_eq!(found.metric, Metric::Time(timed, statistic), "{text}");
            assert_eq!(found.text, format!("{text} < 5ms"));
        }
        let found = parse("ttft.p99 at step 2", "< 5ms").expect("right");
        assert_eq!(found.stage.as_deref(), Some("step 2"));
        assert_eq!(found.text, "ttft.p99 at step 2 < 5ms");
        assert_eq!(
            parse("errors at peak", "< 1%")
                .expect("right")
                .stage
                .as_deref(),
            Some("peak")
        );
    }

    #[test]
    fn malformed_objective_errors_suggest_fix() {
        for (metric, limit, needle) in [
            ("p100", "< 1ms", "not a percentile"),
            ("pfoo", "< 1ms", "not a percentile"),
            ("speed", "< 1ms", "`speed` is not a metric"),
            (
                "speed.p99",
                "< 1ms",
                "`speed` is not a time: use one of response",
            ),
            ("ttf.p99", "< 1ms", "did you mean ttft.p99?"),
            ("lag", "< 1ms", "`lag` is not a metric: use p50"),
            ("lag.max", "< 1ms", "`lag.max` is not a metric"),
            ("p99 at ", "< 1ms", "name the stage"),
            ("p99", "10ms", "begin with < or >"),
            ("p99", "< 10", "has no unit"),
            ("errors", "< 0.1", "write \"< 0.1%\""),
            ("rate", "> 100", "has no unit"),
            ("users_failed", "< 5", "write \"< 1%\""),
            ("resumed", "> 1", "write \">= 100%\""),
            ("fidelity", "> 99", "write \"> 99%\""),
            ("finish.length", "< 5", "write \"< 5%\""),
            ("finish.done", "< 5%", "use finish.stop, finish.length"),
        ] {
            let error = parse(metric, limit).expect_err(metric);
            assert!(error.contains(needle), "{metric} {limit}: {error}");
        }
    }
}

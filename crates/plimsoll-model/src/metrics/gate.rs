//! Gates: limits on how far a metric of a rung (one variant in a ladder) may exceed that of the first rung, for example
//! a new build compared with the one that it replaces. Plans define them, and [`crate::comparisons::ladder`] evaluates
//! them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::formats::units::Period;

mod metric;

pub use metric::{ExtraMeasurement, LadderMetric, LadderUnit};

/// The largest amount by which a metric of a rung may exceed that of the first rung: `p99 +3%`, `client_cpu +2us`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// The limited metric.
    pub metric: LadderMetric,
    limit: GateLimit,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum GateLimit {
    /// A percentage of the first rung's value.
    Percent(f64),
    /// An amount in the metric's unit.
    Absolute(f64),
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} +", self.metric.key())?;
        match self.limit {
            GateLimit::Percent(percent) => write!(f, "{percent}%"),
            GateLimit::Absolute(bytes) if self.metric.unit() == LadderUnit::Bytes => {
                write!(f, "{bytes}B")
            }
            GateLimit::Absolute(us) => write!(f, "{us}us"),
        }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let wrong = || {
            let metrics: Vec<&str> = LadderMetric::ALL.iter().map(|m| m.key()).collect();
            format!(
                "`{text}` is not a valid gate: write a metric and the allowed increase, such as \"p99 +3%\" or \"p50 +20us\"; metrics are {}",
                metrics.join(", ")
            )
        };
        let (name, most) = text
            .trim()
            .split_once(char::is_whitespace)
            .ok_or_else(wrong)?;
        let metric = LadderMetric::ALL
            .into_iter()
            .find(|metric| metric.key() == name)
            .ok_or_else(wrong)?;
        let most = most.trim().strip_prefix('+').ok_or_else(wrong)?.trim();
        let number = |digits: &str| {
            let value = digits.trim().parse::<f64>().ok()?;
            (value.is_finite() && value >= 0.0).then_some(value)
        };
        let most = match (most.strip_suffix('%'), metric.unit()) {
            (Some(percent), _) => number(percent).map(GateLimit::Percent),
            (None, LadderUnit::Bytes) => {
                let digits = most.strip_suffix('B').unwrap_or(most);
                number(digits).map(GateLimit::Absolute)
            }
            (None, LadderUnit::Micros) => {
                let period = most.parse::<Period>().ok();
                period.map(|p| GateLimit::Absolute(p.0.as_secs_f64() * 1e6))
            }
        };
        Ok(Gate {
            metric,
            limit: most.ok_or_else(wrong)?,
        })
    }
}

impl Serialize for Gate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Gate, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Gate {
    /// Returns the allowed difference in the metric's unit, given the first rung's value. `None`: the limit is a
    /// percentage of that value, which is not known.
    pub(crate) fn allowed_difference(self, first: Option<f64>) -> Option<f64> {
        match self.limit {
            GateLimit::Absolute(most) => Some(most),
            GateLimit::Percent(percent) => first.map(|value| value * percent / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_round_trip_through_text() {
        for text in [
            "p99 +3%",
            "p50 +20us",
            "client_cpu +0.5%",
            "call_bytes +12B",
        ] {
            let gate: Gate = text.parse().unwrap();
            assert_eq!(gate.to_string(), text);
        }
        let spaced: Gate = " p50   + 1ms ".parse().unwrap();
        assert_eq!(spaced.to_string(), "p50 +1000us");
    }

    #[test]
    fn invalid_gate_error_shows_example() {
        for text in [
            "",
            "p99",
            "p99 3%",
            "p98 +3%",
            "p99 +x",
            "p99 +-3%",
            "p99 +inf%",
            "p99 +3",
        ] {
            let problem = text.parse::<Gate>().unwrap_err();
            assert!(problem.contains("p99 +3%"), "{text}: {problem}");
        }
    }
}

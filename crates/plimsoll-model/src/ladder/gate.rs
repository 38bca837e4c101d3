//! Gates: how much more a rung may take than the first one, as a build that is to be merged beside
//! the one that it replaces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Added, LadderRecord, Metric};
use crate::units::Period;

/// The most that a rung may take more of a metric than the first: `p99 +3%`, `client_cpu +2us`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    pub metric: Metric,
    most: Most,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Most {
    /// Of the first rung's figure.
    Percent(f64),
    /// In the metric's unit.
    Absolute(f64),
}

/// Where the interval of a difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passage {
    /// All of it within what is allowed.
    Within,
    /// All of it beyond.
    Beyond,
    /// On both sides, or there is none.
    Undecided,
}

/// A gate with what became of one rung at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gated {
    pub gate: Gate,
    pub rung: usize,
    pub passage: Passage,
    /// What the gate allows, in the metric's unit; `None`: the first rung's figure is not known.
    pub allowed: Option<f64>,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} +", self.metric.key())?;
        match self.most {
            Most::Percent(percent) => write!(f, "{percent}%"),
            Most::Absolute(bytes) if self.metric.unit() == super::Unit::Bytes => {
                write!(f, "{bytes}B")
            }
            Most::Absolute(us) => write!(f, "{us}us"),
        }
    }
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Gate, String> {
        let wrong = || {
            let metrics: Vec<&str> = Metric::ALL.iter().map(|m| m.key()).collect();
            format!(
                "`{text}` is no gate: write a metric and what it may be more, such as \"p99 +3%\" or \"p50 +20us\"; metrics are {}",
                metrics.join(", ")
            )
        };
        let (name, most) = text
            .trim()
            .split_once(char::is_whitespace)
            .ok_or_else(wrong)?;
        let metric = Metric::ALL
            .into_iter()
            .find(|metric| metric.key() == name)
            .ok_or_else(wrong)?;
        let most = most.trim().strip_prefix('+').ok_or_else(wrong)?.trim();
        let number = |digits: &str| {
            let value = digits.trim().parse::<f64>().ok()?;
            (value.is_finite() && value >= 0.0).then_some(value)
        };
        let most = match (most.strip_suffix('%'), metric.unit()) {
            (Some(percent), _) => number(percent).map(Most::Percent),
            (None, super::Unit::Bytes) => {
                let digits = most.strip_suffix('B').unwrap_or(most);
                number(digits).map(Most::Absolute)
            }
            (None, super::Unit::Micros) => {
                let period = most.parse::<Period>().ok();
                period.map(|p| Most::Absolute(p.0.as_secs_f64() * 1e6))
            }
        };
        Ok(Gate {
            metric,
            most: most.ok_or_else(wrong)?,
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

impl LadderRecord {
    /// What became of every rung but the first at every gate.
    pub fn gated(&self) -> Vec<Gated> {
        let rungs = 1..self.rungs.len();
        rungs
            .flat_map(|rung| self.gates.iter().map(move |gate| self.at(*gate, rung)))
            .collect()
    }

    fn at(&self, gate: Gate, rung: usize) -> Gated {
        let allowed = match gate.most {
            Most::Absolute(most) => Some(most),
            Most::Percent(percent) => {
                let first = self.rungs[0].median(gate.metric);
                first.map(|value| value * percent / 100.0)
            }
        };
        let (low, high) = match self.added(rung, 0, gate.metric) {
            Added::Clear(d) | Added::NoneSeen(d) => (d.low, d.high),
            Added::Counted(more) => (more, more),
            Added::TooFew => (f64::NEG_INFINITY, f64::INFINITY),
        };
        let passage = match allowed {
            Some(allowed) if high <= allowed => Passage::Within,
            Some(allowed) if low > allowed => Passage::Beyond,
            _ => Passage::Undecided,
        };
        Gated {
            gate,
            rung,
            passage,
            allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_and_written_alike() {
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
    fn what_is_no_gate_is_answered_with_what_is_one() {
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

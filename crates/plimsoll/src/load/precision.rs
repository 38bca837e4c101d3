//! Ends a closed-loop run once its rate is known with the requested precision (`load.precision`).

use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_model::statistics::rate::relative_half_width;

use crate::reporter::Reporter;

/// Minimum length of an interval whose rate is used. Shorter intervals occur at a run's end, and their rates are
/// unreliable.
const MIN_INTERVAL_LENGTH: Duration = Duration::from_millis(500);

/// Reporter that ends a run once the confidence interval of its rate is narrow enough.
pub(crate) struct PrecisionMonitor {
    warmup: Vec<bool>,
    /// Requested half-width of the confidence interval, relative to the rate.
    wanted_half_width: f64,
    /// Calls per second of each measured interval.
    rates: Vec<f64>,
    /// Why the monitor ended the run; `None` if it has not.
    end_reason: Option<String>,
}

impl PrecisionMonitor {
    /// Creates a monitor; `None` if the plan requests no precision.
    pub(crate) fn new(plan: &Plan) -> Option<PrecisionMonitor> {
        Some(PrecisionMonitor {
            warmup: plan.load.stages.iter().map(|s| s.warmup).collect(),
            wanted_half_width: plan.load.precision?,
            rates: Vec::new(),
            end_reason: None,
        })
    }

    /// Adds an interval; returns the reason if the run may end now.
    fn add_interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        let warming = interval
            .stages
            .iter()
            .any(|(stage, _)| self.warmup.get(usize::from(*stage)) == Some(&true));
        if warming || interval.length < MIN_INTERVAL_LENGTH {
            return None;
        }
        let ended: u64 = interval.stages.iter().map(|(_, r)| r.ended_calls()).sum();
        self.rates
            .push(ended as f64 / interval.length.as_secs_f64());
        let width =
            relative_half_width(&self.rates).filter(|width| *width <= self.wanted_half_width)?;
        Some(format!(
            "the rate {}",
            precision_text(width, self.rates.len())
        ))
    }

    /// Returns the note for the report: why the run was ended or, as an error, that the precision was not reached.
    pub(crate) fn end_note(&self) -> Result<String, String> {
        self.end_reason
            .clone()
            .ok_or_else(|| self.not_reached_note())
    }

    fn not_reached_note(&self) -> String {
        match relative_half_width(&self.rates) {
            Some(width) => format!(
                "load.precision: not reached, the rate {}: measure longer",
                precision_text(width, self.rates.len())
            ),
            None => format!(
                "load.precision: not reached, too few seconds to tell ({}): measure longer",
                self.rates.len()
            ),
        }
    }
}

impl Reporter for PrecisionMonitor {
    fn on_interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        if self.end_reason.is_some() {
            return None;
        }
        self.end_reason = self.add_interval(interval);
        self.end_reason.clone()
    }
}

fn precision_text(width: f64, seconds: usize) -> String {
    format!(
        "is known to ±{:.2} % (95 % confidence, {seconds} seconds)",
        width * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_model::Outcome;
    use plimsoll_model::records::record::StageRecord;

    fn interval(stage: u8, calls: u64) -> IntervalRecord {
        let mut record = StageRecord::default();
        record.outcomes.add(Outcome::Ok, calls);
        IntervalRecord {
            length: Duration::from_secs(1),
            stages: vec![(stage, record)],
            ..IntervalRecord::default()
        }
    }

    #[test]
    fn run_stops_when_rate_precision_is_reached() {
        let mut precision = PrecisionMonitor {
            warmup: vec![true, false],
            wanted_half_width: 0.02,
            rates: Vec::new(),
            end_reason: None,
        };
        // Warm-up intervals do not count.
        assert_eq!(precision.add_interval(&interval(0, 5)), None);
        for second in 0..9 {
            assert_eq!(
                precision.add_interval(&interval(1, 990 + 20 * (second % 2))),
                None
            );
        }
        let text = precision.add_interval(&interval(1, 1000)).unwrap();
        assert!(text.starts_with("the rate is known to ±0."), "{text}");
        precision.wanted_half_width = 0.0001;
        assert_eq!(precision.add_interval(&interval(1, 1000)), None);
        assert!(
            precision
                .not_reached_note()
                .contains("not reached, the rate is known to")
        );
    }
}

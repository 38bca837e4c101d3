//! A closed loop that ends as soon as its rate is known well enough (`load.precision`).

use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::run::IntervalRecord;
use plimsoll_model::statistics::rate::relative_half_width;

use crate::reporter::Reporter;

/// A shorter interval is the rest at a run's end, and its rate means little.
const MIN_INTERVAL_LENGTH: Duration = Duration::from_millis(500);

/// Watches a run's rate, second by second.
pub(crate) struct PrecisionMonitor {
    warmup: Vec<bool>,
    /// Half-width of the interval to come to, in parts of the rate.
    wanted: f64,
    /// Calls a second of each interval that counts.
    rates: Vec<f64>,
    /// Why it ended the run.
    ended: Option<String>,
}

impl PrecisionMonitor {
    /// `None`: the plan doesn't ask for it.
    pub(crate) fn new(plan: &Plan) -> Option<PrecisionMonitor> {
        Some(PrecisionMonitor {
            warmup: plan.load.stages.iter().map(|s| s.warmup).collect(),
            wanted: plan.load.precision?,
            rates: Vec::new(),
            ended: None,
        })
    }

    /// Why the run may end here, where it may.
    fn known_after(&mut self, interval: &IntervalRecord) -> Option<String> {
        let warming = interval
            .stages
            .iter()
            .any(|(stage, _)| self.warmup.get(usize::from(*stage)) == Some(&true));
        if warming || interval.length < MIN_INTERVAL_LENGTH {
            return None;
        }
        let ended: u64 = interval.stages.iter().map(|(_, r)| r.ended()).sum();
        self.rates
            .push(ended as f64 / interval.length.as_secs_f64());
        let width = relative_half_width(&self.rates).filter(|width| *width <= self.wanted)?;
        Some(format!("the rate {}", known(width, self.rates.len())))
    }

    /// The note on a run: why it ended, or (`Err`) that it ended too early.
    pub(crate) fn conclusion(&self) -> Result<String, String> {
        self.ended.clone().ok_or_else(|| self.not_reached())
    }

    fn not_reached(&self) -> String {
        match relative_half_width(&self.rates) {
            Some(width) => format!(
                "load.precision: not reached, the rate {}: measure longer",
                known(width, self.rates.len())
            ),
            None => format!(
                "load.precision: not reached, {} seconds are too few to tell: measure longer",
                self.rates.len()
            ),
        }
    }
}

impl Reporter for PrecisionMonitor {
    fn interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        if self.ended.is_some() {
            return None;
        }
        self.ended = self.known_after(interval);
        self.ended.clone()
    }
}

fn known(width: f64, seconds: usize) -> String {
    format!(
        "is known to ±{:.2} % (95 % confidence, {seconds} seconds)",
        width * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_model::Outcome;
    use plimsoll_model::record::StageRecord;

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
            wanted: 0.02,
            rates: Vec::new(),
            ended: None,
        };
        // Warm-up is another rate.
        assert_eq!(precision.known_after(&interval(0, 5)), None);
        for second in 0..9 {
            assert_eq!(
                precision.known_after(&interval(1, 990 + 20 * (second % 2))),
                None
            );
        }
        let text = precision.known_after(&interval(1, 1000)).unwrap();
        assert!(text.starts_with("the rate is known to ±0."), "{text}");
        precision.wanted = 0.0001;
        assert_eq!(precision.known_after(&interval(1, 1000)), None);
        assert!(
            precision
                .not_reached()
                .contains("not reached, the rate is known to")
        );
    }
}

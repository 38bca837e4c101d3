//! Defines the trait [`Reporter`]. The reporters of a run get its observations, and show, write or export them; the
//! module `execution` creates them.

use plimsoll_engine::{Observation, StopFlag};
use plimsoll_model::runs::run::IntervalRecord;

/// Consumes the observations of one run.
pub(crate) trait Reporter {
    /// Handles an observation; returns a reason if the run must end now.
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Interval(interval, _) => self.on_interval(interval),
            _ => None,
        }
    }

    /// Handles an interval; returns a reason if the run must end now. For reporters that need intervals only.
    fn on_interval(&mut self, _interval: &IntervalRecord) -> Option<String> {
        None
    }

    /// Handles the end of the run, which one of the reporters has requested for the given reason.
    fn on_early_end(&mut self, _reason: &str) {}
}

impl<R: Reporter> Reporter for Option<R> {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        self.as_mut()?.observe(event)
    }
}

/// Passes an observation to all reporters in order, and requests a stop for each reporter that ends the run.
pub(crate) fn report(
    event: &Observation<'_>,
    reporters: &mut [&mut dyn Reporter],
    stop: &StopFlag,
) {
    let observed = reporters.iter_mut().filter_map(|r| r.observe(event));
    let reasons: Vec<String> = observed.collect();
    for reason in reasons {
        reporters.iter_mut().for_each(|r| r.on_early_end(&reason));
        stop.request();
    }
}

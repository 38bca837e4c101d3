//! Defines [`Reporter`]s, which read the observations of a run: they produce everything that is shown, written or sent
//! of it. `execution` lists the reporters of a run.

use plimsoll_engine::{Observation, StopFlag};
use plimsoll_model::run::IntervalRecord;

/// Consumes the observations of one run.
pub(crate) trait Reporter {
    /// Handles an observation; returns a reason if the run is to end here.
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Interval(interval, _) => self.interval(interval),
            _ => None,
        }
    }

    /// Handles an interval; for reporters that need nothing else.
    fn interval(&mut self, _interval: &IntervalRecord) -> Option<String> {
        None
    }

    /// Called when one of the reporters ends the run.
    fn ending(&mut self, _reason: &str) {}
}

impl<R: Reporter> Reporter for Option<R> {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        self.as_mut()?.observe(event)
    }
}

/// Passes an observation to all reporters in order, and requests a stop for each that ends the run.
pub(crate) fn report(
    event: &Observation<'_>,
    reporters: &mut [&mut dyn Reporter],
    stop: &StopFlag,
) {
    let observed = reporters.iter_mut().filter_map(|r| r.observe(event));
    let reasons: Vec<String> = observed.collect();
    for reason in reasons {
        reporters.iter_mut().for_each(|r| r.ending(&reason));
        stop.request();
    }
}

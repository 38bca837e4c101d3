//! What happens in a run is one stream of events. All that is shown, written or sent of it is made by
//! [`Reporter`]s, which read that stream; `execution` lists those of a run.

use plimsoll_engine::{Observation, Stop};
use plimsoll_model::run::IntervalRecord;

/// Reads the events of one run.
pub(crate) trait Reporter {
    /// The next event. Returns the reason where the run is to end here.
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        match event {
            Observation::Interval(interval, _) => self.interval(interval),
            _ => None,
        }
    }

    /// The same of an interval, for those that read nothing else.
    fn interval(&mut self, _interval: &IntervalRecord) -> Option<String> {
        None
    }

    /// One of the reporters ends the run.
    fn ending(&mut self, _reason: &str) {}
}

impl<R: Reporter> Reporter for Option<R> {
    fn observe(&mut self, event: &Observation<'_>) -> Option<String> {
        self.as_mut()?.observe(event)
    }
}

/// Hands an event to all, in their order, and pulls `stop` for each that ends the run.
pub(crate) fn report(event: &Observation<'_>, reporters: &mut [&mut dyn Reporter], stop: &Stop) {
    let observed = reporters.iter_mut().filter_map(|r| r.observe(event));
    let reasons: Vec<String> = observed.collect();
    for reason in reasons {
        reporters.iter_mut().for_each(|r| r.ending(&reason));
        stop.request();
    }
}

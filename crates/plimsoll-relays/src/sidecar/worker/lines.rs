//! What is told of a call, or of a connection, that has ended: the lines of the access log, and the metrics of answers.

use jiff::Timestamp;
use plimsoll_model::Time;

use super::super::access_log::Line;
use super::super::count;
use super::Worker;

impl Worker {
    /// Whether lines are wanted: where they are not, nothing is gathered for them.
    pub(super) fn logs(&self) -> bool {
        self.access_log.is_some()
    }

    /// `line`: what the protocol knows of a call, or a connection, that has ended; `endpoint`: the upstream
    /// that it went to, by its place.
    pub(super) fn log(&self, route: usize, endpoint: Option<usize>, began: Time, line: Line) {
        let Some(log) = &self.access_log else {
            return;
        };
        let state = &self.routes[route];
        let upstream = endpoint.and_then(|place| state.endpoints.get(place));
        let took = self.shared.clock.now().duration_since(began);
        let line = Line {
            time: Timestamp::now(),
            route: state.setup.route.name.clone(),
            upstream: upstream.map(|endpoint| endpoint.address().to_string()),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            ..line
        };
        if !log.write(line) {
            count(&self.counters(route).lines_lost, 1);
        }
    }

    /// An upstream has answered a call that began then.
    pub(super) fn timed(&mut self, route: usize, began: Time, status: u32, now: Time) {
        let state = &mut self.routes[route];
        state.setup.took.observe(now.duration_since(began));
        let (metrics, name) = (&self.shared.metrics, &state.setup.route.name);
        let codec = state.setup.codec.as_ref();
        state.statuses.count(status, metrics, name, || {
            codec.map_or_else(|| status.to_string(), |codec| codec.status_name(status))
        });
    }
}

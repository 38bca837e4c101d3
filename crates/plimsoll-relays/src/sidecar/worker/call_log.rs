//! Records ended calls and connections: lines of the access log, and metrics of answers.

use jiff::Timestamp;
use plimsoll_model::Time;

use super::super::access_log::AccessLogEntry;
use super::super::add_to_counter;
use super::Worker;

impl Worker {
    /// Returns whether there is an access log. Without one, its fields are not collected.
    pub(super) fn has_access_log(&self) -> bool {
        self.access_log.is_some()
    }

    /// Logs an ended call or connection. `line` holds the fields that the protocol knows, `endpoint` is the index of
    /// the upstream.
    pub(super) fn write_access_log(
        &self,
        route: usize,
        endpoint: Option<usize>,
        began: Time,
        line: AccessLogEntry,
    ) {
        let Some(log) = &self.access_log else {
            return;
        };
        let state = &self.routes[route];
        let upstream = endpoint.and_then(|place| state.endpoints.get(place));
        let took = self.shared.clock.now().duration_since(began);
        let line = AccessLogEntry {
            time: Timestamp::now(),
            route: state.setup.route.name.clone(),
            upstream: upstream.map(|endpoint| endpoint.address().to_string()),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            ..line
        };
        if !log.write_lines(line) {
            add_to_counter(&self.counters(route).lines_lost, 1);
        }
    }

    /// Records the latency and status of an answered call.
    pub(super) fn record_answered_call(
        &mut self,
        route: usize,
        began: Time,
        status: u32,
        now: Time,
    ) {
        let state = &mut self.routes[route];
        state.setup.latency.observe(now.duration_since(began));
        let (metrics, name) = (&self.shared.metrics, &state.setup.route.name);
        let codec = state.setup.codec.as_ref();
        state.statuses.count(status, metrics, name, || {
            codec.map_or_else(|| status.to_string(), |codec| codec.status_name(status))
        });
    }
}

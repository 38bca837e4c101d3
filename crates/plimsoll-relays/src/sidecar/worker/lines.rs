//! The access log's lines: what became of a call, or of a connection.

use std::net::SocketAddr;

use jiff::Timestamp;
use plimsoll_model::Time;

use super::super::access_log::Line;
use super::super::count;
use super::Worker;

/// What of a line the protocol knows.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) client: Option<SocketAddr>,
    /// The upstream that the call went to, by its place.
    pub(super) endpoint: Option<usize>,
    pub(super) call: Option<String>,
    pub(super) status: Option<String>,
    pub(super) by_sidecar: bool,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
}

impl Worker {
    /// Whether lines are wanted: where they are not, nothing is gathered for them.
    pub(super) fn logs(&self) -> bool {
        self.access_log.is_some()
    }

    pub(super) fn log(&self, route: usize, began: Time, told: Told) {
        let Some(log) = &self.access_log else {
            return;
        };
        let state = &self.routes[route];
        let upstream = told.endpoint.and_then(|place| state.endpoints.get(place));
        let took = self.shared.clock.now().duration_since(began);
        let line = Line {
            time: Timestamp::now(),
            route: state.route.name.clone(),
            client: told.client,
            upstream: upstream.map(|endpoint| endpoint.address().to_string()),
            call: told.call,
            status: told.status,
            by_sidecar: told.by_sidecar,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            bytes_up: told.bytes_up,
            bytes_down: told.bytes_down,
        };
        if !log.tell(line) {
            count(&self.counters(route).lines_lost, 1);
        }
    }
}
